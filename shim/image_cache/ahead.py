"""Images that the node pulls ahead, so that the start of a job finds them.

The controller says which: those of the node's fleet, and those of jobs that wait for room here. Of
each kind a few are pulled at a time, and none into a disk that it would fill. A failure is shown
with its reason and tried again with back-off; it hinders no job. Such a pull grants no run an
image: the registry of a private one is asked for each run as ever (`access`). The list and its
credentials live in memory: the controller sends them with each connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable

import msgspec

from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.errors import Refused
from fairlead.wire.shim import (
    Fence,
    ImageAhead,
    ImageState,
    PullProgress,
    RefusalCode,
    WantedImage,
    WantedImages,
)
from shim.engines.base import Engine, ImageError, ImageProblem, pinned
from shim.errors import EngineError, invalid
from shim.image_cache.images import Images

log = logging.getLogger(__name__)
MAX_IMAGES = 256
"""A fleet has at most 32; the others are those of jobs that wait for room here."""
_MAX_NAME = 1024
_PACKED_AND_UNPACKED = 3
"""The bytes that an image takes while it is pulled, by the bytes of its packed layers: themselves,
and about twice as much once they are unpacked."""
_LOST_INTEREST = 60.0
"""Seconds for which a pull goes on that is in the list no more: the job that waited for room may
have got it, and joins the pull in a moment."""
_OLD_LIST = 600.0
"""Seconds after the shim's start for which the images of the list before it count as used."""


class Limits(msgspec.Struct, frozen=True):
    """`first_pause`, `max_pause`: seconds before a failed pull is tried again, doubled each time.
    `recheck`: seconds after which an image that is here is looked for again. `disk_every`: seconds
    between two looks at the disk during a pull."""

    at_once: int = 2
    first_pause: float = 30.0
    max_pause: float = 900.0
    recheck: float = 300.0
    disk_every: float = 1.0


class _Image:
    def __init__(self, wanted: WantedImage, now: float) -> None:
        self.wanted = wanted
        self.reference = pinned(wanted.image, wanted.digest)
        self.state = ImageState.WAITING
        self.since = now
        self.message: str | None = None
        self.failures = 0
        self.retry_at: float | None = None
        self.size = 0
        """The bytes of its packed layers, as far as a pull told them."""
        self.pull: asyncio.Task[None] | None = None


Key = tuple[str, str | None, str | None]


