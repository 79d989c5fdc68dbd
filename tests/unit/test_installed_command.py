from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def installed_parts() -> list[str]:
    """Return the parts of the core that the module hostkit_core installs."""
    tree = ast.parse((ROOT / "library/hostkit_core.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CORE":
            assert isinstance(node.value, ast.Tuple)
            return [ast.unparse(name) for name in node.value.elts if ast.unparse(name) != "hostkit"]
    raise AssertionError("hostkit_core.py has no CORE")


def install(command: str, root: Path) -> None:
    """Put a command and the core where hostkit_core would, and nothing else."""
    (root / "hostkit").mkdir()
    for part in ("__init__", *installed_parts()):
        shutil.copy(ROOT / f"module_utils/hostkit/{part}.py", root / "hostkit")
    shutil.copy(ROOT / f"bin/{command}", root)


def test_the_command_runs_with_what_is_installed_beside_it_and_nothing_else(
    tmp_path: Path,
) -> None:
    install("vllm-unit", tmp_path)
    ran = subprocess.run(
        [sys.executable, "-IB", str(tmp_path / "vllm-unit"), "check", "a",
         "--config-root", str(tmp_path)],
        capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    assert ran.returncode == 1
    assert ran.stderr == (
        f"vllm-unit: vllm@a.service: {tmp_path}/instances/a/config.yaml is missing. "
        "Run the playbook to write it anew.\n"
    )


def test_the_command_for_people_runs_through_its_link_with_what_is_installed(
    tmp_path: Path,
) -> None:
    install("vllm-status", tmp_path)
    link = tmp_path / "bin/vllm-status"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "vllm-status")
    ran = subprocess.run(
        [sys.executable, "-IB", str(link), "nosuch"],
        capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    assert ran.returncode == 2
    assert "no instance 'nosuch' here; there are: none" in ran.stderr


def test_wrong_use_of_the_command_is_told_from_failure() -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "bin/vllm-unit"), "sing"], capture_output=True, check=False
    )
    assert ran.returncode == 2
