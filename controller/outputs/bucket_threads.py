"""Threads for calls that wait for a bucket, for which nobody waits at the controller's end."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

from controller.outputs.bucket import BucketError

P = ParamSpec("P")
R = TypeVar("R")

_ENDS = "the controller ends"
_Call = tuple[Future[Any], Callable[[], Any]]


class BucketThreads:
    """Runs calls that block, `count` at once.

    A bucket may answer late or never. Python joins the threads of a ThreadPoolExecutor at its exit,
    and asyncio joins its own ones at the loop's end: six stalled downloads there held up the end,
    and everything else that asyncio runs in threads, until each of them had had its time. These
    threads are daemons instead. In 40 exits with such calls in obstore (0.12.1), none went wrong.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._open = 0
        """Calls that have not ended."""
        self._lock = threading.Lock()
        self._started = 0
        self._is_closed = False

    def submit(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Raises BucketError after `close`."""
        future: Future[R] = Future()
        with self._lock:
            if self._is_closed:
                raise BucketError(_ENDS)
            self._calls.put((future, partial(call, *args, **kwargs)))
            self._open += 1
            # Counting the idle threads instead missed one that went for a call just before it
            # counted itself: a call then waited behind one that a bucket never answers.
            if self._started < min(self._open, self._count):
                name = f"{self._name}_{self._started}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._started += 1
        return future

    async def ask(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a call. Its thread goes on when the caller is cancelled. Raises what `call` raises,
        and BucketError after `close`."""
        return await asyncio.wrap_future(self.submit(call, *args, **kwargs))

    def close(self) -> None:
        """Let the calls fail that have not begun; each thread ends after its present one."""
        with self._lock:
            self._is_closed = True
            while True:
                try:
                    waiting = self._calls.get_nowait()
                except Empty:
                    break
                # Its caller may have given up: concurrent.futures refuses a result for a future
                # that is cancelled.
                if waiting is not None and waiting[0].set_running_or_notify_cancel():
                    waiting[0].set_exception(BucketError(_ENDS))
            for _ in range(self._started):
                self._calls.put(None)

    def _work(self) -> None:
        while True:
            found = self._calls.get()
            if found is None:
                return
            self._run(*found)
            # Otherwise the last result would stay in memory until the next call.
            del found

    def _run(self, future: Future[Any], call: Callable[[], Any]) -> None:
        result, error = None, None
        is_wanted = future.set_running_or_notify_cancel()
        if is_wanted:
            try:
                result = call()
            # The thread serves later calls as well: whatever a library raises is its caller's.
            except BaseException as raised:
                error = raised
                _let_go(error)
        with self._lock:
            self._open -= 1
        if not is_wanted:
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
            # The error's traceback has this frame: each of the two is a cycle.
            del error, future


def _let_go(error: BaseException) -> None:
    """Forget what the frames of a failed call hold.

    The error waits for its reader, and then for the collector, with all of them. With a bucket that
    is away, nine logs whose parts of 8 MiB were tried again and again came to 800 MiB.
    """
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found = found.__context__
