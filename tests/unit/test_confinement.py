from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hostkit import confinement, sandbox

if TYPE_CHECKING:
    from pathlib import Path

HOST = """\
21 1 254:0 / / rw,relatime - ext4 /dev/vda rw
22 21 0:20 / /dev rw,nosuid - devtmpfs udev rw
23 22 0:21 / /dev/shm rw,nosuid,nodev - tmpfs tmpfs rw,size=2097152k
24 21 0:22 / /tmp rw - tmpfs tmpfs rw
25 21 0:23 / /proc rw - proc proc rw
"""
OWN = """\
31 1 254:0 / / ro,nosuid,relatime shared:1 master:2 - ext4 /dev/vda rw
32 31 0:30 / /dev ro,nosuid,noexec shared:3 - tmpfs tmpfs rw,mode=755
33 32 0:31 / /dev/shm rw,nosuid,nodev,noexec shared:4 - tmpfs tmpfs rw,size=1048576k
34 31 0:22 /systemd-private-1-vllm@chat.service-2/tmp /tmp rw,noexec - tmpfs tmpfs rw
35 31 254:0 /var/tmp/systemd-private-1-vllm@chat.service-3/tmp /var/tmp rw,noexec - ext4 /dev/vda rw
36 31 0:23 / /proc rw,nosuid - proc proc rw,hidepid=invisible
37 36 0:23 /sys /proc/sys ro,nosuid - proc proc rw
38 36 0:24 /systemd/inaccessible/reg /proc/kmsg ro - tmpfs tmpfs rw
39 31 0:24 /systemd/inaccessible/dir /home ro - tmpfs tmpfs rw
40 31 0:24 /systemd/inaccessible/dir /root ro - tmpfs tmpfs rw
41 31 0:25 / /sys/fs/cgroup ro - tmpfs tmpfs rw
42 31 254:0 /var/cache/vllm/chat /var/cache/vllm/chat rw - ext4 /dev/vda rw
43 39 254:1 / /home/anna rw - ext4 /dev/vdb rw
"""
STATUS = """\
Name:\tvllm
CapPrm:\t0000000000000000
CapEff:\t0000000000000000
CapBnd:\t0000000000000000
NoNewPrivs:\t1
Seccomp:\t2
"""
CACHE = "/var/cache/vllm/chat"


@pytest.fixture(autouse=True)
def only_home_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = {"InaccessiblePaths": ("/no/such",), "ProtectHome": ("/root",)}
    monkeypatch.setattr(sandbox, "HIDDEN", hidden)


def loose(status: str = STATUS, own: str = OWN) -> list[str]:
    mounts, host = confinement.parse_mounts(own), confinement.parse_mounts(HOST)
    found = confinement.in_force(status, mounts, host, CACHE)
    return [name for name, holds in found.items() if not holds]


def test_a_confined_process_has_every_directive_in_force() -> None:
    assert loose() == []


def test_the_hosts_own_process_has_none() -> None:
    status = STATUS.replace("0000000000000000", "000001ffffffffff").replace("NoNewPrivs:\t1", "")
    found = loose(status.replace("Seccomp:\t2", "Seccomp:\t0"), HOST)
    assert sorted({*found, "InaccessiblePaths"}) == sorted(
        confinement.in_force(STATUS, {}, {}, CACHE)
    )


@pytest.mark.parametrize(
    ("old", "new", "directive"),
    [
        ("31 1 254:0 / / ro", "31 1 254:0 / / rw", "ProtectSystem"),
        ("41 31", "44 31 254:0 /usr /usr rw - ext4 /dev/vda rw\n41 31", "ProtectSystem"),
        ("0:31 / /dev/shm", "0:21 / /dev/shm", "TemporaryFileSystem"),
        ("nodev,noexec shared:4", "nodev shared:4", "TemporaryFileSystem"),
        ("/systemd-private-1-vllm@chat.service-2/tmp", "/", "PrivateTmp"),
        ("/tmp rw,noexec - ext4", "/tmp rw - ext4", "NoExecPaths"),
        ("/systemd/inaccessible/dir /root", "/root /root", "ProtectHome"),
        ("hidepid=invisible", "gid=0", "ProtectProc"),
    ],
)
def test_each_hole_is_named(old: str, new: str, directive: str) -> None:
    assert old in OWN
    assert loose(own=OWN.replace(old, new)) == [directive]


def test_what_lies_below_a_hidden_place_is_not_writable() -> None:
    assert confinement.writable(confinement.parse_mounts(OWN), CACHE) == []


def test_without_mounts_everything_counts_as_writable() -> None:
    assert confinement.writable({}, CACHE) == ["/"]


def test_the_size_of_shared_memory_is_read() -> None:
    assert confinement.shm_bytes(confinement.parse_mounts(OWN)) == 1024**3
    assert confinement.shm_bytes({}) == -1


def test_a_place_with_a_space_is_read() -> None:
    assert "/srv/my models" in confinement.parse_mounts(
        "1 0 254:0 / /srv/my\\040models ro - ext4 /dev/vda rw"
    )


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_limits_of_a_control_group_are_read_on_v1_and_v2(tmp_path: Path) -> None:
    old, new = tmp_path / "v1", tmp_path / "v2"
    write(old / "pids/a/pids.max", "max\n")
    write(old / "memory/a/memory.limit_in_bytes", "9223372036854771712\n")
    groups = "8:pids:/a\n4:memory:/a\n1:name=systemd:/a\n0::/a\n"
    assert confinement.group_limits(groups, old) == {"tasks_max": -1, "memory_max": -1}
    write(new / "a/pids.max", "32768\n")
    (new / "a/memory.max").write_text("1073741824\n")
    wanted = {"tasks_max": 32768, "memory_max": 1024**3}
    assert confinement.group_limits("0::/a\n", new) == wanted
    assert confinement.group_limits("0::/b\n", new) == {"tasks_max": None, "memory_max": None}


def test_packets_are_filtered_where_there_is_a_hierarchy_of_v2(tmp_path: Path) -> None:
    assert not confinement.can_filter_addresses(tmp_path)
    write(tmp_path / "unified/cgroup.procs", "")
    assert confinement.can_filter_addresses(tmp_path)
