from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from hostkit.endpoint import Request, ask

if TYPE_CHECKING:
    from collections.abc import Iterator

# A server that speaks vLLM's interface as far as a client's check needs it. Answers follow what
# `vllm serve` 0.32.0 sends: bodies, statuses, server-sent events, error objects.


@dataclass
class Behaviour:
    """How the server behaves, and what it was asked."""

    model: str = "chat"
    version: str = "0.32.0"
    api_key: str = ""
    pieces: tuple[str, ...] = (" Paris", ".")
    dead_engine: bool = False
    fail_completions: bool = False
    fail_in_stream: bool = False
    cut_stream: bool = False
    first_token_delay: float = 0.0
    raw_version: bytes | None = None
    requests: list[tuple[str, str]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)


def error(message: str, kind: str, status: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def _handler(behaviour: Behaviour) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_args: Any, **_more: Any) -> None:
            pass

        def reply(self, status: int, body: Any = None) -> None:
            content = b"" if body is None else json.dumps(body).encode()
            if isinstance(body, bytes):
                content = body
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def refused(self) -> bool:
            behaviour.requests.append((self.command, self.path))
            given = self.headers.get("Authorization", "")
            if (
                self.path.startswith("/v1")
                and behaviour.api_key
                and given != f"Bearer {behaviour.api_key}"
            ):
                self.reply(401, {"error": "Unauthorized"})
                return True
            return False

        def do_GET(self) -> None:
            if self.refused():
                return
            if self.path == "/health":
                self.reply(503 if behaviour.dead_engine else 200)
            elif self.path == "/version" and behaviour.raw_version is not None:
                self.reply(200, behaviour.raw_version)
            elif self.path == "/version":
                self.reply(200, {"version": behaviour.version})
            elif self.path == "/v1/models":
                entry = {"id": behaviour.model, "object": "model", "max_model_len": 512}
                self.reply(200, {"object": "list", "data": [entry]})
            else:
                self.reply(404, {"detail": "Not Found"})

        def do_POST(self) -> None:
            if self.refused():
                return
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            behaviour.bodies.append(body)
            if body["model"] != behaviour.model:
                message = f"The model `{body['model']}` does not exist."
                self.reply(404, error(message, "NotFoundError", 404))
                return
            if behaviour.fail_completions:
                message = "EngineCore encountered an issue."
                self.reply(500, error(message, "InternalServerError", 500))
                return
            time.sleep(behaviour.first_token_delay)
            self.stream(chat=self.path.startswith("/v1/chat"))

        def stream(self, *, chat: bool) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.end_headers()
            if chat:
                self.event(
                    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
                )
            for number, piece in enumerate(behaviour.pieces):
                last = number == len(behaviour.pieces) - 1
                choice: dict[str, Any] = {"index": 0, "finish_reason": "stop" if last else None}
                choice |= {"delta": {"content": piece}} if chat else {"text": piece}
                self.event({"choices": [choice], "usage": None})
                if behaviour.fail_in_stream:
                    self.event(error("EngineDeadError", "InternalServerError", 500))
                    return
                if behaviour.cut_stream:
                    return
            self.event({"choices": [], "usage": {"completion_tokens": len(behaviour.pieces)}})
            self.wfile.write(b"data: [DONE]\n\n")

        def event(self, data: dict[str, Any]) -> None:
            self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
            self.wfile.flush()

    return Handler


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[str]:
    """Run the server on a free port of the loopback address and give its base address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(behaviour))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answers(behaviour: Behaviour, **wanted: Any) -> dict[str, Any]:
    with serving(behaviour) as url:
        return ask(Request(**{"url": url, "model": "chat", "connect_timeout": 5.0, **wanted}))


def test_a_healthy_server_gives_version_models_and_a_timed_completion() -> None:
    found = answers(Behaviour(first_token_delay=0.05))
    assert found["health"] == {"ok": True, "status": 200, "error": "", "detail": ""}
    assert found["version"]["version"] == "0.32.0"
    assert found["models"]["names"] == ["chat"]
    completion = found["completion"]
    assert (completion["text"], completion["tokens"]) == (" Paris.", 2)
    assert completion["finish_reason"] == "stop"
    assert 0.05 <= completion["ttft_seconds"] <= completion["seconds"] < 5


def test_a_chat_is_asked_with_messages_and_its_role_chunk_is_no_token() -> None:
    behaviour = Behaviour()
    found = answers(behaviour, chat=True, prompt="Hello")
    assert found["completion"]["text"] == " Paris."
    assert behaviour.bodies[0]["messages"] == [{"role": "user", "content": "Hello"}]
    assert ("POST", "/v1/chat/completions") in behaviour.requests


def test_tokens_that_are_no_text_count_as_an_answer() -> None:
    found = answers(Behaviour(pieces=("", "")))
    assert found["completion"]["ok"]
    assert found["completion"]["tokens"] == 2


def test_a_key_is_sent_and_a_missing_one_is_unauthorized() -> None:
    assert answers(Behaviour(api_key="sk-1"), api_key="sk-1")["completion"]["ok"]
    found = answers(Behaviour(api_key="sk-1"))
    assert found["health"]["ok"]
    assert [found[key]["error"] for key in ("models", "completion")] == ["unauthorized"] * 2
    assert found["completion"]["status"] == 401


def test_a_key_that_no_header_can_carry_is_refused_without_showing_it() -> None:
    with pytest.raises(ValueError, match="characters that no header can carry") as refusal:
        ask(Request(url="http://127.0.0.1:9", model="chat", api_key="sk-1\n"))
    assert "sk-1" not in str(refusal.value)


def test_another_served_name_is_model_not_found_with_the_servers_words() -> None:
    completion = answers(Behaviour(model="other"))["completion"]
    assert (completion["error"], completion["status"]) == ("model_not_found", 404)
    assert "The model `chat` does not exist." in completion["detail"]


def test_a_dead_engine_is_unhealthy() -> None:
    health = answers(Behaviour(dead_engine=True))["health"]
    assert (health["ok"], health["error"], health["status"]) == (False, "server_error", 503)


def test_a_server_that_is_healthy_but_cannot_complete_is_told_apart() -> None:
    found = answers(Behaviour(fail_completions=True))
    assert found["health"]["ok"]
    assert (found["completion"]["error"], found["completion"]["status"]) == ("server_error", 500)
    assert "EngineCore encountered an issue." in found["completion"]["detail"]


def test_an_error_inside_a_stream_is_no_completion() -> None:
    completion = answers(Behaviour(fail_in_stream=True))["completion"]
    assert (completion["ok"], completion["error"]) == (False, "server_error")
    assert completion["detail"] == "EngineDeadError"


def test_a_stream_that_is_cut_is_no_completion() -> None:
    completion = answers(Behaviour(cut_stream=True))["completion"]
    assert (completion["ok"], completion["error"]) == (False, "bad_answer")


def test_a_slow_completion_ends_at_its_timeout() -> None:
    found = answers(Behaviour(first_token_delay=1.0), completion_timeout=0.2)
    assert found["completion"]["error"] == "timeout"


def test_a_closed_port_is_refused_and_the_rest_is_not_asked() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # bound but not listening, as vLLM is while it loads
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        found = ask(Request(url=url, model="chat"))
    assert found["health"]["error"] == "refused"
    assert {found[key]["error"] for key in ("version", "models", "completion")} == {"skipped"}


def test_a_listener_that_never_answers_is_a_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        found = ask(Request(url=url, model="chat", connect_timeout=0.2, completion_timeout=0.2))
    assert {found[key]["error"] for key in ("health", "completion")} == {"timeout"}


def test_something_else_that_speaks_http_is_a_bad_answer() -> None:
    assert answers(Behaviour(raw_version=b"<html>"))["version"]["error"] == "bad_answer"
    assert answers(Behaviour(raw_version=b"[]"))["version"]["error"] == "bad_answer"


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert answers(Behaviour())["completion"]["ok"]


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://"])
def test_an_address_that_is_none_is_refused_with_the_right_form(url: str) -> None:
    with pytest.raises(ValueError, match="write http://HOST:PORT"):
        ask(Request(url=url, model="chat"))
