"""A Ray cluster of three nodes on this machine: load, failures in the middle of it, and scaling."""

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterator

import pytest
import ray
from ray import serve
from ray.cluster_utils import Cluster
from support import MARKER, Endpoint, count_by, free_port, prompt, servers, stream_text, wait_for

from hilo_ray import Arguments, app

pytestmark = pytest.mark.cluster

_NUM_REPLICAS = 4
_NUM_STREAMS = 200
_NUM_PROMPTS = 20
_NUM_TOKENS = 1000
# The failures come when this many streams have begun, and some of each replica that will be lost.
_NUM_BEGUN = 60
_NUM_BEGUN_EACH = 5
_RECOVERY_S = 120.0


@dataclasses.dataclass
class Stream:
    """One of many streams: the replica that serves it, and how it ended."""

    number: int
    replica: str = ""
    text: str = ""
    error: str = ""
    had_begun: bool = False

    def on_progress(self, replica: str) -> None:
        """Notes the replica, which is known from the head of the response."""
        self.replica = replica


@dataclasses.dataclass(frozen=True)
class Nodes:
    """A cluster, and the address of its proxy."""

    cluster: Cluster
    endpoint: Endpoint


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """Three nodes. After one is gone, the others still have room for all replicas."""
    # The only proxy would else fill the replicas of its own node before it uses others.
    monkeypatch.setenv("RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING", "0")
    cluster = Cluster()
    for _ in range(3):
        cluster.add_node(num_cpus=3, object_store_memory=100_000_000, include_dashboard=False)
    ray.init(cluster.address, log_to_driver=False)
    port = free_port()
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    yield Nodes(cluster, Endpoint(f"http://127.0.0.1:{port}"))
    serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()
    cluster.shutdown()  # type: ignore[no-untyped-call]
    wait_for("no server is left", lambda: not servers())


async def _load(endpoint: Endpoint, streams: list[Stream]) -> None:
    """Reads all streams at the same time."""
    client = endpoint.openai()

    async def read(stream: Stream) -> None:
        try:
            text = prompt(stream.number % _NUM_PROMPTS)
            stream.text = await stream_text(client, text, _NUM_TOKENS, stream.on_progress)
        except Exception as error:  # the test judges which streams may fail
            stream.error = repr(error)

    await asyncio.gather(*(read(stream) for stream in streams))


def _streams(num_streams: int) -> list[Stream]:
    return [Stream(number) for number in range(num_streams)]


def _expected(direct: Endpoint) -> list[str]:
    streams = _streams(_NUM_PROMPTS)
    asyncio.run(_load(direct, streams))
    assert not [stream for stream in streams if stream.error]
    return [stream.text for stream in streams]


def _num_running() -> int:
    """Returns the number of healthy replicas, or 0 while others start or stop."""
    states = serve.status().applications["hilo"].deployments["Hilo"].replica_states
    return sum(states.values()) if list(states) == ["RUNNING"] else 0


def _arguments(executable: str, flags: list[str], **others: object) -> Arguments:
    settings: dict[str, object] = {"executable": executable, "flags": flags, "environment": MARKER, **others}
    return Arguments.model_validate({"health_check_period_s": 1, **settings})


def _replicas_of(node: object) -> set[str]:
    """Returns the replicas whose workers the node has started."""
    [raylet] = node.all_processes["raylet"]  # type: ignore[attr-defined]
    pid = raylet.process.pid
    return {name for name, server in servers().items() if pid in [parent.pid for parent in server.parents()]}


