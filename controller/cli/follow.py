"""Follow a run or a log until its end, over connections that break.

A lost connection is reported once, then tried again with growing, jittered waits, until the
controller has been away for a quarter of an hour. A refusal ends it at once. Threads wait (one for
the run, one for each job's log) and the main thread decides, so Ctrl-C always works.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from controller.api.documents import AttemptView, JobView, RunView, WatchLine
from controller.cli import output
from controller.cli.client import ControllerClient
from controller.cli.errors import ApiError, CliError, ConnectionLost
from controller.cli.progress import Display, display, job_name, step_of
from controller.lifecycle.statuses import FINAL_ATTEMPT_STATUSES, FINAL_RUN_STATUSES

if TYPE_CHECKING:
    from controller.api.documents import EventView, WatchLine
    from runner.schemas.frames import Frame
FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 10.0
GIVE_UP_SECONDS = 15 * 60.0
LONGEST_DEAFNESS_SECONDS = 0.5
Tell = Callable[[str], None]
T = TypeVar("T")


class News:
    """Reports once that the controller is away and once that it is back, however many threads wait
    for it."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._away = False
        self._lock = threading.Lock()

    def lost(self, error: Exception) -> None:
        with self._lock:
            if not self._away:
                self._away = True
                self._tell(f"{error}; trying again")

    def found(self) -> None:
        with self._lock:
            if self._away:
                self._away = False
                self._tell("the controller is back")


