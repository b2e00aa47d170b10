"""Threads for calls that may never return.

A driver can hang in one call for ever. Each GPU gets a lane: one thread that makes its calls one
after the other. A caller waits for a bounded time; while a call hangs, its lane refuses at once and
nobody else notices. When the call comes back at last, the lane is usable again.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from shim.gpus.base import GpuSilent

T = TypeVar("T")


class _Call:
    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self._loop.create_future()

    def make(self) -> None:
        result: Any = None
        failure: BaseException | None = None
        try:
            result = self._act()
        except BaseException as error:
            failure = error
        try:
            self._loop.call_soon_threadsafe(self._settle, result, failure)
        except RuntimeError:
            """The loop has ended meanwhile, and with it whoever had asked."""

    def _settle(self, result: Any, failure: BaseException | None) -> None:
        if self.future.cancelled():
            return
        if failure is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(failure)


class Lane:
    """The thread is a daemon: one that hangs does not keep the process from ending."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._turn = asyncio.Lock()
        self._hanging = False
        self._thread: threading.Thread | None = None

    async def call(self, act: Callable[[], T], seconds: float) -> T:
        """Raises GpuSilent when `act` takes longer than `seconds`, or an earlier one still does."""
        async with self._turn:
            if self._hanging:
                raise GpuSilent(f"{self._name}: an earlier call to the driver still hangs")
            call = _Call(act)
            self._start()
            self._calls.put(call)
            done, _ = await asyncio.wait({call.future}, timeout=seconds)
            if not done:
                self._hanging = True
                call.future.add_done_callback(self._came_back)
                raise GpuSilent(f"{self._name}: the driver did not answer within {seconds:g} s")
        result: T = call.future.result()
        return result

    def close(self) -> None:
        """The thread ends once it has nothing to do; nothing is waited for."""
        self._calls.put(None)
        self._thread = None

    def _came_back(self, future: asyncio.Future[Any]) -> None:
        self._hanging = False
        if not future.cancelled():
            future.exception()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=_work, args=(self._calls,), name=f"shim-{self._name}", daemon=True
            )
            self._thread.start()


def _work(calls: queue.SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        call.make()
