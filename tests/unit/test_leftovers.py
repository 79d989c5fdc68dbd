from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from multiprocessing import shared_memory
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hostkit import leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator

UID = os.getuid()
STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(flush=True)
time.sleep(60)
"""


@pytest.fixture
def marked() -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, leftovers.MARK: "some-test"}
    with subprocess.Popen(["sleep", "60"], env=environment) as process:
        yield process
        process.kill()


def found(name: str | None = "some-test", root: Path = Path("/nowhere")) -> list[int]:
    return [one.pid for one in leftovers.processes(UID, name, root)]


def test_a_process_with_the_mark_of_the_instance_is_a_leftover(
    marked: subprocess.Popen[bytes],
) -> None:
    assert found() == [marked.pid]
    assert marked.pid in found(None)


def test_a_process_with_another_mark_or_of_another_user_is_not(
    marked: subprocess.Popen[bytes],
) -> None:
    assert found("other-test") == []
    assert leftovers.processes(UID + 1, "some-test") == []


def test_a_process_that_works_in_the_cache_of_the_instance_is_a_leftover(tmp_path: Path) -> None:
    (tmp_path / "own-test").mkdir()
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path / "own-test") as process:
        try:
            assert found("own-test", tmp_path) == [process.pid]
            assert found("other-test", tmp_path) == []
        finally:
            process.kill()


def test_a_process_ends_by_the_first_signal(marked: subprocess.Popen[bytes]) -> None:
    assert leftovers.end(leftovers.processes(UID, "some-test"), grace=5) == []
    assert marked.wait() == -signal.SIGTERM


def test_a_process_that_ignores_it_is_killed() -> None:
    environment = {**os.environ, leftovers.MARK: "some-test"}
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN], env=environment, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        assert leftovers.end(leftovers.processes(UID, "some-test"), grace=0.2) == []
        assert process.wait() == -signal.SIGKILL


def test_shared_memory_is_left_only_when_no_process_uses_it(tmp_path: Path) -> None:
    memory = shared_memory.SharedMemory(create=True, size=4096)
    try:
        mapped = Path("/dev/shm") / memory.name
        assert mapped not in leftovers.files(UID, temporary=[tmp_path])
    finally:
        memory.close()
        memory.unlink()
    for name in ("psm_1234abcd", "sem.mp-xyz", "somebody-elses"):
        (tmp_path / name).touch()
    assert leftovers.files(UID, shared=tmp_path, temporary=[]) == [
        tmp_path / "psm_1234abcd",
        tmp_path / "sem.mp-xyz",
    ]
    assert leftovers.files(UID + 1, shared=tmp_path, temporary=[]) == []


def test_a_socket_is_left_only_when_nobody_is_bound_to_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / "vllm_dist_1").touch()
    path = tmp_path / "b5c0"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert leftovers.files(UID, tmp_path, [tmp_path]) == [tmp_path / "vllm_dist_1"]
    assert leftovers.files(UID, tmp_path, [tmp_path]) == [path, tmp_path / "vllm_dist_1"]


def test_removing_what_is_gone_already_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "psm_1").touch()
    leftovers.remove([tmp_path / "psm_1", tmp_path / "psm_2"])
    assert list(tmp_path.iterdir()) == []
