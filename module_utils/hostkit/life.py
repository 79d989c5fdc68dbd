"""Why a server ended, and whether it is started again.

systemd alone can't tell: vLLM ends with 0 when its engine dies and with 1 for a wrong setting as
for a crash. So each step around the server notes what it knows, and the end is judged from that.
Facts about vLLM are of 0.32 and 0.33, about systemd of 252 and 257.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .files import make_directory, write_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .unit import Places

DEATH_LIMIT = 5
"""Deaths without a stable run between them, after which the unit stays down."""

STABLE_SECONDS = 600
"""A server that served for so long is taken for sound: its earlier deaths are forgotten."""

FIRST_DELAY_SECONDS = 5
"""Pause before the first start after a death; doubled with each further one. ``RestartSec=``."""

LONGEST_DELAY_SECONDS = 60
"""Longest pause: within the time limit of every step, so that waiting can't fail by itself."""

SETTING_ERRORS = re.compile(
    r"""
      unrecognized\ arguments | invalid\ (choice|int|float)
    | Value\ error,                                      # pydantic's, of vLLM's configuration
    | \d+\ validation\ errors?\ for
    | must\ be\ divisible\ by
    | is\ greater\ than\ the\ derived
    | is\ larger\ than\ the\ number\ of\ available\ GPUs
    | (are|is)\ not\ supported\ (for\ now|anymore|in-tree)
    | does\ not\ recognize\ this\ architecture
    | contains\ custom\ code | trust_remote_code
    | Unknown\ quantization\ method | quantization\ method\ .*\ is\ not\ supported
    | Cannot\ find\ (the\ config\ file|any\ model\ weights)
    | Error\ while\ deserializing\ header
    | Repo\ id\ must\ be | LocalEntryNotFoundError | RepositoryNotFoundError | GatedRepoError
    | Cannot\ auto-fit\ max_model_len | No\ available\ memory\ for\ the\ cache\ blocks
    | is\ larger\ than\ the\ available\ KV\ cache
    | Insufficient\ space\ in\ /dev/shm
    | Failed\ to\ infer\ device\ type | driver\ on\ your\ system\ is\ too\ old
    | Python\.h:\ No\ such\ file | Failed\ to\ find\ C\ compiler | InvalidCxxCompiler
    | (ModuleNotFoundError|ImportError)\b
    """,
    re.VERBOSE,
)
"""What a start says that can't succeed until a person changes something."""

_TOLD = "[shutdown] API server: shutdown triggered"
_ENGINE_DEAD = re.compile(r"EngineDeadError|Worker proc \S+ died unexpectedly")

_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


@dataclass(frozen=True)
class End:
    """How a server ended, as systemd and the kernel tell it.

    Attributes:
        result: ``$SERVICE_RESULT`` of systemd.exec(5), such as ``success``, ``timeout``.
        code: ``$EXIT_CODE``: ``exited``, ``killed``, ``dumped``, or empty when no server ran.
        status: ``$EXIT_STATUS``: an exit status or the name of a signal.
        oom_kills: Processes of the unit that the kernel ended for want of memory.
        lines: What the server said that tells why, oldest first.
        told: Whether the API server said that a signal told it to end.
        engine_dead: Whether it said that its engine or a worker died.
        at: When, in seconds since the epoch.
    """

    result: str
    code: str
    status: str
    oom_kills: int = 0
    lines: Sequence[str] = ()
    told: bool = False
    engine_dead: bool = False
    at: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """What follows from an end.

    Attributes:
        record: The record to keep, see `read`.
        restart: Whether the server is to be started again.
        asked: Whether someone had asked for the end.
    """

    record: dict[str, Any]
    restart: bool
    asked: bool


