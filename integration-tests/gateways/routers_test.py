"""Puts routers that were made for other engines, unmodified, in front of two servers.

    routers_test.py EXECUTABLE

Each router is healthy, passes requests and streams on to both servers in turn, and counts them. Then one server is
killed while it streams: its streams end early, the others finish, and every new request succeeds.

vllm-router also chooses servers by prefixes: by those that it has sent there, and by the events of the servers' KV
caches.
"""

import concurrent.futures
import importlib.metadata
import json
import re
import sys
import threading
import urllib.request

import workload
from servers import REQUEST_SECONDS, Hilo, Process, events, fetch, free_port, is_healthy, post

NUM_REQUESTS = 32
NUM_STREAMS = 4
NUM_THREADS = 4
QUESTION = {"model": "demo", "messages": [{"role": "user", "content": "What is 3 + 4?"}], "temperature": 0}
ANSWER = "3 + 4 is 7."
STORY = {"model": "demo", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 12}


class Router(Process):
    """A router of the family of sglang-router: the flags are the same in all of them."""

    def __init__(self, package, servers, policy="round_robin", *flags):
        port, self.metrics_port = free_port(), free_port()
        self.num_servers = len(servers)
        self.url = f"http://127.0.0.1:{port}"
        module = f"{package.replace('-', '_')}.launch_router"
        command = [sys.executable, "-m", module, "--host", "127.0.0.1", "--port", port]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", self.metrics_port]
        command += ["--policy", policy, "--health-check-interval-secs", 1, *flags, "--worker-urls"]
        super().__init__(package, command + [server.url for server in servers])

    def is_ready(self):
        # It is healthy before it knows its servers.
        return is_healthy(self.url) and self.num_healthy() == self.num_servers

    def num_healthy(self):
        """The number of servers that the router has found healthy, from its metrics."""
        page = fetch(f"http://127.0.0.1:{self.metrics_port}/metrics").decode()
        return len(re.findall(r"^\w+_worker_health\{[^}]*\} 1$", page, re.MULTILINE))


class Stream(threading.Thread):
    """A client that reads a long stream."""

    def __init__(self, url):
        super().__init__()
        body = json.dumps(STORY | {"max_tokens": 1000, "ignore_eos": True, "stream": True}).encode()
        self.request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
        self.has_begun = threading.Event()
        self.last = None
        self.start()

    def run(self):
        try:
            with urllib.request.urlopen(self.request, timeout=REQUEST_SECONDS) as response:
                for line in response:
                    if line.startswith(b"data: {"):
                        self.has_begun.set()
                        self.last = json.loads(line.removeprefix(b"data:"))
        except OSError as error:
            self.last = repr(error)
        finally:
            self.has_begun.set()

    def is_complete(self):
        choices = self.last.get("choices", [{}]) if isinstance(self.last, dict) else [{}]
        return choices[0].get("finish_reason") == "length"


def ask(url):
    [choice] = post(f"{url}/v1/chat/completions", QUESTION)["choices"]
    assert choice["message"]["content"] == ANSWER, choice


def ask_many(url):
    with concurrent.futures.ThreadPoolExecutor(NUM_THREADS) as pool:
        for each in [pool.submit(ask, url) for _ in range(NUM_REQUESTS)]:
            each.result()


def num_succeeded(server):
    return server.metrics()["vllm:request_success_total"]


def check_requests(router, servers):
    models = post(f"{router.url}/v1/models", None)
    assert models["object"] == "list" and len(models["data"]) == 1, models
    direct = post(f"{servers[0].url}/v1/completions", STORY)
    through = post(f"{router.url}/v1/completions", STORY)
    assert direct["choices"] == through["choices"] and direct["usage"] == through["usage"], (direct, through)
    for stream in events(f"{router.url}/v1/completions", STORY), events(f"{servers[1].url}/v1/completions", STORY):
        text = "".join(event["choices"][0]["text"] for event in stream if event["choices"])
        assert text == direct["choices"][0]["text"], text
    chat = events(f"{router.url}/v1/chat/completions", QUESTION)
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in chat if event["choices"])
    assert text == ANSWER, chat

    before = [num_succeeded(server) for server in servers]
    ask_many(router.url)
    counts = [int(num_succeeded(server) - count) for server, count in zip(servers, before)]
    assert counts == [NUM_REQUESTS // 2] * 2, f"the router sent {counts} requests to the servers"


def check_death(router, servers):
    streams = [Stream(router.url) for _ in range(NUM_STREAMS)]
    for stream in streams:
        assert stream.has_begun.wait(REQUEST_SECONDS)
    assert all(stream.is_alive() for stream in streams), "a stream ended before the server was killed"
    servers[0].kill()
    ask_many(router.url)
    for stream in streams:
        stream.join(REQUEST_SECONDS)
        assert not stream.is_alive(), "a stream does not end"
    num_complete = sum(stream.is_complete() for stream in streams)
    assert num_complete == NUM_STREAMS // 2, [stream.last for stream in streams]
    router.wait(lambda: router.num_healthy() == 1, "it does not notice that a server is gone")
    ask_many(router.url)


def check(package, executable):
    with Hilo(executable, "127.0.0.2") as first, Hilo(executable, "127.0.0.3") as second:
        servers = [first, second]
        with Router(package, servers) as router:
            try:
                check_requests(router, servers)
                check_death(router, servers)
            except BaseException as error:
                error.add_note(f"log of {package}:\n{router.log()}")
                raise
    version = importlib.metadata.version(package)
    print(f"  {package} {version}: both servers got requests; after one was killed the other got them all")


def check_prefixes(executable):
    """Checks that vllm-router finds the servers that have the beginnings of prompts."""
    rates = {}
    for policy in "round_robin", "cache_aware", "kv_aware":
        are_published = policy == "kv_aware"
        if are_published and not workload.publishes(executable):
            print("  skipped: KV events, which this executable does not publish")
            continue
        with workload.start(executable, are_published=are_published) as (servers, sources):
            flags = ["--kv-event-model", "demo"] if are_published else []
            for server, (address, replay) in zip(servers, sources):
                flags += ["--kv-event-source", f"{server.url}={address}"]
                flags += ["--kv-event-replay-source", f"{server.url}={replay}"]
            with Router("vllm-router", servers, policy, *flags) as router:
                result = workload.measure(router.url, servers)
        rates[policy] = result.rate
        print(f"  vllm-router, {policy}: {result}")
    for policy, rate in rates.items():
        assert policy == "round_robin" or rate > 1.2 * rates["round_robin"], rates


def main():
    executable = sys.argv[1]
    for package in "vllm-router", "sglang-router":
        check(package, executable)
    check_prefixes(executable)


if __name__ == "__main__":
    main()
