from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hostkit import procfs

if TYPE_CHECKING:
    from pathlib import Path

V1 = "12:pids:/system.slice/cron.service\n1:name=systemd:/system.slice/cron.service\n"
HYBRID = "1:name=systemd:/system.slice/vllm@a.service\n0::/other\n"
V2 = "0::/system.slice/system-vllm.slice/vllm@a.service\n"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (V1, "/system.slice/cron.service"),
        (HYBRID, "/system.slice/vllm@a.service"),
        (V2, "/system.slice/system-vllm.slice/vllm@a.service"),
        ("12:pids:/a\n", None),
        ("", None),
    ],
)
def test_systemds_own_hierarchy_is_found_on_v1_hybrid_and_v2(text: str, path: str | None) -> None:
    assert procfs.systemd_path(text) == path


@pytest.mark.parametrize(
    ("path", "init", "unit"),
    [
        ("/system.slice/system-vllm.slice/vllm@a.service", "/init.scope", "vllm@a.service"),
        ("/system.slice/vllm@a.service/inner", "/init.scope", "vllm@a.service"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/x.service", "/init.scope",
         "user@1000.service"),
        ("/user.slice/user-0.slice/session-4.scope", "/init.scope", "session-4.scope"),
        ("/podman/c1/system.slice/ssh.service", "/podman/c1/init.scope", "ssh.service"),
        ("/podman/c1/system.slice/ssh.service", "/podman/c1", "ssh.service"),
        ("/system.slice/_vllm@a.service", "/", "vllm@a.service"),
        ("/init.scope", "/init.scope", "init.scope"),
        ("/", "/", None),
        ("/system.slice", "/", None),
        ("/some/where.service", "/", None),
    ],
)  # fmt: skip
def test_the_unit_is_the_first_part_below_the_slices(
    path: str, init: str, unit: str | None
) -> None:
    assert procfs.unit_in_path(path, init) == unit


def test_a_command_is_shown_up_to_its_first_option() -> None:
    assert procfs.safe_command(b"/bin/vllm\0serve\0--api-key\0s3cret\0") == "/bin/vllm serve"


def test_a_command_with_an_assignment_is_cut_before_it() -> None:
    assert procfs.safe_command(b"env\0TOKEN=s3cret\0sleep\0") == "env"


def test_this_process_is_described_as_it_is() -> None:
    process = procfs.read_process(os.getpid())
    assert process is not None
    assert (process.pid, process.uid) == (os.getpid(), os.geteuid())
    assert "python" in process.command or "pytest" in process.command


def test_a_process_that_is_not_there_is_none() -> None:
    assert procfs.read_process(2**22 + 1) is None
    assert procfs.start_ticks(2**22 + 1) is None


def test_a_zombie_counts_as_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert procfs.start_ticks(child.pid) is None
    assert procfs.read_process(child.pid) is None
    child.wait()


def test_start_ticks_survive_a_name_with_spaces_and_brackets(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = " ".join(str(number) for number in range(4, 23))
    (tmp_path / "7/stat").write_text(f"7 (a) b (c) S {fields}\n")
    assert procfs.start_ticks(7, tmp_path) == 22


def test_a_units_processes_are_found_by_their_cgroup(tmp_path: Path) -> None:
    cgroups = {1: "0::/init.scope\n", 20: V2, 31: V2, 40: "0::/system.slice/ssh.service\n"}
    for pid, cgroup in cgroups.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(cgroup)
        (tmp_path / str(pid) / "cmdline").write_bytes(b"x\0")
        (tmp_path / str(pid) / "status").write_text(
            f"Name:\tp{pid}\nState:\tS (sleeping)\nUid:\t5\t5\t5\t5\n"
        )
    found = procfs.processes_of_unit("vllm@a.service", tmp_path)
    assert [(one.pid, one.name, one.uid) for one in found] == [(20, "p20", 5), (31, "p31", 5)]
