"""Prompts of several groups, those of a group with the same beginning, in a mixed order; and three servers for them."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import random
import subprocess

from servers import Hilo, free_port, post

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
WORDS = ["apple", "bread", "cat", "flower", "garden", "house", "library", "market", "river", "seven", "walk", "yellow"]
# The share of tokens that can be found: all but the first prefix of each group, and all words of each prompt's own.
BEST = PREFIX_WORDS / (PREFIX_WORDS + SUFFIX_WORDS) * (NUM_REQUESTS - 1) / NUM_REQUESTS


@dataclasses.dataclass
class Result:
    rate: float
    requests: list
    num_tokens: int

    def __str__(self):
        return f"{self.rate:.1%} of {self.num_tokens} prompt tokens cached, requests by server {self.requests}"


def prompts():
    """Returns the prompts of all groups in a mixed order, the same in every run."""
    chance = random.Random(SEED)

    def words(count):
        return " ".join(chance.choice(WORDS) for _ in range(count))

    shared = [words(PREFIX_WORDS) for _ in range(NUM_GROUPS)]
    texts = [f"{prefix} {words(SUFFIX_WORDS)}" for prefix in shared for _ in range(NUM_REQUESTS)]
    chance.shuffle(texts)
    return texts


def send_all(url, texts):
    """Sends prompts from a few clients, and returns the number of prompt tokens."""

    def send(prompt):
        body = {"model": "demo", "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0}
        return post(f"{url}/v1/completions", body)["usage"]["prompt_tokens"]

    with concurrent.futures.ThreadPoolExecutor(NUM_CLIENTS) as pool:
        return sum(pool.map(send, texts))


def measure(url, servers):
    """Sends all prompts to the gateway at `url`, and returns what the servers counted."""
    begin = [server.metrics() for server in servers]
    num_tokens = send_all(url, prompts())
    counts = collections.Counter()
    requests = []
    for server, before in zip(servers, begin):
        found = server.metrics()
        requests.append(int(found["vllm:request_success_total"] - before["vllm:request_success_total"]))
        for name in "queries", "hits":
            metric = f"vllm:prefix_cache_{name}_total"
            counts[name] += found[metric] - before[metric]
    assert sum(requests) == NUM_GROUPS * NUM_REQUESTS, requests
    assert counts["queries"] == num_tokens, (counts, num_tokens)
    return Result(counts["hits"] / counts["queries"], requests, num_tokens)


def publishes(executable):
    """True if the executable can publish the changes of its KV cache."""
    text = subprocess.run([executable, "--help"], check=True, capture_output=True, text=True).stdout
    return "--kv-events-config" in text


@contextlib.contextmanager
def start(executable, cache_tokens=CACHE_TOKENS, are_published=False):
    """Starts the servers. Yields them and, for each, the addresses of its events and of their repetition."""
    with contextlib.ExitStack() as stack:
        servers, sources = [], []
        for address in ADDRESSES:
            flags = ["--threads", 1, "--max-batch-total-tokens", cache_tokens]
            if are_published:
                ports = [free_port(address), free_port(address)]
                sources.append([f"tcp://{address}:{port}" for port in ports])
                endpoint, replay = (f"tcp://*:{port}" for port in ports)
                config = {"enable_kv_cache_events": True, "endpoint": endpoint, "replay_endpoint": replay}
                flags += ["--kv-events-config", json.dumps(config)]
            servers.append(stack.enter_context(Hilo(executable, address, *flags)))
        yield servers, sources
