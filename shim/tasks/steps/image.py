"""The image: taken from the node if possible, else pulled, with its progress shown."""

from __future__ import annotations

import asyncio
import time

import msgspec

from common.files.task_folder import IMAGE_CONFIG_NAME, ImageConfig
from fairlead.wire.shim import PullPolicy, PullProgress, TaskRequest, TaskStatus
from shim.engines.base import ImageError, ImageInfo, ImageProblem, pinned
from shim.files import safe_files
from shim.tasks.steps.base import StepContext

_SHOWN_EVERY = 0.5


class Image:
    async def do(self, ctx: StepContext) -> None:
        reference = reference_of(ctx.task.request)
        image = await self._local(ctx, reference) or await self._pull(ctx, reference)
        ctx.image = image
        config = msgspec.convert(image, ImageConfig, from_attributes=True)
        folder, content = ctx.settings.job_folder(ctx.task.info.id), msgspec.json.encode(config)
        loop = asyncio.get_running_loop()
        write = safe_files.replace_file
        await loop.run_in_executor(ctx.executor, write, folder, IMAGE_CONFIG_NAME, content)

    async def undo(self, ctx: StepContext) -> None:
        """Let the image go. It stays for the next task, and may be removed when the disk is
        full."""
        await ctx.images.let_go(ctx.task.info.id, reference_of(ctx.task.request))

    async def _local(self, ctx: StepContext, reference: str) -> ImageInfo | None:
        request = ctx.task.request
        if request.pull_policy is PullPolicy.ALWAYS:
            return None
        image = await ctx.images.local(reference, ctx.task.info.id)
        if image is None and request.pull_policy is PullPolicy.NEVER:
            raise ImageError(
                f"image {reference} is not on this node and pull_policy is 'never'",
                ImageProblem.NOT_HERE,
            )
        if image is not None and not await self._may_use(ctx, reference, image):
            return None
        return image

    async def _may_use(self, ctx: StepContext, reference: str, image: ImageInfo) -> bool:
        """Return whether the run may use the image; False if the registry has lost it and may have
        another with the same name."""
        task, access = ctx.task, ctx.images.access
        must_prove = await access.must_prove(task.info.run_id, reference, image)
        if not must_prove and not access.must_ask(task.info.run_id, reference, image):
            return True
        await task.enter(TaskStatus.PULLING, pull=PullProgress())
        await _credentials(ctx)
        try:
            await access.ask(task.info.run_id, reference, image, task.auth)
        except ImageError as error:
            may_pull = task.request.pull_policy is PullPolicy.IF_NOT_PRESENT
            if error.problem is not ImageProblem.MISSING or not may_pull:
                raise
            return False
        return True

    async def _pull(self, ctx: StepContext, reference: str) -> ImageInfo:
        task = ctx.task
        await task.enter(TaskStatus.PULLING, pull=PullProgress())
        await _credentials(ctx)
        shown_at = 0.0

        def progress(now: PullProgress) -> None:
            nonlocal shown_at
            if now != task.info.pull and time.monotonic() - shown_at >= _SHOWN_EVERY:
                shown_at = time.monotonic()
                task.show(pull=now)

        image = await ctx.images.pull(reference, task.auth, task.info.id, progress)
        await _confirm(ctx, reference, image)
        return image


async def _confirm(ctx: StepContext, reference: str, image: ImageInfo) -> None:
    """Raise ImageError unless the image's registry gave it to this run.

    An engine asks the registry which image a tag names, and fetches what the node lacks. Of an
    image that is private under another name it may have fetched nothing: the registry must prove
    that it has it. An image that is named by its digest and is on the node already is "up to date"
    without any question, whatever the credentials (moby, distribution/manifest.go: the local
    content comes first).
    """
    task, access = ctx.task, ctx.images.access
    run_id = task.info.run_id
    must_ask = "@" in reference and access.must_ask(run_id, reference, image)
    if must_ask or await access.must_prove(run_id, reference, image):
        await access.ask(task.info.run_id, reference, image, task.auth)
    else:
        access.grant(task.info.run_id, image)


def reference_of(request: TaskRequest) -> str:
    return pinned(request.image, request.image_digest)


async def _credentials(ctx: StepContext) -> None:
    """Return the credentials. After a restart only the caller knows them: the same PUT brings them
    again."""
    task = ctx.task
    if task.record.had_credentials and task.auth is None:
        await task.change(needs_credentials=True)
        await task.credentials_came.wait()
        await task.change(needs_credentials=False)