class Patience:
    """Growing, jittered waits between tries; short again once the controller answered.

    As a context manager it waits when the controller is lost within the block, so that a loop
    around it tries again. If the controller was away for too long, it raises ConnectionLost.
    """

    def __init__(
        self,
        news: News,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._news = news
        self._sleep = sleep
        self._clock = clock
        self._wait = FIRST_WAIT_SECONDS
        self._away_since: float | None = None

    def lost(self, error: CliError) -> None:
        now = self._clock()
        if self._away_since is None:
            self._away_since = now
        if now - self._away_since >= GIVE_UP_SECONDS:
            minutes = round(GIVE_UP_SECONDS / 60)
            raise ConnectionLost(f"{error}; gave up after {minutes} minutes, but jobs go on")
        self._news.lost(error)
        self._sleep(self._wait * random.uniform(0.8, 1.2))
        self._wait = min(LONGEST_WAIT_SECONDS, self._wait * 2)

    def found(self) -> None:
        self._news.found()
        self._wait = FIRST_WAIT_SECONDS
        self._away_since = None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        is_away = isinstance(error, ConnectionLost)
        if isinstance(error, ApiError) and error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            is_away = True
        if isinstance(error, CliError) and is_away:
            self.lost(error)
            return True
        return False


def next_of(queue: SimpleQueue[T]) -> T:
    """Return the next item of other threads, for the main thread.

    A Ctrl-C at the moment when a wait begins is seen only when that wait ends, so each wait is
    short.
    """
    while True:
        with suppress(Empty):
            return queue.get(timeout=LONGEST_DEAFNESS_SECONDS)


def follow_run(client: ControllerClient, run_id: str, news: News) -> Iterator[WatchLine]:
    """Yield the run now and after each change; the last one is final. Raises ApiError,
    ConnectionLost."""
    patience = Patience(news)
    while True:
        with patience:
            for told in client.watch(run_id, patience.found):
                yield told
                if told.run is not None and told.run.status in FINAL_RUN_STATUSES:
                    return
            raise ConnectionLost(f"the controller at {client.url} ended the watch")


def follow_log(
    client: ControllerClient, run_id: str, attempt_id: str, offset: int, news: News
) -> Iterator[Frame]:
    """Yield the attempt's frames from `offset` on, each byte once. Raises ApiError,
    ConnectionLost."""
    patience = Patience(news)
    while True:
        with patience:
            frames = client.followed_frames(
                run_id, patience.found, attempt=attempt_id, offset=offset
            )
            for frame in unread(frames, offset):
                offset = frame.end
                yield frame
            return


def follow_events(
    client: ControllerClient, run: str | None, after: int, news: News
) -> Iterator[EventView]:
    """Yield each event after that number once; those of a run until it has ended. Raises ApiError,
    ConnectionLost."""
    patience = Patience(news)
    while True:
        with patience:
            for event in client.watched_events(run, after, patience.found):
                after = event.seq
                yield event
            if run is not None and client.run(run).status in FINAL_RUN_STATUSES:
                return
            raise ConnectionLost(f"the controller at {client.url} ended the stream")


def patiently(news: News, ask: Callable[[], T]) -> T:
    """Return the answer of a question that can be repeated. Raises ApiError, ConnectionLost."""
    patience = Patience(news)
    while True:
        with patience:
            answer = ask()
            patience.found()
            return answer


def of_what_is_kept(frames: Iterator[Frame], tell: Callable[[str], None]) -> Iterator[Frame]:
    """Yield the frames of one of several logs. If it was removed, report that and let the other
    logs go on."""
    try:
        yield from frames
    except ApiError as error:
        if error.status != HTTPStatus.GONE:
            raise
        tell(str(error))


def unread(frames: Iterator[Frame], offset: int) -> Iterator[Frame]:
    """Yield the parts of the frames at or after `offset`, none twice."""
    from runner.schemas.frames import tail_from

    for frame in frames:
        fresh = tail_from(frame, offset)
        if fresh is not None:
            offset = fresh.end
            yield fresh


MOST_JOBS = 256
"""The output of so many jobs is shown, with one connection each; `fairlead logs` shows that of
others."""


class _Failed:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class _LogEnded:
    def __init__(self, job_id: str) -> None:
        self.job_id = job_id


_Told = WatchLine | _LogEnded | _Failed


def attach(client: ControllerClient, run: RunView) -> RunView:
    """Follow the run and its output; return its final state. Raises CliError when the controller
    refuses."""
    return _Attachment(client, run, display()).until_final()


class _Attachment:
    def __init__(self, client: ControllerClient, run: RunView, shown: Display) -> None:
        self._client = client
        self._run = run
        self._display = shown
        self._inbox: SimpleQueue[_Told] = SimpleQueue()
        self._news = News(self._tell)
        self._followed: set[str] = set()
        self._following: set[str] = set()
        """Ids of the jobs whose attempt is followed now."""
        self._wrote: set[str] = set()
        self._incarnation = 0 if run.incarnation is None else run.incarnation.number

    def until_final(self) -> RunView:
        self._in_thread(self._watch)
        self._take_up(WatchLine(run=self._run))
        try:
            while not self._is_over():
                told = next_of(self._inbox)
                if isinstance(told, _Failed):
                    raise told.error
                if isinstance(told, _LogEnded):
                    self._following.discard(told.job_id)
                    self._wrote.discard(told.job_id)
                    told = WatchLine(run=self._run)
                self._take_up(told)
        finally:
            self._display.pause()
        return self._run

    def _is_over(self) -> bool:
        return self._run.status in FINAL_RUN_STATUSES and not self._following

    def _take_up(self, told: WatchLine) -> None:
        assert told.run is not None
        self._run = told.run
        self._tell_switches()
        for job in self._run.jobs[:MOST_JOBS]:
            self._follow_next(job)
        if self._run.status not in FINAL_RUN_STATUSES:
            flows = bool(self._following & self._wrote)
            self._display.show(step_of(self._run, told.progress), output_flows=flows)

    def _tell_switches(self) -> None:
        fresh = [one for one in self._run.switches if one.incarnation > self._incarnation]
        for switch in fresh:
            because = f"{switch.reason}: {switch.message}" if switch.message else switch.reason
            self._tell(f"incarnation {switch.incarnation} begins: {because}")
            self._incarnation = switch.incarnation

    def _follow_next(self, job: JobView) -> None:
        """Follow the logs of a job's attempts one after the other, without leaving one out."""
        if job.id in self._following:
            return
        for attempt in job.attempts:
            if attempt.id not in self._followed and not _never_ran(attempt):
                self._followed.add(attempt.id)
                self._following.add(job.id)
                writer = output.log_writer(job_name(job), alone=len(self._run.jobs) == 1)
                self._in_thread(partial(self._carry, job.id, attempt.id, writer))
                return

    def _watch(self) -> None:
        for told in follow_run(self._client, self._run.id, self._news):
            self._inbox.put(told)

    def _carry(self, job_id: str, attempt_id: str, writer: output.Writer) -> None:
        frames = follow_log(self._client, self._run.id, attempt_id, 0, self._news)
        for frame in of_what_is_kept(frames, self._tell):
            self._wrote.add(job_id)
            self._display.pause()
            writer.write(frame)
        writer.close()
        self._inbox.put(_LogEnded(job_id))

    def _tell(self, text: str) -> None:
        self._display.pause()
        output.note(text)

    def _in_thread(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self._inbox.put(_Failed(error))

        threading.Thread(target=guarded, daemon=True).start()


def _never_ran(attempt: AttemptView) -> bool:
    return attempt.status in FINAL_ATTEMPT_STATUSES and attempt.running_at is None
