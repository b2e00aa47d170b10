import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from runner.client import RunnerClient, RunnerUnavailable
from runner.processes.spawn import Children
from runner.runner import Runner
from runner.server import log_to, served
from runner.sockets import Peers, SocketUnusable, is_welcome, listen
from tests.doubles.scopes import SessionScope
from tests.unit.runner.harness import a_session


def test_folders_are_made_and_the_mode_lets_the_group_in(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "runner.sock"
    listen(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "runner.sock"
    listen(path).close()
    with listen(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert os.listdir(tmp_path) == ["runner.sock"]


def test_a_caller_that_sees_the_socket_is_never_refused(tmp_path: Path) -> None:
    path = tmp_path / "runner.sock"
    seen = threading.Event()
    refused: list[int] = []

    def knock() -> None:
        while not seen.is_set():
            with socket.socket(socket.AF_UNIX) as client:
                code = client.connect_ex(str(path))
            if code not in (0, errno.ENOENT):
                refused.append(code)
            if code == 0:
                seen.set()

    for _ in range(50):
        seen.clear()
        client = threading.Thread(target=knock)
        client.start()
        with listen(path):
            client.join()
        path.unlink()
    assert refused == []


def test_a_socket_in_use_is_not_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "runner.sock"
    with listen(path), pytest.raises(SocketUnusable, match="in use"):
        listen(path)


def test_a_path_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "runner.sock"
    path.write_text("precious")
    with pytest.raises(SocketUnusable, match="--socket"):
        listen(path)
    assert path.read_text() == "precious"


def test_a_path_longer_than_the_kernel_takes_is_named() -> None:
    with pytest.raises(SocketUnusable, match="longer than 107 bytes"):
        listen(Path("/tmp") / ("x" * 110))


def test_a_peer_of_our_own_pid_namespace_is_not_the_node() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not is_welcome(ours, Peers.NODE)
        assert is_welcome(ours, Peers.ANY)


def test_the_runners_own_log_is_bounded(tmp_path: Path) -> None:
    root = logging.getLogger()
    level = root.level
    log_to(tmp_path)
    handler = root.handlers[-1]
    try:
        for number in range(40):
            handler.handle(logging.makeLogRecord({"msg": f"{number} " + "x" * (100 << 10)}))
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()
    files = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert set(files) == {"runner.log", "runner.log.1"}
    assert all(size < (1 << 20) + (200 << 10) for size in files.values())
    assert "39 x" in (tmp_path / "runner.log").read_text()


async def test_an_unwelcome_peer_is_cut_off(tmp_path: Path) -> None:
    runner = Runner(tmp_path / "task", scope=SessionScope(), children=Children())
    path = tmp_path / "runner.sock"
    async with served(runner, path, Peers.NODE), a_session(path) as session:
        with pytest.raises(RunnerUnavailable):
            await RunnerClient(session).health()
    await runner.close()


async def test_a_burst_of_connections_waits_at_the_socket(tmp_path: Path) -> None:
    runner = Runner(tmp_path / "task", scope=SessionScope(), children=Children())
    path = tmp_path / "runner.sock"
    async with served(runner, path, Peers.ANY):
        with contextlib.ExitStack() as stack:
            for _ in range(500):  # none is accepted meanwhile
                connection = stack.enter_context(socket.socket(socket.AF_UNIX))
                connection.setblocking(False)
                connection.connect(str(path))
        async with a_session(path) as session:
            assert await RunnerClient(session).health()
    await runner.close()


async def test_a_peer_outside_our_pid_namespace_is_the_node(tmp_path: Path) -> None:
    """The listener is made in a pid namespace of its own; we, outside, show as pid 0 there."""
    path = tmp_path / "runner.sock"
    server = (
        "import sys, pathlib; from runner.sockets import *;"
        "s = listen(pathlib.Path(sys.argv[1])); s.setblocking(True); print(flush=True);"
        "print(is_welcome(s.accept()[0], Peers.NODE), flush=True)"
    )
    process = await asyncio.create_subprocess_exec(
        *("unshare", "--pid", "--fork", "--kill-child", "python3", "-c", server, str(path)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert process.stdout is not None
    await process.stdout.readline()
    _, writer = await asyncio.open_unix_connection(path)
    answer = await process.stdout.readline()
    writer.close()
    await writer.wait_closed()
    await process.wait()
    assert answer == b"True\n"
