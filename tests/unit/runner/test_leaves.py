"""Each job of a container that carries jobs is in a leaf of its own, which the shim has brought."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from common.processes.leaves import (
    BEGIN,
    MAX_LEAVES,
    LeafFile,
    LeafOrder,
    LeafSupply,
    line_of,
)
from fairlead.wire.runner import ExitReason
from runner.client import RunnerClient
from runner.job import leaves
from runner.processes.leaf import Leaf
from tests.support.waiting import eventually
from tests.unit.runner.harness import a_job, a_runner, exit_of, run_job
from tests.unit.runner.test_batch import all_over, carried, code_of, opened, text_of

FILES = (LeafFile.ENTER, LeafFile.KILL, LeafFile.EVENTS)


class Brought:
    """The shim's end: leaves are plain files here, and what is written to them is seen."""

    def __init__(self, folder: Path, reader: asyncio.StreamReader, way: socket.socket) -> None:
        self.folder = folder
        self.reader = reader
        self.way = way

    async def order(self) -> LeafOrder:
        line = await self.reader.readline()
        return msgspec.json.decode(line, type=LeafOrder)

    def give_home(self) -> None:
        self.send(LeafSupply(home=1), [self.folder / "home"])

    def give(self, *numbers: int, events: str = "oom_kill 0\n", inside: str = "") -> None:
        paths = [self.folder / f"{number}.{kind}" for number in numbers for kind in FILES]
        for path in paths:
            content = {".events": events, ".enter": inside}.get(path.suffix, "")
            path.write_text(content)
        self.send(LeafSupply(numbers=numbers, files=FILES), paths)

    def give_none(self) -> None:
        self.send(LeafSupply(), [])

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def send(self, supply: LeafSupply, paths: list[Path]) -> None:
        fds = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC) for path in paths]
        try:
            socket.send_fds(self.way, [line_of(supply)], fds)
        finally:
            for fd in fds:
                os.close(fd)


@contextlib.asynccontextmanager
async def a_shim(folder: Path, home: Path) -> AsyncIterator[Brought]:
    await asyncio.to_thread(folder.mkdir)
    reader, writer = await asyncio.open_unix_connection(home / "runner.sock")
    try:
        writer.write(BEGIN)
        with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as way:
            yield Brought(folder, reader, way)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def opened_in_a_leaf(
    shim: Brought, client: RunnerClient, folder: Path, *commands: str, **given: str
) -> bool:
    """Run the container's own job in the leaf 100; return whether its container may carry
    others."""
    assert await shim.order() == LeafOrder()
    shim.give_home()
    opening = asyncio.create_task(opened(client, folder, *commands))
    assert await shim.order() == LeafOrder(want=1)
    shim.give(100, **given)
    return await opening


async def test_each_job_is_born_in_its_own_leaf_and_the_runner_comes_back(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client), a_shim(tmp_path / "shim", tmp_path) as shim:
        assert await opened_in_a_leaf(shim, client, tmp_path)
        assert await shim.order() == LeafOrder(want=MAX_LEAVES)
        shim.give(0, 1, 2)
        where = str(tmp_path / "work")
        answer = await all_over(
            client,
            carried("a2", "true", working_dir=where),
            carried("a3", "true", working_dir=where),
        )
        assert answer.dirty is None
        assert [shim.text(f"{number}.enter") for number in (100, 0, 1, 2)] == ["0", "0", "0", ""]
        assert shim.text("home") == "000"


async def test_what_the_container_s_own_job_leaves_is_found_in_its_leaf(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client), a_shim(tmp_path / "shim", tmp_path) as shim:
        assert not await opened_in_a_leaf(shim, client, tmp_path, inside="0\n4711\n")
        assert shim.text("100.kill") == "1"


async def test_a_kill_for_memory_is_seen_in_the_leaf_of_the_container_s_own_job(
    tmp_path: Path,
) -> None:
    async with a_runner(tmp_path) as (_, client), a_shim(tmp_path / "shim", tmp_path) as shim:
        killed = "oom_kill 1\n"
        assert not await opened_in_a_leaf(shim, client, tmp_path, "exit 137", events=killed)
        assert (await exit_of(client)).reason == ExitReason.OUT_OF_MEMORY


