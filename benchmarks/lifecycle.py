"""What the steps around a server cost: checks before the start, the stop, the state at a glance.

Usage: .venv/bin/python benchmarks/lifecycle.py [--runs N]

Needs the demo's host (`make demo`). Figures are medians and ratios; nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv/bin"
INVENTORY = "inventories/sandbox"

PROGRAM = """
import json, subprocess, sys, time

UNIT = "vllm@chat.service"
STAMPS = ["InactiveExit", "ExecMainStart", "ActiveEnter",
          "ActiveExit", "ExecMainExit", "InactiveEnter"]

def stamps():
    names = ",".join(f"{name}TimestampMonotonic" for name in STAMPS)
    out = subprocess.check_output(["systemctl", "show", f"--property={names}", UNIT], text=True)
    shown = dict(line.split("=") for line in out.split())
    return [int(shown[f"{name}TimestampMonotonic"]) / 1e6 for name in STAMPS]

def timed(*command):
    began = time.perf_counter()
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began

lives = []
for _ in range(int(sys.argv[1])):
    subprocess.run(["systemctl", "restart", UNIT], check=True)
    began, main, ready, *_ = stamps()
    subprocess.run(["systemctl", "stop", UNIT], check=True)
    *_, asked, gone, over = stamps()
    lives.append({"before": main - began, "start": ready - main, "engine_stop": gone - asked,
                  "stop": over - asked})
subprocess.run(["systemctl", "start", UNIT], check=True)
glances = [{"python": timed("/usr/bin/python3", "-I", "-c", "pass"),
            "systemctl": timed("systemctl", "show", UNIT),
            "status": timed("vllm-status")} for _ in range(10)]
print(json.dumps({"lives": lives, "glances": glances}))
"""


def measure(runs: int) -> dict[str, list[dict[str, float]]]:
    """Run the program on the demo's host, as root, and return what it printed."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
        program.write(PROGRAM)
        program.flush()
        ran = subprocess.run(
            [BIN / "ansible", "demo", "-i", INVENTORY, "--become", "-m", "ansible.builtin.script",
             "-a", f"cmd='{program.name} {runs}' executable=/usr/bin/python3"],
            cwd=ROOT, check=False, capture_output=True, text=True,
            env=os.environ | {"ANSIBLE_CALLBACK_RESULT_FORMAT": "json", "ANSIBLE_NOCOLOR": "1"},
        )  # fmt: skip
    _, brace, text = ran.stdout.partition("{")
    if ran.returncode != 0 or not brace:
        sys.exit(f"The demo's host can't be measured; run `make demo` first.\n{ran.stdout}")
    found: dict[str, list[dict[str, float]]] = json.loads(json.loads(brace + text)["stdout"])
    return found


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    found = measure(parser.parse_args().runs)

    def median(part: str, key: str) -> float:
        return statistics.median(row[key] for row in found[part])

    before, start = median("lives", "before"), median("lives", "start")
    stop, engine = median("lives", "stop"), median("lives", "engine_stop")
    base = median("glances", "python") + median("glances", "systemctl")
    status = median("glances", "status")
    print(f"checks before the start  {before:6.2f} s, {100 * before / start:.1f} % of the start")
    print(f"start, to first answer   {start:6.2f} s")
    print(f"idle stop                {stop:6.2f} s, {stop / engine:.2f} of the engine's own end")
    print(f"vllm-status              {status:6.2f} s, {status / base:.2f} of python and systemctl")
    return 0


if __name__ == "__main__":
    sys.exit(main())
