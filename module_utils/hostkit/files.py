"""Write a text file whole or not at all, and only when it differs."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class WantedFile:
    """A text file as it should be.

    Attributes:
        path: Where.
        text: Its content.
        mode: Permission bits.
        gid: Group; None for a group that does not exist yet, so that the file is not as wanted.
    """

    path: Path
    text: str
    mode: int
    gid: int | None = 0

    @property
    def is_there(self) -> bool:
        """Tell whether the file has this text, mode and owner."""
        if read_text(self.path) != self.text:
            return False
        found = self.path.stat()
        return (found.st_mode & 0o7777, found.st_uid, found.st_gid) == (self.mode, 0, self.gid)

    @property
    def diff(self) -> dict[str, str]:
        """Return what Ansible's diff mode shows."""
        return {
            "before": read_text(self.path) or "",
            "after": self.text,
            "before_header": str(self.path),
            "after_header": str(self.path),
        }

    def write(self) -> None:
        """Write the file as `write_text` does, in a directory that is made when it is missing."""
        make_directory(self.path.parent, 0o750 if self.gid else 0o755, self.gid or 0)
        write_text(self.path, self.text, self.mode, gid=self.gid or 0)


def read_text(path: Path) -> str | None:
    """Return a file's text, None when there is no such file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def write_text(path: Path, text: str, mode: int, gid: int = 0) -> None:
    """Write a file of root under a temporary name and rename it, so that no reader sees half of it.

    Raises:
        OSError: The directory is missing or not writable, or the disk is full; the old file stays.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            os.fchown(file.fileno(), 0, gid)
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def make_directory(path: Path, mode: int, gid: int = 0) -> None:
    """Make a directory of root with this mode, and those above it for all to read.

    A directory that is there stays as it is. The umask of the caller plays no part.
    """
    if path.is_dir():
        return
    make_directory(path.parent, 0o755)
    path.mkdir()
    os.chown(path, 0, gid)
    path.chmod(mode)
