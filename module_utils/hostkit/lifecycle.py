"""The steps around a server that its unit runs.

``prepare``, before the server, as root: waits after a death, ends leftovers of the instance,
refuses to start over strangers, and records what the server starts with. ``check``, as the
service's user in its sandbox: whether the model can be read and the cache has room. ``wait``, after
the start: until the server has answered. ``stop``: sends SIGTERM to the API server, which drains,
and ends it when it hangs after that. ``ended``, after the last process: records why, removes
leftovers, and decides whether the server starts again.

Exit status 0: done; 1: failed, with one message that says why and what to do; 2: wrong use.
``ended`` ends with 1 whenever nobody had asked for the end, so that systemd counts every death as a
failure, also one in which vLLM ends with 0.
"""

from __future__ import annotations

import argparse
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import leftovers, life, metrics, ready, unit
from .config import read_config
from .files import write_text
from .procfs import cgroup_path, pids, read_process, start_ticks
from .ready import NotReadyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

HANG_SECONDS = 10
"""How long the API server may outlive its engine: an orderly end takes 1 to 5 s after it."""

GRACE_SECONDS = 2
"""What a server that is still loading gets between SIGTERM, which it ignores, and SIGKILL."""

CACHE_BYTES = 512 * 1024**2
"""Free space that the cache directory must have: compiled kernels of one model take up to that."""

MODEL_SUFFIXES = (
    ".bin", ".gguf", ".jinja", ".json", ".model", ".pt", ".py", ".safetensors", ".tiktoken", ".txt",
)  # fmt: skip
"""Files of a model directory that an engine reads."""

JOURNAL_LINES = 15


