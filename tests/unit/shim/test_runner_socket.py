"""Callers reach a runner by a name that its job cannot bend."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.wire.shim import TaskStatus
from shim.access import runner_socket
from shim.access.runner_socket import arrival
from tests.support.waiting import LONG, eventually
from tests.unit.shim.parts import CALLER, Node, listen, put, until


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def inode(path: Path) -> int:
    return path.stat().st_ino


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_the_door_leads_to_the_first_socket_whatever_the_job_puts_there_later(
    node: Node, tmp_path: Path
) -> None:
    async with node.shim() as service:
        await put(service)
        path = Path((await until(service, "t1", TaskStatus.RUNNING)).runner_socket)
        inner = node.settings.socket_folder("t1") / "runner.sock"
        with listen(inner), listen(tmp_path / "other.sock"):
            await eventually(path.exists)
            first = inode(path)
            assert first == inode(inner)
            inner.unlink()
            inner.symlink_to(tmp_path / "other.sock")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
                caller.connect(str(path))
    async with node.shim() as service:
        await until(service, "t1", TaskStatus.RUNNING)
        assert inode(path) == first


async def test_the_shim_says_when_the_runner_listens_also_after_its_restart(node: Node) -> None:
    async with node.shim() as service:
        await put(service)
        assert (await until(service, "t1", TaskStatus.RUNNING)).runner_listens is False
        with listen(node.settings.socket_folder("t1") / "runner.sock"):
            await eventually(lambda: service.supervisor.info("t1").runner_listens)
    async with node.shim() as service:
        await eventually(lambda: service.supervisor.info("t1").runner_listens)


@pytest.mark.parametrize("kind", ["symlink", "file", "fifo"])
async def test_a_file_that_is_no_socket_gets_no_door(
    node: Node, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with node.shim() as service:
        await put(service)
        path = Path((await until(service, "t1", TaskStatus.RUNNING)).runner_socket)
        inner = node.settings.socket_folder("t1") / "runner.sock"
        with listen(tmp_path / "other.sock"):
            if kind == "symlink":
                inner.symlink_to(tmp_path / "other.sock")
            elif kind == "file":
                inner.touch()
            else:
                os.mkfifo(inner)
            await eventually(lambda: "cannot be reached" in caplog.text)
    assert names(path.parent) == []


async def test_a_door_goes_with_its_task_and_strays_go_at_the_next_start(node: Node) -> None:
    async with node.shim() as service:
        await put(service)
        path = Path((await until(service, "t1", TaskStatus.RUNNING)).runner_socket)
        with listen(node.settings.socket_folder("t1") / "runner.sock"):
            await eventually(path.exists)
        (path.parent / "stray.sock").touch()
    async with node.shim() as service:
        await until(service, "t1", TaskStatus.RUNNING)
        assert names(path.parent) == ["t1.sock"]
        node.host.containers["c-t1"].end(0)
        await until(service, "t1", TaskStatus.TERMINATED)
        await service.supervisor.remove("t1", CALLER)
    assert names(path.parent) == []


async def test_a_file_that_comes_by_renaming_has_arrived_too(tmp_path: Path) -> None:
    waiting = asyncio.create_task(arrival(tmp_path, "wanted"))
    await asyncio.sleep(0)
    (tmp_path / "other").touch()
    (tmp_path / "other").rename(tmp_path / "wanted")
    async with asyncio.timeout(LONG):
        await waiting
    with pytest.raises(FileNotFoundError):
        await arrival(tmp_path / "nowhere", "wanted")


class Watches:
    """Those that `arrival` has made. `closed_in`: the threads that have closed one."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.closed_in: list[int] = []


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> Watches:
    made, watch, close = Watches(), runner_socket._watch, os.close

    def watching(folder: Path) -> int:
        made.open.add(fd := watch(folder))
        return fd

    def noting(fd: int) -> None:
        if fd in made.open:
            made.open.remove(fd)
            made.closed_in.append(threading.get_ident())
        close(fd)

    monkeypatch.setattr(runner_socket, "_watch", watching)
    monkeypatch.setattr(os, "close", noting)
    return made


class NoThreads(ThreadPoolExecutor):
    """As one whose process may have no more: it keeps what it was given, for its next thread."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Callable[[], object]] = []

    def submit(self, fn: Callable[..., Any], /, *given: Any, **_: Any) -> Future[Any]:
        self.kept.append(partial(fn, *given))
        raise RuntimeError("can't start new thread")


async def test_a_watch_is_closed_once_also_when_no_thread_can_be_started(
    tmp_path: Path, watches: Watches
) -> None:
    threads = NoThreads()
    asyncio.get_running_loop().set_default_executor(threads)
    (tmp_path / "there").touch()
    await arrival(tmp_path, "there")
    assert watches.open == set()
    for close in threads.kept:
        close()  # of a number that another file may have by now
    assert watches.closed_in == [threading.get_ident()]


async def test_the_loop_does_not_wait_until_the_kernel_has_closed_a_watch(
    tmp_path: Path, watches: Watches
) -> None:
    """14 ms each: 20 tasks that started at once had a loop that stood still for 0.4 s of 2.5."""
    (tmp_path / "there").touch()
    await arrival(tmp_path, "there")
    waiting = asyncio.create_task(arrival(tmp_path, "wanted"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()
    assert len(watches.closed_in) == 2
    assert threading.get_ident() not in watches.closed_in
    assert watches.open == set()


def test_two_shims_with_their_sockets_in_one_folder_have_doors_of_their_own(
    node: Node,
) -> None:
    other = replace(node.settings, socket=node.settings.socket.with_name("other.sock"))
    assert other.sockets_folder != node.settings.sockets_folder
    assert other.sockets_folder.parent == node.settings.sockets_folder.parent
