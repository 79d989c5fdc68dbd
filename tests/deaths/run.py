"""Kill a process of a running vLLM unit in every way and at every moment, and see what follows.

Runs as root on a host that serves an instance: ``run.py INSTANCE MATRIX [--sample]``.
The matrix is a Markdown table, one death a row, with what has to follow; see matrix.md. Prints the
same table with what was seen, and ends with 1 when a row is not as the matrix says.

Standard library and the core that is installed on the host.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import pwd
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, "/usr/local/lib/vllm-hostkit")

from hostkit import leftovers, life, procfs, ready, unit
from hostkit.config import read_config

TOKENS = 3000
"""Length of the streamed answer: 5 to 15 s with the tests' model, longer than any signal takes."""

MEMORY_ROOM = 256 * 1024**2
"""How far above its use a unit's memory is limited for an out-of-memory kill."""

HOG = f"""
block = bytearray({2 * MEMORY_ROOM})
for at in range(0, len(block), 4096):
    block[at] = 1
"""

COLUMNS = ("signal", "process", "phase", "client", "cause", "next", "ci")


class Client(threading.Thread):
    """One streamed request, and how it ended."""

    def __init__(self, port: int, model: str) -> None:
        super().__init__(daemon=True)
        self.port, self.model = port, model
        self.started = threading.Event()
        self.outcome = "none"

    def run(self) -> None:
        asked = {"model": self.model, "prompt": "Once", "max_tokens": TOKENS, "ignore_eos": True,
                 "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip
        tokens, error = 0, False
        try:
            server = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
            server.request(
                "POST", "/v1/completions", json.dumps(asked), {"Content-Type": "application/json"}
            )
            for line in server.getresponse():
                text = line.decode().removeprefix("data: ").strip()
                if text and text != "[DONE]":
                    self.started.set()
                    chunk = json.loads(text)
                    error = error or "error" in chunk
                    tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
        except (OSError, http.client.HTTPException, ValueError):
            error = True
        self.outcome = "all" if tokens == TOKENS and not error else "cut"
        self.started.set()


class Unit:
    """The instance under test."""

    def __init__(self, name: str) -> None:
        self.name, self.unit = name, unit.unit_name(name)
        self.places = unit.Places(Path("/opt/vllm/current"), Path("/etc/vllm"))
        self.options = read_config((self.places.instance(name) / "config.yaml").read_text())
        self.port = int(self.options["port"])
        self.model = str(self.options["served-model-name"])
        self.uid = pwd.getpwnam("vllm").pw_uid

    def control(self, *words: str) -> None:
        subprocess.run(["systemctl", *words, self.unit], check=True, stderr=subprocess.DEVNULL)

    def show(self, prop: str) -> str:
        return subprocess.run(
            ["systemctl", "show", "--value", f"--property={prop}", self.unit],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip

    def wait_for(self, what: Any, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if what():
                return True
            time.sleep(0.05)
        return False

    def serve(self) -> None:
        """Have the unit active, and so few deaths on its record that one more does not end it."""
        deaths = life.read(self.name, self.places)["deaths"]
        if self.show("ActiveState") != "active" or len(deaths) > life.DEATH_LIMIT - 3:
            subprocess.run(["systemctl", "reset-failed", self.unit], check=False)
            self.control("restart")

    def processes(self) -> dict[str, int]:
        """Return the pids of API server, engine core and worker, as far as they are there."""
        parents: dict[int, int] = {}
        for one in procfs.processes_of_unit(self.unit):
            if one.uid == self.uid and "resource_tracker" not in one.command:
                try:
                    stat = Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                parents[one.pid] = int(stat[1])
        main = int(self.show("MainPID") or 0)
        found = {"API server": main} if main in parents else {}
        core = [pid for pid, parent in parents.items() if parent == main]
        if core:
            found["engine core"] = core[-1]
            workers = [pid for pid, parent in parents.items() if parent == core[-1]]
            if workers:
                found["worker"] = workers[-1]
        return found

    def end_since(self, began: float) -> dict[str, Any]:
        """Return how the unit ended after a moment, when all that belongs to it is gone."""
        last: dict[str, Any] = life.read(self.name, self.places).get("last_end", {})
        over = last.get("at", 0.0) >= began and not self.show("SubState").startswith("stop")
        return last if over else {}

    def left(self, old: dict[str, int | None]) -> list[str]:
        """Return what the ended server has left behind, in words."""
        found = [f"process {pid}" for pid, born in old.items()
                 if born is not None and procfs.start_ticks(int(pid)) == born]  # fmt: skip
        current = {one.pid for one in procfs.processes_of_unit(self.unit)}
        found += [
            f"process {one.pid} {one.name}"
            for one in leftovers.processes(self.uid, self.name)
            if one.pid not in current
        ]
        found += [str(path) for path in leftovers.files(self.uid)]
        return found


def kill(server: Unit, number: str, pid: int) -> None:
    if number != "memory":
        os.kill(pid, getattr(signal, number))
        return
    used = int(server.show("MemoryCurrent"))
    server_limit = f"MemoryMax={used + MEMORY_ROOM}"
    subprocess.run(
        ["systemctl", "set-property", "--runtime", server.unit, server_limit], check=True
    )
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
    groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    hog = subprocess.Popen([sys.executable, "-c", f"input()\n{HOG}"], stdin=subprocess.PIPE,
                           stderr=subprocess.DEVNULL)  # fmt: skip
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            tasks = Path(f"/sys/fs/cgroup/{controllers}{path}/cgroup.procs")
            if tasks.exists():
                tasks.write_text(str(hog.pid))
    hog.communicate(b"\n")


def die(server: Unit, row: dict[str, str]) -> dict[str, str]:
    """Bring one death about and return what was seen, under the names of the columns."""
    client: Client | None = None
    if row["phase"] == "loading":
        server.control("stop")
        server.control("start", "--no-block")
        assert server.wait_for(lambda: row["process"] in server.processes(), 120)
        time.sleep(2)
    else:
        server.serve()
    if row["phase"] in ("streaming", "draining"):
        client = Client(server.port, server.model)
        client.start()
        client.started.wait(60)
    if row["phase"] == "draining":
        server.control("stop", "--no-block")
        time.sleep(1)
    victims = server.processes()
    old = {str(pid): procfs.start_ticks(pid) for pid in victims.values()}
    began = time.time()
    kill(server, row["signal"], victims[row["process"]])
    ended = server.wait_for(lambda: server.end_since(began), 120)
    seconds = time.time() - began
    record = server.end_since(began)
    left = server.left(old)
    if client:
        client.join(60)
    if row["signal"] == "memory":
        subprocess.run(
            ["systemctl", "set-property", "--runtime", server.unit, "MemoryMax=infinity"],
            check=True,
        )
    if server.show("ActiveState") in ("inactive", "failed"):
        server.control("start")
    works = server.wait_for(lambda: server.show("ActiveState") == "active", 180)
    works = works and ready.health(server.options) == 200
    return {
        **row,
        "client": client.outcome if client else "-",
        "cause": record["cause"] if ended else "none",
        "next": "restart" if record.get("next", "").startswith("starts") else "down",
        "seconds": f"{seconds:.1f}",
        "left": ", ".join(left) or "nothing",
        "next start": "works" if works else "FAILS",
    }


def rows(text: str) -> list[dict[str, str]]:
    """Return the rows of the Markdown table."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        is_row = line.startswith("|") and len(cells) == len(COLUMNS)
        if is_row and cells[0] != "signal" and not set(cells[0]) <= set("-: "):
            found.append(dict(zip(COLUMNS, cells)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("instance")
    parser.add_argument("matrix", type=Path)
    parser.add_argument("--sample", action="store_true", help="only the rows marked for CI")
    parser.add_argument("--only", default="", help="only rows that hold all of these words")
    given = parser.parse_args()
    server = Unit(given.instance)
    wrong = 0
    shown = (
        "signal",
        "process",
        "phase",
        "client",
        "cause",
        "next",
        "seconds",
        "left",
        "next start",
    )
    print("| " + " | ".join(shown) + " |\n|" + " --- |" * len(shown), flush=True)
    for row in rows(given.matrix.read_text()):
        if given.sample and not row["ci"]:
            continue
        if not all(word in " ".join(row.values()) for word in given.only.split()):
            continue
        seen = die(server, row)
        good = (
            all(seen[key] in row[key].split(" or ") for key in ("client", "cause", "next"))
            and seen["left"] == "nothing"
            and seen["next start"] == "works"
        )
        wrong += not good
        print("| " + " | ".join(seen[key] for key in shown) + " |" + ("" if good else " WRONG"),
              flush=True)  # fmt: skip
    print(f"{wrong} rows are not as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
