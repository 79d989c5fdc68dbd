"""Findings: the one vocabulary of preflight, verification and diagnosis, and the table they print.

A finding says what was looked at, what was seen and what to do. Its id comes from `TAXONOMY`, so
that the same failure has the same name before a change, after it, and in a diagnosis.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

STATUSES = ("pass", "warn", "unknown", "fail")
"""Every status a finding can have, from best to worst."""

MINIMUM_WIDTH = 60
"""Narrowest table, in columns: less leaves no room for a sentence beside the other columns."""

TAXONOMY: dict[str, tuple[str, str]] = {
    "abi_mismatch": (
        "C library or wheel built for another platform",
        "Choose the engine variant and Python that match the host.",
    ),
    "bad_argument": (
        "an option that this engine refuses",
        "Correct the option in `args` of the instance.",
    ),
    "client_auth_401": (
        "the server refused the client's key",
        "Send the API key that the instance is configured with.",
    ),
    "compiler_missing": (
        "no C compiler for kernels built at run time",
        "Install the packages that `vllm_engine_system_packages` names.",
    ),
    "completion_failed": (
        "no token was generated",
        "Read `journalctl -u vllm@NAME` for the first error after the last start.",
    ),
    "disk_full": (
        "not enough free space",
        "Free the space, or point the directory at a larger filesystem.",
    ),
    "engine_core_generic": (
        "the engine died",
        "Read `journalctl -u vllm@NAME` for the first error after the last start.",
    ),
    "engine_version": (
        "the running engine is not the pinned one",
        "Run site.yml, which switches the release and restarts the instances.",
    ),
    "health": (
        "the server does not say that it is healthy",
        "Read `journalctl -u vllm@NAME` for the first error after the last start.",
    ),
    "host_unsupported": (
        "not a host that this toolkit can manage",
        "Use a Linux host with systemd of the Debian or Red Hat family.",
    ),
    "index_unreachable": (
        "the package index does not answer the host",
        "Name an index that the host reaches in `vllm_engine_index_url`, a proxy in "
        "`vllm_engine_environment`, or local wheels in `vllm_engine_wheel_dir`.",
    ),
    "limits_clamped": (
        "a limit of the running server that is not the one asked for",
        "Run site.yml; when it stays so, the host or a drop-in of its own allows no more.",
    ),
    "lock_mismatch": (
        "no lock file for the engine asked for, or one for another engine",
        "Name an engine that `locks/` holds, or make its lock with playbooks/lock.yml.",
    ),
    "model_damaged": (
        "a model file is not the one that was recorded",
        "Copy the model directory to the host again.",
    ),
    "model_incomplete": (
        "files of the model are missing or cut short",
        "Copy the model directory to the host again.",
    ),
    "model_not_found": (
        "no model where the instance looks for it",
        "Copy the model directory to the host, or correct `model` of the instance.",
    ),
    "model_unreadable": (
        "the service user may not read the model",
        "Give `vllm_user` read access to the files and search access to their directories.",
    ),
    "nofile": (
        "too few open files allowed",
        "Run site.yml with `host_limits_nofile` at the wanted value.",
    ),
    "port_in_use": (
        "the port is bound by another process",
        "Stop that process, or give the instance another `port`.",
    ),
    "python_incompatible": (
        "no Python that the engine runs on",
        "Install that Python, or allow uv to fetch it with `vllm_engine_python_preference`.",
    ),
    "release_damaged": (
        "files of the engine's environment are missing or changed",
        "Run site.yml, which builds the release again.",
    ),
    "sandbox_ignored": (
        "a part of the unit's sandbox that is not in force",
        "Run site.yml; when it stays so, `systemctl cat vllm@NAME` shows which drop-in undoes it.",
    ),
    "served_model_404": (
        "the server does not serve the model under that name",
        "Ask for one of the names that /v1/models lists, or correct `served_name`.",
    ),
    "shm": (
        "too little shared memory",
        "Run site.yml with the wanted `shm_size` of the instance.",
    ),
    "timeout": (
        "no answer in time",
        "Read `journalctl -u vllm@NAME`; a loading engine answers only when it is ready.",
    ),
    "unit_inactive": (
        "the service is not running",
        "Run site.yml; when it stays down, read `journalctl -u vllm@NAME`.",
    ),
    "unit_missing": (
        "the unit's file is gone",
        "Run site.yml, which writes it again.",
    ),
    "unit_outdated": (
        "the service runs with something other than what is on disk",
        "Run site.yml, which restarts it.",
    ),
    "variable_invalid": (
        "a variable with a value that is not allowed",
        "Correct the value in the inventory.",
    ),
    "variable_unknown": (
        "a variable that no role knows",
        "Correct the name in the inventory, or remove the variable.",
    ),
    "vram_free_below_util": (
        "less GPU memory is free than the servers are told to take",
        "Lower `gpu_memory_utilization` in `args` of the instance, or give it another GPU.",
    ),
    "wheel_hash": (
        "a wheel is missing from the wheel directory or is not the locked one",
        "Fill the wheel directory again with tools/wheels.py.",
    ),
}
"""Every id with its meaning and the remedy used when a finding gives none, sorted by id."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, and what was seen.

    Attributes:
        id: A key of `TAXONOMY`.
        status: One of `STATUSES`. A query that got no answer is ``unknown``, never ``pass``.
        summary: One sentence with the values found.
        evidence: Lines that back the summary.
        remedy: What to do, in one sentence; filled from `TAXONOMY` unless the status is ``pass``.
        subject: What it is about: a host, an instance, a GPU, a variable.
    """

    id: str
    status: str
    summary: str
    evidence: tuple[str, ...] = field(default=())
    remedy: str = ""
    subject: str = ""

    def __post_init__(self) -> None:
        """Refuse what the contract does not know, and fill in the default remedy.

        Raises:
            ValueError: When the id or the status is none of ours.
        """
        if self.id not in TAXONOMY:
            raise ValueError(f"no such finding id: {self.id!r}")
        if self.status not in STATUSES:
            raise ValueError(f"no such finding status: {self.status!r}, allowed: {STATUSES}")
        if not self.remedy and self.status != "pass":
            remedy = TAXONOMY[self.id][1].replace("vllm@NAME", f"vllm@{self.subject or 'NAME'}")
            object.__setattr__(self, "remedy", remedy)

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as plain data for JSON."""
        return {**asdict(self), "evidence": list(self.evidence)}


