"""Following over connections that break: the same stream goes on where it stopped.

A lost connection is told once and tried again, with growing jittered waits, for as long as the user
lets the command run; a refusal ends it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from controller.cli.client import ControllerClient
from controller.cli.errors import ApiError, ConnectionLost
from controller.lifecycle.statuses import FINAL_RUN_STATUSES

if TYPE_CHECKING:
    from controller.api.documents import WatchLine
    from runner.schemas.frames import Frame

FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 10.0

Tell = Callable[[str], None]


class News:
    """Says once that the controller is away, and once that it is back, however many wait for it."""

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
    """Growing, jittered waits between tries; short again once the controller was found."""

    def __init__(self, news: News, sleep: Callable[[float], None] = time.sleep) -> None:
        self._news = news
        self._sleep = sleep
        self._wait = FIRST_WAIT_SECONDS

    def lost(self, error: Exception) -> None:
        self._news.lost(error)
        self._sleep(self._wait * random.uniform(0.8, 1.2))
        self._wait = min(LONGEST_WAIT_SECONDS, self._wait * 2)

    def found(self) -> None:
        self._news.found()
        self._wait = FIRST_WAIT_SECONDS


def follow_run(client: ControllerClient, run_id: str, news: News) -> Iterator[WatchLine]:
    """The run now and after each change; the last one is final. Raises ApiError."""
    patience = Patience(news)
    while True:
        try:
            for told in client.watch(run_id):
                patience.found()
                yield told
                if told.run is not None and told.run.status in FINAL_RUN_STATUSES:
                    return
            raise ConnectionLost(f"the controller at {client.url} ended the watch")
        except ConnectionLost as error:
            patience.lost(error)
        except ApiError as error:
            if error.status < 500:
                raise
            patience.lost(error)


def follow_log(
    client: ControllerClient, run_id: str, attempt_id: str, offset: int, news: News
) -> Iterator[Frame]:
    """Every frame of the attempt from `offset` on, each byte once. Raises ApiError."""
    patience = Patience(news)
    while True:
        try:
            frames = client.followed_frames(run_id, attempt=attempt_id, offset=offset)
            for frame in unread(frames, offset):
                patience.found()
                offset = frame.end
                yield frame
            return
        except ConnectionLost as error:
            patience.lost(error)
        except ApiError as error:
            if error.status < 500:
                raise
            patience.lost(error)


def unread(frames: Iterator[Frame], offset: int) -> Iterator[Frame]:
    """The parts of the frames at or after `offset`, none twice."""
    from runner.schemas.frames import tail_from

    for frame in frames:
        fresh = tail_from(frame, offset)
        if fresh is not None:
            offset = fresh.end
            yield fresh
