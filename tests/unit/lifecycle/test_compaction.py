"""A state that forgets its history decides as one that remembers all of it."""

from __future__ import annotations

import random
from typing import Any, Self

import pytest

from controller.lifecycle.attempts.limits import running_seconds
from controller.lifecycle.attempts.retry import charged, failed_incarnations
from controller.lifecycle.draft import DecisionContext
from controller.lifecycle.gangs.incarnation import short_incarnations
from controller.lifecycle.model import Limits, RetryEvent, RetryPolicy
from controller.lifecycle.reports import Report
from controller.lifecycle.runs.compaction import KEPT_ATTEMPTS, recent
from controller.lifecycle.runs.dependencies import facts
from fairlead.model.beginning import Moment
from fairlead.model.reasons import Budget, Reason, RunReason
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from tests.unit.lifecycle.gangs.stage import GangPlay, gang
from tests.unit.lifecycle.play import START, Play

FAILED = Reason.CONTAINER_EXITED_WITH_ERROR
ENDS = (FAILED, Reason.OUT_OF_MEMORY, Reason.GPU_UNHEALTHY, Reason.VOLUME_ERROR)
ALL_EVENTS = frozenset(RetryEvent)
NO_WAIT = Limits(waits=(0.0,))


class Forgetful(Play):
    """As a controller does it: what a turn has committed is made recent."""

    def send(self, *reports: Report) -> Self:
        super().send(*reports)
        self.state = recent(self.state)
        return self


class ForgetfulGang(GangPlay):
    def send(self, *reports: Report) -> Self:
        super().send(*reports)
        self.state = recent(self.state)
        return self


def present(play: Play) -> dict[str, Any]:
    """All that is going on, without history."""
    return {
        "run": (play.run.status, play.run.reason, play.run.message, play.run.incarnation),
        "wake_at": play.wake_at,
        "jobs": [(job.rank, job.retry_at, job.attempts[-5:]) for job in play.state.jobs],
        "occupied": [
            place for place in play.state.allocations if place.state is AllocationState.HELD
        ],
        "events": play.events,
    }


def places(play: Play) -> list[AllocationState]:
    return [place.state for place in play.state.allocations]


def live(play: Play, chance: random.Random, turns: int) -> Play:
    for _ in range(turns):
        if play.run.status in (RunStatus.TERMINATED, RunStatus.FAILED, RunStatus.DONE):
            break
        play.wait(chance.choice([1.0, 30.0, 100.0, 1000.0]))
        n = chance.randrange(len(play.state.jobs))
        if play.attempt(n).status is AttemptStatus.SUBMITTED:
            play.to_running(n)
        elif play.attempt(n).status is AttemptStatus.RUNNING:
            play.end(n, chance.choice(ENDS))
            play.clean(n)
        for other in range(len(play.state.jobs)):
            if play.attempt(other).status is AttemptStatus.TERMINATING:
                play.clean(other)
        play.release_places()
    return play


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "policy",
    [
        {"retry": RetryPolicy(on_events=ALL_EVENTS, max_failures=25, max_preemptions=40)},
        {"retry": RetryPolicy(on_events=ALL_EVENTS, max_preemptions=26)},
        {"retry": RetryPolicy(on_events=ALL_EVENTS, duration=40_000.0)},
        {"retry": RetryPolicy(on_events=ALL_EVENTS), "max_failed_attempts": 40},
        {"retry": RetryPolicy(on_events=ALL_EVENTS), "max_duration": 20_000.0},
        {"retry": RetryPolicy(on_events=ALL_EVENTS), "one_replica": True, "max_duration": 9_000.0},
    ],
    ids=["failures", "preemptions", "duration", "attempts", "max_duration", "replica"],
)
def test_forgotten_attempts_change_no_decision(seed: int, policy: dict[str, Any]) -> None:
    jobs = 1 + seed % 2
    whole = live(Play(jobs=jobs, limits=NO_WAIT, **policy), random.Random(seed), 250)
    forgetful = live(Forgetful(jobs=jobs, limits=NO_WAIT, **policy), random.Random(seed), 250)

    assert present(forgetful) == present(whole)
    assert max(len(job.attempts) for job in whole.state.jobs) > KEPT_ATTEMPTS


def test_forgotten_attempts_are_counted() -> None:
    policy = RetryPolicy(on_events=ALL_EVENTS)
    plays = [kind(retry=policy, limits=NO_WAIT) for kind in (Play, Forgetful)]
    for play in plays:
        for number in range(50):
            play.wait(1.0).live_and_end(reason=FAILED if number % 3 else Reason.GPU_UNHEALTHY)
    whole, forgetful = plays

    assert len(whole.job().attempts) == 51
    assert len(forgetful.job().attempts) <= KEPT_ATTEMPTS + 2
    assert len(forgetful.state.allocations) <= KEPT_ATTEMPTS + 2
    for budget in Budget:
        assert charged(forgetful.run, forgetful.job(), budget) == charged(
            whole.run, whole.job(), budget
        )
    assert recent(whole.state).jobs[0].past == forgetful.job().past


def test_a_run_that_was_running_once_stays_so_when_that_life_is_forgotten() -> None:
    play = Forgetful(
        retry=RetryPolicy(on_events=ALL_EVENTS), limits=NO_WAIT, start_before=Moment(within=60.0)
    )
    play.live_and_end(reason=FAILED)
    for _ in range(KEPT_ATTEMPTS + 5):
        play.wait(1.0).to_container().end(0, Reason.GPU_UNHEALTHY)
        play.clean()
    assert not any(attempt.running_at for attempt in play.job().attempts)
    known = facts(play.state)
    assert (known.has_run, known.began) == (True, frozenset({0}))
    play.wait(60.0)
    assert play.run.reason is None


