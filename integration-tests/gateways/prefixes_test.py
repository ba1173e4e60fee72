"""Checks what the picker takes a server to have in its cache. A publisher made here stands for the server."""

import time

import msgpack
import zmq

import prefixes

SECONDS = 10
NEVER_A_MESSAGE = -1


class Publisher:
    """What a server publishes, in vLLM's form, with a socket that repeats old messages."""

    def __init__(self, context):
        self.socket = context.socket(zmq.XPUB)
        self.router = context.socket(zmq.ROUTER)
        for socket in self.socket, self.router:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVTIMEO, SECONDS * 1000)
        port, replay_port = (socket.bind_to_random_port("tcp://127.0.0.1") for socket in (self.socket, self.router))
        self.index = prefixes.Published(f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{replay_port}")
        assert self.socket.recv() == b"\x01", "no subscription to all topics"
        self.messages = []

    def make(self, *events):
        sequence = len(self.messages).to_bytes(8, "big")
        self.messages.append([sequence, msgpack.packb([1795700000.5, list(events), 0])])
        return [b"kv@pod@demo", *self.messages[-1]]

    def publish(self, *events):
        self.socket.send_multipart(self.make(*events))

    def lose(self, *events):
        self.make(*events)

    def repeat(self):
        """Answers a request for old messages, and returns the number that it begins with."""
        client, empty, first = self.router.recv_multipart()
        for message in self.messages[int.from_bytes(first, "big"):]:
            self.router.send_multipart([client, empty, *message])
        self.router.send_multipart([client, empty, NEVER_A_MESSAGE.to_bytes(8, "big", signed=True), b""])
        return int.from_bytes(first, "big")

    def wait(self, num_messages):
        end = time.monotonic() + SECONDS
        while self.index.num_messages < num_messages:
            assert time.monotonic() < end, f"{self.index.num_messages} of {num_messages} messages"
            time.sleep(0.01)


def stored(names, tokens, parent=None):
    return {
        "type": "BlockStored",
        "block_hashes": names,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": prefixes.BLOCK_TOKENS,
        "lora_id": None,
        "medium": "GPU",
    }


def removed(*names):
    return {"type": "BlockRemoved", "block_hashes": list(names), "medium": "GPU"}


def check_published(context):
    publisher = Publisher(context)
    index = publisher.index
    tokens = list(range(100, 164))
    blocks = prefixes.chain(tokens)
    assert len(blocks) == 4 and index.num_cached(blocks) == 0

    publisher.publish(stored([b"a", b"b"], tokens[:32]), stored([b"x"], tokens[16:32]))
    publisher.wait(1)
    assert index.num_cached(blocks) == 2, "the first two blocks are there"
    assert index.num_cached(prefixes.chain(tokens[16:])) == 1, "a block has another identity at the beginning"

    publisher.publish(stored([b"c"], tokens[32:48], parent=b"b"))
    publisher.wait(2)
    assert index.num_cached(blocks) == 3

    # Two blocks with the same tokens: one of them goes.
    publisher.publish(stored([b"A"], tokens[:16]), removed(b"A", b"unknown"))
    publisher.wait(3)
    assert index.num_cached(blocks) == 3
    publisher.publish(removed(b"b"))
    publisher.wait(4)
    assert index.num_cached(blocks) == 1

    # A message is lost, and asked for.
    publisher.lose(stored([b"b"], tokens[16:32], parent=b"a"))
    publisher.publish(stored([b"d"], tokens[48:], parent=b"c"))
    assert publisher.repeat() == 4
    publisher.wait(6)
    assert index.num_cached(blocks) == 4

    publisher.publish({"type": "AllBlocksCleared"})
    publisher.wait(7)
    assert index.num_cached(blocks) == 0

    # The server starts again, and counts from 0.
    publisher.publish(stored([b"a"], tokens[:16]))
    publisher.wait(8)
    publisher.messages.clear()
    publisher.publish(stored([7], tokens[16:32]))
    publisher.wait(9)
    assert (index.num_cached(blocks), index.num_cached(prefixes.chain(tokens[16:]))) == (0, 1)

    # Messages are lost that nobody has any more.
    publisher.lose(removed(7))
    publisher.publish(stored([8], tokens[32:48]))
    publisher.messages[1] = publisher.messages[2]
    assert publisher.repeat() == 1
    publisher.wait(10)
    assert (index.num_cached(prefixes.chain(tokens[16:])), index.num_cached(prefixes.chain(tokens[32:]))) == (0, 1)
    index.close()
    publisher.socket.close()
    publisher.router.close()


def check_guessed():
    index = prefixes.Guessed()
    first, second = prefixes.chain(list(range(64))), prefixes.chain(list(range(100, 164)))
    index.note_routed(first, 6)
    assert (index.num_cached(first), index.num_cached(second)) == (4, 0)
    index.note_routed(second, 6)
    assert (index.num_cached(first), index.num_cached(second)) == (2, 4), "the end of the first is forgotten"
    assert prefixes.chain(list(range(15))) == []


def main():
    check_guessed()
    check_published(zmq.Context.instance())
    print("  the index follows stored, removed, cleared, lost and repeated blocks")


if __name__ == "__main__":
    main()
