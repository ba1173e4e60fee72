"""Starts processes on this machine, and sends requests to them."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

START_SECONDS = 60
STOP_SECONDS = 20
REQUEST_SECONDS = 30


def free_port(address="127.0.0.1"):
    with socket.socket() as listener:
        listener.bind((address, 0))
        return listener.getsockname()[1]


class Process:
    """A process with a log, which ends with the `with` block."""

    def __init__(self, name, command):
        self.name = name
        self.command = [str(word) for word in command]

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="hilo-gateways-")
        self.path = Path(self.folder.name) / "log"
        with self.path.open("w") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, cwd=self.folder.name)
        try:
            self.wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.folder.cleanup()

    def log(self):
        return self.path.read_text(errors="replace")

    def is_ready(self):
        raise NotImplementedError

    def wait_until_ready(self):
        self.wait(self.is_ready, "it does not get ready")

    def wait(self, condition, message):
        """Waits for a condition while the process runs."""
        end = time.monotonic() + START_SECONDS
        while not condition():
            assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}:\n{self.log()}"
            assert time.monotonic() < end, f"{self.name}: {message}:\n{self.log()}"
            time.sleep(0.05)


class Hilo(Process):
    """A server with the demo model."""

    def __init__(self, executable, address, *flags):
        command = [executable, "--hostname", address, "--port", 0, "--json-output", *flags]
        super().__init__(f"Hilo on {address}", command)

    def is_ready(self):
        for line in self.log().splitlines():
            with contextlib.suppress(ValueError):
                fields = json.loads(line).get("fields") or json.loads(line)
                if fields.get("message") == "ready":
                    self.url = fields["url"]
                    return True
        return False

    def metrics(self):
        return metrics(self.url)

    def kill(self):
        """Ends all processes of the server at once, as the loss of a machine does. The first one of them, killed alone,
        would leave the others the time to end their streams with an error."""
        launcher = self.process.pid
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        for process in [launcher, *map(int, children)]:
            os.kill(process, signal.SIGSTOP)
        for process in [launcher, *map(int, children)]:
            os.kill(process, signal.SIGKILL)
        self.process.wait()


def series(url):
    """Returns the name, the labels and the value of each series of a page of metrics."""
    found = []
    for line in fetch(f"{url}/metrics").decode().splitlines():
        if line and not line.startswith("#"):
            name, labels, value = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line).groups()
            found.append((name, dict(re.findall(r'(\w+)="([^"]*)"', labels or "")), float(value)))
    return found


def metrics(url):
    """Returns the values of a page of metrics by their names, added up over labels."""
    values = {}
    for name, _, value in series(url):
        values[name] = values.get(name, 0.0) + value
    return values


def fetch(url, body=None, headers=None):
    """Returns the body of a response; sends `body` as JSON if there is one. A status of 400 or more is an exception."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"} | (headers or {}))
    with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as response:
        return response.read()


def post(url, body, headers=None):
    return json.loads(fetch(url, body, headers))


def is_healthy(url):
    try:
        fetch(f"{url}/health")
    except OSError:
        return False
    return True


def events(url, body):
    """Returns the JSON of each event of a stream; the stream must end as OpenAI's do."""
    lines = fetch(url, body | {"stream": True}).decode().splitlines()
    data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
    assert data[-1] == "[DONE]", data[-3:]
    return [json.loads(each) for each in data[:-1]]
