from __future__ import annotations

import http.server
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from hostkit import metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a} b"} 3.0
vllm:num_requests_running{engine="1",model_name="a} b"} 2.0
vllm:num_requests_waiting{engine="0",model_name="a} b"} 1.0
python_gc_objects_collected_total{generation="0"} NaN
broken line
"""


@pytest.fixture
def server() -> Iterator[dict[str, Any]]:
    class Metrics(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(TEXT.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Metrics) as one:
        threading.Thread(target=one.serve_forever, daemon=True).start()
        yield {"host": "127.0.0.1", "port": one.server_address[1]}
        one.shutdown()


def test_the_load_is_the_sum_over_all_engines(server: dict[str, Any]) -> None:
    assert metrics.load(server) == {"running": 5, "waiting": 1}
    assert metrics.running(server) == 6


def test_a_server_that_does_not_answer_tells_no_load() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert metrics.load({"host": "127.0.0.1", "port": port}, timeout=0.1) is None
    assert metrics.load({"host": "127.0.0.1", "port": port}) is None
