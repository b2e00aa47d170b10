"""A network per run, taken from a spare one, since making a network costs a tenth of a second.

A network's labels cannot change, so the run's containers carry its name: that is how the next life
of the shim knows which network is whose. One without containers is spare. A used network is never
handed to another run.

Nobody waits for what is done here for later: a run's end not for its network's, and a run's start
shares the machine with the making of the next spare only when starts come thick and fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from shim.engines.base import EngineError

log = logging.getLogger(__name__)

Call = Callable[[Callable[[], Any]], Awaitable[Any]]

_START_SECONDS = 2.0
"""A container that took the spare has started by then."""


class RunNetworks:
    """`call` runs an act of docker-py in a thread, its errors in our words."""

    def __init__(self, call: Call, label: str) -> None:
        self._call = call
        self._label = label
        self._api: Any = None
        self._of_run: dict[str, str] = {}
        self._giving: dict[str, asyncio.Task[None]] = {}
        self._spare: str | None = None
        self._making: asyncio.Task[None] | None = None
        self._removing: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()

    async def open(self, api: Any, used: Iterable[tuple[str, str]]) -> None:
        """`used` are the (run, network) pairs that the containers name."""
        self._api = api
        self._of_run = dict(used)
        idle = await self._unused()
        for name in idle[1:]:
            await self._remove(name)
        self._spare = idle[0] if idle else None
        self._idle.set()
        self._make_spare()

    async def close(self) -> None:
        """Nothing is left of what no run has. Where that fails, the next life finds it without
        containers."""
        making = {self._making} if self._making else set()
        chores = {*self._removing, *self._giving.values(), *making}
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)
        if self._api is None:
            return
        try:
            for name in await self._unused():
                await self._retire(name)
        except EngineError as error:
            log.warning("networks may be left behind: %s", error)

    async def _unused(self) -> list[str]:
        filters = {"label": self._label}
        found = await self._call(lambda: self._api.networks(filters=filters))
        return sorted({network["Name"] for network in found} - set(self._of_run.values()))

    def name_of(self, run_id: str) -> str:
        """Raises EngineError when `ensure` was not called for the run."""
        try:
            return self._of_run[run_id]
        except KeyError:
            raise EngineError(f"run {run_id} has no network") from None

    async def ensure(self, run_id: str) -> None:
        """Goes on when the caller is cancelled: a network that is being made must have an owner, or
        nobody would remove it."""
        giving = self._giving.get(run_id)
        if giving is None:
            giving = asyncio.create_task(self._give(run_id), name=f"network of run {run_id}")
            self._giving[run_id] = giving
            giving.add_done_callback(lambda _: self._giving.pop(run_id, None))
        await asyncio.shield(giving)

    async def remove(self, run_id: str) -> None:
        """It is gone soon after, or, should that fail, when the shim starts again."""
        if giving := self._giving.get(run_id):
            await asyncio.wait({giving})
        name = self._of_run.pop(run_id, None)
        if name is not None:
            chore = asyncio.create_task(self._retire(name), name=f"removing network {name}")
            self._removing.add(chore)
            chore.add_done_callback(self._removing.discard)

    async def _give(self, run_id: str) -> None:
        if run_id not in self._of_run and self._spare is not None:
            self._of_run[run_id], self._spare = self._spare, None
        name = self._of_run.get(run_id)
        if name is None or not await self._exists(name):
            self._of_run[run_id] = await self._make()
        self._idle.clear()
        self._make_spare()

    async def _exists(self, name: str) -> bool:
        """Somebody may have pruned it."""
        return bool(await self._call(lambda: self._api.networks(names=[f"^{name}$"])))

    async def _make(self) -> str:
        name = f"fairlead-{uuid.uuid4().hex[:12]}"
        key, _, value = self._label.partition("=")
        await self._call(
            lambda: self._api.create_network(name, driver="bridge", labels={key: value})
        )
        return name

    async def _remove(self, name: str) -> None:
        if await self._exists(name):
            await self._call(lambda: self._api.remove_network(name))

    async def _retire(self, name: str) -> None:
        try:
            await self._remove(name)
        except EngineError as error:
            log.warning("network %s is left behind: %s", name, error)
        self._idle.set()

    def _make_spare(self) -> None:
        if self._spare is None and (self._making is None or self._making.done()):
            self._making = asyncio.create_task(self._fill(), name="spare network")

    async def _fill(self) -> None:
        """Without a spare the next run waits for its network; that is all."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_SECONDS):
                await self._idle.wait()
        try:
            self._spare = await self._make()
        except EngineError as error:
            log.warning("no spare network: %s", error)
