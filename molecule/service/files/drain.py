"""Stop a unit amid a streamed answer and print what came: drain.py UNIT PORT MODEL TOKENS."""

import http.client
import json
import subprocess
import sys

unit, port, model, tokens = sys.argv[1:]
asked = {
    "model": model,
    "prompt": "Once",
    "max_tokens": int(tokens),
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}
server = http.client.HTTPConnection("127.0.0.1", int(port), timeout=300)
server.request("POST", "/v1/completions", json.dumps(asked), {"Content-Type": "application/json"})
stop = None
generated = 0
done = False
for line in server.getresponse():
    if stop is None:
        stop = subprocess.Popen(["systemctl", "stop", unit], stderr=subprocess.DEVNULL)
    text = line.decode().removeprefix("data: ").strip()
    if text == "[DONE]":
        done = True
    elif text:
        usage = json.loads(text).get("usage")
        generated = usage["completion_tokens"] if usage else generated
status = stop.wait() if stop else None
sys.stdout.write(json.dumps({"generated": generated, "done": done, "stop": status}) + "\n")
