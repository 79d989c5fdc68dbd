from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ASK = "import json; from dataclasses import asdict; from hostkit.nvml import probe; print(json.dumps(asdict(probe())))"  # noqa: E501
H100 = "gpu=NVIDIA H100 80GB HBM3|GPU-11111111-a|3|81559|559|512|0|4242:500,4243:-|"
L4 = "gpu=NVIDIA L4|GPU-99999999-b|1|23034|0|0|0||"
MIB = 1024**2


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the double of the driver's library."""
    directory = tmp_path_factory.mktemp("nvml")
    subprocess.run(
        ["gcc", "-std=gnu11", "-Wall", "-Werror", "-O2", "-fPIC", "-shared", "-fvisibility=hidden",
         "-Wl,-soname,libnvidia-ml.so.1", "-o", str(directory / "libnvidia-ml.so.1"),
         str(ROOT / "tests/doubles/fake_nvml.c")],
        check=True,
    )  # fmt: skip
    return directory


def ask(directory: Path, tmp_path: Path, lines: list[str] | None, *, isolated: bool = False) -> Any:
    """Return what `probe` says in a process of its own, since a library is loaded once."""
    config = tmp_path / "fake.conf"
    if lines is not None:
        config.write_text("\n".join(lines) + "\n")
    ran = subprocess.run(
        [sys.executable, *(["-S"] if isolated else []), "-c", ASK],
        env={**os.environ, "PYTHONPATH": str(ROOT / "module_utils"), "FAKE_NVML_FILE": str(config),
             "LD_LIBRARY_PATH": str(directory)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(ran.stdout)


def test_gpus_come_with_what_programs_can_have_and_who_has_it(
    library: Path, tmp_path: Path
) -> None:
    found = ask(library, tmp_path, ["driver_version=570.86.15", H100, L4])
    assert (found["state"], found["reason"], found["driver"]) == ("ok", "", "570.86.15")
    first, second = found["gpus"]
    assert (first["index"], first["minor"], first["uuid"]) == (0, 3, "GPU-11111111-a")
    assert (first["memory_total"], first["memory_used"]) == (81000 * MIB, 512 * MIB)
    assert first["processes"] == [[4242, 500 * MIB], [4243, None]]
    assert (second["name"], second["processes"], second["mig"]) == ("NVIDIA L4", [], [])


def test_an_older_driver_tells_memory_with_what_it_reserves(library: Path, tmp_path: Path) -> None:
    (gpu,) = ask(library, tmp_path, ["no_memory_v2=1", H100])["gpus"]
    assert (gpu["memory_total"], gpu["memory_used"]) == (81559 * MIB, 1071 * MIB)


def test_mig_devices_are_named(library: Path, tmp_path: Path) -> None:
    (gpu,) = ask(library, tmp_path, [H100 + "MIG-1,MIG-2"])["gpus"]
    assert gpu["mig"] == ["MIG-1", "MIG-2"]


@pytest.mark.parametrize(
    ("lines", "state", "says"),
    [
        (None, "not_loaded", "kernel module is not loaded"),
        (["init_error=9"], "not_loaded", "kernel module is not loaded"),
        (["init_error=18"], "mismatch", "another version"),
        (["init_error=4"], "no_permission", "may not be asked"),
        (["init_error=999"], "unknown", "Unknown Error (999)."),
        ([], "no_device", "found no GPU"),
        ([L4.replace("|0||", "|4||")], "no_permission", "GPU 0 can't be read"),
        ([L4.replace("|0||", "|15||")], "unknown", "GPU is lost (15)."),
    ],
)
def test_a_driver_that_gives_no_gpu_is_a_state_with_a_reason(
    library: Path, tmp_path: Path, lines: list[str] | None, state: str, says: str
) -> None:
    found = ask(library, tmp_path, lines)
    assert (found["state"], found["gpus"]) == (state, [])
    assert says in found["reason"]


def test_a_gpu_that_may_not_be_opened_hides_no_other(library: Path, tmp_path: Path) -> None:
    found = ask(library, tmp_path, [H100.replace("|0|4242", "|4|4242"), L4])
    assert found["state"] == "ok"
    assert [gpu["index"] for gpu in found["gpus"]] == [1]
    assert "GPU 0 can't be read" in found["reason"]


def test_a_host_without_the_drivers_library_is_told_apart(tmp_path: Path) -> None:
    assert ask(tmp_path, tmp_path, None)["state"] == "no_library"


def test_a_host_without_pynvml_is_told_apart(library: Path, tmp_path: Path) -> None:
    found = ask(library, tmp_path, [H100], isolated=True)
    assert found["state"] == "unknown"
    assert "pynvml.py" in found["reason"]
