"""The runner's life: wait for a job (and its code), run it, serve its output, end.

Every call may be repeated. The last output is on disk before the exit record, and the record before
the end is reported. A runner that finds a record in its folder has already run its job: it serves
that record and runs nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path

import msgspec

from common.files.task_folder import LOGS_FOLDER_NAME
from fairlead.wire.errors import Refused
from fairlead.wire.frames import Stream, notice_line
from fairlead.wire.job import SubmitRequest
from fairlead.wire.runner import (
    AgainAnswer,
    AgainRequest,
    ExitReason,
    ExitRecord,
    RunnerHealth,
    RunnerState,
    SignalRequest,
    StartEnd,
    StatusEvent,
    StopRequest,
)
from runner import __version__
from runner.code.store import CodeStore
from runner.errors import CannotStart
from runner.job import again, execution, surroundings
from runner.job.batch import Batch, Bounds, execution_of
from runner.job.end_signal import EndSignals
from runner.job.execution import Execution, MainEnded
from runner.job.keeping import ExitRecords, Keeping, SegmentSyncs
from runner.job.leaves import SuppliedLeaves
from runner.job.outcome import STOPPED_BEFORE_START, Scope, SparingScope, Verdict, of_log_quota
from runner.job.setup import Preparation
from runner.logs.followers import LogReaders
from runner.logs.segments import SegmentLog
from runner.options import Settings
from runner.processes.launch import Launch
from runner.processes.leaf import Leaf
from runner.processes.spawn import Children, Ending
from runner.status import Bell, StatusLog
from runner.validation import check_submission, signal_number, wanted_blobs

HURRIED_LINGER = 2.0
"""Seconds for which an ended job's log is served while the container is being stopped, and only to
followers that are connected then."""
_log = logging.getLogger(__name__)


class Runner:
    """One runner. Make it inside a running loop. Raises OSError when `task` cannot be used."""

    def __init__(
        self,
        task: Path,
        *,
        scope: Scope,
        children: Children,
        settings: Settings | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._task = task
        self._scope = scope
        self._children = children
        self._settings = settings or Settings()
        self._now = now
        self._request: SubmitRequest | None = None
        self._execution: Execution | None = None
        self._job: asyncio.Task[None] | None = None
        self._preparing: asyncio.Task[Launch] | None = None
        self._keeping = Keeping()
        self._again: again.Again | None = None
        self._stopped = False
        self._interrupted = False
        self._suspended = False
        self._signals: EndSignals | None = None
        self._hurried = False
        self._noticed: set[str] = set()
        self._log_ends = False
        self._changed = Bell()
        self.code = CodeStore(task)
        syncs = SegmentSyncs()
        self.log = SegmentLog(
            task / LOGS_FOLDER_NAME,
            segment_size=self._settings.segment_size,
            quota=self._settings.log_quota,
            retire=syncs.retire,
        )
        self.readers = LogReaders(self.log, self._changed)
        self._records = ExitRecords(task, self.log, syncs)
        self._preparation = Preparation(task, self.code, children)
        self._sparing = SparingScope(children)
        self.leaves = SuppliedLeaves()
        self.batch = Batch(task, scope, children, self._bounds(), now, self.leaves)
        self.status = StatusLog(now)
        self._resume_ended()

    def _bounds(self) -> Bounds:
        given = self._settings
        return Bounds(
            backstop=given.backstop, log_quota=given.log_quota, segment_size=given.segment_size
        )

    @property
    def state(self) -> RunnerState:
        return self.status.latest.state

    def health(self) -> RunnerHealth:
        return RunnerHealth(
            version=__version__,
            api_versions=("v1",),
            state=self.state,
            log_start=self.log.start,
            log_end=self.log.end,
            log_acked=self.readers.acked,
        )

    def submit(self, request: SubmitRequest) -> StatusEvent:
        """Accept the job. Raises Refused."""
        check_submission(request)
        if self._request is not None:
            if not request.is_the_same_job(self._request):
                raise Refused(409, "conflict", "another job was already submitted to this runner")
            return self.status.latest
        if self.state is not RunnerState.WAITING_FOR_JOB:
            raise Refused(409, "ended", "this runner's job has ended")
        self._request = request
        self._signals = self._signals_of(request)
        if request.job.keeps_for is not None:
            self._again = again.Again(self._task, request, request.job.keeps_for)
            self._preparation.keeps = True
        if request.job.reuse_container:
            self.leaves.want_one()
        self._limit_log(request)
        self.code.expect(wanted_blobs(request.job))
        waits = bool(self.code.missing)
        self.status.add(RunnerState.WAITING_FOR_CODE if waits else RunnerState.READY)
        return self.status.latest

    def _limit_log(self, request: SubmitRequest) -> None:
        job = request.job
        quota = job.log_quota or self._settings.log_quota

        def end() -> None:
            if self._again is not None:
                # It is told once, also while no start runs.
                self._again.close()
            if self._execution is not None:
                self._execution.enforce(of_log_quota(quota))

        self.log.limit(quota, end if job.fail_on_log_quota else None)

    async def receive_code(self, digest: str, pieces: AsyncIterable[bytes]) -> StatusEvent:
        """Receive a blob; the job is ready when all of its blobs have come. Raises Refused,
        OSError."""
        if self._again is not None and self._again.wants(digest):
            await self._again.receive(digest, pieces)
        elif self.state is RunnerState.WAITING_FOR_CODE or self._request is None:
            await self.code.receive(digest, pieces)
        if self.state is RunnerState.WAITING_FOR_CODE and not self.code.missing:
            self.status.add(RunnerState.READY)
        return self.status.latest

    def run(self) -> StatusEvent:
        """Run the job. Raises Refused while it cannot be run."""
        if self.state is RunnerState.WAITING_FOR_JOB:
            raise Refused(409, "not_ready", "submit a job first")
        if self.state is RunnerState.WAITING_FOR_CODE:
            raise Refused(409, "not_ready", "the job's code has not arrived yet")
        if self.state is RunnerState.READY and self._job is None and self._request is not None:
            self.status.add(RunnerState.PREPARING)
            self._begin(self._execute(self._request))
        return self.status.latest

    def start(self) -> StatusEvent:
        """Run the job; if its code has not arrived, wait for the code and for `run`."""
        waits = self.state is RunnerState.WAITING_FOR_CODE
        return self.status.latest if waits else self.run()

    def stop(self, request: StopRequest) -> StatusEvent:
        """Stop the job; one that was not started never will be. Raises Refused for an unknown
        signal."""
        number = signal_number(request.signal, "signal") if request.signal else None
        if request.grace < 0:
            raise Refused(400, "invalid", "grace must be 0 or more seconds", "grace")
        if request.delay < 0:
            raise Refused(400, "invalid", "delay must be 0 or more seconds", "delay")
        self._stop(number, request.grace, interrupt=request.interrupt, delay=request.delay)
        return self.status.latest

    async def signal(self, request: SignalRequest) -> StatusEvent:
        """Send the job its signal, because an end comes; after the end nothing is sent. Raises
        Refused for a job without one."""
        if self._signals is None and self.state is not RunnerState.SERVING_LOGS:
            raise Refused(409, "no_signal", "no job with a `signal` was submitted")
        if request.ends_in < 0:
            raise Refused(400, "invalid", "ends_in must be 0 or more seconds", "ends_in")
        if self._signals is not None and not self._log_ends:
            await self._signals.send(request)
        return self.status.latest

    def _signals_of(self, request: SubmitRequest) -> EndSignals | None:
        wanted = request.job.signal
        if wanted is None:
            return None

        def session() -> int | None:
            return None if self._execution is None else self._execution.session

        return EndSignals(self._task, wanted.name, session, self.say, self._now)

    async def start_again(self, request: AgainRequest) -> AgainAnswer:
        """Start the job again with what changed, as soon as all of it is here. Raises Refused."""
        check_submission(request.submission)
        if self._again is None or self._job is None:
            raise Refused(409, "not_kept", "this job does not start again in its container")
        answer = self._again.offer(request, self._preparation.why_not_again)
        if answer.missing:
            return answer
        if self._again.is_due and self._execution is not None and self._request is not None:
            self._execution.stop(None, min(again.GRACE, self._request.job.stop_duration))
        begun = await self._again.until_begun(request.number)
        return AgainAnswer(begun=begun)

    def suspend(self, suspended: bool) -> StatusEvent:
        """Suspend or resume: `max_duration` stands still while the run is suspended."""
        self._suspended = suspended
        if self._execution is not None:
            self._execution.hold_limit(suspended)
        return self.status.latest

    def shut_down(self) -> None:
        """End the job because the container is being stopped; do not wait for acknowledgements.

        It gets its own signal and the grace that is left for it; without a grace, the stop of the
        container kills it in the end.
        """
        self._hurried = True
        grace = execution.grace_left(self._task, self._now())
        self._stop(None, grace)
        self.batch.close(grace)
        self._changed.ring()

    def notice(self, notice_id: str, text: str) -> StatusEvent:
        """Put a line into the log. Raises Refused after the job's end.

        Only the runner writes there, so every reader finds the same bytes at the same offsets.
        """
        if self._log_ends:
            raise Refused(409, "ended", "the job has ended, and so has its log")
        if notice_id not in self._noticed:
            self._noticed.add(notice_id)
            self.say(text)
        return self.status.latest

    async def until_over(self) -> ExitRecord:
        """Wait until the job has ended and its log was read, or the time for that is over."""
        while self.state is not RunnerState.SERVING_LOGS:
            await self._changed.wait()
        record = self.status.latest.exit
        assert record is not None
        if record.clean:
            await self.batch.until_over(HURRIED_LINGER)
        started = asyncio.get_running_loop().time()
        while not self.readers.have_left(record.log_end, unread=self._hurried):
            linger = HURRIED_LINGER if self._hurried else self._settings.linger
            try:
                async with asyncio.timeout_at(started + linger):
                    await self._changed.wait()
            except TimeoutError:
                if asyncio.get_running_loop().time() >= started + linger:
                    break
        self.status.close()
        return record

    async def close(self) -> None:
        """Stop a running job at once; for a runner that is given up."""
        self._stop(None, 0.0)
        if self._job is not None:
            await self._job
        await self.batch.end()
        self.leaves.close()
        await self._records.synced()
        self.status.close()
        self.log.close()

    def _stop(
        self,
        number: int | None,
        grace: float | None,
        *,
        interrupt: bool = False,
        delay: float = 0.0,
    ) -> None:
        if self.state is RunnerState.SERVING_LOGS:
            return
        self._stopped = True
        self._interrupted |= interrupt
        if self._again is not None:
            self._again.close()
        if grace is not None:
            self._keeping.stop(grace)
        if self._execution is not None:
            self._execution.stop(number, grace, interrupt=interrupt, delay=delay)
        elif self._preparing is not None:
            self._preparing.cancel()
        elif self._job is None:
            self._begin(
                self._conclude_unstarted(Verdict(ExitReason.EXECUTOR_ERROR, STOPPED_BEFORE_START))
            )

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        self._job = asyncio.create_task(self._concluded(work))

    async def _execute(self, request: SubmitRequest) -> None:
        """Run the job, in a leaf of its own if others may run in its container after it."""
        launch = await self._prepared(self._preparation.launch(request))
        before = await self._surroundings(request, launch)
        leaf = await self.leaves.take() if request.job.reuse_container else None
        try:
            await self._execute_in(leaf, request, launch, before)
        finally:
            if leaf is not None:
                self.leaves.ended(leaf)

    async def _execute_in(
        self,
        leaf: Leaf | None,
        request: SubmitRequest,
        launch: Launch,
        before: surroundings.Surroundings | None,
    ) -> None:
        if self._stopped:
            raise CannotStart(STOPPED_BEFORE_START)
        execution = self._execution = self._execution_of(request, leaf)

        def started(pid: int) -> None:
            self.status.add(RunnerState.RUNNING, pid=pid)

        async def is_clean() -> bool:
            if before is None or execution.dirt is not None or self._stopped or self._hurried:
                return False
            after = await self.batch.look(launch, self._preparation)
            return surroundings.difference(before, after) is None

        run = partial(execution.run, launch, started)
        if self._again is not None:
            run = partial(again.run_until_it_stays_ended, self, self._again, launch, started)
        await self._to_the_end(self._now(), run, is_clean)

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    @property
    def is_interrupted(self) -> bool:
        return self._interrupted

    async def execute(
        self, launch: Launch, started: Callable[[int], None], main_ended: MainEnded
    ) -> tuple[Ending, Verdict]:
        assert self._execution is not None
        return await self._execution.run(launch, started, main_ended)

    def waits(self, number: int, ending: Ending, verdict: Verdict) -> None:
        end = StartEnd(
            number=number,
            at=self._now(),
            reason=verdict.reason,
            message=verdict.message,
            exit_code=ending.code,
        )
        self.status.add(RunnerState.RUNNING, start_end=end)

    async def clear(self) -> None:
        session = None if self._execution is None else self._execution.last_session
        self._execution = None
        if session and await asyncio.to_thread(self._sparing.is_left, session):
            raise CannotStart("a process of its last start cannot be killed")
        if self._signals is not None:
            await self._signals.close()

    async def prepare_again(self, start: again.Start) -> Launch:
        self._request, self._signals = start.request, self._signals_of(start.request)
        launch = await self._prepared(self._preparation.launch_again(start.request, start.code))
        if self._stopped:
            raise CannotStart(STOPPED_BEFORE_START)
        self._execution = self._execution_of(start.request)
        return launch

    async def _surroundings(
        self, request: SubmitRequest, launch: Launch
    ) -> surroundings.Surroundings | None:
        """Return what the job finds, if others may run in its container after it."""
        if not request.job.reuse_container:
            return None
        return await self.batch.look(launch, self._preparation)

    async def _concluded(self, work: Coroutine[None, None, None]) -> None:
        """Run `work`; any error becomes the job's record."""
        try:
            await work
        except CannotStart as error:
            await self._conclude_unstarted(Verdict(ExitReason.EXECUTOR_ERROR, str(error)))
        except Exception:
            _log.exception("the runner failed")
            verdict = Verdict(
                ExitReason.EXECUTOR_ERROR, "the runner failed; see its own log (runner.log)"
            )
            await self._conclude_unstarted(verdict)

    def _execution_of(self, request: SubmitRequest, leaf: Leaf | None = None) -> Execution:
        scope = self._scope if self._again is None else self._sparing
        backstop = self._settings.backstop
        found = execution_of(request, self.log, scope, self._children, backstop, leaf)
        found.hold_limit(self._suspended)
        return found

    async def _to_the_end(
        self,
        started_at: float,
        execute: Callable[[MainEnded], Awaitable[tuple[Ending, Verdict]]],
        is_clean: Callable[[], Awaitable[bool]],
    ) -> None:
        def record(ending: Ending, verdict: Verdict) -> ExitRecord:
            return ExitRecord(
                reason=verdict.reason,
                message=verdict.message,
                exit_code=ending.code,
                signal=ending.signal,
                started_at=started_at,
                finished_at=self._now(),
                log_end=self.log.end,
                container_stopped=self._hurried,
            )

        async def main_ended(ending: Ending, verdict: Verdict) -> None:
            await self._records.keep(record(ending, verdict))

        try:
            ending, verdict = await execute(main_ended)
        finally:
            if self._signals is not None:
                await self._signals.close()
        ended = record(ending, verdict)
        await self._keep_outputs(ended, ending)
        clean = await is_clean()
        if clean:
            self.batch.open()
        await self._conclude(msgspec.structs.replace(ended, log_end=self.log.end, clean=clean))

    async def _keep_outputs(self, ended: ExitRecord, ending: Ending) -> None:
        """Copy what the job leaves. The container may be killed meanwhile, so its exit record is
        kept before."""
        request = self._request
        if request is None or not request.job.leaves_something:
            return
        await self._records.keep(ended)
        copying = self._preparation.keep_outputs(request, ending, ended.started_at or 0.0)
        for line in await self._keeping.lines(copying):
            self.say(line)

    def say(self, text: str) -> None:
        lead = b"" if self.log.at_line_start else b"\n"
        self.log.append(Stream.SYSTEM, lead + notice_line(text))

    async def _prepared(self, preparing: Coroutine[None, None, Launch]) -> Launch:
        self._preparing = asyncio.create_task(preparing)
        try:
            return await self._preparing
        except asyncio.CancelledError:
            # A cancel of our own task looks the same, and must go on.
            if self._preparing.cancelled():
                raise CannotStart(STOPPED_BEFORE_START) from None
            raise

    async def _conclude_unstarted(self, verdict: Verdict) -> None:
        await self._conclude(
            ExitRecord(
                reason=verdict.reason,
                message=verdict.message,
                finished_at=self._now(),
                log_end=self.log.end,
                container_stopped=self._hurried,
            )
        )

    async def _conclude(self, record: ExitRecord) -> None:
        # From here on a notice is refused: it would lie after the end that the record names.
        self._log_ends = True
        if self._again is not None:
            self._again.close()
        if self._signals is not None:
            await self._signals.close()
        _log.info("the job has ended: %s, exit code %s", record.reason, record.exit_code)
        await asyncio.to_thread(self._preparation.clean)
        if self._again is not None:
            await asyncio.to_thread(self._again.drop_all)
        record = await self._records.with_log_whole(record)
        await self._records.keep(record)
        self.log.finish()
        self.status.add(RunnerState.SERVING_LOGS, exit=record)
        self._changed.ring()

    def _resume_ended(self) -> None:
        """Read the record of an ended job, once, before anything is served. Blocking."""
        record = self._records.found()
        if record is None:
            return
        self._log_ends = True
        self.log.finish()
        self.status.add(RunnerState.SERVING_LOGS, exit=record)
