"""Each run gets a network; a spare one is ready, because to make one takes a tenth of a second.

A network's labels cannot change, so the run's containers carry its name: from these the next life
of the shim knows which network belongs to which run. A network without containers is spare. A used
network is never given to another run.

No caller waits for work that can be done later: the end of a run does not wait for its network's
removal, and the next spare is made only after the start. A network may stay without a run, because
its removal failed or the engine's answer was lost. So all networks are compared with the runs now
and then, and those without a run are removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Iterable
from typing import Any

from shim.engines.base import NodeFault
from shim.engines.docker.api import Call, NotFound
from shim.errors import EngineError

log = logging.getLogger(__name__)
_START_SECONDS = 2.0
"""A container that took the spare has started within this time."""
_TIDY_SECONDS = 300.0


class RunNetworks:
    """The networks of runs. `call` runs an act of docker-py in a thread, with its errors
    translated.

    Every `tidy_every` seconds, networks without a run are removed.
    """

    def __init__(self, call: Call, label: str, tidy_every: float = _TIDY_SECONDS) -> None:
        self._call = call
        self._label = label
        self._tidy_every = tidy_every
        self._api: Any = None
        self._of_run: dict[str, str] = {}
        self._giving: dict[str, asyncio.Task[None]] = {}
        self._spare: str | None = None
        self._making: asyncio.Task[None] | None = None
        self._unanswered: set[str] = set()
        """Names of networks that are being made."""
        self._tidying: asyncio.Task[None] | None = None
        self._removing: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()

    async def open(self, api: Any, used: Iterable[tuple[str, str]]) -> None:
        """Take over existing networks.

        `used` are the (run, network) pairs that the containers name. A run may have two, if one was
        pruned while it had only ended containers.
        """
        self._api = api
        existing = await self._ours()
        self._of_run = {run_id: name for run_id, name in used if name in existing}
        idle = self._without_owner(existing)
        self._spare = idle[0] if idle else None
        for name in idle[1:]:
            await self._retire(name)
        self._idle.set()
        self._make_spare()
        self._tidying = asyncio.create_task(self._tidy(), name="networks without a run")

    async def close(self) -> None:
        """Remove the networks without a run. If that fails, the next life finds them without
        containers."""
        beside = {task for task in (self._making, self._tidying) if task is not None}
        chores = {*self._removing, *self._giving.values(), *beside}
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)
        self._spare = None
        if self._api is not None:
            await self._retire_all_without_owner()

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(self._tidy_every)
            await self._retire_all_without_owner()

    async def _retire_all_without_owner(self) -> None:
        try:
            for name in self._without_owner(await self._ours()):
                await self._retire(name)
        except EngineError as error:
            log.warning("networks may be left behind: %s", error)

    async def _ours(self) -> set[str]:
        filters = {"label": self._label}
        found = await self._call(lambda: self._api.networks(filters=filters))
        return {network["Name"] for network in found}

    def _without_owner(self, names: set[str]) -> list[str]:
        """Return the networks without a run. Such a network never gets one again: names are never
        reused."""
        owned = {*self._of_run.values(), *self._unanswered, self._spare}
        return sorted(names - owned)

    def name_of(self, run_id: str) -> str:
        """Return the run's network. Raises NodeFault when `ensure` was not called for the run."""
        try:
            return self._of_run[run_id]
        except KeyError:
            raise NodeFault(f"run {run_id} has no network") from None

    async def ensure(self, run_id: str) -> None:
        """Make sure that the run has a network. Raises NodeFault, because a job has no influence on
        its network.

        It goes on when the caller is cancelled: a network that is being made must have a run, or it
        would never be removed.
        """
        giving = self._giving.get(run_id)
        if giving is None:
            giving = asyncio.create_task(self._give(run_id), name=f"network of run {run_id}")
            self._giving[run_id] = giving
            giving.add_done_callback(lambda _: self._giving.pop(run_id, None))
        try:
            await asyncio.shield(giving)
        except NodeFault:
            raise
        except EngineError as error:
            raise NodeFault(f"the run's network cannot be made: {error}") from None

    async def remove(self, run_id: str) -> None:
        """Remove the run's network soon; if that fails, the next comparison removes it."""
        if giving := self._giving.get(run_id):
            await asyncio.wait({giving})
        name = self._of_run.pop(run_id, None)
        if name is not None:
            chore = asyncio.create_task(self._retire(name), name=f"removing network {name}")
            self._removing.add(chore)
            chore.add_done_callback(self._removing.discard)

    def distrust(self, said: str) -> None:
        """Give up the run's network, which the engine named when it refused to start a container:
        the run's next container gets another one."""
        for run_id, name in tuple(self._of_run.items()):
            if name in said:
                log.warning("network %s of run %s is given up: %s", name, run_id, said)
                del self._of_run[run_id]

    async def _give(self, run_id: str) -> None:
        if run_id not in self._of_run and self._spare is not None:
            self._of_run[run_id], self._spare = self._spare, None
        name = self._of_run.get(run_id)
        if name is None or not await self._exists(name):
            self._of_run[run_id] = await self._make()
        self._idle.clear()
        self._make_spare()

    async def _exists(self, name: str) -> bool:
        """Return whether the network exists; it may have been pruned."""
        return bool(await self._call(lambda: self._api.networks(names=[f"^{name}$"])))

    async def _make(self) -> str:
        name = f"fairlead-{uuid.uuid4().hex[:12]}"
        key, _, value = self._label.partition("=")
        self._unanswered.add(name)
        try:
            await self._call(
                lambda: self._api.create_network(name, driver="bridge", labels={key: value})
            )
        finally:
            self._unanswered.discard(name)
        return name

    async def _remove(self, name: str) -> None:
        if await self._exists(name):
            with contextlib.suppress(NotFound):
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
        """Make a spare network. Without one, the next run only waits for its own."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_SECONDS):
                await self._idle.wait()
        try:
            self._spare = await self._make()
        except EngineError as error:
            log.warning("no spare network: %s", error)
