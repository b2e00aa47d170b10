"""The jobs that run one after another in the container of a job that has ended (rule 11.14).

Each has a folder of its own below the task's, with its log and its packed outputs; the controller
fetches these and the end with `exchange` and says what it has stored. What was not fetched ends
with the container: the controller then has no record of it, and runs the job again elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from common.files.task_folder import LOGS_FOLDER_NAME, OUTPUT_FOLDER_NAME
from fairlead.wire.errors import Refused
from fairlead.wire.frames import BadFrame
from fairlead.wire.job import SubmitRequest
from fairlead.wire.runner import (
    BatchAnswer,
    BatchRequest,
    CarriedJob,
    CarriedSignal,
    CarriedStop,
    ExitReason,
    ExitRecord,
)
from runner.code.store import CodeStore
from runner.errors import CannotStart
from runner.job import surroundings
from runner.job.batch_job import BatchJob
from runner.job.end_signal import EndSignals
from runner.job.execution import Execution, JobLimits
from runner.job.leaves import Leaves
from runner.job.outcome import Scope, Verdict, of_log_quota
from runner.job.setup import PARAMETERS_NAME, Preparation
from runner.logs.reading import LogReader, next_page
from runner.logs.segments import SegmentLog
from runner.processes.launch import Launch
from runner.processes.leaf import Leaf
from runner.processes.spawn import Children, Ending
from runner.status import Bell
from runner.validation import check_submission, signal_number

FOLDER = "jobs"
PATIENCE = 5.0
"""Seconds after which a job that runs gives back the others: they may find room elsewhere."""
IDLE = 60.0
"""Seconds for which a runner without a job waits to hear from its controller."""
GATHER = 0.02
"""Seconds that an answer waits for more news while jobs end one after another."""
MAX_LOG = 256 << 10
"""Bytes of logs in one answer."""
MAX_OUTPUTS = 4 << 20
"""Bytes of outputs in one answer."""
MAX_WAIT = 30.0
NOT_STORED = "entries of the output folder are not stored: the controller is too old for that"
_log = logging.getLogger(__name__)


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for each job. `log_quota`, `segment_size`: bytes."""

    backstop: float
    log_quota: int
    segment_size: int


def execution_of(
    request: SubmitRequest,
    log: SegmentLog,
    scope: Scope,
    children: Children,
    backstop: float,
    leaf: Leaf | None = None,
) -> Execution:
    """Return the execution of this job, which has not begun."""
    job = request.job
    limits = JobLimits(
        max_duration=job.max_duration,
        backstop=backstop,
        stop_duration=job.stop_duration,
        stop_signal=signal_number(job.stop_signal, "job.stop_signal"),
        restart_exit_code=job.restart_exit_code,
    )
    secrets = (*request.secrets.values(), *request.masked)
    return Execution(log, scope, children, limits, secrets, leaf)


