"""`Run`: what a program does with one run that it knows."""

from __future__ import annotations

import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from fairlead.documents.jobs import AttemptOutputsView, AttemptView, JobView, OutputsView
from fairlead.documents.metrics import MetricsAnswer, MetricsHistoryAnswer
from fairlead.documents.plans import ExplainView
from fairlead.documents.runs import EventView, RetriedView, RunView, WatchLine
from fairlead.documents.services import ServiceView
from fairlead.documents.sweeps import SetView
from fairlead.errors import ClientClosed, RunFailed, UsageError
from fairlead.files import outputs
from fairlead.follow import follow_log, follow_run, unread
from fairlead.model.statuses import FINAL_RUN_STATUSES, RunStatus
from fairlead.model.sweep import SetStatus, Value
from fairlead.patience import Outages
from fairlead.rest import (
    ControllerClient,
    decode,
    job_path,
    run_path,
    service_path,
)
from fairlead.summaries import notebook
from fairlead.summaries.job_names import job_name
from fairlead.summaries.progress import exit_status, find_job, never_ran, step_of, why
from fairlead.sweeps import all_sets
from fairlead.wire.frames import Frame, Stream

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.forward import LocalPort

Tell = Callable[[str], None]
_RESULTS_SECONDS = 0.3
_ENDED_SETS = f"{SetStatus.DONE},{SetStatus.FAILED},{SetStatus.STOPPED}"
_STREAMS: dict[Stream, Literal["stdout", "stderr", "system", "marker"]] = {
    Stream.STDOUT: "stdout",
    Stream.STDERR: "stderr",
    Stream.SYSTEM: "system",
    Stream.MARKER: "marker",
}


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a job's output. To resume after it, give `attempt` and `end` as the offset."""

    job: str
    attempt: str
    offset: int
    end: int
    at: datetime
    stream: Literal["stdout", "stderr", "system", "marker"]
    data: bytes

    @property
    def text(self) -> str:
        """The data as text; bytes that are no UTF-8 become marks."""
        return self.data.decode(errors="replace")


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one parameter set of a sweep."""

    number: int
    parameters: dict[str, Value]
    status: SetStatus
    exit_code: int | None
    """None: its job never ended by itself."""
    message: str | None
    job: str | None
    """The id of its first job, for `logs` and `pull_outputs`; None: it never began."""
    attempt: str | None
    outputs: AttemptOutputsView | None
    """What it left; `Run.pull_outputs` brings it."""


class KnownRun(ABC):
    """A run as far as it is known; `Run` and `AsyncRun` renew what is known of it."""

    @property
    @abstractmethod
    def state(self) -> RunView:
        """What is known of the run."""

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.state.id

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.state.name

    @property
    def status(self) -> RunStatus:
        """The status of the run as of `state`."""
        return self.state.status

    @property
    def is_final(self) -> bool:
        """Whether the run has ended."""
        return self.state.status in FINAL_RUN_STATUSES

    @property
    def exit_status(self) -> int | None:
        """The exit status of `fairlead apply`; None while the run is live."""
        return exit_status(self.state) if self.is_final else None

    @property
    def why(self) -> str:
        """The sentence that says why the run is as it is."""
        return why(self.state) if self.is_final else step_of(self.state, {}).text

    def __repr__(self) -> str:
        return f"<Run {self.name}: {self.status}>"


class Run(KnownRun):
    """A run. `state` is what is known of it; `refresh` and `wait` renew it."""

    def __init__(self, client: Client, state: RunView) -> None:
        self.client = client
        self._rest = client.rest
        self._state = state
        self.left_out: tuple[str, ...] = ()
        """Why chosen sets stay as they are although `retry` was asked for, as sentences: what they
        wait for must be retried first."""

    def another(self) -> Run:
        """Return the same run, asked about through a client of its own."""
        return Run(self.client.another(), self.state)

    def close(self) -> None:
        """End all streams of its client."""
        self.client.close()

    @property
    def state(self) -> RunView:
        """What is known of the run; `refresh`, `wait` and `states` renew it."""
        return self._state

    def learn(self, state: RunView) -> None:
        """Take what another reader learnt of the run."""
        self._state = state

    def refresh(self) -> Run:
        """Ask for the present state."""
        self._state = self._rest.run(self.id)
        return self

    def states(self, *, timeout: float | None = None) -> Iterator[RunView]:
        """Yield the state now and after each change, until it is final. Raises TimeoutError after
        so many seconds."""
        for line in self._watched(timeout):
            assert line.run is not None
            self._state = line.run
            yield line.run

    def wait(
        self,
        *,
        timeout: float | None = None,
        check: bool = True,
        progress: bool | Tell | None = None,
    ) -> Run:
        """Wait until the run has ended; the run goes on when this is interrupted.

        `check`: raise RunFailed when it ended otherwise than done. `timeout`: seconds, then
        TimeoutError. `progress`: show each step, or give it to a function; by default a notebook
        shows one line that changes.
        """
        show = notebook.shower(progress)
        for line in self._watched(timeout):
            assert line.run is not None
            self._state = line.run
            if not self.is_final:
                step = step_of(self.state, line.progress)
                show(f"{self.name}: {step.text}" + (f" ({step.detail})" if step.detail else ""))
        show(f"{self.name}: {self.status}: {self.why}")
        return self.check() if check else self

    def check(self) -> Run:
        """Raise RunFailed when the run has ended otherwise than done."""
        if self.is_final and self.status is not RunStatus.DONE:
            raise RunFailed(
                f"{self.name} ended {self.status}: {self.why} (`run.logs()` has its output)",
                self.state,
                exit_status(self.state),
            )
        return self

    def logs(
        self,
        job: str | int | None = None,
        *,
        follow: bool = False,
        attempt: str | None = None,
        offset: int = 0,
    ) -> Iterator[Output]:
        """Yield the output of a job: its latest attempt, or `attempt`, from this offset on.

        `job`: id, GROUP/COOKIE or index; by default the first. `follow`: continue as it comes,
        through cut connections, with the later attempts of the job, until the run has ended. To
        resume, give the `attempt` and the `end` of the last piece.
        """
        if offset < 0:
            raise UsageError(f"offset: {offset} is less than 0; it counts bytes from 0")
        found = self._job(job)
        if follow:
            yield from self._followed(found, attempt, offset)
            return
        chosen = attempt or (found.attempts[-1].id if found.attempts else None)
        if chosen is None:
            return
        stored = self._rest.stored_frames(self.id, attempt=chosen, job=found.id, offset=offset)
        for frame in unread(stored, offset):
            yield _output(found, chosen, frame)

    def results(self, *, timeout: float | None = None) -> Iterator[Result]:
        """Yield what became of each parameter set of a sweep, as the sets end: each once, when its
        outputs are here, and what never ran at the end. Raises TimeoutError after so many seconds.
        """
        known: set[int] = set()
        counted: tuple[int, ...] | None = None
        asked_at = float("-inf")
        for state in self.states(timeout=timeout):
            if state.sweep is None:
                raise UsageError(f"{self.name} is no sweep: it has no parameter sets")
            sweep, is_final = state.sweep, state.status in FINAL_RUN_STATUSES
            now = (sweep.done, sweep.failed, sweep.stopped, len(state.jobs))
            if now == counted and not is_final:
                continue
            # One question for all that end within a moment: a list has up to 10,000 sets.
            time.sleep(max(0.0, asked_at + _RESULTS_SECONDS - time.monotonic()))
            asked_at, counted = time.monotonic(), now
            for one in all_sets(self._rest, self.id, status=None if is_final else _ENDED_SETS):
                if one.number not in known and (is_final or one.finished_at is not None):
                    known.add(one.number)
                    yield _result(one)

    def retry(self, sets: str | None = None) -> Run:
        """Run parameter sets of this sweep again: those that failed, or `sets`, by number (`3,7-9`)
        or value (`seed=3`), of those that failed or were stopped. Return the run that has them:
        this one, or a new one if this one has ended; its `left_out` tells of sets whose predecessor
        must be retried first."""
        data = self._rest.post(run_path(self.id, "sets/retry"), {"which": sets})
        state = decode(data, RetriedView)
        found = self if state.id == self.id else Run(self.client, state)
        found._state, found.left_out = state, state.left_out
        return found

    def stop_sets(self, sets: str) -> Run:
        """Stop parameter sets of this live sweep, by number (`3,7-9`) or value (`seed=3`)."""
        return self._do("sets/stop", {"which": sets})

    def scale_sweep(self, max_parallel: int | None) -> Run:
        """Change how many parameter sets of this live sweep run at once; None: as many as there is
        room for."""
        return self._do("sets/parallel", {"max_parallel": max_parallel})

    def lines(self, job: str | int | None = None, *, follow: bool = False) -> Iterator[str]:
        """Yield the output as lines of text, without their ends."""
        rest = b""
        for piece in self.logs(job, follow=follow):
            *whole, rest = (rest + piece.data).split(b"\n")
            yield from (line.decode(errors="replace") for line in whole)
        if rest:
            yield rest.decode(errors="replace")

    def print_logs(self, job: str | int | None = None, *, follow: bool = True) -> None:
        """Print the output as it comes, until the run has ended."""
        for piece in self.logs(job, follow=follow):
            sys.stdout.write(piece.text)
            sys.stdout.flush()

    def outputs(
        self, job: str | int | None = None, *, attempt: str | int | None = None
    ) -> tuple[OutputsView, ...]:
        """Return what the jobs left in their output folders; of one job with its files.

        `job`: id, GROUP/COOKIE or index; by default all. `attempt`: id, or number from 0; by
        default the latest.
        """
        key = None if job is None else self._job(job).id
        return outputs.listed(outputs.read(self._rest, self.id, job=key, attempt=attempt))

    def pull_outputs(
        self,
        folder: str | os.PathLike[str],
        job: str | int | None = None,
        *,
        attempt: str | int | None = None,
        progress: bool | Tell | None = None,
    ) -> list[Path]:
        """Download what the jobs left, and return the folders that have it.

        The outputs of one job go into `folder`, those of several each into GROUP-COOKIE below it. A
        download that was cut goes on where it stopped, also when this is called again. `progress`
        is shown as by `wait`. Raises OutputsMissing, after the others, when some cannot be brought.
        """
        found = self.outputs(job, attempt=attempt)
        show = notebook.shower(progress)
        pulled = outputs.pull(
            self._rest, self.id, found, Path(folder), lambda text: show(f"{self.name}: {text}")
        )
        return [one.folder for one in pulled]

    def events(self, *, after: int = 0, follow: bool = False) -> Iterator[EventView]:
        """Yield what happened to the run, as `Client.events` does."""
        return self.client.events(self, after=after, follow=follow)

    def metrics(self, job: str | int | None = None) -> MetricsAnswer:
        """Return what the running jobs use now."""
        key = None if job is None else self._job(job).id
        return decode(self._rest.get(run_path(self.id, "metrics"), job=key), MetricsAnswer)

    def metrics_history(
        self, job: str | int | None = None, *, seconds: float = 3600.0, points: int = 120
    ) -> MetricsHistoryAnswer:
        """Return what the jobs used in the last `seconds`, or before their end, for a plot."""
        key = None if job is None else self._job(job).id
        path = run_path(self.id, "metrics/history")
        data = self._rest.get(path, job=key, seconds=seconds, points=points)
        return decode(data, MetricsHistoryAnswer)

    def explain(self) -> ExplainView:
        """Return why the run waits."""
        return decode(self._rest.get(run_path(self.id, "explain")), ExplainView)

    def forward(
        self, port: int, *, local: int = 0, host: str = "127.0.0.1", job: str | int | None = None
    ) -> LocalPort:
        """Open a local port that leads to a port of a job, also one on its loopback, until closed.

            with run.forward(8080) as tensorboard:
                print(f"http://{tensorboard.address}")

        `local`: the local port; 0: any free one. `job`: id, GROUP/COOKIE or index; by default the
        first. Raises PortTaken, UsageError.
        """
        from fairlead.forward import Forward, Forwarding, LocalPort

        if not 0 < port < 65536 or not 0 <= local < 65536:
            raise UsageError(f"{port} and {local}: give a port from 1 to 65535; `local` may be 0")
        key = None if job is None else self._job(job).id
        wanted = [Forward(port, local)]
        forwarding = Forwarding(self._rest, self.state, key, wanted, self.client.tell, host)
        return LocalPort(forwarding, host)

    def service(self) -> ServiceView:
        """Return the service that this run is: its replicas, its load and its deployments.

        Raises ApiError when the run is no service.
        """
        return decode(self._rest.get(service_path(self.id)), ServiceView)

    def rollback(self, to: int | None = None) -> ServiceView:
        """Bring an earlier deployment of the service back: `to`, by default the latest other one
        that was rolled out. Returns when this is recorded."""
        data = self._rest.post(service_path(self.id, "rollback"), {"to": to})
        return decode(data, ServiceView)

    def stop(self, *, abort: bool = False) -> Run:
        """Stop the run; `abort`: without the grace of its jobs. Returns when this is recorded."""
        return self._do("stop", {"abort": abort})

    def complete(self) -> Run:
        """End the run as done now."""
        return self._do("complete", {})

    def suspend(self, *, abort_running: bool = False) -> Run:
        """Suspend the run: no placements, retries or triggers."""
        return self._do("suspend", {"abort_running": abort_running})

    def resume(self) -> Run:
        """Resume a suspended run."""
        return self._do("resume", {})

    def scale(self, nodes: int, *, group: str = "main") -> Run:
        """Change the number of jobs of a group that is no gang."""
        return self._do("scale", {"group": group, "nodes": nodes})

    def abort_job(self, job: str | int) -> Run:
        """End a job's attempt at once; it comes back under the default retry."""
        return self._do_job(job, "abort")

    def abandon_job(self, job: str | int) -> Run:
        """Let the run go on without a job."""
        return self._do_job(job, "abandon")

    def interrupt_job(self, job: str | int) -> Run:
        """Ask a job to end by itself."""
        return self._do_job(job, "interrupt")

    def _do(self, action: str, body: Mapping[str, object]) -> Run:
        self._state = decode(self._rest.post(run_path(self.id, action), body), RunView)
        return self

    def _do_job(self, job: str | int, action: str) -> Run:
        path = job_path(self.id, self._job(job).id, action)
        self._state = decode(self._rest.post(path, {}), RunView)
        return self

    def _job(self, key: str | int | None) -> JobView:
        try:
            return find_job(self.state, key)
        except UsageError:
            if self.state.sweep is None:
                raise
        # A watch of a sweep tells of the sets that have not ended; the run itself has all.
        return find_job(self.refresh().state, key)

    def _watched(self, timeout: float | None) -> Iterator[WatchLine]:
        with _ending_after(self._rest, timeout, self) as rest:
            yield from follow_run(rest, self.id, Outages(self.client.tell))

    def _followed(self, job: JobView, attempt: str | None, offset: int) -> Iterator[Output]:
        """Yield the output of this attempt (by default the present one) and of all later ones."""
        done = set[str]()
        for state in self.states():
            present = next((one for one in state.jobs if one.id == job.id), job)
            first = attempt or (present.attempts[-1].id if present.attempts else None)
            if not done and first is None:
                continue
            for one in _from(present.attempts, first if not done else None):
                if one.id not in done and not never_ran(one):
                    done.add(one.id)
                    yield from self._attempt(job, one.id, offset if one.id == attempt else 0)

    def _attempt(self, job: JobView, attempt: str, offset: int) -> Iterator[Output]:
        for frame in follow_log(self._rest, self.id, attempt, offset, Outages(self.client.tell)):
            yield _output(job, attempt, frame)


