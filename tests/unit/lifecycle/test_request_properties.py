"""Requests of users in any order, beside any reports: what must always hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Self

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.lifecycle.decide import Decision, decide
from controller.lifecycle.draft import DecisionContext
from controller.lifecycle.effects import wanted
from controller.lifecycle.model import RetryEvent, RetryPolicy, StartupOrder
from controller.lifecycle.reports import NodeDisconnected, Preempted, Report, ScaleRequested
from fairlead.model.reasons import Reason
from fairlead.model.statuses import (
    FINAL_ATTEMPT_STATUSES,
    FINAL_RUN_STATUSES,
    AllocationState,
)
from tests.unit.lifecycle.asking import Ask
from tests.unit.lifecycle.play import START, Play

JOBS = 2
PERIOD = 500.0
Maker = Callable[[Play, int], Report]

REQUESTS: Sequence[Maker] = (
    lambda play, n: play.stop(),
    lambda play, n: play.stop(abort=True),
    lambda play, n: Ask(play).complete(),
    lambda play, n: Ask(play).suspend(),
    lambda play, n: Ask(play).suspend(abort_running=True),
    lambda play, n: Ask(play).resume(),
    lambda play, n: Ask(play).scale(n + 1),
    lambda play, n: Ask(play).scale(3),
    lambda play, n: Ask(play).abort(n),
    lambda play, n: Ask(play).abandon(n),
    lambda play, n: Ask(play).interrupt(n),
)
REPORTS: Sequence[Maker] = (
    lambda play, n: play.exited(n),
    lambda play, n: play.exited(n, Reason.CONTAINER_EXITED_WITH_ERROR),
    lambda play, n: play.exited(n, Reason.INTERRUPTED),
    lambda play, n: play.seen(n, terminated=True, reason=Reason.INSTANCE_UNREACHABLE),
    lambda play, n: play.seen(n, terminated=True, reason=Reason.INCARNATION_CHANGED),
    lambda play, n: Preempted(run_id=play.run_id, attempt_id=play.attempt(n).id, message="me"),
    lambda play, n: play.link(down=True, node=f"n{n}"),
    lambda play, n: play.link(down=False, node=f"n{n}"),
    lambda play, n: play.node_gone(f"n{n}", confirmed=True),
)
MOVES: Sequence[Callable[[Play, int], object]] = (
    lambda play, n: play.to_running(n, f"n{n}"),
    lambda play, n: play.to_container(n, f"n{n}"),
    lambda play, n: play.clean(n),
    lambda play, n: play.wait(PERIOD),
    lambda play, n: play.wait(20.0),
)


class Timetable(Play):
    """A run whose expressions, if it has any, fire every PERIOD seconds."""

    def send(self, *reports: Report) -> Self:
        passed = (self.now - START) // PERIOD
        self.around = DecisionContext(next_trigger=START + (passed + 1) * PERIOD)
        return super().send(*reports)


def _started(
    scheduled: bool, order: StartupOrder, retry: RetryPolicy, tolerated: int, restart: bool
) -> Play:
    play = Timetable(
        jobs=JOBS,
        retry=retry,
        startup_order=order,
        max_failed_jobs=tolerated,
        restart_completed_jobs=restart,
        schedule=("* * * * *",) if scheduled else (),
        max_duration=2000.0,
    )
    return play.wait(PERIOD) if scheduled else play


policies = st.builds(
    RetryPolicy,
    on_events=st.frozensets(st.sampled_from(list(RetryEvent))),
    max_failures=st.none() | st.integers(0, 2),
)
plays = st.builds(
    _started,
    st.booleans(),
    st.sampled_from(list(StartupOrder)),
    policies,
    st.integers(0, 1),
    st.booleans(),
)
request = st.tuples(st.sampled_from(REQUESTS), st.integers(0, JOBS - 1))
news = st.tuples(st.sampled_from([*REQUESTS, *REPORTS]), st.integers(0, JOBS - 1))
move = st.tuples(st.sampled_from(MOVES), st.integers(0, JOBS - 1))
lives = st.lists(move | news, max_size=25)


def _has_attempts(play: Play, n: int) -> bool:
    return bool(play.job(n).attempts)


def _live(play: Play, steps: list[tuple[Callable[[Play, int], object], int]]) -> None:
    for do, n in steps:
        if not _has_attempts(play, n):
            continue
        asked = do(play, n)
        if not isinstance(asked, Play):
            play.send(asked)  # type: ignore[arg-type]
        _check(play)


def _check(play: Play) -> None:
    run = play.run
    assert play.wake_at is None or play.wake_at > play.now
    assert (run.finished_at is None) == (run.status not in FINAL_RUN_STATUSES)
    numbers = [over.number for over in run.occurrences]
    assert numbers == sorted(set(numbers))
    for job in play.state.jobs:
        for attempt in job.attempts[:-1]:
            assert attempt.status in FINAL_ATTEMPT_STATUSES
        assert [a.number for a in job.attempts] == list(range(len(job.attempts)))
        assert [a.occurrence for a in job.attempts] == sorted(a.occurrence for a in job.attempts)
    slots = [(job.group, job.cookie) for job in play.state.jobs]
    assert len(set(slots)) == len(slots)


def _decide(play: Play, reports: Sequence[Report]) -> Decision:
    ids = itertools.count()
    return decide(play.state, reports, play.now, lambda: f"new{next(ids)}", context=play.around)


@settings(max_examples=150, deadline=None)
@given(plays, lives)
def test_no_sequence_of_requests_breaks_what_always_holds(
    play: Play, steps: list[tuple[Callable[[Play, int], object], int]]
) -> None:
    _live(play, steps)


@settings(max_examples=150, deadline=None)
@given(plays, lives, st.lists(news, min_size=2, max_size=6), st.data())
def test_the_order_of_simultaneous_requests_and_reports_does_not_matter(
    play: Play,
    steps: list[tuple[Callable[[Play, int], object], int]],
    last: list[tuple[Maker, int]],
    data: st.DataObject,
) -> None:
    _live(play, steps)
    made = [make(play, n) for make, n in last if _has_attempts(play, n)]
    reports = _one_word_about_each(made)
    shuffled = data.draw(st.permutations(reports))
    assert _decide(play, shuffled).state == _decide(play, reports).state


def _one_word_about_each(reports: list[Report]) -> list[Report]:
    """A link is up or down in one turn, a runner exits once."""
    kept: dict[object, Report] = {}
    for at, report in enumerate(reports):
        name = type(report).__name__
        if isinstance(report, NodeDisconnected):
            kept[name, report.node_id] = report
        elif name == "RunnerExited":
            kept[name, report.attempt_id] = report  # type: ignore[union-attr]
        else:
            kept[at] = report
    return list(kept.values())


@settings(max_examples=150, deadline=None)
@given(plays, lives, st.lists(request, max_size=5))
def test_a_request_that_is_repeated_in_its_turn_changes_nothing(
    play: Play,
    steps: list[tuple[Callable[[Play, int], object], int]],
    last: list[tuple[Maker, int]],
) -> None:
    _live(play, steps)
    asked = [make(play, n) for make, n in last if _has_attempts(play, n)]
    once = _decide(play, asked)
    assert _decide(play, [*asked, *asked]).state == once.state


@settings(max_examples=100, deadline=None)
@given(plays, lives, st.booleans())
def test_a_run_that_is_stopped_ends_once_everything_wanted_was_done(
    play: Play, steps: list[tuple[Callable[[Play, int], object], int]], abort: bool
) -> None:
    _live(play, steps)
    play.send(play.stop(abort=abort))
    for _ in range(2):
        for n in range(len(play.state.jobs)):
            if _has_attempts(play, n):
                play.clean(n)
        play.release_places()
    assert play.run.status in FINAL_RUN_STATUSES
    assert {a.state for a in play.state.allocations} <= {AllocationState.RELEASED}
    for job in play.state.jobs:
        assert not job.attempts or wanted(play.state, job.attempts[-1], play.now) == ()


@settings(max_examples=100, deadline=None)
@given(plays, lives)
def test_a_turn_without_news_changes_nothing(
    play: Play, steps: list[tuple[Callable[[Play, int], object], int]]
) -> None:
    _live(play, steps)
    assert _decide(play, ()).state is play.state


@settings(max_examples=100, deadline=None)
@given(st.permutations([1, 2, 3]), plays)
def test_the_largest_of_several_sizes_holds(sizes: list[int], play: Play) -> None:
    play.send(*(ScaleRequested(run_id=play.run_id, group="main", nodes=n, by="ada") for n in sizes))
    assert sum(not job.scaled_down for job in play.state.jobs) == 3
