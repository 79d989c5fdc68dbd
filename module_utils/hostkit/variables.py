"""Names of variables: which ones the roles know, and what a misspelt one was meant to be."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

from .instances import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_RULES = {
    "vllm_cache_root": (
        re.compile(r"/var/cache/[^/.]"),
        "a directory below /var/cache, where systemd makes it for the service alone",
        "To use another disk, mount or link it there.",
    ),
}
"""What a type can't say: pattern of the value's beginning, what is allowed, what to do."""

_TYPES = {
    "bool": "true or false",
    "dict": "a mapping",
    "float": "a number",
    "int": "a whole number",
    "list": "a list",
    "path": "a path",
    "str": "a text",
}
"""Ansible's types of options in words."""


def checkable(spec: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return type, elements and choices of the variables of one role, as far as they are stated.

    Lists of mappings are left out: `instances` checks those.

    Args:
        spec: The content of the role's `meta/argument_specs.yml`.
    """
    main = (spec.get("argument_specs") or {}).get("main") or {}
    return {
        name: {key: option[key] for key in ("type", "elements", "choices") if key in option}
        for name, option in (main.get("options") or {}).items()
        if option.get("elements") != "dict"
    }


def refused(name: str, value: Any, option: Mapping[str, Any]) -> Problem:
    """Return the problem of a value that its role's argument spec does not allow.

    Args:
        name: The variable.
        value: Its value.
        option: What `checkable` returned for it.
    """
    kind = str(option.get("type", "str"))
    allowed = _TYPES.get(kind, kind)
    if "elements" in option:
        allowed += f", each {_TYPES.get(option['elements'], option['elements'])}"
    if "choices" in option:
        allowed = " or ".join(str(choice) for choice in option["choices"])
    return Problem(name, repr(value), allowed, f"Correct {name} in the inventory.")


def problems(values: Mapping[str, Any], specs: Iterable[Mapping[str, Any]]) -> list[Problem]:
    """Return what is wrong with values beyond their types: relative paths, and single rules.

    Args:
        values: Values of the variables, by name.
        specs: What `checkable` returned, one for each role.
    """
    found = []
    for name, option in ((name, option) for spec in specs for name, option in spec.items()):
        value = values.get(name)
        if option.get("type") == "path" and value is not None and not str(value).startswith("/"):
            remedy = f"Write {name} as a full path."
            found.append(Problem(name, repr(value), "a path that begins with /", remedy))
        elif name in values and name in _RULES and not _RULES[name][0].match(str(value)):
            found.append(Problem(name, repr(value), *_RULES[name][1:]))
    return found


def options(spec: Mapping[str, Any]) -> set[str]:
    """Return the variables of one role, those of all its entry points.

    Args:
        spec: The content of the role's `meta/argument_specs.yml`.
    """
    entry_points = (spec.get("argument_specs") or {}).values()
    return {name for entry in entry_points for name in (entry or {}).get("options") or {}}


def prefixes(roles: Iterable[str]) -> list[str]:
    """Return the prefixes under which these roles' public variables live, shortest first.

    A prefix that begins with another one is left out: `vllm_` covers `vllm_engine_`.
    """
    result: list[str] = []
    for prefix in sorted((f"{role}_" for role in roles), key=lambda text: (len(text), text)):
        if not prefix.startswith(tuple(result)):
            result.append(prefix)
    return result


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like this one, or an empty text when none is near."""
    matches = difflib.get_close_matches(name, sorted(known), n=1)
    return matches[0] if matches else ""


def unknown(names: Iterable[str], known: Iterable[str], roles: Iterable[str]) -> dict[str, str]:
    """Return the names that carry one of our prefixes but that no role knows.

    Args:
        names: Names of all variables that a host has.
        known: Names that the roles know.
        roles: Names of the roles, from which the prefixes follow.

    Returns:
        Each unknown name, sorted, with the nearest known one or an empty text.
    """
    known = set(known)
    ours = tuple(prefixes(roles))
    strangers = sorted({name for name in names if name.startswith(ours)} - known)
    return {name: nearest(name, known) for name in strangers}
