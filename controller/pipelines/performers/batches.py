"""The effect of a carrier: jobs of its sweep run one after another in its container
(docs/rules.md 11.14).

Each exchange with its runner says all that the last commit wants, so it may be repeated after a
lost answer, a new connection or a restart. A job's log is on disk before its end is posted, and its
end is committed before the runner is told to forget it: so no record is lost, and none comes twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable

import msgspec

from controller.clock import Clock
from controller.lifecycle import reports
from controller.lifecycle.attempts import end_signal
from controller.lifecycle.effects import EffectKind
from controller.lifecycle.model import RunState
from controller.lifecycle.sweeps import carrying
from controller.links.base import NodeConnection, RunnerApi
from controller.logs.store import LogStore, LogWriter
from controller.outputs.store import OutputStore, StoredOutputs
from controller.pipelines import from_node, to_node
from controller.pipelines.effects import Performer
from controller.pipelines.performers.carried_outputs import CarriedOutputs, Missing
from controller.pipelines.performers.log_collection import Acknowledging, Links
from controller.pipelines.performers.output_collection import collected
from controller.pipelines.run_pipeline import RunPipeline
from controller.pipelines.to_node import AttemptContext, RetryLater, SecretSource
from controller.store.errors import LeaseLost, StoreUnavailable
from controller.vault import SecretMissing
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus
from fairlead.wire.frames import BadFrame
from fairlead.wire.job import SubmitRequest
from fairlead.wire.runner import BatchRequest, CarriedJob, CarriedSignal, CarriedStop, SignalRequest
from runner.client import RunnerError, RunnerUnavailable

log = logging.getLogger(__name__)
WAIT = 0.5
"""Seconds that a runner with nothing new waits with its answer: an order waits as long at most."""
FIRST_PAUSE, MAX_PAUSE = 0.02, 2.0
"""Seconds between two questions while nothing of the answers is stored."""
MAX_SENT = 32 << 20
"""Bytes of jobs in one request, of which a runner takes 64 MiB at most; the others follow in the
next one."""
PAST_ALL = (1 << 63) - 1
"""The offset that asks for nothing more of a log."""
NO_BATCHES = 404
"""The status with which a runner answers that knows no batches: it runs none of the jobs."""


class BatchRunner:
    """Keeps the runner of a carrier busy until its container is given back."""

    def __init__(
        self,
        pipeline: RunPipeline,
        clock: Clock,
        logs: LogStore,
        outputs: OutputStore,
        secrets: SecretSource,
    ) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._logs = logs
        self._outputs = outputs
        self._secrets = secrets
        self._silent_since: dict[str, tuple[NodeConnection, float]] = {}

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        runner = connection.runner(to_node.runner_socket(context))
        batch = _Exchange(
            self._pipeline,
            self._clock,
            self._logs,
            CarriedOutputs(self._outputs),
            self._secrets,
            context,
        )
        try:
            while await batch.once(runner):
                self._silent_since.pop(context.attempt.id, None)
        # A runner that is killed with its container looks like one that is cut off, until the shim
        # says which.
        except RunnerUnavailable:
            self._note_silence(context, connection)
            raise
        except RunnerError as error:
            # What it refuses once it may refuse for ever, and its jobs would wait as long.
            if error.status == NO_BATCHES:
                self._give_up(context)
            else:
                self._note_silence(context, connection)
            raise RetryLater(str(error)) from error
        # The runner keeps what was not acknowledged, so nothing is lost by asking again.
        except (StoreUnavailable, LeaseLost) as error:
            raise RetryLater(str(error)) from error
        finally:
            await batch.close()

    def _note_silence(self, context: AttemptContext, connection: NodeConnection) -> None:
        """Give up when the runner says nothing useful for too long although the shim answers."""
        attempt_id, now = context.attempt.id, self._clock.now()
        beside, since = self._silent_since.get(attempt_id, (connection, now))
        if beside is not connection:
            since = now
        self._silent_since[attempt_id] = (connection, since)
        if now - since >= context.state.run.policy.limits.waiting_runner:
            self._give_up(context)

    def _give_up(self, context: AttemptContext) -> None:
        attempt_id = context.attempt.id
        self._silent_since.pop(attempt_id, None)
        self._pipeline.post(
            reports.RunnerSilent(run_id=context.state.run.id, attempt_id=attempt_id)
        )


class _Exchange:
    """What this controller has of a batch while it is connected."""

    def __init__(
        self,
        pipeline: RunPipeline,
        clock: Clock,
        logs: LogStore,
        outputs: CarriedOutputs,
        secrets: SecretSource,
        context: AttemptContext,
    ) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._logs = logs
        self._outputs = outputs
        self._secrets = secrets
        self._run_id = context.state.run.id
        self._carrier_id = context.attempt.id
        self._writers: dict[str, LogWriter] = {}
        self._storing: dict[str, Acknowledging] = {}
        self._links: dict[str, Links] = {}
        self._ends: dict[str, int] = {}
        """The ends of the logs that are whole here."""
        self._damaged: set[str] = set()
        """The attempts of whose logs nothing more can be read."""
        self._there: dict[str, CarriedJob] = {}
        """What the runner had when it last answered."""
        self._answered = False
        self._refusals = 0

    async def once(self, runner: RunnerApi) -> bool:
        """Exchange once; return whether there is more to do. Raises RunnerUnavailable, RunnerError,
        OSError."""
        state = self._pipeline.known.get(self._run_id)
        carrier = None if state is None else to_node.find(state, self._carrier_id)
        if state is None or carrier is None or not carrier.attempt.carries_until:
            return False
        wanted = _riders(state, self._carrier_id)
        request = self._request(carrier, wanted)
        answer = await runner.batch(request)
        self._there = {one.attempt_id: one for one in answer.jobs}
        changes = await _all_or_none(
            self._take(wanted[id], one) for id, one in self._there.items() if id in wanted
        )
        posted = any(changes) | self._note_lost(wanted) | self._note_signalled(request)
        self._answered = True
        if answer.dirty is not None and not carrying.is_closed(carrier.attempt, self._clock.now()):
            posted = True
            self._pipeline.post(
                reports.NotReusable(run_id=self._run_id, attempt_id=self._carrier_id)
            )
        if posted:
            # What follows from it is decided before the runner is asked again.
            await self._pipeline.settled()
            await self._pause_if_refused(state)
        return True

    async def _pause_if_refused(self, before: RunState) -> None:
        """Wait, longer each time, while the store refuses the run: the runner has the same to say
        until they are stored, and answers at once."""
        if self._pipeline.known.get(self._run_id) is not before:
            self._refusals = 0
            return
        await asyncio.sleep(min(MAX_PAUSE, FIRST_PAUSE * 2**self._refusals))
        self._refusals = min(10, self._refusals + 1)

    async def close(self) -> None:
        for attempt_id, writer in self._writers.items():
            if (storing := self._storing.pop(attempt_id, None)) is not None:
                await storing.end()
            await writer.close()
        await self._outputs.close()

    # -- what the runner is told --------------------------------------------------------------

    def _request(self, carrier: AttemptContext, wanted: dict[str, AttemptContext]) -> BatchRequest:
        closed = carrying.is_closed(carrier.attempt, self._clock.now())
        fresh = (one for id, one in wanted.items() if id not in self._there)
        unbegun = (one for one in fresh if one.attempt.running_at is None)
        jobs = tuple(_within(MAX_SENT, self._requests(unbegun)))
        stop = (*self._stops(wanted, closed=closed), *self._strays(wanted))
        signals = tuple(self._signals(wanted))
        stored = tuple(
            id
            for id, one in self._there.items()
            if id not in wanted and (one.returned or one.exit is not None)
        )
        self._ends = {id: end for id, end in self._ends.items() if id in self._there}
        self._damaged &= self._there.keys()
        offsets = self._ends | {id: writer.end for id, writer in self._writers.items()}
        # A runner answers at once while it has more of a log than this says.
        offsets |= dict.fromkeys(self._damaged, PAST_ALL)
        for id in stored:
            self._outputs.forget(id)
        return BatchRequest(
            jobs=jobs,
            stop=stop,
            signals=signals,
            stored=stored,
            offsets=offsets,
            outputs=self._outputs.offsets(),
            outputs_limit=self._outputs.limit,
            wait=WAIT,
        )

    def _requests(self, fresh: Iterable[AttemptContext]) -> Iterable[SubmitRequest]:
        for one in fresh:
            try:
                request = to_node.submit_request(one.with_secrets(self._secrets))
                # Its carrier's job has brought the code.
                yield msgspec.structs.replace(request, repo_credentials={})
            except SecretMissing as error:
                self._pipeline.post(self._carried(one, returned=True))
                self._pipeline.post(
                    reports.TaskRefused(
                        run_id=self._run_id,
                        attempt_id=one.attempt.id,
                        reason=Reason.SECRET_MISSING,
                        message=str(error),
                    )
                )

    def _stops(self, wanted: dict[str, AttemptContext], *, closed: bool) -> Iterable[CarriedStop]:
        now = self._clock.now()
        for id, one in wanted.items():
            attempt = one.attempt
            if attempt.reason is not None:
                grace = max(0.0, (attempt.remove_at or now) - now)
                spec = one.job.spec
                delay = end_signal.stop_delay(one.state.run, attempt, spec.signal, now)
                yield CarriedStop(attempt_id=id, signal=spec.stop_signal, grace=grace, delay=delay)
            elif closed and attempt.status is AttemptStatus.SUBMITTED and self._may_wait(id):
                yield CarriedStop(attempt_id=id, unbegun=True)

    def _signals(self, wanted: dict[str, AttemptContext]) -> Iterable[CarriedSignal]:
        now = self._clock.now()
        for id, context in wanted.items():
            attempt, signal = context.attempt, context.job.spec.signal
            for one in attempt.signalled:
                if one.sent:
                    continue
                left = end_signal.ends_in(context.state.run, attempt, one, signal, now)
                request = SignalRequest(id=one.id, cause=one.cause.value, ends_in=left)
                yield CarriedSignal(attempt_id=id, request=request)

    def _may_wait(self, attempt_id: str) -> bool:
        there = self._there.get(attempt_id)
        return there is None or there.began_at is None

    def _strays(self, wanted: dict[str, AttemptContext]) -> Iterable[CarriedStop]:
        """What runs there although no commit wants it, for example since a restore."""
        for id, one in self._there.items():
            if id not in wanted and not one.returned and one.exit is None:
                yield CarriedStop(attempt_id=id, grace=0.0)

    # -- what the runner says -----------------------------------------------------------------

    async def _take(self, context: AttemptContext, job: CarriedJob) -> bool:
        """Store what is new of this job and post it; return whether anything was posted."""
        if job.returned:
            self._pipeline.post(self._carried(context, returned=True))
            return True
        if job.log:
            await self._append(context, job.log)
        ended = job.exit is not None and (job.log_complete or job.attempt_id in self._damaged)
        if ended and job.exit is not None:
            if job.exit.container_stopped and context.attempt.reason is None:
                return False  # the runner saw only a signal; the shim's events say why
            outputs = await self._outputs.take(job)
            if outputs is Missing.INCOMPLETE:
                return False
            await self._complete(job)
            if isinstance(outputs, StoredOutputs):
                self._pipeline.post(
                    reports.OutputsCollected(
                        run_id=self._run_id, attempt_id=job.attempt_id, outputs=collected(outputs)
                    )
                )
            lost = outputs is Missing.LOST
            self._pipeline.post(
                self._carried(context, job.started_at, stored=True, outputs_lost=lost)
            )
            self._pipeline.post(from_node.runner_exited(self._run_id, job.attempt_id, job.exit))
            return True
        if job.started_at is not None and context.attempt.running_at is None:
            self._pipeline.post(self._carried(context, job.started_at))
            return True
        return False

    async def _append(self, context: AttemptContext, data: bytes) -> None:
        attempt_id = context.attempt.id
        # After a damaged frame the writer reads no other, and the rest would come for ever.
        if attempt_id in self._ends or attempt_id in self._damaged:
            return
        writer = self._writers.get(attempt_id)
        if writer is None:
            writer = self._writers[attempt_id] = await self._logs.writer(attempt_id)
            self._links[attempt_id] = Links(self._pipeline, context)
            self._storing[attempt_id] = Acknowledging(_KeepsAll(), writer)
        try:
            self._links[attempt_id].look(await writer.append(data))
            self._storing[attempt_id].came()
        # The job writes its log's folder as well: a damaged one must not hold up those that it
        # shares the container with.
        except BadFrame as error:
            log.warning("the log of attempt %s is damaged: %s", attempt_id, error)
            self._damaged.add(attempt_id)

    async def _complete(self, job: CarriedJob) -> None:
        attempt_id = job.attempt_id
        if attempt_id in self._ends:
            return
        writer = self._writers.pop(attempt_id, None)
        self._links.pop(attempt_id, None)
        if (storing := self._storing.pop(attempt_id, None)) is not None:
            await storing.end()
        end = 0
        if writer is not None:
            try:
                end = await writer.sync()
            finally:
                await writer.close()
        await self._logs.complete(attempt_id)
        self._ends[attempt_id] = end

    def _note_signalled(self, request: BatchRequest) -> bool:
        sent = [one for one in request.signals if one.attempt_id in self._there]
        for one in sent:
            self._pipeline.post(
                reports.JobSignalled(
                    run_id=self._run_id, attempt_id=one.attempt_id, ids=(one.request.id,)
                )
            )
        return bool(sent)

    def _note_lost(self, wanted: dict[str, AttemptContext]) -> bool:
        """Post the end of what runs by our records and is unknown to its runner; as after a
        restore, when the runner was told that its end is stored."""
        lost = [
            one
            for id, one in wanted.items()
            if one.attempt.running_at is not None and id not in self._there
        ]
        for one in lost:
            self._pipeline.post(self._carried(one, one.attempt.running_at, stored=True))
            self._pipeline.post(
                reports.RunnerExited(
                    run_id=self._run_id,
                    attempt_id=one.attempt.id,
                    reason=Reason.EXECUTOR_ERROR,
                    message="its runner does not know it any more",
                )
            )
        return bool(lost)

    def _carried(
        self,
        context: AttemptContext,
        started_at: float | None = None,
        *,
        returned: bool = False,
        stored: bool = False,
        outputs_lost: bool = False,
    ) -> reports.Carried:
        return reports.Carried(
            run_id=self._run_id,
            attempt_id=context.attempt.id,
            carrier_id=self._carrier_id,
            started_at=started_at,
            returned=returned,
            stored=stored,
            outputs_lost=outputs_lost,
        )


class _KeepsAll:
    """A runner keeps the whole log of a carried job until the job's end is recorded."""

    async def ack(self, offset: int) -> int:
        return offset


def _within(most: int, requests: Iterable[SubmitRequest]) -> Iterable[SubmitRequest]:
    """Yield the first one, and others while all together have at most so many bytes."""
    size = 0
    for request in requests:
        more = len(msgspec.json.encode(request))
        if size and size + more > most:
            return
        size += more
        yield request


async def _all_or_none(works: Iterable[Coroutine[None, None, bool]]) -> list[bool]:
    """Return what they return. If one raises, the others are cancelled, and none goes on after the
    error: a log opened after `close` would stay open, and a runner is not to wait for all the time
    limits of a bucket that is away."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        # `gather` leaves the others running when one fails.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _riders(state: RunState, carrier_id: str) -> dict[str, AttemptContext]:
    """Return the live attempts of this carrier's batch, in their order."""
    return {
        one.attempt.id: one
        for one in to_node.live_attempts(state)
        if one.attempt.carrier == carrier_id
    }


def performers(
    pipeline: RunPipeline,
    clock: Clock,
    logs: LogStore,
    outputs: OutputStore,
    secrets: SecretSource,
) -> dict[EffectKind, Performer]:
    """Return the performers of carriers."""
    return {EffectKind.RUN_BATCH: BatchRunner(pipeline, clock, logs, outputs, secrets)}
