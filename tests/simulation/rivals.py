"""Controllers one after another, at times two at once, over one database that may be put back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from controller.lifecycle.model import Fleet, Node, RunState
from controller.store.base import StoredEvent
from tests.doubles.memory_store import MemoryDatabase
from tests.simulation.checks import Checks
from tests.simulation.controller import ControllerLife
from tests.simulation.node import SimulatedNode

GIVES_UP_SECONDS = 20.0
"""By then a controller that was resumed has found out that another one works."""


class Backup(msgspec.Struct, frozen=True):
    runs: dict[str, RunState]
    nodes: dict[str, Node]
    fleets: dict[str, Fleet]
    events: list[StoredEvent]


class Rivals:
    """`begin` starts the next controller; `works` is set while one does."""

    def __init__(
        self,
        database: MemoryDatabase,
        nodes: dict[str, SimulatedNode],
        checks: Checks,
        now: Callable[[], float],
        begin: Callable[[], Awaitable[ControllerLife]],
    ) -> None:
        self.lives: list[ControllerLife] = []
        self.works = asyncio.Event()
        self.restores = 0
        self._database = database
        self._nodes = nodes
        self._checks = checks
        self._now = now
        self._begin = begin
        self._backup: Backup | None = None
        self._disturbed = False

    @property
    def newest(self) -> ControllerLife:
        return self.lives[-1]

    async def start(self) -> None:
        self.lives.append(await self._begin())
        self._disturbed = False
        self.works.set()

    async def kill(self, down: float, *, gently: bool) -> None:
        if not self._disturb():
            return
        self.works.clear()
        if gently:
            await self.newest.stop()
        await self._go_on_after(down)

    async def kill_at_step(self, steps: int, down: float) -> None:
        """Between two awaits, when it next has something to do."""
        if not self._disturb():
            return
        died = asyncio.Event()

        def die() -> None:
            self._end_newest()
            died.set()

        self.newest.kill_after(steps, die)
        try:
            await died.wait()
        finally:
            await self._go_on_after(down)

    async def _go_on_after(self, down: float) -> None:
        self._end_newest()
        try:
            await asyncio.sleep(down)
        finally:
            # Also if this is cancelled as the faults end: nothing settles without a controller.
            await self.start()

    async def take_over(self, paused: float, together: float) -> None:
        """The first hangs until its lease has run out, and goes on beside the second."""
        if not self._disturb():
            return
        self.works.clear()
        first = self.newest
        first.pause()
        try:
            await asyncio.sleep(paused)
        finally:
            first.superseded = True
            self._database.seize()
            await self.start()
        await asyncio.sleep(together)
        if first.gone.is_set():
            return
        try:
            async with asyncio.timeout(GIVES_UP_SECONDS):
                await first.resume()
        except TimeoutError:
            self._checks.violated("a controller goes on although another one has taken over")

    def end_the_superseded(self) -> None:
        for life in self.lives[:-1]:
            if not life.gone.is_set():
                life.kill()

    def back_up(self) -> None:
        database = self._database
        self._backup = Backup(
            dict(database.runs),
            dict(database.nodes),
            dict(database.fleets),
            list(database.events),
        )

    async def restore(self, down: float) -> None:
        """The backup takes the database's place, under a new epoch."""
        if self._backup is None or not self._disturb():
            return
        self._end_newest()
        database, backup = self._database, self._backup
        database.runs, database.nodes = dict(backup.runs), dict(backup.nodes)
        database.fleets, database.events = dict(backup.fleets), list(backup.events)
        database.epoch += 1
        database.restored_at = self._now()
        self.restores += 1
        self._checks.put_back(backup.runs, backup.nodes)
        try:
            await asyncio.sleep(down)
        finally:
            await self.start()

    def _disturb(self) -> bool:
        """One of these things at a time."""
        if self._disturbed:
            return False
        self._disturbed = True
        return True

    def _end_newest(self) -> None:
        self.works.clear()
        self.newest.kill()
        for node in self._nodes.values():
            node.cut()
        self._database.seize()
