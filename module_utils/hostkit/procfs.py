"""What /proc says about processes, and which systemd unit each of them belongs to.

Every reader takes the directory to read, so that tests can give their own. A process that ends
while it is read, or that may not be read, is left out: both are ordinary on a running host.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC = Path("/proc")

_UNIT_SUFFIXES = (".service", ".scope", ".socket", ".mount", ".swap")
_ZOMBIE_STATES = ("Z", "X")


@dataclass(frozen=True)
class Process:
    """A running process.

    Attributes:
        pid: Process id.
        name: The kernel's name of it, at most 15 characters, such as ``VLLM::Worker``.
        command: Its executable and leading file arguments, see `safe_command`.
        uid: Effective user id.
        unit: systemd unit that it runs in, None when in none.
    """

    pid: int
    name: str
    command: str
    uid: int
    unit: str | None


def pids(proc: Path = PROC) -> list[int]:
    """Return the ids of all processes, ascending."""
    return sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())


def read_process(pid: int, proc: Path = PROC) -> Process | None:
    """Return what is known of a process, None when there is none (a zombie counts as none)."""
    directory = proc / str(pid)
    try:
        status = dict(_fields((directory / "status").read_text(encoding="utf-8", errors="replace")))
        if status["State"][0] in _ZOMBIE_STATES:
            return None
        return Process(
            pid=pid,
            name=status["Name"],
            command=safe_command((directory / "cmdline").read_bytes()) or status["Name"],
            uid=int(status["Uid"].split()[1]),
            unit=unit_of(pid, proc),
        )
    except (OSError, KeyError):
        return None


def start_ticks(pid: int, proc: Path = PROC) -> int | None:
    """Return when a process began, in clock ticks since boot; with the pid it names it for good.

    None when there is no such process or it is a zombie. Field 22 of proc(5) stat; the second
    field, the name, may hold spaces and brackets.
    """
    try:
        stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in _ZOMBIE_STATES else int(fields[19])


def unit_of(pid: int, proc: Path = PROC) -> str | None:
    """Return the system unit that a process runs in, None when in none or not readable."""
    path = cgroup_path(pid, proc)
    if path is None:
        return None
    return unit_in_path(path, cgroup_path(1, proc) or "/")


def cgroup_path(pid: int, proc: Path = PROC) -> str | None:
    """Return a process's path in systemd's cgroup tree, None when not readable."""
    try:
        return systemd_path((proc / str(pid) / "cgroup").read_text(encoding="utf-8"))
    except OSError:
        return None


def systemd_path(text: str) -> str | None:
    """Return the path in systemd's own hierarchy from the text of /proc/PID/cgroup.

    cgroups(7): lines are ``id:controllers:path``. systemd keeps its tree in ``name=systemd`` on
    cgroup v1 and on hybrid layouts, and in the one hierarchy with id 0 on v2.
    """
    paths = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            paths["" if parts[0] == "0" else parts[1]] = parts[2]
    return paths.get("name=systemd", paths.get(""))


def unit_in_path(path: str, init_path: str = "/") -> str | None:
    """Return the unit that a cgroup path lies in.

    Follows cg_path_get_unit() of systemd: below the path that PID 1 has made its root, slices are
    passed over and the next part is the unit. One leading underscore is an escape.

    Args:
        path: Path in systemd's tree, such as ``/system.slice/system-vllm.slice/vllm@a.service``.
        init_path: Path of PID 1 in the same tree; in a container it is not ``/init.scope``.
    """
    root = init_path
    if root.endswith("/init.scope"):
        root = root[: -len("/init.scope")]
    root = root.rstrip("/")
    if root and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    for part in path.strip("/").split("/"):
        name = part[1:] if part.startswith("_") else part
        if not name.endswith(".slice"):
            return name if name.endswith(_UNIT_SUFFIXES) else None
    return None


def processes_of_unit(unit: str, proc: Path = PROC) -> list[Process]:
    """Return the processes of a unit, main and all below it, by ascending pid."""
    init_path = cgroup_path(1, proc) or "/"
    found = []
    for pid in pids(proc):
        path = cgroup_path(pid, proc)
        if path is not None and unit_in_path(path, init_path) == unit:
            process = read_process(pid, proc)
            if process is not None:
                found.append(process)
    return found


def socket_inodes(pid: int, proc: Path = PROC) -> set[int]:
    """Return the inodes of a process's sockets, none when its descriptors may not be read."""
    inodes = set()
    try:
        descriptors = list((proc / str(pid) / "fd").iterdir())
    except OSError:
        return set()
    for descriptor in descriptors:
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(int(target[len("socket:[") : -1]))
    return inodes


def safe_command(cmdline: bytes) -> str:
    """Return a command line up to its first option.

    What follows may hold a secret, such as ``--api-key``, so it is never shown.

    Args:
        cmdline: Content of /proc/PID/cmdline, arguments that end in NUL.
    """
    words = []
    for word in cmdline.decode("utf-8", "replace").rstrip("\0").split("\0"):
        if word.startswith("-") or "=" in word:
            break
        words.append(word)
    return " ".join(words)


def _fields(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        yield name, value.strip()
