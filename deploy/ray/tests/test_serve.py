"""A local Ray Serve instance: what passes through, and what ends when."""

import asyncio
import contextlib
import json
import signal
from collections.abc import Iterator

import httpx2
import psutil
import pytest
import ray
from ray import serve
from support import (
    MARKER,
    Endpoint,
    are_gone,
    descendants,
    free_port,
    prompt,
    servers,
    stream_text,
    wait_for,
)

from hilo_ray import Arguments, app

# Takes seconds.
_NUM_LONG = 6000
_LONG = {
    "inputs": "Once upon a time",
    "parameters": {"max_new_tokens": _NUM_LONG, "ignore_eos_token": True, "details": True},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Endpoint]:
    """Ray with one node, and Ray Serve's proxy."""
    port = free_port()
    ray.init("local", num_cpus=4, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False)
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    yield Endpoint(f"http://127.0.0.1:{port}")
    serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()


@pytest.fixture
def hilo(cluster: Endpoint, executable: str, flags: list[str]) -> Iterator[Endpoint]:
    """An application with one replica."""
    with _deployed(_arguments(executable, flags)):
        yield cluster


@contextlib.contextmanager
def _deployed(arguments: Arguments, route_prefix: str = "/") -> Iterator[None]:
    serve.run(app(arguments), name="hilo", route_prefix=route_prefix)
    try:
        yield
    finally:
        serve.delete("hilo")
        wait_for("no server is left", lambda: not servers())


def _arguments(executable: str, flags: list[str]) -> Arguments:
    return Arguments(
        executable=executable,
        flags=flags,
        environment=MARKER,
        max_replicas=1,
        health_check_period_s=1,
        stop_timeout_s=2,
    )


def _running(endpoint: Endpoint) -> int:
    """Returns the number of sequences that the server runs."""
    with endpoint.http() as client:
        lines = client.get("/metrics").text.splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("tgi_batch_current_size ")))


def test_responses_are_those_of_the_server(hilo: Endpoint, direct: Endpoint) -> None:
    chat = {"model": "demo", "messages": [{"role": "user", "content": "What is 3 + 4?"}], "temperature": 0}
    requests: list[tuple[str, str, object]] = [
        ("GET", "/health", None),
        ("HEAD", "/info", None),
        ("GET", "/info", None),
        ("GET", "/v1/models/demo?a=%2F", None),
        ("GET", "/nowhere/%2e%2e/a", None),
        ("OPTIONS", "/generate", None),
        ("PUT", "/generate", None),
        ("POST", "/generate", {"inputs": 1}),
        ("POST", "/generate", {"inputs": "a", "parameters": {"max_new_tokens": 50000}}),
        ("POST", "/generate", {"inputs": "Once upon a time", "parameters": {"seed": 1}}),
        ("POST", "/v1/chat/completions", {**chat, "temperature": -1}),
        ("POST", "/v1/embeddings", {"model": "demo", "input": "a"}),
    ]
    with hilo.http() as through, direct.http() as straight:
        for method, path, body in requests:
            replies = [client.request(method, path, json=body) for client in (through, straight)]
            assert _comparable(replies[0]) == _comparable(replies[1]), (method, path)
            assert replies[0].headers["x-hilo-replica"]
        named = through.post("/v1/chat/completions", json=chat, headers={"x-request-id": "mine"})
    assert named.headers.get_list("x-request-id") == ["mine"]
    assert named.json()["choices"][0]["message"]["content"] == "3 + 4 is 7."


def _comparable(reply: httpx2.Response) -> tuple[int, bytes, dict[str, str]]:
    """The parts of a reply that do not change from one request to the next."""
    excluded = {"date", "server", "x-hilo-replica", "x-request-id"}
    headers = {name: value for name, value in reply.headers.items() if name not in excluded and "time" not in name}
    return reply.status_code, reply.content, headers


def test_a_prefix_of_the_route_is_removed(cluster: Endpoint, executable: str, flags: list[str]) -> None:
    with _deployed(_arguments(executable, flags), "/below/it"), cluster.http() as client:
        assert client.get("/below/it/info").json()["model_device_type"] == "cpu"


def test_keys_are_asked_for_and_the_queue_is_read_with_one(
    cluster: Endpoint, executable: str, flags: list[str]
) -> None:
    arguments = _arguments(executable, flags)
    arguments.environment = {**MARKER, "API_KEY": "secret,other"}
    with _deployed(arguments), cluster.http() as client:
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers={"authorization": "Bearer other"}).status_code == 200
        stats = serve.get_app_handle("hilo").record_autoscaling_stats.remote().result()
    assert stats == {"hilo_running": 0, "hilo_waiting": 0}


