"""Releases of an engine: virtual environments side by side, built whole or not at all.

Layout below one root, such as ``/opt/vllm``::

    releases/<version>-<variant>-<lock hash>/   one environment, finished by a marker
    releases/<the same>.partial/                one that is being built, or was interrupted
    current -> releases/<name>                  the one that services start from
    tools/uv-<version>/uv                       the installer
    cache/uv/                                   its cache, emptied after a complete build

The marker is written last and the directory renamed after it, so a directory without ``.partial``
and with a marker was complete once. Whether it still is, the records say that every package
carries (``*.dist-info/RECORD``, https://packaging.python.org/specifications/recording-installed-packages/).
"""

from __future__ import annotations

import base64
import csv
import errno
import fcntl
import json
import os
import platform
import re
import secrets
import shutil
import subprocess
import time
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .lock import Lock, WheelCheck, check_wheels, file_sha256, normalize, wheel_identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

MARKER = ".hostkit-release.json"
LOCK_COPY = ".hostkit-lock.txt"
PARTIAL = ".partial"
REPLACED = ".replaced"

PYTHON_DIRECTORIES = ("/usr/local/bin", "/usr/bin", "/bin")
"""Where a system's Python is looked for, besides PATH."""

PROXY_VARIABLES = ("all_proxy", "http_proxy", "https_proxy", "no_proxy")
CERTIFICATE_VARIABLES = ("SSL_CERT_DIR", "SSL_CERT_FILE")

_GIB = 1 << 30
_MESSAGE_LINES = 15


class ReleaseError(Exception):
    """A release that can't be built; the text says why and what to do."""


@dataclass(frozen=True)
class Damage:
    """A file of a release that is not as its package recorded it.

    Attributes:
        path: path relative to the release.
        package: name of the package that the file belongs to.
        problem: what is wrong, such as ``missing``.
    """

    path: str
    package: str
    problem: str


