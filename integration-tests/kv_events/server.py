"""A server with KV cache events for the tests: starts the executable, sends it prompts, and knows its publisher."""

import json
import subprocess
import urllib.request
from pathlib import Path

MODEL = Path(__file__).resolve().parents[2] / "demo"
BLOCK = 16
LOCAL = {"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*"}
# A cache of 128 blocks, so that a test can fill it.
SMALL = ["--max-total-tokens=1024", "--max-batch-total-tokens=2048", "--max-batch-size=4"]


class Server:
    """The executable with the demo model. Ends with the `with` statement."""

    def __init__(self, executable: str, config: dict, *flags: str):
        value = json.dumps({"enable_kv_cache_events": True, **config})
        command = [executable, "--hostname=127.0.0.1", "--port=0", "--json-output", *SMALL]
        command += [f"--kv-events-config={value}", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            entry = json.loads(line)
            if entry.get("message") == "ready":
                self.url = entry["url"]
                break
        else:
            raise AssertionError("the server did not start:\n" + "".join(lines))
        self.source = self.get("/kv_event_sources")["0"]

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdout.close()
        self.process.terminate()
        assert self.process.wait(60) == 0

    def get(self, path: str) -> dict:
        with urllib.request.urlopen(self.url + path, timeout=60) as response:
            return json.load(response)

    def post(self, path: str, body: dict) -> tuple[dict | list, dict]:
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response), response.headers

    def tokens(self, prompt: str) -> list[int]:
        """The tokens that the model reads for a prompt."""
        return self.post("/v1/completions/render", {"prompt": prompt})[0][0]["token_ids"]

    def generate(self, prompt: str, **parameters: object) -> int:
        """Generates from a prompt, and returns the number of its tokens that were in the prefix cache."""
        body = {"inputs": prompt, "parameters": {"max_new_tokens": 1, **parameters}}
        return int(self.post("/generate", body)[1]["x-cached-tokens"])

    def router_bytes(self) -> int:
        """The resident memory of the process that serves HTTP."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for child in children:
            if b"\0router\0" in Path(f"/proc/{child}/cmdline").read_bytes():
                status = Path(f"/proc/{child}/status").read_text()
                return int(status.split("VmRSS:")[1].split()[0]) << 10
        raise AssertionError("no router process")
