"""Setting a task up is a list of small steps, each with a `do` and an `undo`.

Both can be repeated: a shim that was killed walks the list again from its start, and a removal that
failed halfway is requested again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

import msgspec

from fairlead.wire.node import GpuInfo
from shim.engines.base import Engine, ImageInfo, MountSpec
from shim.gpus.base import GpuDelivery
from shim.image_cache.images import Images
from shim.node.cgroups import CgroupTree, KernelTree
from shim.node.pythons import Pythons
from shim.settings import Settings
from shim.tasks.task import TaskState
from shim.volumes.mounter import Mounter


class RunLocks:
    """Networks belong to runs: making and removing one must not interleave."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}

    def of(self, run_id: str) -> asyncio.Lock:
        return self._locks.setdefault(run_id, asyncio.Lock())

    def forget(self, run_id: str) -> None:
        lock = self._locks.get(run_id)
        # A task in this lock needs it: a new lock would let a second task in next to it.
        if lock is not None and not lock.locked():
            del self._locks[run_id]


class StepContext(msgspec.Struct):
    """The context that the steps of one task share. `run_is_used` tells whether another task of
    the run needs what they share; `addresses_of_run` returns what the run's other tasks have in its
    network."""

    task: TaskState
    engine: Engine
    settings: Settings
    executor: Executor
    run_locks: RunLocks
    run_is_used: Callable[[], bool]
    addresses_of_run: Callable[[], frozenset[str]]
    gpus: Callable[[], tuple[GpuInfo, ...]]
    gpu_delivery: GpuDelivery
    images: Images
    mounter: Mounter
    pythons: Pythons
    cgroups: CgroupTree = msgspec.field(default_factory=KernelTree)
    image: ImageInfo | None = None
    mounts: tuple[MountSpec, ...] = ()
    python_mounts: tuple[MountSpec, ...] = ()


class Step(Protocol):
    async def do(self, ctx: StepContext) -> None:
        """Do the step. Raises EngineError (ImageError, EngineUnavailable) or OSError."""

    async def undo(self, ctx: StepContext) -> None:
        """Undo the step; succeeds when there is nothing to undo."""
