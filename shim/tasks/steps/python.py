"""The interpreter of a job with `python`, which the container gets read-only.

A node that cannot bring it does not fail the task: the image may have one. The runner, which knows
the image, decides.
"""

from __future__ import annotations

import asyncio

import msgspec

from common.files.task_folder import PYTHONS_NAME, Pythons
from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.shim import VolumeKind
from shim.engines.base import MountSpec
from shim.files import safe_files
from shim.tasks.steps.base import StepContext

MOUNTED_AT = "/opt/fairlead/pythons"


class Python:
    async def do(self, ctx: StepContext) -> None:
        version = ctx.task.request.python
        if version is None:
            return
        problem = await ctx.pythons.bring(version)
        folder = str(ctx.pythons.folder)
        if EngineAbility.VOLUMES in ctx.engine.abilities:
            ctx.python_mounts = (
                MountSpec(kind=VolumeKind.HOST, source=folder, target=MOUNTED_AT, read_only=True),
            )
            folder = MOUNTED_AT
        content = msgspec.json.encode(Pythons(folder=folder, problem=problem))
        job_folder = ctx.settings.job_folder(ctx.task.info.id)
        await asyncio.get_running_loop().run_in_executor(
            ctx.executor, safe_files.replace_file, job_folder, PYTHONS_NAME, content
        )

    async def undo(self, ctx: StepContext) -> None:
        """Do nothing: the interpreters stay for the next job."""
