"""What confines a running process, as /proc tells: the directives that are in force on it.

A unit's text says what was asked; a host that lacks something, or another drop-in, can leave it out
without a word. Only the process shows it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from . import sandbox
from .limits import UNLIMITED
from .procfs import PROC, processes_of_unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CGROUPS = Path("/sys/fs/cgroup")

_INACCESSIBLE = "/systemd/inaccessible/"
_API = ("/dev", "/proc", "/sys")
_CONTROLLERS = {
    "tasks_max": ("pids", "pids.max", "pids.max"),
    "memory_max": ("memory", "memory.max", "memory.limit_in_bytes"),
}
"""Limits of a control group: controller, file on cgroup v2, file on v1; see cgroups(7)."""
_NONE_ON_V1 = 1 << 62
"""The kernel writes the absence of a memory limit on v1 as the largest multiple of a page."""


@dataclass(frozen=True)
class Mount:
    """A mount as a process sees it, see proc_pid_mountinfo(5).

    Attributes:
        root: Path within the filesystem that is mounted there.
        options: Options of this mount, ``ro`` or ``rw`` among them.
        kind: Type of the filesystem.
        settings: Options of the filesystem as a whole.
        device: Its number; two mounts of one filesystem have the same.
    """

    root: str
    options: tuple[str, ...]
    kind: str
    settings: tuple[str, ...]
    device: str

    @property
    def is_inaccessible(self) -> bool:
        """Tell whether systemd put an empty thing there that nobody may open."""
        return _INACCESSIBLE in self.root


def parse_mounts(text: str) -> dict[str, Mount]:
    """Return the mounts of the text of /proc/PID/mountinfo by their place, the topmost of each."""
    found = {}
    for line in text.splitlines():
        before, _dash, after = line.partition(" - ")
        own, rest = before.split(), after.split()
        if len(own) < 6 or len(rest) < 3:
            continue
        place = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), own[4])
        found[place] = Mount(
            own[3], tuple(own[5].split(",")), rest[0], tuple(rest[2].split(",")), own[2]
        )
    return found


def in_force(
    status: str, mounts: Mapping[str, Mount], host: Mapping[str, Mount], cache: str
) -> dict[str, bool]:
    """Return for each directive that shows in /proc whether it is in force on a process.

    Args:
        status: Text of the process's /proc/PID/status.
        mounts: The mounts that it sees.
        host: The mounts that the host's first process sees.
        cache: Directory that it may write and execute from.
    """
    fields = dict(re.findall(r"^(\w+):\s*(\S+)", status, re.MULTILINE))
    capabilities = [int(fields.get(name, "f"), 16) for name in ("CapBnd", "CapEff", "CapPrm")]
    proc = mounts.get("/proc")
    return {
        "CapabilityBoundingSet": not any(capabilities),
        "InaccessiblePaths": _hidden("InaccessiblePaths", mounts),
        "NoExecPaths": all(
            place in mounts and "noexec" in mounts[place].options for place in ("/tmp", "/var/tmp")
        ),
        "NoNewPrivileges": fields.get("NoNewPrivs") == "1",
        "PrivateDevices": _is_own("/dev", mounts, host),
        "PrivateTmp": _is_own("/tmp", mounts, host),
        "ProtectControlGroups": _is_read_only("/sys/fs/cgroup", mounts),
        "ProtectHome": _hidden("ProtectHome", mounts),
        "ProtectKernelLogs": "/proc/kmsg" in mounts and mounts["/proc/kmsg"].is_inaccessible,
        "ProtectKernelTunables": _is_read_only("/proc/sys", mounts),
        "ProtectProc": proc is not None
        and bool({"hidepid=invisible", "hidepid=2"} & set(proc.settings)),
        "ProtectSystem": not writable(mounts, cache),
        "SystemCallFilter": fields.get("Seccomp") == "2",
        "TemporaryFileSystem": _is_own("/dev/shm", mounts, host)
        and "noexec" in mounts["/dev/shm"].options,
    }


def writable(mounts: Mapping[str, Mount], cache: str) -> list[str]:
    """Return the places that a process could write to, beside its own and the kernel's, sorted.

    What lies below a place that is hidden is not reached, so it does not count.
    """
    allowed = ("/tmp", "/var/tmp", cache, *_API)
    hidden = [place for place, mount in mounts.items() if mount.is_inaccessible]
    found = {
        place
        for place, mount in mounts.items()
        if "rw" in mount.options and not _below(place, allowed) and not _below(place, hidden)
    }
    return sorted(found if "/" in mounts else {"/", *found})


def shm_bytes(mounts: Mapping[str, Mount]) -> int:
    """Return the size of the /dev/shm that a process sees; -1 for none given."""
    mount = mounts.get("/dev/shm")
    for setting in mount.settings if mount else ():
        match = re.fullmatch(r"size=(\d+)k", setting)
        if match:
            return int(match[1]) * 1024
    return UNLIMITED


def group_limits(groups: str, root: Path = CGROUPS) -> dict[str, int | None]:
    """Return the limits of a control group by the names of `_CONTROLLERS`, -1 for no limit.

    None says that the limit can't be read: on cgroup v1, or v2, without that controller.

    Args:
        groups: Text of /proc/PID/cgroup of one of its processes.
        root: Where control groups are mounted.
    """
    paths = {}
    for line in groups.splitlines():
        number, controllers, path = line.split(":", 2)
        for name in controllers.split(",") if number != "0" else [""]:
            paths[name] = path.lstrip("/")
    found: dict[str, int | None] = {}
    for key, (controller, new, old) in _CONTROLLERS.items():
        if controller in paths:
            place = root / controller / paths[controller] / old
        else:
            place = root / paths.get("", "") / new
        try:
            text = place.read_text(encoding="ascii").strip()
        except OSError:
            found[key] = None
            continue
        value = UNLIMITED if text == "max" else int(text)
        found[key] = UNLIMITED if value > _NONE_ON_V1 else value
    return found


def can_filter_addresses(root: Path = CGROUPS) -> bool:
    """Tell whether systemd can filter a unit's packets: only in the hierarchy of cgroup v2.

    On hosts that have both, systemd puts v2 under ``unified``.
    """
    return (root / "cgroup.controllers").exists() or (root / "unified/cgroup.procs").exists()


def memory_total(proc: Path = PROC) -> int:
    """Return the host's memory in bytes, 0 when it is not told."""
    match = re.search(
        r"^MemTotal:\s+(\d+) kB", (proc / "meminfo").read_text(encoding="ascii"), re.MULTILINE
    )
    return int(match[1]) * 1024 if match else 0