def key_of(run: KnownRun | str) -> str:
    """Return the id of a run, or the id or name that was given for one."""
    return run if isinstance(run, str) else run.id


def _result(one: SetView) -> Result:
    return Result(
        number=one.number,
        parameters=one.parameters,
        status=one.status,
        exit_code=one.exit_code,
        message=one.message,
        job=one.jobs[0] if one.jobs else None,
        attempt=one.attempt_id,
        outputs=one.outputs,
    )


def _from(attempts: tuple[AttemptView, ...], first: str | None) -> tuple[AttemptView, ...]:
    """Return the attempts from `first` on; all of them when it is not among the recent ones."""
    starts = [at for at, one in enumerate(attempts) if one.id == first]
    return attempts[starts[0] :] if starts else attempts


def _output(job: JobView, attempt: str, frame: Frame) -> Output:
    return Output(
        job=job_name(job),
        attempt=attempt,
        offset=frame.offset,
        end=frame.end,
        at=datetime.fromtimestamp(frame.time_ns / 1e9, UTC),
        stream=_STREAMS[frame.stream],
        data=frame.payload,
    )


@contextmanager
def _ending_after(
    rest: ControllerClient, timeout: float | None, run: Run
) -> Iterator[ControllerClient]:
    """Give a client whose streams end after so many seconds, with TimeoutError."""
    if timeout is None:
        yield rest
        return
    limited = rest.another()
    timer = threading.Timer(timeout, limited.close)
    # Python waits for other threads before it ends.
    timer.daemon = True
    timer.start()
    try:
        yield limited
    # A blocking read cannot be given a limit from outside: closing its client ends it.
    except ClientClosed:
        raise TimeoutError(f"{run.name} is {run.status} after {timeout:g} s; it goes on") from None
    finally:
        timer.cancel()
        limited.close()
