"""Which GPUs the instances use, and how much of each one's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .instances import VARIABLE, Problem, normalise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_UTILIZATION = 0.92
"""Share of a GPU's memory that vLLM takes: CacheConfig.gpu_memory_utilization of 0.32 and 0.33."""

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
