"""Proofs: whether what was built really serves, from values gathered on the running host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import limits, verify_sandbox
from .findings import Finding
from .ports import Listener, serves
from .preflight import model, variables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

IDS_OF_ERRORS = {
    "model_not_found": "served_model_404",
    "timeout": "timeout",
    "unauthorized": "client_auth_401",
}
"""Ids of the answers of an endpoint that have one of their own, see `endpoint.ask`."""

SHOWN = 5
"""Most damaged files that are named."""

KINDS_OF_PROCESSES = {
    "VLLM::APIServer": "API server",
    "VLLM::EngineCor": "engine core",
    "VLLM::Worker": "worker",
}
"""What vLLM's processes are by the kernel's name of them, which ends after 15 characters."""


def judge(host: str, data: Mapping[str, Any]) -> list[Finding]:
    """Return every proof about a host.

    Args:
        host: Name of the host.
        data: ``names``, what hostkit_variables_info returned; ``wanted``, with ``version`` of the
            engine and its ``variant``, ``unit_path``, ``engine_path``, the limits ``nofile``,
            ``memlock``, ``core`` and ``tasks``, and what was ``compared`` of the engine's files;
            ``looked``, what hostkit_host_info returned; ``engine``, what vllm_release_info
            returned; ``sandbox``, what vllm_sandbox_info returned; ``units``, ``limits``,
            ``endpoints`` and ``models``, what the modules of these subjects returned, each in the
            order of the instances.
    """
    wanted = data["wanted"]
    found = [*variables(host, data["names"])]
    found += _release(host, data["engine"], wanted["engine_path"], wanted["compared"])
    if data["names"]["instances"]:
        found.append(_unit_file(host, wanted["unit_path"], data["looked"]["paths"]))
    for instance, unit, processes, confined, answers, seen in zip(
        data["names"]["instances"],
        data["units"],
        data["limits"],
        data["sandbox"]["units"],
        data["endpoints"],
        data["models"],
    ):
        found.append(_unit(instance["name"], unit))
        found.append(_port(instance, data["looked"]["ports"]))
        found += _endpoint(instance, answers, wanted["version"])
        found.append(_nofile(instance["name"], processes, unit["main_pid"], wanted["nofile"]))
        sandbox = {**data["sandbox"], **confined}
        found += verify_sandbox.judge(instance, processes, sandbox, wanted)
        found += model(instance, seen)
    return found


def _release(host: str, engine: Mapping[str, Any], wanted: str, compared: str) -> Iterator[Finding]:
    release = engine["release"]
    if not engine["current"]:
        summary = f"{wanted} is missing or leads to no release."
        yield Finding("release_damaged", "fail", summary, subject=host)
    elif not release["complete"]:
        yield Finding(
            "release_damaged",
            "fail",
            f"Release {release['name']} is damaged: {release['reason']}.",
            evidence=tuple(
                f"{one['path']} ({one['package']}): {one['problem']}"
                for one in release["damaged"][:SHOWN]
            ),
            subject=host,
        )
    else:
        summary = (
            f"Release {release['name']} is whole: every file of its "
            f"{len(release['marker']['packages'])} packages has its recorded {compared}."
        )
        yield Finding("release_damaged", "pass", summary, subject=host)


def _unit_file(host: str, path: str, paths: Mapping[str, bool]) -> Finding:
    if paths[path]:
        return Finding("unit_missing", "pass", f"{path} is there.", subject=host)
    return Finding("unit_missing", "fail", f"{path} is missing.", subject=host)


def _unit(name: str, unit: Mapping[str, Any]) -> Finding:
    label, state = unit["unit"], f"{unit['active_state']} ({unit['sub_state']})"
    if unit["active_state"] != "active":
        last = unit["last_end"]
        summary = (
            f"{label} is {state}; its last result is {unit['result']}, "
            f"exit status {unit['exit_status']}."
        )
        if last:
            summary += f" {last['summary']}"
            summary += f" It {last['next']}." if last["next"] else ""
        return Finding(
            "unit_inactive",
            "fail",
            summary,
            evidence=tuple(unit["journal"]),
            subject=name,
        )
    if not unit["enabled"]:
        return Finding(
            "unit_inactive",
            "fail",
            f"{label} is active, but would not start at the next boot.",
            remedy=f"Run site.yml, or `systemctl enable {label}`.",
            subject=name,
        )
    if unit["action"] in ("start", "restart"):
        return Finding(
            "unit_outdated",
            "fail",
            f"{label} is active, but not with what is on disk: {unit['reason']}.",
            subject=name,
        )
    return Finding(
        "unit_inactive",
        "pass",
        f"{label} is {state} with pid {unit['main_pid']}, enabled, and runs with what is on disk.",
        subject=name,
    )


def _port(instance: Mapping[str, Any], held: Mapping[str, Any]) -> Finding:
    name, number = instance["name"], instance["port"]
    unit = f"vllm@{name}.service"
    holders = [
        one
        for one in held[str(number)]
        if serves(Listener(one["address"], number, 0, 0), instance["host"])
    ]
    strangers = [one for one in holders if one["units"] != [unit]]
    evidence = tuple(one["description"] for one in strangers)
    if strangers:
        summary = f"Port {number} is not held by {unit} alone."
        return Finding("port_in_use", "fail", summary, evidence=evidence, subject=name)
    if not holders:
        return Finding(
            "port_in_use",
            "fail",
            f"Nothing listens on port {number}.",
            remedy=f"Run site.yml; when it stays so, read `journalctl -u {unit}`.",
            subject=name,
        )
    return Finding("port_in_use", "pass", f"Port {number} is held by {unit} alone.", subject=name)


def _endpoint(
    instance: Mapping[str, Any], answers: Mapping[str, Any], wanted: str
) -> Iterator[Finding]:
    name, served = instance["name"], instance["served_name"]
    health, version = answers["health"], answers["version"]
    models, completion = answers["models"], answers["completion"]
    if health["ok"]:
        yield Finding("health", "pass", f"{answers['url']}/health answers 200.", subject=name)
    else:
        yield _failed("health", "The server is not healthy", health, name)
    if health["error"] in ("refused", "name_resolution", "network", "tls"):
        return
    if not version["ok"]:
        yield _failed("engine_version", "The engine does not tell its version", version, name)
    elif public(version["version"]) != public(wanted):
        yield Finding(
            "engine_version",
            "fail",
            f"vLLM {version['version']} answers, {wanted} is wanted.",
            subject=name,
        )
    else:
        yield Finding(
            "engine_version", "pass", f"vLLM {version['version']} answers, as wanted.", subject=name
        )
    if not models["ok"]:
        yield _failed("served_model_404", "The server does not list its models", models, name)
    elif served not in models["names"]:
        yield Finding(
            "served_model_404",
            "fail",
            f"/v1/models lists {', '.join(models['names']) or 'nothing'}, not {served}.",
            subject=name,
        )
    else:
        yield Finding("served_model_404", "pass", f"/v1/models lists {served}.", subject=name)
    if completion["ok"]:
        yield Finding(
            "completion_failed",
            "pass",
            f"{served} generated {completion['tokens']} tokens in "
            f"{completion['seconds']:.2f} s, the first after {completion['ttft_seconds']:.2f} s.",
            evidence=(f"answer: {completion['text']!r}",),
            subject=name,
        )
    else:
        yield _failed("completion_failed", "No completion was generated", completion, name)


def _failed(finding_id: str, what: str, answer: Mapping[str, Any], name: str) -> Finding:
    return Finding(
        IDS_OF_ERRORS.get(answer["error"], finding_id),
        "fail",
        f"{what}: {answer['detail']}.",
        subject=name,
    )


def _nofile(name: str, rows: list[dict[str, Any]], main_pid: int, wanted: int) -> Finding:
    if not rows:
        return Finding(
            "nofile",
            "unknown",
            "No process of the unit runs, so none has a limit.",
            remedy="Have the instance started, then verify again.",
            subject=name,
        )
    low = limits.below(rows, "nofile", wanted)
    if low:
        return Finding(
            "nofile",
            "fail",
            f"{len({one.partition(' has ')[0] for one in low})} of {len(rows)} processes may open "
            f"fewer than {wanted} files.",
            evidence=tuple(low),
            subject=name,
        )
    kinds = sorted(
        "API server" if row["pid"] == main_pid else KINDS_OF_PROCESSES.get(row["name"], row["name"])
        for row in rows
    )
    return Finding(
        "nofile",
        "pass",
        f"All {len(rows)} processes ({', '.join(kinds)}) may open {wanted} files or more.",
        subject=name,
    )


def public(version: str) -> str:
    """Return a version without its local part, which says how it was built: ``0.32.0+cpu``."""
    return version.split("+", 1)[0]
