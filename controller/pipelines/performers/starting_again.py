"""Has a runner start its job again with what a user has changed (docs/rules.md 2.15)."""

from __future__ import annotations

import contextlib

from controller.blobs import BlobStore
from controller.lifecycle import reports
from controller.links.base import NodeConnection, RunnerApi
from controller.pipelines import from_node, to_node
from controller.pipelines.run_pipeline import RunPipeline
from controller.pipelines.to_node import AttemptContext, RetryLater, SecretSource
from controller.store.errors import LeaseLost, StoreUnavailable
from controller.vault import SecretMissing
from fairlead.wire.runner import AgainRequest
from runner.client import RunnerError

_OLDER_RUNNER = 404


class StarterAgain:
    """Send what is missing and repeat the request until the start has begun. The runner knows each
    start by its number, so nothing starts twice."""

    def __init__(self, pipeline: RunPipeline, blobs: BlobStore, secrets: SecretSource) -> None:
        self._pipeline = pipeline
        self._blobs = blobs
        self._secrets = secrets

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        runner = connection.runner(to_node.runner_socket(context))
        last: tuple[int, tuple[str, ...]] | None = None
        while (now := self._present(context)) is not None:
            starts = now.attempt.starts
            if starts is None or not starts.is_owed:
                return
            before, last = last, (starts.asked, await self._start(now, starts.asked, runner))
            # Another one may have been asked for meanwhile, which this effect has to begin too.
            try:
                await self._pipeline.settled()
            except (StoreUnavailable, LeaseLost) as error:
                raise RetryLater(str(error)) from error
            # The store refuses what was posted, or a job that impersonates its runner answers so.
            # Without the pauses of an effect that is refused this goes on as fast as they answer.
            if before == last and self._owes(context, starts.asked):
                raise RetryLater(f"start {starts.asked} has not begun, or that is not stored")

    def _owes(self, context: AttemptContext, number: int) -> bool:
        now = self._present(context)
        starts = None if now is None else now.attempt.starts
        return starts is not None and starts.is_owed and starts.asked == number

    def _present(self, context: AttemptContext) -> AttemptContext | None:
        state = self._pipeline.known.get(context.state.run.id)
        return None if state is None else to_node.find(state, context.attempt.id)

    async def _start(
        self, context: AttemptContext, number: int, runner: RunnerApi
    ) -> tuple[str, ...]:
        """Return what was sent, after which the runner has to be asked again."""
        run_id, attempt_id = context.state.run.id, context.attempt.id
        try:
            submission = to_node.submit_request(context.with_secrets(self._secrets))
            request = AgainRequest(number=number, submission=submission)
            answer = await runner.again(request)
            for digest in answer.missing:
                if await self._blobs.size(digest) is None:
                    self._refuse(context, number, "an upload that it needs is gone")
                    return ()
                async with contextlib.aclosing(self._blobs.read(digest)) as pieces:
                    await runner.put_code(digest, pieces)
        except SecretMissing as error:
            self._refuse(context, number, str(error))
            return ()
        except RunnerError as error:
            if error.status >= 500:
                raise RetryLater(str(error)) from error
            # A container lives on with the runner that it started with, also through upgrades of
            # its node.
            is_older = error.status == _OLDER_RUNNER
            why = "its node's runner is of an older version" if is_older else error.message
            self._refuse(context, number, why)
            return ()
        if answer.begun:
            self._pipeline.post(
                reports.StartedAgain(run_id=run_id, attempt_id=attempt_id, number=number)
            )
        return answer.missing

    def _refuse(self, context: AttemptContext, number: int, message: str) -> None:
        self._pipeline.post(
            reports.StartAgainRefused(
                run_id=context.state.run.id,
                attempt_id=context.attempt.id,
                number=number,
                message=from_node.readable(message),
            )
        )
