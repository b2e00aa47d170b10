from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import cast

import pytest

from fairlead import follow
from fairlead.cli.commands.jobs import log_reading
from fairlead.cli.log_start import Start
from fairlead.cli.several_logs import MAX_DEAFNESS_SECONDS, next_of
from fairlead.errors import ApiError, ConnectionLost, FairleadError
from fairlead.follow import LOGS_UNREACHABLE, follow_log, unread, until_answered
from fairlead.model.statuses import RunStatus
from fairlead.patience import GIVE_UP_SECONDS, MAX_WAIT_SECONDS, Outages, Patience
from fairlead.rest import ControllerClient
from fairlead.wire.frames import Frame, Stream

AWAY = ConnectionLost("away")


class Days:
    """Time passes only in sleep."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> float:
        return self.now


def test_waits_grow_with_jitter_up_to_a_limit_and_begin_anew_when_found() -> None:
    waits: list[float] = []
    patience = Patience(Outages(lambda _: None), waits.append)
    for _ in range(12):
        patience.lost(AWAY)
    patience.found()
    patience.lost(AWAY)
    assert 0.16 <= waits[0] <= 0.24
    assert all(later > earlier for earlier, later in pairwise(waits[:6]))
    assert max(waits) <= MAX_WAIT_SECONDS * 1.2
    assert 0.16 <= waits[-1] <= 0.24


def test_two_who_wait_tell_once_that_the_controller_is_away_and_back() -> None:
    told: list[str] = []
    outages = Outages(told.append)
    first, second = Patience(outages, lambda _: None), Patience(outages, lambda _: None)
    first.lost(AWAY)
    second.lost(AWAY)
    second.found()
    first.found()
    assert told == ["away; trying again", "the controller is back"]


def lose_for_ever(patience: Patience) -> None:
    while True:
        patience.lost(AWAY)


def test_a_controller_that_stays_away_is_given_up_and_one_that_comes_back_is_not() -> None:
    days = Days()
    patience = Patience(Outages(lambda _: None), days.sleep, days.clock)
    for _ in range(200):
        patience.lost(AWAY)
        patience.found()
    began = days.now
    with pytest.raises(ConnectionLost, match="away; gave up after 15 minutes, but jobs go on"):
        lose_for_ever(patience)
    assert GIVE_UP_SECONDS <= days.now - began <= GIVE_UP_SECONDS + 2 * MAX_WAIT_SECONDS


@pytest.mark.parametrize("passing", [AWAY, ApiError(503, "store_unavailable", "later", None)])
def test_a_passing_error_is_tried_again_in_a_patient_context(passing: FairleadError) -> None:
    waits: list[float] = []
    with Patience(Outages(lambda _: None), waits.append):
        raise passing
    assert len(waits) == 1


def test_a_refusal_ends_a_patient_context_at_once() -> None:
    refusal = ApiError(404, "not_found", "there is no run x", None)
    with pytest.raises(ApiError, match="no run x"), Patience(Outages(lambda _: None)):
        raise refusal


def test_a_question_is_asked_until_it_is_answered() -> None:
    told: list[str] = []
    answers: Iterator[FairleadError | str] = iter([AWAY, "yes"])

    def ask() -> str:
        answer = next(answers)
        if isinstance(answer, FairleadError):
            raise answer
        return answer

    assert until_answered(Outages(told.append), ask) == "yes"
    assert told == ["away; trying again", "the controller is back"]


def frame(offset: int, payload: bytes) -> Frame:
    return Frame(offset, 1, Stream.STDOUT, payload)


def test_bytes_that_come_again_are_left_out() -> None:
    again = iter([frame(0, b"abc"), frame(3, b"def"), frame(3, b"def"), frame(6, b"g")])
    assert [one.payload for one in unread(again, 4)] == [b"ef", b"g"]


class WithoutItsBucket:
    """A controller whose bucket is away for some tries, and then has the second half of a log."""

    def __init__(self, status: RunStatus, tries: float) -> None:
        self._status = status
        self._tries = tries
        self.offsets: list[int] = []

    def followed_frames(
        self, key: str, heard: Callable[[], None], *, offset: int, attempt: str
    ) -> Iterator[Frame]:
        assert (key, attempt) == ("r1", "a1")
        self.offsets.append(offset)
        if len(self.offsets) == 1:
            heard()
            yield frame(0, b"abc")
            raise AWAY
        if len(self.offsets) <= self._tries:
            raise ApiError(503, LOGS_UNREACHABLE, "the bucket of logs does not answer", None)
        heard()
        yield frame(0, b"abcdef")

    def stored_frames(self, key: str, *, attempt: str) -> Iterator[Frame]:
        yield from self.followed_frames(key, lambda: None, offset=0, attempt=attempt)

    def run(self, key: str) -> SimpleNamespace:
        assert key == "r1"
        return SimpleNamespace(status=self._status)


def followed(
    controller: WithoutItsBucket, days: Days, monkeypatch: pytest.MonkeyPatch
) -> Iterator[bytes]:
    patient = partial(Patience, sleep=days.sleep, clock=days.clock)
    monkeypatch.setattr(follow, "Patience", patient)
    client = cast(ControllerClient, controller)
    frames = follow_log(client, "r1", "a1", 0, Outages(lambda _: None))
    return (bytes(one.payload) for one in frames)


def test_the_log_of_a_live_run_is_waited_for_as_long_as_its_bucket_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    days, controller = Days(), WithoutItsBucket(RunStatus.RUNNING, 1000)
    assert list(followed(controller, days, monkeypatch)) == [b"abc", b"def"]
    assert days.now > 5 * GIVE_UP_SECONDS
    assert controller.offsets == [0] + [3] * 1000


def test_the_log_of_a_final_run_is_given_up_if_its_bucket_stays_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    days, controller = Days(), WithoutItsBucket(RunStatus.DONE, math.inf)
    pieces = followed(controller, days, monkeypatch)
    assert next(pieces) == b"abc"
    with pytest.raises(ConnectionLost, match=r"bucket of logs .* gave up after 15 minutes"):
        next(pieces)
    assert days.now <= GIVE_UP_SECONDS + 2 * MAX_WAIT_SECONDS


@pytest.mark.parametrize("start", [Start(tail=1), Start(since=0.0)])
def test_a_start_in_the_log_of_a_live_run_is_looked_for_as_long_as_its_bucket_is_away(
    monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    days, controller = Days(), WithoutItsBucket(RunStatus.RUNNING, 1000)
    monkeypatch.setattr(follow, "Patience", partial(Patience, sleep=days.sleep, clock=days.clock))
    client = cast(ControllerClient, controller)
    frames = log_reading._frames(client, "r1", "a1", Outages(lambda _: None), start)
    assert [bytes(one.payload) for one in frames] == [b"abcdef"]
    assert days.now > 5 * GIVE_UP_SECONDS


class Impatient(SimpleQueue[str]):
    """Notes how long its reader is ready to hear nothing."""

    def __init__(self) -> None:
        self.waits: list[float | None] = []

    def get(self, block: bool = True, timeout: float | None = None) -> str:
        self.waits.append(timeout)
        if len(self.waits) < 3:
            raise Empty
        return "told"


def test_no_wait_of_the_main_thread_is_so_long_that_an_interrupt_is_missed() -> None:
    """One that comes just before a wait is seen when the wait ends."""
    queue = Impatient()
    assert next_of(queue) == "told"
    assert queue.waits == [MAX_DEAFNESS_SECONDS] * 3
    assert MAX_DEAFNESS_SECONDS <= 1.0
