"""The prefixes that each server has in its cache, in blocks of tokens: guessed from the requests that it got, or known
from the events that it publishes."""

import collections
import threading

import msgpack
import zmq

BLOCK_TOKENS = 16
POLL_MS = 100
REPLAY_MS = 2000
NO_PARENT = 0


def chain(tokens, parent=NO_PARENT):
    """Returns an identity for each whole block of `tokens`, which depends on all tokens before the block too."""
    identities = []
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        parent = hash((parent, *tokens[start : start + BLOCK_TOKENS]))
        identities.append(parent)
    return identities


class Guessed:
    """Takes a server to have the prompts that were sent to it last, as many as fit into its cache."""

    def __init__(self):
        self.blocks = collections.OrderedDict()

    def num_cached(self, blocks):
        """Returns how many of the first `blocks` the server has."""
        return next((index for index, block in enumerate(blocks) if block not in self.blocks), len(blocks))

    def note_routed(self, blocks, capacity):
        # The last block first: of a prompt that is partly forgotten, the beginning is left.
        for block in reversed(blocks):
            self.blocks[block] = None
            self.blocks.move_to_end(block)
        while len(self.blocks) > capacity:
            self.blocks.popitem(last=False)


class Published:
    """Follows the events of a server: vLLM's messages over ZeroMQ.

    Messages that were lost are asked for at `replay`, if the server has such an address. Without it, or if the server
    does not have them any more, all blocks are forgotten.
    """

    def __init__(self, events, replay=None):
        self.blocks = {}  # the server's name of a block: our identity
        self.counts = collections.Counter()  # of our identities: equal blocks may have several names
        self.next_sequence = 0
        self.num_messages = 0
        self.replay = replay
        self.lock = threading.Lock()
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        self.socket.connect(events)
        self.is_open = True
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def num_cached(self, blocks):
        with self.lock:
            return next((index for index, block in enumerate(blocks) if self.counts[block] == 0), len(blocks))

    def note_routed(self, blocks, capacity):
        """The server itself says what it has."""

    def close(self):
        self.is_open = False
        self.thread.join()
        self.socket.close(linger=0)

    def run(self):
        while self.is_open:
            if self.socket.poll(POLL_MS):
                _topic, sequence, payload = self.socket.recv_multipart()
                self.receive(int.from_bytes(sequence, "big"), payload)

    def receive(self, sequence, payload):
        if sequence < self.next_sequence:
            # The server has started again.
            self.clear()
            self.next_sequence = 0
        if sequence > self.next_sequence:
            missed = self.missed(sequence)
            if [each for each, _ in missed] == list(range(self.next_sequence, sequence)):
                for _, each in missed:
                    self.apply(each)
            else:
                self.clear()
        self.next_sequence = sequence + 1
        self.apply(payload)

    def missed(self, end):
        """Returns the sequence number and payload of each message from the next one to `end`, as far as the server
        has them."""
        messages = []
        if self.replay is None:
            return messages
        with zmq.Context.instance().socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(self.replay)
            socket.send_multipart([b"", self.next_sequence.to_bytes(8, "big")])
            while socket.poll(REPLAY_MS):
                *_, sequence, payload = socket.recv_multipart()
                sequence = int.from_bytes(sequence, "big", signed=True)
                if sequence < 0 or sequence >= end:
                    break
                messages.append((sequence, payload))
        return messages

    def clear(self):
        with self.lock:
            self.blocks.clear()
            self.counts.clear()

    def apply(self, payload):
        _time, events, *_rank = msgpack.unpackb(payload)
        for event in events:
            match event["type"]:
                case "BlockStored":
                    self.store(event)
                case "BlockRemoved":
                    with self.lock:
                        for name in event["block_hashes"]:
                            if (block := self.blocks.pop(name, None)) is not None:
                                self.counts[block] -= 1
                case "AllBlocksCleared":
                    self.clear()
        self.num_messages += 1

    def store(self, event):
        assert event["block_size"] == BLOCK_TOKENS, event
        with self.lock:
            parent = event["parent_block_hash"]
            if parent is not None and parent not in self.blocks:
                return  # stored before the subscription began
            identities = chain(event["token_ids"], NO_PARENT if parent is None else self.blocks[parent])
            for name, block in zip(event["block_hashes"], identities, strict=True):
                if self.blocks.get(name) != block:
                    self.blocks[name] = block
                    self.counts[block] += 1
