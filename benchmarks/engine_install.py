#!/usr/bin/env python3
"""Installation of an engine from a wheel directory, against its limit and against pip.

    benchmarks/engine_install.py [--rounds 3] [--lock locks/vllm-0.32.0-cpu-cp311-x86_64.txt]

The limit is unpacking the same wheels with one process for each CPU, nothing checked. Neither side
compiles modules, and all read the wheels from memory, since they were read just before. Every way
runs in each round, in turn; the medians are compared. Memory is the largest process's resident set.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from _core import ROOT
from hostkit.lock import parse_lock, parse_pins
from hostkit.release import Request, Sources, ensure

if TYPE_CHECKING:
    from collections.abc import Callable


def unpack_one(wheel: Path, target: Path) -> None:
    """Unpack a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)


def unpack(_lock: Path, wheels: Path, target: Path) -> None:
    """Unpack all wheels, the largest first."""
    files = sorted(wheels.glob("*.whl"), key=lambda path: -path.stat().st_size)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(unpack_one, files, [target] * len(files)))


def install(lock: Path, wheels: Path, target: Path) -> None:
    """Build a release, as the role does."""
    uv = parse_pins(next((ROOT / "locks").glob("uv-*.txt")).read_text())[0]
    request = Request(
        root=target,
        lock=parse_lock(lock.read_bytes()),
        lock_text=lock.read_text(),
        sources=Sources(wheel_dir=str(wheels)),
        python_preference="only-system",
        uv_version=uv.version,
        uv_hashes=uv.hashes,
        uv_wheel_dir=str(wheels),
        compile_bytecode=False,
    )
    ensure(request, 1)


def pip(lock: Path, wheels: Path, target: Path) -> None:
    """Install the same set into an environment with pip."""
    python = shutil.which(f"python{parse_python(lock)}") or sys.executable
    subprocess.run([python, "-m", "venv", str(target / "venv")], check=True)
    command = [str(target / "venv/bin/python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--no-index", "--no-deps"]
    command += ["--require-hashes", "--find-links", str(wheels), "--requirement", str(lock)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    subprocess.run(command, env=environment, check=True)


def parse_python(lock: Path) -> str:
    """Return the Python that a lock is for."""
    return next(
        line.split(": ")[1] for line in lock.read_text().splitlines() if line.startswith("# python")
    )


def measure(
    way: Callable[[Path, Path, Path], None], lock: Path, wheels: Path, folder: Path
) -> tuple[float, float]:
    """Return seconds and MiB of one way, run in a process of its own."""
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def work() -> None:
        target = folder / "target"
        target.mkdir()
        began = time.monotonic()
        way(lock, wheels, target)
        seconds = time.monotonic() - began
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        sender.send((seconds, max(resource.getrusage(kind).ru_maxrss for kind in kinds) / 1024))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    shutil.rmtree(folder / "target")
    if process.exitcode:
        sys.exit(f"{way.__name__} failed")
    result: tuple[float, float] = receiver.recv()
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = ROOT / "locks" / "vllm-0.32.0-cpu-cp311-x86_64.txt"
    parser.add_argument("--lock", type=Path, default=default)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    cache = Path(os.environ.get("HOSTKIT_CACHE", ROOT / ".cache"))
    wheels = cache / "wheels" / arguments.lock.stem
    subprocess.run(
        [sys.executable, str(ROOT / "tools/wheels.py"), "--lock", str(arguments.lock)], check=True
    )
    ways = {"raw parallel unzip (limit)": unpack, "vllm_release": install, "pip --no-index": pip}
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        for _ in range(arguments.rounds):
            for name, way in ways.items():
                figures[name].append(measure(way, arguments.lock, wheels, Path(temporary)))
    limit = statistics.median(seconds for seconds, _ in next(iter(figures.values())))
    print(f"{'':28}{'seconds':>9}{'x limit':>9}{'MiB':>7}")
    for name, values in figures.items():
        seconds = statistics.median(one for one, _ in values)
        memory = max(one for _, one in values)
        print(f"{name:28}{seconds:9.1f}{seconds / limit:9.2f}{memory:7.0f}")


if __name__ == "__main__":
    main()
