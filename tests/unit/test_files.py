from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from hostkit import files

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_is_written_with_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        wanted = files.WantedFile(tmp_path / "a/b/c", "text\n", 0o644, os.getgid())
        wanted.write()
    finally:
        os.umask(before)
    assert wanted.path.read_text() == "text\n"
    assert wanted.path.stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o755


def test_a_file_of_another_text_mode_or_group_is_not_as_wanted(tmp_path: Path) -> None:
    path = tmp_path / "a"
    files.write_text(path, "x", 0o600, os.getgid())
    assert files.WantedFile(path, "x", 0o600, os.getgid()).is_there is (os.geteuid() == 0)
    assert not files.WantedFile(path, "y", 0o600, os.getgid()).is_there
    assert not files.WantedFile(path, "x", 0o640, os.getgid()).is_there
    assert not files.WantedFile(path, "x", 0o600, None).is_there


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        files.write_text(path, "\ud800", 0o644, os.getgid())
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["a"]
