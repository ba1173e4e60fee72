"""Puts Envoy with an endpoint picker (picker.py) in front of three servers.

    picker_test.py EXECUTABLE [CACHE_TOKENS]

Prompts of several groups arrive in a mixed order; those of a group begin with the same tokens. The share of prompt
tokens that the servers find in their caches is printed, for servers that take turns and for those that the picker
chooses. Then a server is killed, and the others get all requests.
"""

import contextlib
import sys
import tempfile
import urllib.error
from pathlib import Path

import workload
from envoy_proxy import Envoy
from servers import Process, events, fetch, free_port, post

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
    prompts = [f"{word} " * 40 for word in workload.WORDS]
    workload.send_all(gateway.url, prompts)
    after = [server.metrics()["vllm:request_success_total"] for server in servers[1:]]
    assert sum(after) - sum(before) == len(prompts), (before, after)


def measure(executable, policy, cache_tokens):
    """Sends the prompts with this policy, and returns what the servers counted."""
    with contextlib.ExitStack() as stack:
        are_published = policy == "published"
        servers, sources = stack.enter_context(workload.start(executable, cache_tokens, are_published))
        picker = stack.enter_context(Picker(policy, servers, sources))
        gateway = stack.enter_context(Envoy(picker.port, stack.enter_context(tempfile.TemporaryDirectory())))
        try:
            check_requests(gateway.url)
            result = workload.measure(gateway.url, servers)
            if policy != "round-robin":
                check_death(gateway, picker, servers)
        except BaseException as error:
            error.add_note(f"log of the picker:\n{picker.log()}\nlog of Envoy:\n{gateway.log()}")
            raise
    return result


def main():
    executable = sys.argv[1]
    cache_tokens = int(sys.argv[2]) if len(sys.argv) > 2 else workload.CACHE_TOKENS
    policies = ["round-robin", "guessed"]
    if workload.publishes(executable):
        policies.append("published")
    else:
        print("  skipped: KV events, which this executable does not publish")
    rates = {}
    for policy in policies:
        result = measure(executable, policy, cache_tokens)
        rates[policy] = result.rate
        print(f"  {policy}: {result}")
    print(f"  at best about {workload.BEST:.0%}")
    for policy in policies[1:]:
        assert rates[policy] > max(0.9 * workload.BEST, 1.2 * rates["round-robin"]), rates


if __name__ == "__main__":
    main()