def from_dict(data: Mapping[str, Any]) -> Finding:
    """Read a finding from plain data.

    Args:
        data: The keys of `Finding`; `id`, `status` and `summary` must be there.

    Raises:
        ValueError: When a key is missing, or the id or status is none of ours.
    """
    try:
        return Finding(
            id=str(data["id"]),
            status=str(data["status"]),
            summary=str(data["summary"]),
            evidence=tuple(str(line) for line in data.get("evidence") or ()),
            remedy=str(data.get("remedy") or ""),
            subject=str(data.get("subject") or ""),
        )
    except KeyError as error:
        raise ValueError(f"a finding needs the key {error}") from error


def merge(*groups: Iterable[Finding]) -> list[Finding]:
    """Put findings of several sources into one list: worst last, no finding twice.

    Worst last, because the end of the output is what is on the screen when a run stops.
    """
    unique = dict.fromkeys(finding for group in groups for finding in group)
    return sorted(unique, key=lambda finding: STATUSES.index(finding.status))


def count(findings: Iterable[Finding]) -> dict[str, int]:
    """Return how many findings have each status, every status named."""
    result = dict.fromkeys(STATUSES, 0)
    for finding in findings:
        result[finding.status] += 1
    return result


def worst(findings: Iterable[Finding]) -> str:
    """Return the worst status; ``unknown`` when there is no finding, since nothing was proved."""
    return max((f.status for f in findings), key=STATUSES.index, default="unknown")


def failed(findings: Sequence[Finding], *, strict: bool = False) -> bool:
    """Say whether a run with these findings must end non-zero.

    Args:
        findings: What was found.
        strict: Count ``unknown`` as ``fail``.
    """
    return worst(findings) == "fail" or (strict and worst(findings) == "unknown")


def render(title: str, findings: Sequence[Finding], *, width: int = 100) -> str:
    """Draw findings as a table of plain text, under a line with the totals.

    Lines never end in a space and hold no control character: YAML output shows such text as it is.

    Args:
        title: What the findings are of, such as ``Preflight of gpu1``.
        findings: In the order wanted; see `merge`.
        width: Columns to use, at least `MINIMUM_WIDTH`.
    """
    head = ("STATUS", "SUBJECT", "CHECK", "FINDING")
    rows = [(f.status.upper(), _printable(f.subject) or "-", f.id) for f in findings]
    widths = [max(len(row[i]) for row in [head[:3], *rows]) for i in range(3)]
    indent = sum(widths) + 2 * 3
    room = max(width, MINIMUM_WIDTH, indent + 30) - indent
    totals = count(findings)
    lines = [
        f"{title}: " + ", ".join(f"{totals[status]} {status}" for status in reversed(STATUSES)),
        "",
        _row(head[:3], widths) + head[3],
    ]
    for finding, row in zip(findings, rows):
        text = _wrap(finding.summary, room)
        if finding.status != "pass":
            for item in finding.evidence:
                text += _wrap(f"- {item}", room)
            text += _wrap(f"Next: {finding.remedy}", room)
        lines += [
            (_row(row, widths) if number == 0 else " " * indent) + line
            for number, line in enumerate(text or [""])
        ]
    return "\n".join(line.rstrip() for line in lines)


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(f"{cell:<{width}}  " for cell, width in zip(cells, widths))


def _wrap(text: str, room: int) -> list[str]:
    """Wrap a sentence, with further lines under its text, and commands and paths in one piece."""
    label = re.match(r"(- |Next: )?", text)
    whole = re.sub(r"`[^`]*`", lambda command: command[0].replace(" ", "\0"), _printable(text))
    lines = textwrap.wrap(
        whole,
        room,
        subsequent_indent=" " * (label.end() if label else 0),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in lines]


def _printable(text: str) -> str:
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
