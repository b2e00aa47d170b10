"""The node's images: one pull for all tasks that want the same image, and room for the next.

Tasks that want the same image with the same credentials share one pull; when the last one loses
interest, the pull is aborted. When the disk is nearly full, only images that this shim has pulled
are removed, the least recently used first. An image that a task or a container uses stays, and so
does one that the node pulls ahead (`ahead`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from fairlead.wire.shim import PullProgress, RegistryAuth
from shim.engines.base import Engine, ImageError, ImageInfo, ImageProblem, pinned
from shim.errors import EngineError
from shim.image_cache.access import ImageAccess
from shim.state.records import Records

log = logging.getLogger(__name__)

Progress = Callable[[PullProgress], None]
Key = tuple[str, str | None, str | None]


class ImageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A reference under which this shim has pulled an image. `used_at` is Unix time. `ahead`: it
    was in the list of images that the node pulls ahead."""

    reference: str
    used_at: float
    ahead: bool = False


class Watermarks(msgspec.Struct, frozen=True):
    """Shares (0 to 1) of the images' disk: above `high`, images are removed until `low` is
    reached."""

    high: float
    low: float


DEFAULT_MARKS = Watermarks(high=0.9, low=0.75)


class _SharedPull:
    def __init__(self, work: Callable[[_SharedPull], Awaitable[ImageInfo]]) -> None:
        self.listeners: dict[object, Progress] = {}
        self.is_for_a_task = False
        """A task wants the image: others may be removed to make room for it."""
        self._latest = PullProgress()
        self.task = asyncio.ensure_future(self._run(work))

    async def _run(self, work: Callable[[_SharedPull], Awaitable[ImageInfo]]) -> ImageInfo:
        return await work(self)

    def listen(self, who: object, progress: Progress) -> None:
        self.listeners[who] = progress
        progress(self._latest)

    def tell(self, now: PullProgress) -> None:
        self._latest = now
        for progress in tuple(self.listeners.values()):
            progress(now)


