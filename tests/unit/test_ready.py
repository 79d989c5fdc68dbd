from __future__ import annotations

import http.server
import os
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from hostkit import ready

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVER = """
import http.server, sys, time
time.sleep(0.3)
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


class Refusing(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(503)
        self.end_headers()


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def options(port: int) -> dict[str, Any]:
    return {"host": "127.0.0.1", "port": port}


def test_waiting_ends_when_a_process_of_the_same_unit_serves(port: int) -> None:
    with subprocess.Popen([sys.executable, "-c", SERVER, str(port)]) as server:
        try:
            ready.wait(server.pid, os.getpid(), options(port))
            assert server.poll() is None
        finally:
            server.kill()


def test_waiting_ends_at_once_when_the_server_dies(port: int) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as server:
        with pytest.raises(ready.EndedError, match="ended before it was ready"):
            ready.wait(server.pid, os.getpid(), options(port))
        server.wait()


def test_an_answer_of_503_is_not_ready(port: int, sleeper: subprocess.Popen[bytes]) -> None:
    state = ready.Waiting()
    with http.server.HTTPServer(("127.0.0.1", port), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        threading.Timer(0.5, sleeper.kill).start()
        with pytest.raises(ready.EndedError):
            ready.wait(sleeper.pid, os.getpid(), options(port), state)
        server.shutdown()
    assert state.last == "/health answers 503"


def test_a_stranger_who_answers_200_is_not_this_units_server(
    port: int, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Control groups are the machine's; here the waiting process alone is in a unit of its own.
    monkeypatch.setattr(ready, "cgroup_path", lambda pid: "/own" if pid == sleeper.pid else "/x")
    state = ready.Waiting()
    with subprocess.Popen([sys.executable, "-c", SERVER, str(port)]) as server:
        threading.Timer(1.5, sleeper.kill).start()
        with pytest.raises(ready.EndedError):
            ready.wait(sleeper.pid, sleeper.pid, options(port), state)
        server.kill()
    assert f"127.0.0.1:{port} is held by a process of uid" in state.last


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("::", "::1"),
        ("10.0.0.5", "10.0.0.5"),
        ("localhost", "localhost"),
    ],
)
def test_a_server_on_all_addresses_is_reached_on_loopback(host: str, address: str) -> None:
    assert ready.reach(host) == address


class Answering(http.server.BaseHTTPRequestHandler):
    """A healthy server that answers each route with the status that a test has set."""

    statuses: ClassVar[dict[str, int]] = {}

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.statuses.get(self.path, 404))
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def answering() -> Iterator[dict[str, Any]]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {**options(server.server_address[1]), "model": "/m"}
        server.shutdown()


@pytest.mark.parametrize(
    ("statuses", "by"),
    [
        ({"/v1/completions": 200}, "/v1/completions"),
        ({"/v1/completions": 400, "/v1/embeddings": 200}, "/v1/embeddings"),
        ({"/pooling": 200}, "/pooling"),
        ({"/v1/completions": 401}, "/health"),
        ({}, "/health"),
    ],
)
def test_a_server_is_ready_when_its_model_has_answered_by_the_route_it_has(
    answering: dict[str, Any], statuses: dict[str, int], by: str
) -> None:
    Answering.statuses = statuses
    state = ready.Waiting()
    ready.wait(os.getpid(), os.getpid(), answering, state)
    assert state.answered_by == by


def test_a_healthy_server_whose_every_answer_fails_is_not_ready(
    answering: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    Answering.statuses = {"/v1/completions": 500}
    monkeypatch.setattr(ready, "RETRY_SECONDS", 0.01)
    with pytest.raises(ready.NotReadyError, match=r"can't answer: /health answers 200, but .* 500"):
        ready.wait(os.getpid(), os.getpid(), answering)
