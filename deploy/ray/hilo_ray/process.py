"""The server process of a replica: start, readiness, unexpected end, stop."""

import collections
import http.client
import logging
import os
import pathlib
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

_LAUNCH = pathlib.Path(__file__).with_name("launch.py")
_NUM_LAST_LINES = 20
_POLL_S = 0.05
_HEALTH_TIMEOUT_S = 5.0
# The age of a socket at which nobody listens, before it counts as left behind.
_SOCKET_AGE_S = 60.0

logger = logging.getLogger("ray.serve")


class StartError(RuntimeError):
    """The server did not get ready. The message has its last lines."""


def find_executable(path: str | None) -> str:
    """Returns the path of the executable: `path`, or else the variable HILO_EXECUTABLE, or else a search in PATH.

    Raises `FileNotFoundError` if there is no such program.
    """
    name = path or os.environ.get("HILO_EXECUTABLE") or "text-generation-launcher"
    if (found := shutil.which(name)) is None:
        raise FileNotFoundError(
            f"{name} is not a program: set `executable` or the variable HILO_EXECUTABLE to the path of Hilo's "
            "text-generation-launcher on every node"
        )
    return str(pathlib.Path(found).resolve())


def new_socket_path(name: str) -> str:
    """Returns a path for a Unix socket that no other replica uses. Removes the sockets of killed replicas."""
    # Ray's own folders are too deep: the path of a socket has at most 107 bytes.
    folder = pathlib.Path(tempfile.gettempdir())
    for path in folder.glob("hilo-*.sock"):
        if _is_left_behind(path):
            path.unlink(missing_ok=True)
            logger.info("removed %s, which a killed server left behind", path)
    return str(folder / f"hilo-{name}-{uuid.uuid4().hex[:8]}.sock")


def _is_left_behind(path: pathlib.Path) -> bool:
    """True if the path is an old socket of this user at which nobody listens."""
    try:
        facts = path.lstat()
        # A server that has just made its socket may not listen yet.
        is_old = time.time() - facts.st_mtime > _SOCKET_AGE_S
        if not (is_old and stat.S_ISSOCK(facts.st_mode) and facts.st_uid == os.getuid()):
            return False
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_HEALTH_TIMEOUT_S)
            client.connect(str(path))
    except ConnectionRefusedError:
        return True
    except OSError:
        # It is gone, or in use, or not reachable.
        pass
    return False


class ServerProcess:
    """A running server. It ends with this process, and with `stop`.

    A thread of its own starts the server, reads its lines and waits for its end. The kernel's signal to a child comes
    at the end of the thread that started it, so this thread must live as long as the server.
    """

    def __init__(
        self,
        command: Sequence[str],
        socket_path: str,
        environment: Mapping[str, str],
        on_unexpected_end: Callable[[str], None],
    ) -> None:
        """Starts `command`, which must listen on `socket_path`.

        After the server was ready, `on_unexpected_end` is called with a message on another thread if the server ends
        without `stop`.
        """
        self.socket_path = socket_path
        self._command = [sys.executable, "-I", "-S", str(_LAUNCH), str(os.getpid()), *command]
        self._environment = {**os.environ, **environment}
        self._on_unexpected_end = on_unexpected_end
        self._process: subprocess.Popen[str] | None = None
        self._last_lines: collections.deque[str] = collections.deque(maxlen=_NUM_LAST_LINES)
        self._is_ready = False
        self._is_stopping = False
        self._lock = threading.Lock()
        self._started = threading.Event()
        self._ended = threading.Event()
        self._status: int | None = None
        threading.Thread(target=self._run, name="hilo-server", daemon=True).start()
        self._started.wait()

    @property
    def pid(self) -> int | None:
        """The id of the launcher's process."""
        return self._process.pid if self._process else None

    @property
    def has_ended(self) -> bool:
        """True if the server has ended, or could not be started."""
        return self._ended.is_set()

    def end_message(self) -> str:
        """Returns a text with the exit status and the last lines of a server that has ended."""
        return f"the server has ended with status {self._status}; its last lines:\n{self._last_text()}"

    def wait_until_ready(self, timeout_s: float) -> None:
        """Returns when the health route replies with status 200.

        Raises `StartError` when the server ends first, or is not ready after `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        while not _is_healthy(self.socket_path):
            if self._ended.wait(_POLL_S):
                raise StartError(self.end_message())
            if time.monotonic() > deadline:
                raise StartError(
                    f"the server was not ready after {timeout_s:g} s (`startup_timeout_s`); its last lines:\n"
                    f"{self._last_text()}"
                )
        with self._lock:
            self._is_ready = True
        if self.has_ended:
            raise StartError(self.end_message())

    def stop(self, timeout_s: float) -> None:
        """Sends SIGTERM and waits until the server has ended. After `timeout_s` seconds it is killed."""
        with self._lock:
            self._is_stopping = True
        if self._process is not None and not self.has_ended:
            self._process.terminate()
            if not self._ended.wait(timeout_s):
                logger.warning("the server is killed: it did not end within %g s of SIGTERM", timeout_s)
                self._process.kill()
                self._ended.wait()
        # A server that was killed leaves its socket.
        pathlib.Path(self.socket_path).unlink(missing_ok=True)

    def _run(self) -> None:
        try:
            self._process = process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                # Ctrl-C on the terminal of `ray start` must not end the server before its replica.
                start_new_session=True,
            )
        except OSError as error:
            self._last_lines.append(str(error))
            self._ended.set()
            return
        finally:
            self._started.set()
        assert process.stdout is not None
        for line in process.stdout:
            self._last_lines.append(line.rstrip("\n"))
            logger.info("hilo: %s", line.rstrip("\n"))
        self._status = process.wait()
        with self._lock:
            is_unexpected = self._is_ready and not self._is_stopping
            self._ended.set()
        if is_unexpected:
            self._on_unexpected_end(self.end_message())

    def _last_text(self) -> str:
        return "\n".join(list(self._last_lines)) or "(none)"


class _UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _is_healthy(socket_path: str) -> bool:
    connection = _UnixConnection(socket_path, _HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
