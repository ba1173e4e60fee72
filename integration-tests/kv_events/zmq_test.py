"""Tests of KV cache events with libzmq and msgspec, as consumers of vLLM's events use them.

The structures have the documented fields of vLLM 0.33's events. An unknown field is an error.
"""

import random
import sys
import urllib.request
from typing import Any

import msgspec
import zmq

from server import BLOCK, LOCAL, Server

DEADLINE_MS = 60_000
END = -1
TOPIC = b"kv@pod-1@demo"


class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: "list[Stored | Removed | Cleared]"
    data_parallel_rank: int | None = None


class Stored(msgspec.Struct, tag="BlockStored", forbid_unknown_fields=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class Removed(msgspec.Struct, tag="BlockRemoved", forbid_unknown_fields=True):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class Cleared(msgspec.Struct, tag="AllBlocksCleared", forbid_unknown_fields=True):
    pass


class Subscriber:
    """A subscriber that knows the blocks of the server."""

    def __init__(self, context: zmq.Context, server: Server, topic: bytes = b""):
        self.server = server
        self.decoder = msgspec.msgpack.Decoder(Batch)
        self.blocks: dict[tuple[int, ...], int] = {}  # all tokens up to the end of a block -> hash
        self.prefixes: dict[int, tuple[int, ...]] = {}
        self.next = 0
        self.num_removed = 0
        self.socket = context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVTIMEO, DEADLINE_MS)
        self.socket.connect(server.source["endpoint"])
        self.socket.subscribe(topic)

    def take(self, number: int, payload: bytes) -> None:
        batch = self.decoder.decode(payload)
        assert batch.ts > 1.7e9 and batch.data_parallel_rank == 0, batch
        begins_anew = isinstance(batch.events[0], Cleared)
        assert number == self.next or begins_anew, f"message {number} came instead of {self.next}"
        self.next = number + 1
        for event in batch.events:
            if isinstance(event, Stored):
                self.store(event)
            elif isinstance(event, Cleared):
                self.blocks.clear()
                self.prefixes.clear()
            else:
                assert isinstance(event, Removed) and (event.medium, event.group_idx) == ("GPU", 0), event
                for block in event.block_hashes:
                    del self.blocks[self.prefixes.pop(block)]
                    self.num_removed += 1

    def store(self, event: Stored) -> None:
        assert (event.block_size, event.medium, event.lora_id, event.lora_name) == (BLOCK, "GPU", None, None), event
        assert (event.group_idx, event.kv_cache_spec_kind) == (0, "full_attention"), event
        assert event.extra_keys == [None] * len(event.block_hashes), event
        assert len(event.token_ids) == BLOCK * len(event.block_hashes), event
        prefix = () if event.parent_block_hash is None else self.prefixes[event.parent_block_hash]
        for index, block in enumerate(event.block_hashes):
            prefix += tuple(event.token_ids[index * BLOCK : (index + 1) * BLOCK])
            assert block not in self.prefixes, "stored twice"
            self.prefixes[block] = prefix
            self.blocks[prefix] = block

    def receive(self) -> None:
        """Receives a message. One that a replay has already brought is skipped."""
        topic, number, payload = self.socket.recv_multipart()
        assert topic == self.server.source["topic"].encode()
        number = int.from_bytes(number, "big", signed=True)
        if number >= self.next:
            self.take(number, payload)

    def replay(self, context: zmq.Context) -> int:
        """Asks for the missing messages, and returns their number."""
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.RCVTIMEO, DEADLINE_MS)
        dealer.connect(self.server.source["replay_endpoint"])
        dealer.send_multipart([b"", self.next.to_bytes(8, "big")])
        num_received = 0
        while True:
            empty, topic, number, payload = dealer.recv_multipart()
            assert empty == b""
            number = int.from_bytes(number, "big", signed=True)
            if number == END:
                assert (topic, payload) == (b"", b"")
                dealer.close()
                return num_received
            assert topic == self.server.source["topic"].encode()
            self.take(number, payload)
            num_received += 1

    def catch_up(self) -> None:
        """Receives everything up to the block of a new prompt."""
        prompt = unique_prompt(6)
        tokens = self.server.tokens(prompt)
        self.server.generate(prompt)
        while tuple(tokens[:BLOCK]) not in self.blocks:
            self.receive()

    def match(self, tokens: list[int]) -> int:
        """The number of tokens that the server should find in its prefix cache. The last one is always read."""
        num_found = 0
        while num_found + BLOCK < len(tokens) and tuple(tokens[: num_found + BLOCK]) in self.blocks:
            num_found += BLOCK
        return num_found


rng = random.Random(7)


def unique_prompt(num_words: int) -> str:
    return " ".join(str(rng.randrange(10**6)) for _ in range(num_words))


def wait_for_subscription(subscriber: Subscriber, context: zmq.Context) -> None:
    """Sends prompts until one of them reaches a subscriber that has just connected."""
    while not subscriber.socket.poll(100):
        subscriber.server.generate(unique_prompt(6))
    subscriber.replay(context)
    subscriber.catch_up()


