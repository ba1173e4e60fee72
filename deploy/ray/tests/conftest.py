"""Fixtures: the executable, a server without Ray, and what tests share."""

import json
import os
from collections.abc import Iterator

import pytest
from support import DEMO, FLAGS, MAX_TOTAL_TOKENS, Endpoint, direct_endpoint

from hilo_ray.process import ServerProcess, find_executable, new_socket_path


@pytest.fixture(scope="session")
def executable() -> str:
    """The path of the executable under test."""
    return find_executable(os.environ.get("HILO_TEST_EXECUTABLE"))


@pytest.fixture(scope="session")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Flags with the demo model, whose context is made longer, so that a generation can take seconds."""
    folder = tmp_path_factory.mktemp("model")
    for file in DEMO.iterdir():
        if file.suffix in {".json", ".safetensors"} and file.name != "config.json":
            (folder / file.name).symlink_to(file)
    config = json.loads((DEMO / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": MAX_TOTAL_TOKENS}))
    return [*FLAGS, "--model-id", str(folder), "--max-total-tokens", str(MAX_TOTAL_TOKENS)]


@pytest.fixture(scope="session")
def direct(executable: str, flags: list[str]) -> Iterator[Endpoint]:
    """A server with the flags of the replicas, without Ray Serve before it."""
    path = new_socket_path("direct")
    command = [executable, *flags, "--threads", "1", "--device", "cpu", "--uds", path]
    server = ServerProcess(command, path, {}, lambda message: None)
    try:
        server.wait_until_ready(60)
        yield direct_endpoint(path)
    finally:
        server.stop(10)
