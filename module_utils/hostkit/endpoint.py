"""Ask a vLLM server what a client would ask: health, version, models, and one streamed completion.

Speaks to the address it is given and to nothing else: `http.client` knows no proxies, so that
`http_proxy` in the environment of a host can't stand between this check and the server.

Sources: vLLM 0.32.0, `vllm serve` (routes `/health`, `/version`, `/v1/models`,
`/v1/completions`, `/v1/chat/completions`; server-sent events that end in `data: [DONE]`).
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

MAXIMUM_BODY = 4 * 1024 * 1024
"""Bytes read of one answer: far above every answer asked for here, far below a host's memory."""


@dataclass(frozen=True)
class Request:
    """What to ask.

    Attributes:
        url: Base address, ``http://`` or ``https://`` with host and port, without a path to an API.
        model: Name of the model to ask for.
        prompt: Text to complete.
        max_tokens: Longest answer, in tokens.
        chat: Ask `/v1/chat/completions`, which needs a chat template, instead of `/v1/completions`.
        api_key: Key for the server, or an empty text.
        connect_timeout: Seconds for the connection and for each short answer.
        completion_timeout: Seconds for the whole completion.
        verify_tls: Refuse a certificate that the system does not trust, for https.
    """

    url: str
    model: str
    prompt: str = "The capital of France is"
    max_tokens: int = 16
    chat: bool = False
    api_key: str = ""
    connect_timeout: float = 10.0
    completion_timeout: float = 120.0
    verify_tls: bool = True


class _RefusedError(Exception):
    """A question that got no usable answer.

    Attributes:
        error: Class of the failure, see `ask`.
        detail: What was seen, one line.
        status: HTTP status, or None when there was no HTTP answer.
    """

    def __init__(self, error: str, detail: str, status: int | None = None) -> None:
        super().__init__(detail)
        self.error = error
        self.detail = detail
        self.status = status


def ask(request: Request, clock: Callable[[], float] = time.monotonic) -> dict[str, Any]:
    """Ask the server everything and return what it said; a failure is a state, not an exception.

    Args:
        request: What to ask, and whom.
        clock: Seconds that only go forward.

    Returns:
        ``health``, ``version``, ``models`` and ``completion``, each a mapping with ``ok``,
        ``status`` (HTTP status or None), ``error`` and ``detail``, and with their answers:
        ``version.version``; ``models.names``; ``completion.text``, ``tokens``, ``finish_reason``,
        ``ttft_seconds`` (request sent to first token) and ``seconds`` (to the last).
        ``error`` is empty, or one of: refused, timeout, name_resolution, network, tls,
        unauthorized, model_not_found, not_found, bad_request, server_error, bad_answer, skipped.

    Raises:
        ValueError: When the address is none that can be asked.
    """
    base = urlsplit(request.url)
    if base.scheme not in ("http", "https") or not base.hostname:
        raise ValueError(
            f"{request.url!r} is no address of a server; write http://HOST:PORT or https://HOST:PORT"
        )
    if not (request.api_key.isascii() and request.api_key.isprintable()):
        raise ValueError("the API key holds characters that no header can carry")
    health = _answer(lambda: _health(request))
    result: dict[str, Any] = {"url": request.url, "health": health}
    if health["error"] in ("refused", "name_resolution", "network", "tls"):
        reason = f"not asked, since {request.url} could not be reached"
        skipped = {"ok": False, "status": None, "error": "skipped", "detail": reason}
        return {**result, "version": skipped, "models": skipped, "completion": skipped}
    result["version"] = _answer(lambda: _version(request))
    result["models"] = _answer(lambda: _models(request))
    result["completion"] = _answer(lambda: _completion(request, clock))
    return result


FIRST_QUESTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"prompt": "Once", "max_tokens": 1}),
    ("/v1/embeddings", {"input": "Once"}),
    ("/pooling", {"input": "Once"}),
    ("/classify", {"input": "Once"}),
    ("/score", {"text_1": "Once", "text_2": "Twice"}),
)
"""What to ask of a server whose task is not known, one forward pass each. Which of the routes exist
depends on the model: a generating one knows the first, a pooling one some of the rest."""

