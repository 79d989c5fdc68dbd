"""Write each role's variable table into its README from meta/argument_specs.yml.

Usage: .venv/bin/python tools/docs.py [--check]

The table stands between two markers; everything else in the README is written by hand. With --check
nothing is written, and the exit status is 1 when a README is not current.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
BEGIN = "<!-- variables:begin -->"
END = "<!-- variables:end -->"

# The documentation markup of Ansible: C(code), O(option), V(value), B(bold), I(italic), U(url).
MARKUP = (
    (re.compile(r"\b[COVM]\(([^)]*)\)"), r"`\1`"),
    (re.compile(r"\bB\(([^)]*)\)"), r"**\1**"),
    (re.compile(r"\bI\(([^)]*)\)"), r"*\1*"),
    (re.compile(r"\bU\(([^)]*)\)"), r"<\1>"),
    (re.compile(r"\bL\(([^,)]*),\s*([^)]*)\)"), r"[\1](\2)"),
)


def markdown(text: str | list[str]) -> str:
    """One table cell from a description: paragraphs joined, markup turned into Markdown."""
    joined = " ".join([text] if isinstance(text, str) else text)
    for pattern, replacement in MARKUP:
        joined = pattern.sub(replacement, joined)
    return " ".join(joined.split()).replace("|", "\\|")


def literal(value: Any) -> str:
    """A default as YAML would write it on one line."""
    dumped = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return "`" + dumped.replace("\n...", "").strip().replace("|", "\\|") + "`"


def rows(options: dict[str, dict[str, Any]], prefix: str = "") -> list[str]:
    """Table rows of an argument spec; the keys of a nested one follow their parent."""
    table = []
    for name, option in options.items():
        kind = option.get("type", "str")
        if "elements" in option:
            kind = f"{kind} of {option['elements']}"
        if option.get("required"):
            default = "**required**"
        elif "default" in option:
            default = literal(option["default"])
        else:
            default = "-"
        text = markdown(option["description"])
        if "choices" in option:
            text += " One of " + ", ".join(f"`{choice}`" for choice in option["choices"]) + "."
        table.append(f"| `{prefix}{name}` | {kind} | {default} | {text} |")
        if "options" in option:
            table += rows(option["options"], f"{prefix}{name}[].")
    return table


def section(spec: dict[str, Any]) -> str:
    """The generated section: a table for each entry point that has options."""
    lines = [BEGIN]
    for name, entry in spec["argument_specs"].items():
        title = f"**{markdown(entry['short_description'])}**"
        head = ["| variable | type | default | meaning |", "| --- | --- | --- | --- |"]
        if name != "main":
            head = [title, "", *head]
        if entry.get("options"):
            lines += ["", *head, *rows(entry["options"])]
    return "\n".join([*lines, "", END])


def updated(readme: str, spec: dict[str, Any], name: str) -> str:
    """The README's text with its generated section made anew."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1:
        raise SystemExit(f"{name} must have the markers {BEGIN} and {END} once each.")
    before, rest = readme.split(BEGIN)
    return before + section(spec) + rest.split(END)[1]


def main() -> int:
    """Update or check every role's README; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit 1 on a difference"
    )
    check = parser.parse_args().check
    stale = []
    for path in sorted(ROOT.glob("roles/*/meta/argument_specs.yml")):
        readme = path.parent.parent / "README.md"
        text = readme.read_text()
        wanted = updated(text, yaml.safe_load(path.read_text()), str(readme.relative_to(ROOT)))
        if wanted != text:
            stale.append(str(readme.relative_to(ROOT)))
            if not check:
                readme.write_text(wanted)
    if stale and check:
        print("not current, run `make docs`:", *stale, sep="\n  ", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
