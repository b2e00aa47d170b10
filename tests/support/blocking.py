"""Finds what blocks an event loop: callbacks that compute long, and calls of ours that may block.

A slow callback is one that used a processor for longer than `LIMIT` seconds without giving the loop
back. Time in which the thread did not run is not counted: a busy machine accuses nobody, and what
waits without computing is found by the call that waits. Nor is the time of the garbage collector:
a full collection goes through what thousands of tests have left, and takes up to a second.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import os
import socket
import subprocess
import threading
import time
from asyncio import events
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import requests

LIMIT = 1.0
_OURS = ("common", "shim", "runner", "controller", "entrypoint")
_BLOCKING: tuple[tuple[Any, str], ...] = (
    (time, "sleep"),
    (os, "fsync"),
    (os, "fdatasync"),
    (os, "sync"),
    (os, "waitpid"),
    (socket, "getaddrinfo"),
    (socket, "create_connection"),
    (subprocess.Popen, "wait"),
    (subprocess.Popen, "communicate"),
    (requests.Session, "request"),
    (threading.Thread, "join"),
)


class BlockingCalls:
    """Findings are in `found`; `watch` one test at a time."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._collecting_since = 0.0
        self._collected = 0.0

    @contextmanager
    def watch(self) -> Iterator[None]:
        gc.callbacks.append(self._time_collections)
        try:
            with self._time_callbacks(), self._guard_calls():
                yield
        finally:
            gc.callbacks.remove(self._time_collections)

    def _time_collections(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_since = time.thread_time()
        else:
            self._collected += time.thread_time() - self._collecting_since

    @contextmanager
    def _time_callbacks(self) -> Iterator[None]:
        original = events.Handle._run

        def run_timed(handle: events.Handle) -> None:
            start, collected = time.thread_time(), self._collected
            original(handle)
            taken = time.thread_time() - start - (self._collected - collected)
            if taken > LIMIT:
                self.found.append(f"{handle!r} kept the event loop for {taken:.2f} s")

        with mock.patch.object(events.Handle, "_run", run_timed):
            yield

    @contextmanager
    def _guard_calls(self) -> Iterator[None]:
        patches = [
            mock.patch.object(owner, name, self._guarded(getattr(owner, name), name))
            for owner, name in _BLOCKING
        ]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in patches:
                patch.stop()

    def _guarded(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if _in_a_loop() and (caller := _our_caller()):
                self.found.append(f"{caller} called {name} in the event loop")
            return function(*args, **kwargs)

        return guarded


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _our_caller() -> str | None:
    """Where our code, not a test or a library's own thread, asked for the blocking call."""
    frame = inspect.currentframe()
    # Below `run_timed` is only what runs the loop, such as a test.
    while frame is not None and frame.f_code.co_name != "run_timed":
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in _OURS:
            return f"{module}:{frame.f_lineno} ({frame.f_code.co_name})"
        frame = frame.f_back
    return None
