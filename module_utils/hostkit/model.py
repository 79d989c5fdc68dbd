"""A model directory: whether it is there, whole, the one meant, and readable by the service user.

Everything is read with the rights of that user when it exists, in a child process: mode bits alone
know nothing of access lists, or of a network file system that does not trust root.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MANIFEST = "SHA256SUMS"
"""Name of the list of hashes in a model directory, in the form of sha256sum(1)."""

HIDDEN = {"PrivateTmp": ("tmp", "var/tmp"), "ProtectHome": ("home", "root", "run/user")}
"""Directories under / that the unit's sandbox hides from the server, by the directive that does;
see systemd.exec(5)."""

TOKENIZERS = (
    ("tokenizer.json",),
    ("tokenizer.model",),
    ("tekken.json",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
)
"""Sets of files any one of which is a tokenizer to transformers or mistral_common."""

LEFTOVERS = (".incomplete", ".aria2", ".part")
"""Endings of files that huggingface_hub, aria2 and others keep while a download is unfinished."""

DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32,
    "F32": 32, "U64": 64, "I64": 64, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F8_E8M0": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
"""Bits of an element by safetensors' name of its type; a type that is not here is not measured."""

HEADER_LIMIT = 100_000_000
"""Longest header in bytes that the safetensors library reads."""

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""What a file begins with that was cloned without Git LFS."""

HASH_BLOCK = 4 << 20
"""Bytes hashed at once; from 2 KiB on hashlib lets other threads run meanwhile."""

HASH_THREADS = 8
"""Most files hashed at once; more compete for the disk."""

ENGINE_FILES = (".jinja", ".json", ".model", ".py", ".safetensors", ".tiktoken", ".txt")
"""Endings of the files that decide what a model answers."""

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d+)-of-(?P<count>\d+)\.safetensors")
_SUM = re.compile(r"(?P<digest>[0-9a-fA-F]{64}) [ *](?P<name>.+)")


@dataclass(frozen=True)
class Problem:
    """A reason why a model can't be served.

    Attributes:
        id: An id of the taxonomy of findings.
        summary: One sentence with the values found.
        evidence: What was found, one line a file.
        remedy: What to do, one sentence.
    """

    id: str
    summary: str
    evidence: tuple[str, ...] = ()
    remedy: str = ""

    def message(self, variable: str) -> str:
        """Return the problem as one text for a user.

        Args:
            variable: Where the path stands, such as ``vllm_instances[chat].model``.
        """
        shown = "; ".join(self.evidence[:10])
        more = len(self.evidence) - 10
        found = f" Found: {shown}{f'; and {more} more' if more > 0 else ''}." if shown else ""
        return f"{variable}: {self.summary}{found} {self.remedy}"


@dataclass(frozen=True)
class Wish:
    """What is asked about a model.

    Attributes:
        path: The model directory, absolute.
        user: The service user.
        tokenizer: Whether it must hold a tokenizer.
        manifest: Whether it must hold a list of hashes that names every file the engine reads.
        hash: Whether files that are not on record are hashed; it takes a second for 0.5 to 2 GB.
    """

    path: Path
    user: str
    tokenizer: bool = True
    manifest: bool = False
    hash: bool = True


@dataclass
class Report:
    """What was found about a model.

    Attributes:
        model: The model directory. Not named path, or Ansible would put that path's size in `size`.
        user: User whose rights count.
        tried: Whether they were tried; else that user does not exist yet, and the mode bits for
            others were read instead.
        problems: Why it can't be served; empty when it can.
        architectures: What config.json calls the model.
        size: Bytes of all files that the engine may read.
        verified: Files that have the hash of the manifest.
        unverified: Bytes of the files that the manifest names and that were not hashed.
        unlisted: Files that the manifest does not name.
        has_manifest: Whether there is one.
        record: Size, time, inode and hash of each hashed file by its name, for a later look.
    """

    model: str
    user: str
    tried: bool
    problems: list[Problem] = field(default_factory=list)
    architectures: list[str] = field(default_factory=list)
    size: int = 0
    verified: list[str] = field(default_factory=list)
    unverified: int = 0
    unlisted: list[str] = field(default_factory=list)
    has_manifest: bool = False
    record: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)

    def message(self, variable: str) -> str:
        """Return all problems as one text for a user; empty when there is none.

        Args:
            variable: Where the path stands, such as ``vllm_instances[chat].model``.
        """
        return " ".join(problem.message(variable) for problem in self.problems)


class UnsoundError(Exception):
    """A file that is not what its name says; the message says what it is."""


def real(path: Path) -> Path:
    """Return a path without links. Unlike `Path.resolve`, it takes links that lead in a circle."""
    return Path(os.path.realpath(path))


def hidden_by(path: Path) -> str:
    """Return what hides a path from the service, such as ``ProtectHome``; empty when nothing does.

    Args:
        path: Absolute. Links in it are not followed; ask for `real` as well.
    """
    for directive, names in HIDDEN.items():
        if any(Path("/", name) in (path, *path.parents) for name in names):
            return directive
    return ""


def parse_manifest(text: str) -> dict[str, str]:
    """Return the hash of each file that a manifest names.

    Raises:
        UnsoundError: A line is not of the form of sha256sum(1), or names a file outside.
    """
    sums = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        match = _SUM.fullmatch(line)
        if not match:
            raise UnsoundError(
                f"line {number} is not '<64 hex digits>  <file name>': {line[:80]!r}"
            )
        name = PurePosixPath(match["name"])
        if name.is_absolute() or ".." in name.parts:
            raise UnsoundError(f"line {number} names a file outside the directory: {str(name)!r}")
        sums[str(name)] = match["digest"].lower()
    return sums


def read_header(path: Path) -> dict[str, Any]:
    """Return the tensors of a safetensors file, and check that the file holds all of their bytes.

    The rules are those of the safetensors library, which refuses such a file at start:
    https://github.com/huggingface/safetensors#format

    Raises:
        UnsoundError: The file is cut short, longer than its header says, or of another kind.
        OSError: It can't be read.
    """
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        if start + stream.read(len(LFS_POINTER) - 8) == LFS_POINTER:
            raise UnsoundError(
                f"{size} bytes, a Git LFS pointer instead of the file; run `git lfs pull`"
            )
        if len(start) < 8 or not 2 <= length <= HEADER_LIMIT:
            raise UnsoundError(f"{size} bytes, no safetensors file: it lacks the header")
        if 8 + length > size:
            raise UnsoundError(f"{size} bytes, cut short: its header alone takes {8 + length}")
        stream.seek(8)
        try:
            header = json.loads(stream.read(length))
            tensors = {name: one for name, one in header.items() if name != "__metadata__"}
            spans = sorted((*one["data_offsets"], name) for name, one in tensors.items())
            wrong = next(
                (name for b, e, name in spans if e - b != _bytes(tensors[name], e - b)), ""
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UnsoundError(f"{size} bytes, its header can't be read: {error}") from error
    end = 0
    for begin, stop, name in spans:
        if begin != end:
            raise UnsoundError(f"{size} bytes, {name} begins at {begin} instead of {end}")
        end = stop
    if wrong:
        raise UnsoundError(f"{size} bytes, {wrong} has another length than its shape says")
    if 8 + length + end != size:
        kind = "cut short" if size < 8 + length + end else "too long"
        raise UnsoundError(f"{size} bytes, {kind}: its header says {8 + length + end}")
    return tensors


def _bytes(tensor: Mapping[str, Any], otherwise: int) -> int:
    """Return how many bytes a tensor takes by its shape; `otherwise` for a type we don't know."""
    bits = DTYPE_BITS.get(tensor["dtype"])
    if bits is None:
        return otherwise
    for extent in tensor["shape"]:
        bits *= extent
    return (bits + 7) // 8


