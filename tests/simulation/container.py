"""A simulated container: the rules of every double's runner, and what becomes of the job in it.

It stays known after its end, since what it wrote and how it ended is the truth that the
controller's account is compared with.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from random import Random
from typing import Any, cast

from common.streams import PortStream
from controller.clock import Clock
from fairlead.wire.frames import Frame, Stream, encode, notice_line, tail_from
from fairlead.wire.job import SubmitRequest
from fairlead.wire.runner import (
    AgainAnswer,
    AgainRequest,
    BatchAnswer,
    BatchRequest,
    ExitReason,
    ExitRecord,
    JobMetrics,
    RunnerHealth,
    SignalRequest,
    StatusEvent,
)
from runner.client import RunnerError, RunnerUnavailable
from tests.doubles.runner import RunnerRules
from tests.simulation.rides import DIRTY, Rides
from tests.simulation.script import SPARED_EXIT_CODE, Ending, OnStop, Script, Start, script_from
from tests.simulation.starts import GRACE, Starts

LINGER_SECONDS = 10.0
HEARTBEAT_SECONDS = 10.0
KILLED = 137
MAX_ANSWER_SECONDS = 20.0
End = tuple[ExitReason, int]
FRAMES_IN_A_PIECE = 7
FRAMES_IN_A_SEGMENT = 16


class _Unheard:
    """The other end of a connection that is closed at once."""

    def close(self) -> None:
        """Nothing is there to close."""


class Container:
    """`ended` is set when no process is left in it; `exit_code` is then known."""

    def __init__(
        self,
        task_id: str,
        start: Start,
        clock: Clock,
        chance: Random,
        spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
    ) -> None:
        self.task_id = task_id
        self.rules = RunnerRules(clock)
        self.script: Script | None = None
        self.frames: list[Frame] = []
        self.exit_code: int | None = None
        self.listening = asyncio.Event()
        self.ended = asyncio.Event()
        self.stopped_by_engine = False
        self.stops: list[float] = []
        """When the job was asked to stop."""
        self.connections = 0
        """The sessions of users in it."""
        self._terminated = False
        self._kill_at = float("inf")
        self._start = start
        self._clock = clock
        self._chance = chance
        self._followers = 0
        self._changed = asyncio.Event()
        self._signalled = asyncio.Event()
        self._spawn = spawn
        self._job: asyncio.Task[None] | None = None
        self._killing: asyncio.Task[None] | None = None
        self.rides = Rides(clock, spawn, self.kill)
        self.starts = Starts()
        self._start_limit: asyncio.Timeout | None = None
        self._life = spawn(self._live())

    @property
    def record(self) -> ExitRecord | None:
        return self.rules.record

    @property
    def listens(self) -> bool:
        return bool(self.rules.states) and not self.ended.is_set()

    @property
    def output(self) -> bytes:
        return b"".join(frame.payload for frame in self.frames)

    @property
    def log_end(self) -> int:
        return self.frames[-1].end if self.frames else 0

    def log_from(self, offset: int) -> bytes:
        """The part of the files that the shim serves: all from the segment that holds `offset`."""
        at = sum(frame.end <= offset for frame in self.frames)
        first = at - at % FRAMES_IN_A_SEGMENT
        return b"".join(encode(frame) for frame in self.frames[first:])

    def kill(self, *, by_engine: bool = False) -> None:
        """Every process in it is gone at once."""
        self.stopped_by_engine |= by_engine and not self.ended.is_set()
        for task in (self._life, self._job, self._killing):
            if task is not None:
                task.cancel()
        self.rides.cancel()
        self._end(KILLED)

    def terminate(self) -> None:
        """SIGTERM to the container: its job is stopped with its own signal."""
        self._terminated = True
        self._close_starts()
        self.rides.close()
        self._ask_to_stop()

    # -- the runner's API ---------------------------------------------------------------------

    async def health(self) -> RunnerHealth:
        self._answer()
        return self.rules.health(self.log_end)

    async def submit(self, request: SubmitRequest) -> StatusEvent:
        self._answer()
        if self.rules.submit(request):
            self.script = script_from(request.job.env).of(self.task_id)
            self._ring()
        return self.rules.latest

    async def put_code(self, digest: str) -> StatusEvent:
        self._answer()
        self.rules.receive_code(digest)
        self._ring()
        return self.rules.latest

    async def run(self) -> StatusEvent:
        self._answer()
        if self.rules.run():
            self._ring()
            assert self.script is not None
            self._job = self._spawn(self._work(self.script))
        return self.rules.latest

    async def start(self, request: SubmitRequest) -> StatusEvent:
        event = await self.submit(request)
        return event if self.rules.waits_for_code else await self.run()

    async def stop(
        self,
        *,
        signal: str | None = None,
        grace: float = 10.0,
        interrupt: bool = False,
        delay: float = 0.0,
    ) -> StatusEvent:
        """A job that has to wait for its stop signal gets none: it ends by itself or is killed."""
        self._answer()
        before = self.rules.latest
        if self.rules.stop(interrupt=interrupt, log_end=self.log_end):
            self._close_starts()
            if not delay:
                self._ask_to_stop()
            self._kill_job_by(self._clock.now() + grace)
        elif self.rules.latest is not before:
            self._ring()
        return self.rules.latest

    async def signal(self, request: SignalRequest) -> StatusEvent:
        self._answer()
        self.rules.signal(request)
        return self.rules.latest

    async def suspend(self) -> None:
        """Simulated jobs have no limit of their own that could stand still."""
        self._answer()

    async def metrics(self) -> JobMetrics:
        """Only the sessions are counted."""
        self._answer()
        return JobMetrics(
            at=self._clock.now(),
            cpu_seconds=None,
            memory=None,
            memory_working_set=None,
            memory_peak=None,
            memory_limit=None,
            oom_kills=0,
            connections=self.connections,
        )

    async def notice(self, id: str, text: str) -> None:
        self._answer()
        if self.rules.notice(id):
            self._append(Stream.SYSTEM, notice_line(text))

    async def ack(self, offset: int) -> int:
        self._answer()
        acknowledged = self.rules.ack(offset, self.log_end)
        self._ring()
        return acknowledged

    async def again(self, request: AgainRequest) -> AgainAnswer:
        self._answer()
        if self._keeps_for is None or self._job is None:
            raise RunnerError("not_kept", "this job does not start again in its container", 409)
        if self.starts.offer(request):
            if self._start_limit is not None:
                grace = self._chance.choice((0.0, self._chance.uniform(0.0, GRACE)))
                self._start_limit.reschedule(asyncio.get_running_loop().time() + grace)
            self._ring()
        until = self._clock.now() + MAX_ANSWER_SECONDS
        while self.starts.begun < request.number:
            self._answer()
            self.starts.require_open()
            if (left := until - self._clock.now()) <= 0:
                return AgainAnswer()
            await self._wait(left)
        return AgainAnswer(begun=True)

    async def batch(self, request: BatchRequest) -> BatchAnswer:
        self._answer()
        return await self.rides.exchange(request)

    async def connect_port(self, port: int) -> PortStream:
        """It refuses for some of the minutes, as a job that is busy or not ready does."""
        self._answer()
        # From the task and the minute: one probe more must not change the rest of a seed's story.
        luck = Random(f"{self.task_id} {int(self._clock.now() / 60)}").random()
        if self._job is None or self._job.done() or luck < 0.1:
            raise RunnerError("port_refused", f"nothing listens on port {port}", 502)
        return PortStream(
            reader=asyncio.StreamReader(), writer=cast(asyncio.StreamWriter, _Unheard())
        )

    async def status_events(self, after: int = 0) -> AsyncIterator[StatusEvent]:
        self._answer()
        at = after
        while True:
            while at < len(self.rules.states):
                at += 1
                yield self.rules.states[at - 1]
            if self.ended.is_set():
                return
            if not await self._wait(HEARTBEAT_SECONDS):
                yield self.rules.latest

    async def follow_logs(self, offset: int) -> AsyncIterator[bytes]:
        self._answer()
        self.rules.check_offset(offset, self.log_end)
        self._followers += 1
        try:
            while True:
                fresh = [frame for frame in self.frames if frame.end > offset]
                if fresh:
                    piece = fresh[: self._chance.randint(1, FRAMES_IN_A_PIECE)]
                    cut = [tail for frame in piece if (tail := tail_from(frame, offset))]
                    offset = piece[-1].end
                    yield b"".join(encode(frame) for frame in cut)
                elif self.record is not None:
                    return
                elif self.ended.is_set():
                    raise RunnerUnavailable("the connection was lost")
                else:
                    await self._wait(None)
        finally:
            self._followers -= 1
            self._ring()

    def _answer(self) -> None:
        if not self.listens:
            raise RunnerUnavailable("connection refused")

    # -- its life -----------------------------------------------------------------------------

    async def _live(self) -> None:
        await asyncio.sleep(self._chance.uniform(0.05, 1.5))
        if self._start is Start.STILLBORN:
            self._end(1)
            return
        if self._start is Start.MUTE:
            return
        self.rules.listen()
        self.listening.set()
        self._ring()
        while self.record is None:
            await self._wait(None)
        while self.record.clean and not self.rides.are_over:
            await self._wait(1.0)
        until = self._clock.now() + LINGER_SECONDS
        while (left := until - self._clock.now()) > 0 and not self._is_read():
            await self._wait(left)
        self._end(self.record.exit_code or 0)

    def _is_read(self) -> bool:
        acknowledged = self.rules.acknowledged
        return self._followers == 0 and acknowledged is not None and acknowledged >= self.log_end

    @property
    def _keeps_for(self) -> float | None:
        return None if self.rules.request is None else self.rules.request.job.keeps_for

    def _close_starts(self) -> None:
        self.starts.closed = True
        if self._keeps_for is not None:
            self._ring()

    async def _work(self, script: Script) -> None:
        """Run the job, and start it again until it stays ended."""
        while (end := await self._run_start(script)) is not None:
            if not await self._comes_again(*end):
                self.starts.closed = True
                self._conclude(*end)
                return
            self.script = script = self.starts.take(self.task_id)
            self._ring()

    async def _run_start(self, script: Script) -> End | None:
        """None: its container is gone with it."""
        try:
            async with asyncio.timeout(None) as self._start_limit:
                return await self._run(script)
        except TimeoutError:
            return ExitReason.CONTAINER_EXITED_WITH_ERROR, KILLED
        finally:
            self._start_limit = None

    async def _comes_again(self, reason: ExitReason, exit_code: int) -> bool:
        if self._keeps_for is None or self.starts.closed:
            return False
        now = self._clock.now()
        if not self.starts.is_due:
            self.rules.tell(self.starts.wait(reason, exit_code, now))
            self._ring()
        until = now + self._keeps_for
        while not (self.starts.is_due or self.starts.closed):
            if (left := until - self._clock.now()) <= 0:
                return False
            await self._wait(left)
        return self.starts.is_due

    async def _run(self, script: Script) -> End | None:
        stopped = False
        for number in range(script.lines):
            stopped = await self._pause(script, script.seconds / (script.lines + 1))
            if stopped:
                break
            self._write(script, f"line {number}")
        else:
            stopped = await self._pause(script, script.seconds / (script.lines + 1))
        if stopped and script.on_stop is OnStop.CLEANS_UP:
            for number in range(5):
                self._write(script, f"cleaning up {number}")
                await asyncio.sleep(1.0)
            return ExitReason.DONE_BY_RUNNER, 0
        if stopped:
            code = SPARED_EXIT_CODE if script.on_stop is OnStop.COMES_BACK else 143
            return self.rules.reason_of(code), code
        if script.ending is Ending.TAKES_RUNNER_ALONG:
            self.kill()
            return None
        if script.ending is Ending.OUT_OF_MEMORY:
            return ExitReason.OUT_OF_MEMORY, KILLED
        failed, done = ExitReason.CONTAINER_EXITED_WITH_ERROR, ExitReason.DONE_BY_RUNNER
        return failed if script.exit_code else done, script.exit_code

    async def _pause(self, script: Script, seconds: float) -> bool:
        """Whether the job stops now."""
        if script.on_stop is OnStop.IGNORES:
            await asyncio.sleep(seconds)
            return False
        try:
            async with asyncio.timeout(seconds):
                await self._signalled.wait()
        except TimeoutError:
            return False
        return True

    def _write(self, script: Script, text: str) -> None:
        payload = f"{self.task_id} {text} ".encode().ljust(script.line_bytes, b"x") + b"\n"
        self._append(self._chance.choice((Stream.STDOUT, Stream.STDERR)), payload)

    def _append(self, stream: Stream, payload: bytes) -> None:
        self.frames.append(Frame(self.log_end, int(self._clock.now() * 1e9), stream, payload))
        self._ring()

    def _ask_to_stop(self) -> None:
        self.stops.append(self._clock.now())
        self._signalled.set()

    def _kill_job_by(self, at: float) -> None:
        """A later call may bring the kill forward, not back."""
        if at < self._kill_at:
            self._kill_at = at
            if self._killing is not None:
                self._killing.cancel()
            self._killing = self._spawn(self._kill_job())

    async def _kill_job(self) -> None:
        await asyncio.sleep(max(0.0, self._kill_at - self._clock.now()))
        # No job is left to kill in a container that waits.
        if self._job is not None and self.record is None and self.starts.waits is None:
            self._job.cancel()
            self._conclude(self.rules.reason_when_killed(), KILLED)

    def _conclude(self, reason: ExitReason, exit_code: int | None) -> None:
        end, stopped = self.log_end, self._terminated
        clean = self._is_clean(reason)
        if clean:
            self.rides.open()
        self.rules.conclude(reason, exit_code, log_end=end, container_stopped=stopped, clean=clean)
        self._ring()

    def _is_clean(self, reason: ExitReason) -> bool:
        request = self.rules.request
        if request is None or not request.job.reuse_container or self.stops:
            return False
        lucky = Random(f"{self.task_id} leaves something").random() >= DIRTY
        return lucky and reason is not ExitReason.OUT_OF_MEMORY

    def _end(self, exit_code: int) -> None:
        if not self.ended.is_set():
            self.exit_code = exit_code
            self.ended.set()
            self._ring()

    def _ring(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait(self, seconds: float | None) -> bool:
        """Whether something changed within that time."""
        changed = self._changed
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            return False
        return True