class ImagesAhead:
    """`changed` is called when the state of a listed image has changed."""

    def __init__(
        self,
        images: Images,
        engine: Engine,
        changed: Callable[[], None],
        limits: Limits | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._images = images
        self._engine = engine
        self._changed = changed
        self._limits = limits or Limits()
        self._now = now
        self._wanted: dict[Key, _Image] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._fence: Fence | None = None
        self._wake = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._old_list: asyncio.TimerHandle | None = None

    def open(self) -> None:
        self._old_list = asyncio.get_running_loop().call_later(_OLD_LIST, self._end_old_list)

    def _end_old_list(self) -> None:
        """Without a controller the images must not be kept for ever."""
        if self._fence is None:
            self._images.keep(())

    @property
    def is_possible(self) -> bool:
        return EngineAbility.IMAGES in self._engine.abilities

    @property
    def asked(self) -> int:
        return len(self._wanted)

    def listing(self) -> tuple[ImageAhead, ...] | None:
        """Return the images and how far they are, without those of waiting jobs, whose users alone
        know of them; None: the engine has no images."""
        if not self.is_possible:
            return None
        return tuple(
            ImageAhead(
                image=one.wanted.image,
                state=one.state,
                at=one.since,
                message=one.message,
                retry_at=one.retry_at,
            )
            for one in self._wanted.values()
            if not one.wanted.nominated
        )

    def want(self, wanted: WantedImages, fence: Fence) -> None:
        """Pull these images ahead, and no others. Raises Refused (400, 409)."""
        if not self.is_possible:
            raise Refused(
                409, RefusalCode.ENGINE_LACKS, "this node's engine has no images to pull ahead"
            )
        if self._fence is not None and fence < self._fence:
            message = f"fence {fence.header()} is older than {self._fence.header()}"
            raise Refused(409, RefusalCode.FENCED, message)
        _check(wanted.images)
        self._fence = fence
        shown = self.listing()
        before, self._wanted = self._wanted, {}
        for one in sorted(wanted.images, key=lambda image: not image.nominated):
            key = _key(one)
            image = self._wanted.get(key) or before.pop(key, None) or _Image(one, self._now())
            # Of an image that its fleet has too, the fleet's entry counts: it is listed.
            image.wanted = one
            self._wanted[key] = image
        for left in before.values():
            if left.pull is not None:
                self._let_finish(left.pull)
        self._images.keep(image.reference for image in self._wanted.values())
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name="images ahead")
        self._wake.set()
        if self.listing() != shown:
            self._changed()

    async def close(self) -> None:
        if self._old_list is not None:
            self._old_list.cancel()
        pulls = [image.pull for image in self._wanted.values() if image.pull is not None]
        tasks = [*pulls, *self._leaving, *([] if self._keeper is None else [self._keeper])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _let_finish(self, pull: asyncio.Task[None]) -> None:
        self._leaving.add(pull)
        timer = asyncio.get_running_loop().call_later(_LOST_INTEREST, pull.cancel)
        pull.add_done_callback(self._leaving.discard)
        pull.add_done_callback(lambda _: timer.cancel())

    async def _keep(self) -> None:
        while True:
            self._wake.clear()
            try:
                pause = await self._look()
            except Exception:
                # A bug must not end all pulls of this node until its shim starts again.
                log.exception("the images to pull ahead could not be looked at")
                pause = self._limits.max_pause
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _look(self) -> float:
        """Start the pulls that may start; return the seconds until the next look."""
        now, pause = self._now(), self._limits.recheck
        for image in tuple(self._wanted.values()):
            if image.pull is not None:
                continue
            if image.retry_at is not None and image.retry_at > now:
                pause = min(pause, image.retry_at - now)
                continue
            try:
                found = await self._engine.local_image(image.reference)
            except EngineError as error:
                self._failed(image, error)
                pause = min(pause, self._limits.first_pause)
                continue
            if found is not None:
                self._engine.expect(found)
                self._enter(image, ImageState.HERE)
            # Counted again each time: a new list may have come meanwhile.
            elif self._may_begin(image):
                image.pull = asyncio.create_task(self._pull(image), name="image ahead")
                self._enter(image, ImageState.PULLING)
            else:
                self._enter(image, ImageState.WAITING)
        return pause

    def _may_begin(self, image: _Image) -> bool:
        """Waiting jobs have places of their own: a fleet's large images must not delay theirs."""
        pulling = sum(
            one.pull is not None and one.wanted.nominated is image.wanted.nominated
            for one in self._wanted.values()
        )
        listed = image in self._wanted.values()
        return listed and pulling + len(self._leaving) < self._limits.at_once

    async def _pull(self, image: _Image) -> None:
        try:
            await self._pull_within_the_disk(image)
        except (EngineError, OSError) as error:
            self._failed(image, error)
        except Exception as error:
            # A bug must not start the same pull again and again without a pause.
            log.exception("image %s was not pulled ahead", image.wanted.image)
            self._failed(image, error)
        else:
            self._enter(image, ImageState.HERE)
        finally:
            image.pull = None
            self._wake.set()

    async def _pull_within_the_disk(self, image: _Image) -> None:
        """Raises ImageError, also where the image would fill the disk; EngineError, OSError."""
        await self._require_room(image, begins=True)
        done = PullProgress()

        def progress(now: PullProgress) -> None:
            nonlocal done
            done = now
            image.size = max(image.size, now.total)

        auth = image.wanted.registry_auth
        pull = asyncio.ensure_future(self._images.pull_ahead(image.reference, auth, progress))
        try:
            # Docker looks at no disk before a pull, so the disk is looked at while it fills.
            while not (await asyncio.wait((pull,), timeout=self._limits.disk_every))[0]:
                await self._require_room(image, done)
            pull.result()
        finally:
            # Also when this is cancelled: nobody else holds this pull.
            if not pull.done():
                pull.cancel()
                await asyncio.wait((pull,))

    async def _require_room(
        self, image: _Image, done: PullProgress | None = None, *, begins: bool = False
    ) -> None:
        storage = await self._engine.storage()
        if storage is None or not storage.total:
            return
        marks, share = self._images.marks, storage.used / storage.total
        if begins and share >= marks.low:
            raise ImageError(
                f"the disk of the images is {marks.low:.0%} full or more: images are pulled ahead "
                f"only while it is less full",
                ImageProblem.NO_SPACE,
            )
        there = 0 if done is None else done.downloaded + 2 * done.extracted
        missing = max(0, _PACKED_AND_UNPACKED * image.size - there)
        if storage.used + missing > marks.high * storage.total:
            raise ImageError(
                f"{image.wanted.image} has {image.size >> 20} MiB when packed: unpacked, it would "
                f"fill more than {marks.high:.0%} of the disk of the images",
                ImageProblem.NO_SPACE,
            )

    def _failed(self, image: _Image, error: Exception) -> None:
        pause = min(self._limits.max_pause, self._limits.first_pause * 2**image.failures)
        image.failures = min(image.failures + 1, 16)
        image.retry_at = self._now() + pause
        image.message = str(error)
        log.warning("image %s was not pulled ahead: %s", image.wanted.image, error)
        self._enter(image, ImageState.FAILED)

    def _enter(self, image: _Image, state: ImageState) -> None:
        if state is not ImageState.FAILED:
            image.retry_at = None
        if state is ImageState.HERE:
            image.message, image.failures = None, 0
        if image.state is state:
            return
        image.state, image.since = state, self._now()
        if not image.wanted.nominated and image in self._wanted.values():
            self._changed()


def _key(wanted: WantedImage) -> Key:
    auth = wanted.registry_auth
    reference = pinned(wanted.image, wanted.digest)
    return (reference, None, None) if auth is None else (reference, auth.username, auth.password)


def _check(images: Iterable[WantedImage]) -> None:
    """Raise Refused (400) for a list that cannot be right; the engine judges the names."""
    for number, one in enumerate(images):
        if number >= MAX_IMAGES:
            raise invalid(f"at most {MAX_IMAGES} images are pulled ahead", "images")
        if not one.image.strip():
            raise invalid("an image is needed", f"images[{number}].image")
        if len(one.image) > _MAX_NAME:
            message = f"an image's name has at most {_MAX_NAME} characters"
            raise invalid(message, f"images[{number}].image")
