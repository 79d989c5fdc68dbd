"""Make the controller: .venv and collections/ in this checkout, and nothing elsewhere.

Usage: python3 -I tools/controller.py controller|bed|test

Standard library only, Python 3.11 or newer. A second run does nothing; an interrupted one is
repaired, since the stamp that says "done" is written last.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
COLLECTIONS = ROOT / "collections"
LEVELS = ("controller", "bed", "test")
PIP = (ENVIRONMENT / "bin/python", "-m", "pip", "--disable-pip-version-check", "--quiet")
NO_ROUTE = (
    "Without a direct route set https_proxy, or name an index of your own in PIP_INDEX_URL "
    "(pip's own variables are honoured)."
)


class SetupError(Exception):
    """Something that the user has to change; the message says what."""


def digest(*paths: Path) -> str:
    """SHA-256 over the contents of files and the running Python, as the name of a finished step."""
    total = hashlib.sha256(f"{sys.executable} {sys.version}".encode())
    for path in paths:
        total.update(path.read_bytes())
    return total.hexdigest()


def run(*command: str | Path, hint: str) -> None:
    """Run a command with its output shown; a failure ends the setup with `hint`."""
    if subprocess.run([str(word) for word in command], cwd=ROOT, check=False).returncode != 0:
        raise SetupError(hint)


def make_environment(requirements: Path) -> bool:
    """Install hash-locked requirements into .venv. Returns whether anything was done.

    An environment that holds more than is asked for is kept: that of the tests serves every run.
    """
    stamp = ENVIRONMENT / ".hostkit-setup"
    wanted = digest(requirements)
    full = digest(ROOT / "requirements-test.txt")
    if stamp.is_file() and stamp.read_text() in {wanted, full}:
        return False
    step(f"making .venv from {requirements.name} (half a minute) ...")
    venv.create(ENVIRONMENT, clear=True, with_pip=True)
    run(
        *PIP,
        "install",
        "--require-hashes",
        "--requirement",
        requirements,
        hint=f"pip could not install {requirements.name}; its message is above. {NO_ROUTE}",
    )
    stamp.write_text(wanted)
    return True


def make_collections() -> str | None:
    """Install the collections of requirements.yml; returns their origin, None if nothing to do."""
    stamp = COLLECTIONS / ".hostkit-setup"
    wanted = digest(ROOT / "requirements.yml", ROOT / "requirements-collections.txt")
    if stamp.is_file() and stamp.read_text() == wanted:
        return None
    shutil.rmtree(COLLECTIONS, ignore_errors=True)
    galaxy = subprocess.run(
        [ENVIRONMENT / "bin/ansible-galaxy", "collection", "install", "--timeout", "20",
         "--requirements-file", "requirements.yml", "--collections-path", COLLECTIONS],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    source = "Galaxy"
    if galaxy.returncode != 0:
        source = "the ansible distribution, since Galaxy did not answer"
        unpack_collections(COLLECTIONS)
    stamp.write_text(wanted)
    return source


def unpack_collections(target: Path) -> None:
    """Unpack the collections named in requirements.yml from the `ansible` wheel into `target`."""
    # This interpreter may lack PyYAML: take the names by their fixed form.
    lines = (ROOT / "requirements.yml").read_text().splitlines()
    names = [line.split("name:", 1)[1].strip() for line in lines if "- name:" in line]
    prefixes = tuple(f"ansible_collections/{name.replace('.', '/')}/" for name in names)
    with tempfile.TemporaryDirectory() as scratch:
        run(
            *PIP,
            "download",
            "--no-deps",
            "--require-hashes",
            "--requirement",
            ROOT / "requirements-collections.txt",
            "--dest",
            scratch,
            hint="neither Galaxy nor a package index gave the collections; pip's message is above. "
            + NO_ROUTE,
        )
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target, [n for n in archive.namelist() if n.startswith(prefixes)])


def step(text: str) -> None:
    """Tell the user what takes the time now."""
    print(f"setup: {text}", flush=True)


def main(arguments: list[str]) -> int:
    """Run the setup for one level; returns the exit status."""
    if len(arguments) != 1 or arguments[0] not in LEVELS:
        print(f"usage: controller.py {'|'.join(LEVELS)}", file=sys.stderr)
        return 2
    name = "requirements-test.txt" if arguments[0] == "test" else "requirements.txt"
    requirements = ROOT / name
    started = time.monotonic()
    # pip must see its own variables, but no PYTHON* of the caller may reach the environment.
    for variable in ("PYTHONPATH", "PYTHONHOME"):
        os.environ.pop(variable, None)
    try:
        changed = make_environment(requirements)
        source = make_collections()
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    if source:
        step(f"collections come from {source}")
    if changed or source:
        step(f"the controller is ready ({time.monotonic() - started:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
