"""The real controller in a life of its own, over a store and a log folder that outlive it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from controller.assembly import Machinery
from controller.blobs import BlobStore
from controller.clock import Chance
from controller.lifecycle.model import Node
from controller.links.base import NodeLink
from controller.logs.store import LogStore
from controller.store.base import Changes, StoreUnavailable
from controller.store.memory import MemoryDatabase, MemoryStore
from tests.simulation.checks import Checks
from tests.simulation.virtual import Life, VirtualClock, VirtualLoop

T = TypeVar("T")

COMMIT_SECONDS = 0.02
FAILING_COMMITS = 0.02


class WatchedStore(MemoryStore):
    """Commits take time, fail now and then while there are faults, and are checked."""

    def __init__(
        self, database: MemoryDatabase, checks: Checks, chance: Random, faulty: Callable[[], bool]
    ) -> None:
        super().__init__(database)
        self._checks = checks
        self._chance = chance
        self._faulty = faulty

    async def commit(self, changes: Changes) -> None:
        await asyncio.sleep(self._chance.uniform(0.0, COMMIT_SECONDS))
        if self._faulty() and self._chance.random() < FAILING_COMMITS:
            raise StoreUnavailable("the disk is full")
        await super().commit(changes)
        self._checks.committed(changes)
        await asyncio.sleep(self._chance.uniform(0.0, COMMIT_SECONDS))


class Gone(Exception):
    """The controller ended before it answered; whether it had the request is not known."""


class ControllerLife:
    """`gone` is set when it was killed; `failed` is called when it ended by itself."""

    def __init__(
        self, number: int, loop: VirtualLoop, failed: Callable[[BaseException | None], None]
    ) -> None:
        self.life = Life(f"controller {number}")
        self.gone = asyncio.Event()
        self.machinery: Machinery | None = None
        self._loop = loop
        self._failed = failed
        self._work: asyncio.Task[None] | None = None

    async def start(
        self,
        store: MemoryStore,
        log_folder: Path,
        chance: Chance,
        make_link: Callable[[Node], NodeLink],
    ) -> None:
        async def boot() -> Machinery:
            boot = await store.open()
            return Machinery(
                store=store,
                boot=boot,
                snapshot=await store.load(),
                logs=LogStore(log_folder),
                progress={},
                make_link=make_link,
                clock=VirtualClock(self._loop),
                chance=chance,
                blobs=BlobStore(log_folder.parent / "blobs"),
                cluster_secret=b"simulated",
            )

        self.machinery = await self.perform(boot())
        self._work = self._loop.spawn(self.life, self.machinery.run(), name="machinery")
        self._work.add_done_callback(self._ended)

    async def perform(self, work: Coroutine[Any, Any, T]) -> T:
        """Within the controller. Raises Gone when it is killed meanwhile."""
        if self.gone.is_set():
            work.close()
            raise Gone
        task = self._loop.spawn(self.life, work)
        gone = asyncio.ensure_future(self.gone.wait())
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not task.done():
            raise Gone
        return task.result()

    def kill(self) -> None:
        if self._work is not None:
            self._work.remove_done_callback(self._ended)
        self._loop.kill(self.life)
        self.gone.set()

    async def stop(self) -> None:
        """As SIGTERM does: with all of its cleanup."""
        try:
            if self._work is not None:
                self._work.remove_done_callback(self._ended)
                self._work.cancel()
                await asyncio.wait({self._work})
        finally:
            self.kill()

    def _ended(self, work: asyncio.Task[None]) -> None:
        self.gone.set()
        self._failed(None if work.cancelled() else work.exception())
