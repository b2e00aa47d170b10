"""Signals that a runner hears in its loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine

from runner.processes.signals import Signals
from tests.support.waiting import LONG


def run(act: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run in a loop of asyncio's, as a runner has it: uvloop sets signal handlers of its own."""
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(act())


def test_each_signal_calls_its_function_in_the_loop() -> None:
    async def act() -> None:
        signals, came = Signals(), asyncio.Queue[str]()
        signals.on(signal.SIGUSR1, lambda: came.put_nowait("first"))
        signals.on(signal.SIGUSR2, lambda: came.put_nowait("second"))
        async with asyncio.timeout(LONG):
            for number, name in ((signal.SIGUSR1, "first"), (signal.SIGUSR2, "second")) * 2:
                os.kill(os.getpid(), number)
                assert await came.get() == name
        signals.close()

    run(act)


def test_a_signal_that_came_while_it_was_blocked_is_heard() -> None:
    async def act() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        # To this thread: any other one of the process takes what is for the process (signal(7)).
        signal.raise_signal(signal.SIGUSR1)
        signals, came = Signals(), asyncio.Event()
        signals.on(signal.SIGUSR1, came.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        async with asyncio.timeout(LONG):
            await came.wait()
        signals.close()

    run(act)


def test_a_function_that_fails_loses_no_other_signal() -> None:
    async def act() -> None:
        signals, came, failed = Signals(), asyncio.Event(), list[object]()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
        error = OSError("no process is left")

        def fail() -> None:
            raise error

        signals.on(signal.SIGUSR1, fail)
        signals.on(signal.SIGUSR2, came.set)
        # Both are in the pipe before anything reads it, the one that fails first.
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.raise_signal(number)
        async with asyncio.timeout(LONG):
            await came.wait()
        signals.close()
        assert failed == [error]

    run(act)


def test_more_signals_than_the_pipe_holds_are_heard() -> None:
    async def act() -> None:
        signals, came = Signals(), asyncio.Event()
        signals.on(signal.SIGUSR1, came.set)
        for _ in range(100_000):
            signal.raise_signal(signal.SIGUSR1)
        async with asyncio.timeout(LONG):
            await came.wait()
            # What is left in the pipe would tell of it again.
            with contextlib.suppress(BlockingIOError):
                while os.read(signals._read, 1 << 16):
                    pass
            await asyncio.sleep(0)  # what the loop has read is called
            came.clear()
            os.kill(os.getpid(), signal.SIGUSR1)
            await came.wait()
        signals.close()

    run(act)


def test_closed_it_leaves_all_as_it_was() -> None:
    async def act() -> None:
        signals = Signals()
        signals.on(signal.SIGUSR1, lambda: None)
        pipe = os.readlink(f"/proc/self/fd/{signals._read}")
        assert pipe in open_files()
        signals.close()
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
        assert signal.set_wakeup_fd(-1) == -1
        assert pipe not in open_files()

    run(act)


def open_files() -> set[str]:
    """By what they are: threads of other tests open and close some meanwhile."""
    found = set[str]()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
    return found