def test_streams_have_the_answers_of_the_server(hilo: Endpoint, direct: Endpoint) -> None:
    async def texts(endpoint: Endpoint) -> list[str]:
        client = endpoint.openai()
        return await asyncio.gather(*(stream_text(client, prompt(number), 40) for number in range(16)))

    assert asyncio.run(texts(hilo)) == asyncio.run(texts(direct))


def test_events_arrive_while_the_server_generates_and_leaving_cancels(hilo: Endpoint) -> None:
    with hilo.http() as client:
        with client.stream("POST", "/generate_stream", json=_LONG) as response:
            assert response.headers["content-type"] == "text/event-stream"
            # The iterator must live on: its end closes the connection.
            lines = response.iter_lines()
            assert json.loads(next(lines).removeprefix("data:"))["token"]["text"]
            assert _running(hilo) == 1
        wait_for("the generation is cancelled", lambda: _running(hilo) == 0, 5)
        metrics = client.get("/metrics").text
    assert 'tgi_request_failure{err="dropped"} 1' in metrics


def test_leaving_before_the_response_cancels(hilo: Endpoint) -> None:
    client = hilo.http()
    client.timeout = httpx2.Timeout(0.3)
    with pytest.raises(httpx2.ReadTimeout):
        client.post("/generate", json=_LONG)
    client.close()
    wait_for("the generation is cancelled", lambda: _running(hilo) == 0, 5)


@pytest.mark.parametrize("part", ["launcher", "router", "shard"])
def test_a_dead_server_fails_its_streams_and_is_replaced(hilo: Endpoint, part: str) -> None:
    [(name, server)] = servers().items()
    parts = {_part(process): process for process in descendants(server)}
    with hilo.http() as client:
        with client.stream("POST", "/generate_stream", json=_LONG) as response:
            lines = response.iter_lines()
            next(lines)
            parts[part].kill()
            assert _ends_with_error(lines)
        reply = wait_for("another replica replies", lambda: _reply_of_another(client, name))
    assert list(servers()) == [reply.headers["x-hilo-replica"]]


def _part(process: psutil.Process) -> str:
    """The part of the server that the process is."""
    command = process.cmdline()[1]
    return "launcher" if command.startswith("-") else command


def _ends_with_error(lines: Iterator[str]) -> bool:
    """True if the last event of the stream is an error, or the connection breaks."""
    try:
        last = [line for line in lines if line][-1]
    except httpx2.RemoteProtocolError:
        return True
    return "error" in json.loads(last.removeprefix("data:"))


def test_a_server_that_hangs_is_replaced(hilo: Endpoint) -> None:
    [(name, server)] = servers().items()
    processes = descendants(server)
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    with hilo.http() as client:
        client.timeout = httpx2.Timeout(2)
        wait_for("another replica replies", lambda: _reply_of_another(client, name))
    wait_for("the server that hung is gone", lambda: are_gone(processes))


def test_a_killed_worker_leaves_no_orphan_and_is_replaced(hilo: Endpoint) -> None:
    [(name, server)] = servers().items()
    processes = descendants(server)
    worker = server.parent()
    assert worker is not None
    worker.kill()
    wait_for("launcher, router and shard have ended", lambda: are_gone(processes), 10)
    with hilo.http() as client:
        wait_for("another replica replies", lambda: _reply_of_another(client, name))


def _reply_of_another(client: httpx2.Client, name: str) -> httpx2.Response | None:
    """Returns a reply of `/info` that does not come from the replica `name`."""
    try:
        reply = client.get("/info")
    except httpx2.TransportError:
        return None
    return reply if reply.status_code == 200 and reply.headers["x-hilo-replica"] != name else None


def test_delete_lets_streams_finish(hilo: Endpoint) -> None:
    [server] = servers().values()
    with hilo.http() as client, client.stream("POST", "/generate_stream", json=_LONG) as response:
        lines = response.iter_lines()
        next(lines)
        serve.delete("hilo", _blocking=False)
        last = [line for line in lines if line][-1]
    assert json.loads(last.removeprefix("data:"))["details"]["generated_tokens"] == _NUM_LONG
    wait_for("the server has ended", lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)


def test_an_application_that_cannot_start_says_why(cluster: Endpoint, executable: str) -> None:
    with pytest.raises(RuntimeError):
        serve.run(app(Arguments(executable=executable, flags=["--model-id", "/nowhere"])), name="wrong")
    status = serve.status().applications["wrong"]
    assert "/nowhere" in status.deployments["Hilo"].message
    serve.delete("wrong")
