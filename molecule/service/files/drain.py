"""Stop a unit in the middle of a streamed answer: drain.py UNIT PORT MODEL TOKENS; prints what came."""

import json
import subprocess
import sys
import urllib.request

unit, port, model, tokens = sys.argv[1:]
asked = {
    "model": model,
    "prompt": "Once",
    "max_tokens": int(tokens),
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}
request = urllib.request.Request(
    f"http://127.0.0.1:{port}/v1/completions",
    json.dumps(asked).encode(),
    {"Content-Type": "application/json"},
)
stop = None
generated = 0
done = False
with urllib.request.urlopen(request, timeout=300) as answer:
    for line in answer:
        if stop is None:
            stop = subprocess.Popen(["systemctl", "stop", unit])
        text = line.decode().removeprefix("data: ").strip()
        if text == "[DONE]":
            done = True
        elif text:
            usage = json.loads(text).get("usage")
            generated = usage["completion_tokens"] if usage else generated
status = stop.wait() if stop else None
sys.stdout.write(json.dumps({"generated": generated, "done": done, "stop": status}) + "\n")
