"""Follow a run and the output of all its jobs on a terminal.

Threads wait (one for the run, one for each job's log) and the main thread decides, so Ctrl-C always
works.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from fairlead.cli import output
from fairlead.cli.display import Display, display
from fairlead.cli.log_start import Start
from fairlead.cli.several_logs import next_of, of_what_is_kept
from fairlead.configuration.text.dstack import ports_of
from fairlead.documents.jobs import JobView
from fairlead.documents.runs import RunView, WatchLine
from fairlead.follow import follow_log, follow_run, until_log_answered
from fairlead.model.statuses import FINAL_RUN_STATUSES, AttemptStatus
from fairlead.patience import Outages
from fairlead.rest import ControllerClient
from fairlead.summaries.dev_environments import how_to_open, opens
from fairlead.summaries.job_names import job_name
from fairlead.summaries.progress import comebacks, find_job, grants, never_ran, step_of

if TYPE_CHECKING:
    from fairlead.forward import Forwarding
    from fairlead.wire.frames import Frame
FROM_FIRST = Start()
MAX_JOBS = 256
"""The output of so many jobs is shown, with one connection each; `fairlead logs` shows that of
others."""


class Shown(StrEnum):
    """Which jobs' output is shown."""

    USUAL = "usual"
    """Those of a sweep not: they begin and end faster than somebody reads."""
    ALL = "all"
    NONE = "none"


class _Failed:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Left:
    """The run is followed no further, although it lives."""


class _LogEnded:
    def __init__(self, job_id: str, attempt_id: str) -> None:
        self.job_id = job_id
        self.attempt_id = attempt_id


_InboxItem = WatchLine | _LogEnded | _Left | _Failed


def attach(
    client: ControllerClient,
    run: RunView,
    job: str | None = None,
    *,
    beside_json: bool = False,
    start: Start = FROM_FIRST,
    shown: Shown = Shown.USUAL,
    timestamps: bool = False,
) -> RunView:
    """Follow the run and its output; return its final state. Raises ApiError when the controller
    refuses.

    `job`: follow only that job. Its ports, by default those of the first job, are forwarded while
    it runs. `beside_json`: the output goes to stderr, because stdout is for a document. `start`:
    where the output of each job's present attempt begins; not given: with its first attempt.
    """
    writer = partial(output.log_writer, beside_json=beside_json, timestamps=timestamps)
    attachment = Attachment(client, run, display(), job, shown=shown, writer=writer)
    if start.is_given:
        attachment.begin_with(start)
    try:
        return attachment.until_final()
    finally:
        attachment.close()


