"""What a bare host has to offer: Pythons, free space, C library, an init that is systemd."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

SYSTEMD_MARKER = Path("/run/systemd/system")
"""Directory that exists while systemd is PID 1, sd_booted(3)."""

PYTHON_DIRECTORIES = ("/usr/local/bin", "/usr/bin", "/bin")
"""Where a system's Pythons lie, whatever PATH a task was started with."""


def space(path: Path) -> dict[str, Any]:
    """Return the free space where a path is, or would be once it is made.

    Returns:
        ``path``; ``anchor``, the nearest directory that exists; ``free`` and ``total`` in bytes,
        ``free`` as an unprivileged user sees it; ``device``, equal for paths of one filesystem.

    Raises:
        OSError: The nearest directory can't be looked at.
    """
    anchor = path
    while not anchor.exists() and anchor != anchor.parent:
        anchor = anchor.parent
    usage = os.statvfs(anchor)
    return {
        "path": str(path),
        "anchor": str(anchor),
        "free": usage.f_bavail * usage.f_frsize,
        "total": usage.f_blocks * usage.f_frsize,
        "device": anchor.stat().st_dev,
    }


def pythons(directories: tuple[str, ...] = PYTHON_DIRECTORIES) -> dict[str, str]:
    """Return the Pythons of a system by version, such as ``{"3.11": "/usr/bin/python3.11"}``.

    Looks at what each ``python3`` and ``python3.N`` says of itself, since the plain name may be any
    version; one that does not run is left out.
    """
    found: dict[str, str] = {}
    for directory in directories:
        names = sorted(
            entry.name
            for entry in (Path(directory).iterdir() if Path(directory).is_dir() else ())
            if re.fullmatch(r"python3(\.\d+)?", entry.name)
        )
        for name in reversed(names):  # the full name first: it stays when the plain one moves on
            path = str(Path(directory, name))
            version = python_version(path)
            if version:
                found.setdefault(version, path)
    return found


def python_version(path: str) -> str:
    """Return ``major.minor`` of an interpreter, an empty text when it does not run."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run(
            [path, "-I", "-S", "-c", code],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            cwd="/",
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def glibc() -> str:
    """Return the version of the GNU C library, such as ``2.36``; empty with another C library."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        return ""
    return text.split()[-1] if text.startswith("glibc") else ""


def commands(names: list[str]) -> dict[str, str]:
    """Return where commands are; an empty text for one that is not there."""
    path = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin"
    return {name: shutil.which(name, path=path) or "" for name in names}
