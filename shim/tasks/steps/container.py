"""The steps that make a run's network, make the container, and start it.

Bridge containers of different runs do not see each other. The container's labels can rebuild the
task's record.
"""

from __future__ import annotations

import msgspec

from fairlead.wire.amounts import amounts_of
from fairlead.wire.shim import NetworkMode, TaskStatus
from shim.admission.container_rules import first_user, granted
from shim.engines.base import ContainerSpec
from shim.tasks.steps.base import StepContext
from shim.tasks.steps.ssh import published_port


class Network:
    async def do(self, ctx: StepContext) -> None:
        info = ctx.task.coming
        if info.network_mode is NetworkMode.BRIDGE:
            async with ctx.run_locks.of(info.run_id):
                taken = ctx.addresses_of_run()
                address = await ctx.engine.ensure_network(info.run_id, taken, info.address)
                # Told once it is durable: the controller tells it to the run's other tasks at once.
                ctx.task.note(address=address)

    async def undo(self, ctx: StepContext) -> None:
        """Remove the run's network if this is the last of the run's tasks that are being
        removed."""
        run_id = ctx.task.info.run_id
        async with ctx.run_locks.of(run_id):
            ctx.task.left_run = True
            if not ctx.run_is_used():
                await ctx.engine.remove_network(run_id)
        if not ctx.run_is_used():
            ctx.run_locks.forget(run_id)


class Container:
    async def do(self, ctx: StepContext) -> None:
        assert ctx.image is not None, "the image step comes first"
        task = ctx.task
        await task.enter(TaskStatus.CREATING, image_digest=ctx.image.digest, pull=None)
        info, resources = task.info, task.request.resources
        container_id = await ctx.engine.create(
            ContainerSpec(
                task_id=info.id,
                run_id=info.run_id,
                allocation_id=info.allocation_id,
                image=ctx.image.id,
                record=msgspec.json.encode(task.record).decode(),
                job_folder=str(ctx.settings.job_folder(info.id)),
                run_folder=str(ctx.settings.socket_folder(info.id)),
                network_mode=info.network_mode,
                hostname=task.request.hostname,
                **amounts_of(resources),
                shm_size=resources.shm_size,
                address=info.address,
                publish=published_port(ctx),
                gpus=info.gpus,
                mounts=(*ctx.mounts, *ctx.python_mounts),
                options=granted(task.request.container, info.network_mode, ctx.settings),
                user=first_user(task.request.container, ctx.image.user),
                gpu_units=tuple(gpu for gpu in ctx.gpus() if gpu.uuid in info.gpus),
                gpu_delivery=ctx.gpu_delivery,
                infiniband=resources.infiniband,
            )
        )
        task.show(container_id=container_id)

    async def undo(self, ctx: StepContext) -> None:
        await ctx.engine.remove(ctx.task.info.id)


class Start:
    async def do(self, ctx: StepContext) -> None:
        container_id = ctx.task.info.container_id
        assert container_id is not None, "the container step comes first"
        await ctx.engine.start(container_id)
        ctx.task.show_status(TaskStatus.RUNNING)

    async def undo(self, ctx: StepContext) -> None:
        """Do nothing: the removal of the container ends it."""
