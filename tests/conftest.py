"""Every test is watched: it may not block an event loop and leaves nothing behind.

A fixture's work may outlive a test only if the fixture's scope is wider than the test's.
`tests/support/` says what counts as blocking and as left behind.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import forked_lanes, lanes
from tests.support.blocking import BlockingCalls
from tests.support.leaks import Holdings, holdings, leaked_since, watched_tasks
from tests.support.testbed import (
    busybox_image,
    controller_process,
    cuttable_proxy,
    dockerd,
    namespace,
    noshell_image,
    numbers,
    runtime,
    shim_process,
    sshd,
    testbed_folder,
)

__all__ = [
    "busybox_image",
    "controller_process",
    "cuttable_proxy",
    "dockerd",
    "namespace",
    "noshell_image",
    "numbers",
    "pytest_addoption",
    "pytest_collection_finish",
    "pytest_configure",
    "pytest_fixture_setup",
    "pytest_runtest_protocol",
    "pytest_runtest_teardown",
    "pytest_sessionstart",
    "runtime",
    "shim_process",
    "sshd",
    "testbed_folder",
]

settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("always the same", settings.get_profile("explore"), derandomize=True)
settings.load_profile("always the same")
"""As with the simulation's fixed seeds: what no run has seen before must not fail a change that has
nothing to do with it. `--hypothesis-profile=explore` looks for it."""

MIN_OBJECTS_OF_A_SEARCH = 20_000
_watched = pytest.StashKey["_Watched"]()


class _Watched:
    def __init__(self) -> None:
        self.before = holdings()
        self.blocking = BlockingCalls()
        self.tasks: list[str] = []

    def allow(self, more: Holdings) -> None:
        self.before = self.before | more

    def complaints(self) -> list[str]:
        return [*self.blocking.found, *self.tasks, *leaked_since(self.before)]


_current: list[_Watched] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    lanes.add_options(parser)
    forked_lanes.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """A shell that starts the tests in the background ignores the keyboard's signals, and all that
    the tests start would inherit that; a handler is not inherited, so theirs are the defaults."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    # Tests make many objects: to search all 700 of them for cycles took a tenth of the time.
    gc.set_threshold(MIN_OBJECTS_OF_A_SEARCH)
    lanes.configure(config)
    forked_lanes.configure(config)


def pytest_sessionstart() -> None:
    """Without a word about it, asyncio would make a loop for whoever asks for the main thread's;
    pytest-asyncio asks, and nobody closes it."""
    asyncio.set_event_loop(None)
    # Where the tests were started by nohup, children would ignore the hang-up that they are sent.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """What was read lives to the end: each full collection took 0.2 s of the processor's time to go
    through its 350,000 objects."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[Any]:
    watched = _Watched()
    item.stash[_watched] = watched
    _current.append(watched)
    try:
        with watched.blocking.watch(), watched_tasks(watched.tasks):
            return (yield)
    finally:
        _current.pop()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[Any]:
    if fixturedef.scope == "function" or not _current:
        return (yield)
    before = holdings()
    value = yield
    _current[-1].allow(holdings() - before)
    return value


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[Any]:
    result = yield
    if complaints := item.stash[_watched].complaints():
        pytest.fail("\n".join(complaints), pytrace=False)
    return result
