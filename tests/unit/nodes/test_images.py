"""A node is told to pull the images of its fleet ahead, and those of jobs nominated to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from controller.lifecycle.inventory import NodeImage
from controller.lifecycle.model import DEFAULT_FLEET, Fleet, Node, NodeCapacity, RunState
from controller.nodes.images import MAX_NOMINATED, NodeImages, wanted_images
from fairlead.model.statuses import AllocationState, AttemptStatus, NodeStatus
from fairlead.wire.shim import (
    EventType,
    ImageAhead,
    ImageState,
    PullPolicy,
    RegistryAuth,
    WantedImage,
    WantedImages,
)
from shim.client import ShimError, ShimUnavailable
from tests.support.waiting import eventually
from tests.unit.nodes.world import World, world
from tests.unit.pipelines.parts import a_node, placed, task_of

LOGIN = RegistryAuth(username="anna", password="${{ secrets.REGISTRY }}")
ANNA = RegistryAuth(username="anna", password="s3cret")
FLEET = msgspec.structs.replace(DEFAULT_FLEET, images=("a:1", "b:1"))
ABLE = NodeCapacity(images=())


def able(**changes: Any) -> Node:
    return a_node(capacity=ABLE, **changes)


def images(*names: str, **more: Any) -> tuple[WantedImage, ...]:
    return tuple(WantedImage(image=name, **more) for name in names)


WAITING = images("job:1", nominated=True)


@pytest.mark.parametrize(
    ("node", "fleet", "nominated", "wanted"),
    [
        (able(), FLEET, (), images("a:1", "b:1")),
        (able(), FLEET, WAITING, (*WAITING, *images("a:1", "b:1"))),
        (able(), FLEET, WAITING * 2, (*WAITING, *images("a:1", "b:1"))),
        (able(), DEFAULT_FLEET, WAITING, WAITING),
        (able(), None, (), ()),
        (able(cordoned=True), FLEET, (), images("a:1", "b:1")),
        (able(draining=True), FLEET, WAITING, ()),
        (a_node(), FLEET, WAITING, None),
    ],
)
def test_the_list_of_a_node_follows_from_its_fleet_and_its_nominations(
    node: Node,
    fleet: Fleet | None,
    nominated: tuple[WantedImage, ...],
    wanted: tuple[WantedImage, ...] | None,
) -> None:
    found = wanted_images(node, fleet, None, nominated)
    assert (None if found is None else found.images) == wanted


def test_the_images_of_a_fleet_get_its_login_and_no_others() -> None:
    found = wanted_images(able(), FLEET, ANNA, WAITING)
    assert found is not None
    assert [one.registry_auth for one in found.images] == [None, ANNA, ANNA]
    assert "s3cret" not in repr(found)


def test_a_crowd_of_waiting_jobs_is_asked_for_in_part() -> None:
    many = images(*(f"job:{n}" for n in range(MAX_NOMINATED + 5)), nominated=True)
    found = wanted_images(able(), FLEET, None, many)
    assert found is not None
    assert len(found.images) == MAX_NOMINATED + len(FLEET.images)


def nominated(name: str = "waits", victim: str = "v", **spec: Any) -> RunState:
    state = placed(AttemptStatus.PROVISIONING, name)
    (job,), (place,) = state.jobs, state.allocations
    (attempt,) = job.attempts
    waits = msgspec.structs.replace(attempt, status=AttemptStatus.SUBMITTED, node_id=None)
    return msgspec.structs.replace(
        state,
        jobs=(
            msgspec.structs.replace(
                job, attempts=(waits,), spec=msgspec.structs.replace(job.spec, **spec)
            ),
        ),
        allocations=(
            msgspec.structs.replace(place, state=AllocationState.NOMINATED, victims=(victim,)),
        ),
    )


def can_pull(it: World) -> None:
    it.shim.info = msgspec.structs.replace(it.shim.info, images_ahead=())


def with_fleet(fleet: Fleet) -> Callable[[World], None]:
    def before(it: World) -> None:
        can_pull(it)
        it.pipeline.fleets[fleet.name] = fleet

    return before


def asked(it: World) -> list[str]:
    return [one.image for one in it.shim.images_wanted.images]


def times(it: World) -> int:
    return sum(verb == "images" for verb, _ in it.shim.asked)


async def test_a_node_is_asked_once_it_is_connected_and_when_its_fleet_changes() -> None:
    async with world(before=with_fleet(FLEET)) as it:
        await eventually(lambda: asked(it) == ["a:1", "b:1"])
        await it.pipeline.save_fleet(msgspec.structs.replace(FLEET, images=("c:1",)), FLEET.name)
        await eventually(lambda: asked(it) == ["c:1"])
        await it.pipeline.save_node(msgspec.structs.replace(it.node, cordoned=True), "n1")
        await it.pipeline.save_node(msgspec.structs.replace(it.node, draining=True), "n1")
        await eventually(lambda: asked(it) == [])
        assert times(it) == 3


async def test_a_node_that_cannot_pull_ahead_is_not_asked() -> None:
    def before(it: World) -> None:
        it.pipeline.fleets[FLEET.name] = FLEET

    async with world(nominated(), before=before) as it:
        await it.connected()
        await it.pipeline.save_node(msgspec.structs.replace(it.node, cordoned=True), "n1")
        await it.pipeline.settled()
        assert times(it) == 0


async def test_a_list_of_an_earlier_controller_is_replaced_by_an_empty_one() -> None:
    def before(it: World) -> None:
        it.shim.info = msgspec.structs.replace(it.shim.info, images_ahead=(), images_asked=1)

    async with world(before=before) as it:
        await eventually(lambda: times(it) == 1)
        assert it.shim.images_wanted == WantedImages(images=())


async def test_a_node_with_nothing_to_pull_is_asked_for_nothing() -> None:
    async with world(before=can_pull) as it:
        await it.connected()
        await it.pipeline.save_node(msgspec.structs.replace(it.node, cordoned=True), "n1")
        await it.pipeline.settled()
        assert times(it) == 0


async def test_a_refused_list_is_not_sent_again_and_ends_no_session() -> None:
    def before(it: World) -> None:
        with_fleet(FLEET)(it)
        it.shim.refusal = ShimError("fenced", "an older controller", 409)
        it.shim.on_order = lambda: None

    async with world(before=before) as it:
        await it.connected()
        it.shim.refusal = None
        await it.pipeline.save_node(msgspec.structs.replace(it.node, cordoned=True), "n1")
        await it.pipeline.settled()
        assert it.node.status is NodeStatus.CONNECTED
        assert it.listener.connections == 1


async def test_a_reconnected_node_is_asked_again() -> None:
    async with world(before=with_fleet(FLEET)) as it:
        await eventually(lambda: times(it) == 1)
        it.shim.stream.put_nowait(ShimUnavailable("cut"))
        await it.connected(times=2)
        await eventually(lambda: times(it) == 2)


async def test_the_password_of_a_fleet_is_a_stored_secret_filled_in_when_it_is_sent() -> None:
    fleet = msgspec.structs.replace(FLEET, registry_auth=LOGIN)
    async with world(before=with_fleet(fleet)) as it:
        await it.connected()
        assert asked(it) == []
        it.secrets.stored["REGISTRY"] = "s3cret"
        it.session.look()
        await eventually(lambda: asked(it) == ["a:1", "b:1"])
        assert it.shim.images_wanted.images[0].registry_auth == ANNA
        assert "s3cret" not in repr(it.database.nodes)


async def test_a_nomination_pulls_until_it_ends() -> None:
    victim = placed(AttemptStatus.RUNNING, "victim")
    (taken,) = victim.allocations
    state = nominated(victim=taken.id, image="team/job:1", registry_auth=LOGIN)
    task = task_of(victim)

    def before(it: World) -> None:
        can_pull(it)
        it.shim.listing[task.id] = task
        it.secrets.stored["REGISTRY"] = "s3cret"

    async with world(victim, state, before=before) as it:
        await eventually(lambda: asked(it) == ["team/job:1"])
        (wanted,) = it.shim.images_wanted.images
        assert (wanted.nominated, wanted.registry_auth) == (True, ANNA)
        (place,) = state.allocations
        held = msgspec.structs.replace(place, state=AllocationState.HELD, victims=())
        it.images.committed((msgspec.structs.replace(state, allocations=(held,)),))
        await eventually(lambda: asked(it) == [])


async def test_no_pull_is_wanted_for_a_job_that_pulls_never_or_lacks_its_secret() -> None:
    never = nominated("never", image="x:1", pull_policy=PullPolicy.NEVER)
    lacks = nominated("lacks", image="y:1", registry_auth=LOGIN)
    async with world(never, lacks, before=can_pull) as it:
        await it.connected()
        await it.pipeline.settled()
        assert asked(it) == []


async def test_a_failure_is_an_event_of_the_node_once_and_cordons_nothing() -> None:
    failed = ImageAhead(
        image="a:1", state=ImageState.FAILED, at=1.0, message="no such image", retry_at=31.0
    )
    again = msgspec.structs.replace(failed, state=ImageState.PULLING)
    here = ImageAhead(image="a:1", state=ImageState.HERE, at=99.0)
    async with world(before=with_fleet(FLEET)) as it:
        await it.connected()
        for said in (failed, again, failed, here):
            it.shim.info = msgspec.structs.replace(it.shim.info, images_ahead=(said,))
            it.event(EventType.NODE)
            known = NodeImage(
                image="a:1", state=said.state.value, since=said.at, message=said.message
            )
            await eventually(lambda known=known: it.node.capacity.images == (known,))  # type: ignore[misc]
        events = [(one.what, one.why) for one in it.node.history]
        about = [one for one in events if "a:1" in one[0]]
        assert about == [
            ("image a:1 could not be pulled ahead", "no such image"),
            ("image a:1 was pulled ahead after all", None),
        ]
        assert (it.node.cordoned, it.node.failed_starts, it.node.unfit) == (False, (), None)


async def test_ended_nominations_leave_nothing_behind() -> None:
    async with world(before=can_pull) as it:
        woken: list[str] = []
        images = NodeImages(it.pipeline, it.secrets, woken.append)
        state = nominated()
        images.committed((state,))
        images.committed((state,))
        images.committed((msgspec.structs.replace(state, allocations=()),))
        assert woken == ["n1", "n1"]
        assert images.is_idle
