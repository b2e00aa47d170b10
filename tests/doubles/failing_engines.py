"""Engines that misbehave in one named way each, around or instead of one that does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairlead.wire.shim import PullProgress, RegistryAuth
from runner.job import execution
from shim.engines.base import EngineUnavailable, Exit, Found, ImageError, ImageInfo, ImageProblem
from shim.errors import EngineError
from tests.doubles.engines import MemoryEngine, MemoryHost


class _AtOneAct:
    """Does something at `act` (a method's name): before its side effect, or right `after` it."""

    def __init__(self, inner: MemoryEngine, act: str, *, after: bool = False) -> None:
        self._inner = inner
        self._act = act
        self._after = after
        self.reached = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._act:
            return found

        async def act(*args: Any) -> Any:
            if self._after:
                await found(*args)
            self.reached.set()
            await self._misbehave()

        return act

    async def _misbehave(self) -> None:
        raise NotImplementedError


class FailingEngine(_AtOneAct):
    """Raises at one act. A test that plays `kill -9` plants exceptions like
    `asyncio.CancelledError`."""

    def __init__(
        self, inner: MemoryEngine, act: str, raises: BaseException, *, after: bool = False
    ) -> None:
        super().__init__(inner, act, after=after)
        self._raises = raises

    async def _misbehave(self) -> None:
        raise self._raises


class HangingEngine(_AtOneAct):
    """Reaches one act and never comes back from it: the moment at which the shim is killed."""

    async def _misbehave(self) -> None:
        await asyncio.Event().wait()

    @property
    def engine(self) -> Any:
        return self


class StubbornEngine(MemoryEngine):
    """Refuses one act so many times, and one other forever."""

    def __init__(self, host: MemoryHost, act: str, times: int, fails: str = "") -> None:
        super().__init__(host)
        self.left = times
        self._act, self._fails = act, fails

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name not in (self._act, self._fails):
            return found

        async def refuse(*args: Any) -> Any:
            if name == self._fails:
                raise EngineError(f"{name} is broken")
            if self.left == 0:
                return await found(*args)
            self.left -= 1
            raise EngineError(f"{name} does not work now")

        return refuse


class DeafEngine(MemoryEngine):
    """Its first wait for a container never hears of the end."""

    def __init__(self, host: MemoryHost) -> None:
        super().__init__(host)
        self.waits = 0

    async def wait(self, container_id: str) -> Exit:
        self.waits += 1
        if self.waits == 1:
            await asyncio.Event().wait()
        return await super().wait(container_id)


class SilentListing(MemoryEngine):
    """Answers everything but the list of its containers, and that only at the start."""

    lists = 0

    async def list(self) -> tuple[Found, ...]:
        self.lists += 1
        if self.lists > 1:
            await asyncio.Event().wait()
        return await super().list()


class SlowListing(MemoryEngine):
    """Its list, once there is something to list, is told later than it was made."""

    def __init__(self, host: MemoryHost) -> None:
        super().__init__(host)
        self.listed, self.answers = asyncio.Event(), asyncio.Event()

    async def list(self) -> tuple[Found, ...]:
        found = await super().list()
        if found:
            self.listed.set()
            await self.answers.wait()
        return found


class MuteEngine(MemoryEngine):
    """Answers nothing while it is `away`."""

    away = False

    async def list(self) -> tuple[Found, ...]:
        if self.away:
            raise EngineUnavailable("nobody listens")
        return await super().list()

    async def version(self) -> str | None:
        if self.away:
            raise EngineUnavailable("nobody listens")
        return await super().version()


class HangingRegistry(MemoryEngine):
    """Its registry never says whether somebody may have an image."""

    def __init__(self, host: MemoryHost) -> None:
        super().__init__(host)
        self.asked = asyncio.Event()

    async def ask_registry(
        self, reference: str, digest: str | None, auth: RegistryAuth | None
    ) -> None:
        self.asked.set()
        await asyncio.Event().wait()


class FullEngine(MemoryEngine):
    """Its disk takes `fits` images; a pull beyond that fails for want of space."""

    fits = 3

    async def pull(
        self,
        reference: str,
        auth: RegistryAuth | None,
        progress: Callable[[PullProgress], None],
    ) -> ImageInfo:
        if len(self.host.local) >= self.fits:
            raise ImageError("no room", ImageProblem.NO_SPACE)
        return await super().pull(reference, auth, progress)


class ListeningEngine(MemoryEngine):
    """Notes at each stop signal how much time the runner was told of."""

    def __init__(self, host: MemoryHost, job_folder: Path) -> None:
        super().__init__(host)
        self.told: list[float | None] = []
        self._folder = job_folder

    async def signal_stop(self, container_id: str) -> None:
        self.told.append(execution.grace_left(self._folder, 0.0))
        await super().signal_stop(container_id)