def missing_shards(names: Sequence[str]) -> list[str]:
    """Return the shards that are not there of weights named ``NAME-00001-of-00003.safetensors``."""
    found: dict[tuple[str, str, int], set[int]] = {}
    for match in filter(None, map(_SHARD.fullmatch, names)):
        series = (match["stem"], match["count"], len(match["number"]))
        found.setdefault(series, set()).add(int(match["number"]))
    return [
        f"{stem}-{number:0{width}d}-of-{count}.safetensors"
        for (stem, count, width), numbers in sorted(found.items())
        for number in range(1, int(count) + 1)
        if number not in numbers
    ]


def missing_parts(directory: Path, names: Sequence[str], *, tokenizer: bool = True) -> list[str]:
    """Return what is missing from a model directory or not sound, one line each.

    Args:
        directory: The model.
        names: Its files.
        tokenizer: Whether it must hold a tokenizer.

    Raises:
        OSError: A file can't be read.
    """
    lines = []
    try:
        architectures(directory, names)
    except UnsoundError as error:
        lines.append(str(error))
    if tokenizer and not (
        any(set(files) <= set(names) for files in TOKENIZERS)
        or any(name.endswith(".tiktoken") for name in names)
    ):
        lines.append("no tokenizer: none of " + ", ".join("+".join(one) for one in TOKENIZERS))
    lines += [f"{one}: missing" for one in missing_shards(names)]
    weights = {name for name in names if name.endswith(".safetensors")}
    if not weights:
        pickled = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".gguf"))]
        lines.append("no *.safetensors" + (f", only {', '.join(pickled)}" if pickled else ""))
    tensors: dict[str, Any] = {}
    for name in sorted(weights):
        try:
            tensors[name] = read_header(directory / name)
        except UnsoundError as error:
            lines.append(f"{name}: {error}")
    for index in sorted(name for name in names if name.endswith(".safetensors.index.json")):
        lines += _index_lines(directory / index, weights, tensors)
    for path in sorted(directory.rglob("*")):
        if path.name.endswith(LEFTOVERS):
            lines.append(f"{path.relative_to(directory)}: left by an unfinished download")
    return list(dict.fromkeys(lines))


