"""A network per run, so that bridge containers of different runs do not see each other."""

from __future__ import annotations

from shim.schemas import NetworkMode
from shim.steps.base import StepContext


class Network:
    async def do(self, ctx: StepContext) -> None:
        if ctx.task.info.network_mode is NetworkMode.BRIDGE:
            run_id = ctx.task.info.run_id
            async with ctx.run_locks.of(run_id):
                await ctx.engine.ensure_network(run_id)

    async def undo(self, ctx: StepContext) -> None:
        """Of tasks that are removed at the same time the last one to come here takes it away."""
        run_id = ctx.task.info.run_id
        async with ctx.run_locks.of(run_id):
            ctx.task.left_run = True
            if not ctx.run_is_used():
                await ctx.engine.remove_network(run_id)
        if not ctx.run_is_used():
            ctx.run_locks.forget(run_id)
