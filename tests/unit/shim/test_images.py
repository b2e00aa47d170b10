"""One pull for all who want the same image, and room for the next one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from fairlead.wire.shim import NetworkMode, PullProgress, RegistryAuth
from shim.engines.base import ContainerSpec, ImageError, ImageInfo, ImageProblem, pinned
from shim.errors import EngineError
from shim.image_cache.access import ImageAccess
from shim.image_cache.images import ImageRecord, Images, Watermarks
from tests.doubles.engines import MemoryContainer, MemoryEngine, MemoryHost
from tests.doubles.failing_engines import FullEngine, StubbornEngine
from tests.doubles.records import MemoryRecords
from tests.simulation.virtual import VirtualLoop
from tests.support.waiting import LONG, eventually

DEADLINE = LONG
ANNA = RegistryAuth(username="anna", password="s3cret")
BEN = RegistryAuth(username="ben", password="wrong")


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        self.time += 1.0
        return self.time


def access(engine: MemoryEngine) -> ImageAccess:
    return ImageAccess(engine, MemoryRecords())


class World:
    def __init__(self, marks: Watermarks | None = None, stall: float = 30.0) -> None:
        self.host = MemoryHost()
        self.host.local = {}
        self.records: MemoryRecords[ImageRecord] = MemoryRecords()
        self.engine = FullEngine(self.host)
        self.engine.fits = 100
        self.images = Images(self.engine, self.records, access(self.engine), stall, marks, Clock())

    def offer(self, *names: str) -> None:
        for name in names:
            self.host.registry[name] = (ImageInfo(id=f"id-{name}"), None)

    async def pull(
        self, name: str, holder: str = "t1", auth: RegistryAuth | None = None
    ) -> ImageInfo:
        return await self.images.pull(name, auth, holder, lambda now: None)

    async def used_and_left(self, *names: str) -> None:
        for name in names:
            await self.pull(name, f"of-{name}")
            await self.images.let_go(f"of-{name}", name)

    @property
    def pulls(self) -> list[str]:
        return [line for line in self.host.log if line.startswith("pull")]

    async def pulling(self) -> None:
        await eventually(lambda: self.pulls, DEADLINE)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    made.offer("a", "b", "c", "d")
    yield made
    await made.images.close()


async def test_two_tasks_that_want_an_image_share_one_pull_and_its_progress(world: World) -> None:
    world.host.pull_gate.clear()
    seen: list[PullProgress] = []
    first = asyncio.create_task(world.pull("a", "t1"))
    await world.pulling()
    second = asyncio.create_task(world.images.pull("a", None, "t2", seen.append))
    await asyncio.sleep(0)
    world.host.pull_gate.set()
    async with asyncio.timeout(DEADLINE):
        both = await asyncio.gather(first, second)
    assert (both[0], world.pulls) == (both[1], ["pull a"])
    assert [now.downloaded for now in seen] == [0, 100]


async def test_a_pull_goes_on_while_one_still_wants_it_and_ends_with_the_last(world: World) -> None:
    world.host.pull_gate.clear()
    tasks = [asyncio.create_task(world.pull("a", f"t{n}")) for n in (1, 2)]
    await world.pulling()
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert not tasks[1].done()
    tasks[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]
    world.host.pull_gate.set()
    assert await world.pull("a") == ImageInfo(id="id-a")
    assert world.pulls == ["pull a", "pull a"]


async def test_nobody_gets_an_image_through_the_password_of_another(world: World) -> None:
    world.host.registry["a"] = (ImageInfo(id="id-a"), "s3cret")
    world.host.pull_gate.clear()
    anna = asyncio.create_task(world.pull("a", "t1", ANNA))
    ben = asyncio.create_task(world.pull("a", "t2", BEN))
    await world.pulling()
    world.host.pull_gate.set()
    assert (await anna).id == "id-a"
    with pytest.raises(ImageError, match="refused"):
        await ben


async def test_the_engine_expects_a_container_of_an_image_that_a_task_finds_or_pulls(
    world: World,
) -> None:
    await world.pull("a", "t1")
    assert world.host.expected == ["id-a"]
    assert await world.images.local("b", "t2") is None
    assert await world.images.local("a", "t2") is not None
    assert world.host.expected == ["id-a", "id-a"]


async def test_the_answer_of_an_early_look_is_given_once(world: World) -> None:
    await world.pull("a", "of-a")
    world.images.look_early("a", "t1")
    await asyncio.sleep(0)
    world.host.local.clear()
    assert await world.images.local("a", "t1") == ImageInfo(id="id-a")
    assert await world.images.local("a", "t1") is None


async def test_after_an_early_look_that_failed_the_engine_is_asked_again(world: World) -> None:
    engine = StubbornEngine(world.host, "local_image", 1)
    images = Images(engine, world.records, access(engine), 30.0)
    images.look_early("a", "t1")
    with pytest.raises(EngineError, match="does not work now"):
        await images.local("a", "t1")
    assert await images.local("a", "t1") is None
    await images.close()


@pytest.mark.parametrize("has_ended", [True, False], ids=["ended", "under way"])
async def test_an_early_look_holds_the_image_until_its_task_is_refused(
    world: World, has_ended: bool
) -> None:
    world.host.image_bytes = 20
    await world.used_and_left("a")
    world.images.look_early("a", "t1")
    if has_ended:
        await asyncio.sleep(0)
        assert await world.images.collect(until=0.0) == 0
    await world.images.forget("t1")
    assert await world.images.collect(until=0.0) == 1


async def test_a_pull_without_progress_is_given_up() -> None:
    world = World(stall=0.01)
    world.offer("a")
    world.host.pull_gate.clear()
    with pytest.raises(ImageError, match=r"no progress for 0.01 s") as caught:
        await world.pull("a")
    assert caught.value.problem is ImageProblem.STALLED


def test_a_pull_that_moves_may_last_longer_than_its_patience() -> None:
    world = World(stall=2.0)

    async def slowly(reference: str, auth: Any, progress: Any) -> ImageInfo:
        for step in range(1, 9):
            await asyncio.sleep(1.9)
            progress(PullProgress(downloaded=100, total=100, extracted=step))
        return ImageInfo(id="slow")

    world.engine.pull = slowly  # type: ignore[method-assign]
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(Random(0))) as runner:
        assert runner.run(world.pull("a")).id == "slow"
        assert runner.get_loop().time() > 8 * 1.9


async def test_above_the_high_mark_the_least_recently_used_go_until_the_low_mark() -> None:
    world = World(Watermarks(high=0.65, low=0.4))
    world.host.image_bytes = 20
    world.offer("a", "b", "c", "d")
    await world.used_and_left("a", "b", "c")
    await world.pull("a", "again")
    await world.images.let_go("again", "a")
    assert await world.images.collect() == 0
    await world.used_and_left("d")
    await world.images.collect()
    assert sorted(world.host.local) == ["a", "d"]
    assert sorted(record.reference for record in world.records.kept.values()) == ["a", "d"]
    await world.images.close()


async def test_no_image_in_use_is_removed_and_none_that_others_brought(world: World) -> None:
    world.host.image_bytes = 20
    world.host.local["brought"] = ImageInfo(id="id-brought")
    await world.used_and_left("a", "b")
    await world.pull("c", "a-task-that-lives")
    spec = ContainerSpec(
        task_id="t9",
        run_id="r",
        allocation_id="p",
        image="id-a",
        record="{}",
        job_folder="",
        run_folder="",
        network_mode=NetworkMode.HOST,
        hostname=None,
        cpu=1,
        memory=1 << 30,
        shm_size=None,
    )
    world.host.containers["c-t9"] = MemoryContainer(spec)
    assert await world.images.collect(until=0.0) == 1
    assert sorted(world.host.local) == ["a", "brought", "c"]


async def test_an_image_that_is_being_removed_is_told_to_be_gone(
    world: World,
) -> None:
    world.host.image_bytes = 20
    await world.used_and_left("a")
    removing, go_on = asyncio.Event(), asyncio.Event()
    remove = world.engine.remove_image

    async def slowly(reference: str) -> bool:
        removing.set()
        await go_on.wait()
        return await remove(reference)

    world.engine.remove_image = slowly  # type: ignore[method-assign]
    collecting = asyncio.create_task(world.images.collect(until=0.0))
    await removing.wait()
    looking = asyncio.create_task(world.images.local("a", "t2"))
    await asyncio.sleep(0)
    assert not looking.done()
    go_on.set()
    assert (await collecting, await looking) == (1, None)


async def test_an_image_pulled_in_an_earlier_life_is_known_in_the_next(world: World) -> None:
    await world.used_and_left("a")
    later = Images(world.engine, world.records, access(world.engine), 30.0)
    await later.open()
    world.host.image_bytes = 20
    assert (await later.collect(until=0.0), world.host.local) == (1, {})


async def test_a_pull_that_finds_no_room_makes_some_and_is_tried_once_more(world: World) -> None:
    world.host.image_bytes = 20
    world.engine.fits = 2
    await world.used_and_left("a", "b")
    assert (await world.pull("c")).id == "id-c"
    assert "a" not in world.host.local


@pytest.mark.parametrize("has_ended", [True, False], ids=["ended", "under way"])
async def test_a_pull_takes_the_room_that_another_collection_makes(
    world: World, has_ended: bool
) -> None:
    world.host.image_bytes = 20
    world.engine.fits = 1
    await world.used_and_left("a")
    may_remove, removed, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
    remove, pull = world.engine.remove_image, world.engine.pull

    async def slowly(reference: str) -> bool:
        await may_remove.wait()
        is_gone = await remove(reference)
        removed.set()
        await go_on.wait()
        return is_gone

    async def refused_late(reference: str, auth: Any, progress: Any) -> ImageInfo:
        try:
            return await pull(reference, auth, progress)
        except ImageError:
            # Between the engine's refusal and the look for what can be removed.
            may_remove.set()
            await removed.wait()
            if has_ended:
                go_on.set()
                await collecting
            raise

    world.engine.remove_image = slowly  # type: ignore[method-assign]
    world.engine.pull = refused_late  # type: ignore[method-assign]
    collecting = asyncio.create_task(world.images.collect(until=0.0))
    pulling = asyncio.create_task(world.pull("c"))
    await removed.wait()
    await asyncio.sleep(0)
    assert not pulling.done()
    go_on.set()
    assert (await collecting, (await pulling).id) == (1, "id-c")


async def test_a_pull_that_finds_no_room_and_can_make_none_says_so(world: World) -> None:
    world.engine.fits = 0
    with pytest.raises(ImageError, match="no room"):
        await world.pull("c")


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("busybox", "busybox@sha256:1"),
        ("busybox:1.36", "busybox@sha256:1"),
        ("host:5000/team/tool:1", "host:5000/team/tool@sha256:1"),
        ("host:5000/tool", "host:5000/tool@sha256:1"),
        ("tool@sha256:2", "tool@sha256:1"),
    ],
)
def test_a_digest_takes_the_tags_place(reference: str, expected: str) -> None:
    assert pinned(reference, "sha256:1") == expected
    assert pinned(reference, None) == reference
