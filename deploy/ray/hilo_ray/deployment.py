"""The deployment: each replica has one server process, and passes HTTP through to it."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Mapping, Sequence

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from hilo_ray.autoscaling import queue_stats
from hilo_ray.exchange import Exchange, open_session
from hilo_ray.process import ServerProcess, find_executable, new_socket_path

_PROBE_TIMEOUT_S = 5
# The time in which the errors of running requests reach Ray Serve.
_LAST_WORDS_S = 0.5
_EXIT_TIMEOUT_S = 5.0
# The server must not listen elsewhere, nor encrypt what only this process reads. An empty variable counts as unset.
_UNSET = {"UDS": "", "TLS_CERTFILE": "", "TLS_KEYFILE": ""}

logger = logging.getLogger("ray.serve")


class Hilo:
    """A replica. `hilo_ray.app` makes a deployment of it."""

    def __init__(
        self,
        executable: str | None = None,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        num_threads: int | None = None,
        startup_timeout_s: float = 600,
        stop_timeout_s: float = 20,
    ) -> None:
        """Starts the server with `flags` and waits until it is ready.

        `num_threads` is `--threads`, or less if this machine has fewer CPUs. `environment` has variables in addition
        to those of the worker.

        Raises `FileNotFoundError` without an executable, and `StartError` when the server does not get ready.
        """
        # The destructor also runs after a constructor that failed.
        self._process: ServerProcess | None = None
        self._stop_timeout_s = stop_timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._replica = serve.get_replica_context().replica_id.unique_id
        self._environment = {**_UNSET, **(environment or {})}
        socket_path = new_socket_path(self._replica)
        command = [find_executable(executable), *flags, "--uds", socket_path]
        if num_threads is not None:
            command += ["--threads", str(min(num_threads, len(os.sched_getaffinity(0))))]
        self._process = ServerProcess(command, socket_path, self._environment, self._leave)
        try:
            self._process.wait_until_ready(startup_timeout_s)
        except Exception:
            self._process.stop(stop_timeout_s)
            raise

    async def __call__(self, request: Request) -> Response:
        """Passes a request through."""
        return Exchange(self._connections(), request, await request.body(), self._replica)

    async def check_health(self) -> None:
        """Raises `RuntimeError` when the process has ended, or its health route fails."""
        assert self._process is not None
        if self._process.has_ended:
            raise RuntimeError(self._process.end_message())
        try:
            status, _ = await self._get("/health")
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            raise RuntimeError(f"the server's health route does not reply: {error!r}") from error
        if status != 200:
            raise RuntimeError(f"the server's health route replies with status {status}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Returns the numbers of running and waiting sequences for `hilo_ray.autoscaling`."""
        status, text = await self._get("/metrics")
        if status != 200:
            raise RuntimeError(f"the server's metrics have status {status}")
        return queue_stats(text)

    def __del__(self) -> None:
        """Stops the server. Ray Serve calls this after the last running request."""
        if self._process is not None:
            self._process.stop(self._stop_timeout_s)

    def _connections(self) -> aiohttp.ClientSession:
        # A session belongs to the event loop in which it is made, which does not run yet in the constructor.
        if self._session is None:
            assert self._process is not None
            self._session = open_session(self._process.socket_path)
        return self._session

    async def _get(self, path: str) -> tuple[int, str]:
        # `/metrics` asks for a key if there are keys.
        key = (self._environment.get("API_KEY") or os.environ.get("API_KEY", "")).split(",")[0].strip()
        headers = {"authorization": f"Bearer {key}"} if key else {}
        timeout = aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_S)
        async with self._connections().get(f"http://localhost{path}", headers=headers, timeout=timeout) as response:
            return response.status, await response.text()

    def _leave(self, message: str) -> None:
        """Ends this worker after its server has ended, so that Ray Serve starts another replica.

        A replica that stayed until its health check has failed three times would attract requests: the router prefers
        replicas with few running ones.
        """
        logger.error("this replica ends: %s", message)
        if self._process is not None:
            # Removes the socket.
            self._process.stop(self._stop_timeout_s)
        time.sleep(_LAST_WORDS_S)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_EXIT_TIMEOUT_S)
        os._exit(1)