def _index_lines(index: Path, weights: set[str], tensors: Mapping[str, Any]) -> list[str]:
    """Return what an index promises and the shards don't hold."""
    try:
        where: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        shards = sorted(set(where.values()))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return [f"{index.name}: no index of safetensors: {error!r}"]
    lines = [f"{shard}: missing" for shard in shards if shard not in weights]
    for shard in shards:
        lacking = [t for t, s in where.items() if s == shard and t not in tensors.get(shard, where)]
        if lacking:
            lines.append(
                f"{shard}: lacks {len(lacking)} tensors that {index.name} looks for in it, such as "
                f"{lacking[0]}"
            )
    return lines


def architectures(directory: Path, names: Sequence[str]) -> list[str]:
    """Return what a model calls itself in config.json; a Mistral params.json has no such name.

    Raises:
        UnsoundError: There is no configuration that an engine reads.
        OSError: It can't be read.
    """
    if "config.json" not in names:
        if "params.json" in names:
            return []
        raise UnsoundError("config.json: missing")
    try:
        config = json.loads((directory / "config.json").read_bytes())
    except ValueError as error:
        raise UnsoundError(f"config.json: no JSON: {error}") from error
    found = config.get("architectures") if isinstance(config, dict) else None
    if not found or not isinstance(found, list):
        raise UnsoundError("config.json: has no architectures")
    return [str(one) for one in found]


def obstacle(path: Path) -> Path | None:
    """Return the first directory above a path that this process may not pass, None if none."""
    for place in dict.fromkeys((path, real(path))):
        for parent in reversed(place.parents):
            if parent.is_dir() and not os.access(parent, os.X_OK):
                return parent
    return None


def file_names(path: Path) -> list[str]:
    """Return the names of the files in a directory that an engine would see, sorted.

    A link to nothing is left out: for the engine that file is missing.
    """
    return sorted(
        one.name for one in path.iterdir() if not one.name.startswith(".") and one.is_file()
    )


def closed_to_others(path: Path, names: Iterable[str]) -> list[str]:
    """Return what the mode bits keep from a user who owns nothing here and is in no group of it.

    A prediction for a user that does not exist yet, one line for each file or directory.
    """
    wanted = [(parent, 0o001, "pass") for parent in reversed(real(path).parents)]
    wanted += [(path, 0o005, "list"), *((path / name, 0o004, "read") for name in names)]
    modes = [(one, bits, verb, one.stat().st_mode & 0o7777) for one, bits, verb in wanted]
    return [
        f"{one}: mode {mode:04o}, others may not {verb} it"
        for one, bits, verb, mode in modes
        if mode & bits != bits
    ]


def hash_file(path: Path) -> dict[str, Any]:
    """Return the SHA-256 of a file with what tells later whether it is still the same file.

    The hash is empty when the file changed meanwhile.
    """
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        before = identity(os.fstat(stream.fileno()))
        while block := stream.read(HASH_BLOCK):
            digest.update(block)
        after = identity(os.fstat(stream.fileno()))
    return {**after, "sha256": digest.hexdigest() if before == after else ""}


def identity(found: os.stat_result) -> dict[str, int]:
    """Return what changes when a file is replaced or written to: size, time and inode."""
    return {"size": found.st_size, "mtime_ns": found.st_mtime_ns, "inode": found.st_ino}