async def test_a_job_whose_container_carries_none_asks_for_no_leaf(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (runner, client), a_shim(tmp_path / "shim", tmp_path) as shim:
        assert await shim.order() == LeafOrder()
        await run_job(client, a_job("true"))
        await runner.close()
        assert await shim.reader.read() == b""


async def test_a_process_in_its_leaf_makes_a_job_dirty_and_is_killed(tmp_path: Path) -> None:
    """It has left the job's session, and its parent has ended."""
    async with a_runner(tmp_path) as (_, client), a_shim(tmp_path / "shim", tmp_path) as shim:
        await opened_in_a_leaf(shim, client, tmp_path)
        shim.give(0, inside="0\n4711\n")
        answer = await all_over(client, carried("a2", "true", working_dir=str(tmp_path / "work")))
        assert code_of(answer.jobs[0]) == 0
        assert answer.dirty == "a process was left"
        assert shim.text("0.kill") == "1"


async def test_a_kill_for_memory_counts_for_the_job_in_whose_leaf_it_was(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client), a_shim(tmp_path / "shim", tmp_path) as shim:
        await opened_in_a_leaf(shim, client, tmp_path)
        shim.give(0, events="low 0\noom_kill 1\n")
        job = carried("a2", "exit 137", working_dir=str(tmp_path / "work"))
        answer = await all_over(client, job)
        assert answer.jobs[0].exit is not None
        assert answer.jobs[0].exit.reason == ExitReason.OUT_OF_MEMORY
        assert answer.dirty == "its memory limit was reached"


async def test_the_leaf_is_no_descriptor_of_the_job(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client), a_shim(tmp_path / "shim", tmp_path) as shim:
        await opened_in_a_leaf(shim, client, tmp_path)
        shim.give(0)
        job = carried("a2", "readlink /proc/$$/fd/*", working_dir=str(tmp_path / "work"))
        answer = await all_over(client, job)
        assert b"shim" not in text_of(answer.jobs[0])


async def test_a_job_of_a_node_without_leaves_runs_as_before(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client), a_shim(tmp_path / "shim", tmp_path) as shim:
        await shim.order()
        shim.give_none()
        await opened(client, tmp_path)
        answer = await all_over(client, carried("a2", "true", working_dir=str(tmp_path / "work")))
        assert (code_of(answer.jobs[0]), answer.dirty) == (0, None)


async def test_a_silent_shim_holds_no_job_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaves, "PATIENCE", 0.01)
    async with a_runner(tmp_path) as (_, client), a_shim(tmp_path / "shim", tmp_path) as shim:
        await shim.order()
        shim.give_home()
        await opened(client, tmp_path)
        answer = await all_over(client, carried("a2", "true", working_dir=str(tmp_path / "work")))
        assert (code_of(answer.jobs[0]), answer.dirty) == (0, None)


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b"x" * 5000])
async def test_a_shim_that_speaks_otherwise_is_left(tmp_path: Path, line: bytes) -> None:
    async with a_runner(tmp_path) as (_, client), a_shim(tmp_path / "shim", tmp_path) as shim:
        await shim.order()
        shim.way.send(line)
        assert await shim.reader.read() == b""
        await opened(client, tmp_path)
        answer = await all_over(client, carried("a2", "true", working_dir=str(tmp_path / "work")))
        assert code_of(answer.jobs[0]) == 0


async def test_a_leaf_that_is_gone_costs_the_job_only_its_leaf(tmp_path: Path) -> None:
    """A shim that starts again removes leaves without a process: no write to them works then."""
    async with a_runner(tmp_path) as (_, client), a_shim(tmp_path / "shim", tmp_path) as shim:
        await opened_in_a_leaf(shim, client, tmp_path)
        shim.send(LeafSupply(numbers=(0,), files=(LeafFile.ENTER,)), [Path("/dev/full")])
        answer = await all_over(client, carried("a2", "true", working_dir=str(tmp_path / "work")))
        assert (code_of(answer.jobs[0]), answer.dirty) == (0, None)
        assert shim.text("home") == "00"


@pytest.mark.parametrize("home", ["/dev/full", None])
def test_a_leaf_that_the_runner_could_not_leave_is_not_killed_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    with contextlib.ExitStack() as opened_files:

        def open_file(path: Path) -> int:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            opened_files.callback(os.close, fd)
            return fd

        enter, kill = tmp_path / "enter", tmp_path / "kill"
        files = [(LeafFile.ENTER, open_file(enter)), (LeafFile.KILL, open_file(kill))]
        leaf = Leaf(0, files, [open_file(Path(home))] if home else [])
        assert leaf.enter()
        leaf.leave()
        enter.write_text(f"4711\n{os.getpid()}\n")
        leaf.kill()
        assert (killed, kill.read_text()) == ([4711], "")


async def test_the_next_shim_hears_which_leaf_has_a_job(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        async with a_shim(tmp_path / "shim", tmp_path) as first:
            await opened_in_a_leaf(first, client, tmp_path)
            assert (await first.order()).want == MAX_LEAVES
            first.give(7, 8)
            go = tmp_path / "go"
            os.mkfifo(go)
            where = str(tmp_path / "work")
            job = carried("a2", f"read _ < {go}", working_dir=where)
            over = asyncio.create_task(all_over(client, job))
            await eventually(lambda: first.text("7.enter") == "0")
        async with a_shim(tmp_path / "next", tmp_path) as second:
            assert await second.order() == LeafOrder(holds=(7,))
            assert (await second.order()).want == MAX_LEAVES
            second.give_home()
            second.give(9)
            await asyncio.to_thread(go.write_text, "go\n")
            assert (await over).dirty is None
            await all_over(client, carried("a3", "true", working_dir=where))
            assert second.text("9.enter") == "0"


async def test_leaves_are_asked_for_before_the_last_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaves, "_REFILL", 1)
    async with a_runner(tmp_path) as (_, client), a_shim(tmp_path / "shim", tmp_path) as shim:
        await opened_in_a_leaf(shim, client, tmp_path)
        await shim.order()
        shim.give(0, 1)
        await all_over(client, carried("a2", "true", working_dir=str(tmp_path / "work")))
        assert await shim.order() == LeafOrder(want=MAX_LEAVES - 1, ended=(100, 0))
