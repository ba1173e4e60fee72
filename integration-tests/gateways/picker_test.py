"""Puts Envoy with an endpoint picker (picker.py) in front of three servers.

    picker_test.py EXECUTABLE [CACHE_TOKENS]

Prompts of several groups arrive in a mixed order; those of a group begin with the same tokens. The share of prompt
tokens that the servers find in their caches is printed, for servers that take turns and for those that the picker
chooses. Then a server is killed, and the others get all requests.
"""

import collections
import concurrent.futures
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import urllib.error
from pathlib import Path

from envoy_proxy import Envoy
from servers import Hilo, Process, events, fetch, free_port, post

ADDRESSES = "127.0.0.2", "127.0.0.3", "127.0.0.4"
NUM_GROUPS = 24
NUM_REQUESTS = 10  # of each group
PREFIX_WORDS = 320
SUFFIX_WORDS = 20
NUM_CLIENTS = 4
SEED = 7
# The KV cache of each server. It has room for the prefixes of less than half of the groups.
CACHE_TOKENS = 4800
MAX_TOKENS = 4
WORDS = "apple bread cat flower garden house library market river seven walk yellow".split()
QUESTION = {"model": "demo", "messages": [{"role": "user", "content": "What is 3 + 4?"}], "temperature": 0}
ANSWER = "3 + 4 is 7."


class Picker(Process):
    def __init__(self, policy, servers, sources):
        self.port = free_port()
        program = Path(__file__).with_name("picker.py")
        command = [sys.executable, program, "--port", self.port, "--policy", policy]
        for server in servers:
            command += ["--server", server.url.removeprefix("http://")]
        for address, replay in sources:
            command += ["--events", address, "--replay", replay]
        super().__init__("the picker", command)

    def is_ready(self):
        return "ready" in self.log().splitlines()


def workload():
    """Returns the prompts of all groups in a mixed order, the same in every run."""
    chance = random.Random(SEED)

    def words(count):
        return " ".join(chance.choice(WORDS) for _ in range(count))

    shared = [words(PREFIX_WORDS) for _ in range(NUM_GROUPS)]
    prompts = [f"{prefix} {words(SUFFIX_WORDS)}" for prefix in shared for _ in range(NUM_REQUESTS)]
    chance.shuffle(prompts)
    return prompts


def send_all(url, prompts):
    """Sends the prompts from a few clients, and returns the number of prompt tokens."""

    def send(prompt):
        body = {"model": "demo", "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0}
        return post(f"{url}/v1/completions", body)["usage"]["prompt_tokens"]

    with concurrent.futures.ThreadPoolExecutor(NUM_CLIENTS) as pool:
        return sum(pool.map(send, prompts))


def check_requests(url):
    """Checks that answers pass through the gateway unchanged."""
    models = post(f"{url}/v1/models", None)
    assert [model["id"] for model in models["data"]] == ["demo"], models
    [choice] = post(f"{url}/v1/chat/completions", QUESTION)["choices"]
    assert choice["message"]["content"] == ANSWER, choice
    stream = events(f"{url}/v1/chat/completions", QUESTION)
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in stream if event["choices"])
    assert text == ANSWER, text
    with contextlib.suppress(urllib.error.HTTPError):
        fetch(f"{url}/v1/completions", {"prompt": 7})
        raise AssertionError("a bad request is no error")


def check_death(gateway, picker, servers):
    servers[0].kill()
    endpoint = servers[0].url.removeprefix("http://")
    picker.wait(lambda: f"{endpoint} is gone" in picker.log(), "it does not notice that a server is gone")
    before = [server.metrics()["vllm:request_success_total"] for server in servers[1:]]
    prompts = [f"{word} " * 40 for word in WORDS]
    send_all(gateway.url, prompts)
    after = [server.metrics()["vllm:request_success_total"] for server in servers[1:]]
    assert sum(after) - sum(before) == len(prompts), (before, after)


def publishes(executable):
    """True if the executable can publish the changes of its KV cache."""
    text = subprocess.run([executable, "--help"], check=True, capture_output=True, text=True).stdout
    return "--kv-events-config" in text


def flags(ports):
    """Returns the flags of a server that publishes its events at two ports, or that publishes none."""
    if ports is None:
        return []
    endpoint, replay = (f"tcp://*:{port}" for port in ports)
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint, "replay_endpoint": replay}
    return ["--kv-events-config", json.dumps(config)]


def measure(executable, policy, prompts, cache_tokens):
    """Sends the prompts with this policy, and returns what the servers counted."""
    ports, sources = [None] * len(ADDRESSES), []
    if policy == "published":
        ports = [(free_port(address), free_port(address)) for address in ADDRESSES]
        sources = [[f"tcp://{address}:{port}" for port in pair] for address, pair in zip(ADDRESSES, ports)]
    with contextlib.ExitStack() as stack:
        servers = []
        for address, pair in zip(ADDRESSES, ports):
            settings = ["--threads", 1, "--max-batch-total-tokens", cache_tokens, *flags(pair)]
            servers.append(stack.enter_context(Hilo(executable, address, *settings)))
        picker = stack.enter_context(Picker(policy, servers, sources))
        gateway = stack.enter_context(Envoy(picker.port, stack.enter_context(tempfile.TemporaryDirectory())))
        try:
            check_requests(gateway.url)
            begin = [server.metrics() for server in servers]
            num_tokens = send_all(gateway.url, prompts)
            counts = collections.Counter()
            requests = []
            for server, before in zip(servers, begin):
                found = server.metrics()
                requests.append(int(found["vllm:request_success_total"] - before["vllm:request_success_total"]))
                for name in "queries", "hits":
                    metric = f"vllm:prefix_cache_{name}_total"
                    counts[name] += found[metric] - before[metric]
            assert sum(requests) == len(prompts), requests
            assert counts["queries"] == num_tokens, (counts, num_tokens)
            if policy != "round-robin":
                check_death(gateway, picker, servers)
        except BaseException as error:
            error.add_note(f"log of the picker:\n{picker.log()}\nlog of Envoy:\n{gateway.log()}")
            raise
    return counts["hits"] / counts["queries"], requests, num_tokens


def main():
    executable = sys.argv[1]
    cache_tokens = int(sys.argv[2]) if len(sys.argv) > 2 else CACHE_TOKENS
    prompts = workload()
    policies = ["round-robin", "guessed"]
    if publishes(executable):
        policies.append("published")
    else:
        print("  skipped: KV events, which this executable does not publish")
    rates = {}
    for policy in policies:
        rates[policy], requests, num_tokens = measure(executable, policy, prompts, cache_tokens)
        print(f"  {policy}: {rates[policy]:.1%} of {num_tokens} prompt tokens cached, requests by server {requests}")
    # Each first prompt of a group has to be computed once.
    best = PREFIX_WORDS / (PREFIX_WORDS + SUFFIX_WORDS) * (NUM_REQUESTS - 1) / NUM_REQUESTS
    print(f"  at best about {best:.0%}")
    for policy in policies[1:]:
        assert rates[policy] > max(0.9 * best, 1.2 * rates["round-robin"]), rates


if __name__ == "__main__":
    main()