def look(wish: Wish, record: Mapping[str, Any], *, exists: bool = True) -> Report:
    """Look at a model with the rights of this process; stop at the first kind of problem.

    Args:
        wish: What is asked.
        record: What an earlier look recorded about this model, see `Report.record`.
        exists: Whether the service user exists; else access is predicted.
    """
    report = Report(str(wish.path), wish.user, tried=exists)
    try:
        problem = (
            _place_problem(wish)
            or _access_problem(wish, tried=exists)
            or _content_problem(wish, record, report)
        )
    except OSError as error:
        problem = Problem(
            "model_unreadable",
            f"{wish.path} can't be read: {error}.",
            remedy=f"Look at what it lies on: `findmnt -T {wish.path}`, `dmesg`.",
        )
    if problem:
        report.problems.append(problem)
    return report


def _place_problem(wish: Wish) -> Problem | None:
    """Return why a path can't be a model directory for the service, whatever it holds."""
    path = wish.path
    for place in (path, real(path)):
        if hidden_by(place):
            return _hidden(f"{path}" if place == path else f"{path} leads to {place}", place)
    closed = obstacle(path)
    if closed:
        return Problem(
            "model_unreadable",
            f"User {wish.user} may not pass {closed} on the way to {path}.",
            remedy=f"Run `setfacl -m u:{wish.user}:x {closed}` or `chmod o+x {closed}`.",
        )
    if path.is_dir():
        return None
    if path.exists():
        summary = f"{path} is a file; a model is a directory that holds config.json."
    elif path.is_symlink():
        summary = f"{path} is a link to {path.readlink()}, which does not exist."
    else:
        anchor = next(parent for parent in path.parents if parent.is_dir())
        near = sorted(one.name for one in anchor.iterdir()) if os.access(anchor, os.R_OK) else []
        summary = f"{path} does not exist; {anchor} holds {', '.join(near[:10]) or 'nothing'}."
    return Problem("model_not_found", summary, remedy="Copy the model there, or correct the path.")


def _hidden(what: str, place: Path) -> Problem:
    return Problem(
        "model_unreadable",
        f"{what}: the service sees nothing there, its unit has {hidden_by(place)}=yes.",
        remedy="Move the model, for example to /srv/models, and name that path.",
    )


def _access_problem(wish: Wish, *, tried: bool) -> Problem | None:
    """Return what keeps the service from reading the files of a directory that it can reach."""
    path = wish.path
    if not os.access(path, os.R_OK | os.X_OK):
        return _unreadable(wish, [f"{path}: may not be listed"])
    names = file_names(path)
    for place in (path / name for name in names):
        if hidden_by(real(place)):
            return _hidden(f"{place} leads to {real(place)}", real(place))
    closed = [f"{name}: may not be read" for name in names if not os.access(path / name, os.R_OK)]
    if not tried:
        closed = closed_to_others(path, names)
    return _unreadable(wish, closed) if closed else None


def _content_problem(wish: Wish, record: Mapping[str, Any], report: Report) -> Problem | None:
    """Return the first kind of problem with a readable directory, and fill in the report."""
    path, names = wish.path, file_names(wish.path)
    report.size = sum((path / name).stat().st_size for name in names)
    report.has_manifest = MANIFEST in names
    sums: dict[str, str] = {}
    if report.has_manifest:
        try:
            sums = parse_manifest((path / MANIFEST).read_text(encoding="utf-8", errors="replace"))
        except UnsoundError as error:
            return _damaged(wish, [f"{MANIFEST}: {error}"])
    report.unlisted = [
        name for name in names if name.endswith(ENGINE_FILES) and name not in (*sums, MANIFEST)
    ]
    lines = [f"{name}: missing, {MANIFEST} names it" for name in sums if not (path / name).exists()]
    lines += missing_parts(path, names, tokenizer=wish.tokenizer)
    if lines:
        return _incomplete(wish, lines)
    report.architectures = architectures(path, names)
    if wish.manifest and report.unlisted:
        return _unproved(wish, report)
    return _hash_problem(wish, sums, record, report)


