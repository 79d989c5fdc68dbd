from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

import pytest

from hostkit import limits
from hostkit.instances import normalise

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max processes             94941                94941                processes
Max open files            1024                 524288               files
Max locked memory         8388608              unlimited            bytes
Max realtime timeout      unlimited            unlimited            us
"""


def test_the_kernels_table_is_read_by_the_names_of_limits_conf() -> None:
    found = limits.parse_limits(TEXT)
    assert found["nofile"] == limits.Limit(1024, 524288)
    assert found["memlock"] == limits.Limit(8388608, limits.UNLIMITED)
    assert sorted(found) == ["cpu", "memlock", "nofile", "nproc", "rttime"]


def test_this_process_has_what_getrlimit_says() -> None:
    (row,) = limits.report(os.getpid())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert row["limits"]["nofile"] == {"soft": soft, "hard": hard}
    assert sorted(row["limits"]) == sorted(limits.NAMES.values())


def test_a_process_or_unit_that_is_not_there_is_an_empty_list() -> None:
    assert limits.report(2**22 + 1) == []
    assert limits.report(unit="no-such-unit.service") == []


def test_a_process_below_the_wanted_limit_is_named_with_both_numbers() -> None:
    rows = [
        {"pid": 7, "name": "vllm", "limits": {"nofile": {"soft": 20000, "hard": 20000}}},
        {"pid": 8, "name": "VLLM::Worker", "limits": {"nofile": {"soft": -1, "hard": -1}}},
    ]
    assert limits.below(rows, "nofile", 65536) == [
        "vllm (pid 7) has soft nofile 20000, wanted 65536",
        "vllm (pid 7) has hard nofile 20000, wanted 65536",
    ]
    assert limits.above(rows, "nofile", 65536) == [
        "VLLM::Worker (pid 8) has hard nofile unlimited, wanted 65536"
    ]
    assert limits.below(rows, "nofile", 20000) == []


def write(proc: Path, capabilities: str, uid_map: str) -> None:
    (proc / "1").mkdir(exist_ok=True)
    (proc / "1/status").write_text(f"Name:\tsystemd\nCapEff:\t{capabilities}\n")
    (proc / "1/uid_map").write_text(uid_map)


def test_raising_limits_takes_the_capability_in_the_machines_own_users(tmp_path: Path) -> None:
    own = "         0          0 4294967295\n"
    write(tmp_path, "000001ffffffffff", own)
    assert limits.may_raise(1, tmp_path)
    write(tmp_path, "000001fffeffffff", own)
    assert not limits.may_raise(1, tmp_path)
    write(tmp_path, "000001ffffffffff", "0 100000 65536\n")
    assert not limits.may_raise(1, tmp_path)
    assert not limits.may_raise(2, tmp_path)


def test_sizes_are_read_as_systemd_writes_them() -> None:
    sizes = [limits.parse_size(text) for text in ("infinity", "0", 8192, "8M", "2T")]
    assert sizes == [-1, 0, 8192, 8 * 1024**2, 2 * 1024**4]
    with pytest.raises(ValueError, match="8Q"):
        limits.parse_size("8Q")


def test_an_instance_needs_a_descriptor_for_each_connection_or_those_of_its_gpus() -> None:
    chat = normalise({"name": "chat", "model": "/m", "max_connections": 10000})
    assert limits.needed_nofile(chat) == limits.BASE_NOFILE + 10000
    many = {**chat, "max_connections": 1, "gpus": [0, 1]}
    assert limits.needed_nofile(many) == limits.BASE_NOFILE + 2 * limits.NOFILE_PER_GPU