def test_prefixes_are_found(executable: str, context: zmq.Context) -> None:
    with Server(executable, {**LOCAL, "topic": TOPIC.decode()}) as server:
        subscriber = Subscriber(context, server, TOPIC[:3])
        other_topic = Subscriber(context, server, b"kv@pod-2")
        wait_for_subscription(subscriber, context)
        stories = [unique_prompt(40) for _ in range(12)]
        num_hits = 0
        for _ in range(60):
            story = rng.choice(stories)
            prompt = story[: rng.randrange(60, len(story))] + unique_prompt(rng.randrange(2, 20))
            tokens = server.tokens(prompt)
            subscriber.catch_up()
            expected = subscriber.match(tokens)
            assert server.generate(prompt) == expected, (prompt, expected)
            num_hits += expected > 0
        assert num_hits > 5 and subscriber.num_removed > 50, (num_hits, subscriber.num_removed)
        assert len(subscriber.blocks) <= 128
        secret = unique_prompt(40)
        server.generate(secret, cache_salt="s")
        assert server.generate(secret, cache_salt="s") > 0
        subscriber.catch_up()
        assert tuple(server.tokens(secret)[:BLOCK]) not in subscriber.blocks
        assert not other_topic.socket.poll(0)


def test_missed_messages_are_replayed(executable: str, context: zmq.Context) -> None:
    with Server(executable, {**LOCAL, "buffer_steps": 1000}) as server:
        server.generate(unique_prompt(60))
        server.generate(unique_prompt(60))
        late = Subscriber(context, server)
        assert late.replay(context) >= 2
        second = Subscriber(context, server)
        for subscriber in (late, second):
            wait_for_subscription(subscriber, context)
        late.catch_up()
        while second.next < late.next:
            second.receive()
        assert late.blocks == second.blocks and late.next == second.next
        # A client of type REQ gets the first reply.
        request = context.socket(zmq.REQ)
        request.setsockopt(zmq.RCVTIMEO, DEADLINE_MS)
        request.connect(server.source["replay_endpoint"])
        request.send((1).to_bytes(8, "big"))
        topic, number, payload = request.recv_multipart()
        assert (topic, int.from_bytes(number, "big")) == (b"", 1) and payload
        request.close()


def test_a_subscriber_that_joins_late_knows_all_blocks(executable: str, context: zmq.Context) -> None:
    with Server(executable, {**LOCAL, "buffer_steps": 1, "max_queue_size": 1, "hwm": 1}) as server:
        first = Subscriber(context, server)
        wait_for_subscription(first, context)
        stories = [unique_prompt(40) for _ in range(4)]
        for story in stories:
            server.generate(story)
        first.catch_up()
        joined = Subscriber(context, server)
        joined.receive()
        assert joined.blocks == first.blocks and joined.next == first.next
        asked = Subscriber(context, server)
        assert asked.replay(context) == 1
        assert asked.blocks == first.blocks and asked.next == first.next
        for subscriber in (joined, asked):
            subscriber.catch_up()
            tokens = server.tokens(stories[-1])
            assert server.generate(stories[-1]) == subscriber.match(tokens)


def test_a_slow_subscriber_holds_up_nobody(executable: str, context: zmq.Context) -> None:
    with Server(executable, {**LOCAL, "hwm": 100}) as server:
        slow = context.socket(zmq.SUB)
        slow.setsockopt(zmq.RCVHWM, 1)
        slow.setsockopt(zmq.RCVBUF, 4096)
        slow.connect(server.source["endpoint"])
        slow.subscribe(b"")
        subscriber = Subscriber(context, server)
        wait_for_subscription(subscriber, context)
        before = server.router_bytes()
        for _ in range(300):
            server.generate(unique_prompt(120))
            while subscriber.socket.poll(0):
                subscriber.receive()
        subscriber.catch_up()
        grown = server.router_bytes() - before
        assert grown < 96 << 20, f"the router has {grown >> 20} MiB more"
        # Only the slow one missed messages, and it reads none.
        assert b"hilo_kv_events_dropped_total" in metrics(server)
        slow.close()


def test_the_server_connects_to_a_subscriber(executable: str, context: zmq.Context) -> None:
    collector = context.socket(zmq.SUB)
    collector.setsockopt(zmq.RCVTIMEO, DEADLINE_MS)
    port = collector.bind_to_random_port("tcp://127.0.0.1")
    collector.subscribe(b"")
    with Server(executable, {"endpoint": f"tcp://127.0.0.1:{port}"}) as server:
        while not collector.poll(100):
            server.generate(unique_prompt(6))
        topic, _, payload = collector.recv_multipart()
        batch = msgspec.msgpack.decode(payload, type=Batch)
        assert topic == b"" and isinstance(batch.events[0], Cleared) and isinstance(batch.events[1], Stored), batch
    collector.close()


def metrics(server: Server) -> bytes:
    with urllib.request.urlopen(server.url + "/metrics", timeout=60) as response:
        return response.read()


def main() -> None:
    context = zmq.Context()
    context.setsockopt(zmq.LINGER, 0)
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            print(f"  {name}", flush=True)
            test(sys.argv[1], context)
    context.destroy()


main()