def report(unit: str, cache: str, proc: Path = PROC) -> dict[str, Any]:
    """Return what confines a unit: its processes each, and the limits of its control group.

    Args:
        unit: Name of the unit.
        cache: Directory that it may write and execute from.
        proc: Where /proc is mounted.
    """
    host = parse_mounts((proc / "1/mountinfo").read_text(encoding="utf-8", errors="replace"))
    rows: list[dict[str, Any]] = []
    group: dict[str, int | None] = dict.fromkeys(_CONTROLLERS)
    for process in processes_of_unit(unit, proc):
        directory = proc / str(process.pid)
        try:
            status = (directory / "status").read_text(encoding="utf-8", errors="replace")
            mounts = parse_mounts(
                (directory / "mountinfo").read_text(encoding="utf-8", errors="replace")
            )
            group = group_limits((directory / "cgroup").read_text(encoding="utf-8"))
        except OSError:  # it has ended
            continue
        rows.append(
            {
                "pid": process.pid,
                "name": process.name,
                "in_force": in_force(status, mounts, host, cache),
                "writable": writable(mounts, cache),
                "shm_bytes": shm_bytes(mounts),
            }
        )
    return {"processes": rows, **group}


def _hidden(directive: str, mounts: Mapping[str, Mount]) -> bool:
    return all(
        place in mounts and mounts[place].is_inaccessible
        for place in sandbox.HIDDEN[directive]
        if Path(place).exists()
    )


def _is_own(place: str, mounts: Mapping[str, Mount], host: Mapping[str, Mount]) -> bool:
    """Tell whether a place is not the host's: another filesystem, or a part made for a unit."""
    if place not in mounts:
        return False
    mount = mounts[place]
    theirs = host.get(place)
    return "/systemd-private-" in mount.root or (
        mount.kind == "tmpfs" and (theirs is None or theirs.device != mount.device)
    )


def _is_read_only(place: str, mounts: Mapping[str, Mount]) -> bool:
    return place in mounts and "ro" in mounts[place].options


def _below(place: str, tops: Sequence[str]) -> bool:
    path = PurePosixPath(place)
    return any(top == place or PurePosixPath(top) in path.parents for top in tops)