def test_failures_end_only_their_own_streams(
    nodes: Nodes, executable: str, flags: list[str], direct: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = _expected(direct)
    bounds = {"min_replicas": _NUM_REPLICAS, "max_replicas": _NUM_REPLICAS, "max_replicas_per_node": 2}
    serve.run(app(_arguments(executable, flags, **bounds)), name="hilo")
    lost_node = min(filter(_replicas_of, nodes.cluster.worker_nodes), key=lambda node: len(_replicas_of(node)))
    lost = _replicas_of(lost_node)
    name, server = next((name, server) for name, server in servers().items() if name not in lost)

    def fail() -> None:
        server.kill()
        nodes.cluster.remove_node(lost_node, allow_graceful=False)

    streams = _streams(_NUM_STREAMS)
    recovery_s = asyncio.run(_fail_under_load(nodes.endpoint, streams, fail, {*lost, name}))
    with capsys.disabled():
        _report(streams, {*lost, name}, recovery_s)
    _judge(streams, expected, {*lost, name})

    again = _streams(_NUM_PROMPTS)
    asyncio.run(_load(nodes.endpoint, again))
    assert [stream.error or stream.text for stream in again] == expected


async def _fail_under_load(
    endpoint: Endpoint, streams: list[Stream], fail: Callable[[], None], lost: set[str]
) -> float:
    """Calls `fail` in the middle of the load. Returns the seconds until all replicas run again."""
    load = asyncio.create_task(_load(endpoint, streams))
    await asyncio.to_thread(wait_for, "streams have begun", lambda: _have_begun(streams, lost), _RECOVERY_S)
    for stream in streams:
        stream.had_begun = bool(stream.replica)
    began = time.monotonic()
    await asyncio.to_thread(fail)
    await asyncio.to_thread(wait_for, "all replicas run again", lambda: _are_replaced(lost), _RECOVERY_S)
    recovery_s = time.monotonic() - began
    await load
    return recovery_s


def _have_begun(streams: list[Stream], lost: set[str]) -> bool:
    """True if enough streams have begun, and some of each lost replica."""
    counts = count_by([stream.replica for stream in streams if stream.replica])
    return sum(counts.values()) >= _NUM_BEGUN and all(counts.get(name, 0) >= _NUM_BEGUN_EACH for name in lost)


def _are_replaced(lost: set[str]) -> bool:
    """True if there are as many healthy replicas as before, without the lost ones."""
    names = servers().keys()
    return len(names) == _NUM_REPLICAS and not names & lost and _num_running() == _NUM_REPLICAS


def _judge(streams: list[Stream], expected: list[str], lost: set[str]) -> None:
    """Only streams of lost replicas fail, some of each do, and all others have the right texts.

    A request without a reply has no known replica. It may fail with a status after which clients try again.
    """
    failed = [stream for stream in streams if stream.error]
    assert {stream.replica for stream in failed if stream.replica} == lost
    assert not [stream for stream in failed if not stream.replica and "Error code: 5" not in stream.error]
    for stream in streams:
        assert stream.error or stream.text == expected[stream.number % _NUM_PROMPTS]


def _report(streams: list[Stream], lost: set[str], recovery_s: float) -> None:
    """Prints the numbers, for people."""
    print(f"\nstreams of each replica: {count_by([stream.replica for stream in streams])}, lost: {sorted(lost)}")
    print(f"begun before the failures: {sum(stream.had_begun for stream in streams)} of {len(streams)}")
    print(
        f"failed (none: before a reply): {count_by([stream.replica or 'none' for stream in streams if stream.error])}"
    )
    print(f"errors: {count_by([stream.error[:60] for stream in streams if stream.error])}")
    print(f"all replicas ran again after {recovery_s:.1f} s")


@pytest.mark.parametrize("scale_on", ["requests", "sequences"])
def test_replicas_follow_the_load(
    nodes: Nodes, executable: str, flags: list[str], scale_on: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"target_ongoing_requests": 8, "upscale_delay_s": 2, "downscale_delay_s": 5, "scale_on": scale_on}
    serve.run(app(_arguments(executable, flags, max_replicas=_NUM_REPLICAS, **settings)), name="hilo")
    assert len(servers()) == 1
    streams, times = asyncio.run(_until_scaled(nodes.endpoint))
    assert not [stream.error for stream in streams if stream.error]
    began = time.monotonic()
    wait_for("one replica is left", lambda: len(servers()) == 1 and _num_running() == 1, _RECOVERY_S)
    with capsys.disabled():
        print(f"\n{scale_on}: four replicas after {times:.1f} s, one after {time.monotonic() - began:.1f} s")


async def _until_scaled(endpoint: Endpoint) -> tuple[list[Stream], float]:
    """Keeps streams running until there are four replicas. Returns the streams and the seconds that it took."""
    began, all_streams, is_scaled = time.monotonic(), list[Stream](), asyncio.Event()

    async def keep_busy(number: int) -> None:
        while not is_scaled.is_set():
            all_streams.append(Stream(number))
            await _load(endpoint, all_streams[-1:])

    async def watch() -> float:
        try:
            await asyncio.to_thread(wait_for, "four replicas run", lambda: _num_running() == _NUM_REPLICAS, _RECOVERY_S)
        finally:
            is_scaled.set()
        return time.monotonic() - began

    *_, seconds = await asyncio.gather(*(keep_busy(number) for number in range(48)), watch())
    return all_streams, seconds or 0.0