class Images:
    """The images. `stall`: seconds without a byte after which a pull is given up."""

    def __init__(
        self,
        engine: Engine,
        records: Records[ImageRecord],
        access: ImageAccess,
        stall: float,
        watermarks: Watermarks | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.access = access
        self._engine = engine
        self._records = records
        self._stall = stall
        self._watermarks = watermarks
        self._now = now
        self._pulls: dict[Key, _SharedPull] = {}
        self._holders: dict[str, str] = {}
        self._early: dict[str, asyncio.Task[ImageInfo | None]] = {}
        """What `look_early` has begun, by holder."""
        self._ours: dict[str, ImageRecord] = {}
        self._kept: frozenset[str] = frozenset()
        self._looking = 0
        self._settled = asyncio.Event()
        self._settled.set()
        self._collecting: asyncio.Task[None] | None = None
        self._wanted_again = False
        self._in_turn = asyncio.Lock()
        """For collections: of two at once, each would count what only one of them removes."""
        self._removed = 0
        """How many images were removed in this life."""

    async def open(self) -> None:
        self._ours = (await self._records.load()).records
        # The controller sends its list again in a moment: the disk must not be looked at before.
        self._kept = frozenset(one.reference for one in self._ours.values() if one.ahead)
        await self.access.open()
        self.collect_soon()

    async def close(self) -> None:
        chores: list[asyncio.Future[Any]] = [pull.task for pull in self._pulls.values()]
        chores += self._early.values()
        if self._collecting is not None:
            chores.append(self._collecting)
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)

    def look_early(self, reference: str, holder: str) -> None:
        """Begin to look for the image: `local` for the same holder takes the answer, and `forget`
        or `let_go` ends the look."""
        if holder not in self._early:
            look = self._look(reference, holder)
            self._early[holder] = asyncio.create_task(look, name=f"image of {holder}")

    async def local(self, reference: str, holder: str) -> ImageInfo | None:
        """Return the image on this node, held for `holder` (a task) until `let_go`."""
        early = self._early.pop(holder, None)
        return await (self._look(reference, holder) if early is None else early)

    async def _look(self, reference: str, holder: str) -> ImageInfo | None:
        # In a loop: a further removal may have begun before this task ran again.
        while not self._settled.is_set():
            await self._settled.wait()
        self._looking += 1
        try:
            image = await self._engine.local_image(reference)
        finally:
            self._looking -= 1
        if image is not None:
            self._holders[holder] = image.id
            self._engine.expect(image)
        return image

    async def let_go(self, holder: str, reference: str) -> None:
        """End its use. Raises OSError when that cannot be recorded."""
        if await self.forget(holder) and _key(reference) in self._ours:
            await self._note(reference)
        self.collect_soon()

    async def forget(self, holder: str) -> bool:
        """Let an image go that was not used; return whether the holder had one."""
        if (early := self._early.pop(holder, None)) is not None:
            await _end(early)
        return self._holders.pop(holder, None) is not None

    async def pull(
        self, reference: str, auth: RegistryAuth | None, holder: str, progress: Progress
    ) -> ImageInfo:
        """Return the image, held for `holder`. Raises ImageError, and EngineUnavailable."""
        return await self._join(reference, auth, holder, progress)

    async def pull_ahead(
        self, reference: str, auth: RegistryAuth | None, progress: Progress
    ) -> ImageInfo:
        """Pull an image that no task wants yet. A task that wants it meanwhile joins this pull. No
        other image is removed for it. Raises ImageError, and EngineUnavailable."""
        return await self._join(reference, auth, None, progress)

    def keep(self, references: Iterable[str]) -> None:
        """Count these images as used from now on, and no others that were kept before."""
        self._kept = frozenset(references)
        self.collect_soon()

    @property
    def marks(self) -> Watermarks:
        return self._watermarks or DEFAULT_MARKS

    async def _join(
        self, reference: str, auth: RegistryAuth | None, holder: str | None, progress: Progress
    ) -> ImageInfo:
        key = (reference, auth.username, auth.password) if auth else (reference, None, None)
        shared = self._pulls.get(key)
        # One that has ended stays here until its listeners have run: who comes now asks again.
        if shared is None or shared.task.done():
            shared = _SharedPull(lambda pull: self._pull(reference, auth, pull))
            self._pulls[key] = shared
        who = object()
        shared.listen(who, progress)
        if holder is not None:
            shared.is_for_a_task = True
        try:
            # The pull belongs to all its listeners: one that is cancelled must not end it.
            image = await asyncio.shield(shared.task)
            if holder is not None:
                self._holders[holder] = image.id
            return image
        finally:
            del shared.listeners[who]
            if not shared.listeners:
                if self._pulls.get(key) is shared:
                    del self._pulls[key]
                await _end(shared.task)

    def collect_soon(self) -> None:
        """Check the disk soon, and remove unused images if it is too full."""
        if self._watermarks is None:
            return
        if self._collecting is not None and not self._collecting.done():
            self._wanted_again = True
            return
        self._collecting = asyncio.create_task(self._collect_in_turn(), name="image collection")

    async def collect(self, *, until: float | None = None) -> int:
        """Remove images if the disk is above the high mark, or down to `until`; return how many."""
        async with self._in_turn:
            before = self._removed
            await self._collect(until)
            return self._removed - before

    async def _collect(self, until: float | None) -> None:
        if until is None:
            if self._watermarks is None or await self._share_used() <= self._watermarks.high:
                return
            until = self._watermarks.low
        for record in sorted(self._ours.values(), key=lambda each: each.used_at):
            if await self._share_used() <= until:
                break
            await self._remove_unused(record)

    async def _pull(
        self, reference: str, auth: RegistryAuth | None, pull: _SharedPull
    ) -> ImageInfo:
        was_here = await self._engine.local_image(reference) is not None
        if auth is None:
            image = await self._pull_with_room(reference, auth, pull)
        else:
            await self.access.pull_begins(reference)
            try:
                image = await self._pull_with_room(reference, auth, pull)
            finally:
                await self.access.pull_ended(reference)
        # Without the note the image is only never collected: no reason to fail the task.
        with contextlib.suppress(OSError):
            if not was_here:
                await self._note(reference)
        self.collect_soon()
        return image

    async def _pull_with_room(
        self, reference: str, auth: RegistryAuth | None, pull: _SharedPull
    ) -> ImageInfo:
        before = self._removed
        try:
            return await self._pull_once(reference, auth, pull.tell)
        except ImageError as error:
            if error.problem is not ImageProblem.NO_SPACE or not pull.is_for_a_task:
                raise
            await self._make_room()
            # Another collection may have been faster than this one.
            if self._removed == before:
                raise
            # Only once more: what could be removed is removed by now.
            return await self._pull_once(reference, auth, pull.tell)

    async def _pull_once(
        self, reference: str, auth: RegistryAuth | None, tell: Progress
    ) -> ImageInfo:
        loop = asyncio.get_running_loop()
        furthest = 0
        try:
            async with asyncio.timeout(self._stall) as limit:

                def progress(now: PullProgress) -> None:
                    nonlocal furthest
                    reached = now.downloaded + now.extracted
                    if reached > furthest:
                        furthest = reached
                        limit.reschedule(loop.time() + self._stall)
                    tell(now)

                image = await self._engine.pull(reference, auth, progress)
        except TimeoutError:
            raise ImageError(
                f"pulling {reference} made no progress for {self._stall:g} s", ImageProblem.STALLED
            ) from None
        self._engine.expect(image)
        return image

    async def _make_room(self) -> None:
        await self.collect(until=self._watermarks.low if self._watermarks else 0.0)

    async def _share_used(self) -> float:
        storage = await self._engine.storage()
        return storage.used / storage.total if storage and storage.total else 0.0

    async def _remove_unused(self, record: ImageRecord) -> None:
        image = await self._engine.local_image(record.reference)
        if self._is_kept(record.reference):
            return
        if image is not None and (self._is_used(image) or self._is_wanted(record.reference)):
            return
        # From here on no task may find the image that is being removed.
        self._settled.clear()
        try:
            if image is not None and not await self._engine.remove_image(record.reference):
                return
        finally:
            self._settled.set()
        if image is not None:
            self._removed += 1
            log.info("image %s is removed: the disk is nearly full", record.reference)
            if await self._engine.local_image(image.id) is None:
                await self.access.forget(image.id)
        self._ours.pop(_key(record.reference), None)
        await self._records.delete(_key(record.reference))

    def _is_used(self, image: ImageInfo) -> bool:
        """Return whether the image is used. A task that is looking for an image now may be about to
        find this one."""
        return self._looking > 0 or image.id in self._holders.values()

    def _is_kept(self, reference: str) -> bool:
        """Return whether the image is kept. A removal that the next look would pull again frees no
        room, so it would go on for ever."""
        if reference in self._kept:
            return True
        repository = pinned(reference, "")
        # An engine that loses a repository's last tag loses its digests too.
        return any("@" in kept and pinned(kept, "") == repository for kept in self._kept)

    def _is_wanted(self, reference: str) -> bool:
        """Return whether a pull wants the repository: an engine that loses a repository's last tag
        loses its digests too."""
        repository = pinned(reference, "")
        return any(pinned(key[0], "") == repository for key in self._pulls)

    async def _note(self, reference: str) -> None:
        ahead = reference in self._kept
        record = ImageRecord(reference=reference, used_at=self._now(), ahead=ahead)
        key = _key(reference)
        self._ours[key] = record
        await self._records.save(key, record)

    async def _collect_in_turn(self) -> None:
        while True:
            self._wanted_again = False
            try:
                await self.collect()
            except (EngineError, OSError) as error:
                log.warning("images could not be collected: %s", error)
            if not self._wanted_again:
                return


def _key(reference: str) -> str:
    return hashlib.sha256(reference.encode()).hexdigest()


async def _end(task: asyncio.Future[Any]) -> None:
    """Cancel the task and wait for its end."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    # asyncio logs an exception that nobody has asked a task for.
    if not task.cancelled():
        task.exception()
