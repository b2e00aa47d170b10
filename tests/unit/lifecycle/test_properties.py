"""Properties that hold for all reports, in any order and number."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.lifecycle.decide import Decision, decide
from controller.lifecycle.effects import wanted
from controller.lifecycle.events import EventKind
from controller.lifecycle.membership.ranks import is_held
from controller.lifecycle.model import RetryEvent, RetryPolicy, RunState
from controller.lifecycle.pending_reasons import NoNodeConnected
from controller.lifecycle.reports import (
    AllocationReleased,
    EngineGone,
    LogsComplete,
    NodeDisconnected,
    NotPlaced,
    Placed,
    Report,
    RunnerExited,
    RunnerSilent,
    TaskMissing,
    TaskRefused,
)
from fairlead.model.reasons import Reason
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, AllocationState
from tests.unit.lifecycle.play import RUNNER_SAYS, Play

JOBS = 2
Maker = Callable[[Play, int], Report]

_shim_says = [
    Reason.OUT_OF_MEMORY,
    Reason.IMAGE_PULL_FAILED,
    Reason.PREEMPTED,
    Reason.LOG_QUOTA_EXCEEDED,
    "of a newer shim",
    None,
]

MAKERS: Sequence[Maker] = (
    lambda play, n: play.placed(n, node=f"n{n}"),
    lambda play, n: NotPlaced(
        run_id=play.run_id, attempt_id=play.attempt(n).id, pending_reason=NoNodeConnected()
    ),
    lambda play, n: play.accepted(n),
    lambda play, n: play.seen(n),
    lambda play, n: play.started(n),
    *(lambda play, n, reason=reason: play.exited(n, reason) for reason in sorted(RUNNER_SAYS)),
    *(
        lambda play, n, reason=reason: play.seen(n, terminated=True, reason=reason)
        for reason in _shim_says
    ),
    lambda play, n: play.seen(n, terminated=True, exit_code=3),
    lambda play, n: TaskRefused(
        run_id=play.run_id,
        attempt_id=play.attempt(n).id,
        reason=Reason.VOLUME_ERROR,
        message="no",
    ),
    lambda play, n: TaskMissing(run_id=play.run_id, attempt_id=play.attempt(n).id),
    lambda play, n: RunnerSilent(run_id=play.run_id, attempt_id=play.attempt(n).id),
    lambda play, n: LogsComplete(run_id=play.run_id, attempt_id=play.attempt(n).id),
    lambda play, n: play.removed(n),
    lambda play, n: AllocationReleased(
        run_id=play.run_id, allocation_id=play.attempt(n, 0).allocation_id or "none"
    ),
    lambda play, n: play.link(down=True, node=f"n{n}"),
    lambda play, n: play.link(down=False, node=f"n{n}"),
    lambda play, n: EngineGone(run_id=play.run_id, node_id=f"n{n}", message="away"),
    lambda play, n: play.node_gone(f"n{n}"),
    lambda play, n: play.node_gone(f"n{n}", confirmed=True),
)
STOPS: Sequence[Maker] = (
    lambda play, n: play.stop(),
    lambda play, n: play.stop(abort=True),
)

step = st.tuples(st.sampled_from(MAKERS), st.integers(0, JOBS - 1))
turn = st.tuples(st.lists(step, max_size=5), st.sampled_from([0.0, 1.0, 61.0, 400.0]))
lives = st.lists(turn, max_size=25)
beginnings = st.lists(turn, max_size=3)
policies = st.builds(
    RetryPolicy,
    on_events=st.frozensets(st.sampled_from(list(RetryEvent))),
    max_failures=st.none() | st.integers(0, 2),
    max_preemptions=st.integers(0, 2),
)
STAGES: Sequence[Callable[[Play, int, str], Play]] = (
    lambda play, n, node: play,
    Play.to_provisioning,
    Play.to_pulling,
    Play.to_container,
    Play.to_running,
)


def _on_stage(
    retry: RetryPolicy,
    one_replica: bool,
    tolerated: int,
    restart: bool,
    timeout: float | None,
    stages: list[Callable[[Play, int, str], Play]],
) -> Play:
    play = Play(
        jobs=JOBS,
        one_replica=one_replica,
        retry=retry,
        max_failed_jobs=tolerated,
        restart_completed_jobs=restart,
        scheduling_timeout=timeout,
        max_duration=1000.0,
    )
    for n, to_stage in enumerate(stages):
        to_stage(play, n, f"n{n}")
    return play


plays = st.builds(
    _on_stage,
    policies,
    st.booleans(),
    st.integers(0, 1),
    st.booleans(),
    st.sampled_from([None, 0.0, 100.0]),
    st.lists(st.sampled_from(STAGES), min_size=JOBS, max_size=JOBS),
)


def _check_what_never_changes(before: RunState, after: RunState) -> None:
    for old_job, job in zip(before.jobs, after.jobs, strict=True):
        for old, new in zip(old_job.attempts, job.attempts, strict=False):
            if old.reason is not None:
                assert new.reason is old.reason
            if old.status in FINAL_ATTEMPT_STATUSES:
                assert new.status is old.status
            if old.remove_at is not None:
                assert new.remove_at is not None
                if new.remove_at > old.remove_at:
                    assert (old.disconnected, new.disconnected) == (True, False)
            for fact in ("container_started", "runner_exited", "container_gone", "task_removed"):
                assert getattr(new.seen, fact) >= getattr(old.seen, fact)


def _check_every_state(state: RunState) -> None:
    for job in state.jobs:
        for attempt in job.attempts[:-1]:
            assert attempt.status in FINAL_ATTEMPT_STATUSES
        for attempt in job.attempts:
            assert (attempt.reason is None) == (attempt.terminating_at is None)
            assert (attempt.finished_at is None) == (attempt.status not in FINAL_ATTEMPT_STATUSES)
            assert (attempt.node_id is None) == (attempt.allocation_id is None)
    held = {a.id for a in state.allocations if is_held(a)}
    live = {
        a.allocation_id
        for job in state.jobs
        for a in job.attempts
        if a.status not in FINAL_ATTEMPT_STATUSES and a.allocation_id
    }
    assert live <= held
    kept = held - live
    waiting = {
        job.attempts[-1].allocation_id
        for job in state.jobs
        if job.attempts[-1].reason is Reason.SIBLING_FAILED
    }
    assert kept <= waiting


def _play(play: Play, turns: list[tuple[list[tuple[Maker, int]], float]]) -> None:
    _check_every_state(play.state)
    for steps, seconds in turns:
        before = play.state
        play.now += seconds
        play.send(*(make(play, n) for make, n in steps))
        _check_what_never_changes(before, play.state)
        _check_every_state(play.state)
        assert play.wake_at is None or play.wake_at > play.now


@settings(max_examples=200, deadline=None)
@given(plays, lives)
def test_no_sequence_of_reports_breaks_what_always_holds(
    play: Play, turns: list[tuple[list[tuple[Maker, int]], float]]
) -> None:
    _play(play, turns)
    released = Counter(
        e.attempt_id
        for e in play.events
        if e.kind is EventKind.ALLOCATION and e.to_status == "released"
    )
    assert all(count == 1 for count in released.values())


@settings(max_examples=100, deadline=None)
@given(plays, lives, st.sampled_from(STOPS))
def test_a_stopped_run_becomes_final_once_everything_wanted_was_done(
    play: Play, turns: list[tuple[list[tuple[Maker, int]], float]], stop: Maker
) -> None:
    _play(play, turns)
    play.send(stop(play, 0))
    for n in range(JOBS):
        play.clean(n)
    play.release_places()
    assert play.run.finished_at is not None
    assert all(a.state is not AllocationState.HELD for a in play.state.allocations)
    for job in play.state.jobs:
        last = job.attempts[-1]
        assert last.cleanup_unknown or wanted(play.state, last, play.now) == ()


def _decide(play: Play, reports: Sequence[Report]) -> Decision:
    ids = itertools.count()
    return decide(play.state, reports, play.now, lambda: f"new{next(ids)}")


@settings(max_examples=200, deadline=None)
@given(plays, beginnings, st.lists(step, min_size=2, max_size=8), st.data())
def test_the_order_of_the_reports_of_one_turn_does_not_matter(
    play: Play,
    turns: list[tuple[list[tuple[Maker, int]], float]],
    last: list[tuple[Maker, int]],
    data: st.DataObject,
) -> None:
    _play(play, turns)
    reports = _without_contradictions([make(play, n) for make, n in last])
    shuffled = data.draw(st.permutations(reports))
    assert _decide(play, shuffled).state == _decide(play, reports).state


def _without_contradictions(reports: list[Report]) -> list[Report]:
    """Where the world can only say one thing in a turn, the last word is kept: a link is up or
    down, an attempt has one place or none, a runner exits once."""
    kept: dict[object, Report] = {}
    for at, report in enumerate(reports):
        match report:
            case NodeDisconnected():
                key: object = ("link", report.node_id)
            case Placed() | NotPlaced():
                key = ("place", report.attempt_id)
            case RunnerExited():
                key = ("exit", report.attempt_id)
            case _:
                key = at
        kept[key] = report
    return [*kept.values()]


@settings(max_examples=150, deadline=None)
@given(plays, beginnings, st.lists(step, max_size=5))
def test_reports_that_are_repeated_change_nothing(
    play: Play,
    turns: list[tuple[list[tuple[Maker, int]], float]],
    last: list[tuple[Maker, int]],
) -> None:
    _play(play, turns)
    reports = [make(play, n) for make, n in last]
    doubled = [*reports, *(r for r in reports if not isinstance(r, NodeDisconnected))]
    assert _decide(play, doubled).state == _decide(play, reports).state


@settings(max_examples=100, deadline=None)
@given(plays, lives)
def test_a_turn_without_news_changes_nothing(
    play: Play, turns: list[tuple[list[tuple[Maker, int]], float]]
) -> None:
    _play(play, turns)
    assert _decide(play, ()).state is play.state
