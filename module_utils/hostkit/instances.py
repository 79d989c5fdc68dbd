"""`vllm_instances`: what an instance may say, its defaults, and clear errors for the rest.

Checked as a whole and from the values alone, so that a wrong inventory is refused before any host
is touched.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable

VARIABLE = "vllm_instances"

DEFAULTS: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 8000,
    "gpus": [],
    "args": {},
    "environment": {},
    "drain_seconds": 120,
    "start_timeout_seconds": 1800,
    "max_connections": 4096,
    "memory_max": "infinity",
    "shm_size": "50%",
    "sandbox_relax": [],
}
"""Values of the keys that an instance leaves out; `served_name` is then the instance's name."""

KEYS = ("name", "model", "served_name", *DEFAULTS)
"""Every key that an instance may have."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_SIZE = re.compile(r"(\d{1,15})([KMGT]?)")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPTION_NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")


@dataclass(frozen=True)
class Problem:
    """A value that is not allowed.

    Attributes:
        variable: Where it stands, such as ``vllm_instances[1].port``.
        found: The value, as text.
        allowed: What is allowed there, to follow the word "allowed".
        remedy: What to do, one sentence.
    """

    variable: str
    found: str
    allowed: str
    remedy: str

    @property
    def message(self) -> str:
        """The problem in one sentence, without the remedy."""
        return f"{self.variable} is {self.found}; allowed: {self.allowed}."


def normalise(instance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the instance with every key present, keys in the order of `KEYS`.

    Args:
        instance: A valid instance, see `problems`.
    """
    filled = {**DEFAULTS, **{key: value for key, value in instance.items() if value is not None}}
    filled.setdefault("served_name", filled["name"])
    filled["port"] = int(filled["port"])
    return {key: filled[key] for key in KEYS}


def problems(instances: Any) -> list[Problem]:
    """Return everything that is wrong with the list of instances, in the order of the list.

    Args:
        instances: The value of `vllm_instances`, whatever it is.
    """
    if not isinstance(instances, (list, tuple)):
        return [
            Problem(VARIABLE, _show(instances), "a list of instances", "Write it as a YAML list.")
        ]
    found: list[Problem] = []
    for number, instance in enumerate(instances):
        place = f"{VARIABLE}[{number}]"
        if isinstance(instance, Mapping):
            found += _of_one(place, instance)
        else:
            found.append(
                Problem(place, _show(instance), "a mapping with name and model", "Write its keys.")
            )
    return found + _names_used_twice(instances) + _ports_used_twice(instances)


def _of_one(place: str, instance: Mapping[str, Any]) -> list[Problem]:
    found = []
    for key in instance:
        if key not in KEYS:
            near = difflib.get_close_matches(str(key), KEYS, n=1)
            found.append(
                Problem(
                    f"{place}.{key}",
                    "not a key of an instance",
                    ", ".join(KEYS),
                    f"Write {near[0]!r} instead." if near else "Remove it.",
                )
            )
    for key in ("name", "model"):
        if instance.get(key) is None:
            found.append(
                Problem(f"{place}.{key}", "missing", _RULES[key].allowed, f"Give it a {key}.")
            )
    for key, rule in _RULES.items():
        value = instance.get(key)
        if value is not None and not rule.accepts(value):
            found.append(Problem(f"{place}.{key}", _show(value), rule.allowed, rule.remedy(value)))
    return found


@dataclass(frozen=True)
class _Rule:
    accepts: Callable[[Any], bool]
    allowed: str
    remedy: Callable[[Any], str]


def _is_whole(value: Any, low: int, high: int) -> bool:
    if isinstance(value, bool):
        return False
    text = str(value)
    return text.isascii() and text.isdigit() and low <= int(text) <= high


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


def _is_size(value: Any) -> bool:
    """Tell whether a value is a size that systemd and tmpfs both read, of 1 GiB or more."""
    match = None if isinstance(value, bool) else _SIZE.fullmatch(str(value))
    return match is not None and int(match[1]) * 1024 ** " KMGT".index(match[2] or " ") >= 1024**3


def _is_share(value: Any) -> bool:
    match = re.fullmatch(r"(\d{1,3})%", str(value))
    return match is not None and 1 <= int(match[1]) <= 100


def _is_option_table(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(key, str) and _OPTION_NAME.fullmatch(key) and item is not None
        for key, item in value.items()
    )


def _is_environment(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str)
        and _ENVIRONMENT_NAME.fullmatch(name)
        and isinstance(item, (str, int, float))
        and "\n" not in str(item)
        for name, item in value.items()
    )


def _is_gpu_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        _is_whole(item, 0, 1023) or (isinstance(item, str) and item.startswith(("GPU-", "MIG-")))
        for item in value
    )


def _model_remedy(value: Any) -> str:
    if isinstance(value, str) and _HUB_ID.fullmatch(value):
        directory = f"/srv/models/{value.rsplit('/', 1)[1].lower()}"
        return (
            f"Fetch it with `hf download {value} --local-dir {directory}` (the command is in the "
            f"engine's bin directory), write SHA256SUMS beside it, and set model: {directory}."
        )
    return "Give the directory on the host that holds config.json and the weights."


