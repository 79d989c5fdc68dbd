"""The unit of an instance: its state, what it was started with, and what it would start with now.

A start by any hand records what it started with, so a later run can compare: a server is restarted
when something it depends on has changed since, and only then.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import MARKER, read_config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RECORD_ROOT = Path("/run/vllm-hostkit")
"""Directory of the records of starts; root's, so that no service can write its own."""

UNIT_ROOTS = (
    Path("/etc/systemd/system"),
    Path("/run/systemd/system"),
    Path("/usr/lib/systemd/system"),
)
"""Where systemd looks for system units that an administrator, a program or a package made."""

PROPERTIES = (
    "Id", "LoadState", "ActiveState", "SubState", "Result", "UnitFileState", "MainPID",
    "ExecMainCode", "ExecMainStatus", "NRestarts", "InvocationID", "NeedDaemonReload",
)  # fmt: skip
"""What is asked of systemd about a unit, see org.freedesktop.systemd1(5)."""

NOT_LOADED = "changed on disk without daemon-reload"
"""Stands for the digest of unit files when systemd started an older text of them."""


@dataclass(frozen=True)
class Places:
    """Where an installation keeps its parts.

    Attributes:
        engine: Link to the release in use.
        config_root: Directory that holds ``instances``.
        unit_roots: Directories of unit files.
        record_root: Directory of the records of starts.
        cache_root: Directory of the instances' cache directories.
    """

    engine: Path
    config_root: Path
    unit_roots: Sequence[Path] = UNIT_ROOTS
    record_root: Path = RECORD_ROOT
    cache_root: Path = Path("/var/cache/vllm")

    def instance(self, name: str) -> Path:
        """Return the directory of an instance's own files."""
        return self.config_root / "instances" / name

    def record(self, name: str) -> Path:
        """Return the record of an instance's last start."""
        return self.record_root / f"{name}.json"

    def life(self, name: str) -> Path:
        """Return the record of an instance's life, see the module `life`."""
        return self.record_root / f"{name}.life.json"


def unit_name(name: str) -> str:
    """Return the unit of an instance."""
    return f"vllm@{name}.service"


def parse_show(text: str) -> list[dict[str, str]]:
    """Return the properties that ``systemctl show`` printed, one mapping a unit, in its order."""
    return [
        dict(line.partition("=")[::2] for line in block.splitlines())
        for block in re.split(r"\n\n+", text.strip())
        if block
    ]


def known_instances(places: Places) -> list[str]:
    """Return the names of the instances whose files this toolkit wrote, sorted."""
    return sorted(
        path.parent.name
        for path in (places.config_root / "instances").glob("*/config.yaml")
        if path.read_text(encoding="utf-8", errors="replace").startswith(MARKER)
    )


def inputs(name: str, places: Places) -> dict[str, str]:
    """Return what a start of the instance depends on, each with an identity of its content.

    Keys: ``release`` (the engine that the link leads to, and when it was completed), ``unit`` (unit
    file and drop-ins), ``config``, ``environment``, ``model`` (names, sizes and times of the files,
    since hashing weights takes minutes). A missing part is the text ``missing``.
    """
    directory = places.instance(name)
    return {
        "release": _release(places.engine),
        "unit": _digest_files(_unit_files(name, places.unit_roots)),
        "config": _digest_files([directory / "config.yaml"]),
        "environment": _digest_files([directory / "environment"]),
        "model": _model(directory / "config.yaml"),
    }


