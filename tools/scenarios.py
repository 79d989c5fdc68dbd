"""Run molecule scenarios one after another, each on hosts of its own, and say how long each took.

Usage: .venv/bin/python tools/scenarios.py bed engine ...

Before the first one, wheels and models that the hosts share are made, and what a killed run left of
these scenarios is removed: molecule believes its state file rather than the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from _core import CPU_LOCK, ROOT

BIN = ROOT / ".venv/bin"
SHARED = (
    (str(BIN / "python"), "tools/wheels.py", "--lock", CPU_LOCK),
    (str(BIN / "python"), "tools/models.py"),
)


def run(*command: str) -> bool:
    """Run a command in the checkout with the environment's programs first; whether it succeeded."""
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def main(scenarios: list[str]) -> int:
    """Run the scenarios; returns the exit status."""
    known = sorted(path.parent.name for path in ROOT.glob("molecule/*/molecule.yml"))
    unknown = [name for name in scenarios if name not in known]
    if unknown or not scenarios:
        print(f"scenarios: no scenario {unknown}; there are {known}", file=sys.stderr)
        return 2
    for command in SHARED:
        if not run(*command):
            return 1
    results: list[tuple[str, bool, float]] = []
    for name in scenarios:
        print(f"\n=== scenario {name}", flush=True)
        started = time.monotonic()
        run("molecule", "reset", "--scenario-name", name)
        passed = run("molecule", "test", "--scenario-name", name)
        results.append((name, passed, time.monotonic() - started))
    print()
    for name, passed, seconds in results:
        print(f"{name:12} {'passed' if passed else 'FAILED'} {seconds:6.0f} s")
    failed = sum(not passed for _, passed, _ in results)
    print(f"scenarios: {len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
