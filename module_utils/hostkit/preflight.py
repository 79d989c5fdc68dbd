"""Predictions: what would go wrong on a host, from values gathered before anything is changed."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING, Any

from . import gpus, limits
from .findings import Finding, from_dict
from .ports import Listener, serves

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

OS_FAMILIES = ("Debian", "RedHat")
"""Families of distributions, as Ansible names them, whose package names the roles know."""

MINIMUM_PYTHON = (3, 9)
"""Oldest Python that runs the modules on a host: ansible-core's own floor there from 2.20."""


def judge(host: str, data: Mapping[str, Any]) -> list[Finding]:
    """Return every prediction about a host.

    What was not gathered is not judged: of a host that is not Linux nothing more is asked.

    Args:
        host: Name of the host.
        data: ``names``, what hostkit_variables_info returned; ``facts``, Ansible's facts; and, of a
            Linux host, ``looked``, what hostkit_host_info returned; ``lock``, what vllm_lock_info
            returned; ``plan``, what vllm_release_plan_info returned; ``index``, what
            ansible.builtin.uri returned for the package index when a release has to be built from
            one; ``wanted``, with ``nofile``, the limit that services get; ``models``, what
            vllm_model_info returned, in the order of the instances.
    """
    looked = data.get("looked") or {}
    found = [*variables(host, data["names"]), *_platform(host, data["facts"], looked)]
    made = (data.get("lock") or {}).get("lock") or {}
    if made.get("variant") == "cuda":
        found += _budgets(host, data["names"]["instances"])
    if data.get("lock"):
        found += _engine(host, data["lock"], data.get("plan") or {}, data.get("index") or {})
    for instance in data["names"]["instances"] if looked else []:
        found.append(port(instance, looked["ports"]))
        if data.get("wanted"):
            found.append(nofile(instance, int(data["wanted"]["nofile"])))
    for instance, seen in zip(data["names"]["instances"], data.get("models") or []):
        found += model(instance, seen)
    return found


def of_problem(problem: Mapping[str, Any], subject: str) -> Finding:
    """Return a finding of a problem that a module found, which has the same keys already."""
    return from_dict({**problem, "status": "fail", "subject": subject})


