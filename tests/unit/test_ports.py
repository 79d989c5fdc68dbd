from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from hostkit import ports

if TYPE_CHECKING:
    from collections.abc import Iterator

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000   998        0 4711 1
   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 100 1
   2: 0100007F:1F40 0100007F:9C40 01 00000000:00000000 00:00000000 00000000   998        0 4712 1
"""
TCP6 = """\
  sl  local_address                         remote_address                        st
   0: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A \
00000000:00000000 00:00000000 00000000     0        0 200 1
"""


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_only_listening_sockets_count() -> None:
    assert ports.parse_listeners(TCP) == [
        ports.Listener("127.0.0.1", 8000, 998, 4711),
        ports.Listener("0.0.0.0", 22, 0, 100),
    ]


def test_ipv6_addresses_are_read_word_by_word() -> None:
    assert ports.parse_listeners(TCP6) == [ports.Listener("::1", 8080, 0, 200)]


def test_a_real_listener_is_named_with_its_process(listening: socket.socket) -> None:
    port = listening.getsockname()[1]
    (holder,) = ports.holders(port)
    assert holder.listener.address == "127.0.0.1"
    assert [process.pid for process in holder.processes] == [os.getpid()]
    assert f"127.0.0.1:{port} is held by pid {os.getpid()} (" in holder.describe()


def test_a_port_without_listener_has_no_holder() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert ports.holders(bound.getsockname()[1]) == []


def test_a_holder_outside_the_given_processes_is_not_named(listening: socket.socket) -> None:
    (holder,) = ports.holders(listening.getsockname()[1], among=[1])
    assert holder.processes == ()
    assert f"uid {os.geteuid()} that can't be seen" in holder.describe()


@pytest.mark.parametrize(
    ("bound", "host", "expected"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("10.0.0.5", "127.0.0.1", False),
        ("::", "127.0.0.1", True),
        ("10.0.0.5", "localhost", True),
        ("10.0.0.5", "", True),
    ],
)
def test_a_listener_serves_an_address_when_it_would_take_its_connections(
    bound: str, host: str, expected: bool
) -> None:
    assert ports.serves(ports.Listener(bound, 8000, 0, 1), host) is expected
