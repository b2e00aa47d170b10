"""A lane makes the calls of one GPU: a driver can hang in one call forever.

A caller waits for a bounded time; while a call hangs, its lane refuses at once and nothing else
notices.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from shim.gpus.base import GpuSilent

T = TypeVar("T")


class Lane:
    """One thread for the calls of one GPU. It is a daemon thread: if it hangs, the process can
    still end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._turn = asyncio.Lock()
        self._hanging = False
        self._thread: threading.Thread | None = None

    async def call(self, act: Callable[[], T], seconds: float) -> T:
        """Run `act`. Raises GpuSilent when it takes longer than `seconds`, or an earlier one still
        hangs."""
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
        """End the thread once it has nothing to do; nothing waits for it."""
        self._calls.put(None)
        self._thread = None

    def _came_back(self, future: asyncio.Future[Any]) -> None:
        self._hanging = False
        # asyncio would report an error that nobody retrieved; who asked has left.
        if not future.cancelled():
            future.exception()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                # A daemon: a call of the driver may never return, and must not keep the process.
                target=_work,
                args=(self._calls,),
                name=f"shim-{self._name}",
                daemon=True,
            )
            self._thread.start()


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
        # Whatever a driver's library raises is the caller's; this thread goes on.
        except BaseException as error:
            failure = error
        try:
            self._loop.call_soon_threadsafe(self._settle, result, failure)
        except RuntimeError:
            """The loop has ended meanwhile, and with it the caller."""

    def _settle(self, result: Any, failure: BaseException | None) -> None:
        # Its caller was cancelled while the driver worked.
        if self.future.cancelled():
            return
        if failure is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(failure)


def _work(calls: queue.SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        call.make()
