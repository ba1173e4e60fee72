"""The server process of a replica, without Ray."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading

import psutil
import pytest
from support import FLAGS, MARKER, are_gone, descendants, wait_for

from hilo_ray.process import ServerProcess, StartError, find_executable, new_socket_path

# A process like a Ray worker: it starts a server, prints its id and waits.
_WORKER = """
import sys, threading
from hilo_ray.process import ServerProcess
server = ServerProcess(sys.argv[2:] + ["--uds", sys.argv[1]], sys.argv[1], {}, print)
server.wait_until_ready(60)
print(server.pid, flush=True)
threading.Event().wait()
"""


def _start(command: list[str], path: str) -> ServerProcess:
    return ServerProcess([*command, "--uds", path], path, MARKER, lambda message: None)


def test_a_program_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HILO_EXECUTABLE", "/nowhere/hilo")
    with pytest.raises(FileNotFoundError, match=r"/nowhere/hilo .* HILO_EXECUTABLE"):
        find_executable(None)


def test_a_server_that_cannot_start_shows_its_last_lines(executable: str) -> None:
    server = _start([executable, "--model-id", "/nowhere"], new_socket_path("test"))
    with pytest.raises(StartError, match=r"(?s)status 2.*/nowhere"):
        server.wait_until_ready(60)


def test_a_server_that_does_not_get_ready_has_a_deadline(tmp_path: pathlib.Path) -> None:
    server = _start(_script(tmp_path, "echo still loading; exec sleep 1000"), new_socket_path("test"))
    with pytest.raises(StartError, match=r"(?s)startup_timeout_s.*"):
        server.wait_until_ready(0.5)
    server.stop(10)
    assert server.has_ended


def test_a_server_that_does_not_stop_is_killed(tmp_path: pathlib.Path) -> None:
    ready = tmp_path / "ready"
    server = _start(
        _script(tmp_path, f"trap '' TERM; touch {ready}; while :; do sleep 0.1; done"), new_socket_path("t")
    )
    wait_for("the script ignores SIGTERM", ready.exists)
    server.stop(0.2)
    assert server.has_ended
    assert f"status {-signal.SIGKILL}" in server.end_message()


def test_a_server_stops_with_status_0_and_leaves_no_socket(executable: str) -> None:
    path = new_socket_path("test")
    server = _start([executable, *FLAGS], path)
    server.wait_until_ready(60)
    server.stop(10)
    assert "status 0" in server.end_message()
    assert not pathlib.Path(path).exists()


def test_an_unexpected_end_is_reported(executable: str) -> None:
    path, messages, reported = new_socket_path("test"), list[str](), threading.Event()

    def report(message: str) -> None:
        messages.append(message)
        reported.set()

    server = ServerProcess([executable, *FLAGS, "--uds", path], path, MARKER, report)
    server.wait_until_ready(60)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert reported.wait(10)
    assert "status -9" in messages[0]
    server.stop(10)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_killed_worker_leaves_no_orphan(executable: str) -> None:
    path = new_socket_path("test")
    command = [sys.executable, "-c", _WORKER, path, executable, *FLAGS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        processes = descendants(psutil.Process(int(worker.stdout.readline())))
        worker.kill()
    assert len(processes) == 3
    wait_for("launcher, router and shard have ended", lambda: are_gone(processes))
    assert not pathlib.Path(path).exists()


def test_sockets_that_killed_servers_left_behind_are_removed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, new, used, plain = (tmp_path / f"hilo-{name}.sock" for name in ("left", "new", "used", "plain"))
    plain.touch()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(used))
        server.listen()
        for path in (left, new):
            with socket.socket(socket.AF_UNIX) as killed:
                killed.bind(str(path))
        for path in (left, used, plain):
            os.utime(path, (0, 0))
        new_socket_path("test")
    assert sorted(tmp_path.iterdir()) == [new, plain, used]


def _script(folder: pathlib.Path, text: str) -> list[str]:
    path = folder / "script"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return [str(path)]