class Batch:
    """The jobs that this container carries. Nothing runs before the first job has ended cleanly."""

    def __init__(
        self,
        task: Path,
        scope: Scope,
        children: Children,
        bounds: Bounds,
        now: Callable[[], float],
        leaves: Leaves,
    ) -> None:
        self._task = task
        self._scope = scope
        self._children = children
        self._bounds = bounds
        self._now = now
        self._leaves = leaves
        self._jobs: dict[str, BatchJob] = {}
        self._waiting: deque[BatchJob] = deque()
        self._running: BatchJob | None = None
        self._outputs_limit: int | None = None
        self._work: asyncio.Task[None] | None = None
        self._bell = Bell()
        self._dirty: str | None = "its first job has not ended cleanly"
        self._closing = False
        self._heard_at = 0.0
        self._alone = os.getpid() == 1

    @property
    def is_open(self) -> bool:
        """Whether another job may run."""
        return self._dirty is None and not self._closing

    async def look(self, launch: Launch, preparation: Preparation) -> surroundings.Surroundings:
        """Return what a job finds, or has left."""
        look = partial(surroundings.look, launch.working_dir, preparation.code, alone=self._alone)
        return await asyncio.to_thread(look)

    def open(self) -> None:
        """Let jobs run: the first one has ended and left nothing behind."""
        self._dirty = None
        self._leaves.keep_ready()
        self._heard_at = asyncio.get_running_loop().time()

    def close(self, grace: float | None) -> None:
        """Give back what has not begun, and stop what runs: the container is being stopped."""
        self._closing = True
        self._give_back()
        if self._running is not None:
            self._stop(self._running, CarriedStop(attempt_id=self._running.id, grace=grace or 0.0))
        self._bell.ring()

    async def until_over(self, linger: float) -> None:
        """Wait until nothing runs, and the controller has fetched all or was silent for too
        long."""
        loop = asyncio.get_running_loop()
        while self._work is not None or not self._closing:
            if self._dirty is not None and self._work is None and not self._unfetched():
                break
            left = self._heard_at + IDLE - loop.time()
            if self._work is None and left <= 0:
                break
            await self._rung(max(left, 1.0))
        ends_at = loop.time() + linger
        while self._unfetched() and loop.time() < ends_at:
            await self._rung(ends_at - loop.time())

    async def end(self) -> None:
        """Stop what runs at once; for a runner that is given up."""
        self.close(0.0)
        if self._work is not None:
            await self._work
        for job in self._jobs.values():
            if job.log is not None:
                job.log.close()

    def _unfetched(self) -> bool:
        return bool(self._jobs)

    async def _rung(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._bell.wait()

    # -- the controller's side ----------------------------------------------------------------

    async def exchange(self, request: BatchRequest) -> BatchAnswer:
        """Take jobs and orders, and return what there is. Raises Refused for an invalid signal."""
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        self._outputs_limit = request.outputs_limit
        for order in request.stop:
            if order.signal is not None:
                signal_number(order.signal, "stop.signal")
        await self._forget(request.stored)
        for job in request.jobs:
            self._take(job)
        for signal in request.signals:
            await self._signal(signal)
        for order in request.stop:
            if (known := self._jobs.get(order.attempt_id)) is not None:
                self._stop(known, order)
        self._go_on()
        ends_at = loop.time() + min(max(request.wait, 0.0), MAX_WAIT)
        while not self._has_more(request) and loop.time() < ends_at:
            await self._rung(ends_at - loop.time())
        if request.wait and self._work is not None:
            await asyncio.sleep(GATHER)
        pieces = await self._pieces(request)
        self._heard_at = loop.time()
        return self._answer(request.offsets, pieces)

    def _has_more(self, request: BatchRequest) -> bool:
        return any(job.has_more(request) for job in self._jobs.values())

    async def _pieces(self, request: BatchRequest) -> dict[str, bytes]:
        """Return the next bytes of the packed outputs that the controller does not have."""
        room, pieces = MAX_OUTPUTS, {}
        for job in tuple(self._jobs.values()):
            if not (wanted := min(room, job.outputs_left(request))):
                continue
            offset = request.outputs.get(job.id, 0)
            pieces[job.id] = await asyncio.to_thread(self._piece, job, offset, wanted)
            room -= len(pieces[job.id])
        return pieces

    def _piece(self, job: BatchJob, offset: int, most: int) -> bytes:
        from runner.job import packing

        piece = b""
        with suppress(OSError):
            piece = packing.piece_of(self._folder_of(job) / packing.ARCHIVE_NAME, offset, most)
        # A job that is root can remove what another one left.
        job.outputs_are_lost = not piece
        return piece

    def _take(self, request: SubmitRequest) -> None:
        if request.job.attempt_id in self._jobs:
            return
        job = self._jobs[request.job.attempt_id] = BatchJob(request)
        if not self.is_open:
            job.returned = True
            return
        try:
            check_submission(request)
        except Refused as error:
            job.began_at = self._now()
            self._conclude(job, Verdict(ExitReason.EXECUTOR_ERROR, error.message), None)
            return
        self._waiting.append(job)

    def _stop(self, job: BatchJob, order: CarriedStop) -> None:
        if job.is_over:
            return
        if job in self._waiting:
            self._waiting.remove(job)
            job.returned = True
            self._bell.ring()
            return
        if order.unbegun:
            return
        grace = max(0.0, order.grace)
        job.stopped = order
        job.keeping.stop(grace)
        if job.execution is not None:
            number = None if order.signal is None else signal_number(order.signal, "stop.signal")
            job.execution.stop(number, grace, delay=order.delay)

    async def _signal(self, order: CarriedSignal) -> None:
        job = self._jobs.get(order.attempt_id)
        if job is not None and job.signals is not None:
            await job.signals.send(order.request)

    async def _forget(self, stored: tuple[str, ...]) -> None:
        for attempt_id in stored:
            job = self._jobs.get(attempt_id)
            if job is None or not job.is_over:
                continue
            del self._jobs[attempt_id]
            if job.log is not None:
                job.log.close()
            await asyncio.to_thread(_remove, self._folder_of(job))
        self._bell.ring()

    def _answer(self, offsets: dict[str, int], pieces: dict[str, bytes]) -> BatchAnswer:
        room = MAX_LOG
        carried = []
        for job in self._jobs.values():
            frames, complete = self._page(job, offsets.get(job.id, 0), room)
            room -= len(frames)
            carried.append(
                CarriedJob(
                    attempt_id=job.id,
                    began_at=job.began_at,
                    started_at=job.started_at,
                    returned=job.returned,
                    exit=job.exit,
                    log=frames,
                    log_complete=complete,
                    outputs=job.outputs,
                    outputs_piece=pieces.get(job.id, b""),
                    outputs_lost=job.outputs_are_lost,
                )
            )
            job.reported = (job.started_at is not None, job.is_over)
        return BatchAnswer(jobs=tuple(carried), dirty=self._dirty)

    def _page(self, job: BatchJob, offset: int, room: int) -> tuple[bytes, bool]:
        """Return frames of the log, and whether they reach its end. A damaged log ends where the
        damage begins: the others go on."""
        if job.log is None:
            return b"", job.is_over
        if room <= 0 or offset > job.log.end:
            return b"", False
        if job.log_is_damaged:
            return b"", job.is_over
        reader = LogReader(job.log, offset)
        try:
            page = next_page(reader, room)
        except (BadFrame, OSError) as error:
            _log.error("the log of job %s is damaged: %s", job.id, error)
            job.log_is_damaged = True
            return b"", job.is_over
        finally:
            reader.close()
        return page.frames, job.is_over and page.complete

    # -- running ------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._work is None and self._waiting and self.is_open:
            self._work = asyncio.create_task(self._run_all())

    async def _run_all(self) -> None:
        try:
            while self._waiting and self.is_open:
                job = self._running = self._waiting.popleft()
                timer = asyncio.get_running_loop().call_later(PATIENCE, self._give_back)
                try:
                    await self._run(job)
                finally:
                    timer.cancel()
                    self._running = None
                self._bell.ring()
        except Exception:
            _log.exception("the batch failed")
            self._dirty = "its runner failed"
        finally:
            self._work = None
            if not self.is_open:
                self._give_back()
            self._bell.ring()
            self._go_on()

    def _give_back(self) -> None:
        while self._waiting:
            self._waiting.popleft().returned = True
        self._bell.ring()

    async def _run(self, job: BatchJob) -> None:
        folder = self._folder_of(job)
        job.began_at = self._now()
        try:
            await asyncio.to_thread(self._make, folder)
            job.log = SegmentLog(
                folder / LOGS_FOLDER_NAME,
                segment_size=self._bounds.segment_size,
                bell=_Chained(self._bell),
            )
        except OSError as error:
            text = f"the job's folder cannot be made: {error.strerror}"
            self._conclude(job, Verdict(ExitReason.EXECUTOR_ERROR, text), None)
            self._dirty = text
            return
        self._limit(job, job.log)
        job.signals = self._signals_of(job)
        code = CodeStore(folder)
        preparation = Preparation(folder, code, self._children, self._task, brings=False)
        try:
            ending, verdict = await self._execute(job, preparation)
        except CannotStart as error:
            self._dirty = "a job could not start"
            ending, verdict = None, Verdict(ExitReason.EXECUTOR_ERROR, str(error))
        finally:
            if job.signals is not None:
                signals, job.signals = job.signals, None
                await signals.close()
            await asyncio.to_thread(preparation.clean)
        await self._pack(job)
        self._conclude(job, verdict, ending)

    def _signals_of(self, job: BatchJob) -> EndSignals | None:
        wanted = job.request.job.signal
        if wanted is None:
            return None

        def session() -> int | None:
            return None if job.execution is None else job.execution.session

        return EndSignals(self._folder_of(job), wanted.name, session, job.say, self._now)

    async def _pack(self, job: BatchJob) -> None:
        """Pack the output folder, which no other job shall find."""
        from runner.job import packing  # 5 ms that only a container with several jobs pays for

        folder = self._folder_of(job) / OUTPUT_FOLDER_NAME
        limit = self._outputs_limit
        if limit is None:
            if left := await asyncio.to_thread(_left_in, folder):
                job.say(f"outputs: {left} {NOT_STORED}")
            return
        archive = folder.with_name(packing.ARCHIVE_NAME)
        try:
            job.outputs = await asyncio.to_thread(packing.pack, folder, archive, limit)
        except FileNotFoundError:
            return
        except OSError as error:
            job.outputs_are_lost = True
            job.say(f"outputs: they are lost, for they cannot be packed: {error.strerror}")

    def _limit(self, job: BatchJob, log: SegmentLog) -> None:
        quota = job.request.job.log_quota or self._bounds.log_quota

        def end() -> None:
            if job.execution is not None:
                job.execution.enforce(of_log_quota(quota))

        log.limit(quota, end if job.request.job.fail_on_log_quota else None)

    async def _execute(self, job: BatchJob, preparation: Preparation) -> tuple[Ending, Verdict]:
        """Run the job in a leaf of its own, where there is one. Raises CannotStart."""
        leaf = await self._leaves.take()
        try:
            return await self._execute_in(leaf, job, preparation)
        finally:
            if leaf is not None:
                self._leaves.ended(leaf)

    async def _execute_in(
        self, leaf: Leaf | None, job: BatchJob, preparation: Preparation
    ) -> tuple[Ending, Verdict]:
        assert job.log is not None
        launch = await preparation.launch(job.request)
        before = await self.look(launch, preparation)
        if job.stopped is not None:
            raise CannotStart("stopped before it started")
        job.execution = execution_of(
            job.request, job.log, self._scope, self._children, self._bounds.backstop, leaf
        )

        def started(_: int) -> None:
            job.started_at = self._now()
            self._bell.ring()

        async def main_ended(_: Ending, __: Verdict) -> None:
            """Nothing is written before the end: only an answer makes a record here."""

        ending, verdict = await job.execution.run(launch, started, main_ended)
        if job.request.job.leaves_something:
            copying = preparation.keep_outputs(job.request, ending, job.began_at or 0.0)
            for line in await job.keeping.lines(copying):
                job.say(line)
        self._dirty = job.execution.dirt or self._dirty
        if self._dirty is None:
            after = await self.look(launch, preparation)
            self._dirty = surroundings.difference(before, after)
        return ending, verdict

    def _conclude(self, job: BatchJob, verdict: Verdict, ending: Ending | None) -> None:
        if job.log is not None:
            job.log.finish()
        job.exit = ExitRecord(
            reason=verdict.reason,
            message=verdict.message,
            exit_code=None if ending is None else ending.code,
            signal=None if ending is None else ending.signal,
            started_at=job.started_at,
            finished_at=self._now(),
            log_end=0 if job.log is None else job.log.end,
            container_stopped=self._closing,
        )

    def _folder_of(self, job: BatchJob) -> Path:
        return self._task / FOLDER / job.id

    def _make(self, folder: Path) -> None:
        above = folder.parent
        above.mkdir(exist_ok=True, mode=0o2771)
        # A job's user may pass through to its own outputs; the umask has cut the mode.
        above.chmod(0o2771)
        # One of an earlier life of this runner is no log of this job.
        _remove(folder)
        folder.mkdir(mode=0o2770)


class _Chained(Bell):
    """The bell of a job's log: it wakes who waits for any news of the batch."""

    def __init__(self, outer: Bell) -> None:
        super().__init__()
        self._outer = outer

    def ring(self) -> None:
        super().ring()
        self._outer.ring()


def _left_in(folder: Path) -> int:
    """Return how many entries there are besides the job's parameters."""
    try:
        return sum(name != PARAMETERS_NAME for name in os.listdir(folder))
    except OSError:
        return 0


def _remove(folder: Path) -> None:
    import shutil  # no job's start waits for it

    shutil.rmtree(folder, ignore_errors=True)
