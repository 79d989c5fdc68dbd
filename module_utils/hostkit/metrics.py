"""What a server says of its own load, at /metrics in Prometheus' text format."""

from __future__ import annotations

import http.client
import re
from typing import TYPE_CHECKING, Any

from . import ready

if TYPE_CHECKING:
    from collections.abc import Mapping

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
"""Gauges of vLLM, one sample for each engine; measured on 0.32."""

MAXIMUM_BODY = 8 * 1024 * 1024


def totals(text: str) -> dict[str, float]:
    """Return the sums over all engines of every metric in a text, by name."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = re.match(r"([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+(\S+)", line)
        if match:
            try:
                found[match[1]] = found.get(match[1], 0.0) + float(match[2])
            except ValueError:
                continue
    return found


def load(options: Mapping[str, Any], timeout: float = 2.0) -> dict[str, int] | None:
    """Return ``running`` and ``waiting`` requests of a server, None when it does not tell.

    Args:
        options: vLLM's options of the server.
        timeout: Seconds for the connection and for each part of the answer.
    """
    connection = ready.connect(options, timeout)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            return None
        found = totals(answer.read(MAXIMUM_BODY).decode(errors="replace"))
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    if RUNNING not in found:
        return None
    return {"running": int(found[RUNNING]), "waiting": int(found.get(WAITING, 0))}


def running(options: Mapping[str, Any]) -> int | None:
    """Return the requests that a server works on or keeps waiting, None when it does not tell."""
    found = load(options)
    return None if found is None else found["running"] + found["waiting"]
