"""The job starts again in its container, with what changed (docs/rules.md 2.15).

A start is asked for by number. What it needs arrives while the job still runs; with the last of it
the start is due. The newest one wins, so a start that was overtaken never happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from fairlead.wire.errors import Refused
from fairlead.wire.job import SubmitRequest, code_changes, why_not_in_place
from fairlead.wire.runner import AgainAnswer, AgainRequest, ExitReason
from runner.code.store import CodeStore
from runner.errors import CannotStart
from runner.job.execution import MainEnded
from runner.job.outcome import STOPPED_BEFORE_START, Verdict
from runner.processes.launch import Launch
from runner.processes.spawn import Ending
from runner.status import Bell

GRACE = 10.0
"""Seconds between stop signal and SIGKILL when a job starts again; fewer with a shorter
`stop_duration`."""
WAIT = 20.0
"""Seconds for which the answer to a request waits for the start."""
_LIMITS = frozenset({ExitReason.MAX_DURATION_EXCEEDED, ExitReason.LOG_QUOTA_EXCEEDED})


class Host(Protocol):
    """The job whose starts these are, as its runner has it."""

    @property
    def is_stopped(self) -> bool:
        """Whether it was asked to end."""

    @property
    def is_interrupted(self) -> bool: ...

    def say(self, text: str) -> None:
        """Put a line into its log."""

    def waits(self, number: int, ending: Ending, verdict: Verdict) -> None:
        """Tell that this start has ended so, and the container waits for the next."""

    async def execute(
        self, launch: Launch, started: Callable[[int], None], main_ended: MainEnded
    ) -> tuple[Ending, Verdict]:
        """Run one start to its end. Raises CannotStart."""

    async def clear(self) -> None:
        """Forget the last start. Raises CannotStart when a process of it lives on."""

    async def prepare_again(self, start: Start) -> Launch:
        """Have the job become what the start brings. Raises CannotStart."""


class Start(msgspec.Struct, frozen=True):
    """A start that is due, since `asked_at` by the loop's clock."""

    number: int
    request: SubmitRequest
    code: CodeStore
    asked_at: float


class Again:
    """The starts of one job after its first. `present`: what its container has now."""

    def __init__(self, task: Path, present: SubmitRequest, keeps_for: float) -> None:
        self._task = task
        self._present = present
        self.keeps_for = keeps_for
        self._offered: AgainRequest | None = None
        self._code: CodeStore | None = None
        self._due: Start | None = None
        self._overtaken: list[CodeStore] = []
        self._accepted = 0
        self._begun = 0
        self._closed = False
        self._bell = Bell()

    @property
    def is_due(self) -> bool:
        return self._due is not None and not self._closed

    @property
    def is_closed(self) -> bool:
        return self._closed

    def offer(
        self, request: AgainRequest, why_not: Callable[[SubmitRequest], str | None]
    ) -> AgainAnswer:
        """Return what is missing for the start; once nothing is, it is due. Raises Refused."""
        if request.number <= self._accepted:
            return AgainAnswer()
        self._require_open()
        old, new = self._present.job, request.submission.job
        before, after = (old.repos, old.files), (new.repos, new.files)
        if (why := why_not_in_place(before, after)) is not None:
            raise Refused(409, "not_in_place", why)
        # Before the job is stopped for it.
        if (why := why_not(request.submission)) is not None:
            raise Refused(409, "not_in_place", why)
        if self._code is None or self._offered is None or self._offered != request:
            if self._code is not None and self._offered is not None:
                self._overtake(self._code, self._offered.number, request.number)
            self._offered = request
            self._code = CodeStore(self._task, f"code-{request.number}")
        wanted = code_changes(before, after).blobs
        self._code.expect(wanted)
        if missing := self._code.missing:
            return AgainAnswer(missing=tuple(one for one in wanted if one in missing))
        self._accepted = request.number
        now = asyncio.get_running_loop().time()
        if self._due is not None:
            self._overtake(self._due.code, self._due.number, request.number)
        self._due = Start(request.number, request.submission, self._code, now)
        self._code = None
        self._bell.ring()
        return AgainAnswer()

    def _overtake(self, code: CodeStore, number: int, by: int) -> None:
        # The same number has the same folder.
        if number != by:
            self._overtaken.append(code)

    def drop_overtaken(self) -> None:
        """Remove what came for starts that never happen. Blocking."""
        while self._overtaken:
            self._overtaken.pop().drop()

    def drop_all(self) -> None:
        """Remove what came for any start; the job has ended. Blocking."""
        self.drop_overtaken()
        for code in (self._code, None if self._due is None else self._due.code):
            if code is not None:
                code.drop()

    def wants(self, digest: str) -> bool:
        return self._code is not None and digest in self._code.missing

    async def receive(self, digest: str, pieces: AsyncIterable[bytes]) -> None:
        """Raises Refused, OSError."""
        assert self._code is not None
        await self._code.receive(digest, pieces)

    async def comes(self) -> bool:
        """Return whether a start is due, or becomes due while the container waits for one. If not,
        the job stays ended, and no start is accepted any more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.keeps_for):
                while self._due is None and not self._closed:
                    await self._bell.wait()
        if self._due is None:
            self.close()
        return self.is_due

    def take(self) -> Start:
        """Return the start that is due; the container is about to have what it brings."""
        assert self._due is not None
        due, self._due = self._due, None
        self._present = due.request
        return due

    def begun(self, number: int) -> None:
        """Note that this start has begun."""
        self._begun = number
        self._bell.ring()

    async def until_begun(self, number: int) -> bool:
        """Wait for that start, or a later one; return whether it has begun. Raises Refused when it
        never will."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT):
                while self._begun < number and not self._closed:
                    await self._bell.wait()
        if self._begun < number:
            self._require_open()
        return self._begun >= number

    def close(self) -> None:
        """Accept no start any more."""
        self._closed = True
        self._bell.ring()

    def _require_open(self) -> None:
        if self._closed:
            raise Refused(409, "ended", "this runner's job has ended")