def _budgets(host: str, instances: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    problems = gpus.budgets(instances)
    for problem in problems:
        yield Finding(
            "vram_free_below_util", "fail", problem.message, remedy=problem.remedy, subject=host
        )
    if instances and not problems:
        summary = "The instances want no more of any GPU's memory than it has."
        yield Finding("vram_free_below_util", "pass", summary, subject=host)


def _engine(
    host: str, lock: Mapping[str, Any], plan: Mapping[str, Any], index: Mapping[str, Any]
) -> Iterator[Finding]:
    if "lock" not in lock:
        yield Finding("lock_mismatch", "fail", _sentence(lock["msg"]), subject=host)
        return
    made = lock["lock"]
    yield Finding(
        "lock_mismatch",
        "pass",
        f"vLLM {made['version']} {made['variant']} for Python {made['python']} is locked: "
        f"{made['packages']} packages.",
        subject=host,
    )
    if "problems" not in plan:
        said = _sentence(plan.get("msg", "The module gave no reason"))
        summary = f"Whether {made['release_name']} can be built could not be found out: {said}"
        yield Finding("release_damaged", "unknown", summary, subject=host)
        return
    for problem in plan["problems"]:
        yield of_problem(problem, host)
    if plan["build"] and index and index.get("status") != http.client.OK:
        answer = f"HTTP {index['status']}" if index.get("status", -1) > 0 else index.get("msg", "")
        yield Finding(
            "index_unreachable",
            "fail",
            _sentence(f"The package index can't be used from {host}: {answer}"),
            subject=host,
        )
    elif not plan["problems"]:
        state = "can be built" if plan["build"] else "is complete"
        summary = f"Release {plan['name']} {state}."
        yield Finding("release_damaged", "pass", summary, subject=host)


def model(instance: Mapping[str, Any], seen: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what an instance's model directory is worth.

    Args:
        instance: A normalised instance.
        seen: What vllm_model_info returned for its directory.
    """
    name, path = instance["name"], instance["model"]
    if "problems" not in seen:
        said = _sentence(seen.get("msg", "The module gave no reason"))
        summary = f"{path} could not be looked at: {said}"
        yield Finding("model_unreadable", "unknown", summary, subject=name)
        return
    for problem in seen["problems"]:
        yield of_problem(problem, name)
    if not seen["problems"]:
        kind = ", ".join(seen["architectures"])
        size = (
            f"{seen['size'] / 1e9:.1f} GB"
            if seen["size"] >= 1e8
            else f"{seen['size'] / 1e6:.1f} MB"
        )
        if not seen["has_manifest"]:
            proof = "without SHA256SUMS"
        elif seen["unverified"]:
            proof = "not yet compared with its SHA256SUMS"
        else:
            proof = f"{len(seen['verified'])} files as in its SHA256SUMS"
        summary = f"{path} is complete: {kind}, {size}, {proof}."
        yield Finding("model_incomplete", "pass", summary, subject=name)


def _sentence(text: str) -> str:
    return f"{text.strip().rstrip('.')}."


def variables(host: str, names: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what the names and instances of the inventory are worth.

    Args:
        host: Name of the host.
        names: What hostkit_variables_info returned.
    """
    for name, near in names["unknown"].items():
        yield Finding(
            "variable_unknown",
            "fail",
            f"No role knows the variable {name}.",
            remedy=f"Write {near} instead, or remove it." if near else "",
            subject=host,
        )
    if not names["unknown"]:
        yield Finding("variable_unknown", "pass", "Every variable is one of ours.", subject=host)
    for problem in names["problems"]:
        yield Finding(
            "variable_invalid",
            "fail",
            problem["message"],
            remedy=problem["remedy"],
            subject=host,
        )
    if not names["problems"]:
        count = len(names["instances"])
        yield Finding(
            "variable_invalid",
            "pass",
            f"vllm_instances has {count} valid instance{'' if count == 1 else 's'}.",
            subject=host,
        )


def unsupported(facts: Mapping[str, Any]) -> str:
    """Return why a host can't be managed, in words; an empty text when it can.

    Args:
        facts: Ansible's facts of it.
    """
    if facts.get("system") != "Linux":
        return f"it runs {facts.get('system', 'an unknown system')}, not Linux"
    if facts.get("service_mgr") != "systemd":
        return f"its init is {facts.get('service_mgr', 'unknown')}, not systemd"
    if facts.get("os_family") not in OS_FAMILIES:
        return (
            f"it is {facts.get('distribution', 'an unknown distribution')} of the "
            f"{facts.get('os_family', 'unknown')} family, not one of {', '.join(OS_FAMILIES)}"
        )
    version = str(facts.get("python_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < MINIMUM_PYTHON:
        return f"Ansible uses Python {version} there, older than 3.9"
    return ""


def _platform(host: str, facts: Mapping[str, Any], looked: Mapping[str, Any]) -> Iterator[Finding]:
    reason = unsupported(facts)
    remedy = ""
    if not reason and looked and not looked["systemd"]:
        reason = "systemd is installed, but does not run as its init, as in many containers"
    elif not reason and looked and looked["uid"] != 0:
        reason = f"the tasks run as uid {looked['uid']}, not as root"
        remedy = "Set become: true, with a user that may become root."
    if reason:
        yield Finding(
            "host_unsupported",
            "fail",
            f"{host} can't be managed: {reason}.",
            remedy=remedy,
            subject=host,
        )
        return
    yield Finding(
        "host_unsupported",
        "pass",
        f"{facts.get('distribution')} {facts.get('distribution_version')} with systemd, "
        f"{facts.get('architecture')}, Python {facts.get('python_version')}.",
        subject=host,
    )


def nofile(instance: Mapping[str, Any], given: int) -> Finding:
    """Return whether the open files that services get are enough for an instance.

    Args:
        instance: A normalised instance.
        given: The variable host_limits_nofile.
    """
    name, needed = instance["name"], limits.needed_nofile(instance)
    if given < needed:
        return Finding(
            "nofile",
            "fail",
            f"host_limits_nofile is {given}; {name} needs {needed} for max_connections "
            f"{instance['max_connections']}.",
            remedy=f"Set host_limits_nofile to {needed} or more, or lower max_connections.",
            subject=name,
        )
    summary = f"host_limits_nofile is {given}, enough for the {needed} that {name} needs."
    return Finding("nofile", "pass", summary, subject=name)


def port(instance: Mapping[str, Any], held: Mapping[str, Sequence[Mapping[str, Any]]]) -> Finding:
    """Return whether an instance may take its port: it is free, or the instance's own unit has it.

    Args:
        instance: A normalised instance.
        held: ``ports`` of what hostkit_host_info returned.
    """
    name, number = instance["name"], instance["port"]
    unit = f"vllm@{name}.service"
    rivals = [
        one
        for one in held[str(number)]
        if serves(Listener(one["address"], number, 0, 0), instance["host"])
    ]
    strangers = [one for one in rivals if one["units"] != [unit]]
    if strangers:
        return Finding(
            "port_in_use",
            "fail",
            f"Port {number} is taken.",
            evidence=tuple(one["description"] for one in strangers),
            remedy="Stop that process, or give the instance another port.",
            subject=name,
        )
    state = f"held by {unit} itself" if rivals else "free"
    return Finding("port_in_use", "pass", f"Port {number} is {state}.", subject=name)
