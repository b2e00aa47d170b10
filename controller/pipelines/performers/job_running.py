"""JobRunningPipeline: the effects of an attempt that starts or runs (submit, start, follow,
interrupt).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

import msgspec

from controller.blobs import BlobStore
from controller.clock import Clock
from controller.lifecycle import reports
from controller.lifecycle.attempts import end_signal, limits
from controller.lifecycle.effects import EffectKind
from controller.lifecycle.model import Attempt
from controller.links.base import NodeConnection, RunnerApi
from controller.pipelines import from_node, to_node
from controller.pipelines.effects import Performer
from controller.pipelines.performers.cluster import Clusters
from controller.pipelines.performers.log_collection import LogCollector
from controller.pipelines.performers.starting_again import StarterAgain
from controller.pipelines.performers.taken_outputs import (
    OutputsGone,
    TakenArchive,
    TakenOutputsReader,
)
from controller.pipelines.run_pipeline import RunPipeline
from controller.pipelines.to_node import AttemptContext, RetryLater, SecretSource
from controller.vault import SecretMissing
from fairlead.model.reasons import Reason
from fairlead.wire.job import SubmitRequest
from fairlead.wire.node import NodeInfo
from fairlead.wire.runner import RunnerState, SignalRequest, StatusEvent
from fairlead.wire.shim import Fence, RefusalCode
from runner.client import SILENCE, RunnerError, RunnerUnavailable
from shim.client import ShimError

log = logging.getLogger(__name__)
START_TRIES = 100
START_PAUSE_SECONDS = 0.015
"""A runner listens 0.1 to 0.2 s after its container started. Over SSH each refused try is a channel
that is opened in vain."""
PASSING_REFUSALS = frozenset(
    {
        *(RefusalCode.NO_CAPACITY, RefusalCode.NO_NETWORK),
        *(RefusalCode.DRAINING, RefusalCode.FENCED),
    }
)


class CodeGone(Exception):
    """A blob of a live run is missing from the controller's folder."""


class TaskSubmitter:
    """PUT the task until the shim has it, and again when a restarted shim asks for the registry's
    credentials."""

    def __init__(
        self, pipeline: RunPipeline, fence: Fence, clusters: Clusters, secrets: SecretSource
    ) -> None:
        self._pipeline = pipeline
        self._fence = fence
        self._clusters = clusters
        self._secrets = secrets

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        attempt = context.attempt
        key = self._clusters.key(context)
        public = None if key is None else key.public
        try:
            sent = context.with_secrets(self._secrets)
        except SecretMissing as error:
            self._refused(context, Reason.SECRET_MISSING, str(error))
            return
        try:
            info = await connection.shim.put_task(
                attempt.id,
                to_node.task_request(sent, public, self._terminal_key(context, public)),
                fence=self._fence,
                incarnation=context.incarnation_number,
            )
        except ShimError as error:
            lost = await self._lost_allocation(error, attempt, connection)
            # PUT is repeated until it is answered, so only a refusal that cannot pass ends the
            # attempt.
            passing = error.code in PASSING_REFUSALS and lost is None
            if passing or error.status >= 500:
                raise RetryLater(str(error)) from error
            reason = lost or Reason.CREATING_CONTAINER_ERROR
            self._refused(context, reason, from_node.readable(error.message))
            return
        # The answer may be older than the credentials that this request brought.
        supplied = msgspec.structs.replace(info, needs_credentials=False)
        for report in from_node.task_reports(supplied):
            self._pipeline.post(report)

    def _terminal_key(self, context: AttemptContext, cluster_key: str | None) -> str | None:
        # To derive it is a tenth of what a task costs that no SSH server needs it for.
        has_ssh = to_node.may_have_ssh(context, cluster_key)
        return self._clusters.terminal_key(context) if has_ssh else None

    def _refused(self, context: AttemptContext, reason: Reason, message: str) -> None:
        self._pipeline.post(
            reports.TaskRefused(
                run_id=context.state.run.id,
                attempt_id=context.attempt.id,
                reason=reason,
                message=message,
            )
        )

    async def _lost_allocation(
        self, error: ShimError, attempt: Attempt, connection: NodeConnection
    ) -> Reason | None:
        """Return why the attempt needs another allocation; None: the refusal can pass.

        It needs another one when its node drains, gives no host network now, has another engine or
        room for fewer networks than before, or when its GPU broke or was split again. A refusal can
        pass when the shim has not heard yet that it may work again, while a GPU's memory is being
        freed, or while tasks of before are being removed. Raises ShimUnavailable, RetryLater.
        """
        if error.code in (RefusalCode.NO_HOST_NETWORK, RefusalCode.ENGINE_LACKS):
            return Reason.INSTANCE_UNREACHABLE
        if error.code == RefusalCode.DRAINING:
            node = self._pipeline.nodes.get(attempt.node_id or "")
            if node is None or not node.draining:
                return None
            # A recall drains too, and the refusal may come before it ends the attempt (12.18).
            is_recalled = node.recalled_at is not None
            return Reason.INTERRUPTED_BY_NO_CAPACITY if is_recalled else Reason.NODE_DRAINED
        if error.code == RefusalCode.NO_NETWORK:
            fewer = self._has_fewer_networks(await _node_info(connection), attempt)
            return Reason.INTERRUPTED_BY_NO_CAPACITY if fewer else None
        if error.code != RefusalCode.NO_CAPACITY or not attempt.task.gpus:
            return None
        gpus = (await _node_info(connection)).gpus
        healthy = {gpu.uuid for gpu in gpus if gpu.healthy}
        return None if healthy.issuperset(attempt.task.gpus) else Reason.GPU_UNHEALTHY

    def _has_fewer_networks(self, info: NodeInfo, attempt: Attempt) -> bool:
        """Return whether the node has room for fewer networks than the placement counted on."""
        node = self._pipeline.nodes.get(attempt.node_id or "")
        counted = None if node is None else node.capacity.networks
        return info.networks is not None and (counted is None or info.networks < counted)