async def run_until_it_stays_ended(
    host: Host,
    starts: Again,
    launch: Launch,
    running: Callable[[int], None],
    main_ended: MainEnded,
) -> tuple[Ending, Verdict]:
    """Run the job, and start it again until it stays ended."""
    number = 0

    def started(pid: int) -> None:
        running(pid)
        starts.begun(number)

    async def ended(ending: Ending, verdict: Verdict) -> None:
        if not starts.is_due:
            await main_ended(ending, verdict)

    last: Ending | None = None
    while True:
        try:
            # One that was overtaken while it was prepared does not begin.
            while starts.is_due:
                start = starts.take()
                number, launch = start.number, await _launch_again(host, start, starts)
            last, verdict = await host.execute(launch, started, ended)
        except CannotStart as error:
            if last is None:
                raise
            # With the last exit code, and what the starts before have left is kept.
            asked = host.is_interrupted
            reason = ExitReason.INTERRUPTED if asked else ExitReason.EXECUTOR_ERROR
            return last, Verdict(reason, str(error))
        if host.is_stopped or starts.is_closed or not may_start_again(verdict):
            starts.close()
            return last, verdict
        host.say(end_line(last, stopped=starts.is_due, keeps_for=starts.keeps_for))
        if not starts.is_due:
            host.waits(number, last, verdict)
        if not await starts.comes():
            return last, verdict


async def _launch_again(host: Host, start: Start, starts: Again) -> Launch:
    """Prepare the next start. Raises CannotStart."""
    await host.clear()
    await asyncio.to_thread(starts.drop_overtaken)
    if host.is_stopped:
        raise CannotStart(STOPPED_BEFORE_START)
    launch = await host.prepare_again(start)
    host.say(start_line(asyncio.get_running_loop().time() - start.asked_at))
    return launch


def may_start_again(verdict: Verdict) -> bool:
    """Return whether a job with this end is one that its user goes on with."""
    return verdict.reason not in _LIMITS


def end_line(ending: Ending, *, stopped: bool, keeps_for: float) -> str:
    """Return the line of the log after one start of the job."""
    how = f"ended by {ending.signal}" if ending.signal else f"exit code {ending.code}"
    if stopped:
        return f"stopped to start again ({how})"
    minutes = f"{keeps_for / 60:g} min" if keeps_for >= 60 else f"{keeps_for:g} s"
    return f"{how}; its container waits at most {minutes} for changed files"


def start_line(seconds: float) -> str:
    return f"started again in the same container ({seconds:.1f} s)"
