"""The meaning of NVIDIA's error events (XIDs), and a thread that waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from shim.gpus.base import Blame, GpuEvent

APPLICATION = frozenset({13, 31, 43, 45, 68, 109})
_FALLEN_OFF_THE_BUS = 79
_WORDS = {
    13: "graphics engine exception",
    31: "memory page fault",
    43: "the application's channel was stopped",
    45: "preemptive cleanup after an earlier error",
    48: "double bit ECC error",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    63: "memory rows are to be remapped",
    64: "remapping of memory rows failed",
    68: "video processor exception",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high rate of single bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    109: "context switch timeout",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
    140: "unrecovered ECC error",
    154: "the driver's recovery action changed",
}
_WAIT_MS = 500
"""Milliseconds until the thread notices that it should end."""
_RETRY_SECONDS = 1.0
_WHOLE_GPU = 0xFFFFFFFF


def event_of(uuid: str, number: int) -> GpuEvent:
    words = f"XID {number}"
    if number in _WORDS:
        words += f" ({_WORDS[number]})"
    return GpuEvent(uuid=uuid, kind=f"xid-{number}", words=words, blame=_blame(number))


def _blame(number: int) -> Blame:
    if number in APPLICATION:
        return Blame.APPLICATION
    return Blame.GPU if number == _FALLEN_OFF_THE_BUS else Blame.VERDICT


class Watched(msgspec.Struct):
    """A GPU, its handle, and the UUIDs of its MIG instances by (GPU, compute) instance."""

    handle: Any
    uuid: str
    instances: dict[tuple[int, int], str] = {}


class XidListener:
    """Listens for XIDs. `found` is called in the loop that made the listener."""

    def __init__(self, nvml: Any, found: Callable[[GpuEvent], None]) -> None:
        self._nvml = nvml
        self._found = found
        self._loop = asyncio.get_running_loop()
        self._watched: dict[int, Watched] = {}
        self._changed = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, gpus: Iterable[Watched]) -> None:
        """Watch exactly these GPUs; earlier events are not reported."""
        watched = {_address(gpu.handle): gpu for gpu in gpus}
        # NVML takes no GPU out of a set of events: the thread makes a new set.
        if watched.keys() != self._watched.keys():
            self._changed.set()
        self._watched = watched
        if self._thread is None and watched:
            self._thread = threading.Thread(target=self._work, name="shim-xids", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._ended.set()

    def join(self) -> None:
        """Block until the thread has ended, which takes as long as the driver lets it wait."""
        if self._thread is not None:
            self._thread.join(2 * _WAIT_MS / 1000)

    def _work(self) -> None:
        while not self._ended.is_set():
            self._changed.clear()
            try:
                events = self._nvml.nvmlEventSetCreate()
            # A driver that is being reloaded gives no events; the readings of each GPU go on
            # without them.
            except self._nvml.NVMLError:
                self._ended.wait(_RETRY_SECONDS)
                continue
            try:
                self._register(events)
                self._take_all(events)
            finally:
                # The set has gone with a driver that was unloaded meanwhile.
                with contextlib.suppress(self._nvml.NVMLError):
                    self._nvml.nvmlEventSetFree(events)

    def _register(self, events: Any) -> None:
        """Register for events. A GPU that is lost, or has none, is watched by its readings
        alone."""
        for gpu in list(self._watched.values()):
            with contextlib.suppress(self._nvml.NVMLError):
                kind = self._nvml.nvmlEventTypeXidCriticalError
                self._nvml.nvmlDeviceRegisterEvents(gpu.handle, kind, events)

    def _take_all(self, events: Any) -> None:
        while not (self._ended.is_set() or self._changed.is_set()):
            try:
                # Only its second version names the MIG instance.
                event = self._nvml.nvmlEventSetWait_v2(events, _WAIT_MS)
            except self._nvml.NVMLError as error:
                if error.value == self._nvml.NVML_ERROR_TIMEOUT:
                    continue
                self._ended.wait(_RETRY_SECONDS)
                return
            gpu = self._watched.get(_address(event.device))
            if gpu is not None:
                self._tell(event_of(_uuid_of(gpu, event), int(event.eventData)))

    def _tell(self, event: GpuEvent) -> None:
        # The loop may have ended, and with it everybody who would hear of this.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._found, event)


def _uuid_of(gpu: Watched, event: Any) -> str:
    if event.gpuInstanceId == _WHOLE_GPU:
        return gpu.uuid
    return gpu.instances.get((event.gpuInstanceId, event.computeInstanceId), gpu.uuid)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
