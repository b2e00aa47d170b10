"""A task's way from its PUT to its removal, on a node in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.wire.errors import Refused
from fairlead.wire.shim import (
    DrainRequest,
    EventType,
    Fence,
    GpuRequest,
    NetworkMode,
    PullPolicy,
    RegistryAuth,
    TaskResources,
    TaskStatus,
    TerminateRequest,
)
from shim.daemon import Daemon
from shim.engines.base import (
    EngineUnavailable,
    ImageError,
    ImageInfo,
    ImageProblem,
    NodeFault,
    NodeFull,
)
from shim.errors import EngineError
from shim.state.fencing import Caller
from shim.state.records import RecordBooks, TaskRecord
from shim.tasks import stopping
from tests.doubles.engines import MemoryEngine
from tests.doubles.failing_engines import FailingEngine, HangingEngine
from tests.doubles.gpus import MemoryGpus
from tests.doubles.records import FailingRecords, books_in_memory
from tests.support.waiting import LONG, eventually
from tests.unit.shim.parts import (
    CALLER,
    GPU,
    RUN,
    Node,
    put,
    request,
    stop_the_clock_until_a_signal,
    until,
    until_event,
)

ABORT = TerminateRequest(grace=0.0, reason="aborted_by_user", message="asked")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def refused(daemon: Daemon, task_id: str, caller: Caller = CALLER, **changes: Any) -> str:
    with pytest.raises(Refused) as caught:
        await daemon.supervisor.put(task_id, request(**changes), caller)
    return caught.value.code


async def test_a_task_goes_through_its_states_and_ends_with_its_exit_code(node: Node) -> None:
    async with node.shim() as daemon:
        await put(daemon)
        running = await until(daemon, "t1", TaskStatus.RUNNING)
        node.host.containers["c-t1"].end(7)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert (running.network_mode, running.container_id) == (NetworkMode.BRIDGE, "c-t1")
    assert (ended.exit_code, ended.reason) == (7, "container_exited_with_error")
    assert running.version < ended.version


async def test_a_tasks_life_is_in_the_log_without_its_secrets(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "shim")
    node.host.registry["private"] = (ImageInfo(id="sha256:private"), "hush-hush")
    auth = RegistryAuth(username="ada", password="hush-hush")
    async with node.shim() as daemon:
        await put(daemon, image="private", registry_auth=auth)
        await until(daemon, "t1", TaskStatus.RUNNING)
        order = TerminateRequest(grace=0.0, reason="aborted_by_user", message="by\nada")
        await daemon.supervisor.terminate("t1", order, CALLER)
        await until(daemon, "t1", TaskStatus.TERMINATED)
        await daemon.supervisor.remove("t1", CALLER)
    told = [line for line in caplog.messages if line.startswith("task t1")]
    assert told == [
        f"task t1 of run {RUN}: accepted, allocation place-1",
        "task t1: preparing",
        "task t1: pulling: image private",
        "task t1: creating",
        "task t1: running",
        "task t1: terminated: aborted_by_user, exit code 137, by ada",
        "task t1: removed",
    ]
    assert "hush-hush" not in caplog.text


async def test_the_exit_record_takes_the_place_of_a_reason(node: Node) -> None:
    async with node.shim() as daemon:
        await put(daemon)
        await until(daemon, "t1", TaskStatus.RUNNING)
        (node.settings.job_folder("t1") / "exit.json").write_text('{"exit_code":7}')
        node.host.containers["c-t1"].end(7, oom_killed=True)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert (ended.reason, ended.exit_record) == (None, '{"exit_code":7}')


async def test_a_container_killed_for_its_memory_says_so(node: Node) -> None:
    async with node.shim() as daemon:
        await put(daemon)
        await until(daemon, "t1", TaskStatus.RUNNING)
        node.host.containers["c-t1"].end(137, oom_killed=True)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert (ended.reason, ended.exit_code) == ("out_of_memory", 137)


async def test_the_same_body_is_the_same_task_and_another_is_a_conflict(node: Node) -> None:
    async with node.shim() as daemon:
        first = await daemon.supervisor.put("t1", request(), CALLER)
        again = await daemon.supervisor.put("t1", request(), CALLER)
        other = await refused(daemon, "t1", image="other")
    assert (first[1], again[1], other) == (True, False, "conflict")


async def test_an_allocation_in_use_takes_no_second_task(node: Node) -> None:
    async with node.shim() as daemon:
        await put(daemon)
        assert await refused(daemon, "t2") == "conflict"


async def test_the_next_attempt_gets_the_allocation_of_the_one_that_ended(node: Node) -> None:
    async with node.shim() as daemon:
        await put(daemon)
        await daemon.supervisor.terminate("t1", ABORT, CALLER)
        await until(daemon, "t1", TaskStatus.TERMINATED)
        await put(daemon, "t2")
        await until(daemon, "t2", TaskStatus.RUNNING)
        assert daemon.supervisor.allocations[0].task_ids == ("t1", "t2")


async def test_an_older_fence_is_refused(node: Node) -> None:
    async with node.shim() as daemon:
        await put(daemon)
        old = Caller(RUN, Fence(1, 0), 0)
        assert await refused(daemon, "t1", old) == "fenced"


async def test_an_older_incarnation_may_end_its_own_task_and_start_none(node: Node) -> None:
    async with node.shim() as daemon:
        await put(daemon)
        newer = Caller(RUN, Fence(1, 1), 1)
        await daemon.supervisor.put("t2", request(allocation_id="place-2"), newer)
        assert await refused(daemon, "t3", CALLER, allocation_id="place-3") == "fenced"
        await daemon.supervisor.terminate("t1", ABORT, CALLER)
        await until(daemon, "t1", TaskStatus.TERMINATED)
        with pytest.raises(Refused, match="older"):
            await daemon.supervisor.terminate("t2", ABORT, CALLER)


async def test_a_task_terminated_before_it_came_is_refused_when_it_comes(node: Node) -> None:
    async with node.shim() as daemon:
        with pytest.raises(Refused, match="no task t1"):
            await daemon.supervisor.terminate("t1", ABORT, CALLER)
        assert await refused(daemon, "t1") == "terminated"


async def test_a_removed_task_does_not_come_back_even_after_a_restart(node: Node) -> None:
    async with node.shim() as daemon:
        await put(daemon)
        await daemon.supervisor.terminate("t1", ABORT, CALLER)
        await until(daemon, "t1", TaskStatus.TERMINATED)
        await daemon.supervisor.remove("t1", CALLER)
        await daemon.supervisor.release("place-1", CALLER)
    async with node.shim() as daemon:
        assert await refused(daemon, "t1") == "terminated"


async def test_an_allocation_is_released_as_the_incarnation_that_its_listing_tells(
    node: Node,
) -> None:
    async with node.shim() as daemon:
        await put(daemon)
        await daemon.supervisor.terminate("t1", ABORT, CALLER)
        await until(daemon, "t1", TaskStatus.TERMINATED)
        await daemon.supervisor.commanded("t1", Caller(RUN, CALLER.fence, 3))
        await daemon.supervisor.remove("t1", Caller(RUN, CALLER.fence, 3))
        with pytest.raises(Refused, match="older than 3"):
            await daemon.supervisor.release("place-1", CALLER)
        (held,) = daemon.supervisor.allocations
        await daemon.supervisor.release("place-1", Caller(RUN, CALLER.fence, held.incarnation))
        assert daemon.supervisor.allocations == ()


async def test_removal_leaves_nothing_but_the_allocation(node: Node) -> None:
    async with node.shim() as daemon:
        await put(daemon)
        await until(daemon, "t1", TaskStatus.RUNNING)
        node.host.containers["c-t1"].end(0)
        await until(daemon, "t1", TaskStatus.TERMINATED)
        await daemon.supervisor.remove("t1", CALLER)
        removed = await until_event(daemon.events, lambda e: e.type is EventType.REMOVED)
        assert (removed.task_id, daemon.supervisor.infos) == ("t1", ())
        assert [a.task_ids for a in daemon.supervisor.allocations] == [()]
        assert (node.host.containers, node.host.networks) == ({}, set())
        assert not node.settings.task_folder("t1").exists()
        assert not node.settings.socket_folder("t1").exists()


async def test_a_network_stays_while_another_task_of_the_run_uses_it(node: Node) -> None:
    async with node.shim() as daemon:
        await put(daemon)
        await put(daemon, "t2", allocation_id="place-2")
        await daemon.supervisor.terminate("t1", ABORT, CALLER)
        await until(daemon, "t1", TaskStatus.TERMINATED)
        await until(daemon, "t2", TaskStatus.RUNNING)
        await daemon.supervisor.remove("t1", CALLER)
        assert node.host.networks == {RUN}


async def test_the_network_goes_with_the_last_tasks_of_a_run_when_they_go_together(
    node: Node,
) -> None:
    async with node.shim() as daemon:
        for task_id in ("t1", "t2", "t3"):
            await put(daemon, task_id, allocation_id=f"place-{task_id}")
            await until(daemon, task_id, TaskStatus.RUNNING)
            await daemon.supervisor.terminate(task_id, ABORT, CALLER)
            await until(daemon, task_id, TaskStatus.TERMINATED)
        removing = [daemon.supervisor.remove(task_id, CALLER) for task_id in ("t1", "t2", "t3")]
        await asyncio.gather(*removing)
        assert daemon.supervisor.infos == ()
        assert node.host.networks == set()


async def test_a_run_more_than_the_node_has_networks_is_refused_until_one_is_gone(
    node: Node,
) -> None:
    """A refusal before the task exists: nothing failed here, so nothing is charged to the node."""
    node.host.most_networks = 1
    stranger = msgspec.structs.replace(CALLER, run_id="run-2")
    theirs = {"run_id": "run-2", "allocation_id": "place-3"}
    async with node.shim() as daemon:
        await put(daemon)
        await put(daemon, "t2", allocation_id="place-2")
        assert await refused(daemon, "t3", stranger, **theirs) == "no_network"
        whole = TaskResources(cpu=1.0, memory=1 << 30, whole_node=True)
        assert await refused(daemon, "t3", stranger, **theirs, resources=whole) != "no_network"
        for task_id in ("t1", "t2"):
            await daemon.supervisor.terminate(task_id, ABORT, CALLER)
            await until(daemon, task_id, TaskStatus.TERMINATED)
            assert await refused(daemon, "t3", stranger, **theirs) == "no_network"
            await daemon.supervisor.remove(task_id, CALLER)
        await daemon.supervisor.release("place-1", CALLER)
        await daemon.supervisor.put("t3", request(**theirs), stranger)
        await until(daemon, "t3", TaskStatus.RUNNING)
        assert (await daemon.node()).networks == 1


async def test_a_node_that_gets_room_for_fewer_networks_tells_it(node: Node) -> None:
    node.host.most_networks = 4
    async with node.shim() as daemon:
        node.host.most_networks = 3
        await daemon.supervisor.compare(frozenset())
        await until_event(daemon.events, lambda e: e.type is EventType.NODE)
        assert (await daemon.node()).networks == 3


async def test_the_tasks_of_a_run_have_an_address_each_that_outlives_the_shim(node: Node) -> None:
    async with node.shim() as daemon:
        for number in (1, 2):
            await put(daemon, f"t{number}", allocation_id=f"place-{number}")
        first = await until(daemon, "t1", TaskStatus.RUNNING)
        second = await until(daemon, "t2", TaskStatus.RUNNING)
        assert first.address != second.address
    specs = [node.host.containers[f"c-t{number}"].spec for number in (1, 2)]
    assert [one.address for one in specs] == [first.address, second.address]
    async with node.shim() as daemon:
        await put(daemon, "t3", allocation_id="place-3")
        third = await until(daemon, "t3", TaskStatus.RUNNING)
        assert third.address not in (None, first.address, second.address)
        assert daemon.supervisor.info("t1").address == first.address


async def test_addresses_are_told_with_the_record_that_has_them_and_given_once(node: Node) -> None:
    engine = HangingEngine(MemoryEngine(node.host), "local_image")
    async with node.shim(engine.engine) as daemon:
        for number in (1, 2):
            await put(daemon, f"t{number}", allocation_id=f"place-{number}")
        tasks = daemon.supervisor.live
        await eventually(lambda: all(task.coming.address for task in tasks))
        assert [task.info.address for task in tasks] == [None, None]
        assert len({task.coming.address for task in tasks}) == 2


async def test_the_image_is_looked_for_while_the_submission_is_stored(node: Node) -> None:
    engine, asked = MemoryEngine(node.host), asyncio.Event()
    look, store = engine.local_image, node.books.tasks.save

    async def looked(reference: str) -> ImageInfo | None:
        asked.set()
        return await look(reference)

    async def stored(key: str, record: TaskRecord) -> None:
        await asked.wait()
        await store(key, record)

    engine.local_image = looked  # type: ignore[method-assign]
    node.books.tasks.save = stored  # type: ignore[method-assign]
    async with node.shim(engine) as daemon:
        async with asyncio.timeout(LONG):
            await put(daemon)
        await until(daemon, "t1", TaskStatus.RUNNING)


async def test_the_look_for_an_image_ends_with_the_refusal_of_its_task(node: Node) -> None:
    engine, ended = MemoryEngine(node.host), asyncio.Event()

    async def looked(reference: str) -> ImageInfo | None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return None

    engine.local_image = looked  # type: ignore[method-assign]
    memory = books_in_memory()
    node.books = RecordBooks(FailingRecords(), memory.allocations, memory.fences)
    async with node.shim(engine) as daemon:
        assert await refused(daemon, "t1") == "storage"
        assert ended.is_set()


async def test_a_node_that_is_full_after_all_is_said_to_be_full_and_not_broken(node: Node) -> None:
    full = NodeFull("all 2 networks for runs on this node are in use")
    engine: Any = FailingEngine(MemoryEngine(node.host), "ensure_network", full)
    async with node.shim(engine) as daemon:
        await put(daemon)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert (ended.reason, ended.message) == ("interrupted_by_no_capacity", str(full))


async def test_a_living_task_is_not_removed_and_its_allocation_not_released(node: Node) -> None:
    async with node.shim() as daemon:
        await put(daemon)
        await until(daemon, "t1", TaskStatus.RUNNING)
        with pytest.raises(Refused, match="terminate it first"):
            await daemon.supervisor.remove("t1", CALLER)
        with pytest.raises(Refused, match="in use by task t1"):
            await daemon.supervisor.release("place-1", CALLER)


async def test_a_stop_signals_first_and_kills_when_the_grace_is_over(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_the_clock_until_a_signal(node, monkeypatch)
    monkeypatch.setattr(stopping, "LAST_WORDS", 0.05)
    node.host.ignores_stop = True
    async with node.shim() as daemon:
        await put(daemon)
        await until(daemon, "t1", TaskStatus.RUNNING)
        soon = TerminateRequest(grace=0.05, reason="terminated_by_user")
        await daemon.supervisor.terminate("t1", soon, CALLER)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert node.host.log == ["stop c-t1", "kill c-t1"]
    assert (ended.exit_code, ended.reason) == (137, "terminated_by_user")


async def test_an_abort_brings_the_kill_forward_but_the_first_reason_stays(node: Node) -> None:
    node.host.ignores_stop = True
    async with node.shim() as daemon:
        await put(daemon)
        await until(daemon, "t1", TaskStatus.RUNNING)
        slow = TerminateRequest(grace=3600.0, reason="terminated_by_user")
        await daemon.supervisor.terminate("t1", slow, CALLER)
        await daemon.supervisor.terminate("t1", ABORT, CALLER)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert ended.reason == "terminated_by_user"


async def test_a_pull_is_cancelled_by_terminate(node: Node) -> None:
    node.host.pull_gate.clear()
    async with node.shim() as daemon:
        await put(daemon, image="big")
        await until(daemon, "t1", TaskStatus.PULLING)
        await daemon.supervisor.terminate("t1", ABORT, CALLER)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert (ended.reason, ended.message, ended.exit_code) == ("aborted_by_user", "asked", None)


async def test_an_image_that_does_not_exist_fails_the_pull(node: Node) -> None:
    async with node.shim() as daemon:
        await put(daemon, image="none")
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert (ended.reason, ended.message) == ("image_pull_failed", "image none does not exist")


async def test_a_pull_without_progress_fails(node: Node) -> None:
    node.host.pull_gate.clear()
    node.settings = msgspec.structs.replace(node.settings, pull_stall=0.05)
    async with node.shim() as daemon:
        await put(daemon, image="big")
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert ended.reason == "image_pull_failed"
    assert "no progress" in (ended.message or "")


async def test_a_pull_that_must_not_happen_does_not(node: Node) -> None:
    async with node.shim() as daemon:
        await put(daemon, image="none", pull_policy=PullPolicy.NEVER)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert (ended.reason, node.host.log) == ("image_pull_failed", [])


async def test_credentials_lost_with_a_restart_are_asked_for_and_used(node: Node) -> None:
    node.host.registry["private"] = (ImageInfo(id="sha256:p"), "s3cret")
    node.host.pull_gate.clear()
    wanted = request(image="private", registry_auth=RegistryAuth(username="u", password="s3cret"))
    async with node.shim() as daemon:
        await daemon.supervisor.put("t1", wanted, CALLER)
        await until(daemon, "t1", TaskStatus.PULLING)
    assert b"s3cret" not in msgspec.json.encode(node.task_records)
    node.host.pull_gate.set()
    async with node.shim() as daemon:
        await until_event(daemon.events, lambda e: bool(e.task and e.task.needs_credentials))
        await daemon.supervisor.put("t1", wanted, CALLER)
        running = await until(daemon, "t1", TaskStatus.RUNNING)
    assert running.needs_credentials is False


async def test_a_task_that_needs_no_pull_any_more_takes_its_request_for_credentials_back(
    node: Node,
) -> None:
    node.host.pull_gate.clear()
    wanted = request(image="private", registry_auth=RegistryAuth(username="u", password="s3cret"))
    async with node.shim() as daemon:
        await daemon.supervisor.put("t1", wanted, CALLER)
        await until(daemon, "t1", TaskStatus.PULLING)
    async with node.shim() as daemon:
        await until_event(daemon.events, lambda e: bool(e.task and e.task.needs_credentials))
    node.host.local["private"] = ImageInfo(id="sha256:p")
    async with node.shim() as daemon:
        running = await until(daemon, "t1", TaskStatus.RUNNING)
    assert running.needs_credentials is False


async def test_a_draining_node_takes_only_tasks_of_allocations_that_it_holds(node: Node) -> None:
    async with node.shim() as daemon:
        await put(daemon)
        await daemon.supervisor.terminate("t1", ABORT, CALLER)
        await until(daemon, "t1", TaskStatus.TERMINATED)
        await daemon.drain(DrainRequest(draining=True))
        assert await refused(daemon, "t2", allocation_id="place-2") == "draining"
        await put(daemon, "t3")
        await until(daemon, "t3", TaskStatus.RUNNING)


async def test_a_whole_node_means_host_networking(node: Node) -> None:
    async with node.shim() as daemon:
        await put(daemon, resources=TaskResources(cpu=1.0, memory=1 << 30, whole_node=True))
        running = await until(daemon, "t1", TaskStatus.RUNNING)
    assert (running.network_mode, node.host.networks) == (NetworkMode.HOST, set())


async def test_the_chosen_gpus_reach_the_task_and_its_container(node: Node) -> None:
    node.gpus = MemoryGpus(GPU)
    async with node.shim() as daemon:
        one = TaskResources(cpu=1.0, memory=1 << 30, gpu=GpuRequest(count=1))
        await put(daemon, resources=one)
        running = await until(daemon, "t1", TaskStatus.RUNNING)
    assert (running.gpus, node.host.containers["c-t1"].spec.gpus) == (("GPU-a",), ("GPU-a",))


async def test_a_full_disk_refuses_the_task_and_keeps_nothing(node: Node) -> None:
    memory = books_in_memory()
    node.books = RecordBooks(FailingRecords(), memory.allocations, memory.fences)
    async with node.shim() as daemon:
        assert await refused(daemon, "t1") == "storage"
        assert (daemon.supervisor.infos, daemon.supervisor.allocations) == ((), ())
        assert (await memory.allocations.load()).records == {}


@pytest.mark.parametrize("act", ["ensure_network", "create", "start"])
async def test_an_engine_that_refuses_ends_the_task_and_leaves_no_container(
    node: Node, act: str
) -> None:
    engine: Any = FailingEngine(MemoryEngine(node.host), act, EngineError("refused by the engine"))
    async with node.shim(engine) as daemon:
        await put(daemon)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert (ended.reason, ended.message) == ("creating_container_error", "refused by the engine")
    assert node.host.containers == {}


@pytest.mark.parametrize("act", ["ensure_network", "create", "start"])
@pytest.mark.parametrize(
    "fault",
    [NodeFault("network n1 not found"), OSError(28, "No space left on device")],
    ids=["engine", "disk"],
)
async def test_a_task_that_its_node_cannot_create_is_not_charged_with_it(
    node: Node, act: str, fault: Exception
) -> None:
    engine: Any = FailingEngine(MemoryEngine(node.host), act, fault)
    async with node.shim(engine) as daemon:
        await put(daemon)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert (ended.reason, ended.message) == ("instance_unreachable", str(fault))
    assert node.host.containers == {}


async def test_an_engine_that_stays_away_is_the_nodes_fault(node: Node) -> None:
    node.settings = msgspec.structs.replace(node.settings, engine_patience=0.0)
    away = EngineUnavailable("the engine does not answer")
    engine: Any = FailingEngine(MemoryEngine(node.host), "create", away)
    async with node.shim(engine) as daemon:
        await put(daemon)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert ended.reason == "instance_unreachable"


async def test_an_image_that_finds_no_room_is_the_nodes_fault(node: Node) -> None:
    full = ImageError("the node's disk is too full for big", ImageProblem.NO_SPACE)
    engine: Any = FailingEngine(MemoryEngine(node.host), "pull", full)
    async with node.shim(engine) as daemon:
        await put(daemon, image="big")
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert ended.reason == "instance_unreachable"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"image": " "}, "image"),
        ({"run_id": "../up"}, "run_id"),
        ({"allocation_id": ""}, "allocation_id"),
        ({"resources": TaskResources(cpu=0, memory=1 << 30)}, "resources.cpu"),
        ({"resources": TaskResources(cpu=1, memory=1)}, "resources.memory"),
        ({"resources": TaskResources(cpu=1, memory=1 << 30, disk=-1)}, "resources.disk"),
    ],
)
async def test_a_wrong_field_is_named(node: Node, changes: dict[str, Any], field: str) -> None:
    async with node.shim() as daemon:
        with pytest.raises(Refused) as caught:
            await put(daemon, "t1", **changes)
    assert (caught.value.status, caught.value.field) == (400, field)


async def test_an_id_that_would_leave_its_folder_is_refused(node: Node) -> None:
    async with node.shim() as daemon:
        with pytest.raises(Refused, match="id must be"):
            await put(daemon, "../../etc")


async def test_many_tasks_at_once_never_hold_more_than_there_is(node: Node) -> None:
    async with node.shim() as daemon:
        results = await asyncio.gather(
            *(put(daemon, f"t{n}", allocation_id=f"place-{n}") for n in range(8)),
            return_exceptions=True,
        )
        refusals = [r.code for r in results if isinstance(r, Refused)]
        assert (refusals, len(daemon.supervisor.allocations)) == (["no_capacity"] * 4, 4)
