"""The command ``vllm-status``: what the vLLM servers of this host do, for people and for programs.

Asks systemd once for all of them, and each running server for its own figures. Any local user may
call it; what that user may not read is left out (``-`` in the table, null in JSON).

Exit status 0: every server is active; 1: one is not; 2: wrong use.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import life, metrics, unit
from .config import read_config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROPERTIES = (
    "Id", "LoadState", "ActiveState", "SubState", "UnitFileState", "MainPID", "NRestarts",
    "MemoryCurrent", "ActiveEnterTimestampMonotonic", "InvocationID",
)  # fmt: skip

ANSWER_SECONDS = 5
"""How long systemd may take to answer: a person waits for it, and sound hosts need 0.1 s."""

WIDTH = 100

HEADINGS = ("NAME", "STATE", "VLLM", "ADDRESS", "GPUS", "MEMORY", "UP", "RESTARTS", "REQUESTS")

SCHEMA = """\
The JSON is a list with one object an instance:
  name, unit       text
  active_state, sub_state, enabled
                   systemd's words; whether it starts at boot
  version          of the engine that it was started with
  current_version  of the engine that a start would use now; differs after an upgrade
  host, port, tls  where it listens, and whether with TLS; null when its configuration may not be
                   read
  gpus             list of the GPUs that it was given; an empty one is all, or none on a CPU host
  main_pid         of the API server; 0 when it does not run
  memory_bytes     of all its processes; null when it does not run
  uptime_seconds   since it was ready; null when it is not active
  restarts         by systemd since it was last started by hand
  running, waiting requests; null when the server does not tell
  last_end         how it last ended since the host came up: at, phase, asked, cause, summary,
                   evidence, next; empty when it has not
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the state of the servers; see the top of this module."""
    parser = argparse.ArgumentParser(
        prog="vllm-status",
        description="What the vLLM servers of this host do.",
        epilog=SCHEMA,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="an instance; all when none")
    parser.add_argument("--json", action="store_true", help="for programs; see below")
    parser.add_argument("--engine", type=Path, default=Path("/opt/vllm/current"))
    parser.add_argument("--config-root", type=Path, default=Path("/etc/vllm"))
    given = parser.parse_args(arguments)
    places = unit.Places(given.engine, given.config_root)
    known = instances(places)
    unknown = [name for name in given.names if name not in known]
    if unknown:
        parser.error(f"no instance {unknown[0]!r} here; there are: {', '.join(known) or 'none'}")
    try:
        found = gather(given.names or known, places)
    except OSError as error:
        sys.stderr.write(f"vllm-status: systemd can't be asked: {error}\n")
        return 1
    sys.stdout.write(json.dumps(found, indent=1) + "\n" if given.json else table(found))
    return 0 if all(one["active_state"] == "active" for one in found) else 1


def instances(places: unit.Places) -> list[str]:
    """Return the instances of this host, by their drop-ins, which everybody may read, sorted."""
    return sorted(
        path.parent.name[len("vllm@") : -len(".service.d")]
        for root in places.unit_roots
        for path in root.glob("vllm@?*.service.d/50-hostkit.conf")
    )


def gather(names: Sequence[str], places: unit.Places) -> list[dict[str, Any]]:
    """Return what is known of instances, in the order of `names`; see `SCHEMA`.

    Raises:
        OSError: systemd can't be asked.
    """
    if not names:
        return []
    command = ["systemctl", "show", f"--property={','.join(PROPERTIES)}"]
    command += map(unit.unit_name, names)
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"no answer within {ANSWER_SECONDS} s") from None
    if asked.returncode:
        raise OSError(asked.stderr.strip())
    now = time.monotonic()
    rows = [
        describe(name, shown, places, now)
        for name, shown in zip(names, unit.parse_show(asked.stdout))
    ]
    with ThreadPoolExecutor(max_workers=8) as pool:
        loads = list(pool.map(_load, rows))
    return [{**row, **load} for row, load in zip(rows, loads)]


def describe(
    name: str, shown: Mapping[str, str], places: unit.Places, now: float
) -> dict[str, Any]:
    """Return what systemd and the files of the host say about an instance.

    Args:
        name: The instance.
        shown: Its unit's `PROPERTIES`.
        places: Where its files are.
        now: Seconds on the monotonic clock.
    """
    options = _options(name, places)
    active = shown.get("ActiveState") == "active"
    since = int(shown.get("ActiveEnterTimestampMonotonic") or 0) / 1e6
    started = unit.read_record(name, places)
    release = (
        started.get("inputs", {}).get("release", "") if shown.get("MainPID", "0") != "0" else ""
    )
    return {
        "name": name,
        "unit": unit.unit_name(name),
        "active_state": shown.get("ActiveState", "inactive"),
        "sub_state": shown.get("SubState", "dead"),
        "enabled": shown.get("UnitFileState") == "enabled",
        "version": _version(release) or _version(str(places.engine.resolve())),
        "current_version": _version(str(places.engine.resolve())),
        "host": options.get("host"),
        "port": options.get("port"),
        "tls": bool(options.get("ssl-certfile")),
        "gpus": _gpus(name, places),
        "main_pid": int(shown.get("MainPID") or 0),
        "memory_bytes": _number(shown.get("MemoryCurrent"))
        if shown.get("MainPID") != "0"
        else None,
        "uptime_seconds": round(now - since) if active and since else None,
        "restarts": int(shown.get("NRestarts") or 0),
        "running": None,
        "waiting": None,
        "last_end": life.read(name, places).get("last_end", {}),
    }


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the table for people, with why a server is down below its line."""
    if not found:
        return "No vLLM server is set up on this host.\n"
    lines = [_cells(one) for one in found]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *lines)]
    text = _line(HEADINGS, widths)
    for one, cells in zip(found, lines):
        text += _line(cells, widths)
        for note in _notes(one):
            text += (
                textwrap.fill(note, WIDTH, initial_indent="    ", subsequent_indent="    ") + "\n"
            )
    return text


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    state = one["active_state"]
    if state not in ("active", "failed", "inactive"):
        state = f"{state} ({one['sub_state']})"
    address = "-" if one["port"] is None else f"{one['host']}:{one['port']}"
    requests = "-" if one["running"] is None else f"{one['running']} run, {one['waiting']} wait"
    memory = one["memory_bytes"]
    return (
        one["name"],
        state,
        one["version"] or "-",
        address,
        ",".join(gpu[:8] for gpu in one["gpus"]) or "-",
        "-" if memory is None else f"{memory / 1024**3:.1f} GiB",
        _span(one["uptime_seconds"]),
        str(one["restarts"]),
        requests,
    )