@dataclass(frozen=True)
class Release:
    """What is known of one release.

    Attributes:
        name: name of its directory.
        exists: whether the directory is there.
        marker: content of the marker, empty when there is none that can be read.
        damages: files that differ from the records; not looked at without a marker.
    """

    name: str
    exists: bool = False
    marker: Mapping[str, Any] = field(default_factory=dict)
    damages: tuple[Damage, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether it was built to the end and is undamaged."""
        return bool(self.marker) and not self.damages

    @property
    def reason(self) -> str:
        """Why it is not complete, in words; empty when it is."""
        if not self.exists:
            return "it is not there"
        if not self.marker:
            return "it holds no marker of a finished build"
        if self.damages:
            first = self.damages[0]
            more = f" and {len(self.damages) - 1} more" if len(self.damages) > 1 else ""
            return f"{first.path} ({first.package}) is {first.problem}{more}"
        return ""


@dataclass(frozen=True)
class Python:
    """An interpreter of the host.

    Attributes:
        path: absolute path.
        version: full version, such as ``3.11.2``.
    """

    path: str
    version: str


@dataclass(frozen=True)
class Sources:
    """Where packages come from.

    Attributes:
        index_url: index instead of the installer's default one; empty for the default.
        extra_index_urls: indexes besides that one.
        find_links: directories or pages with more wheels.
        wheel_dir: directory on the host that holds every wheel; no index is asked then.
    """

    index_url: str = ""
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    wheel_dir: str = ""


@dataclass(frozen=True)
class Request:
    """A wanted release.

    Attributes:
        root: directory that holds ``releases`` and ``current``.
        lock: the parsed lock.
        lock_text: its text.
        sources: where the packages come from.
        python_preference: uv's; ``only-system`` installs with a Python of the host.
        uv_version: version of the installer.
        uv_hashes: SHA-256 digests of its wheels.
        uv_wheel_dir: directory on the host that holds one of them.
        required_bytes: free space that is needed before anything is fetched.
        compile_bytecode: whether modules are compiled at installation.
        keep_cache: whether the installer's cache outlives a complete build.
        lock_timeout: seconds to wait for another run that is building on this host.
    """

    root: Path
    lock: Lock
    lock_text: str
    sources: Sources
    python_preference: str
    uv_version: str
    uv_hashes: frozenset[str]
    uv_wheel_dir: str
    required_bytes: int = 0
    compile_bytecode: bool = True
    keep_cache: bool = False
    lock_timeout: float = 1800

    @property
    def name(self) -> str:
        """Name of the release's directory."""
        return self.lock.release_name

    @property
    def releases(self) -> Path:
        """Directory of all releases."""
        return self.root / "releases"


@dataclass(frozen=True)
class Host:
    """What a build depends on at a host.

    Attributes:
        machine: architecture as ``uname -m`` prints it.
        glibc: version of glibc, None where the C library is another one.
        pythons: interpreters, one for each ``major.minor``.
        free: bytes free where releases are.
        wheels: how the wheel directory fulfils the lock, None when there is no such directory.
    """

    machine: str
    glibc: tuple[int, int] | None
    pythons: tuple[Python, ...]
    free: int
    wheels: WheelCheck | None = None


@dataclass(frozen=True)
class Problem:
    """A reason, foreseen, why a release can't be built.

    Attributes:
        id: id of the finding, such as ``disk_full``.
        summary: one sentence with the values found and needed.
        remedy: one sentence that says what to do, empty when the summary says it.
    """

    id: str
    summary: str
    remedy: str


@dataclass(frozen=True)
class Plan:
    """What has to be done for a request.

    Attributes:
        build: why the release has to be built, empty when it is complete.
        switch: whether ``current`` has to be set to it.
        prune: names of releases that are to be removed.
    """

    build: str
    switch: bool
    prune: tuple[str, ...]

    @property
    def changes(self) -> bool:
        """Whether anything has to be done."""
        return bool(self.build or self.switch or self.prune)


# Looking


def _recorded_files(site_packages: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield package, path relative to site-packages, hash and size of every recorded file."""
    for info in sorted(site_packages.glob("*.dist-info")):
        package = normalize(info.name.split("-", 1)[0])
        try:
            with (info / "RECORD").open(newline="", encoding="utf-8") as stream:
                for row in csv.reader(stream):
                    # A few wheels record bytecode, which is written anew when it is compiled here.
                    if len(row) == 3 and not row[0].endswith(".pyc"):
                        yield package, row[0], row[1], row[2]
        except FileNotFoundError:
            yield package, f"{info.name}/RECORD", "", ""


def _record_digest(path: Path) -> str:
    raw = bytes.fromhex(file_sha256(path))
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _file_problem(path: str, digest: str, size: str, content: bool) -> str:
    """Return what is wrong with a recorded file, empty when nothing is."""
    try:
        found = Path(path).stat().st_size
    except OSError:
        return "missing"
    if size and found != int(size):
        return f"{found} bytes long instead of {size}"
    if content and digest.startswith("sha256=") and _record_digest(Path(path)) != digest:
        return "changed, its hash is not the recorded one"
    return ""


def find_damages(release: Path, marker: Mapping[str, Any], content: bool) -> tuple[Damage, ...]:
    """Compare a release's files with the records of its packages.

    Args:
        release: the release's directory.
        marker: its marker's content.
        content: whether to read every file and compare its hash, not only its size.
    """
    damages: list[Damage] = []
    interpreter = release / "bin" / "python"
    if not interpreter.exists():
        damages.append(Damage("bin/python", "python", "missing, or its target is"))
    for site_packages in release.glob("lib/python*/site-packages"):
        prefix = f"{site_packages}/"
        seen = set()
        for package, path, digest, size in _recorded_files(site_packages):
            seen.add(package)
            problem = _file_problem(prefix + path, digest, size, content)
            if problem:
                place = os.path.relpath(prefix + path, release)
                damages.append(Damage(place, package, problem))
        damages += [
            Damage(f"{site_packages.relative_to(release)}/{name}", name, "missing")
            for name in marker.get("packages", {})
            if name not in seen
        ]
    if not any(release.glob("lib/python*/site-packages")):
        damages.append(Damage("lib", "python", "missing"))
    return tuple(damages)


def read_release(root: Path, name: str, content: bool = False) -> Release:
    """Return what is known of the release of a name; a missing one is a state, not an error."""
    path = root / "releases" / name
    if not name or not path.is_dir():
        return Release(name)
    try:
        marker = json.loads((path / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        marker = {}
    if not isinstance(marker, dict) or not marker:
        return Release(name, exists=True)
    return Release(name, True, marker, find_damages(path, marker, content))


def list_releases(root: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Return names and markers of the finished releases, the newest first."""
    found = []
    for path in (root / "releases").glob(f"*/{MARKER}"):
        if path.parent.name.endswith((PARTIAL, REPLACED)):
            continue
        try:
            marker = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            marker = {}
        found.append((path.parent.name, marker if isinstance(marker, dict) else {}))
    return sorted(found, key=lambda one: (str(one[1].get("installed", "")), one[0]), reverse=True)


def list_leftovers(root: Path) -> list[str]:
    """Return the directories that an interrupted build or exchange left."""
    names = (path.name for path in (root / "releases").glob("*"))
    return sorted(name for name in names if name.endswith((PARTIAL, REPLACED)))


def current_release(root: Path) -> str:
    """Return the name of the release that ``current`` points to, empty when it points to none."""
    try:
        target = (root / "current").readlink()
    except OSError:
        return ""
    return target.name if target.parent.name == "releases" else str(target)


def releases_in_use(root: Path, proc: Path = Path("/proc")) -> dict[str, list[int]]:
    """Return the releases that running processes have files of mapped, with their pids.

    A process of a release maps that release's shared libraries under their real path, whatever
    name it was started by (proc(5), ``/proc/<pid>/maps``).
    """
    pattern = re.compile(re.escape(f"{(root / 'releases').resolve()}/") + r"([^/\n]+)/")
    users: dict[str, list[int]] = {}
    for directory in proc.iterdir():
        if not directory.name.isdigit():
            continue
        try:
            maps = (directory / "maps").read_text(errors="replace")
        except OSError:
            continue
        for name in set(pattern.findall(maps)):
            users.setdefault(name, []).append(int(directory.name))
    return {name: sorted(pids) for name, pids in users.items()}


def find_pythons(environment: Mapping[str, str]) -> list[Python]:
    """Return the host's interpreters of Python 3, one for each ``major.minor``.

    Each is asked for its version: a name is no proof, version managers put shims into PATH.
    """
    listed = environment.get("PATH", "").split(os.pathsep)
    folders = dict.fromkeys([*PYTHON_DIRECTORIES, *filter(os.path.isabs, listed)])
    found: dict[str, Python] = {}
    for folder in folders:
        # python3.11 before python3, which may be another one after an upgrade.
        for path in sorted(Path(folder).glob("python3*"), reverse=True):
            if not re.fullmatch(r"python3(\.\d+)?", path.name) or not os.access(path, os.X_OK):
                continue
            code = "import platform; print(platform.python_version())"
            try:
                done = subprocess.run(
                    [str(path), "-I", "-c", code],
                    capture_output=True,
                    text=True,
                    timeout=20,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired):
                continue
            version = done.stdout.strip()
            if done.returncode == 0 and re.match(r"3\.\d+\.", version):
                found.setdefault(version.rsplit(".", 1)[0], Python(str(path), version))
    return sorted(found.values(), key=lambda one: [int(n) for n in one.version.split(".")[:2]])


def glibc_version() -> tuple[int, int] | None:
    """Return the host's glibc version, None where the C library is another one."""
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
        major, minor = version.split(".")[:2]
    except (OSError, ValueError):
        return None
    return (int(major), int(minor)) if name == "glibc" else None


def free_bytes(path: Path) -> int:
    """Return the space free to root where a path is, or will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


# Deciding


def choose_prune(
    releases: Sequence[str], keep: int, current: str, in_use: Iterable[str]
) -> tuple[str, ...]:
    """Return the releases to remove.

    Args:
        releases: names, the newest first.
        keep: how many stay; the current one is one of them.
        current: name of the current release, never removed.
        in_use: names of releases that running processes use, never removed.
    """
    others = [name for name in releases if name != current]
    surplus = others[max(keep - 1, 0) :]
    protected = set(in_use)
    return tuple(name for name in surplus if name not in protected)


def make_plan(root: Path, name: str, keep: int) -> Plan:
    """Return what has to be done so that a release is complete and current."""
    state = read_release(root, name)
    names = [known for known, _ in list_releases(root)]
    if name not in names:
        names.insert(0, name)
    prune = choose_prune(names, keep, name, releases_in_use(root))
    return Plan(state.reason, current_release(root) != name, (*prune, *list_leftovers(root)))


def choose_python(request: Request, pythons: Sequence[Python]) -> str:
    """Return the interpreter to build with: a path, a version that uv fetches, or nothing."""
    wanted = request.lock.python
    if request.python_preference in {"only-system", "system"}:
        for python in pythons:
            if python.version.rsplit(".", 1)[0] == wanted:
                return python.path
    return "" if request.python_preference == "only-system" else wanted


def look_at_host(request: Request) -> Host:
    """Return what a build of a request depends on, reading every wheel of a wheel directory."""
    sources = request.sources
    directory = Path(sources.wheel_dir)
    return Host(
        machine=platform.machine(),
        glibc=glibc_version(),
        pythons=tuple(find_pythons(os.environ)),
        free=free_bytes(request.root),
        wheels=(
            check_wheels(directory, request.lock.pins)
            if sources.wheel_dir and directory.is_dir()
            else None
        ),
    )


def find_problems(request: Request, host: Host) -> list[Problem]:
    """Return why a release can't be built on a host, foreseen before the first change."""
    lock = request.lock
    problems = []
    if host.machine != lock.arch:
        problems.append(
            Problem(
                "abi_mismatch",
                f"This host is {host.machine}, but the engine's lock is for {lock.arch}.",
                "Choose a lock for this architecture, or make one with playbooks/lock.yml.",
            )
        )
    if host.glibc is None or host.glibc < lock.glibc:
        found = "no glibc" if host.glibc is None else "glibc {}.{}".format(*host.glibc)
        wanted = "{}.{}".format(*lock.glibc)
        problems.append(
            Problem(
                "abi_mismatch",
                f"This host has {found}, but the locked wheels need glibc {wanted} or newer.",
                "Use a newer release of the distribution.",
            )
        )
    if not choose_python(request, host.pythons):
        there = ", ".join(f"{python.version} ({python.path})" for python in host.pythons)
        problems.append(
            Problem(
                "python_incompatible",
                f"vllm_engine_python is {lock.python}, but this host has only Python "
                f"{there or 'none'}.",
                f"Install Python {lock.python}, choose one in vllm_engine_python that has a lock, "
                "or let uv fetch it with vllm_engine_python_preference: managed.",
            )
        )
    if host.free < request.required_bytes:
        problems.append(
            Problem(
                "disk_full",
                f"{request.root} has {host.free / _GIB:.1f} GiB free, but the engine needs "
                f"{request.required_bytes / _GIB:.1f} GiB (vllm_engine_required_gib).",
                "Free some, or put vllm_root on a larger file system.",
            )
        )
    if request.sources.wheel_dir:
        problems += _wheel_problems(request.sources.wheel_dir, host.wheels)
    elif lock.source and request.sources == Sources():
        problems.append(
            Problem(
                "wheel_hash",
                f"The default index has no {lock.engine} {lock.engine_version}: its wheel is made "
                f"from {lock.source.name}.",
                f"Run 'tools/wheels.py --lock locks/{lock.file_name}', put the directory that it "
                "fills on the host, and name that in vllm_engine_wheel_dir.",
            )
        )
    return problems


def _wheel_problems(directory: str, check: WheelCheck | None) -> Iterator[Problem]:
    remedy = "Fill the directory again with tools/wheels.py."
    if check is None:
        yield Problem(
            "wheel_hash",
            f"vllm_engine_wheel_dir is {directory}, but this host has no such directory.",
            "Fill one with tools/wheels.py and put it there.",
        )
        return
    for bad in check.damaged:
        yield Problem(
            "wheel_hash",
            f"{directory}/{bad.file} ({bad.package}) has the SHA-256 {bad.found}, but the lock "
            f"allows only {' or '.join(bad.wanted)}.",
            remedy,
        )
    if check.missing:
        shown = ", ".join(check.missing[:5])
        more = f" and {len(check.missing) - 5} more" if len(check.missing) > 5 else ""
        yield Problem("wheel_hash", f"{directory} lacks {shown}{more}.", remedy)


def foresee(request: Request, build: bool) -> list[Problem]:
    """Return why a request can't be fulfilled here; nothing is asked when nothing is built."""
    if not build:
        return []
    problems = find_problems(request, look_at_host(request))
    own_wheel = request.sources.wheel_dir and request.uv_wheel_dir == request.sources.wheel_dir
    there = Path(request.sources.wheel_dir).is_dir()  # Else that has been said already.
    if own_wheel and there and not uv_path(request.root, request.uv_version).exists():
        try:
            find_uv_wheel(request)
        except ReleaseError as error:
            problems.append(Problem("wheel_hash", str(error), ""))
    return problems


def problem_text(problems: Iterable[Problem]) -> str:
    """Return problems as one message."""
    return "\n".join(f"{problem.summary} {problem.remedy}".rstrip() for problem in problems)


# Doing


@contextmanager
def exclusive(root: Path, timeout: float) -> Iterator[int]:
    """Hold the right to change releases; yield the descriptor that carries it.

    The right ends when the last holder of the descriptor does, so a child that inherits it keeps
    a later run waiting even when this process is killed.

    Raises:
        ReleaseError: another run did not end in time.
    """
    path = root / "releases" / ".lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in {errno.EAGAIN, errno.EACCES}:
                    raise
            if time.monotonic() > end:
                msg = (
                    f"another run is still changing {root / 'releases'} after "
                    f"{timeout:.0f} s of waiting; let it end, then run again"
                )
                raise ReleaseError(msg)
            time.sleep(0.5)
        yield descriptor
    finally:
        os.close(descriptor)


def installer_environment(
    base: Mapping[str, str], request: Request, login: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment for uv.

    Args:
        base: this process's environment.
        request: what is wanted.
        login: the host's own settings, from ``/etc/environment``; ``base`` wins.
    """
    environment = dict(base)
    known = {key.lower() for key in base}
    for key, value in login.items():
        if key.lower() in PROXY_VARIABLES and key.lower() not in known:
            environment[key] = value
        elif key in CERTIFICATE_VARIABLES:
            environment.setdefault(key, value)
    environment.update(
        UV_CACHE_DIR=str(request.root / "cache" / "uv"),
        UV_INDEX_STRATEGY="unsafe-best-match",  # The hashes decide what is installed.
        UV_NO_PROGRESS="1",
        UV_PYTHON_INSTALL_DIR=str(request.root / "tools" / "python"),
        UV_SYSTEM_CERTS="1",
        NO_COLOR="1",
    )
    sources = request.sources
    # Not as arguments: those can be read by every user of the host.
    if sources.index_url:
        environment["UV_DEFAULT_INDEX"] = sources.index_url
    if sources.extra_index_urls:
        environment["UV_INDEX"] = " ".join(sources.extra_index_urls)
    return environment


def parse_environment(text: str) -> dict[str, str]:
    """Return the settings of a file like ``/etc/environment`` (pam_env(8))."""
    found = re.findall(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(.*?)\s*$", text, re.MULTILINE)
    return {key: value.strip("\"'") for key, value in found}


def hide_logins(text: str) -> str:
    """Return a text without the user and password of the URLs in it."""
    return re.sub(r"(\w://)[^/@\s]+@", r"\1", text)


def check_addresses(addresses: Iterable[str]) -> None:
    """Refuse addresses with a login: they would show in Ansible's output and in logs.

    Raises:
        ReleaseError: one of them holds a login; the text does not repeat it.
    """
    for address in addresses:
        if hide_logins(address) != address:
            msg = (
                f"{hide_logins(address)} is given with a login in it; leave it out and put it "
                "into root's ~/.netrc on the host, where the installer finds it"
            )
            raise ReleaseError(msg)


def explain_failure(output: str, request: Request) -> str:
    """Return one clear message for what the installer printed when it failed."""
    output = hide_logins(output)
    index = hide_logins(request.sources.index_url) or "the default index"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    mismatch = re.search(
        r"Hash mismatch for `([^`]+)`.*?Expected:\s*(.*?)\s*Computed:\s*(\S+)", output, re.DOTALL
    )
    if mismatch:
        expected = " or ".join(mismatch[2].split())
        return (
            f"{mismatch[1]} from {index} has the hash {mismatch[3]}, but the lock allows only "
            f"{expected}. Nothing of it is installed; ask the index's keeper, or make the lock "
            "again with playbooks/lock.yml"
        )
    if "No space left on device" in output:
        return (
            f"the file system of {request.root} ran full; free some space or put vllm_root on a "
            "larger one, and run again"
        )
    if re.search(r"Resource temporarily unavailable|os error 11\b", output):
        return (
            "the installer may start no more threads here, so it ended before it was done; raise "
            "the limit of the session that it runs in (for ssh without logind: systemctl "
            "set-property ssh.service TasksMax=4096; in a container its limit of processes)"
        )
    places = (
        "Name an index that this host reaches in vllm_engine_index_url or "
        "vllm_engine_extra_index_urls, a proxy in vllm_engine_environment, or a directory of "
        "wheels in vllm_engine_wheel_dir"
    )
    unreachable = re.search(r"(?:Failed to fetch|for url)[^\w\n]*(\w+://[^\s`)]+)", output)
    if unreachable:
        status = re.search(r"HTTP status[^(]*\(([^)]*)\)", output)
        cause = f"it answers {status[1]}" if status else lines[-1].replace("cause: ", "")
        return (
            f"the engine's packages can't be fetched from {index}: {cause} ({unreachable[1]}). "
            f"{places}"
        )
    absent = re.search(r"there is no version of (\S+)|(\S+) was not found", output)
    if absent:
        return f"{absent[1] or absent[2]} is not on {index}. {places}"
    return "uv failed: " + "\n".join(lines[-_MESSAGE_LINES:])


def uv_path(root: Path, version: str) -> Path:
    """Return the place of an installer of a version."""
    return root / "tools" / f"uv-{version}" / "uv"


def find_uv_wheel(request: Request) -> Path:
    """Return the installer's wheel for this host.

    Raises:
        ReleaseError: there is none with a locked hash.
    """
    directory = Path(request.uv_wheel_dir)
    for wheel in sorted(directory.glob("uv-*.whl")):
        identity = wheel_identity(wheel.name)
        if identity == ("uv", request.uv_version) and platform.machine() in wheel.name:
            found = file_sha256(wheel)
            if found in request.uv_hashes:
                return wheel
            msg = (
                f"{wheel} has the SHA-256 {found}, but the lock allows only "
                f"{' or '.join(sorted(request.uv_hashes))}; fetch it again with tools/wheels.py."
            )
            raise ReleaseError(msg)
    msg = (
        f"{directory} holds no wheel of uv {request.uv_version} for {platform.machine()}; "
        "fill it with tools/wheels.py."
    )
    raise ReleaseError(msg)


def prepare_uv(request: Request) -> Path:
    """Take the installer out of its wheel, unless it is there; return its path.

    Raises:
        ReleaseError: there is no wheel of it with a locked hash.
    """
    destination = uv_path(request.root, request.uv_version)
    if not destination.exists():
        wheel = find_uv_wheel(request)
        destination.parent.mkdir(parents=True, exist_ok=True)
        partial = destination.with_suffix(PARTIAL)
        with zipfile.ZipFile(wheel) as archive:
            partial.write_bytes(archive.read(f"uv-{request.uv_version}.data/scripts/uv"))
        partial.chmod(0o755)
        partial.replace(destination)
    return destination


def _run(command: Sequence[str], environment: Mapping[str, str], descriptor: int) -> str:
    """Run the installer; return an empty text when it succeeds, else what it printed."""
    done = subprocess.run(
        command,
        env=dict(environment),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=[descriptor],
        check=False,
    )
    return (done.stdout.strip() or f"exit status {done.returncode}") if done.returncode else ""


def _installed_packages(release: Path) -> dict[str, str]:
    packages = {}
    for info in release.glob("lib/python*/site-packages/*.dist-info"):
        name, _, version = info.name[: -len(".dist-info")].partition("-")
        packages[normalize(name)] = version
    return dict(sorted(packages.items()))


def _install(request: Request, python: str, directory: Path, descriptor: int) -> None:
    """Make the environment of a release in a directory that is not there yet.

    Raises:
        ReleaseError: the installer failed.
    """
    uv = str(prepare_uv(request))
    login = Path("/etc/environment")
    environment = installer_environment(
        os.environ,
        request,
        parse_environment(login.read_text(errors="replace")) if login.is_file() else {},
    )
    venv = [uv, "venv", "--relocatable", "--no-project", "--python", python]
    venv += ["--python-preference", request.python_preference, str(directory)]
    failure = _run(venv, environment, descriptor)
    if failure:
        raise ReleaseError(explain_failure(failure, request))
    lock_copy = directory / LOCK_COPY
    lock_copy.write_text(request.lock_text, encoding="utf-8")
    install = [uv, "pip", "install", "--python", str(directory / "bin" / "python")]
    install += ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
    install += ["--requirement", str(lock_copy)]
    if request.sources.wheel_dir:
        install += ["--offline", "--no-index", "--find-links", request.sources.wheel_dir]
    for place in request.sources.find_links:
        install += ["--find-links", place]
    if request.compile_bytecode:
        install.append("--compile-bytecode")
    failure = _run(install, environment, descriptor)
    if failure:
        raise ReleaseError(explain_failure(failure, request))


def _finish(request: Request, directory: Path) -> None:
    """Check a built environment and write its marker.

    Raises:
        ReleaseError: it is not what the lock says.
    """
    marker = {
        "version": request.lock.version,
        "variant": request.lock.variant,
        "python": request.lock.python,
        "lock_sha256": request.lock.sha256,
        "uv": request.uv_version,
        "build": secrets.token_hex(8),
        "installed": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "packages": _installed_packages(directory),
    }
    missing = {pin.name for pin in request.lock.pins} - set(_installed_packages(directory))
    damages = find_damages(directory, marker, content=False)
    if missing or damages:
        what = f"packages missing: {', '.join(sorted(missing))}" if missing else damages[0].path
        msg = f"the environment that uv built is not whole ({what}); run again"
        raise ReleaseError(msg)
    partial = directory / (MARKER + PARTIAL)
    partial.write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
    partial.replace(directory / MARKER)


def _aside(request: Request, name: str) -> Path:
    """Return a name for a release that goes; it counts as none then, even when it stays."""
    return request.releases / f"{name}-{secrets.token_hex(4)}{REPLACED}"


def _clear_leftovers(request: Request) -> None:
    for name in list_leftovers(request.root):
        shutil.rmtree(request.releases / name)


def build(request: Request, python: str, descriptor: int) -> None:
    """Build a release beside the others and put it in its place.

    Raises:
        ReleaseError: it could not be built; nothing of it is left.
    """
    final = request.releases / request.name
    partial = final.with_name(final.name + PARTIAL)
    cache = request.root / "cache" / "uv"
    if final.exists() and cache.exists():
        # uv links files from its cache, so what damaged the release damaged the cache, too.
        shutil.rmtree(cache)
    try:
        _install(request, python, partial, descriptor)
        _finish(request, partial)
    except BaseException:
        if partial.exists():
            shutil.rmtree(partial)
        raise
    if final.exists():
        final.rename(_aside(request, final.name))
    partial.rename(final)
    if not request.keep_cache and cache.exists():
        shutil.rmtree(cache)


def switch(root: Path, name: str) -> None:
    """Point ``current`` at a release, in one step."""
    link = root / "current"
    if link.exists() and not link.is_symlink():
        msg = f"{link} is no symbolic link; move it away, this toolkit keeps its own link there"
        raise ReleaseError(msg)
    temporary = root / ".current.partial"
    if temporary.is_symlink():
        temporary.unlink()
    temporary.symlink_to(Path("releases") / name)
    temporary.replace(link)


def ensure(request: Request, keep: int) -> Plan:
    """Build a release when it is not complete, make it current, and prune; return what was done.

    Raises:
        ReleaseError: it could not be built; the previous state still serves.
    """
    os.umask(0o022)
    with exclusive(request.root, request.lock_timeout) as descriptor:
        plan = make_plan(request.root, request.name, keep)
        # An interrupted run's remains take space that the check must not count as used.
        _clear_leftovers(request)
        problems = foresee(request, bool(plan.build))
        if problems:
            raise ReleaseError(problem_text(problems))
        if plan.build:
            python = choose_python(request, find_pythons(os.environ))
            build(request, python, descriptor)
        if plan.switch:
            switch(request.root, request.name)
        for name in plan.prune:
            if (request.releases / name).exists():
                (request.releases / name).rename(_aside(request, name))
        _clear_leftovers(request)
    return plan
