"""Who listens on a TCP port, read from /proc as the kernel shows it.

A server that has bound its port but does not listen yet, as vLLM while it loads, is not to be seen
here: the kernel lists listeners only.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .procfs import PROC, Process, pids, read_process, socket_inodes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_LISTEN = "0A"
"""State of a listening socket, TCP_LISTEN of include/net/tcp_states.h."""


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket.

    Attributes:
        address: Local address, such as ``127.0.0.1``, ``0.0.0.0`` or ``::``.
        port: Local port.
        uid: User id that made the socket.
        inode: The socket's inode.
    """

    address: str
    port: int
    uid: int
    inode: int


@dataclass(frozen=True)
class Holder:
    """A listener with the processes that hold its socket.

    Attributes:
        listener: The socket.
        processes: Who holds it; empty when no process may be seen (not root, other namespace).
    """

    listener: Listener
    processes: tuple[Process, ...]

    def describe(self) -> str:
        """Return who holds the port, for a message.

        Example: ``127.0.0.1:8000 is held by pid 812 (nginx, /usr/sbin/nginx, unit nginx.service)``.
        """
        where = f"{_bracket(self.listener.address)}:{self.listener.port}"
        if not self.processes:
            return f"{where} is held by a process of uid {self.listener.uid} that can't be seen"
        process = self.processes[0]
        unit = f"unit {process.unit}" if process.unit else "no systemd unit"
        return (
            f"{where} is held by pid {process.pid} "
            f"({process.name}, {process.command}, uid {process.uid}, {unit})"
        )


def parse_listeners(text: str) -> list[Listener]:
    """Return the listening sockets in the text of /proc/net/tcp or /proc/net/tcp6."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN:
            address, _, port = fields[1].rpartition(":")
            found.append(Listener(_address(address), int(port, 16), int(fields[7]), int(fields[9])))
    return found


def listeners(port: int | None = None, proc: Path = PROC) -> list[Listener]:
    """Return this network namespace's listening sockets, all or those on one port.

    Raises:
        OSError: /proc/net/tcp can't be read.
    """
    found = parse_listeners((proc / "net/tcp").read_text(encoding="ascii"))
    six = proc / "net/tcp6"
    if six.exists():  # absent where IPv6 is switched off
        found += parse_listeners(six.read_text(encoding="ascii"))
    return [one for one in found if port in (None, one.port)]


def serves(listener: Listener, host: str) -> bool:
    """Tell whether a connection to an address of this host would reach a listener.

    Args:
        listener: The listening socket.
        host: The address that a server was told to listen on; a name, an empty one or a wildcard
            is taken for all addresses.
    """
    bound = ipaddress.ip_address(listener.address)
    try:
        wanted = ipaddress.ip_address(host)
    except ValueError:
        return True
    return bound.is_unspecified or wanted.is_unspecified or bound == wanted


def holders(port: int, proc: Path = PROC, among: Iterable[int] | None = None) -> list[Holder]:
    """Return who listens on a port; an empty list when nobody does.

    Args:
        port: TCP port.
        proc: Where /proc is mounted.
        among: Process ids to look at, all when None. Others' sockets can be seen by root only.
    """
    sockets = listeners(port, proc)
    if not sockets:
        return []
    owners: dict[int, list[Process]] = {one.inode: [] for one in sockets}
    for pid in pids(proc) if among is None else among:
        held = owners.keys() & socket_inodes(pid, proc)
        process = read_process(pid, proc) if held else None
        if process is not None:
            for inode in held:
                owners[inode].append(process)
    return [Holder(one, tuple(owners[one.inode])) for one in sockets]


def _address(text: str) -> str:
    """Return an address from the kernel's hexadecimal 32-bit words, each in host byte order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    address = ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _bracket(address: str) -> str:
    return f"[{address}]" if ":" in address else address