def test_the_time_of_overlapping_lives_is_counted_once() -> None:
    """One job runs all the time beside one that comes back again and again."""
    policy = RetryPolicy(on_events=ALL_EVENTS)
    for length in (500.0, 2_000.0):
        plays = [
            kind(jobs=2, retry=policy, limits=NO_WAIT, max_duration=length)
            for kind in (Play, Forgetful)
        ]
        for play in plays:
            play.to_running(0)
            for _ in range(60):
                if play.run.status is RunStatus.TERMINATING:
                    break
                play.to_running(1).wait(7.0)
                if play.attempt(1).status is AttemptStatus.RUNNING:
                    play.send(play.exited(1, FAILED)).clean(1)
                play.wait(3.0)
        whole, forgetful = plays
        assert present(forgetful) == present(whole)
        assert running_seconds(whole.state.jobs, 1, whole.now) == min(length, 600.0)


def test_lives_that_begin_before_another_ends_are_forgotten_with_it_or_not_at_all() -> None:
    """Ten seconds each, five of them together: fifteen of every twenty."""
    policy = RetryPolicy(on_events=ALL_EVENTS)
    plays = [
        kind(jobs=2, retry=policy, limits=NO_WAIT, max_duration=440.0) for kind in (Play, Forgetful)
    ]
    for play in plays:
        for _ in range(29):
            play.to_running(0).wait(5.0).to_running(1).wait(5.0)
            play.send(play.exited(0, FAILED)).clean(0).wait(5.0)
            play.send(play.exited(1, FAILED)).clean(1).wait(5.0)
    whole, forgetful = plays
    assert present(forgetful) == present(whole)
    assert running_seconds(whole.state.jobs, 1, whole.now) == 29 * 15.0
    assert forgetful.run.past_running.seconds > 0.0


def test_a_gang_that_failed_often_ends_when_its_budget_is_used_up() -> None:
    policy = RetryPolicy(on_events=ALL_EVENTS, max_failures=25)
    plays = [
        kind(gang(nodes=3, size=2), retry=policy, limits=NO_WAIT)
        for kind in (GangPlay, ForgetfulGang)
    ]
    for play in plays:
        for _ in range(60):
            if play.run.status in (RunStatus.TERMINATING, RunStatus.FAILED):
                break
            play.run_all().wait(5.0)
            play.fail(play.ranks().index(0)).clean_all()
            play.wait(1.0)
    whole, forgetful = plays

    assert whole.run.reason is RunReason.RETRY_LIMIT_EXCEEDED
    assert present(forgetful) == present(whole)
    assert failed_incarnations(forgetful.run, forgetful.state.jobs) == 26
    assert short_incarnations(forgetful.run, forgetful.state.jobs) >= KEPT_ATTEMPTS


def test_a_new_occurrence_begins_with_nothing_counted() -> None:
    play = Forgetful(
        schedule=("0 * * * *",),
        retry=RetryPolicy(on_events=ALL_EVENTS, max_failures=25),
        limits=NO_WAIT,
    )
    play.around = DecisionContext(next_trigger=START + 100_000.0)
    play.send()
    for occurrence in (1, 2):
        assert play.run.next_triggered_at is not None
        play.around = DecisionContext(next_trigger=START + (occurrence + 1) * 100_000.0)
        play.wait(play.run.next_triggered_at - play.now)
        for _ in range(25):
            play.live_and_end(reason=FAILED)
        assert charged(play.run, play.job(), Budget.FAILURE) == 25
        assert play.attempt().status is AttemptStatus.SUBMITTED
        play.live_and_end(reason=FAILED)
        assert play.run.occurrences[-1].reason is RunReason.RETRY_LIMIT_EXCEEDED


def test_an_attempt_that_may_be_left_on_a_node_is_never_forgotten() -> None:
    play = Forgetful(retry=RetryPolicy(on_events=ALL_EVENTS), limits=NO_WAIT)
    lost = play.to_running().attempt().id
    play.send(play.node_gone("n1"))
    for _ in range(40):
        play.wait(1.0).to_running(node="n2")
        play.send(play.exited(reason=FAILED)).clean()

    assert play.job().attempts[0].id == lost
    assert play.job().attempts[0].cleanup_unknown
    assert places(play)[0] is AllocationState.ORPHANED
    play.send(play.node_gone("n1", confirmed=True))
    assert places(play)[0] is AllocationState.RELEASED
    play.wait(1.0).live_and_end(reason=FAILED)
    assert play.job().attempts[0].id != lost


def test_a_state_without_much_history_stays_the_very_same() -> None:
    play = Play(jobs=2)
    assert recent(play.state) is play.state
    assert recent(play.to_running().state) is play.state


def test_a_place_that_was_taken_over_stays_so_when_its_first_attempt_is_forgotten() -> None:
    """The task of the one that took it over was never there, so its absence says nothing."""
    policy = RetryPolicy(on_events=ALL_EVENTS)
    plays = [
        kind(gang(nodes=3), retry=policy, limits=NO_WAIT) for kind in (GangPlay, ForgetfulGang)
    ]
    for play in plays:
        play.run_all().wait(100.0).fail(1).clean_all()
        taken = play.allocation(0).id
        play.send(play.node_gone("n0"))
        for _ in range(KEPT_ATTEMPTS + 5):
            play.clean_all().run_all().wait(100.0).fail(1)
        play.send(play.node_gone("n0", confirmed=True))
        (place,) = (one for one in play.state.allocations if one.id == taken)
        assert (place.state, place.releasing) == (AllocationState.ORPHANED, True)
    whole, forgetful = plays
    assert len(forgetful.job(0).attempts) < len(whole.job(0).attempts)
