"""The files of one instance: vLLM's own configuration file, its environment, its unit's drop-in.

Facts about vLLM are of 0.32 and 0.33; ``load_config_file`` below is the function of that name in
vllm/utils/argparse_utils.py, which turns the file into command-line options.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from . import sandbox
from .instances import VARIABLE, Problem, normalise
from .instances import problems as instance_problems

MARKER = "# Managed by vllm-hostkit: the next run of the playbook overwrites changes made here.\n"
"""First line of every file that this toolkit writes for an instance."""

STOP_MARGIN_SECONDS = 30
"""Time after the drain: vLLM's orderly end takes 5 to 12 s, its workers' limit is 9 s."""

OWNED_OPTIONS = {
    "device-ids": "gpus",
    "host": "host",
    "model": "model",
    "model-tag": "model",
    "port": "port",
    "served-model-name": "served_name",
    "shutdown-timeout": "drain_seconds",
}
"""Options of vLLM that are set by a key of the instance."""

REFUSED_OPTIONS = {
    "api-key": "Remove it: every local reader of the configuration would see the key.",
    "config": "Remove it: the role writes that file.",
    "headless": "Remove it: a server without its API can't be checked for readiness.",
    "hf-token": "Remove it: a local model directory needs no token.",
    "uds": "Remove it: the server is reached on its host and port.",
}
"""Options that this service has no place for, each with what to do."""

_SECRET_NAME = re.compile(r"(^|_)(TOKEN|API_?KEY|SECRET|PASSWORD)$")
_ESCAPED = re.compile(r'(["\\$`])')


def problems(instances: Any) -> list[Problem]:
    """Return everything in `vllm_instances` that the service can't be made from.

    Args:
        instances: The value of `vllm_instances`, whatever it is.
    """
    found = instance_problems(instances)
    if found:
        return found
    for number, instance in enumerate(instances):
        full = normalise(instance)
        place = f"{VARIABLE}[{number}]"
        if full["port"] < 1024:
            found.append(
                Problem(
                    f"{place}.port",
                    str(full["port"]),
                    "a port from 1024, since the server runs without privileges",
                    "Choose one above, such as 8000, and put a proxy in front of it.",
                )
            )
        found += _of_sandbox(place, full)
        found += _of_args(f"{place}.args", full["args"])
        found += _of_environment(f"{place}.environment", full["environment"])
    return found


def server_config(instance: Mapping[str, Any]) -> dict[str, Any]:
    """Return vLLM's options for an instance, named as on its command line without the dashes.

    Args:
        instance: An instance without `problems`.
    """
    full = normalise(instance)
    return {
        "model": full["model"],
        "served-model-name": full["served_name"],
        "host": full["host"],
        "port": full["port"],
        "shutdown-timeout": int(full["drain_seconds"]),
        **{option_name(key): value for key, value in sorted(full["args"].items())},
    }


def render_config(instance: Mapping[str, Any]) -> str:
    """Return the text of the configuration file, one option a line, each value written as JSON.

    JSON is YAML too, so vLLM reads it, and so can a command that has no YAML parser at hand.
    """
    lines = [f"{key}: {_json(value)}\n" for key, value in server_config(instance).items()]
    return MARKER + "".join(lines)


def read_config(text: str) -> dict[str, Any]:
    """Return the options in a configuration file that `render_config` made.

    Raises:
        ValueError: A line is not ``name: JSON``, because the file was edited by hand.
    """
    options = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        key, colon, value = line.partition(": ")
        try:
            options[key] = json.loads(value)
        except ValueError:
            colon = ""
        if not colon:
            raise ValueError(f"line {number} is not an option with a JSON value: {key!r}")
    return options


def server_environment(instance: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables of one instance, beside those of the unit itself.

    vLLM gives its engine 600 s to load (VLLM_ENGINE_READY_TIMEOUT_S); it follows the instance's
    limit here and ends somewhat earlier, so that vLLM can still say what it was waiting for.
    """
    full = normalise(instance)
    timeout = int(full["start_timeout_seconds"])
    variables = {"VLLM_ENGINE_READY_TIMEOUT_S": str(max(timeout - 30, timeout // 2, 1))}
    if full["gpus"]:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in full["gpus"])
    return {**variables, **{key: str(value) for key, value in full["environment"].items()}}


def render_environment(instance: Mapping[str, Any]) -> str:
    """Return the text of the environment file, quoted as systemd.exec(5) reads it."""
    lines = [
        f'{key}="{_ESCAPED.sub(_backslash, value)}"\n'
        for key, value in sorted(server_environment(instance).items())
    ]
    return MARKER + "".join(lines)


def stop_timeout(instance: Mapping[str, Any]) -> int:
    """Return the seconds after which systemd kills a server that is still stopping."""
    return int(normalise(instance)["drain_seconds"]) + STOP_MARGIN_SECONDS


def render_drop_in(instance: Mapping[str, Any]) -> str:
    """Return what systemd needs to know about one instance."""
    full = normalise(instance)
    start, drain = int(full["start_timeout_seconds"]), int(full["drain_seconds"])
    return MARKER + (
        "[Unit]\n"
        f"RequiresMountsFor={_quote(full['model'])}\n"
        "\n"
        "[Service]\n"
        f"TimeoutStartSec={start}\n"
        f"TimeoutStopSec={stop_timeout(instance)}\n"
        f"Environment=HOSTKIT_START_SECONDS={start} HOSTKIT_DRAIN_SECONDS={drain}\n"
        f"MemoryMax={full['memory_max']}\n"
        f"{sandbox.lines(full)}"
    )


def _quote(path: str) -> str:
    """Return a path as unit files take it: quoted, with specifiers and escapes doubled."""
    text = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"'


def option_name(key: str) -> str:
    """Return vLLM's name of an option: ``max_model_len`` and ``max-model-len`` are one."""
    return key.replace("_", "-")


def _of_sandbox(place: str, instance: Mapping[str, Any]) -> list[Problem]:
    found = []
    for number, name in enumerate(instance["sandbox_relax"]):
        if name not in sandbox.UNDO:
            near = sandbox.near(name)
            found.append(
                Problem(
                    f"{place}.sandbox_relax[{number}]",
                    repr(name),
                    "a directive of the unit's sandbox",
                    f"Write {near!r} instead." if near else "docs/sandbox.md lists them.",
                )
            )
    hiding = sandbox.hidden_by(instance["model"], instance["sandbox_relax"])
    if hiding:
        found.append(
            Problem(
                f"{place}.model",
                repr(instance["model"]),
                f"a directory that {hiding} of the unit's sandbox does not hide from the server",
                f"Move it, such as to /srv/models, or name {hiding} in sandbox_relax.",
            )
        )
    return found


def _of_args(place: str, args: Mapping[str, Any]) -> list[Problem]:
    found = []
    first: dict[str, str] = {}
    for key, value in args.items():
        name = option_name(key)
        if name in OWNED_OPTIONS:
            owner = OWNED_OPTIONS[name]
            remedy = f"Remove it and set the instance's own key {owner!r}."
            found.append(Problem(f"{place}.{key}", "set", "options other than this", remedy))
        elif name in REFUSED_OPTIONS:
            found.append(
                Problem(f"{place}.{key}", "set", "options other than this", REFUSED_OPTIONS[name])
            )
        elif name in first:
            found.append(
                Problem(
                    f"{place}.{key}",
                    f"the same option as {first[name]!r}",
                    "each option once",
                    "Remove one of the two.",
                )
            )
        elif not _is_value(value):
            found.append(
                Problem(
                    f"{place}.{key}",
                    repr(value),
                    "text on one line that is no option itself, a finite number, a boolean, a list "
                    "of text and numbers, or a mapping",
                    "Write the value as vLLM's documentation of the option shows it.",
                )
            )
        first.setdefault(name, key)
    return found


def _is_value(value: Any) -> bool:
    """Tell whether ``load_config_file`` carries a value over as meant.

    A list's items and a plain value go through str(), so null becomes the word None and a mapping
    in a list becomes Python's text of it; text that begins with a dash is read as an option.
    """
    if isinstance(value, Mapping):
        return _is_json(value)
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) and not isinstance(item, bool) for item in value)
    return _is_plain(value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        is_option = value.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", value)
        return value.isprintable() and not is_option
    return isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))


def _is_json(value: Any) -> bool:
    try:
        _json(value)
    except (TypeError, ValueError):
        return False
    return True


def _of_environment(place: str, variables: Mapping[str, Any]) -> list[Problem]:
    found = []
    for name, value in variables.items():
        if name == "CUDA_VISIBLE_DEVICES":
            remedy = "Remove it and set the instance's own key 'gpus'."
            found.append(Problem(f"{place}.{name}", "set", "variables other than this", remedy))
        elif _SECRET_NAME.search(name):
            remedy = "Remove it: the environment of a process is no place for a secret."
            found.append(Problem(f"{place}.{name}", "set", "variables without secrets", remedy))
        elif isinstance(value, bool) or not str(value).isprintable():
            found.append(
                Problem(
                    f"{place}.{name}",
                    repr(value),
                    "text on one line or a number",
                    'Write "1" or "0" where the variable is a switch.',
                )
            )
    return found


def _backslash(match: re.Match[str]) -> str:
    return "\\" + match.group(1)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True)