def read(name: str, places: Places) -> dict[str, Any]:
    """Return the record of an instance's life, an empty mapping when there is no sound one.

    Keys: ``started_at``, ``ready_at`` and ``stop_requested_at`` of the last start (seconds since
    the epoch, or None); ``refused``, why a step before the server gave up, with ``final`` when
    another try would not help; ``deaths``, when the server died since it last ran stably;
    ``not_before``, the earliest time of the next start; ``last_end`` with ``at``, ``phase``
    (``starting``, ``serving``, ``draining``), ``asked``, ``cause``, ``summary``, ``evidence`` and
    ``next``, what happens then.
    """
    try:
        record = json.loads(places.life(name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def write(name: str, places: Places, record: Mapping[str, Any]) -> None:
    """Keep the record of an instance's life.

    Raises:
        OSError: It can't be written.
    """
    make_directory(places.record_root, 0o755)
    write_text(places.life(name), json.dumps(dict(record), indent=1) + "\n", 0o644)


def seen(lines: Sequence[str]) -> dict[str, bool]:
    """Return what a server's own lines tell about its end, as `End` wants it."""
    return {
        "told": any(_TOLD in line for line in lines),
        "engine_dead": any(_ENGINE_DEAD.search(line) for line in lines),
    }


def begin(record: Mapping[str, Any], now: float, restarts: int) -> dict[str, Any]:
    """Return the record of a life that begins.

    Args:
        record: The record so far.
        now: Seconds since the epoch.
        restarts: How often systemd has started the unit by itself; 0 when a person started it,
            which forgets earlier deaths.
    """
    return {
        "started_at": now,
        "ready_at": None,
        "stop_requested_at": None,
        "deaths": list(record.get("deaths", [])) if restarts else [],
        "not_before": record.get("not_before", 0.0) if restarts else 0.0,
        "last_end": record.get("last_end", {}),
    }


def delay(deaths: int) -> int:
    """Return the seconds between the last of so many deaths and the next start."""
    return min(FIRST_DELAY_SECONDS << max(deaths - 1, 0), LONGEST_DELAY_SECONDS)


def judge(record: Mapping[str, Any], end: End) -> Verdict:
    """Return what an end means: its cause in words, and whether the server starts again.

    Args:
        record: The record of this life, see `read`.
        end: How it ended.
    """
    asked = record.get("stop_requested_at") is not None
    phase = _phase(record)
    cause, summary = _cause(record, end, phase)
    last: dict[str, Any] = {
        "at": end.at,
        "phase": phase,
        "asked": asked,
        "cause": cause,
        "summary": summary,
        "evidence": list(end.lines),
        "next": "",
    }
    new = {**record, "last_end": last, "not_before": 0.0}
    if asked:
        return Verdict({**new, "deaths": []}, restart=False, asked=True)
    served = end.at - float(record.get("ready_at") or end.at)
    deaths = [*([] if served >= STABLE_SECONDS else record.get("deaths", [])), end.at]
    final = _why_final(record, end, phase, len(deaths))
    if final:
        last["next"] = f"stays down: {final}"
        return Verdict({**new, "deaths": deaths}, restart=False, asked=False)
    pause = delay(len(deaths))
    last["next"] = f"starts again in {pause} s, death {len(deaths)} of at most {DEATH_LIMIT}"
    return Verdict(
        {**new, "deaths": deaths, "not_before": end.at + pause}, restart=True, asked=False
    )


def _phase(record: Mapping[str, Any]) -> str:
    if record.get("ready_at") is None:
        return "starting"
    return "serving" if record.get("stop_requested_at") is None else "draining"


def _cause(record: Mapping[str, Any], end: End, phase: str) -> tuple[str, str]:
    """Return the kind of an end and a sentence about it."""
    when = {"starting": " while it started", "serving": "", "draining": " while it drained"}[phase]
    asked = record.get("stop_requested_at") is not None
    refused = record.get("refused") or {}
    rules = (
        (bool(refused), "refused", str(refused.get("summary"))),
        (
            end.oom_kills > 0 or end.result == "oom-kill",
            "oom",
            f"The kernel ended a process of it for want of memory{when}.",
        ),
        (end.result == "timeout", "timeout", f"systemd ended it when its time was over{when}."),
        ("cut_off" in record, "cut-off", str(record.get("cut_off"))),
        (
            end.engine_dead and end.code == "exited" and phase != "starting",
            "engine-died",
            f"Its engine died{when}, and the API server ended after it.",
        ),
        (
            asked and (phase == "starting" or end.status in ("0", "TERM")),
            "stopped",
            "It was stopped.",
        ),
        (
            end.status == "TERM" or (end.told and end.status == "0"),
            "told",
            "A signal that did not come from systemd told it to end.",
        ),
        (not end.code, "refused", "A step before the server failed."),
        (
            end.code in ("killed", "dumped"),
            "signal",
            f"Its API server was ended by SIG{end.status}{when}.",
        ),
        (
            end.status == "0",
            "engine-died",
            f"Its engine died{when}, and the API server ended after it.",
        ),
    )
    for applies, cause, summary in rules:
        if applies:
            return cause, summary
    return "exit-code", f"It ended with exit status {end.status}{when}."


def _why_final(record: Mapping[str, Any], end: End, phase: str, deaths: int) -> str:
    """Return why there is no further start, an empty text when there is one."""
    refused = record.get("refused") or {}
    failed_to_start = phase == "starting" and end.result != "timeout" and not end.oom_kills
    limit = f"without {STABLE_SECONDS // 60} minutes of service between"
    rules = (
        (bool(refused.get("final")), "the same would happen again"),
        (end.code == "exited" and end.status == "2", "vLLM refuses its options"),
        (end.code == "exited" and end.status == "203", "there is nothing to execute"),
        (not end.code and not refused, "a check before the start failed"),
        (
            failed_to_start and any(SETTING_ERRORS.search(line) for line in end.lines),
            "its settings, its model or its engine have to be changed first",
        ),
        (failed_to_start and _same_as_before(record, end), "it failed twice in the same way"),
        (deaths >= DEATH_LIMIT, f"it died {deaths} times {limit}"),
    )
    return next((why for applies, why in rules if applies), "")


def _same_as_before(record: Mapping[str, Any], end: End) -> bool:
    before = record.get("last_end") or {}
    return (
        not before.get("asked", True)
        and before.get("phase") == "starting"
        and bool(end.lines)
        and _essence(before.get("evidence", [])) == _essence(end.lines)
    )


def _essence(lines: Sequence[str]) -> list[str]:
    """Return lines without what differs from one run to the next: process ids, times, addresses."""
    return [_NUMBERS.sub("", line) for line in lines]