def _notes(one: Mapping[str, Any]) -> list[str]:
    """Return what a person should know beside the line of an instance."""
    notes = []
    last = one["last_end"]
    if one["main_pid"] and one["version"] != one["current_version"]:
        notes.append(f"It runs an older engine than {one['current_version']}, which is installed.")
    if last and (one["active_state"] != "active" or not last["asked"]):
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last["at"]))
        following = (
            f" It {last['next']}." if last["next"] and one["active_state"] != "active" else ""
        )
        notes.append(f"Ended {when}: {last['summary']}{following}")
        if not last["asked"] and last["evidence"]:
            notes.append(f"It said: {last['evidence'][-1].strip()}")
        if one["active_state"] == "failed":
            notes.append(f"See journalctl -u {one['unit']} -n 100")
    if not one["enabled"]:
        notes.append("It does not start at boot.")
    return notes


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths)).rstrip() + "\n"


def _span(seconds: int | None) -> str:
    """Return a time in its two largest units: ``3d 4h``, ``12m 5s``."""
    if seconds is None:
        return "-"
    parts: list[str] = []
    for size, letter in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, seconds = divmod(seconds, size)
        if count or parts or letter == "s":
            parts.append(f"{count}{letter}")
    return " ".join(parts[:2])


def _load(row: Mapping[str, Any]) -> dict[str, int]:
    if row["active_state"] != "active" or row["port"] is None:
        return {}
    return metrics.load({**row, "ssl-certfile": row["tls"]}, timeout=1.0) or {}


def _options(name: str, places: unit.Places) -> dict[str, Any]:
    try:
        return read_config((places.instance(name) / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _gpus(name: str, places: unit.Places) -> list[str]:
    try:
        lines = (places.instance(name) / "environment").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    for line in lines:
        key, _, value = line.partition("=")
        if key == "CUDA_VISIBLE_DEVICES":
            return [gpu for gpu in value.strip('"').split(",") if gpu]
    return []


def _version(release: str) -> str:
    """Return the engine's version from the path of a release, ``.../0.33.0-cuda-0c6cbd0a5ef1``."""
    name = os.path.basename(release.split(" ", 1)[0])  # noqa: PTH119
    return name.split("-", 1)[0] if name[:1].isdigit() else ""


def _number(text: str | None) -> int | None:
    """Return a number that systemd shows; it says ``[not set]`` or the largest one for none."""
    return int(text) if text and text.isdigit() and int(text) < 1 << 63 else None
