"""Jobs that a simulated container runs one after another once its own has ended
(docs/rules.md 11.14)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from controller.clock import Clock
from fairlead.wire.frames import Frame, Stream, encode
from fairlead.wire.job import SubmitRequest
from fairlead.wire.runner import (
    BatchAnswer,
    BatchRequest,
    CarriedJob,
    CarriedStop,
    ExitReason,
    ExitRecord,
    SignalRequest,
)
from fairlead.wire.sizes import OutputsAbout
from tests.simulation.outputs import leaves_outputs, outputs_of
from tests.simulation.script import Ending, OnStop, Script, script_from

KILLED = 137
PATIENCE_SECONDS = 5.0
IDLE_SECONDS = 60.0
OUTPUTS_PIECE = 4000
"""Bytes of outputs in one answer, for each job."""
DIRTY = 0.1
"""The share of jobs that leave something behind."""


class Ride:
    """One job; what it wrote and how it ended stays known."""

    def __init__(self, request: SubmitRequest) -> None:
        self.attempt_id = request.job.attempt_id
        self.script: Script = script_from(request.job.env).of(self.attempt_id)
        self.frames: list[Frame] = []
        self.began_at: float | None = None
        self.exit: ExitRecord | None = None
        self.returned = False
        self.grace: float | None = None
        """Seconds, once it was asked to stop."""
        self.stopped = asyncio.Event()
        self.told: tuple[bool, bool] = (False, False)
        self.signals: dict[str, SignalRequest] = {}

    @property
    def is_over(self) -> bool:
        return self.returned or self.exit is not None

    @property
    def output(self) -> bytes:
        return b"".join(frame.payload for frame in self.frames)

    @property
    def end(self) -> int:
        return self.frames[-1].end if self.frames else 0


class Rides:
    def __init__(
        self,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
        kill: Callable[[], None],
    ) -> None:
        self.all: dict[str, Ride] = {}
        """Every job that it ever had, by its attempt."""
        self.began: Callable[[str], None] = lambda _: None
        self.closing = False
        self._clock = clock
        self._spawn = spawn
        self._kill = kill
        self._there: dict[str, Ride] = {}
        self._waiting: list[Ride] = []
        self._dirty: str | None = "its own job has not ended cleanly"
        self._work: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._heard_at = 0.0

    @property
    def running(self) -> Ride | None:
        return next((one for one in self._there.values() if one.began_at and not one.is_over), None)

    @property
    def are_over(self) -> bool:
        """Whether the container may end."""
        if self._work is not None:
            return False
        silent = self._clock.now() - self._heard_at > IDLE_SECONDS
        fetched = self._dirty is not None and not self._there
        return self.closing or silent or fetched

    def open(self) -> None:
        self._dirty, self._heard_at = None, self._clock.now()

    def close(self) -> None:
        self.closing = True
        self._give_back()
        if (running := self.running) is not None:
            self._stop(running, CarriedStop(attempt_id=running.attempt_id, grace=1.0))

    def cancel(self) -> None:
        if self._work is not None:
            self._work.cancel()
            self._work = None

    async def exchange(self, request: BatchRequest) -> BatchAnswer:
        self._heard_at = self._clock.now()
        for attempt_id in request.stored:
            if attempt_id in self._there and self._there[attempt_id].is_over:
                del self._there[attempt_id]
        for job in request.jobs:
            if job.job.attempt_id not in self._there:
                self._take(job)
        for signal in request.signals:
            ride = self._there.get(signal.attempt_id)
            if ride is not None and ride.began_at is not None and not ride.is_over:
                ride.signals.setdefault(signal.request.id, signal.request)
        for order in request.stop:
            if order.attempt_id in self._there:
                self._stop(self._there[order.attempt_id], order)
        if self._work is None and self._waiting and self._dirty is None and not self.closing:
            self._work = self._spawn(self._run_all())
        until = self._clock.now() + request.wait
        while not self._has_changed(request) and (left := until - self._clock.now()) > 0:
            await self._rung(left)
        self._heard_at = self._clock.now()
        return BatchAnswer(
            jobs=tuple(self._carried(one, request) for one in self._there.values()),
            dirty=self._dirty,
        )

    def _take(self, job: SubmitRequest) -> None:
        ride = self._there[job.job.attempt_id] = Ride(job)
        self.all[ride.attempt_id] = ride
        ride.returned = self._dirty is not None or self.closing
        if not ride.returned:
            self._waiting.append(ride)

    def _has_changed(self, request: BatchRequest) -> bool:
        return any(
            one.told != (one.began_at is not None, one.is_over)
            or one.end > request.offsets.get(one.attempt_id, 0)
            for one in self._there.values()
        )

    def _carried(self, one: Ride, request: BatchRequest) -> CarriedJob:
        one.told = (one.began_at is not None, one.is_over)
        offset = request.offsets.get(one.attempt_id, 0)
        fresh = [frame for frame in one.frames if frame.end > offset]
        return CarriedJob(
            attempt_id=one.attempt_id,
            began_at=one.began_at,
            started_at=one.began_at,
            returned=one.returned,
            exit=one.exit,
            log=b"".join(encode(frame) for frame in fresh[:20]),
            log_complete=one.is_over and len(fresh) <= 20,
            **_outputs(one, request),
        )

    def _stop(self, ride: Ride, order: CarriedStop) -> None:
        if ride.is_over:
            return
        if ride in self._waiting:
            self._waiting.remove(ride)
            ride.returned = True
            self._ring()
        elif not order.unbegun:
            ride.grace = order.grace if ride.grace is None else min(ride.grace, order.grace)
            ride.stopped.set()

    def _give_back(self) -> None:
        for ride in self._waiting:
            ride.returned = True
        self._waiting.clear()
        self._ring()

    async def _run_all(self) -> None:
        while self._waiting and self._dirty is None and not self.closing:
            ride = self._waiting.pop(0)
            ride.began_at = self._clock.now()
            self.began(ride.attempt_id)
            self._ring()
            patience = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._give_back)
            try:
                await self._run(ride)
            finally:
                patience.cancel()
        self._work = None
        if self._dirty is not None:
            self._give_back()
        self._ring()

    async def _run(self, ride: Ride) -> None:
        script = ride.script
        for number in range(script.lines):
            if await self._pause(ride, script.seconds / (script.lines + 1)):
                return
            payload = f"{ride.attempt_id} line {number} ".encode().ljust(script.line_bytes, b"x")
            at = int(self._clock.now() * 1e9)
            ride.frames.append(Frame(ride.end, at, Stream.STDOUT, payload + b"\n"))
            self._ring()
        if await self._pause(ride, script.seconds / (script.lines + 1)):
            return
        if script.ending is Ending.TAKES_RUNNER_ALONG:
            self._kill()
            await asyncio.Event().wait()
        if script.ending is Ending.OUT_OF_MEMORY:
            self._conclude(ride, ExitReason.OUT_OF_MEMORY, KILLED, "its memory limit was reached")
            return
        failed, done = ExitReason.CONTAINER_EXITED_WITH_ERROR, ExitReason.DONE_BY_RUNNER
        dirty = Random(f"{ride.attempt_id} leaves something").random() < DIRTY
        self._conclude(
            ride,
            failed if script.exit_code else done,
            script.exit_code,
            "/tmp changed" if dirty else None,
        )

    async def _pause(self, ride: Ride, seconds: float) -> bool:
        """Return whether it was stopped, and has ended."""
        try:
            async with asyncio.timeout(seconds):
                await ride.stopped.wait()
        except TimeoutError:
            return False
        code = 143
        if ride.script.on_stop is OnStop.IGNORES:
            await asyncio.sleep(ride.grace or 0.0)
            code = KILLED
        failed = ExitReason.CONTAINER_EXITED_WITH_ERROR
        self._conclude(ride, failed, code, "it was stopped")
        return True

    def _conclude(self, ride: Ride, reason: ExitReason, code: int, dirt: str | None) -> None:
        self._dirty = dirt
        ride.exit = ExitRecord(
            reason=reason,
            exit_code=code,
            started_at=ride.began_at,
            finished_at=self._clock.now(),
            log_end=ride.end,
            container_stopped=self.closing,
        )
        self._ring()

    def _ring(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _rung(self, seconds: float) -> None:
        changed = self._changed
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            return


def _outputs(one: Ride, request: BatchRequest) -> dict[str, Any]:
    if one.exit is None or request.outputs_limit is None or not leaves_outputs(one.attempt_id):
        return {}
    content = outputs_of(one.attempt_id)
    about = OutputsAbout(
        files=1, size=len(one.attempt_id), left_out=0, left_out_size=0, length=len(content)
    )
    offset = request.outputs.get(one.attempt_id, 0)
    return {"outputs": about, "outputs_piece": content[offset : offset + OUTPUTS_PIECE]}