_OTHER_TASK = (400, 404, 405, 422, 501)
"""Statuses of a server that works, but not for this question."""


def first_answer(request: Request) -> dict[str, Any]:
    """Ask a server for one answer of its model, by whichever route this model has.

    Args:
        request: Whom to ask, and the name of the model.

    Returns:
        ``ok``, ``path`` (the route that answered, or ``/health`` when the server knows none of
        `FIRST_QUESTIONS` or wants a key that is not given here), ``error`` and ``detail`` as `ask`.
    """
    for path, question in FIRST_QUESTIONS:
        connection = _connect(request)
        try:
            body = {"model": request.model, **question}
            _send(connection, request, "POST", path, body).read(MAXIMUM_BODY)
        except _RefusedError as refusal:
            if refusal.error == "unauthorized":
                break
            if refusal.status in _OTHER_TASK:
                continue
            return {"ok": False, "path": path, "error": refusal.error, "detail": refusal.detail}
        except (OSError, http.client.HTTPException) as error:
            told = _network(error, f"POST {path}")
            return {"ok": False, "path": path, "error": told.error, "detail": told.detail}
        else:
            return {"ok": True, "path": path, "error": "", "detail": ""}
        finally:
            connection.close()
    return {"ok": True, "path": "/health", "error": "", "detail": ""}