async def _node_info(connection: NodeConnection) -> NodeInfo:
    """Raises ShimUnavailable, RetryLater."""
    try:
        return await connection.shim.node()
    except ShimError as unread:
        raise RetryLater(str(unread)) from unread


class JobStarter:
    """Give the runner its job and code and start it; the runner may need a moment until it
    listens."""

    def __init__(
        self,
        pipeline: RunPipeline,
        clock: Clock,
        blobs: BlobStore,
        clusters: Clusters,
        secrets: SecretSource,
        inputs: TakenOutputsReader | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._blobs = blobs
        self._clusters = clusters
        self._secrets = secrets
        self._inputs = inputs

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        attempt = context.attempt
        runner = connection.runner(to_node.runner_socket(context))
        run = context.state.run
        try:
            inputs = await self._inputs.of(run) if self._inputs and run.outputs_from else ()
            request = self._request(context, inputs)
            if not await connection.runners.until_it_listens(attempt.id):
                raise RetryLater("the connection to the node was lost")
            event = await _start(runner, request)
            # Also after a try that broke off in the upload: the runner still waits for its code.
            if event.state is RunnerState.WAITING_FOR_CODE:
                await self._send_code(runner, context)
                await self._send_inputs(runner, inputs)
                await runner.run()
        except RunnerError as error:
            if error.status >= 500:
                # 5xx: a fault that may pass. What the runner refuses otherwise, it would refuse
                # again.
                raise RetryLater(str(error)) from error
            self._give_up(context, f"the runner refused the job: {error.message}")
            return
        except (CodeGone, OutputsGone) as error:
            self._give_up(context, str(error))
            return
        except SecretMissing as error:
            self._give_up(context, str(error), Reason.SECRET_MISSING)
            return
        self._pipeline.post(
            reports.RunnerStarted(
                run_id=context.state.run.id, attempt_id=attempt.id, at=self._clock.now()
            )
        )

    async def _send_code(self, runner: RunnerApi, context: AttemptContext) -> None:
        """Upload the code. Raises CodeGone, RunnerUnavailable, RunnerError."""
        for digest in context.job.spec.blobs:
            if await self._blobs.size(digest) is None:
                raise CodeGone("the code that was uploaded for this run is gone; apply it again")
            async with contextlib.aclosing(self._blobs.read(digest)) as pieces:
                await runner.put_code(digest, pieces)

    async def _send_inputs(self, runner: RunnerApi, inputs: Sequence[TakenArchive]) -> None:
        """Upload the outputs of other runs. Raises RunnerUnavailable, RunnerError, RetryLater."""
        by_digest = {one.files.archive: one for one in inputs}
        for digest, one in by_digest.items():
            assert self._inputs is not None, "it has found them"
            async with contextlib.aclosing(self._inputs.read(one)) as pieces:
                await runner.put_code(digest, pieces)

    def _give_up(
        self, context: AttemptContext, message: str, reason: Reason = Reason.EXECUTOR_ERROR
    ) -> None:
        self._pipeline.post(
            reports.RunnerExited(
                run_id=context.state.run.id,
                attempt_id=context.attempt.id,
                reason=reason,
                message=from_node.readable(message),
            )
        )

    def _request(self, context: AttemptContext, inputs: Sequence[TakenArchive]) -> SubmitRequest:
        """Raises RetryLater while the gang is not placed, SecretMissing."""
        cluster, key = self._clusters.info(context), self._clusters.key(context)
        return to_node.submit_request(
            context.with_secrets(self._secrets), cluster, key, [one.files for one in inputs]
        )


async def _start(runner: RunnerApi, request: SubmitRequest) -> StatusEvent:
    """Start the job. Raises RunnerUnavailable when the runner does not listen soon."""
    for _ in range(START_TRIES):
        try:
            return await runner.start(request)
        # An older shim does not tell when the runner listens.
        except RunnerUnavailable:
            await asyncio.sleep(START_PAUSE_SECONDS)
    return await runner.start(request)


class RunnerFollower:
    """Follow the runner's status until it reports an exit."""

    def __init__(self, pipeline: RunPipeline, clock: Clock) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._silent_since: dict[str, tuple[NodeConnection, float]] = {}

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        attempt, run_id = context.attempt, context.state.run.id
        runner = connection.runner(to_node.runner_socket(context))
        heard_at, reported = self._clock.now(), -1
        try:
            async with contextlib.aclosing(runner.status_events()) as events:
                async for event in events:
                    heard_at = self._clock.now()
                    self._silent_since.pop(attempt.id, None)
                    if event.start_end is not None and event.start_end.number > reported:
                        reported = event.start_end.number
                        self._pipeline.post(
                            from_node.start_ended(run_id, attempt.id, event.start_end)
                        )
                    if event.state is RunnerState.SERVING_LOGS and event.exit is not None:
                        # The runner saw only a signal. The shim, or an engine that stops its
                        # containers, sent it.
                        if event.exit.container_stopped and attempt.reason is None:
                            raise RetryLater(
                                "its container is being stopped; the shim's events say why"
                            )
                        if event.exit.clean:
                            self._pipeline.post(
                                reports.LeftClean(run_id=run_id, attempt_id=attempt.id)
                            )
                        self._pipeline.post(from_node.runner_exited(run_id, attempt.id, event.exit))
                        return
        # The container may be ending at this moment: the shim, which outlives it, tells whether it
        # is.
        except RunnerUnavailable:
            self._note_silence(context, connection, heard_at)
            raise
        except RunnerError as error:
            raise RetryLater(str(error)) from error
        raise RetryLater("the runner's status stream ended before the job did")

    def _note_silence(
        self, context: AttemptContext, connection: NodeConnection, heard_at: float
    ) -> None:
        """Post RunnerSilent when the runner is silent for too long although the shim answers.

        The count begins again with each connection. It counts at most the time for which a stream
        may be silent, so that a pause of the controller itself does not count as the runner's.
        """
        attempt_id, now = context.attempt.id, self._clock.now()
        began = max(heard_at, now - SILENCE)
        beside, since = self._silent_since.get(attempt_id, (connection, began))
        # While there was no connection nobody could hear the runner.
        if beside is not connection:
            since = began
        self._silent_since[attempt_id] = (connection, since)
        if now - since >= context.state.run.policy.limits.waiting_runner:
            del self._silent_since[attempt_id]
            self._pipeline.post(
                reports.RunnerSilent(run_id=context.state.run.id, attempt_id=attempt_id)
            )


class JobInterrupter:
    """Ask the runner to interrupt its job; the runner kills what is left when the time is over."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        now = self._clock.now()
        ends_at = limits.interruption_ends_at(context.state.run, context.attempt, now)
        if ends_at is None:
            return
        runner = connection.runner(to_node.runner_socket(context))
        # Only what is left: a try after a lost answer must not begin the time again.
        grace = max(0.0, ends_at - now)
        try:
            await runner.stop(signal=context.job.spec.stop_signal, grace=grace, interrupt=True)
        except RunnerError as error:
            raise RetryLater(str(error)) from error


class JobSignaller:
    """Send the job the signals before the ends that are foreseen."""

    def __init__(self, pipeline: RunPipeline, clock: Clock) -> None:
        self._pipeline = pipeline
        self._clock = clock

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        await send_signals(context, connection, self._pipeline, self._clock.now())


async def send_signals(
    context: AttemptContext, connection: NodeConnection, pipeline: RunPipeline, now: float
) -> None:
    """Send what the runner does not have yet, and report it. Raises RetryLater."""
    attempt, spec = context.attempt, context.job.spec
    owed = [one for one in attempt.signalled if not one.sent]
    runner = connection.runner(to_node.runner_socket(context))
    try:
        for one in owed:
            await runner.signal(
                SignalRequest(
                    id=one.id,
                    cause=one.cause.value,
                    ends_in=end_signal.ends_in(context.state.run, attempt, one, spec.signal, now),
                )
            )
    except RunnerError as error:
        # Another refusal is for good, as that of an older runner, and must not keep a stop waiting.
        if error.status >= 500:
            raise RetryLater(str(error)) from error
    if owed:
        ids = tuple(one.id for one in owed)
        pipeline.post(
            reports.JobSignalled(run_id=context.state.run.id, attempt_id=attempt.id, ids=ids)
        )


class SuspensionNotifier:
    """Tell the runner that its run is suspended or resumed."""

    def __init__(self, *, suspended: bool) -> None:
        self._suspended = suspended

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        runner = connection.runner(to_node.runner_socket(context))
        try:
            await runner.suspend(self._suspended)
        except RunnerError as error:
            if error.status != 404:  # an older runner has no limit that stands still
                raise RetryLater(str(error)) from error


class JobRunningPipeline:
    """The performers of the effects of attempts that start or run."""

    def __init__(
        self,
        pipeline: RunPipeline,
        fence: Fence,
        clock: Clock,
        blobs: BlobStore,
        clusters: Clusters,
        collector: LogCollector,
        secrets: SecretSource,
        inputs: TakenOutputsReader,
    ) -> None:
        self.performers: dict[EffectKind, Performer] = {
            EffectKind.SUBMIT_TASK: TaskSubmitter(pipeline, fence, clusters, secrets),
            EffectKind.START_JOB: JobStarter(pipeline, clock, blobs, clusters, secrets, inputs),
            EffectKind.FOLLOW_RUNNER: RunnerFollower(pipeline, clock),
            EffectKind.COLLECT_LOGS: collector,
            EffectKind.INTERRUPT_JOB: JobInterrupter(clock),
            EffectKind.SIGNAL_JOB: JobSignaller(pipeline, clock),
            EffectKind.START_AGAIN: StarterAgain(pipeline, blobs, secrets),
            EffectKind.SUSPEND_LIMIT: SuspensionNotifier(suspended=True),
            EffectKind.RESUME_LIMIT: SuspensionNotifier(suspended=False),
        }
