"""A test of KV cache events with NVIDIA Dynamo: its subscriber reads them, and its router finds the server's blocks.

Dynamo runs in this process, without etcd and NATS. The server is one of its workers; no request goes through Dynamo.
"""

import asyncio
import random
import sys

from dynamo._core import (
    DistributedRuntime,
    KvEventPublisher,
    KvRouter,
    KvRouterConfig,
    ModelInput,
    ModelType,
    WorkerType,
    register_model,
)

from server import BLOCK, LOCAL, MODEL, Server

DEADLINE = 60
rng = random.Random(7)


def unique_prompt() -> str:
    return " ".join(str(rng.randrange(10**6)) for _ in range(60))


async def num_blocks(router: KvRouter, tokens: list[int]) -> int:
    """The number of the server's blocks that Dynamo finds for a prompt."""
    scores = await router.get_overlap_scores(tokens)
    return sum(worker["device_blocks"] for worker in scores["workers"])


async def wait_for(router: KvRouter, tokens: list[int], is_right) -> None:
    async def found() -> None:
        while not is_right(await num_blocks(router, tokens)):
            await asyncio.sleep(0.05)

    await asyncio.wait_for(found(), DEADLINE)


async def handler(request: object, context: object = None):
    raise AssertionError("no request goes through Dynamo")
    yield


async def check(server: Server) -> None:
    loop = asyncio.get_running_loop()
    runtime = DistributedRuntime(loop, "mem", "tcp", False, event_plane="zmq")
    endpoint = runtime.endpoint("hilo.server.generate")
    serving = asyncio.ensure_future(endpoint.serve_endpoint(handler))
    await register_model(
        ModelInput.Tokens,
        ModelType.Completions,
        endpoint,
        str(MODEL),
        "demo",
        worker_type=WorkerType.Aggregated,
        kv_cache_block_size=BLOCK,
        ignore_weights=True,
    )
    source = server.source
    events = KvEventPublisher(
        endpoint,
        kv_block_size=BLOCK,
        enable_local_indexer=True,
        zmq_endpoint=source["endpoint"],
        zmq_topic=source["topic"],
    )
    router = KvRouter(endpoint, BLOCK, KvRouterConfig())

    # A prompt that is sent before Dynamo has subscribed is not known to it.
    async def subscribed() -> None:
        known = 0
        while known == 0:
            prompt = unique_prompt()
            tokens = server.tokens(prompt)
            server.generate(prompt)
            await asyncio.sleep(0.2)
            known = await num_blocks(router, tokens)

    await asyncio.wait_for(subscribed(), DEADLINE)
    prompt = unique_prompt()
    tokens = server.tokens(prompt)
    assert await num_blocks(router, tokens) == 0
    server.generate(prompt)
    await wait_for(router, tokens, lambda found: found == len(tokens) // BLOCK)
    assert await num_blocks(router, tokens[: 3 * BLOCK + 1] + [1] * BLOCK) == 3
    # Other prompts take the blocks of this one.
    for _ in range(20):
        server.generate(unique_prompt())
    await wait_for(router, tokens, lambda found: found == 0)
    assert server.generate(prompt) == 0
    events.shutdown()
    serving.cancel()
    runtime.shutdown()


def main() -> None:
    with Server(sys.argv[1], LOCAL) as server:
        asyncio.run(check(server))


main()