def _answer(question: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return {"ok": True, "status": 200, "error": "", "detail": "", **question()}
    except _RefusedError as refusal:
        return {
            "ok": False,
            "status": refusal.status,
            "error": refusal.error,
            "detail": refusal.detail,
        }


def _health(request: Request) -> dict[str, Any]:
    _get(request, "/health")
    return {}


def _version(request: Request) -> dict[str, Any]:
    version = _json(_get(request, "/version")).get("version")
    if not isinstance(version, str):
        raise _RefusedError("bad_answer", "/version names no version", 200)
    return {"version": version}


def _models(request: Request) -> dict[str, Any]:
    entries = _json(_get(request, "/v1/models")).get("data")
    if not isinstance(entries, list):
        raise _RefusedError("bad_answer", "/v1/models lists no models", 200)
    return {
        "names": [str(item["id"]) for item in entries if isinstance(item, dict) and "id" in item]
    }


def _completion(request: Request, clock: Callable[[], float]) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": request.model,
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.chat:
        path = "/v1/chat/completions"
        body["messages"] = [{"role": "user", "content": request.prompt}]
    else:
        path = "/v1/completions"
        body["prompt"] = request.prompt
    start = clock()
    deadline = start + request.completion_timeout
    connection = _connect(request)
    try:
        response = _send(connection, request, "POST", path, body)
        return _read_stream(_events(response, deadline, clock), start, clock)
    except (OSError, http.client.HTTPException) as error:
        raise _network(error, f"POST {path}") from error
    finally:
        connection.close()


def _read_stream(events: Iterator[str], start: float, clock: Callable[[], float]) -> dict[str, Any]:
    pieces: list[str] = []
    first: float | None = None
    tokens = 0
    finish = ""
    for data in events:
        if data == "[DONE]":
            break
        chunk = _json(data.encode())
        if "error" in chunk:
            raise _RefusedError("server_error", _error_text(chunk), 200)
        for choice in chunk.get("choices") or []:
            piece = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            finish = choice.get("finish_reason") or finish
            if first is None and (piece or choice.get("token_ids") or finish):
                first = clock() - start
            pieces.append(piece)
        tokens = int((chunk.get("usage") or {}).get("completion_tokens") or tokens)
    else:
        raise _RefusedError("bad_answer", "the stream ended before its end mark [DONE]", 200)
    if first is None or tokens < 1:
        raise _RefusedError("bad_answer", "the stream held no token", 200)
    return {
        "text": "".join(pieces),
        "tokens": tokens,
        "finish_reason": finish,
        "ttft_seconds": round(first, 4),
        "seconds": round(clock() - start, 4),
    }


def _events(
    response: http.client.HTTPResponse, deadline: float, clock: Callable[[], float]
) -> Iterator[str]:
    """Yield the data of server-sent events, each of which vLLM writes on one line."""
    size = 0
    while True:
        if clock() > deadline:
            raise _RefusedError("timeout", "the completion was not finished in time", 200)
        line = response.readline(65536)
        if not line:
            return
        size += len(line)
        if size > MAXIMUM_BODY:
            raise _RefusedError(
                "bad_answer", f"the stream is longer than {MAXIMUM_BODY} bytes", 200
            )
        text = line.decode(errors="replace").strip()
        if text.startswith("data:"):
            yield text[len("data:") :].strip()


def _get(request: Request, path: str) -> bytes:
    connection = _connect(request)
    try:
        response = _send(connection, request, "GET", path)
        return response.read(MAXIMUM_BODY)
    except (OSError, http.client.HTTPException) as error:
        raise _network(error, f"GET {path}") from error
    finally:
        connection.close()


def _connect(request: Request) -> http.client.HTTPConnection:
    base = urlsplit(request.url)
    host = base.hostname or ""
    if base.scheme == "https":
        context = ssl.create_default_context()
        if not request.verify_tls:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection(
            host, base.port or 443, timeout=request.connect_timeout, context=context
        )
    return http.client.HTTPConnection(host, base.port or 80, timeout=request.connect_timeout)


def _send(
    connection: http.client.HTTPConnection,
    request: Request,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
) -> http.client.HTTPResponse:
    """Send one request and return its answer when it is a 200.

    Raises:
        _RefusedError: When the server answers with another status.
        OSError: When there is no connection or no answer.
    """
    headers = {"Accept": "application/json", "Connection": "close"}
    if request.api_key:
        headers["Authorization"] = f"Bearer {request.api_key}"
    if body is not None:
        headers["Content-Type"] = "application/json"
        headers["Accept"] = "text/event-stream"
    prefix = urlsplit(request.url).path.rstrip("/")
    content = None if body is None else json.dumps(body).encode()
    connection.connect()
    if body is not None and connection.sock:
        # A cold engine may compute for long before its first token: no short bound on that.
        connection.sock.settimeout(request.completion_timeout)
    connection.request(method, prefix + path, body=content, headers=headers)
    response = connection.getresponse()
    if response.status == http.client.OK:
        return response
    raise _of_status(response.status, path, response.read(MAXIMUM_BODY))


def _of_status(status: int, path: str, content: bytes) -> _RefusedError:
    text = _error_text(content)
    detail = f"{path} answered HTTP {status}" + (f": {text}" if text else "")
    if status in (401, 403):
        return _RefusedError("unauthorized", detail, status)
    if status == 404:
        error = "model_not_found" if path.startswith("/v1/") and "model" in text else "not_found"
        return _RefusedError(error, detail, status)
    if status >= 500:
        return _RefusedError("server_error", detail, status)
    return _RefusedError("bad_request", detail, status)


def _error_text(content: bytes | Mapping[str, Any]) -> str:
    """Return the message in vLLM's error object, or the start of whatever came instead."""
    if isinstance(content, bytes):
        try:
            loaded = json.loads(content)
        except ValueError:
            return " ".join(content.decode(errors="replace").split())[:200]
    else:
        loaded = content
    error = loaded.get("error", loaded) if isinstance(loaded, dict) else loaded
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:300]


def _network(error: Exception, question: str) -> _RefusedError:
    if isinstance(error, ConnectionRefusedError):
        return _RefusedError("refused", f"{question}: connection refused, nothing listens there")
    if isinstance(error, (TimeoutError, socket.timeout)):  # one class only since Python 3.10
        return _RefusedError("timeout", f"{question}: no answer in time")
    if isinstance(error, socket.gaierror):
        return _RefusedError("name_resolution", f"{question}: the host's name has no address")
    if isinstance(error, ssl.SSLError):
        return _RefusedError("tls", f"{question}: {error}")
    if isinstance(error, http.client.HTTPException):
        return _RefusedError("bad_answer", f"{question}: {type(error).__name__} {error}".strip())
    return _RefusedError("network", f"{question}: {error}")


def _json(content: bytes) -> dict[str, Any]:
    try:
        loaded = json.loads(content)
    except ValueError as error:
        raise _RefusedError("bad_answer", "the answer is no JSON", 200) from error
    if not isinstance(loaded, dict):
        raise _RefusedError("bad_answer", "the answer is no JSON object", 200)
    return loaded
