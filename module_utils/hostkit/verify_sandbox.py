"""Proofs about a running server: its limits are those asked for, and its sandbox is in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import limits, sandbox
from .findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ONLY_CPU = ("PrivateDevices",)
"""Directives that the unit has for the variant cpu alone."""

LARGEST_PAGE = 65536
"""Bytes; the kernel rounds a limit of memory down to whole pages."""

SHM_TOLERANCE = 0.01
"""The kernel counts a share of the memory in whole pages of what it keeps after its own start."""


def judge(
    instance: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    seen: Mapping[str, Any],
    wanted: Mapping[str, Any],
) -> Iterator[Finding]:
    """Yield what a running server's limits and sandbox are worth, nothing when it does not run.

    Args:
        instance: A normalised instance.
        rows: ``processes`` of process_limits_info.
        seen: Its entry in ``units`` of vllm_sandbox_info, with ``can_filter_addresses`` and
            ``memory_total`` of the host.
        wanted: ``memlock``, ``core`` and ``tasks``, the variables of host_limits; ``variant`` of
            the engine.
    """
    if not rows or not seen["processes"]:
        return
    yield _limits(instance, rows, seen, wanted)
    yield _shm(instance, seen)
    yield from _sandbox(instance, seen, str(wanted["variant"]))


def _limits(
    instance: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    seen: Mapping[str, Any],
    wanted: Mapping[str, Any],
) -> Finding:
    name = instance["name"]
    memlock, core = limits.parse_size(wanted["memlock"]), limits.parse_size(wanted["core"])
    wrong = [*limits.below(rows, "memlock", memlock), *limits.below(rows, "core", core)]
    wrong += limits.above(rows, "core", core)
    for key, label, value, rounding in (
        ("tasks_max", "pids.max", int(wanted["tasks"]), 1),
        ("memory_max", "memory.max", limits.parse_size(instance["memory_max"]), LARGEST_PAGE),
    ):
        found = seen[key]
        if found is None:
            wrong.append(f"{label} of the control group can't be read, {value} is wanted")
        elif found != value and not 0 <= value - found < rounding:
            wrong.append(
                f"the control group has {label} {limits.show(found)}, wanted {limits.show(value)}"
            )
    if wrong:
        return Finding(
            "limits_clamped",
            "fail",
            f"{len(wrong)} limits of the running server are not those asked for.",
            evidence=tuple(wrong),
            subject=name,
        )
    return Finding(
        "limits_clamped",
        "pass",
        f"All {len(rows)} processes have memlock {limits.show(memlock)} and core "
        f"{limits.show(core)}; together {limits.show(seen['tasks_max'])} tasks and memory "
        f"{limits.show(seen['memory_max'])}.",
        subject=name,
    )


def _shm(instance: Mapping[str, Any], seen: Mapping[str, Any]) -> Finding:
    name, asked = instance["name"], str(instance["shm_size"])
    if "TemporaryFileSystem" in instance["sandbox_relax"]:
        summary = "The server shares the host's /dev/shm, since sandbox_relax says so."
        return Finding("shm", "pass", summary, subject=name)
    if asked.endswith("%"):
        wanted = seen["memory_total"] * int(asked[:-1]) // 100
    else:
        wanted = limits.parse_size(asked)
    small = [
        f"{one['name']} (pid {one['pid']}) sees {limits.show(one['shm_bytes'])} bytes"
        for one in seen["processes"]
        if one["shm_bytes"] < wanted * (1 - SHM_TOLERANCE)
    ]
    if small:
        return Finding(
            "shm",
            "fail",
            f"/dev/shm is smaller than the {wanted} bytes of shm_size {asked}.",
            evidence=tuple(small),
            subject=name,
        )
    size = min(one["shm_bytes"] for one in seen["processes"]) / 1024**3
    return Finding("shm", "pass", f"/dev/shm has {size:.1f} GiB.", subject=name)


def _sandbox(
    instance: Mapping[str, Any], seen: Mapping[str, Any], variant: str
) -> Iterator[Finding]:
    name = instance["name"]
    excused = {*instance["sandbox_relax"], *(ONLY_CPU if variant != "cpu" else ())}
    loose = [
        f"{one['name']} (pid {one['pid']}): {', '.join(missing)}{_where(missing, one)}"
        for one in seen["processes"]
        for missing in [
            [
                key
                for key, holds in sorted(one["in_force"].items())
                if not holds and key not in excused
            ]
        ]
        if missing
    ]
    if loose:
        yield Finding(
            "sandbox_ignored",
            "fail",
            "Parts of the unit's sandbox are not in force on the running server.",
            evidence=tuple(loose),
            subject=name,
        )
    else:
        relaxed = ", ".join(sorted(instance["sandbox_relax"])) or "nothing"
        proved = len([key for key in seen["processes"][0]["in_force"] if key not in excused])
        yield Finding(
            "sandbox_ignored",
            "pass",
            f"{proved} directives are seen in force on all {len(seen['processes'])} processes; "
            f"systemd rates the exposure {seen['exposure'] or 'not at all'}; relaxed: {relaxed}.",
            subject=name,
        )
    filtered = sandbox.is_local(instance) and "IPAddressDeny" not in instance["sandbox_relax"]
    if filtered and not seen["can_filter_addresses"]:
        yield Finding(
            "sandbox_ignored",
            "warn",
            "IPAddressDeny is ignored, since this host has no cgroup v2: the server may reach the "
            "network.",
            remedy="Boot with systemd.unified_cgroup_hierarchy=1, or filter with a firewall.",
            subject=name,
        )


def _missing(process: Mapping[str, Any], excused: set[str]) -> list[str]:
    return sorted(
        key for key, holds in process["in_force"].items() if not holds and key not in excused
    )


def _where(missing: Sequence[str], process: Mapping[str, Any]) -> str:
    if "ProtectSystem" not in missing:
        return ""
    return f"; writable: {', '.join(process['writable'][:5])}"