class RefusedError(Exception):
    """The server must not start; the text says why and what to do.

    Attributes:
        final: Whether another try would end the same way.
    """

    def __init__(self, text: str, *, final: bool) -> None:
        """Keep the reason."""
        super().__init__(text)
        self.final = final


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a step; see the top of this module."""
    parser = argparse.ArgumentParser(prog="vllm-unit")
    parser.add_argument("step", choices=tuple(STEPS))
    parser.add_argument("name", help="name of the instance")
    parser.add_argument("--engine", type=Path, default=Path("/opt/vllm/current"))
    parser.add_argument("--config-root", type=Path, default=Path("/etc/vllm"))
    parser.add_argument("--cache-root", type=Path, default=Path("/var/cache/vllm"))
    parser.add_argument("--user", default="vllm", help="user that the server runs as")
    given = parser.parse_args(arguments)
    places = unit.Places(given.engine, given.config_root, cache_root=given.cache_root)
    try:
        return STEPS[given.step](given.name, places, given.user)
    except (NotReadyError, RefusedError, OSError) as error:
        say(given.name, str(error))
        return 1


def say(name: str, text: str) -> None:
    """Write one line to the journal."""
    sys.stderr.write(f"vllm-unit: {unit.unit_name(name)}: {text}\n")
    sys.stderr.flush()


# Before the server


def prepare(name: str, places: unit.Places, user: str) -> int:
    """Make way for the server; see the top of this module.

    Raises:
        RefusedError: The server must not start.
        OSError: A file can't be read or written.
    """
    record = life.begin(life.read(name, places), time.time(), int(_shown(name, "NRestarts") or 0))
    life.write(name, places, record)

    def stopped() -> None:
        _note(name, places, "stop_requested_at", time.time())
        sys.exit(0)

    _on_term(stopped)
    try:
        _pause(name, float(record["not_before"]))
        _end_leftovers(name, places, user)
        options = _options(name, places)
        held = ready.strangers_on_port(options)
        if held:
            raise RefusedError(
                f"port in use: {held[0].describe()}. "
                "Stop that process or give the instance another port.",
                final=False,
            )
    except RefusedError as error:
        _note(name, places, "refused", {"summary": str(error), "final": error.final})
        raise
    found = unit.inputs(name, places)
    if _shown(name, "NeedDaemonReload") == "yes":
        found["unit"] = unit.NOT_LOADED
    write_text(
        places.record(name), unit.render_record(os.environ.get("INVOCATION_ID", ""), found), 0o644
    )
    return 0


def check(name: str, places: unit.Places, _user: str) -> int:
    """Find out, as the service's user in its sandbox, whether the server can use its files.

    Raises:
        RefusedError: The model can't be read or the cache has no room.
    """
    model = Path(str(_options(name, places)["model"]))
    try:
        files = [path for path in sorted(model.iterdir()) if path.suffix in MODEL_SUFFIXES]
        for path in files:
            with path.open("rb") as file:
                file.read(1)
    except OSError as error:
        raise RefusedError(
            f"the model can't be read: {error.filename or model}: {error.strerror}. Let the "
            "service's user read it and enter each directory above it; for one that the sandbox "
            "hides, see sandbox_relax.",
            final=True,
        ) from None
    if "config.json" not in [path.name for path in files] and not any(
        path.suffix == ".gguf" for path in files
    ):
        raise RefusedError(f"{model} holds no model: there is no config.json in it.", final=True)
    cache = Path(os.environ.get("HOME", "/"))
    free = shutil.disk_usage(cache).free
    if free < CACHE_BYTES:
        raise RefusedError(
            f"{cache} has {free // 1024**2} MiB free, the server's caches need "
            f"{CACHE_BYTES // 1024**2} MiB. Free some space on its file system.",
            final=True,
        )
    return 0


def wait(name: str, places: unit.Places, _user: str) -> int:
    """Wait until the server that systemd has just started, ``$MAINPID``, has answered.

    Raises:
        NotReadyError: It won't; also when systemd ends the waiting.
    """
    main_pid = int(os.environ["MAINPID"])
    began = time.monotonic()
    limit = int(os.environ.get("HOSTKIT_START_SECONDS", "0"))
    state = ready.Waiting()

    def stopped() -> None:
        late = bool(limit) and time.monotonic() - began >= limit - 1
        if not late:
            _note(name, places, "stop_requested_at", time.time())
        # vLLM ignores SIGTERM for as long as it loads, and nobody has a request in flight yet.
        _kill_after(main_pid, GRACE_SECONDS)
        if late:
            raise NotReadyError(
                f"not ready after {limit} s ({state.last}). Raise start_timeout_seconds of the "
                "instance when it only needs longer"
            )
        say(name, f"stopped before the server was ready ({state.last})")
        sys.exit(0)

    _on_term(stopped)
    say(name, f"waiting for the first answer{f', at most {limit} s' if limit else ''}")
    ready.wait(main_pid, os.getpid(), _options(name, places), state)
    _note(name, places, "ready_at", time.time())
    proof = state.answered_by
    if proof == "/health":
        say(name, "ready by its health alone: none of the questions known here fits its model")
    else:
        say(name, f"ready: {proof} answered after {time.monotonic() - began:.1f} s")
    return 0


# The end


def stop(name: str, places: unit.Places, _user: str) -> int:
    """Have the server drain and end; end it when it hangs after its time to drain.

    systemd runs this also when the server has ended by itself, then without ``$MAINPID``.
    """
    main_pid = int(os.environ.get("MAINPID") or 0)
    born = start_ticks(main_pid) if main_pid else None
    if born is None:
        return 0
    _note(name, places, "stop_requested_at", time.time())
    options = _options(name, places)
    drain = int(os.environ.get("HOSTKIT_DRAIN_SECONDS", "0"))
    running = metrics.running(options)
    say(name, f"draining: {_requests(running)} in flight, at most {drain} s")
    began = time.monotonic()
    if "shutdown-timeout" not in options:
        # This engine would cut what is in flight, so wait for it here; it can't refuse new ones.
        while running and time.monotonic() - began < drain and start_ticks(main_pid) == born:
            time.sleep(0.5)
            running = metrics.running(options)
    _signal(main_pid, signal.SIGTERM)
    cgroup = cgroup_path(os.getpid())
    alone_since: float | None = None
    while start_ticks(main_pid) == born:
        now = time.monotonic()
        alone = not _engine_processes(cgroup, main_pid)
        alone_since = (alone_since or now) if alone else None
        if (alone_since and now - alone_since > HANG_SECONDS) or now - began > drain + 20:
            said = (
                f"cut off after {now - began:.0f} s: the API server did not end by itself, since "
                "requests were still open when the time to drain was over"
            )
            _note(name, places, "cut_off", f"It was stopped and {said}.")
            say(name, f"{said}. Raise drain_seconds of the instance when answers take longer.")
            _signal(main_pid, signal.SIGKILL)
            break
        time.sleep(0.1)
    return 0


def ended(name: str, places: unit.Places, user: str) -> int:
    """Record why the server ended, remove what it left, and decide whether it starts again."""
    record = life.read(name, places)
    asked = record.get("stop_requested_at") is not None
    said = _journal(name)
    end = life.End(
        result=os.environ.get("SERVICE_RESULT", ""),
        code=os.environ.get("EXIT_CODE", ""),
        status=os.environ.get("EXIT_STATUS", ""),
        oom_kills=_oom_kills(),
        lines=[] if asked else unit.relevant_lines(said, JOURNAL_LINES),
        **life.seen(said),
        at=time.time(),
    )
    _end_leftovers(name, places, user, final=True)
    verdict = life.judge(record, end)
    life.write(name, places, verdict.record)
    if verdict.asked:
        return 0
    last = verdict.record["last_end"]
    for line in last["evidence"]:
        say(name, f"| {line}")
    say(name, f"{last['summary']} It {last['next']}.")
    if not verdict.restart:
        # Only a stop keeps systemd from starting it again; one that is ending already stays failed.
        subprocess.run(
            ["systemctl", "stop", "--no-block", unit.unit_name(name)], check=False, timeout=20
        )
    return 1


# What the steps need


def _options(name: str, places: unit.Places) -> dict[str, Any]:
    path = places.instance(name) / "config.yaml"
    try:
        options = read_config(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        text = f"{path} is missing. Run the playbook to write it anew."
        raise RefusedError(text, final=True) from None
    except ValueError as error:
        text = f"{path}: {error}. Run the playbook to write it anew."
        raise RefusedError(text, final=True) from None
    if not {"port", "host", "model"} <= options.keys():
        text = f"{path} lacks host, port or model. Run the playbook to write it anew."
        raise RefusedError(text, final=True)
    return options


def _shown(name: str, prop: str) -> str:
    shown = subprocess.run(
        ["systemctl", "show", "--value", f"--property={prop}", unit.unit_name(name)],
        capture_output=True,
        text=True,
        check=False,
    )
    return shown.stdout.strip()


def _note(name: str, places: unit.Places, key: str, value: Any) -> None:
    life.write(name, places, {**life.read(name, places), key: value})


def _on_term(action: Callable[[], None]) -> None:
    """Do something when systemd ends this step. A status other than 0 would fail a wanted stop."""

    def handle(_signal: int, _frame: FrameType | None) -> None:
        action()

    signal.signal(signal.SIGTERM, handle)


def _pause(name: str, until: float) -> None:
    seconds = min(until - time.time(), life.LONGEST_DELAY_SECONDS)
    if seconds > 0.5:
        say(name, f"starting in {seconds:.0f} s, since it died before")
        time.sleep(seconds)


def _end_leftovers(name: str, places: unit.Places, user: str, *, final: bool = False) -> None:
    """End processes and remove files that an earlier run of this instance has left.

    Raises:
        RefusedError: They can't be ended or removed, before a start.
    """
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        return
    found = leftovers.processes(uid, name, places.cache_root)
    for one in found:
        say(name, f"ending a leftover of this instance: pid {one.pid} ({one.name})")
    stubborn = leftovers.end(found)
    left = leftovers.files(uid)
    try:
        leftovers.remove(left)
    except OSError as error:
        say(name, f"can't remove what was left: {error}")
    if left:
        say(name, f"removed {len(left)} left files: {', '.join(map(str, left[:5]))}")
    if stubborn and not final:
        listed = ", ".join(f"{one.pid} ({one.name})" for one in stubborn)
        raise RefusedError(
            f"processes of an earlier run can't be ended: {listed}. They may hang in the kernel; "
            "look at `ps -o stat,wchan` of them, and restart the host when nothing else helps.",
            final=False,
        )


def _engine_processes(cgroup: str | None, main_pid: int) -> list[int]:
    """Return the unit's processes beside the API server, this step and its kind left out."""
    found = []
    for pid in pids():
        if pid != main_pid and cgroup is not None and cgroup_path(pid) == cgroup:
            process = read_process(pid)
            if process and process.uid != 0 and "resource_tracker" not in process.command:
                found.append(pid)
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _kill_after(pid: int, seconds: float) -> None:
    """End a process that has been told to end, when it has not done so in time."""
    born = start_ticks(pid)
    deadline = time.monotonic() + seconds
    while born is not None and start_ticks(pid) == born:
        if time.monotonic() > deadline:
            _signal(pid, signal.SIGKILL)
            return
        time.sleep(0.05)