class Attachment:
    """One run that is followed here; close it in the end."""

    def __init__(
        self,
        client: ControllerClient,
        run: RunView,
        on: Display,
        job: str | None = None,
        *,
        shown: Shown = Shown.USUAL,
        writer: Callable[..., output.Writer] = output.log_writer,
    ) -> None:
        self._client = client
        self._writer = writer
        self._job = job
        self._shown = shown
        forwards = shown is Shown.USUAL
        self._forwarding = _forwarding_of(client, run, job, self._tell) if forwards else None
        self._run = run
        self._display = on
        self._inbox: SimpleQueue[_InboxItem] = SimpleQueue()
        self._is_watched = False
        self._outages = Outages(self._tell)
        self._followed: set[str] = set()
        self._following: set[str] = set()
        """Ids of the jobs whose attempt is followed now."""
        self._wrote: set[str] = set()
        self._granted: set[tuple[str, str]] = set()
        self._starts: dict[str, Start] = {}
        """Where the output of an attempt begins, by its id; others begin with their first byte."""
        self._carried: set[str] = set()
        """Ids of the attempts whose output is here."""
        self._came_back: set[str] = set()
        self._opened: set[str] = set()
        """Ids of the attempts of which was told how to open them."""
        self._incarnation = 0 if run.incarnation is None else run.incarnation.number

    def begin_with(self, start: Start) -> None:
        """Leave out the output until now, but for that of each job's present attempt from there."""
        for job in self._run.jobs:
            *earlier, present = job.attempts or (None,)
            passed = {one.id for one in earlier if one is not None}
            self._followed |= passed
            self._carried |= passed
            self._came_back |= passed
            if present is not None:
                self._starts[present.id] = start

    def until_final(self, until: Callable[[threading.Event], bool] | None = None) -> RunView:
        """Follow the run to its end; return its final state.

        `until`: called in a thread of its own; the run is left as it is once it returns True. The
        event that it gets says that nobody waits for it any more. A run that was left can be
        followed further: its output has been shown meanwhile.
        """
        over = threading.Event()
        if until is not None:
            self._in_thread(partial(self._leave, until, over))
        if not self._is_watched:
            self._is_watched = True
            self._in_thread(self._watch)
            self._take_up(WatchLine(run=self._run))
        try:
            while not self._is_over():
                line = next_of(self._inbox)
                if isinstance(line, _Failed):
                    raise line.error
                if isinstance(line, _Left):
                    break
                if isinstance(line, _LogEnded):
                    self._following.discard(line.job_id)
                    self._carried.add(line.attempt_id)
                    self._wrote.discard(line.job_id)
                    line = WatchLine(run=self._run)
                self._take_up(line)
        finally:
            over.set()
            self._display.pause()
        return self._run

    def close(self) -> None:
        """Close its forwarded ports."""
        if self._forwarding is not None:
            self._forwarding.stop()

    @property
    def _is_alone(self) -> bool:
        return self._job is not None or (self._run.sweep is None and len(self._run.jobs) == 1)

    def _is_over(self) -> bool:
        return self._run.status in FINAL_RUN_STATUSES and not self._following

    def _take_up(self, line: WatchLine) -> None:
        assert line.run is not None
        self._run = line.run
        self._tell_switches()
        self._tell_grants()
        self._tell_how_to_open()
        jobs = self._chosen_jobs()
        for job in jobs:
            self._follow_next(job)
        self._tell_comebacks(jobs)
        self._forward_ports()
        if self._run.status not in FINAL_RUN_STATUSES:
            flows = bool(self._following & self._wrote)
            self._display.show(step_of(self._run, line.progress), output_flows=flows)

    def _chosen_jobs(self) -> Sequence[JobView]:
        """Return the jobs whose output is shown."""
        if self._job:
            return [find_job(self._run, self._job)]
        leaves_out = self._shown is Shown.USUAL and self._run.sweep is not None
        if leaves_out or self._shown is Shown.NONE:
            return ()
        return self._run.jobs[:MAX_JOBS]

    def _forward_ports(self) -> None:
        """Forward the ports from the moment when the job runs first."""
        if self._forwarding is None or not self._run.jobs:  # no set of a sweep lives
            return
        if find_job(self._run, self._job).status == AttemptStatus.RUNNING:
            self._forwarding.start()

    def _tell_switches(self) -> None:
        fresh = [one for one in self._run.switches if one.incarnation > self._incarnation]
        for switch in fresh:
            because = f"{switch.reason}: {switch.message}" if switch.message else switch.reason
            self._tell(f"incarnation {switch.incarnation} begins: {because}")
            self._incarnation = switch.incarnation

    def _tell_grants(self) -> None:
        """Tell each kind of grant once, however many jobs get it later."""
        for kind, sentence in grants(self._run).items():
            if kind not in self._granted:
                self._granted.add(kind)
                self._tell(sentence)

    def _tell_comebacks(self, followed: Sequence[JobView]) -> None:
        """Tell which attempts ended and come back, each after its output; jobs with the same
        sentence are told together."""
        alike: dict[str, list[str]] = {}
        ids = {job.id for job in followed}
        for job, attempt, sentence in comebacks(self._run):
            has_output = job.id in ids and not never_ran(attempt)
            if (has_output and attempt.id not in self._carried) or attempt.id in self._came_back:
                continue
            if self._job and job.id not in ids:
                continue
            self._came_back.add(attempt.id)
            alike.setdefault(sentence, []).append(job_name(job))
        for sentence, names in alike.items():
            several = f" and {len(names) - 1} more" if names[1:] else ""
            self._tell(sentence if self._is_alone else f"{names[0]}{several}: {sentence}")

    def _tell_how_to_open(self) -> None:
        if not opens(self._run):
            return
        attempt = self._run.jobs[0].attempts[-1]
        if attempt.id not in self._opened:
            self._opened.add(attempt.id)
            for line in how_to_open(self._run, self._client.url):
                self._tell(line)

    def _follow_next(self, job: JobView) -> None:
        """Follow the logs of a job's attempts one after the other, without leaving one out."""
        if job.id in self._following:
            return
        for attempt in job.attempts:
            if attempt.id not in self._followed and not never_ran(attempt):
                self._followed.add(attempt.id)
                self._following.add(job.id)
                # A set of a sweep is known by its number, as in `ps RUN --jobs`.
                name = job_name(job) if self._run.sweep is None else str(job.index)
                writer = self._writer(name, alone=self._is_alone)
                self._in_thread(partial(self._carry, job.id, attempt.id, writer))
                return

    def _leave(self, until: Callable[[threading.Event], bool], over: threading.Event) -> None:
        if until(over):
            self._inbox.put(_Left())

    def _watch(self) -> None:
        for line in follow_run(self._client, self._run.id, self._outages):
            self._inbox.put(line)

    def _carry(self, job_id: str, attempt_id: str, writer: output.Writer) -> None:
        for frame in of_what_is_kept(self._frames(attempt_id), self._tell):
            self._wrote.add(job_id)
            self._display.pause()
            writer.write(frame)
        writer.close()
        self._inbox.put(_LogEnded(job_id, attempt_id))

    def _frames(self, attempt_id: str) -> Iterator[Frame]:
        client, run_id, offset = self._client, self._run.id, 0
        if (start := self._starts.get(attempt_id)) is not None:
            offset = until_log_answered(
                client,
                run_id,
                self._outages,
                lambda: start.offset(client.stored_frames(run_id, attempt=attempt_id)),
            )
        yield from follow_log(client, run_id, attempt_id, offset, self._outages)

    def _tell(self, text: str) -> None:
        self._display.pause()
        output.note(text)

    def _in_thread(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                # The main thread raises it: here it would end this thread alone.
                self._inbox.put(_Failed(error))

        threading.Thread(target=guarded, daemon=True).start()


def _forwarding_of(
    client: ControllerClient, run: RunView, job: str | None, tell: Callable[[str], None]
) -> Forwarding | None:
    """Return what forwards the run's ports, if it has any. Call it before other threads begin: they
    import parts of the same library."""
    if not ports_of(run.configuration):
        return None
    from fairlead.forward import Forwarding, declared

    return Forwarding(client, run, job, declared(run), tell)
