"""What both layers of tests need: clients, prompts, the processes of replicas, waiting for a condition."""

import collections
import dataclasses
import pathlib
import socket
import time
import uuid
from collections.abc import Callable
from typing import TypeVar

import httpx2
import openai
import psutil

# Small limits, so that several replicas fit two cores and little memory.
FLAGS = [
    "--max-batch-size=64",
    "--max-batch-prefill-tokens=4096",
    "--kv-cache-memory=192MiB",
    "--memory-budget=512MiB",
]
MAX_TOTAL_TOKENS = 16384
DEMO = pathlib.Path(__file__).resolve().parents[3] / "demo"
# Ends up in the environment of the servers that these tests start, and of no others.
MARKER = {"HILO_RAY_TEST": uuid.uuid4().hex}
WAIT_S = 30.0
# A test that hangs has failed.
CLIENT_TIMEOUT_S = 180.0

Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """An address, and the Unix socket on which it is reached, if any."""

    url: str
    uds: str | None = None

    def http(self) -> httpx2.Client:
        """A client for any route."""
        return httpx2.Client(base_url=self.url, transport=httpx2.HTTPTransport(uds=self.uds), timeout=CLIENT_TIMEOUT_S)

    def openai(self) -> openai.AsyncOpenAI:
        """OpenAI's client. It does not repeat requests, because tests count failures."""
        limits = httpx2.Limits(max_connections=None)
        http = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(uds=self.uds, limits=limits), timeout=CLIENT_TIMEOUT_S
        )
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="-", http_client=http, max_retries=0)


def direct_endpoint(path: str) -> Endpoint:
    """The endpoint of a server that listens on a Unix socket."""
    return Endpoint("http://localhost", path)


def free_port() -> int:
    """Returns a port of the loopback address that nobody uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def prompt(number: int) -> str:
    """Returns one of many different beginnings of stories."""
    names = ["Kate", "Martin", "Anna", "Tom", "Lucy", "Peter", "Mary", "John", "Emma", "Paul"]
    things = ["car", "flower", "book", "house", "dog"]
    return f"Once upon a time, {names[number % 10]} had a {things[number // 10 % 5]}. {names[(number + 3) % 10]}"


async def stream_text(
    client: openai.AsyncOpenAI, text: str, num_tokens: int, on_progress: Callable[[str], None] = lambda replica: None
) -> str:
    """Returns the greedy completion of a prompt, read as a stream. `on_progress` gets the replica at each step."""
    stream = await client.completions.create(
        model="demo",
        prompt=text,
        max_tokens=num_tokens,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    replica = stream.response.headers.get("x-hilo-replica", "")
    on_progress(replica)
    parts = []
    is_finished = False
    async for chunk in stream:
        on_progress(replica)
        parts += [choice.text for choice in chunk.choices]
        is_finished |= any(choice.finish_reason for choice in chunk.choices)
    if not is_finished:
        raise EOFError("the stream has no last chunk")
    return "".join(parts)


def servers() -> dict[str, psutil.Process]:
    """Returns the launchers of all replicas by the name of the replica."""
    found = {}
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            if "--uds" in command[2:] and process.environ().get("HILO_RAY_TEST") == MARKER["HILO_RAY_TEST"]:
                found[pathlib.Path(command[command.index("--uds") + 1]).name.split("-")[1]] = process
        except psutil.Error:
            continue
    return found


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """Returns the process and its children, of all generations."""
    return [process, *process.children(recursive=True)]


def wait_for(what: str, condition: Callable[[], Value | None], timeout_s: float = WAIT_S) -> Value:
    """Returns the first value of `condition` that is true. Fails with `what` after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.2)
    return value


def are_gone(processes: list[psutil.Process]) -> bool:
    """True if all processes have ended."""
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


def count_by(names: list[str]) -> dict[str, int]:
    """Returns how often each name occurs."""
    return dict(collections.Counter(names))
