"""The shim is killed at every point of a task's way; what comes back is the same task, run once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.wire.shim import TaskStatus, TerminateRequest
from shim.tasks import reconcile, stopping
from tests.doubles.engines import MemoryEngine
from tests.doubles.failing_engines import FailingEngine, HangingEngine
from tests.doubles.records import MemoryRecords, books_in_memory
from tests.support.waiting import LONG
from tests.unit.shim.parts import CALLER, RUN, Node, request, until


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


KILL_POINTS = [
    ("ensure_network", False),
    ("ensure_network", True),
    ("create", False),
    ("create", True),
    ("start", False),
    ("start", True),
    ("wait", False),
]


@pytest.mark.parametrize(("act", "after"), KILL_POINTS)
async def test_a_shim_killed_between_two_steps_goes_on_with_the_same_container(
    node: Node, act: str, after: bool
) -> None:
    hang = HangingEngine(MemoryEngine(node.host), act, after=after)
    async with node.shim(hang.engine) as daemon:
        await daemon.supervisor.put("t1", request(), CALLER)
        async with asyncio.timeout(LONG):
            await hang.reached.wait()
    async with node.shim() as daemon:
        running = await until(daemon, "t1", TaskStatus.RUNNING)
        assert [c.starts for c in node.host.containers.values()] == [1]
        assert [a.id for a in daemon.supervisor.allocations] == ["place-1"]
        node.host.containers["c-t1"].end(3)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert (running.container_id, ended.exit_code) == ("c-t1", 3)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_container_that_ended_while_the_shim_was_away_is_not_started_again(
    node: Node, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    """Nor after a restart of the node: it had begun, and how it ended is known."""
    hang = HangingEngine(MemoryEngine(node.host), "start", after=True)
    async with node.shim(hang.engine) as daemon:
        await daemon.supervisor.put("t1", request(), CALLER)
        async with asyncio.timeout(LONG):
            await hang.reached.wait()
    container = node.host.containers["c-t1"]
    container.end(5)
    if restarted:
        monkeypatch.setattr(reconcile, "boot_id", lambda: "the next boot")
    async with node.shim() as daemon:
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert (ended.exit_code, container.starts) == (5, 1)


async def test_a_stop_that_was_ordered_before_the_crash_is_carried_out_after_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "LAST_WORDS", 0.05)
    node.host.ignores_stop = True
    async with node.shim() as daemon:
        await daemon.supervisor.put("t1", request(), CALLER)
        await until(daemon, "t1", TaskStatus.RUNNING)
        order = TerminateRequest(grace=0.05, reason="terminated_by_user")
        await daemon.supervisor.terminate("t1", order, CALLER)
    async with node.shim() as daemon:
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert (ended.reason, ended.exit_code) == ("terminated_by_user", 137)


async def test_a_lost_record_is_rebuilt_from_the_containers_labels(node: Node) -> None:
    async with node.shim() as daemon:
        await daemon.supervisor.put("t1", request(), CALLER)
        before = await until(daemon, "t1", TaskStatus.RUNNING)
    node.books = books_in_memory()
    async with node.shim() as daemon:
        after = daemon.supervisor.info("t1")
        allocations = daemon.supervisor.allocations
        again = await daemon.supervisor.put("t1", request(), CALLER)
    assert (after.status, after.container_id) == (TaskStatus.RUNNING, before.container_id)
    assert [(a.id, a.run_id, a.cpu) for a in allocations] == [("place-1", RUN, 1.0)]
    assert again[1] is False


async def test_a_container_that_vanished_ends_its_task(node: Node) -> None:
    async with node.shim() as daemon:
        await daemon.supervisor.put("t1", request(), CALLER)
        await until(daemon, "t1", TaskStatus.RUNNING)
    node.host.containers.clear()
    async with node.shim() as daemon:
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert (ended.reason, ended.exit_code) == ("container_exited_with_error", None)


async def test_an_unexplained_container_is_listed_and_not_touched(node: Node) -> None:
    async with node.shim() as daemon:
        await daemon.supervisor.put("t1", request(), CALLER)
        await until(daemon, "t1", TaskStatus.RUNNING)
    container = node.host.containers["c-t1"]
    container.spec = msgspec.structs.replace(container.spec, record="unreadable")
    node.task_records.clear()
    (node.settings.data / "tasks" / "old").mkdir()
    async with node.shim() as daemon:
        leftovers = (await daemon.node()).unlabelled
        tasks = daemon.supervisor.infos
    assert tasks == ()
    assert [text.split("/")[-1] for text in leftovers] == [
        "container c-t1",
        "old",
        "t1",
        "t1",
    ]
    assert container.starts == 1


async def test_a_version_only_grows_over_restarts(node: Node) -> None:
    async with node.shim() as daemon:
        await daemon.supervisor.put("t1", request(), CALLER)
        first = await until(daemon, "t1", TaskStatus.RUNNING)
        first_epoch = daemon.events.epoch
    async with node.shim() as daemon:
        assert daemon.supervisor.info("t1").version > first.version
        assert daemon.events.epoch != first_epoch


async def test_a_released_allocation_stays_released(node: Node) -> None:
    async with node.shim() as daemon:
        await daemon.supervisor.put("t1", request(), CALLER)
        await until(daemon, "t1", TaskStatus.RUNNING)
        node.host.containers["c-t1"].end(0)
        await until(daemon, "t1", TaskStatus.TERMINATED)
        await daemon.supervisor.release("place-1", CALLER)
    async with node.shim() as daemon:
        assert (daemon.supervisor.allocations, len(daemon.supervisor.infos)) == ((), 1)


async def test_a_lost_allocation_record_is_rebuilt_while_its_task_lives(node: Node) -> None:
    async with node.shim() as daemon:
        await daemon.supervisor.put("t1", request(), CALLER)
        await until(daemon, "t1", TaskStatus.RUNNING)
    assert isinstance(node.books.allocations, MemoryRecords)
    node.books.allocations.kept.clear()
    async with node.shim() as daemon:
        assert [a.id for a in daemon.supervisor.allocations] == ["place-1"]


async def test_a_fault_of_the_shims_own_ends_the_task_with_a_message(node: Node) -> None:
    failing: Any = FailingEngine(MemoryEngine(node.host), "wait", RuntimeError("bug"))
    async with node.shim(failing) as daemon:
        await daemon.supervisor.put("t1", request(), CALLER)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert (ended.reason, ended.message) == (
        "creating_container_error",
        "the shim failed: bug",
    )


async def test_a_task_that_was_not_begun_before_the_nodes_restart_is_never_begun(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = HangingEngine(MemoryEngine(node.host), "start", after=False)
    async with node.shim(hang.engine) as daemon:
        await daemon.supervisor.put("t1", request(), CALLER)
        async with asyncio.timeout(LONG):
            await hang.reached.wait()
    monkeypatch.setattr(reconcile, "boot_id", lambda: "the next boot")
    async with node.shim() as daemon:
        ended = daemon.supervisor.info("t1")
        assert (ended.status, ended.reason) == (TaskStatus.TERMINATED, "instance_unreachable")
        assert "restarted before" in (ended.message or "")
        assert node.host.containers == {}
