"""Properties of a gang that hold for all reports, in any order and number."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.lifecycle.decide import Decision, decide
from controller.lifecycle.effects import releases
from controller.lifecycle.gangs import freed, incarnation
from controller.lifecycle.gangs.incarnation import PHASE_MOVES, Phase
from controller.lifecycle.membership.ranks import is_current, is_held
from controller.lifecycle.model import Group, RetryEvent, RetryPolicy, RunState
from controller.lifecycle.reports import (
    AllocationReleased,
    EngineGone,
    GangTooLarge,
    NodeDisconnected,
    Preempted,
    Report,
    TaskMissing,
)
from fairlead.model.reasons import Reason
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, AllocationState
from tests.unit.lifecycle.gangs.stage import GangPlay, gang

JOBS = 5
KINDS = (
    "accepted",
    "creating",
    "seen",
    "started",
    "done",
    "failed",
    "quota",
    "oom",
    "gone",
    "gpu_fault",
    "missing",
    "preempted",
    "logs",
    "removed",
    "released",
    "down",
    "up",
    "engine_gone",
    "node_gone",
    "node_clean",
    "too_large",
)

step = st.tuples(st.sampled_from(KINDS), st.integers(0, JOBS - 1))
turn = st.tuples(
    st.lists(step, max_size=5),
    st.sampled_from([0.0, 1.0, 61.0, 700.0]),
    st.sampled_from(["", "place", "clean", "run"]),
    st.frozensets(st.sampled_from([f"n{n}" for n in range(JOBS)]), max_size=2),
)
lives = st.lists(turn, max_size=20)
beginnings = st.lists(turn, max_size=5)
policies = st.builds(
    RetryPolicy,
    on_events=st.frozensets(st.sampled_from(list(RetryEvent))),
    max_failures=st.none() | st.integers(0, 2),
    max_preemptions=st.integers(0, 3),
)


def _on_stage(retry: RetryPolicy, size: int, plain: bool) -> GangPlay:
    groups = [gang(4, size), Group(name="data", nodes=1)] if plain else [gang(5, size)]
    return GangPlay(*groups, retry=retry)


plays = st.builds(_on_stage, policies, st.integers(1, 4), st.booleans())


def _report(play: GangPlay, kind: str, n: int) -> Report:
    attempt = play.attempt(n)
    match kind:
        case "accepted":
            return play.accepted(n)
        case "creating":
            return play.seen(n, started=False, creating=True)
        case "seen":
            return play.seen(n)
        case "started":
            return play.started(n)
        case "done":
            return play.exited(n)
        case "failed":
            return play.exited(n, Reason.CONTAINER_EXITED_WITH_ERROR)
        case "quota":
            return play.exited(n, Reason.LOG_QUOTA_EXCEEDED)
        case "oom":
            return play.seen(n, terminated=True, reason=Reason.OUT_OF_MEMORY)
        case "gone":
            return play.seen(n, terminated=True, exit_code=3)
        case "gpu_fault":
            return play.seen(n, gpu_fault="XID 79")
        case "missing":
            return TaskMissing(run_id=play.run_id, attempt_id=attempt.id)
        case "preempted":
            return Preempted(run_id=play.run_id, attempt_id=attempt.id, message="make room")
        case "logs":
            return play.logs_complete(n)
        case "removed":
            return play.removed(n)
        case "released":
            going = sorted(a.id for a in play.state.allocations if a.releasing)
            named = going[n % len(going)] if going else "none"
            return AllocationReleased(run_id=play.run_id, allocation_id=named)
        case "down" | "up":
            return play.link(down=kind == "down", node=f"n{n}")
        case "engine_gone":
            return EngineGone(run_id=play.run_id, node_id=f"n{n}", message="away")
        case "node_gone" | "node_clean":
            return play.node_gone(f"n{n}", confirmed=kind == "node_clean")
        case _:
            return GangTooLarge(run_id=play.run_id, message="too small")


def _play(
    play: GangPlay,
    turns: list[tuple[list[tuple[str, int]], float, str, frozenset[str]]],
) -> None:
    for steps, seconds, world, unusable in turns:
        play.surround(*sorted(unusable))
        play.now += seconds
        reports = [_report(play, kind, n) for kind, n in steps]
        _checked(play, reports)
        match world:
            case "place":
                _checked(play, [play.placed_in(n) for n in range(JOBS) if play.waits(n)])
            case "clean":
                play.clean_all()
            case "run":
                play.run_all()
            case _:
                pass
        _check_state(play.state)


def _checked(play: GangPlay, reports: Sequence[Report]) -> None:
    before, phase = play.state, play.phase()
    play.send(*reports)
    _check_state(play.state)
    _check_change(before, play.state)
    now = play.phase()
    assert phase is not None
    assert now is not None
    assert now in _reachable(phase)
    assert play.wake_at is None or play.wake_at > play.now


def _reachable(phase: Phase) -> set[Phase]:
    """One turn's allowed outcomes: it may end an incarnation and begin the next."""
    found, left = {phase}, [phase]
    while left:
        for target in PHASE_MOVES[left.pop()] - found:
            found.add(target)
            left.append(target)
    return found if phase is not Phase.OVER else {phase}


