"""`logs`: print the bytes of a job's output as the job wrote them.

The command is in `logs`; see `runs.applying` for why this is apart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.jobs.logged_runs import LoggedJob, LoggedRun
from fairlead.cli.durations import seconds_of
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.cli.log_ahead import stored_logs
from fairlead.cli.log_start import Start, tail_of
from fairlead.cli.several_logs import next_of, of_what_is_kept
from fairlead.follow import follow_log, unread, until_answered, until_log_answered
from fairlead.patience import Outages
from fairlead.rest import ControllerClient, decode, run_path
from fairlead.summaries.job_names import job_name

if TYPE_CHECKING:
    from fairlead.wire.frames import Frame


def logs(
    run: str,
    job_: str | None = None,
    *,
    follow: bool = False,
    offset: int = 0,
    job: str | None = None,
    attempt: str | None = None,
    tail: int | None = None,
    since: str | None = None,
    timestamps: bool = False,
    all_jobs: bool = False,
    failed: bool = False,
    jobs: str | None = None,
    client: ControllerClient | None = None,
    found: bytes | None = None,
) -> int:
    """Print the log of a run, or of one job. Return the exit status. Raises CliError.

    `found`: the run's document, if `client` has asked for it already.
    """
    of_sets = failed or jobs is not None
    if of_sets and (job_ or job or attempt or all_jobs or follow or offset):
        option = "--failed" if failed else "--jobs"
        raise CliError(f"{option} goes with --tail, --since and --timestamps alone", EXIT_USAGE)
    if all_jobs and (job_ or job or attempt):
        raise CliError("give either --all-jobs or one job", EXIT_USAGE)
    start = Start(tail=tail_of(tail), since=moment_of(since, time.time()))
    if start.is_given and offset:
        raise CliError("give either --offset, or --tail or --since", EXIT_USAGE)
    if offset < 0:
        raise CliError(f"--offset: {offset} is less than 0", exit_status=2)
    client = client or settings.client()
    if of_sets:
        _of_sets(client, run, jobs, start, failed=failed, timestamps=timestamps)
        return 0
    key = job_ or job
    of_all = key is None and attempt is None
    outages = Outages(output.note)
    if follow:
        found = until_answered(outages, partial(client.get, run_path(run)))
    elif found is None and of_all:
        found = client.get(run_path(run))
    state = None if found is None else decode(found, LoggedRun)
    if found is not None and state is not None and of_all:
        if follow and state.sweep is not None and not state.is_over:
            return _of_sweep(client, found, start, timestamps=timestamps)
        if len(state.jobs) > 1:
            if offset:
                raise CliError("--offset: which job's? Give JOB (`fairlead inspect` names them)", 2)
            _of_all(client, state, outages if follow else None, start, timestamps=timestamps)
            return 0
    if start.is_given:
        stored = partial(client.stored_frames, run, job=key, attempt=attempt)
        offset = _offset_of(client, run, start, stored, outages if follow else None)
    if follow and state is not None and not state.is_past(key, attempt):
        frames = follow_log(client, state.id, state.attempt(key, attempt), offset, outages)
    else:
        rest = client.stored_frames(run, job=key, attempt=attempt, offset=offset)
        frames = unread(rest, offset)
    writer = output.log_writer("", alone=True, timestamps=timestamps)
    for frame in frames:
        writer.write(frame)
    writer.close()
    return 0


def moment_of(text: str | None, now: float) -> float | None:
    """Return the moment of `--since` in Unix seconds. Raises CliError."""
    if text is None:
        return None
    # A duration such as `10m` is no ISO time, and is read below.
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    seconds = seconds_of(text, "--since")
    assert seconds is not None
    return now - seconds


def _of_sets(
    client: ControllerClient,
    run: str,
    which: str | None,
    start: Start,
    *,
    failed: bool,
    timestamps: bool,
) -> None:
    """Print the log of each chosen set's attempt that decided."""
    from fairlead.model.sweep import SetStatus
    from fairlead.sweeps import all_sets, outcome_of, written

    # A retry may give the name to another run meanwhile.
    run_id = client.run(run).id
    chosen = all_sets(client, run_id, which, SetStatus.FAILED if failed else None)
    wanted = ((one, one.attempt_id) for one in chosen if one.attempt_id is not None)
    for one, frames in stored_logs(client, run_id, start, wanted):
        about = one.message or outcome_of(one) or one.status
        output.note(f"job {one.number} ({written(one)}): {about}")
        _write(frames, str(one.number), timestamps)


