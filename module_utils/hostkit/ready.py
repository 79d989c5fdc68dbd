"""Around the start of a unit: who holds its port, what it starts with, when it is ready.

The command ``vllm-ready`` of this module runs before the server (``prepare``) and after it
(``wait``). Exit status 0: done; 1: the server can't start or did not become ready, with one message
that says why and what to do; 2: wrong use.
"""

from __future__ import annotations

import argparse
import http.client
import ipaddress
import os
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import unit
from .config import read_config
from .files import write_text
from .ports import Holder, holders, listeners, serves
from .procfs import cgroup_path, pids, start_ticks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

POLL_SECONDS = 0.1


class NotReadyError(Exception):
    """The server will not become ready; the text says why."""


class EndedError(NotReadyError):
    """The server's main process is gone."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; see the top of this module."""
    parser = argparse.ArgumentParser(prog="vllm-ready")
    parser.add_argument("step", choices=("prepare", "wait"))
    parser.add_argument("name", help="name of the instance")
    parser.add_argument("--engine", type=Path, default=Path("/opt/vllm/current"))
    parser.add_argument("--config-root", type=Path, default=Path("/etc/vllm"))
    given = parser.parse_args(arguments)
    places = unit.Places(given.engine, given.config_root)
    step = prepare if given.step == "prepare" else wait_for_main
    try:
        step(given.name, places)
    except (NotReadyError, OSError) as error:
        sys.stderr.write(f"vllm-ready: {unit.unit_name(given.name)}: {error}\n")
        return 1
    return 0


def prepare(name: str, places: unit.Places) -> None:
    """Refuse to start over a stranger on the port, else record what this start uses.

    Raises:
        NotReadyError: The port is held, or the configuration can't be read.
        OSError: A file can't be read or written.
    """
    held = strangers_on_port(_options(name, places))
    if held:
        raise NotReadyError(
            f"port in use: {held[0].describe()}. "
            "Stop that process or give the instance another port."
        )
    found = unit.inputs(name, places)
    if _unit_is_stale(name):
        found["unit"] = unit.NOT_LOADED
    places.record_root.mkdir(mode=0o755, exist_ok=True)
    write_text(
        places.record(name), unit.render_record(os.environ.get("INVOCATION_ID", ""), found), 0o644
    )


def wait_for_main(name: str, places: unit.Places) -> None:
    """Wait for the server that systemd has just started, ``$MAINPID``.

    Raises:
        NotReadyError: See `wait`; also when systemd ends the waiting because its time is over.
    """
    look = f"See why: journalctl -u {unit.unit_name(name)} -n 100"
    state = Waiting()

    def stopped(_signal: int, _frame: FrameType | None) -> None:
        raise NotReadyError(
            f"the start was ended before the server was ready ({state.last}). "
            f"If its time was over, raise start_timeout_seconds of the instance. {look}"
        )

    signal.signal(signal.SIGTERM, stopped)
    try:
        wait(int(os.environ["MAINPID"]), os.getpid(), _options(name, places), state)
    except KeyError:
        raise NotReadyError("$MAINPID is not set; systemd runs this as ExecStartPost") from None
    except EndedError as error:
        raise NotReadyError(f"{error}. {look}") from None


class Waiting:
    """What the server was last seen doing, for the message when its time is over."""

    last = "nothing listens on its port"


def wait(
    main_pid: int, own_pid: int, options: Mapping[str, Any], state: Waiting | None = None
) -> None:
    """Return when the server is ready: its unit alone holds the port and /health answers 200.

    Args:
        main_pid: Process id of the server.
        own_pid: A process of the same unit, whose control group says which processes belong to it.
        options: vLLM's options for the server, `host` and `port` among them.
        state: Told what the server was last seen doing. The time limit is systemd's.

    Raises:
        EndedError: The server ended.
        NotReadyError: It shares its port with a stranger.
        OSError: /proc/net can't be read.
    """
    born = start_ticks(main_pid)
    cgroup = cgroup_path(own_pid)
    state = state or Waiting()
    while True:
        if born is None or start_ticks(main_pid) != born:
            raise EndedError("the server ended before it was ready")
        if any(serves(one, str(options["host"])) for one in listeners(int(options["port"]))):
            ours, strangers = _sort(options, cgroup)
            if ours and strangers:
                raise NotReadyError(f"the port is shared: {strangers[0].describe()}")
            if ours:
                status = health(options)
                if status == 200:
                    return
                state.last = f"/health answers {status or 'nothing'}"
            elif strangers:
                state.last = strangers[0].describe()
        time.sleep(POLL_SECONDS)


def strangers_on_port(options: Mapping[str, Any]) -> list[Holder]:
    """Return who already holds the port that a server is about to take."""
    host = str(options["host"])
    return [one for one in holders(int(options["port"])) if serves(one.listener, host)]


def health(options: Mapping[str, Any]) -> int | None:
    """Return the HTTP status of the server's /health, None when it does not answer."""
    host = reach(str(options["host"]))
    port = int(options["port"])
    connection: http.client.HTTPConnection
    if options.get("ssl-certfile"):
        # The process was identified already; the name in its certificate is the clients' concern.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=5, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def reach(host: str) -> str:
    """Return the address at which this host reaches a server that listens on `host`."""
    if not host:
        return "127.0.0.1"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    return host


def _options(name: str, places: unit.Places) -> dict[str, Any]:
    path = places.instance(name) / "config.yaml"
    try:
        options = read_config(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise NotReadyError(f"{path}: {error}. Run the playbook to write it anew.") from None
    if "port" not in options or "host" not in options:
        raise NotReadyError(f"{path} lacks host or port. Run the playbook to write it anew.")
    return options


def _unit_is_stale(name: str) -> bool:
    """Tell whether systemd is about to use older unit files than those on disk."""
    shown = subprocess.run(
        ["systemctl", "show", "--property=NeedDaemonReload", unit.unit_name(name)],
        capture_output=True,
        text=True,
        check=False,
    )
    return shown.stdout.strip() == "NeedDaemonReload=yes"


def _sort(options: Mapping[str, Any], cgroup: str | None) -> tuple[list[Holder], list[Holder]]:
    """Return who holds the port: this unit's processes, and others."""
    own = [pid for pid in pids() if cgroup is not None and cgroup_path(pid) == cgroup]
    host = str(options["host"])
    found = [one for one in holders(int(options["port"]), among=own) if serves(one.listener, host)]
    return [one for one in found if one.processes], [one for one in found if not one.processes]