def _check_state(state: RunState) -> None:
    run = state.run
    assert run.incarnation is not None
    assert run.incarnation.number == len(run.switches) + 1
    lasts = [job.attempts[-1] for job in state.jobs]
    live = [last for last in lasts if last.status not in FINAL_ATTEMPT_STATUSES]
    if any(is_current(run, last) for last in lasts):
        assert all(is_current(run, last) for last in live), "two incarnations live"
    for job in state.jobs:
        numbers = [a.incarnation.number for a in job.attempts if a.incarnation is not None]
        assert numbers == sorted(numbers)
        assert all(a.status in FINAL_ATTEMPT_STATUSES for a in job.attempts[:-1])
    for group in run.groups:
        ranks = [job.rank for job in state.jobs if job.group == group.name]
        carried = sorted(rank for rank in ranks if rank is not None)
        size = group.nodes if group.gang_size is None else group.gang_size
        assert carried == list(range(size))
    held = {a.id for a in state.allocations if is_held(a)}
    _check_kept(state)
    users = [last.allocation_id for last in live if last.allocation_id is not None]
    assert set(users) <= held
    assert len(users) == len(set(users)), "two live attempts in one place"


def _check_kept(state: RunState) -> None:
    """The places that a switch freed: one for each, and none once nothing waits for it."""
    kept = freed.kept(state.allocations)
    states = {place.id: place.state for place in state.allocations}
    former = [victim for place in kept for victim in place.victims]
    assert len(former) == len(kept) == len(set(former))
    assert {states[one] for one in former} <= {AllocationState.RELEASED}
    if kept:
        assert incarnation.phase(state.run, state.jobs) not in (Phase.WHOLE, Phase.OVER)
        assert not state.run.suspended
        assert not state.run.switches[-1].whole


def _check_change(before: RunState, after: RunState) -> None:
    for old_job, job in zip(before.jobs, after.jobs, strict=True):
        assert (old_job.id, old_job.cookie) == (job.id, job.cookie)
        for old, new in zip(old_job.attempts, job.attempts, strict=False):
            assert old.reason is None or new.reason is old.reason
            assert old.incarnation == new.incarnation
            assert old.rank == new.rank
            if old.status in FINAL_ATTEMPT_STATUSES:
                assert new.status is old.status
        for one, following in itertools.pairwise(job.attempts):
            kept = one.allocation_id is not None and one.allocation_id == following.allocation_id
            if kept and one.rank is not None:
                assert following.rank == one.rank, "a survivor keeps its rank"
    states = {a.id: a.state for a in before.allocations}
    for place in after.allocations:
        if states.get(place.id) is AllocationState.RELEASED:
            assert place.state is AllocationState.RELEASED


def _decide(play: GangPlay, reports: Sequence[Report]) -> Decision:
    ids = itertools.count()
    return decide(play.state, reports, play.now, lambda: f"new{next(ids)}", context=play.around)


@settings(max_examples=80, deadline=None)
@given(plays, lives)
def test_no_sequence_of_reports_breaks_what_always_holds_for_a_gang(
    play: GangPlay,
    turns: list[tuple[list[tuple[str, int]], float, str, frozenset[str]]],
) -> None:
    _play(play, turns)


@settings(max_examples=60, deadline=None)
@given(plays, lives, st.booleans())
def test_a_stopped_gang_becomes_final_and_gives_everything_back(
    play: GangPlay,
    turns: list[tuple[list[tuple[str, int]], float, str, frozenset[str]]],
    abort: bool,
) -> None:
    _play(play, turns)
    play.send(play.stop(abort=abort)).release_places()
    play.clean_all()
    assert play.run.finished_at is not None
    assert all(a.state is not AllocationState.HELD for a in play.state.allocations)
    play.release_places()
    assert releases(play.state) == {}


@settings(max_examples=80, deadline=None)
@given(plays, beginnings, st.lists(step, min_size=2, max_size=8), st.data())
def test_the_order_of_simultaneous_events_does_not_change_the_outcome_for_a_gang(
    play: GangPlay,
    turns: list[tuple[list[tuple[str, int]], float, str, frozenset[str]]],
    last: list[tuple[str, int]],
    data: st.DataObject,
) -> None:
    _play(play, turns)
    said = {_key(at, kind, n): _report(play, kind, n) for at, (kind, n) in enumerate(last)}
    reports = list(said.values())
    shuffled = data.draw(st.permutations(reports))
    assert _decide(play, shuffled).state == _decide(play, reports).state


def _key(at: int, kind: str, n: int) -> object:
    """A link is up or down, and a runner exits once."""
    if kind in ("down", "up"):
        return "link", n
    return ("exit", n) if kind in ("done", "failed", "quota") else at


@settings(max_examples=60, deadline=None)
@given(plays, beginnings, st.lists(step, max_size=5))
def test_repeating_events_changes_nothing_for_a_gang(
    play: GangPlay,
    turns: list[tuple[list[tuple[str, int]], float, str, frozenset[str]]],
    last: list[tuple[str, int]],
) -> None:
    _play(play, turns)
    reports = [_report(play, kind, n) for kind, n in last]
    doubled = [*reports, *(r for r in reports if not isinstance(r, NodeDisconnected))]
    assert _decide(play, doubled).state == _decide(play, reports).state
