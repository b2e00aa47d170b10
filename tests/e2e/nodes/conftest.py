"""Hosts that are no nodes yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.bare_host import BareHost
from tests.support.ssh_daemon import make_tunnel_user
from tests.support.testbed import ShimFactory

BareHosts = Callable[[], BareHost]


@pytest.fixture
def bare_host(
    shim_process: ShimFactory, testbed_folder: Path, numbers: Iterator[int]
) -> Iterator[BareHosts]:
    """Call it: each has a shim of its own, which serves once it is installed."""
    make_tunnel_user()
    started: list[BareHost] = []

    def start() -> BareHost:
        shim = shim_process("process")
        started.append(BareHost(testbed_folder / f"bare{next(numbers)}", shim))
        started[-1].start()
        return started[-1]

    yield start
    for host in started:
        host.stop()