def _write(frames: Iterator[Frame], name: str, timestamps: bool) -> None:
    writer = output.log_writer(name, alone=False, timestamps=timestamps)
    for frame in of_what_is_kept(frames, output.note):
        writer.write(frame)
    writer.close()


def _of_sweep(client: ControllerClient, found: bytes, start: Start, *, timestamps: bool) -> int:
    """Follow a sweep: the output of each set as it runs, and at the end which sets failed."""
    from fairlead.cli.commands.runs.sweeps import tell_failed
    from fairlead.cli.follow import Shown, attach
    from fairlead.documents.runs import RunView
    from fairlead.summaries.progress import why

    run = decode(found, RunView)
    final = attach(client, run, start=start, shown=Shown.ALL, timestamps=timestamps)
    tell_failed(client, final)
    output.note(f"{final.name}: {final.status}: {why(final)}")
    return 0


def _of_all(
    client: ControllerClient,
    run: LoggedRun,
    outages: Outages | None,
    start: Start,
    *,
    timestamps: bool,
) -> None:
    """Print each job's latest attempt: stored logs job by job (`outages` None), followed logs as
    they come."""
    works = [job for job in run.jobs if job.attempts]
    if outages is None:
        wanted = ((job_name(job), job.attempts[-1].id) for job in works)
        for name, frames in stored_logs(client, run.id, start, wanted):
            _write(frames, name, timestamps)
        return
    ended: SimpleQueue[BaseException | None] = SimpleQueue()
    for job in works:
        work = partial(_carry, client, run.id, job, outages, start, timestamps)
        # A daemon: after Ctrl-C the command must not wait for a log that is silent.
        threading.Thread(target=_guarded, args=(work, ended), daemon=True).start()
    for _ in works:
        error = next_of(ended)
        if error is not None:
            raise error


def _guarded(work: Callable[[], None], ended: SimpleQueue[BaseException | None]) -> None:
    try:
        work()
    # In a thread, an exception would be printed and lost: the main thread raises it.
    except BaseException as error:
        ended.put(error)
    else:
        ended.put(None)


def _carry(
    client: ControllerClient,
    run_id: str,
    job: LoggedJob,
    outages: Outages,
    start: Start,
    timestamps: bool,
) -> None:
    """Print one log as it comes."""
    frames = _frames(client, run_id, job.attempts[-1].id, outages, start)
    _write(frames, job_name(job), timestamps)


def _frames(
    client: ControllerClient, run_id: str, attempt_id: str, outages: Outages, start: Start
) -> Iterator[Frame]:
    """Yield the frames of one log from its start on, as they come."""
    at = 0
    if start.is_given:
        stored = partial(client.stored_frames, run_id, attempt=attempt_id)
        at = _offset_of(client, run_id, start, stored, outages)
    yield from follow_log(client, run_id, attempt_id, at, outages)


def _offset_of(
    client: ControllerClient,
    run: str,
    start: Start,
    stored: Callable[[], Iterable[Frame]],
    outages: Outages | None,
) -> int:
    """Return the offset of the start; with `outages`, a controller that is away is waited for, and
    so is the bucket of a live run's log."""
    if outages is None:
        return start.offset(stored())
    return until_log_answered(client, run, outages, lambda: start.offset(stored()))