_RULES: dict[str, _Rule] = {
    "name": _Rule(
        lambda value: isinstance(value, str) and bool(_NAME.fullmatch(value)),
        "1 to 32 lower-case letters, digits and inner dashes",
        lambda value: "Rename the instance.",
    ),
    "model": _Rule(
        lambda value: _is_text(value) and value.startswith("/") and ".." not in value.split("/"),
        "the absolute path of a model directory on the host",
        _model_remedy,
    ),
    "served_name": _Rule(
        _is_text,
        "a name on one line",
        lambda value: "Write the name that clients send.",
    ),
    "host": _Rule(
        lambda value: isinstance(value, str) and value.isprintable() and " " not in value,
        "an address of the host",
        lambda value: "Use 127.0.0.1 for this host alone.",
    ),
    "port": _Rule(
        lambda value: _is_whole(value, 1, 65535),
        "a whole number from 1 to 65535",
        lambda value: "Choose a free port, such as 8000.",
    ),
    "gpus": _Rule(
        _is_gpu_list,
        "a list of GPU indexes or UUIDs",
        lambda value: "Take them from `nvidia-smi -L`; an empty list means all.",
    ),
    "args": _Rule(
        _is_option_table,
        "a mapping of vLLM's option names, without leading dashes, to values that are not null",
        lambda value: "Write for example {max_model_len: 8192}.",
    ),
    "environment": _Rule(
        _is_environment,
        "a mapping of environment variables to text or numbers on one line",
        lambda value: "Write for example {VLLM_LOGGING_LEVEL: DEBUG}.",
    ),
    "drain_seconds": _Rule(
        lambda value: _is_whole(value, 1, 86400),
        "a whole number of seconds from 1 to 86400",
        lambda value: "Use 120 unless answers take longer; 0 would cut requests in flight.",
    ),
    "start_timeout_seconds": _Rule(
        lambda value: _is_whole(value, 1, 86400),
        "a whole number of seconds from 1 to 86400",
        lambda value: "Use 1800 unless the model loads for longer.",
    ),
    "max_connections": _Rule(
        lambda value: _is_whole(value, 1, 500000),
        "a whole number of connections from 1 to 500000",
        lambda value: "Use 4096 unless more clients are connected at one time.",
    ),
    "memory_max": _Rule(
        lambda value: value == "infinity" or _is_size(value),
        "infinity, or bytes with an optional suffix K, M, G or T, at least 1G",
        lambda value: "Write for example 64G; infinity sets no limit.",
    ),
    "shm_size": _Rule(
        lambda value: _is_share(value) or _is_size(value),
        "a share of the memory from 1% to 100%, or bytes with an optional suffix K, M, G or T, at "
        "least 1G",
        lambda value: "Use 50% unless the host's memory is needed elsewhere.",
    ),
    "sandbox_relax": _Rule(
        lambda value: (
            isinstance(value, (list, tuple))
            and all(isinstance(one, str) and re.fullmatch("[A-Za-z]+", one) for one in value)
        ),
        "a list of names of sandbox directives",
        lambda value: "Write for example [IPAddressDeny]; an empty list relaxes nothing.",
    ),
}


def _names_used_twice(instances: Sequence[Any]) -> list[Problem]:
    first: dict[str, int] = {}
    found = []
    for number, instance in enumerate(instances):
        name = instance.get("name") if isinstance(instance, Mapping) else None
        if not isinstance(name, str):
            continue
        if name in first:
            found.append(
                Problem(
                    f"{VARIABLE}[{number}].name",
                    f"{_show(name)}, like {VARIABLE}[{first[name]}].name",
                    "a name of its own for each instance",
                    "Rename one of the two.",
                )
            )
        first.setdefault(name, number)
    return found


def _ports_used_twice(instances: Sequence[Any]) -> list[Problem]:
    seen: list[tuple[int, int, str]] = []
    found = []
    for number, instance in enumerate(instances):
        if not isinstance(instance, Mapping):
            continue
        port = instance.get("port") or DEFAULTS["port"]
        host = str(instance.get("host") or DEFAULTS["host"])
        if not _is_whole(port, 1, 65535):
            continue
        for other, other_port, other_host in seen:
            if int(port) == other_port and _overlap(host, other_host):
                found.append(
                    Problem(
                        f"{VARIABLE}[{number}].port",
                        f"{port} on {host}, like {VARIABLE}[{other}] on {other_host}",
                        "a port of its own for each instance",
                        f"Set another port there; {DEFAULTS['port']} is the default.",
                    )
                )
                break
        seen.append((number, int(port), host))
    return found


def _overlap(one: str, other: str) -> bool:
    return one == other or _means_all(one) or _means_all(other)


def _means_all(host: str) -> bool:
    """Say whether a host stands for all addresses, and so clashes with each of them."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
