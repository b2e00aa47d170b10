"""A thread for one act that may take for ever: it uses up no pool and keeps no process from ending.

An executor's threads are waited for when the interpreter ends, and there are only so many of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")


def in_own_thread(act: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Begins at once. Nobody has to wait for the future."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    future.add_done_callback(_seen)

    def work() -> None:
        settle: Callable[[], None]
        try:
            settle = partial(future.set_result, act())
        except BaseException as error:
            settle = partial(future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it who asked
            loop.call_soon_threadsafe(_unless_cancelled, future, settle)

    threading.Thread(target=work, name=name, daemon=True).start()
    return future


def _unless_cancelled(future: asyncio.Future[T], settle: Callable[[], None]) -> None:
    if not future.cancelled():
        settle()


def _seen(future: asyncio.Future[T]) -> None:
    if not future.cancelled():
        future.exception()
