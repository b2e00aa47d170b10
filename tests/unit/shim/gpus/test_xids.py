"""The thread that waits for a driver's events, over a driver that says what a test plants."""

from __future__ import annotations

import asyncio
import ctypes
import queue
from collections.abc import AsyncIterator

import msgspec
import pytest

from shim.gpus.base import GpuEvent
from shim.gpus.nvidia.xids import Watched, XidListener
from tests.support.waiting import eventually

_WHOLE = 0xFFFFFFFF


class DriverError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class Planted(msgspec.Struct):
    device: ctypes.c_void_p
    eventData: int
    gpuInstanceId: int = _WHOLE
    computeInstanceId: int = _WHOLE


class Driver:
    """The functions of NVML for events. `deaf`: handles for which it takes no registration."""

    NVMLError = DriverError
    NVML_ERROR_TIMEOUT = 10
    nvmlEventTypeXidCriticalError = 8

    def __init__(self) -> None:
        self.planted: queue.SimpleQueue[Planted] = queue.SimpleQueue()
        self.deaf: set[int | None] = set()
        self.sets: list[list[int | None]] = []
        self.freed = 0

    def nvmlEventSetCreate(self) -> list[int | None]:
        self.sets.append([])
        return self.sets[-1]

    def nvmlDeviceRegisterEvents(
        self, handle: ctypes.c_void_p, kind: int, events: list[int | None]
    ) -> None:
        if handle.value in self.deaf:
            raise DriverError(3)
        events.append(handle.value)

    def nvmlEventSetWait_v2(self, events: list[int | None], milliseconds: int) -> Planted:
        try:
            return self.planted.get(timeout=0.01)
        except queue.Empty:
            raise DriverError(self.NVML_ERROR_TIMEOUT) from None

    def nvmlEventSetFree(self, events: list[int | None]) -> None:
        self.freed += 1


class Bed:
    def __init__(self) -> None:
        self.driver = Driver()
        self.found: list[GpuEvent] = []
        self.listener = XidListener(self.driver, self.found.append)

    async def until_registered(self, *handles: int) -> None:
        await eventually(lambda: bool(self.driver.sets) and self.driver.sets[-1] == list(handles))

    async def tells(self, event: Planted) -> GpuEvent:
        self.driver.planted.put(event)
        count = len(self.found) + 1
        await eventually(lambda: len(self.found) == count)
        return self.found[-1]


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    it = Bed()
    yield it
    it.listener.close()
    await asyncio.to_thread(it.listener.join)
    assert it.driver.freed == len(it.driver.sets)


def gpu(handle: int, uuid: str) -> Watched:
    return Watched(handle=ctypes.c_void_p(handle), uuid=uuid, instances={(1, 0): f"MIG-{uuid}"})


async def test_an_event_names_the_gpu_or_the_part_of_it(bed: Bed) -> None:
    bed.listener.watch([gpu(1, "a"), gpu(2, "b")])
    await bed.until_registered(1, 2)
    of_whole = await bed.tells(Planted(ctypes.c_void_p(2), 79))
    assert (of_whole.uuid, of_whole.kind) == ("b", "xid-79")
    of_part = await bed.tells(Planted(ctypes.c_void_p(1), 31, 1, 0))
    assert (of_part.uuid, of_part.kind) == ("MIG-a", "xid-31")
    of_unknown_part = await bed.tells(Planted(ctypes.c_void_p(1), 31, 7, 0))
    assert of_unknown_part.uuid == "a"


async def test_a_gpu_without_events_keeps_no_other_from_being_heard(bed: Bed) -> None:
    bed.driver.deaf = {1}
    bed.listener.watch([gpu(1, "a"), gpu(2, "b")])
    await bed.until_registered(2)
    assert (await bed.tells(Planted(ctypes.c_void_p(2), 48))).uuid == "b"


async def test_other_gpus_are_registered_anew_and_the_earlier_ones_forgotten(bed: Bed) -> None:
    bed.listener.watch([gpu(1, "a")])
    await bed.until_registered(1)
    bed.listener.watch([gpu(2, "b")])
    await bed.until_registered(2)
    bed.driver.planted.put(Planted(ctypes.c_void_p(1), 79))
    assert (await bed.tells(Planted(ctypes.c_void_p(2), 79))).uuid == "b"
