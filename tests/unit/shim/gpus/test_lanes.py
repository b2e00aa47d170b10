"""A call that hangs costs its own lane and nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest

from shim.gpus.base import GpuSilent
from shim.gpus.lanes import Lane
from tests.support.waiting import LONG


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


async def test_a_calls_result_or_error_reaches_its_caller() -> None:
    lane = Lane("lane")
    assert await lane.call(lambda: 7, LONG) == 7
    with pytest.raises(ZeroDivisionError):
        await lane.call(lambda: 1 // 0, LONG)
    lane.close()


async def test_while_a_call_hangs_its_lane_refuses_at_once_and_others_go_on(
    release: threading.Event,
) -> None:
    sick, well = Lane("sick"), Lane("well")
    with pytest.raises(GpuSilent, match=r"within 0\.01 s"):
        await sick.call(release.wait, 0.01)
    with pytest.raises(GpuSilent, match="still hangs"):
        await sick.call(lambda: 7, LONG)
    assert await well.call(lambda: 7, LONG) == 7
    sick.close()
    well.close()


async def test_a_lane_is_usable_again_once_its_call_came_back(release: threading.Event) -> None:
    lane = Lane("lane")
    with pytest.raises(GpuSilent):
        await lane.call(release.wait, 0.01)
    release.set()
    assert await _answer(lane) == 7
    lane.close()


async def _answer(lane: Lane) -> int:
    async with asyncio.timeout(LONG):
        while True:
            with contextlib.suppress(GpuSilent):
                return await lane.call(lambda: 7, LONG)
            await asyncio.sleep(0)