def _hash_problem(
    wish: Wish, sums: Mapping[str, str], record: Mapping[str, Any], report: Report
) -> Problem | None:
    """Return which files don't have the hash of the manifest, and fill in the report."""
    pending = []
    for name in sums:
        now = identity((wish.path / name).stat())
        known = record.get(name, {})
        if known.get("sha256") and {**known, **now} == known:
            report.record[name] = known
        else:
            pending.append(name)
    if wish.hash:
        # The largest first, so that no thread is left with it in the end.
        pending.sort(key=lambda name: -(wish.path / name).stat().st_size)
        with ThreadPoolExecutor(min(HASH_THREADS, os.cpu_count() or 1)) as pool:
            hashes = pool.map(hash_file, [wish.path / name for name in pending])
            report.record.update(zip(pending, hashes))
    else:
        report.unverified = sum((wish.path / name).stat().st_size for name in pending)
    found = {name: one["sha256"] for name, one in report.record.items()}
    report.verified = sorted(name for name, digest in found.items() if digest == sums[name])
    wrong = [
        f"{name}: {f'SHA-256 {digest}, needed {sums[name]}' if digest else 'changed while read'}"
        for name, digest in sorted(found.items())
        if digest != sums[name]
    ]
    return _damaged(wish, wrong) if wrong else None


def _unreadable(wish: Wish, lines: Sequence[str]) -> Problem:
    return Problem(
        "model_unreadable",
        f"User {wish.user} may not read all of {wish.path}.",
        tuple(lines),
        f"Run `chmod -R o+rX {wish.path}`, or `setfacl -R -m u:{wish.user}:rX` on what is named.",
    )


def _incomplete(wish: Wish, lines: Sequence[str]) -> Problem:
    return Problem(
        "model_incomplete",
        f"{wish.path} is not a complete model.",
        tuple(lines),
        "Copy or download these files again.",
    )


def _unproved(wish: Wish, report: Report) -> Problem:
    return Problem(
        "model_incomplete",
        f"{wish.path} has {'a' if report.has_manifest else 'no'} {MANIFEST}"
        f"{' that does not name every file' if report.has_manifest else ''}, and "
        "vllm_model_require_manifest asks for one that does.",
        tuple(f"{name}: not named" for name in report.unlisted if report.has_manifest),
        f"Copy it from where the model came from, or make it: {manifest_command(wish.path)}.",
    )


def _damaged(wish: Wish, lines: Sequence[str]) -> Problem:
    return Problem(
        "model_damaged",
        f"{wish.path} does not hold what its {MANIFEST} says.",
        tuple(lines),
        f"Copy these files again; if they were changed on purpose, make {MANIFEST} anew: "
        f"{manifest_command(wish.path)}",
    )


def manifest_command(path: Path) -> str:
    """Return the shell command that makes a manifest of a model."""
    return (
        f"`cd {path} && find . -type f ! -name {MANIFEST} -printf '%P\\0' | "
        f"xargs -0 sha256sum > {MANIFEST}`"
    )


def examine(wish: Wish, record: Mapping[str, Any]) -> Report:
    """Look at a model as the service user would.

    Args:
        wish: What is asked.
        record: What an earlier look recorded about this model.

    Raises:
        RuntimeError: The child process that looks died.
    """
    try:
        entry = pwd.getpwnam(wish.user)
    except KeyError:
        return look(wish, record, exists=False)
    if os.geteuid() != 0:
        me = pwd.getpwuid(os.geteuid()).pw_name
        return look(replace(wish, user=me), record)
    answer = _with_rights_of(entry, lambda: asdict(look(wish, record)))
    problems = [Problem(**{**p, "evidence": tuple(p["evidence"])}) for p in answer["problems"]]
    return Report(**{**answer, "problems": problems})


def _with_rights_of(entry: pwd.struct_passwd, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a function in a child process of another user and return its result.

    Raises:
        RuntimeError: The function raised, or the child was killed.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            os.initgroups(entry.pw_name, entry.pw_gid)
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
            try:
                answer: dict[str, Any] = {"result": work()}
            except Exception as error:
                answer = {"error": repr(error)}
            with os.fdopen(writer, "w") as stream:
                json.dump(answer, stream)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    answer = json.loads(text) if text else {"error": f"the process ended with status {status}"}
    if "error" in answer:
        raise RuntimeError(f"looking as the user {entry.pw_name} failed: {answer['error']}")
    result: dict[str, Any] = answer["result"]
    return result


def record_path(root: Path, model: Path) -> Path:
    """Return where the record of a model is kept."""
    return root / f"{model.name}-{hashlib.sha256(os.fsencode(model)).hexdigest()[:12]}.json"


def read_record(root: Path, model: Path) -> dict[str, Any]:
    """Return what is recorded about a model's files; empty when there is no sound record."""
    try:
        found = json.loads(record_path(root, model).read_text(encoding="utf-8"))
        return dict(found["files"]) if found["model"] == str(model) else {}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def render_record(report: Report) -> str:
    """Return the text of a record."""
    return (
        json.dumps({"model": report.model, "files": report.record}, indent=1, sort_keys=True) + "\n"
    )
