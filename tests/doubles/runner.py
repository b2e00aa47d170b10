"""The state and the rules of a runner, once for all doubles of it.

`RunnerRules` keeps the job, its code, its states and what was acknowledged, and decides about
requests as the real runner does. `FakeRunner` (`doubles/node.py`) and `Container`
(`simulation/container.py`) are built upon it and add what the job does.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.clock import Clock
from fairlead.wire.job import SubmitRequest
from fairlead.wire.runner import (
    ExitReason,
    ExitRecord,
    RunnerHealth,
    RunnerState,
    SignalRequest,
    StartEnd,
    StatusEvent,
)
from runner.client import RunnerError
from runner.job.outcome import STOPPED_BEFORE_START
from runner.validation import wanted_blobs


class RunnerRules:
    """Raises RunnerError for what the runner refuses, as its client does."""

    def __init__(self, clock: Clock) -> None:
        self.request: SubmitRequest | None = None
        self.record: ExitRecord | None = None
        self.states: list[StatusEvent] = []
        self.interrupted = False
        """The job was asked to end so that it may come back."""
        self.acknowledged: int | None = None
        self._clock = clock
        self._wanted: frozenset[str] = frozenset()
        self._missing: frozenset[str] = frozenset()
        self._noticed: set[str] = set()
        self.signals: dict[str, SignalRequest] = {}
        """What the job was told of its ends, by id, each once."""

    @property
    def latest(self) -> StatusEvent:
        return self.states[-1]

    # -- what happens to it -------------------------------------------------------------------

    def listen(self) -> None:
        """The runner answers from now on."""
        self._enter(RunnerState.WAITING_FOR_JOB)

    def conclude(
        self,
        reason: str,
        exit_code: int | None,
        *,
        log_end: int,
        message: str | None = None,
        container_stopped: bool = False,
        clean: bool = False,
    ) -> None:
        """End the job with this record."""
        self.record = ExitRecord(
            reason=reason,
            message=message,
            exit_code=exit_code,
            finished_at=self._clock.now(),
            log_end=log_end,
            container_stopped=container_stopped,
            clean=clean,
        )
        self._enter(RunnerState.SERVING_LOGS)

    def tell(self, end: StartEnd) -> None:
        """The commands have ended, and the container waits for the next start."""
        self._enter(RunnerState.RUNNING, end)

    # -- the runner's API ---------------------------------------------------------------------

    def health(self, log_end: int) -> RunnerHealth:
        return RunnerHealth(
            version="double",
            api_versions=("v1",),
            state=self.latest.state,
            log_start=0,
            log_end=log_end,
            log_acked=self.acknowledged or 0,
        )

    def submit(self, request: SubmitRequest) -> bool:
        """Accept the job; return whether it is new."""
        if self.request is not None:
            if not request.is_the_same_job(self.request):
                raise RunnerError("conflict", "another job was submitted before", 409)
            return False
        if self.record is not None:
            raise RunnerError("ended", "this runner's job has ended", 409)
        self.request = request
        self._wanted = self._missing = frozenset(wanted_blobs(request.job))
        self._enter(RunnerState.WAITING_FOR_CODE if self._missing else RunnerState.READY)
        return True

    def receive_code(self, digest: str) -> None:
        """The blob has come; the job is ready when all have."""
        if self.request is None or (self.waits_for_code and digest not in self._wanted):
            raise RunnerError("no_code_expected", "the job does not need this code", 409, "digest")
        self._missing -= {digest}
        if self.waits_for_code and not self._missing:
            self._enter(RunnerState.READY)

    def run(self) -> bool:
        """Begin the job; return whether it had not begun before."""
        state = self.latest.state
        if state in (RunnerState.WAITING_FOR_JOB, RunnerState.WAITING_FOR_CODE):
            raise RunnerError("not_ready", "submit a job and its code first", 409)
        if state is not RunnerState.READY:
            return False
        self._enter(RunnerState.RUNNING)
        return True

    @property
    def waits_for_code(self) -> bool:
        return self.latest.state is RunnerState.WAITING_FOR_CODE

    def stop(self, *, interrupt: bool, log_end: int) -> bool:
        """Return whether the job runs and has to be stopped; one that has not begun ends here."""
        if self.record is not None:
            return False
        self.interrupted |= interrupt
        if self.latest.state is RunnerState.RUNNING:
            return True
        reason, message = ExitReason.EXECUTOR_ERROR, STOPPED_BEFORE_START
        self.conclude(reason, None, log_end=log_end, message=message)
        return False

    def signal(self, request: SignalRequest) -> None:
        if self.record is not None:
            return
        if self.request is None or self.request.job.signal is None:
            raise RunnerError("no_signal", "no job with a `signal` was submitted", 409)
        self.signals.setdefault(request.id, request)

    def reason_of(self, exit_code: int) -> ExitReason:
        """Return how an exit with this code counts."""
        comes_back = None if self.request is None else self.request.job.restart_exit_code
        if self.interrupted and exit_code == comes_back:
            return ExitReason.INTERRUPTED
        return ExitReason.CONTAINER_EXITED_WITH_ERROR if exit_code else ExitReason.DONE_BY_RUNNER

    def reason_when_killed(self) -> ExitReason:
        """Return how it counts that the job did not end by itself within its grace."""
        if self.interrupted:
            return ExitReason.INTERRUPTED
        return ExitReason.CONTAINER_EXITED_WITH_ERROR

    def notice(self, notice_id: str) -> bool:
        """Return whether the line belongs in the log; the same one again does not."""
        if self.record is not None:
            raise RunnerError("ended", "the job has ended, and so has its log", 409)
        is_new = notice_id not in self._noticed
        self._noticed.add(notice_id)
        return is_new

    def ack(self, offset: int, log_end: int) -> int:
        if not 0 <= offset <= log_end:
            raise RunnerError("invalid", f"{offset} is not within 0..{log_end}", 400, "offset")
        self.acknowledged = max(self.acknowledged or 0, offset)
        return self.acknowledged

    def check_offset(self, offset: int, log_end: int) -> None:
        if offset > log_end:
            raise RunnerError("refused", f"the log cannot be followed from offset {offset}", 400)

    def states_after(self, seq: int) -> Sequence[StatusEvent]:
        return self.states[max(0, seq) :]

    def _enter(self, state: RunnerState, start_end: StartEnd | None = None) -> None:
        event = StatusEvent(
            seq=len(self.states) + 1,
            at=self._clock.now(),
            state=state,
            exit=self.record,
            start_end=start_end,
        )
        self.states.append(event)
