"""How much a run that has nothing to do costs, and how soon a ready server is seen to be ready.

Usage: .venv/bin/python benchmarks/site.py [--runs N]

Needs the demo's host (`make demo`). Figures are ratios and medians; nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv/bin"
INVENTORY = "inventories/sandbox"
UNIT = "vllm@chat.service"
FACTS = "- {hosts: vllm_hosts, gather_facts: true, become: true}\n"
SLOWEST = 8


def playbook(path: str | Path) -> tuple[float, str]:
    """Seconds and output of one run against the demo's host."""
    environment = os.environ | {
        "ANSIBLE_CALLBACKS_ENABLED": "ansible.posix.profile_tasks",
        "ANSIBLE_NOCOLOR": "1",
        "PROFILE_TASKS_TASK_OUTPUT_LIMIT": "all",
    }
    started = time.monotonic()
    result = subprocess.run(
        [BIN / "ansible-playbook", "-i", INVENTORY, path],
        cwd=ROOT, env=environment, check=False, capture_output=True, text=True,
    )  # fmt: skip
    seconds = time.monotonic() - started
    if result.returncode != 0:
        sys.exit(f"{path} failed; run `make demo` first.\n{result.stdout[-2000:]}{result.stderr}")
    return seconds, result.stdout


def on_host(*command: str) -> str:
    """Output of a command on the demo's host, as root, over the same SSH."""
    result = subprocess.run(
        [BIN / "ansible", "demo", "-i", INVENTORY, "--become", "-m", "ansible.builtin.command",
         "-a", json.dumps({"argv": command}), "-o"],
        cwd=ROOT, check=True, capture_output=True, text=True,
        env=os.environ | {"ANSIBLE_CALLBACK_RESULT_FORMAT": "json", "ANSIBLE_NOCOLOR": "1"},
    ).stdout  # fmt: skip
    return result.split("(stdout)", 1)[1].replace("\\n", "\n").strip()


def noop(runs: int) -> None:
    """Compare a run of site.yml that changes nothing with gathering facts alone."""
    with tempfile.NamedTemporaryFile("w", suffix=".yml", dir=ROOT / "playbooks") as facts:
        facts.write(FACTS)
        facts.flush()
        base = statistics.median(playbook(facts.name)[0] for _ in range(runs))
    results = [playbook("site.yml") for _ in range(runs)]
    site = statistics.median(seconds for seconds, _ in results)
    output = results[-1][1]
    changed = re.search(r"changed=(\d+)", output)
    tasks = re.findall(r"^(.+?) -{2,} +([\d.]+)s$", output, re.MULTILINE)
    print(f"facts alone      {base:6.1f} s")
    print(f"site.yml, no-op  {site:6.1f} s, {changed[0] if changed else 'no recap'}")
    print(f"ratio            {site / base:6.1f}")
    print(f"tasks            {len(tasks):6d}, {site / max(1, len(tasks)):.2f} s each")
    print("where the time goes:")
    for name, seconds in sorted(tasks, key=lambda task: -float(task[1]))[:SLOWEST]:
        print(f"  {float(seconds):5.1f} s  {name}")


def ready(runs: int) -> None:
    """Measure from the engine's last start-up line to the unit being active."""
    starts, gaps = [], []
    for _ in range(runs):
        on_host("systemctl", "restart", UNIT)
        times = dict(
            line.split("=", 1)
            for line in on_host(
                "systemctl", "show", "--timestamp=us+utc", UNIT,
                "-p", "ExecMainStartTimestamp", "-p", "ActiveEnterTimestamp",
            ).splitlines()
        )  # fmt: skip
        begun, active = (
            float(on_host("date", "-d", times[key], "+%s.%6N"))
            for key in ("ExecMainStartTimestamp", "ActiveEnterTimestamp")
        )
        log = on_host("journalctl", "-u", UNIT, "--since", f"@{begun:.0f}", "-o", "short-unix")
        lines = [line for line in log.splitlines() if "Application startup complete" in line]
        complete = float(lines[-1].split()[0])
        starts.append(active - begun)
        gaps.append(active - complete)
    start, gap = statistics.median(starts), statistics.median(gaps)
    print(f"start to active                          {start:6.2f} s")
    print(
        f"'Application startup complete' to active {gap:6.2f} s "
        f"({min(gaps):.2f} to {max(gaps):.2f})"
    )
    print(f"ratio                                    {gap / start:6.1%} of the start")


def main() -> None:
    """Print both figures."""
    parser = argparse.ArgumentParser(description="Benchmarks of a built host.")
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    noop(runs)
    ready(runs)


if __name__ == "__main__":
    main()
