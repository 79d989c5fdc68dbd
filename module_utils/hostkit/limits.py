"""Resource limits of running processes, as /proc/PID/limits shows them."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .procfs import PROC, Process, processes_of_unit, read_process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

NAMES = {
    "Max cpu time": "cpu",
    "Max file size": "fsize",
    "Max data size": "data",
    "Max stack size": "stack",
    "Max core file size": "core",
    "Max resident set": "rss",
    "Max processes": "nproc",
    "Max open files": "nofile",
    "Max locked memory": "memlock",
    "Max address space": "as",
    "Max file locks": "locks",
    "Max pending signals": "sigpending",
    "Max msgqueue size": "msgqueue",
    "Max nice priority": "nice",
    "Max realtime priority": "rtprio",
    "Max realtime timeout": "rttime",
}
"""The kernel's names (fs/proc/base.c, lnames) to those of limits.conf(5) and getrlimit(2)."""

UNLIMITED = -1
"""Stands for no limit, since a number compares and a word does not."""

BASE_NOFILE = 512
"""Descriptors of one process without clients, with room: vLLM 0.32 on the CPU has 29 in the API
server, 50 in the engine core and 86 in a worker when idle; loading opens a file for each shard."""

NOFILE_PER_CONNECTION = 1
"""Descriptors of the API server for each connected client; docs/sandbox.md has the measurement."""

NOFILE_PER_GPU = 256
"""Descriptors of a worker for each GPU that it talks to: device nodes, shared memory and sockets of
NCCL's channels. Not measured: four for each of the 64 channels that NCCL has at most."""

_CAP_SYS_RESOURCE = 1 << 24
"""Bit of the capability, include/uapi/linux/capability.h."""

_SIZE = re.compile(r"(\d+)([KMGT]?)")
_LINE = re.compile(r"(Max [a-z ]+?)\s{2,}(\d+|unlimited)\s+(\d+|unlimited)\b")


@dataclass(frozen=True)
class Limit:
    """One limit of a process.

    Attributes:
        soft: The limit in force; files, processes, bytes, or seconds, -1 for none.
        hard: How far the process may raise it, in the same unit.
    """

    soft: int
    hard: int


def parse_limits(text: str) -> dict[str, Limit]:
    """Return the limits in the text of /proc/PID/limits by their limits.conf names."""
    found = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match and match.group(1) in NAMES:
            found[NAMES[match.group(1)]] = Limit(_number(match.group(2)), _number(match.group(3)))
    return found


def limits_of(pid: int, proc: Path = PROC) -> dict[str, Limit] | None:
    """Return a process's limits, None when it has ended or may not be read."""
    try:
        return parse_limits((proc / str(pid) / "limits").read_text(encoding="ascii"))
    except OSError:
        return None


def may_raise(pid: int, proc: Path = PROC) -> bool:
    """Tell whether a process may raise its hard limits, and those of what it starts.

    setrlimit(2) wants CAP_SYS_RESOURCE in the machine's own user namespace: a container without it,
    or with users of its own, can give its services no more than it was given.
    """
    try:
        status = (proc / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
        uid_map = (proc / str(pid) / "uid_map").read_text(encoding="ascii").split()
    except OSError:
        return False
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return bool(
        effective
        and int(effective.group(1), 16) & _CAP_SYS_RESOURCE
        and uid_map == ["0", "0", "4294967295"]
    )


def parse_size(value: Any) -> int:
    """Return a size as systemd.resource-control(5) writes it, in bytes; -1 for infinity.

    Args:
        value: ``infinity``, or a number with an optional suffix K, M, G or T, to the base 1024.

    Raises:
        ValueError: It is neither.
    """
    text = str(value).strip()
    if text == "infinity":
        return UNLIMITED
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"not a size: {text!r}")
    size: int = int(match[1]) * 1024 ** " KMGT".index(match[2] or " ")
    return size


def needed_nofile(instance: Mapping[str, Any], gpus: int = 0) -> int:
    """Return how many open files each process of an instance must be allowed.

    The limit is one for all processes, so it follows from the one that needs most: the API server
    with a descriptor for each connection, or a worker with those of its GPUs.

    Args:
        instance: A normalised instance.
        gpus: GPUs of the host, for an instance that takes all of them.
    """
    devices = len(instance["gpus"]) or gpus
    return BASE_NOFILE + max(
        int(instance["max_connections"]) * NOFILE_PER_CONNECTION, devices * NOFILE_PER_GPU
    )


def report(
    pid: int | None = None, unit: str | None = None, proc: Path = PROC
) -> list[dict[str, Any]]:
    """Return one process or all processes of a unit with their limits, by ascending pid.

    An empty list says that there is no such process, or that no process runs in the unit.

    Args:
        pid: Process id.
        unit: systemd unit, used when no pid is given.
        proc: Where /proc is mounted.
    """
    processes: list[Process | None]
    if pid is not None:
        processes = [read_process(pid, proc)]
    else:
        processes = [*processes_of_unit(unit or "", proc)]
    rows = []
    for process in processes:
        found = limits_of(process.pid, proc) if process else None
        if process and found is not None:
            limits = {name: asdict(limit) for name, limit in sorted(found.items())}
            rows.append(
                {
                    "pid": process.pid,
                    "name": process.name,
                    "limits": limits,
                    "may_raise": may_raise(process.pid, proc),
                }
            )
    return rows


def below(rows: Sequence[Mapping[str, Any]], name: str, wanted: int) -> list[str]:
    """Return a sentence for each process that has less of a limit than wanted, soft or hard.

    Args:
        rows: What `report` returned.
        name: Name of the limit, such as ``nofile``.
        wanted: The limit that each process should have, -1 for none.
    """
    return [
        _different(row, name, kind, wanted)
        for row in rows
        for kind in ("soft", "hard")
        if _size(row["limits"][name][kind]) < _size(wanted)
    ]


def above(rows: Sequence[Mapping[str, Any]], name: str, wanted: int) -> list[str]:
    """Return the same for each process that may have more than wanted."""
    return [
        _different(row, name, "hard", wanted)
        for row in rows
        if _size(row["limits"][name]["hard"]) > _size(wanted)
    ]


def _different(row: Mapping[str, Any], name: str, kind: str, wanted: int) -> str:
    return (
        f"{row['name']} (pid {row['pid']}) has {kind} {name} {show(row['limits'][name][kind])}, "
        f"wanted {show(wanted)}"
    )


def _number(text: str) -> int:
    return UNLIMITED if text == "unlimited" else int(text)


def _size(value: int) -> float:
    return float("inf") if value == UNLIMITED else value


def show(value: int) -> str:
    """Return a limit in words: its number, or ``unlimited``."""
    return "unlimited" if value == UNLIMITED else str(value)
