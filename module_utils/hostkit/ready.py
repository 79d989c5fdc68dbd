"""When a server is ready: its unit alone holds the port, it is healthy, and it has answered.

Health alone is not enough: vLLM says it is healthy where every completion fails, and so does any
other program that holds the port and answers 200.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import ssl
import time
from typing import TYPE_CHECKING, Any

from . import endpoint
from .ports import Holder, holders, listeners, serves
from .procfs import cgroup_path, pids, read_process, socket_inodes, start_ticks

if TYPE_CHECKING:
    from collections.abc import Mapping

POLL_SECONDS = 0.1

FAILURES = 3
"""Failed first answers in a row after which a healthy server counts as broken."""

RETRY_SECONDS = 1.0
"""Pause after a failed first answer."""


class NotReadyError(Exception):
    """The server will not become ready; the text says why."""


class EndedError(NotReadyError):
    """The server's main process is gone."""


class Waiting:
    """What the server was last seen doing, for the message when its time is over."""

    last = "nothing listens on its port"
    answered_by = ""
    """What gave the first answer, such as ``/v1/completions``."""


def wait(
    main_pid: int, own_pid: int, options: Mapping[str, Any], state: Waiting | None = None
) -> None:
    """Return when the server is ready: its unit alone holds the port, and it answers a request.

    Args:
        main_pid: Process id of the server.
        own_pid: A process of the same unit, whose control group says which processes belong to it.
        options: vLLM's options for the server, `host` and `port` among them.
        state: Told what the server was last seen doing. The time limit is systemd's.

    Raises:
        EndedError: The server ended.
        NotReadyError: It shares its port with a stranger, or is healthy but can't answer.
        OSError: /proc/net can't be read.
    """
    born = start_ticks(main_pid)
    server = read_process(main_pid)
    uid = server.uid if server else -1
    cgroup = cgroup_path(own_pid)
    state = state or Waiting()
    failures = 0
    while True:
        if born is None or start_ticks(main_pid) != born:
            raise EndedError("the server ended before it was ready")
        if any(serves(one, str(options["host"])) for one in listeners(int(options["port"]))):
            ours, strangers = _sort(options, cgroup, uid)
            if ours and strangers:
                raise NotReadyError(f"the port is shared: {strangers[0].describe()}")
            if ours:
                status = health(options)
                state.last = f"/health answers {status or 'nothing'}"
                if status == 200:
                    first = endpoint.first_answer(request(options))
                    if first["ok"]:
                        state.answered_by = str(first["path"])
                        return
                    state.last = f"/health answers 200, but {first['detail']}"
                    failures += 1
                    if failures >= FAILURES and start_ticks(main_pid) == born:
                        raise NotReadyError(f"the server can't answer: {state.last}")
                    time.sleep(RETRY_SECONDS)
            elif strangers:
                state.last = strangers[0].describe()
        time.sleep(POLL_SECONDS)


def strangers_on_port(options: Mapping[str, Any]) -> list[Holder]:
    """Return who already holds the port that a server is about to take."""
    host = str(options["host"])
    return [one for one in holders(int(options["port"])) if serves(one.listener, host)]


def health(options: Mapping[str, Any]) -> int | None:
    """Return the HTTP status of the server's /health, None when it does not answer."""
    connection = connect(options, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def connect(options: Mapping[str, Any], timeout: float) -> http.client.HTTPConnection:
    """Return a connection to a server of this host; nothing is sent yet.

    The process was identified already; the name in its certificate is the clients' concern.

    Args:
        options: vLLM's options for the server.
        timeout: Seconds for the connection and for each part of an answer.
    """
    host, port = reach(str(options["host"])), int(options["port"])
    if not options.get("ssl-certfile"):
        return http.client.HTTPConnection(host, port, timeout=timeout)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)


def request(options: Mapping[str, Any]) -> endpoint.Request:
    """Return how to ask a server for one token.

    The process was identified already; the name in its certificate is the clients' concern.
    """
    scheme = "https" if options.get("ssl-certfile") else "http"
    host = reach(str(options["host"]))
    host = f"[{host}]" if ":" in host else host
    names = options.get("served-model-name") or options.get("model", "")
    return endpoint.Request(
        url=f"{scheme}://{host}:{options['port']}{options.get('root-path', '')}",
        model=str(names[0] if isinstance(names, list) else names),
        max_tokens=1,
        verify_tls=False,
        completion_timeout=600,
    )


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


def _sort(
    options: Mapping[str, Any], cgroup: str | None, uid: int
) -> tuple[list[Holder], list[Holder]]:
    """Return who holds the port: this unit's processes, and others.

    In a container without CAP_SYS_PTRACE not even root sees who holds another user's socket. Then
    the user decides: before the start nobody held the port.
    """
    own = [pid for pid in pids() if cgroup is not None and cgroup_path(pid) == cgroup]
    host = str(options["host"])
    found = [one for one in holders(int(options["port"]), among=own) if serves(one.listener, host)]
    hidden = not any(socket_inodes(pid) for pid in own if pid != os.getpid())
    ours = [
        one for one in found if one.processes or (hidden and uid == one.listener.uid != os.getuid())
    ]
    return ours, [one for one in found if one not in ours]
