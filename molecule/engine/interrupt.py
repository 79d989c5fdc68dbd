#!/usr/bin/env python3
"""Interrupt the installation of the engine at random moments; the next run must end right.

    molecule create -s engine
    molecule/engine/interrupt.py --host engine-airgap --rounds 20

Each round takes the release away or damages it, starts the installation, kills ansible-playbook
and, every other time, the processes on the host that are building, at a random moment. What
``current`` points to must then be whole, damaged as before, or gone, never half a release that
counts as complete. The next run must succeed, leave a whole release and no remains.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
INVENTORIES = ["-i", "molecule/shared/inventory", "-i", "molecule/engine/inventory"]
VICTIM = "lib/python3.11/site-packages/vllm/version.py"

# Whoever holds the lock of the releases is building: the module and the installer it started.
KILL_BUILDERS = r"""
import os, pathlib, signal
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        files = {os.readlink(one) for one in (process / "fd").iterdir()}
    except OSError:
        continue
    if "/opt/vllm/releases/.lock" in files:
        os.kill(int(process.name), signal.SIGKILL)
        print(process.name)
"""


class WrongError(Exception):
    """The toolkit broke its promise."""


def ask(host: str, module: str, arguments: str = "") -> dict[str, Any]:
    """Run one module on the host as root and return its result."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["ansible", host, *INVENTORIES, "-b", "-m", module, "-t", folder]
        command += ["-a", arguments] if arguments else []
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        try:
            result: dict[str, Any] = json.loads((Path(folder) / host).read_text())
        except FileNotFoundError as error:
            raise WrongError(f"{host} did not answer: {done.stdout}{done.stderr}") from error
    return result


def start(host: str, log: Path) -> subprocess.Popen[bytes]:
    """Start the installation in a session of its own."""
    with log.open("wb") as stream:
        return subprocess.Popen(
            ["ansible-playbook", *INVENTORIES, "-l", host, "molecule/engine/converge.yml"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def spoil(host: str, number: int) -> str:
    """Make a build necessary; return how."""
    release = "/opt/vllm/releases/*-cpu-*"
    if number % 2:
        ask(host, "ansible.builtin.shell", f"rm -rf {release} /opt/vllm/current")
        return "release gone"
    ask(host, "ansible.builtin.shell", f"truncate -s 0 {release}/{VICTIM}")
    return "file damaged"


def check_between(host: str, spoiled: str) -> str:
    """Check what an interruption left; return its state in words."""
    state = ask(host, "vllm_release_info")
    release = state["release"]
    if release["complete"]:
        return "complete"
    if spoiled == "file damaged" and release["exists"]:
        if [one["path"] for one in release["damaged"]] != [VICTIM]:
            raise WrongError(f"the damaged release changed: {release}")
        return "damaged as before"
    if release["exists"]:
        raise WrongError(f"half a release is in place: {release['reason']}")
    return "not there"


def check_after(host: str, content: bool = False) -> None:
    """Check that a run ended right."""
    state = ask(host, "vllm_release_info", f"content={content}")
    if not state["release"]["complete"] or state["current"] != state["release"]["name"]:
        raise WrongError(f"the release is not right: {state['release']['reason']}")
    if state["leftovers"]:
        raise WrongError(f"remains: {state['leftovers']}")


def one_round(host: str, number: int, longest: float, folder: Path) -> float:
    """Interrupt once and repair; return the seconds that the repairing run took."""
    spoiled = spoil(host, number)
    moment = random.SystemRandom().uniform(0.5, longest)
    running = start(host, folder / "interrupted.log")
    time.sleep(moment)
    ended = running.poll() is not None
    if not ended:
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    killed = []
    if number % 4 < 2:
        command = f"python3 -c '{KILL_BUILDERS}'"
        killed = ask(host, "ansible.builtin.shell", command)["stdout_lines"]
    between = check_between(host, spoiled)
    began = time.monotonic()
    repairing = start(host, folder / "next.log")
    if repairing.wait():
        raise WrongError(f"the next run failed:\n{(folder / 'next.log').read_text()}")
    seconds = time.monotonic() - began
    check_after(host)
    print(
        f"{number + 1}: {spoiled}; {'ended before' if ended else 'killed after'} {moment:.1f} s"
        f"{' with processes ' + ', '.join(killed) if killed else ''}; left: {between}; "
        f"next run right in {seconds:.0f} s",
        flush=True,
    )
    return seconds


def main() -> int:
    """Run the rounds; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default="engine-airgap")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    os.environ.setdefault("ANSIBLE_CONFIG", str(ROOT / "ansible.cfg"))
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            began = time.monotonic()
            if start(arguments.host, folder / "first.log").wait():
                raise WrongError((folder / "first.log").read_text())
            longest = 40.0
            for number in range(arguments.rounds):
                longest = one_round(arguments.host, number, longest, folder)
            check_after(arguments.host, content=True)
        except WrongError as error:
            print(f"interrupt: {error}", file=sys.stderr)
            return 1
    print(f"{arguments.rounds} interruptions repaired in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
