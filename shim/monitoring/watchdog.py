"""The watchdog loop finds what no event reported, and tells systemd that the shim is alive.

Events can be lost, leftovers can be removed by hand, fences expire. One turn of the loop feeds
systemd's watchdog, also while the engine hangs, because a restart of the shim would not cure that.
A loop that is stuck feeds nothing, and systemd restarts the shim.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Mapping

from shim.errors import EngineError
from shim.tasks.supervisor import Supervisor

log = logging.getLogger(__name__)
READY = "READY=1"
STOPPING = "STOPPING=1"
ALIVE = "WATCHDOG=1"


class Systemd:
    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        # "@" stands for the zero byte of an abstract socket (sd_notify(3)).
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        self._watchdog = environment.get("WATCHDOG_USEC", "")

    @property
    def watchdog(self) -> float | None:
        """The seconds of silence after which systemd restarts the shim; None: it does not watch."""
        return int(self._watchdog) / 1e6 if self._watchdog.isdecimal() else None

    def tell(self, state: str) -> None:
        """Send the state. It never raises: the shim does not end because systemd does not
        listen."""
        if not self._address:
            return
        try:
            # Without waiting: a systemd that does not read must not stop the loop.
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as out:
                out.sendto(state.encode(), self._address)
        except OSError as error:
            log.warning("cannot tell systemd %s: %s", state, error)


_PAUSE = 10.0
_SWEEP_EVERY = 3600.0


class Watchdog:
    def __init__(
        self, supervisor: Supervisor, systemd: Systemd | None = None, pause: float = _PAUSE
    ) -> None:
        self._supervisor = supervisor
        self._systemd = systemd or Systemd({})
        # Half of the time is what sd_watchdog_enabled(3) recommends.
        self._pause = min(pause, (self._systemd.watchdog or 2 * pause) / 2)
        self._suspects: frozenset[str] = frozenset()
        self._swept_at = float("-inf")
        self._engine_answers = True
        self._seen: tuple[bool, int] | None = None
        self._reported: set[tuple[bool, int]] = set()
        self._comparing: asyncio.Task[None] | None = None
        self._loop = asyncio.create_task(self._run(), name="watchdog")

    def note_reported(self, *, engine_answers: bool, free: int) -> None:
        """Note what was answered to somebody who asked for the node: an engine that is started anew
        between two looks is away for him alone, and no look would find a change."""
        self._reported.add((engine_answers, free.bit_length()))

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
        """Start a comparison unless one is running: one that hangs in the engine stays the only
        one."""
        if self._comparing is None or self._comparing.done():
            self._comparing = asyncio.create_task(self._compare(), name="watchdog comparison")
        await asyncio.wait({self._comparing}, timeout=self._pause)
        await self._tell_fitness()
        now = asyncio.get_running_loop().time()
        if now - self._swept_at >= _SWEEP_EVERY:
            self._swept_at = now
            await self._supervisor.fences.drop_expired()

    async def _tell_fitness(self) -> None:
        """Report a change of the node when the engine falls silent or answers again, and when the
        free disk halved or doubled, since the last look or since somebody was told."""
        free = await self._supervisor.free_disk()
        now = (self._engine_answers, free.bit_length())
        known = self._reported if self._seen is None else self._reported | {self._seen}
        self._seen, self._reported = now, set()
        if known - {now}:
            self._supervisor.events.node_changed()

    async def _compare(self) -> None:
        try:
            self._suspects = await self._supervisor.compare(self._suspects)
            self._engine_answers = True
        except EngineError as error:
            self._engine_answers = False
            log.debug("cannot compare tasks with containers: %s", error)
        except Exception:
            log.exception("comparing tasks with containers failed")