def _requests(running: int | None) -> str:
    if running is None:
        return "unknown requests"
    return f"{running} request{'' if running == 1 else 's'}"


def _oom_kills() -> int:
    """Return how many processes of this unit the kernel has ended for want of memory.

    memory.events of cgroup v2, memory.oom_control of v1; both count kills in the unit's own group.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            file = Path(f"/sys/fs/cgroup{path}/memory.events")
        elif "memory" in controllers.split(","):
            file = Path(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
        else:
            continue
        try:
            counts = dict(row.split() for row in file.read_text(encoding="ascii").splitlines())
        except (OSError, ValueError):
            continue
        return int(counts.get("oom_kill", 0))
    return 0


def _journal(name: str) -> list[str]:
    """Return what the server said in this run of the unit."""
    command = ["journalctl", "--quiet", "--no-pager", "--output=cat", "--lines=2000"]
    invocation = os.environ.get("INVOCATION_ID")
    if not invocation:
        return []
    try:
        ran = subprocess.run(
            [*command, f"_SYSTEMD_INVOCATION_ID={invocation}", f"--unit={unit.unit_name(name)}"],
            capture_output=True,
            check=False,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = ran.stdout.decode(errors="replace").splitlines()
    return [line for line in lines if not line.startswith("vllm-unit:")]


STEPS: dict[str, Callable[[str, unit.Places, str], int]] = {
    "prepare": prepare,
    "check": check,
    "wait": wait,
    "stop": stop,
    "ended": ended,
}
