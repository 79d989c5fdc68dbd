"""Stop a unit amid many streamed answers: streams.py INSTANCE PORT STREAMS TOKENS.

Prints as JSON how many answers came whole and how many were cut, the answer's status to a request
made during the drain, and the seconds and status of the stop.
"""

import http.client
import json
import subprocess
import sys
import threading
import time

name, port, streams, tokens = sys.argv[1], *map(int, sys.argv[2:])
BODY = {"model": name, "prompt": "Once", "ignore_eos": True}
outcomes = []
begun = threading.Semaphore(0)


def post(body, timeout):
    """Return the answer to a request for a completion."""
    server = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    server.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    return server.getresponse()


def stream():
    """Read one streamed answer to its end, and note whether it is whole."""
    first, generated, error = True, 0, False
    asked = {**BODY, "max_tokens": tokens, "stream": True}
    asked["stream_options"] = {"include_usage": True}
    try:
        for line in post(asked, 300):
            text = line.decode().removeprefix("data: ").strip()
            if not text or text == "[DONE]":
                continue
            if first:
                begun.release()
                first = False
            chunk = json.loads(text)
            error = error or "error" in chunk
            generated = (chunk.get("usage") or {}).get("completion_tokens", generated)
    except (OSError, http.client.HTTPException, ValueError):
        error = True
    outcomes.append(generated == tokens and not error)


threads = [threading.Thread(target=stream) for _ in range(streams)]
for thread in threads:
    thread.start()
for _ in threads:
    begun.acquire(timeout=120)
began = time.monotonic()
stop = subprocess.Popen(["systemctl", "stop", f"vllm@{name}.service"])
time.sleep(1)
try:
    refused = post({**BODY, "max_tokens": 1}, 20).status
except OSError:
    refused = 0
status = stop.wait()
seconds = time.monotonic() - began
for thread in threads:
    thread.join()
print(
    json.dumps(
        {
            "whole": outcomes.count(True),
            "cut": outcomes.count(False),
            "new_request": refused,
            "status": status,
            "seconds": round(seconds, 1),
        }
    )
)
