"""Which GPUs the instances use, and how much of each one's memory.

What the host has is asked by `nvml`; everything here but `check_before_start` and `held_by` is a
function of values.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .instances import VARIABLE, Problem, normalise
from .nvml import Gpus, probe
from .procfs import read_process

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from .nvml import Gpu

DEFAULT_UTILIZATION = 0.92
"""Share of a GPU's memory that vLLM takes: CacheConfig.gpu_memory_utilization of 0.32 and 0.33."""

RELEASE_SECONDS = 10.0
"""How long the driver may take to give back the memory of a process that has ended."""

_GIB = 1024**3
_UTILIZATION = ("gpu_memory_utilization", "device_memory_utilization")
_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def cards(instance: Mapping[str, Any]) -> list[str]:
    """Return the GPUs that a server puts its workers on, as its instance names them.

    vLLM takes the first ones that it sees, as many as tensor, pipeline and data parallel sizes make
    together; without a list it sees all.

    Args:
        instance: A valid instance.
    """
    full = normalise(instance)
    count = 1
    for name in _PARALLEL:
        count *= max(1, int(_number(_option(full["args"], name, 1), 1)))
    seen = [str(gpu) for gpu in full["gpus"]] or [str(number) for number in range(count)]
    return seen[:count]


def share(instance: Mapping[str, Any]) -> float | None:
    """Return the share of each GPU's memory that a server takes, 0 to 1.

    None when it is told in bytes (``kv_cache_memory_bytes``), which says nothing of its weights.
    """
    args = instance.get("args") or {}
    if _option(args, "kv_cache_memory_bytes", None) is not None:
        return None
    for name in _UTILIZATION:
        value = _option(args, name, None)
        if value is not None:
            return _number(value, DEFAULT_UTILIZATION)
    return DEFAULT_UTILIZATION


