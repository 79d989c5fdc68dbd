"""Names of variables: which ones the roles know, and what a misspelt one was meant to be."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


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
