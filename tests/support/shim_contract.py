"""The answers of every shim to its controller: the real one, the simulated one and the fake one.

A test module gives the fixtures `shim`, for a node of 4 CPUs that has no task yet, and `image`,
which takes long to pull, and inherits the tests.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

import msgspec
import pytest

from controller.links.base import ShimApi
from fairlead.wire.shim import (
    DrainRequest,
    EventType,
    ExposedPort,
    Fence,
    TaskInfo,
    TaskRequest,
    TaskResources,
    TaskStatus,
    TerminateRequest,
)
from shim.client import ShimError
from tests.support.waiting import LONG

DEADLINE = LONG
OLDER, FENCE = Fence(1, 1), Fence(1, 2)
STOP = TerminateRequest(grace=0.0, reason="aborted_by_user")


def a_request(image: str, **changes: Any) -> TaskRequest:
    request = TaskRequest(
        run_id="run-1",
        run_name="fair-wind",
        allocation_id="place-1",
        image=image,
        resources=TaskResources(cpu=1.0, memory=1 << 30),
    )
    return msgspec.structs.replace(request, **changes)


async def expose(shim: ShimApi, task_id: str, fence: Fence = FENCE) -> ExposedPort:
    return await shim.expose(task_id, 8000, run_id="run-1", fence=fence, incarnation=0)


async def refused(asked: Any) -> str:
    with pytest.raises(ShimError) as caught:
        await asked
    return caught.value.code


class ShimContract:
    @pytest.fixture
    def image(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def request_of(self, image: str) -> TaskRequest:
        return a_request(image)

    async def test_a_task_that_is_put_twice_is_there_once(
        self, shim: ShimApi, request_of: TaskRequest
    ) -> None:
        first = await put(shim, "t1", request_of)
        second = await put(shim, "t1", request_of)
        assert (first.id, second.id) == ("t1", "t1")
        assert [task.id for task in await shim.tasks()] == ["t1"]

    async def test_another_body_under_a_known_id_is_refused(
        self, shim: ShimApi, request_of: TaskRequest
    ) -> None:
        await put(shim, "t1", request_of)
        other = msgspec.structs.replace(request_of, run_name="foul-wind")
        assert await refused(put(shim, "t1", other)) == "conflict"

    async def test_an_older_fence_is_refused(self, shim: ShimApi, request_of: TaskRequest) -> None:
        await put(shim, "t1", request_of)
        other = msgspec.structs.replace(request_of, allocation_id="place-2")
        assert await refused(put(shim, "t2", other, fence=OLDER)) == "fenced"
        assert await refused(end(shim, "t1", fence=OLDER)) == "fenced"

    async def test_a_task_is_ended_as_its_own_incarnation_when_a_newer_one_was_heard(
        self, shim: ShimApi, request_of: TaskRequest
    ) -> None:
        await put(shim, "t1", request_of, incarnation=1)
        newer = msgspec.structs.replace(request_of, allocation_id="place-2")
        await put(shim, "t2", newer, incarnation=2)
        await end(shim, "t1", incarnation=1)
        assert (await until_ended(shim, "t1")).reason == STOP.reason
        assert await refused(end(shim, "t2", incarnation=1)) == "fenced"

    async def test_a_claimed_task_no_longer_obeys_the_older_controller(
        self, shim: ShimApi, request_of: TaskRequest
    ) -> None:
        await put(shim, "t1", request_of, fence=OLDER)
        claimed = await shim.claim("t1", run_id="run-1", fence=FENCE, incarnation=0)
        assert claimed.id == "t1"
        assert await refused(end(shim, "t1", fence=OLDER)) == "fenced"
        unknown = shim.claim("t9", run_id="run-1", fence=FENCE, incarnation=0)
        assert await refused(unknown) == "not_found"

    async def test_a_task_that_ends_is_kept_until_it_is_removed_and_never_comes_back(
        self, shim: ShimApi, request_of: TaskRequest
    ) -> None:
        await put(shim, "t1", request_of)
        assert await refused(remove(shim, "t1")) == "not_terminated"
        await end(shim, "t1")
        ended = await until_ended(shim, "t1")
        assert (ended.reason, ended.exit_code) == (STOP.reason, None)
        await remove(shim, "t1")
        assert await refused(shim.task("t1")) == "not_found"
        assert await refused(put(shim, "t1", request_of)) == "terminated"

    async def test_a_task_that_is_ended_before_it_came_is_refused(
        self, shim: ShimApi, request_of: TaskRequest
    ) -> None:
        assert await refused(end(shim, "t1")) == "not_found"
        assert await refused(put(shim, "t1", request_of)) == "terminated"

    async def test_an_allocation_outlives_its_task_and_is_released_by_its_run_alone(
        self, shim: ShimApi, request_of: TaskRequest
    ) -> None:
        await put(shim, "t1", request_of, incarnation=3)
        assert await refused(release(shim, incarnation=3)) == "conflict"
        await end(shim, "t1", incarnation=3)
        await until_ended(shim, "t1")
        await remove(shim, "t1", incarnation=3)
        (held,) = await shim.allocations()
        assert (held.id, held.task_ids, held.incarnation) == ("place-1", (), 3)
        assert await refused(release(shim, incarnation=2)) == "fenced"
        assert await refused(release(shim, run_id="run-2", incarnation=3)) == "conflict"
        await release(shim, incarnation=3)
        assert list(await shim.allocations()) == []
        assert await refused(release(shim, incarnation=3)) == "not_found"

    async def test_no_more_is_given_than_the_node_has(
        self, shim: ShimApi, request_of: TaskRequest
    ) -> None:
        large = TaskResources(cpu=3.0, memory=1 << 30)
        await put(shim, "t1", msgspec.structs.replace(request_of, resources=large))
        second = msgspec.structs.replace(request_of, allocation_id="place-2", resources=large)
        assert await refused(put(shim, "t2", second)) == "no_capacity"
        stolen = msgspec.structs.replace(request_of, run_id="run-2")
        assert await refused(put(shim, "t3", stolen)) == "conflict"

    async def test_outputs_are_read_after_the_end_and_nothing_is_read_of_an_unknown_task(
        self, shim: ShimApi, request_of: TaskRequest
    ) -> None:
        await put(shim, "t1", request_of)
        assert await refused(opened(shim.outputs("t1", offset=0, limit=1 << 20))) == "conflict"
        assert await refused(opened(shim.outputs("t9", offset=0, limit=1 << 20))) == "not_found"
        assert await refused(opened(shim.logs("t9"))) == "not_found"

    async def test_only_a_running_task_is_exposed_and_only_for_its_present_controller(
        self, shim: ShimApi, request_of: TaskRequest
    ) -> None:
        await put(shim, "t1", request_of)
        assert await refused(expose(shim, "t1", fence=OLDER)) == "fenced"
        assert await refused(expose(shim, "t1")) == "conflict"
        assert await refused(expose(shim, "t9")) == "not_found"

    async def test_a_draining_node_takes_no_new_allocation(
        self, shim: ShimApi, request_of: TaskRequest
    ) -> None:
        assert (await shim.drain(DrainRequest(draining=True))).draining
        assert await refused(put(shim, "t1", request_of)) == "draining"
        assert not (await shim.drain(DrainRequest(draining=False))).draining
        await put(shim, "t1", request_of)

    async def test_a_change_of_a_task_is_an_event_and_an_unknown_cursor_asks_for_a_new_look(
        self, shim: ShimApi, request_of: TaskRequest
    ) -> None:
        epoch = (await shim.health()).epoch
        await put(shim, "t1", request_of)
        await end(shim, "t1")
        async with asyncio.timeout(DEADLINE):
            told = []
            async with aclosing(shim.events(f"{epoch}.0")) as events:
                async for event in events:
                    told.append(event)
                    if event.task is not None and event.task.status is TaskStatus.TERMINATED:
                        break
            versions = [one.task.version for one in told if one.task is not None]
            assert versions == sorted(versions)
            async with aclosing(shim.events("of-another-life.7")) as events:
                assert (await anext(events)).type is EventType.RESYNC


async def put(
    shim: ShimApi, task_id: str, request: TaskRequest, fence: Fence = FENCE, incarnation: int = 0
) -> TaskInfo:
    return await shim.put_task(task_id, request, fence=fence, incarnation=incarnation)


async def end(shim: ShimApi, task_id: str, fence: Fence = FENCE, incarnation: int = 0) -> TaskInfo:
    return await shim.terminate(task_id, STOP, run_id="run-1", fence=fence, incarnation=incarnation)


async def remove(shim: ShimApi, task_id: str, incarnation: int = 0) -> None:
    await shim.remove_task(task_id, run_id="run-1", fence=FENCE, incarnation=incarnation)


async def release(shim: ShimApi, run_id: str = "run-1", incarnation: int = 0) -> None:
    await shim.release_allocation("place-1", run_id=run_id, fence=FENCE, incarnation=incarnation)


async def opened(answer: AbstractAsyncContextManager[object]) -> None:
    async with answer:
        pass


async def until_ended(shim: ShimApi, task_id: str) -> TaskInfo:
    epoch = (await shim.health()).epoch
    async with asyncio.timeout(DEADLINE), aclosing(shim.events(f"{epoch}.0")) as events:
        async for event in events:
            task = event.task
            if task is not None and task.id == task_id and task.status is TaskStatus.TERMINATED:
                return task
    raise AssertionError("the events ended")
