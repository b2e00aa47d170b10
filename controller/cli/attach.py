"""Beside a run until it is final: its state is shown, the output of its attempts is carried here.

Two threads wait (one on the run, one on the log), the main one decides: so Ctrl-C always works.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from controller.api.documents import AttemptView, RunView, WatchLine
from controller.cli import output
from controller.cli.client import ControllerClient
from controller.cli.follow import News, follow_log, follow_run
from controller.cli.progress import Display, display, step_of
from controller.lifecycle.statuses import FINAL_ATTEMPT_STATUSES, FINAL_RUN_STATUSES


class _Failed:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class _LogEnded:
    pass


_Told = WatchLine | _LogEnded | _Failed


def attach(client: ControllerClient, run: RunView) -> RunView:
    """The final state. Raises CliError when the controller refuses to go on."""
    return _Attachment(client, run, display()).until_final()


class _Attachment:
    def __init__(self, client: ControllerClient, run: RunView, shown: Display) -> None:
        self._client = client
        self._run = run
        self._display = shown
        self._inbox: SimpleQueue[_Told] = SimpleQueue()
        self._news = News(self._tell)
        self._followed: set[str] = set()
        self._following = False
        self._wrote = False

    def until_final(self) -> RunView:
        self._in_thread(self._watch)
        self._take_up(WatchLine(run=self._run))
        try:
            while not self._is_over():
                told = self._inbox.get()
                if isinstance(told, _Failed):
                    raise told.error
                if isinstance(told, _LogEnded):
                    self._following = self._wrote = False
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
        self._follow_next()
        if self._run.status not in FINAL_RUN_STATUSES:
            flows = self._following and self._wrote
            self._display.show(step_of(self._run, told.progress), output_flows=flows)

    def _follow_next(self) -> None:
        """The logs of the first job's attempts, one after the other, none left out."""
        if self._following or not self._run.jobs:
            return
        for attempt in self._run.jobs[0].attempts:
            if attempt.id not in self._followed and not _never_ran(attempt):
                self._followed.add(attempt.id)
                self._following = True
                self._in_thread(partial(self._carry, attempt.id))
                return

    def _watch(self) -> None:
        for told in follow_run(self._client, self._run.id, self._news):
            self._inbox.put(told)

    def _carry(self, attempt_id: str) -> None:
        for frame in follow_log(self._client, self._run.id, attempt_id, 0, self._news):
            self._wrote = True
            self._display.pause()
            output.write_frame(frame)
        self._inbox.put(_LogEnded())

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
