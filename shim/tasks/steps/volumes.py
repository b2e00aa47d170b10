"""The task's volumes, mounted at paths of the shim's own, which the container then gets.

The engine would resolve a path again after the check. So it never gets the user's path, only a
mount of what was checked.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Literal, assert_never

from common.threads import to_the_end
from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.shim import VolumeKind, VolumeMount
from shim.admission import container_rules
from shim.engines.base import MountSpec, NodeFault
from shim.errors import EngineError, VolumeError
from shim.settings import Settings
from shim.tasks.steps.base import StepContext
from shim.volumes.mounter import Mounter

log = logging.getLogger(__name__)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors of the node, whatever is mounted."""

_OfNode = Literal[VolumeKind.HOST, VolumeKind.DEVICE]
"""The kinds that the shim mounts itself."""


class Volumes:
    async def do(self, ctx: StepContext) -> None:
        volumes = ctx.task.request.volumes
        if volumes and EngineAbility.VOLUMES not in ctx.engine.abilities:
            raise VolumeError("volumes need containers, which this node's engine does not have")
        container_rules.check_volumes(volumes)
        mounts = [await self._mounted(ctx, *numbered) for numbered in enumerate(volumes)]
        ctx.mounts = tuple(target for target in mounts if target is not None)

    async def undo(self, ctx: StepContext) -> None:
        folder = ctx.settings.task_mounts(ctx.task.info.id)
        await _in_thread(ctx, lambda: ctx.mounter.release(folder))

    async def _mounted(
        self, ctx: StepContext, number: int, volume: VolumeMount
    ) -> MountSpec | None:
        kind = volume.kind
        match kind:
            case VolumeKind.TMPFS:
                source = ""
            case VolumeKind.NAMED:
                source = await ctx.engine.ensure_volume(volume.source)
            case VolumeKind.HOST | VolumeKind.DEVICE:
                target = ctx.settings.task_mounts(ctx.task.info.id) / str(number)
                if not await self._mount(ctx, volume, kind, target):
                    return None
                source = str(target)
            case _:
                assert_never(kind)
        return MountSpec(
            kind=kind,
            source=source,
            target=volume.target,
            read_only=volume.read_only,
            size=volume.size,
        )

    async def _mount(
        self, ctx: StepContext, volume: VolumeMount, kind: _OfNode, target: Path
    ) -> bool:
        """Mount a volume; False for an optional one whose source is missing."""
        allowed = container_rules.allowed_path(volume, ctx.settings.volume_prefixes)

        def mount() -> bool:
            match kind:
                case VolumeKind.HOST:
                    return ctx.mounter.bind(allowed.prefix, allowed.relative, target)
                case VolumeKind.DEVICE:
                    return ctx.mounter.device(Path(volume.source), target)
                case _:
                    assert_never(kind)

        try:
            is_there = await _in_thread(ctx, mount)
        except OSError as error:
            fault = NodeFault if error.errno in _FULL else VolumeError
            raise fault(f"{volume.source} cannot be mounted: {error}") from error
        if not is_there and not volume.optional:
            raise VolumeError(f"there is no {volume.source} on this node")
        if not is_there:
            log.info("task %s: no %s here, left out", ctx.task.info.id, volume.source)
        return is_there


async def release_strays(
    settings: Settings, executor: Executor, mounter: Mounter, known: set[str]
) -> None:
    """Unmount what a crash left for tasks that no longer exist."""

    def release() -> None:
        if not settings.mounts_folder.exists():
            return
        for folder in settings.mounts_folder.iterdir():
            if folder.name in known:
                continue
            try:
                mounter.release(folder)
            except (OSError, EngineError) as error:
                log.error("%s cannot be released: %s", folder, error)

    await asyncio.get_running_loop().run_in_executor(executor, release)


async def _in_thread(ctx: StepContext, act: Callable[[], bool | None]) -> bool:
    return bool(await to_the_end(asyncio.get_running_loop().run_in_executor(ctx.executor, act)))
