"""What an ended server left behind: processes, shared memory, sockets; and how it is removed.

A leftover is known by two things at once: it belongs to the service's user, and it carries the mark
of an instance. The mark is the variable `MARK` of its environment, or the instance's cache
directory as working directory, since vLLM's engine and workers write their titles over theirs.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .procfs import PROC, Process, pids, read_process, start_ticks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MARK = "HOSTKIT_INSTANCE"
"""Environment variable with the instance's name, in every process that its unit starts."""

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
"""Where shm_open(3) and sem_open(3) keep what they make."""

TEMPORARY = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108

_SHARED = re.compile(r"psm_|sem\.|torch_|nccl-|cuda\.shm|__KMP_REGISTERED_LIB_")
"""Names that multiprocessing, torch, NCCL, CUDA and OpenMP give to shared memory."""

_LOCKS = re.compile(r"vllm_dist_|vllm\S*\.lock$|.*\.lock$")
"""Files that vLLM makes in the temporary directory to find and exclude one another."""


def processes(
    uid: int,
    name: str | None = None,
    cache_root: Path = Path("/var/cache/vllm"),
    proc: Path = PROC,
) -> list[Process]:
    """Return the service user's processes with the mark of an instance, by ascending pid.

    Args:
        uid: User id of the service.
        name: Instance; any when None.
        cache_root: Directory of the instances' cache directories.
        proc: Where /proc is mounted.
    """
    found = []
    for pid in pids(proc):
        process = read_process(pid, proc)
        if process is None or process.uid != uid:
            continue
        owner = _owner(pid, cache_root, proc)
        if owner is not None and name in (None, owner):
            found.append(process)
    return found


def end(found: Iterable[Process], grace: float = 5.0, proc: Path = PROC) -> list[Process]:
    """End processes: SIGTERM, after `grace` seconds SIGKILL; return those that are still there.

    A process id that was given to another process meanwhile is left alone.
    """
    alive = {one: start_ticks(one.pid, proc) for one in found}
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        alive = {one: born for one, born in alive.items() if _lives(one, born, proc)}
        for one in alive:
            try:
                os.kill(one.pid, number)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + seconds
        while any(_lives(one, born, proc) for one, born in alive.items()):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
    return [one for one, born in alive.items() if _lives(one, born, proc)]


def files(
    uid: int,
    shared: Path = SHARED_MEMORY,
    temporary: Sequence[Path] = TEMPORARY,
    proc: Path = PROC,
) -> list[Path]:
    """Return shared memory, sockets and lock files of the service's user that no process uses.

    Args:
        uid: User id of the service.
        shared: Directory of shared memory.
        temporary: Directories of temporary files.
        proc: Where /proc is mounted.
    """
    candidates = [path for path in _owned(shared, uid) if _SHARED.match(path.name)]
    for directory in temporary:
        for path in _owned(directory, uid):
            mode = path.lstat().st_mode
            if stat.S_ISSOCK(mode) or (stat.S_ISREG(mode) and _LOCKS.match(path.name)):
                candidates.append(path)
    used = _used(proc) if candidates else set()
    return [path for path in candidates if str(path) not in used]


def remove(found: Iterable[Path]) -> None:
    """Remove files; one that is gone already is none.

    Raises:
        OSError: One can't be removed.
    """
    for path in found:
        try:
            path.unlink()
        except FileNotFoundError:
            continue


def _owner(pid: int, cache_root: Path, proc: Path) -> str | None:
    """Return the instance whose mark a process carries."""
    directory = proc / str(pid)
    try:
        environment = (directory / "environ").read_bytes()
        where = (directory / "cwd").readlink()
    except OSError:
        return None
    for entry in environment.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name.decode(errors="replace") == MARK:
            return value.decode(errors="replace")
    return where.relative_to(cache_root).parts[0] if cache_root in where.parents else None


def _lives(process: Process, born: int | None, proc: Path) -> bool:
    return born is not None and start_ticks(process.pid, proc) == born


def _owned(directory: Path, uid: int) -> list[Path]:
    found = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        try:
            if path.lstat().st_uid == uid:
                found.append(path)
        except OSError:
            continue
    return found


def _used(proc: Path) -> set[str]:
    """Return the paths that processes have mapped, opened or bound."""
    used = set()
    for pid in pids(proc):
        directory = proc / str(pid)
        try:
            maps = (directory / "maps").read_text(encoding="utf-8", errors="replace")
            used |= {f"/{line.partition(' /')[2]}" for line in maps.splitlines()}
            used |= {str(descriptor.readlink()) for descriptor in (directory / "fd").iterdir()}
        except OSError:
            continue
    unix = proc / "net/unix"
    if unix.exists():
        for line in unix.read_text(encoding="utf-8", errors="replace").splitlines()[1:]:
            used.add(line.rpartition(" ")[2])
    return used