def read_record(name: str, places: Places) -> dict[str, Any]:
    """Return what the last start recorded, an empty mapping when there is no sound record."""
    try:
        record = json.loads(places.record(name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def render_record(invocation: str, found: Mapping[str, str]) -> str:
    """Return the text of a record.

    Args:
        invocation: systemd's id of this start, ``$INVOCATION_ID``.
        found: The `inputs` that the start uses.
    """
    return json.dumps({"inputs": dict(found), "invocation": invocation}, indent=1) + "\n"


def decide(
    properties: Mapping[str, str], record: Mapping[str, Any], now: Mapping[str, str]
) -> tuple[str, str]:
    """Return what has to be done so that the unit runs with what is on disk, and why.

    Args:
        properties: What systemd says about the unit.
        record: What its last start recorded, see `read_record`.
        now: Its `inputs` on disk.

    Returns:
        ``none``, ``wait`` (a start with these inputs is under way), ``start`` or ``restart``, and
        the reason in words.
    """
    state = properties.get("ActiveState", "inactive")
    if state not in ("active", "activating", "reloading"):
        return "start", f"the unit is {state}"
    if properties.get("SubState") == "auto-restart":
        return "restart", "the server died and systemd waits before it starts it again"
    if record.get("invocation") != properties.get("InvocationID"):
        return "restart", "it is not recorded what it was started with"
    started = record.get("inputs", {})
    changed = sorted(key for key in {*now, *started} if now.get(key) != started.get(key))
    if changed:
        return "restart", f"changed since its start: {', '.join(changed)}"
    if state == "activating":
        return "wait", "it is starting"
    return "none", "it runs with what is on disk"


_NOISE = re.compile(
    r"""
    ^(\([^)]*pid=\d+\)\s?)?        # which of vLLM's processes says it
    ((ERROR|WARNING)\s.*?\[[\w.]+:\d+\]\s?)?
    (
      \s*$
      | .*\b(INFO|DEBUG)\s\d        # vLLM's own lines
      | INFO:\s{2,}                 # uvicorn's
      | \S+\.py:\d+:\s\w*Warning:  # Python's, with the code that they quote
      | \s\s(?!Value\serror)\S
      | \[W\d+\s                   # torch's
      | \s*File\s".*",\sline\s\d+  # frames of a traceback
      | \s{3,}                     # and the code that they quote
      | .*(it/s|s/it)\]            # progress bars
      | .*nanobind | \s-\s(leaked|\.\.\.\sskipped)\s  # a library's leak report as it ends
      | .*:\sKilling\sprocess\s     # systemd, one line for each thread
      | vllm-unit:\s\S+:\s\|        # what was said before, said again at the end
    )
    """,
    re.VERBOSE,
)


def relevant_lines(lines: Sequence[str], limit: int = 15) -> list[str]:
    """Return the lines of a journal that tell why a start failed, at most `limit`, in order.

    vLLM prints the cause first and a generic line last, so information, traceback frames and
    progress are left out rather than all but the end. When nothing is left, the last lines as are.
    """
    found: list[str] = []
    for line in lines:
        if not _NOISE.match(line) and line not in found:
            found.append(line)
    return (found or list(lines))[-limit:]


def _release(engine: Path) -> str:
    target = engine.resolve()
    try:
        completed = (target / ".hostkit-release.json").stat().st_mtime_ns
    except OSError:
        return f"{target}" if target.exists() else "missing"
    return f"{target} completed {completed}"


def _unit_files(name: str, roots: Sequence[Path]) -> list[Path]:
    found = []
    for root in roots:
        for unit in ("vllm@.service", unit_name(name)):
            found += [root / unit, *sorted((root / f"{unit}.d").glob("*.conf"))]
    return [path for path in found if path.is_file()]


def _digest_files(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    try:
        for path in paths:
            digest.update(f"{path}\0".encode() + path.read_bytes() + b"\0")
    except FileNotFoundError:
        return "missing"
    return digest.hexdigest() if paths else "missing"


def _model(config: Path) -> str:
    try:
        model = Path(str(read_config(config.read_text(encoding="utf-8")).get("model", "")))
        listing = sorted(
            (path.name, found.st_size, found.st_mtime_ns)
            for path in model.iterdir()
            for found in [path.stat()]
        )
    except (OSError, ValueError):
        return "missing"
    return hashlib.sha256(repr((str(model), listing)).encode()).hexdigest()
