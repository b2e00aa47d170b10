"""The way between controller and node, with everything that can happen on it.

A request that was sent may be performed although its sender is gone, and answered although nobody
waits. A waiting sender hears of a cut at once and of silence after 30 s, as the real clients are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from runner.client import RunnerError, RunnerUnavailable
from shim.client import ShimError, ShimUnavailable

T = TypeVar("T")

SILENCE_SECONDS = 30.0
CONNECT_SECONDS = 15.0
Unavailable = type[ShimUnavailable] | type[RunnerUnavailable]
Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]


class Weather:
    """How one node's network behaves now."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.latency = 0.02
        self.lost_replies = 0.0
        self.duplicates = 0.0
        self.reordering = 0.0
        self.refusing = False
        self.boots = 0
        self.silent_since = float("inf")
        self.heard_at = float("-inf")
        """When a controller last got something from the node."""
        self._heard = asyncio.Event()
        self._heard.set()

    @property
    def silent(self) -> bool:
        return not self._heard.is_set()

    def go_silent(self) -> None:
        if not self.silent:
            self.silent_since = asyncio.get_running_loop().time()
        self._heard.clear()

    def be_heard(self) -> None:
        self.silent_since = float("inf")
        self._heard.set()

    def clear_up(self) -> None:
        self.latency = 0.02
        self.lost_replies = self.duplicates = self.reordering = 0.0
        self.refusing = False
        self.be_heard()

    def arrived(self) -> None:
        self.heard_at = asyncio.get_running_loop().time()

    async def carry(self) -> None:
        """One way of one message."""
        await asyncio.sleep(self.chance.expovariate(1.0 / self.latency))
        await self._heard.wait()

    def happens(self, probability: float) -> bool:
        return self.chance.random() < probability


class _Cut(Exception):
    pass


_END = object()


class Wire:
    """One connection. `spawn` starts tasks on the node's side, which outlive the controller."""

    def __init__(self, weather: Weather, spawn: Spawn) -> None:
        self.weather = weather
        self.closed = asyncio.Event()
        self._spawn = spawn
        self._boots = weather.boots
        self._answers: dict[asyncio.Future[Any], None] = {}
        self._streams: dict[asyncio.Queue[object], asyncio.Task[None]] = {}

    def cut(self) -> None:
        if self.closed.is_set():
            return
        self.closed.set()
        for answer in list(self._answers):
            if not answer.done():
                answer.set_exception(_Cut())
        for queue, pump in list(self._streams.items()):
            pump.cancel()
            queue.put_nowait(_Cut())

    async def ask(self, serve: Callable[[], Awaitable[T]], unavailable: Unavailable) -> T:
        if self.closed.is_set():
            raise unavailable("the connection is closed")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._answers[answer] = None
        self._spawn(self._serve(serve, answer))
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                return await answer
        except TimeoutError:
            raise unavailable(f"no answer within {SILENCE_SECONDS:g} s") from None
        except _Cut:
            raise unavailable("the connection was cut") from None
        finally:
            del self._answers[answer]

    async def stream(
        self, source: Callable[[], AsyncIterator[T]], unavailable: Unavailable
    ) -> AsyncGenerator[T, None]:
        if self.closed.is_set():
            raise unavailable("the connection is closed")
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self._streams[queue] = self._spawn(self._pump(source, queue))
        try:
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    item = await queue.get()
                if item is _END:
                    return
                if isinstance(item, Exception):
                    raise item
                yield item
        except TimeoutError:
            raise unavailable(f"silent for {SILENCE_SECONDS:g} s") from None
        except _Cut:
            raise unavailable("the connection was cut") from None
        finally:
            self._streams.pop(queue).cancel()

    async def _serve(self, serve: Callable[[], Awaitable[T]], answer: asyncio.Future[T]) -> None:
        await self.weather.carry()
        # A machine that has booted since, or was replaced, knows nothing of this connection.
        if self._boots != self.weather.boots:
            return
        # What TCP had sent before the cut may still arrive.
        if self.closed.is_set() and self.weather.happens(0.5):
            return
        result, refusal = None, None
        try:
            result = await serve()
        except (ShimError, RunnerError, ShimUnavailable, RunnerUnavailable) as error:
            refusal = error
        await self.weather.carry()
        if answer.done() or self.weather.happens(self.weather.lost_replies):
            return
        self.weather.arrived()
        if refusal is not None:
            answer.set_exception(refusal)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    async def _pump(
        self, source: Callable[[], AsyncIterator[object]], queue: asyncio.Queue[object]
    ) -> None:
        try:
            await self.weather.carry()
            async for item in source():
                await self.weather.carry()
                self.weather.arrived()
                queue.put_nowait(item)
        except (ShimError, RunnerError, ShimUnavailable, RunnerUnavailable) as error:
            queue.put_nowait(error)
        else:
            queue.put_nowait(_END)
