"""The slow loop beside the events: what an event did not tell is found out, and systemd hears that
the shim is alive.

Events can be lost on their way from the engine, leftovers can be removed by hand, fences have a
date. One turn of the loop feeds the watchdog, also while the engine hangs: no restart of the shim
would cure that. A loop that is stuck feeds nothing and is restarted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from shim.engines.base import EngineError
from shim.systemd import ALIVE, Systemd
from shim.tasks import Supervisor

log = logging.getLogger(__name__)

_PAUSE = 10.0
_SWEEP_EVERY = 3600.0


class Upkeep:
    def __init__(
        self, supervisor: Supervisor, systemd: Systemd | None = None, pause: float = _PAUSE
    ) -> None:
        self._supervisor = supervisor
        self._systemd = systemd or Systemd({})
        self._pause = min(pause, (self._systemd.watchdog or 2 * pause) / 2)
        self._suspects: frozenset[str] = frozenset()
        self._swept_at = float("-inf")
        self._engine_answers = True
        self._told: tuple[bool, int] | None = None
        self._comparing: asyncio.Task[None] | None = None
        self._loop = asyncio.create_task(self._run(), name="upkeep")

    async def close(self) -> None:
        for task in (self._loop, self._comparing):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _run(self) -> None:
        while True:
            await self._turn()
            self._systemd.tell(ALIVE)
            await asyncio.sleep(self._pause)

    async def _turn(self) -> None:
        """A comparison that hangs in the engine is left to it; there is never a second one."""
        if self._comparing is None or self._comparing.done():
            self._comparing = asyncio.create_task(self._compare(), name="upkeep comparison")
        await asyncio.wait({self._comparing}, timeout=self._pause)
        await self._tell_fitness()
        now = asyncio.get_running_loop().time()
        if now - self._swept_at >= _SWEEP_EVERY:
            self._swept_at = now
            await self._supervisor.fences.drop_expired()

    async def _tell_fitness(self) -> None:
        """Whoever gives the node work wants to know when the engine falls silent or answers again,
        and when the free disk has halved or doubled."""
        free = await self._supervisor.free_disk()
        now = (self._engine_answers, free.bit_length())
        if self._told is not None and now != self._told:
            self._supervisor.events.node_changed()
        self._told = now

    async def _compare(self) -> None:
        try:
            self._suspects = await self._supervisor.compare(self._suspects)
            self._engine_answers = True
        except EngineError as error:
            self._engine_answers = False
            log.debug("cannot compare tasks with containers: %s", error)
        except Exception:
            log.exception("comparing tasks with containers failed")
