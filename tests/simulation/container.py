"""A simulated container: a runner with the job in it, as seen on its socket.

It stays known after its end, since what it wrote and how it ended is the truth that the
controller's account is compared with.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from random import Random
from typing import Any

from controller.clock import Clock
from runner.client import RunnerError, RunnerUnavailable
from runner.schemas import ExitRecord, RunnerHealth, RunnerState, StatusEvent, SubmitRequest
from runner.schemas.frames import Frame, Stream, encode, tail_from
from tests.simulation.script import (
    SPARED_EXIT_CODE,
    Ending,
    OnStop,
    Script,
    Start,
    script_from,
)

LINGER_SECONDS = 10.0
HEARTBEAT_SECONDS = 10.0
KILLED = 137
FRAMES_IN_A_PIECE = 7
FRAMES_IN_A_SEGMENT = 16


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
        self.request: SubmitRequest | None = None
        self.script: Script | None = None
        self.frames: list[Frame] = []
        self.record: ExitRecord | None = None
        self.exit_code: int | None = None
        self.ended = asyncio.Event()
        self.stopped_by_engine = False
        self.stops: list[float] = []
        """When the job was asked to stop."""
        self._interrupted = False
        self._terminated = False
        self._kill_at = float("inf")
        self._start = start
        self._clock = clock
        self._chance = chance
        self._listens = False
        self._states: list[StatusEvent] = []
        self._acknowledged = -1
        self._followers = 0
        self._changed = asyncio.Event()
        self._signalled = asyncio.Event()
        self._spawn = spawn
        self._job: asyncio.Task[None] | None = None
        self._killing: asyncio.Task[None] | None = None
        self._life = spawn(self._live())

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
        self._end(KILLED)

    def terminate(self) -> None:
        """SIGTERM to the container: its job is stopped with its own signal."""
        self._terminated = True
        self._ask_to_stop()

    # -- the runner's API ---------------------------------------------------------------------

    async def health(self) -> RunnerHealth:
        self._answer()
        return RunnerHealth(
            version="simulated",
            api_versions=("v1",),
            state=self._states[-1].state,
            log_start=0,
            log_end=self.log_end,
            log_acked=max(0, self._acknowledged),
        )

    async def submit(self, request: SubmitRequest) -> StatusEvent:
        self._answer()
        if self.request is None and self.record is None:
            self.request = request
            self.script = script_from(request.job.env).of(self.task_id)
            self._enter(RunnerState.READY)
        elif self.request is None or not request.is_the_same_job(self.request):
            raise RunnerError("conflict", "another job was submitted before", 409)
        return self._states[-1]

    async def run(self) -> StatusEvent:
        self._answer()
        if self.script is None:
            raise RunnerError("not_ready", "submit a job first", 409)
        if self._job is None and self.record is None:
            self._enter(RunnerState.RUNNING)
            self._job = self._spawn(self._work(self.script))
        return self._states[-1]

    async def start(self, request: SubmitRequest) -> StatusEvent:
        await self.submit(request)
        return await self.run()

    async def stop(
        self, *, signal: str | None = None, grace: float = 10.0, interrupt: bool = False
    ) -> StatusEvent:
        self._answer()
        if self.record is not None:
            return self._states[-1]
        self._interrupted |= interrupt
        if self._job is None:
            self._conclude("executor_error", None)
        else:
            self._ask_to_stop()
            self._kill_job_by(self._clock.now() + grace)
        return self._states[-1]

    async def suspend(self) -> None:
        """Simulated jobs have no limit of their own that could stand still."""
        self._answer()

    async def notice(self, id: str, text: str) -> None:
        self._answer()

    async def ack(self, offset: int) -> int:
        self._answer()
        if not 0 <= offset <= self.log_end:
            raise RunnerError("invalid", f"{offset} is not within 0..{self.log_end}", 400)
        self._acknowledged = max(self._acknowledged, offset)
        self._ring()
        return self._acknowledged

    async def status_events(self, after: int = 0) -> AsyncIterator[StatusEvent]:
        self._answer()
        at = after
        while True:
            while at < len(self._states):
                at += 1
                yield self._states[at - 1]
            if self.ended.is_set():
                return
            if not await self._wait(HEARTBEAT_SECONDS):
                yield self._states[-1]

    async def follow_logs(self, offset: int) -> AsyncIterator[bytes]:
        self._answer()
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
        if self.ended.is_set() or not self._listens:
            raise RunnerUnavailable("connection refused")

    # -- its life -----------------------------------------------------------------------------

    async def _live(self) -> None:
        await asyncio.sleep(self._chance.uniform(0.05, 1.5))
        if self._start is Start.STILLBORN:
            self._end(1)
            return
        if self._start is Start.MUTE:
            return
        self._listens = True
        self._enter(RunnerState.WAITING_FOR_JOB)
        while self.record is None:
            await self._wait(None)
        until = self._clock.now() + LINGER_SECONDS
        while (left := until - self._clock.now()) > 0 and not self._is_read():
            await self._wait(left)
        self._end(self.record.exit_code or 0)

    def _is_read(self) -> bool:
        return self._followers == 0 and self._acknowledged >= self.log_end

    async def _work(self, script: Script) -> None:
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
            self._conclude("done_by_runner", 0)
        elif stopped:
            self._exit_on_stop(script)
        elif script.ending is Ending.TAKES_RUNNER_ALONG:
            self.kill()
        elif script.ending is Ending.OUT_OF_MEMORY:
            self._conclude("out_of_memory", KILLED)
        else:
            reason = "container_exited_with_error" if script.exit_code else "done_by_runner"
            self._conclude(reason, script.exit_code)

    def _exit_on_stop(self, script: Script) -> None:
        code = SPARED_EXIT_CODE if script.on_stop is OnStop.COMES_BACK else 143
        asked_for = None if self.request is None else self.request.job.restart_exit_code
        spared = self._interrupted and code == asked_for
        self._conclude("interrupted" if spared else "container_exited_with_error", code)

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
        stream = self._chance.choice((Stream.STDOUT, Stream.STDERR))
        time_ns = int(self._clock.now() * 1e9)
        self.frames.append(Frame(self.log_end, time_ns, stream, payload))
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
        if self._job is not None and self.record is None:
            self._job.cancel()
            reason = "interrupted" if self._interrupted else "container_exited_with_error"
            self._conclude(reason, KILLED)

    def _conclude(self, reason: str, exit_code: int | None) -> None:
        self.record = ExitRecord(
            reason=reason,
            exit_code=exit_code,
            finished_at=self._clock.now(),
            log_end=self.log_end,
            container_stopped=self._terminated,
        )
        self._enter(RunnerState.SERVING_LOGS)

    def _enter(self, state: RunnerState) -> None:
        event = StatusEvent(
            seq=len(self._states) + 1, at=self._clock.now(), state=state, exit=self.record
        )
        self._states.append(event)
        self._ring()

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
