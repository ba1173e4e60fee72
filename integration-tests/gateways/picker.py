"""An endpoint picker: chooses the server for each request that passes through Envoy.

    picker.py --port PORT --policy round-robin|guessed|published --server IP:PORT … [--events ADDRESS …]
              [--replay ADDRESS …]

It speaks Envoy's protocol of external processors, and answers with the header `x-gateway-destination-endpoint`, as the
pickers of the Gateway API's inference extension do. It asks a server for the tokens of a prompt, and prefers the server
that has most of them in its cache, if that one is not busier than others. `--events` and `--replay` have an address for
each server.
"""

import argparse
import concurrent.futures
import itertools
import json
import threading
import time

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as protocol
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service

import prefixes
import servers

DESTINATION = "x-gateway-destination-endpoint"
RENDERED = "/v1/completions", "/v1/chat/completions"
SCRAPE_SECONDS = 0.1
NUM_THREADS = 64
# Points for a prompt that is all in the cache, for the shortest queue, and for an empty KV cache.
CACHED_POINTS, QUEUE_POINTS, MEMORY_POINTS = 2.0, 1.0, 1.0


class Server:
    """A server, with its state as of the last look at its metrics."""

    def __init__(self, endpoint, index):
        self.endpoint = endpoint
        self.url = f"http://{endpoint}"
        self.index = index
        self.num_routed = 0
        self.is_healthy = False
        self.scrape()

    def scrape(self):
        try:
            found = {name: (labels, value) for name, labels, value in servers.series(self.url)}
        except OSError:
            if self.is_healthy:
                print(f"{self.endpoint} is gone", flush=True)
            self.is_healthy = False
            return
        self.num_blocks = int(found["vllm:cache_config_info"][0]["num_gpu_blocks"])
        _, self.num_waiting = found["vllm:num_requests_waiting"]
        _, self.num_running = found["vllm:num_requests_running"]
        _, self.share_used = found["vllm:kv_cache_usage_perc"]
        self.is_healthy = True

    def scrape_forever(self):
        while True:
            time.sleep(SCRAPE_SECONDS)
            self.scrape()


class Picker:
    def __init__(self, policy, all_servers):
        self.policy = policy
        self.servers = all_servers
        self.turn = itertools.count()
        self.lock = threading.Lock()

    def pick(self, path, body):
        """Returns the server for a request, or None if no server is healthy."""
        healthy = [server for server in self.servers if server.is_healthy]
        if not healthy:
            return None
        turn = next(self.turn)
        if self.policy == "round-robin":
            return healthy[turn % len(healthy)]
        blocks = prefixes.chain(self.tokens(healthy[turn % len(healthy)], path, body))
        with self.lock:
            longest = max(server.num_waiting for server in healthy)
            chosen = max(healthy, key=lambda server: self.points(server, blocks, longest))
            chosen.num_routed += 1
            chosen.index.note_routed(blocks, chosen.num_blocks)
        return chosen

    def points(self, server, blocks, longest):
        """Returns what speaks for a server. Of equal ones, the one with the fewest requests is the best."""
        cached = server.index.num_cached(blocks) / max(len(blocks), 1)
        queue = 1 - server.num_waiting / max(longest, 1)
        points = CACHED_POINTS * cached + QUEUE_POINTS * queue + MEMORY_POINTS * (1 - server.share_used)
        return round(points, 1), -server.num_running, -server.num_routed

    def tokens(self, server, path, body):
        """Returns the tokens of the request's prompt; none if it has no single prompt, or is not valid."""
        if path not in RENDERED:
            return []
        try:
            rendered = servers.post(f"{server.url}{path}/render", json.loads(body))
        except (OSError, ValueError):
            return []
        prompts = rendered if isinstance(rendered, list) else [rendered]
        return prompts[0]["token_ids"] if len(prompts) == 1 else []


class Processor(service.ExternalProcessorServicer):
    """Envoy opens a stream for each request: first its headers come, then its body."""

    def __init__(self, picker):
        self.picker = picker

    def Process(self, requests, context):  # the name in the protocol
        path = ""
        for request in requests:
            if request.HasField("request_headers"):
                for header in request.request_headers.headers.headers:
                    if header.key == ":path":
                        path = header.raw_value.decode()
                if request.request_headers.end_of_stream:
                    yield self.response("request_headers", path, b"")
                else:
                    yield protocol.ProcessingResponse(request_headers=protocol.HeadersResponse())
            elif request.HasField("request_body"):
                yield self.response("request_body", path, request.request_body.body)

    def response(self, part, path, body):
        server = self.picker.pick(path.partition("?")[0], body)
        if server is None:
            unavailable = protocol.ImmediateResponse()
            unavailable.status.code = 503
            unavailable.body = b'{"error": "no server is healthy"}'
            return protocol.ProcessingResponse(immediate_response=unavailable)
        common = protocol.CommonResponse(clear_route_cache=True)
        header = common.header_mutation.set_headers.add().header
        header.key, header.raw_value = DESTINATION, server.endpoint.encode()
        kind = protocol.HeadersResponse if part == "request_headers" else protocol.BodyResponse
        return protocol.ProcessingResponse(**{part: kind(response=common)})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--policy", choices=["round-robin", "guessed", "published"], required=True)
    parser.add_argument("--server", action="append", required=True)
    parser.add_argument("--events", action="append", default=[])
    parser.add_argument("--replay", action="append", default=[])
    arguments = parser.parse_args()
    if arguments.policy == "published":
        replays = arguments.replay or [None] * len(arguments.server)
        indices = [prefixes.Published(*each) for each in zip(arguments.events, replays, strict=True)]
    else:
        indices = [prefixes.Guessed() for _ in arguments.server]
    all_servers = [Server(*each) for each in zip(arguments.server, indices, strict=True)]
    for server in all_servers:
        threading.Thread(target=server.scrape_forever, daemon=True).start()
    grpc_server = grpc.server(concurrent.futures.ThreadPoolExecutor(NUM_THREADS))
    service.add_ExternalProcessorServicer_to_server(Processor(Picker(arguments.policy, all_servers)), grpc_server)
    assert grpc_server.add_insecure_port(f"127.0.0.1:{arguments.port}") == arguments.port
    grpc_server.start()
    print("ready", flush=True)
    grpc_server.wait_for_termination()


if __name__ == "__main__":
    main()
