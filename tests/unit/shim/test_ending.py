"""A task's end is told once its container is gone, and not before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fairlead.wire.errors import Refused
from fairlead.wire.shim import TaskStatus, TerminateRequest
from tests.doubles.failing_engines import StubbornEngine
from tests.doubles.records import MoodyRecords
from tests.support.waiting import eventually
from tests.unit.shim.parts import CALLER, Node, put, request, until

ABORT = TerminateRequest(grace=0.0, reason="aborted_by_user")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_a_place_is_free_only_once_the_container_could_be_removed(node: Node) -> None:
    engine = StubbornEngine(node.host, "remove", 2, fails="start")
    async with node.shim(engine) as daemon:
        await put(daemon)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
        assert (node.host.containers, engine.left) == ({}, 0)
    assert ended.message == "start is broken"


async def test_while_it_cannot_be_removed_the_place_is_not_given_back(node: Node) -> None:
    engine = StubbornEngine(node.host, "remove", 1 << 30, fails="start")
    async with node.shim(engine) as daemon:
        await put(daemon)
        await eventually(lambda: engine.left < 1 << 30)
        with pytest.raises(Refused, match="in use by task t1"):
            await daemon.supervisor.release("place-1", CALLER)
        assert daemon.supervisor.info("t1").status is not TaskStatus.TERMINATED


async def test_a_kill_that_the_engine_refuses_is_asked_for_again(node: Node) -> None:
    engine = StubbornEngine(node.host, "kill", 2)
    async with node.shim(engine) as daemon:
        await put(daemon)
        await until(daemon, "t1", TaskStatus.RUNNING)
        await daemon.supervisor.terminate("t1", ABORT, CALLER)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert (ended.reason, ended.exit_code) == ("aborted_by_user", 137)


async def test_two_terminations_at_once_are_one(node: Node) -> None:
    async with node.shim() as daemon:
        await put(daemon)
        await until(daemon, "t1", TaskStatus.RUNNING)
        stop = daemon.supervisor.terminate
        later = TerminateRequest(grace=60.0, reason="terminated_by_user")
        await asyncio.gather(stop("t1", ABORT, CALLER), stop("t1", later, CALLER))
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert ended.reason == "aborted_by_user"
    assert node.host.log.count("kill c-t1") == 1


async def test_an_end_that_could_not_be_written_is_written_once_there_is_space(
    node: Node,
) -> None:
    moody = MoodyRecords()
    node.books = type(node.books)(moody, node.books.allocations, node.books.fences)
    async with node.shim() as daemon:
        await put(daemon)
        await until(daemon, "t1", TaskStatus.RUNNING)
        await eventually(lambda: moody.kept["t1"].info.status is TaskStatus.RUNNING)
        moody.is_full = True
        node.host.containers["c-t1"].end(0)
        await until(daemon, "t1", TaskStatus.TERMINATED)
        assert moody.kept["t1"].info.status is TaskStatus.RUNNING
        moody.is_full = False
        await eventually(lambda: moody.kept["t1"].info.status is TaskStatus.TERMINATED)
        again, new = await daemon.supervisor.put("t1", request(), CALLER)
    assert (again.status, new) == (TaskStatus.TERMINATED, False)


@pytest.mark.parametrize(
    ("oom_killed", "exit_code", "reason"),
    [
        (False, 137, "instance_unreachable"),
        (False, 0, "instance_unreachable"),
        (True, 137, "out_of_memory"),
    ],
)
async def test_a_container_that_others_stop_is_no_failure_of_its_job(
    node: Node, oom_killed: bool, exit_code: int, reason: str
) -> None:
    """A Docker engine that is stopped without live-restore stops its containers first."""
    async with node.shim() as daemon:
        await put(daemon)
        await until(daemon, "t1", TaskStatus.RUNNING)
        node.host.containers["c-t1"].end(exit_code, oom_killed=oom_killed, stopped=True)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert ended.reason == reason


async def test_a_job_that_was_over_before_its_container_was_stopped_ended_by_itself(
    node: Node,
) -> None:
    async with node.shim() as daemon:
        await put(daemon)
        await until(daemon, "t1", TaskStatus.RUNNING)
        (node.settings.job_folder("t1") / "exit.json").write_text(ENDED_BEFORE)
        node.host.containers["c-t1"].end(3, stopped=True)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert (ended.reason, ended.exit_record) == (None, ENDED_BEFORE)


ENDED_BEFORE = '{"exit_code":3}'
STOPPED = '{"exit_code":143,"container_stopped":true}'


@pytest.mark.parametrize(
    ("record", "exit_code", "oom_killed", "reason"),
    [
        (None, 137, False, "instance_unreachable"),
        (STOPPED, 143, False, "instance_unreachable"),
        (None, 137, True, "out_of_memory"),
        (ENDED_BEFORE, 3, False, None),
        (None, 0, False, "instance_unreachable"),
        ("[" * 50_000, 3, False, "instance_unreachable"),
        ('{"container_stopped":"yes"}', 3, False, "instance_unreachable"),
    ],
)
async def test_a_container_that_fell_with_its_engine_while_the_shim_was_down_is_no_failure(
    node: Node, record: str | None, exit_code: int, oom_killed: bool, reason: str | None
) -> None:
    """Nobody heard why it ended; but a job that had ended by itself before ended by itself."""
    async with node.shim() as daemon:
        await put(daemon)
        await until(daemon, "t1", TaskStatus.RUNNING)
    if record is not None:
        (node.settings.job_folder("t1") / "exit.json").write_text(record)
    node.host.containers["c-t1"].end(exit_code, oom_killed=oom_killed, unseen=True)
    async with node.shim() as daemon:
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert ended.reason == reason


async def test_a_container_that_was_stopped_by_our_order_ends_for_its_reason(node: Node) -> None:
    node.host.ignores_stop = True
    async with node.shim() as daemon:
        await put(daemon)
        await until(daemon, "t1", TaskStatus.RUNNING)
        stop = TerminateRequest(grace=60.0, reason="terminated_by_user")
        await daemon.supervisor.terminate("t1", stop, CALLER)
        node.host.containers["c-t1"].end(143, stopped=True)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert ended.reason == "terminated_by_user"