def budgets(instances: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """Return a problem for each GPU of which the servers together want more memory than it has.

    From the inventory alone: one GPU that is named by its index here and by its UUID there counts
    as two.

    Args:
        instances: Valid instances.
    """
    users: dict[str, list[tuple[int, str, float]]] = {}
    for number, instance in enumerate(instances):
        wanted = share(instance)
        for card in cards(instance) if wanted is not None else []:
            users.setdefault(card, []).append((number, str(instance["name"]), wanted or 0.0))
    found = []
    for card, those in users.items():
        total = sum(wanted for _, _, wanted in those)
        if len(those) > 1 and total > 1.0 + 1e-9:
            listed = ", ".join(f"{name} {wanted:g}" for _, name, wanted in those)
            found.append(
                Problem(
                    f"{VARIABLE}[{those[-1][0]}].args.gpu_memory_utilization",
                    f"{those[-1][2]:g}, which makes {total:.2f} of GPU {card} ({listed})",
                    "a sum of at most 1 for each GPU",
                    "Give the instances different gpus, or set gpu_memory_utilization in the args "
                    f"of each, such as {1 / len(those) - 0.02:.2f}.",
                )
            )
    return found


def resolve(wanted: Sequence[Any], found: Gpus) -> tuple[list[str], list[str]]:
    """Return the full UUIDs of the GPUs that an instance names, and what is wrong with the rest.

    Full, since vLLM 0.32 looks a UUID up in NVML, which knows no abbreviated ones (CUDA does).

    Args:
        wanted: Indexes and UUIDs, which may be abbreviated; an empty list means all.
        found: A probe whose state is ``ok``.
    """
    if not wanted:
        return [gpu.uuid for gpu in found.gpus], []
    uuids, problems = [], []
    for name in map(str, wanted):
        same = _named(name, found)
        if len(same) != 1:
            here = ", ".join(f"{gpu.index} ({gpu.uuid}, {gpu.name})" for gpu in found.gpus)
            what = "names several GPUs" if same else "is no GPU of this host"
            problems.append(f"{name} {what}; there are: {here}.")
        elif same[0] in uuids:
            problems.append(f"{name} names {same[0]}, which is in the list already.")
        else:
            uuids.append(same[0])
    return uuids, problems


def devices(wanted: Sequence[Any], found: Gpus) -> list[str]:
    """Return the device nodes of the GPUs that an instance names, /dev/nvidiaN, sorted.

    A MIG device is reached through the node of its GPU.
    """
    uuids, _ = resolve(wanted, found)
    minors = {gpu.minor for gpu in found.gpus if {gpu.uuid, *gpu.mig} & {*uuids}}
    return [f"/dev/nvidia{minor}" for minor in sorted(minors)]


def held(
    uuids: Collection[str],
    found: Gpus,
    own_pids: Collection[int],
    utilization: float,
    describe: Callable[[int], str] | None = None,
) -> list[str]:
    """Return a sentence for each GPU that has less memory free than a server takes at its start.

    vLLM refuses such a start (request_memory in vllm/v1/worker/utils.py of 0.32). What it takes
    itself before it looks, some hundred MiB, is not counted. A MIG device's memory is not judged.

    Args:
        uuids: Full UUIDs of the server's GPUs.
        found: A probe.
        own_pids: Processes whose memory is free by then. When the driver does not tell how much
            one of them has, all that no other process is known to have counts as theirs.
        utilization: Share of the memory that the server takes.
        describe: Words for a process id; from /proc when None.
    """
    problems = []
    for gpu in found.gpus:
        others = [(pid, size) for pid, size in gpu.processes if pid not in own_pids]
        used = gpu.memory_used - _own(gpu, own_pids)
        free, needed = gpu.memory_total - used, gpu.memory_total * utilization
        if gpu.uuid in uuids and free < needed:
            who = "; ".join(
                f"{(describe or describe_process)(pid)} has "
                f"{'an unknown part' if size is None else _gib(size)}"
                for pid, size in others
            )
            problems.append(
                f"GPU {gpu.index} ({gpu.uuid}) has {_gib(free)} of {_gib(gpu.memory_total)} free, "
                f"less than the {_gib(needed)} of gpu_memory_utilization {utilization:g}: "
                f"{who or 'no process that the driver tells of has the rest'}."
            )
    return problems


def check_before_start(
    uuids: Sequence[str], utilization: float, wait: float = RELEASE_SECONDS
) -> list[str]:
    """Return why a server must not start yet, empty when it may; waits for memory given back.

    Args:
        uuids: What stands in CUDA_VISIBLE_DEVICES of its environment; empty for all GPUs.
        utilization: Share of each GPU's memory that it takes.
        wait: Seconds to wait at most.
    """
    deadline = time.monotonic() + wait
    while True:
        found = probe()
        if found.state != "ok":
            return [found.reason]
        full, problems = resolve(uuids, found)
        problems = problems or held(full, found, (), utilization)
        if not problems or time.monotonic() >= deadline:
            return problems
        time.sleep(0.5)


def held_by(own_pids: Collection[int], found: Gpus | None = None) -> list[str]:
    """Return a sentence for each of these processes that has memory of a GPU.

    Args:
        own_pids: Process ids.
        found: A probe; asked anew when None.
    """
    return [
        f"{describe_process(pid)} has {'memory' if size is None else _gib(size)} of "
        f"GPU {gpu.index} ({gpu.uuid})"
        for gpu in (found or probe()).gpus
        for pid, size in gpu.processes
        if pid in own_pids
    ]


def describe_process(pid: int) -> str:
    """Return words for a process: id, command and unit, as far as /proc tells."""
    process = read_process(pid)
    if process is None:
        return f"pid {pid}"
    return f"pid {pid} ({process.command}, {process.unit or 'no systemd unit'})"


def _named(name: str, found: Gpus) -> list[str]:
    """Return the UUIDs that an index, a UUID or the beginning of one stands for."""
    if name.isdigit():
        return [gpu.uuid for gpu in found.gpus if gpu.index == int(name)]
    every = [uuid for gpu in found.gpus for uuid in (gpu.uuid, *gpu.mig)]
    return [name] if name in every else [uuid for uuid in every if uuid.startswith(name)]


def _own(gpu: Gpu, own_pids: Collection[int]) -> int:
    """Return the bytes of a GPU that some processes have."""
    sizes = [size for pid, size in gpu.processes if pid in own_pids]
    if None not in sizes:
        return sum(size or 0 for size in sizes)
    others = sum(size or 0 for pid, size in gpu.processes if pid not in own_pids)
    return max(gpu.memory_used - others, 0)


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f} GiB"


def _option(args: Mapping[str, Any], name: str, default: Any) -> Any:
    """Return vLLM's option, which may be written with underscores or dashes."""
    for key, value in args.items():
        if key.replace("-", "_") == name:
            return value
    return default


def _number(value: Any, default: float) -> float:
    """Return a number; what is none is for vLLM to refuse, so it counts as the default."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return default
