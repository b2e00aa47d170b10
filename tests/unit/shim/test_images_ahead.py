"""Images that no task wants yet: a few at once, within the disk, tried again, open to nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from fairlead.wire.errors import Refused
from fairlead.wire.shim import (
    Fence,
    ImageState,
    PullProgress,
    RegistryAuth,
    WantedImage,
    WantedImages,
)
from shim.engines.base import EngineUnavailable, ImageError, ImageInfo, ImageProblem, Storage
from shim.image_cache.access import ImageAccess, PrivateImage
from shim.image_cache.ahead import MAX_IMAGES, ImagesAhead
from shim.image_cache.images import ImageRecord, Images, Watermarks
from tests.doubles.engines import MemoryEngine, MemoryHost
from tests.doubles.records import MemoryRecords
from tests.simulation.virtual import VirtualLoop

ANNA = RegistryAuth(username="anna", password="s3cret")
FENCE = Fence(1, 2)


class World:
    def __init__(self, marks: Watermarks | None = None) -> None:
        self.host = MemoryHost()
        self.host.local = {}
        self.engine = MemoryEngine(self.host)
        self.private: MemoryRecords[PrivateImage] = MemoryRecords()
        self.records: MemoryRecords[ImageRecord] = MemoryRecords()
        access = ImageAccess(self.engine, self.private)
        self.images = Images(self.engine, self.records, access, 7200.0, marks)
        self.changes = 0
        self.used = 0
        self.engine.storage = self._storage  # type: ignore[method-assign]
        self.ahead = ImagesAhead(
            self.images,
            self.engine,
            self._changed,
            now=lambda: asyncio.get_running_loop().time(),
        )

    async def _storage(self) -> Storage:
        return Storage(used=self.used, total=1000)

    def _changed(self) -> None:
        self.changes += 1

    def offer(self, *names: str, password: str | None = None) -> None:
        for name in names:
            self.host.registry[name] = (ImageInfo(id=f"id-{name}"), password)

    def want(
        self,
        *names: str,
        auth: RegistryAuth | None = None,
        fence: Fence = FENCE,
        nominated: bool = False,
    ) -> None:
        wanted = (
            WantedImage(image=name, registry_auth=auth, nominated=nominated) for name in names
        )
        self.ahead.want(WantedImages(images=tuple(wanted)), fence)

    @property
    def pulls(self) -> list[str]:
        return [line.removeprefix("pull ") for line in self.host.log if line.startswith("pull")]

    @property
    def states(self) -> dict[str, ImageState]:
        return {one.image: one.state for one in self.ahead.listing() or ()}

    def message(self, image: str) -> str:
        listing = self.ahead.listing() or ()
        return next(one.message or "" for one in listing if one.image == image)


def play(story: Callable[[World], Awaitable[None]], world: Callable[[], World] = World) -> None:
    async def whole() -> None:
        made = world()
        try:
            await story(made)
        finally:
            await made.ahead.close()
            await made.images.close()

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(Random(0))) as runner:
        runner.run(whole())


def test_listed_images_are_pulled_a_few_at_once_and_then_are_here() -> None:
    async def story(world: World) -> None:
        world.offer("a", "b", "c")
        world.host.pull_gate.clear()
        world.want("a", "b", "c")
        await asyncio.sleep(0.5)
        assert world.states == {
            "a": ImageState.PULLING,
            "b": ImageState.PULLING,
            "c": ImageState.WAITING,
        }
        world.host.pull_gate.set()
        await asyncio.sleep(0.5)
        assert set(world.states.values()) == {ImageState.HERE}
        assert world.pulls == ["a", "b", "c"]
        assert world.changes > 3

    play(story)


def test_an_image_that_is_here_is_not_pulled_and_one_that_vanished_is() -> None:
    async def story(world: World) -> None:
        world.offer("a")
        world.host.local["a"] = ImageInfo(id="id-a")
        world.want("a")
        await asyncio.sleep(1)
        assert (world.states, world.pulls) == ({"a": ImageState.HERE}, [])
        assert world.host.expected == ["id-a"]
        del world.host.local["a"]
        await asyncio.sleep(301)
        assert (world.states, world.pulls) == ({"a": ImageState.HERE}, ["a"])

    play(story)


def test_waiting_jobs_go_first_have_places_of_their_own_and_are_in_no_listing() -> None:
    async def story(world: World) -> None:
        world.offer("a", "b", "c", "of-job")
        world.host.pull_gate.clear()
        world.want("a", "b", "c")
        await asyncio.sleep(0.5)
        fleet = [WantedImage(image=name) for name in ("a", "b", "c")]
        job = WantedImage(image="of-job", nominated=True)
        before = world.changes
        world.ahead.want(WantedImages(images=(*fleet, job)), FENCE)
        await asyncio.sleep(0.5)
        assert world.pulls == ["a", "b", "of-job"]
        assert list(world.states) == ["a", "b", "c"]
        assert world.ahead.asked == 4
        assert world.changes == before

    play(story)


def test_an_image_of_a_waiting_job_that_its_fleet_has_too_stays_listed() -> None:
    async def story(world: World) -> None:
        world.offer("a", "b")
        job = WantedImage(image="b", nominated=True)
        fleet = (WantedImage(image="a"), WantedImage(image="b"))
        for images in ((job, *fleet), fleet, (*fleet, job)):
            world.ahead.want(WantedImages(images=images), FENCE)
            await asyncio.sleep(1)
            assert world.states == {"a": ImageState.HERE, "b": ImageState.HERE}
        assert sorted(world.pulls) == ["a", "b"]

    play(story)


def test_a_bug_in_a_pull_is_a_failure_with_a_pause() -> None:
    async def story(world: World) -> None:
        async def broken(
            reference: str, auth: RegistryAuth | None, progress: Callable[[PullProgress], None]
        ) -> ImageInfo:
            world.host.log.append("pull a")
            raise RuntimeError("a bug")

        world.engine.pull = broken  # type: ignore[method-assign]
        world.want("a")
        await asyncio.sleep(29)
        assert (world.states, world.pulls) == ({"a": ImageState.FAILED}, ["a"])

    play(story)


def test_a_failure_has_its_reason_and_is_tried_again_later_and_later() -> None:
    async def story(world: World) -> None:
        world.want("a")
        await asyncio.sleep(1)
        assert world.states == {"a": ImageState.FAILED}
        assert "a" in world.message("a")
        (listed,) = world.ahead.listing() or ()
        assert listed.retry_at == pytest.approx(listed.at + 30.0)
        await asyncio.sleep(24 * 3600)
        assert 90 <= len(world.pulls) <= 110
        world.offer("a")
        await asyncio.sleep(901)
        assert (world.states, world.message("a")) == ({"a": ImageState.HERE}, "")

    play(story)


def test_new_credentials_are_tried_at_once() -> None:
    async def story(world: World) -> None:
        world.offer("a", password="s3cret")
        world.want("a", auth=RegistryAuth(username="anna", password="wrong"))
        await asyncio.sleep(1)
        assert world.states == {"a": ImageState.FAILED}
        world.want("a", auth=ANNA)
        await asyncio.sleep(1)
        assert world.states == {"a": ImageState.HERE}

    play(story)


def test_a_private_image_that_was_pulled_ahead_is_open_to_no_run() -> None:
    async def story(world: World) -> None:
        world.offer("a", password="s3cret")
        world.want("a", auth=ANNA)
        await asyncio.sleep(1)
        assert world.states == {"a": ImageState.HERE}
        image = await world.images.local("a", "t1")
        assert image is not None
        assert world.images.access.must_ask("run-1", "a", image)
        with pytest.raises(ImageError):
            await world.images.access.ask("run-1", "a", image, None)
        kept = [*world.private.kept.values(), *world.records.kept.values()]
        assert "id-a" in str(kept)
        assert "s3cret" not in str(kept)
        assert "s3cret" not in str(world.ahead.listing())

    play(story)


def test_nothing_is_pulled_ahead_into_a_disk_that_is_rather_full() -> None:
    async def story(world: World) -> None:
        world.used = 750
        world.offer("a")
        world.want("a")
        await asyncio.sleep(1)
        assert (world.states, world.pulls) == ({"a": ImageState.FAILED}, [])
        assert "75% full" in world.message("a")
        world.used = 100
        await asyncio.sleep(60)
        assert world.states == {"a": ImageState.HERE}

    play(story)


def test_a_pull_that_would_fill_the_disk_ends_and_is_not_begun_again() -> None:
    async def story(world: World) -> None:
        ended: list[str] = []

        async def large(
            reference: str, auth: RegistryAuth | None, progress: Callable[[PullProgress], None]
        ) -> ImageInfo:
            world.host.log.append(f"pull {reference}")
            progress(PullProgress(downloaded=10, total=300))
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append(reference)
                raise
            raise AssertionError("nothing wakes it")

        world.engine.pull = large  # type: ignore[method-assign]
        world.used = 100
        world.want("a")
        await asyncio.sleep(3)
        assert (world.states, ended) == ({"a": ImageState.FAILED}, ["a"])
        assert "would fill more than 90%" in world.message("a")
        await asyncio.sleep(4 * 3600)
        assert world.pulls == ["a"]

    play(story)


def test_the_collection_leaves_listed_images_and_takes_them_once_they_are_not() -> None:
    async def story(world: World) -> None:
        world.offer("a", "b")
        world.want("a")
        await asyncio.sleep(1)
        await world.images.pull("b", None, "t1", lambda now: None)
        await world.images.let_go("t1", "b")
        world.used = 950
        assert await world.images.collect() == 1
        assert list(world.host.local) == ["a"]
        world.want()
        await world.images.collect()
        assert world.host.local == {}

    play(story, lambda: World(Watermarks(high=0.9, low=0.75)))


def test_a_shim_that_starts_again_keeps_the_listed_images_until_it_hears_the_list() -> None:
    async def story(world: World) -> None:
        world.offer("a", "b")
        world.want("a")
        await asyncio.sleep(1)
        await world.images.pull("b", None, "t1", lambda now: None)
        await world.images.let_go("t1", "b")
        world.used = 950
        later = World(Watermarks(high=0.9, low=0.75))
        later.host.local, later.records.kept, later.used = world.host.local, world.records.kept, 950
        await later.images.open()
        later.ahead.open()
        await later.images.collect()
        assert list(later.host.local) == ["a"]
        await asyncio.sleep(601)
        assert later.host.local == {}
        await later.ahead.close()
        await later.images.close()

    play(story)


def test_no_image_is_removed_for_a_pull_ahead_but_for_a_task_that_joins_it() -> None:
    async def story(world: World) -> None:
        world.offer("a", "b")
        await world.images.pull("b", None, "t1", lambda now: None)
        await world.images.let_go("t1", "b")
        gate = asyncio.Event()

        async def pull(
            reference: str, auth: RegistryAuth | None, progress: Callable[[PullProgress], None]
        ) -> ImageInfo:
            await gate.wait()
            if "b" in world.host.local:
                raise ImageError("no space left", ImageProblem.NO_SPACE)
            return ImageInfo(id="id-a")

        world.engine.pull = pull  # type: ignore[method-assign]
        world.want("a")
        await asyncio.sleep(0.5)
        gate.set()
        await asyncio.sleep(0.5)
        assert world.states == {"a": ImageState.FAILED}
        assert "b" in world.host.local
        gate.clear()
        await asyncio.sleep(31)
        task = asyncio.create_task(world.images.pull("a", None, "t2", lambda now: None))
        await asyncio.sleep(0.1)
        world.used = 950
        gate.set()
        assert (await task).id == "id-a"

    play(story, lambda: World(Watermarks(high=0.9, low=0.0)))


def test_a_job_that_got_its_room_finds_its_pull_under_way() -> None:
    async def story(world: World) -> None:
        world.offer("a")
        world.host.pull_gate.clear()
        world.want("a", nominated=True)
        await asyncio.sleep(0.5)
        world.want()
        await asyncio.sleep(1)
        task = asyncio.create_task(world.images.pull("a", None, "t1", lambda now: None))
        await asyncio.sleep(70)
        world.host.pull_gate.set()
        assert (await task).id == "id-a"
        assert world.pulls == ["a"]

    play(story)


def test_a_pull_that_nobody_lists_any_more_ends_after_a_minute() -> None:
    async def story(world: World) -> None:
        world.offer("a")
        world.host.pull_gate.clear()
        world.want("a")
        await asyncio.sleep(0.5)
        world.want()
        await asyncio.sleep(61)
        world.host.pull_gate.set()
        await asyncio.sleep(1)
        assert world.host.local == {}

    play(story)


def test_an_engine_that_is_away_is_a_failure_that_passes() -> None:
    async def story(world: World) -> None:
        async def away(reference: str) -> ImageInfo | None:
            raise EngineUnavailable("the engine does not answer")

        found, world.engine.local_image = world.engine.local_image, away  # type: ignore[method-assign]
        world.offer("a")
        world.want("a")
        await asyncio.sleep(1)
        assert world.message("a") == "the engine does not answer"
        world.engine.local_image = found  # type: ignore[method-assign]
        await asyncio.sleep(31)
        assert world.states == {"a": ImageState.HERE}

    play(story)


@pytest.mark.parametrize(
    ("images", "field"),
    [
        ((" ",), "images[0].image"),
        (("a", "x" * 1025), "images[1].image"),
        (tuple(f"i{n}" for n in range(MAX_IMAGES + 1)), "images"),
    ],
)
def test_a_list_that_cannot_be_right_is_refused_by_field(
    images: tuple[str, ...], field: str
) -> None:
    async def story(world: World) -> None:
        with pytest.raises(Refused) as caught:
            world.want(*images)
        assert (caught.value.status, caught.value.field) == (400, field)
        assert world.ahead.listing() == ()

    play(story)


def test_a_name_that_the_engine_does_not_accept_fails_alone() -> None:
    async def story(world: World) -> None:
        world.offer("a")
        world.want("-no image-", "a")
        await asyncio.sleep(1)
        assert list(world.states.values()) == [ImageState.FAILED, ImageState.HERE]

    play(story)


def test_an_older_controller_is_refused() -> None:
    async def story(world: World) -> None:
        world.want("a", fence=Fence(1, 3))
        with pytest.raises(Refused, match="older") as caught:
            world.want("b", fence=Fence(1, 2))
        assert caught.value.code == "fenced"
        assert list(world.states) == ["a"]

    play(story)


def test_an_engine_without_images_is_asked_for_none() -> None:
    async def story(world: World) -> None:
        world.engine.abilities = frozenset()
        assert world.ahead.listing() is None
        with pytest.raises(Refused, match="no images"):
            world.want("a")

    play(story)
