"""`signal` comes before each foreseeable end, once (docs/rules.md 4.20)."""

from __future__ import annotations

from typing import Any

import pytest

from controller.lifecycle.attempts import end_signal
from controller.lifecycle.draft import DecisionContext
from controller.lifecycle.effects import EffectKind
from controller.lifecycle.events import EventKind
from controller.lifecycle.model import Group, JobSpec
from controller.lifecycle.reports import JobSignalled, NodeDrained, Preempted
from controller.lifecycle.runs.first_state import PlannedJob
from fairlead.model.reasons import Reason
from fairlead.model.spec import OnTimeLimit
from fairlead.wire.job import EndSignal
from tests.unit.lifecycle.play import START, Play

HOUR, BEFORE, GRACE = 3600.0, 600.0, 300.0
SIGNAL = EndSignal(name="SIGUSR1", before=BEFORE)
SPEC = JobSpec(image="busybox", signal=SIGNAL)


def play_of(jobs: int = 1, **more: Any) -> Play:
    plan = [PlannedJob(group="main", replica=n, cookie=n, spec=SPEC) for n in range(jobs)]
    return Play(plan=plan, **more)


def gang() -> Play:
    play = Play(groups=[Group(name="main", nodes=2, gang_size=2)], spec=SPEC)
    play.send(play.placed(0), play.placed(1, "n2"))
    for n in range(2):
        play.send(play.accepted(n)).send(play.seen(n)).send(play.started(n))
    return play


def told(play: Play, n: int = 0) -> list[tuple[Reason, float, float]]:
    return [(one.cause, one.at - START, one.ends_at - START) for one in play.attempt(n).signalled]


def sent(play: Play, n: int = 0) -> Play:
    """The runner says that it has what is owed."""
    attempt = play.attempt(n)
    ids = tuple(one.id for one in attempt.signalled)
    return play.send(JobSignalled(run_id=play.run_id, attempt_id=attempt.id, ids=ids))


def delay(play: Play, n: int = 0) -> float:
    return end_signal.stop_delay(play.run, play.attempt(n), SIGNAL, play.now)


def drain(play: Play, at: float | None, node: str = "n1") -> Play:
    nodes = frozenset({node})
    play.around = DecisionContext(
        unusable_nodes=nodes,
        draining_nodes=nodes,
        drain_deadlines={} if at is None else {node: START + at},
    )
    return play.send()


def drained(play: Play) -> NodeDrained:
    return NodeDrained(run_id=play.run_id, node_id="n1", message="new disk")


def preempted(play: Play, n: int = 0) -> Preempted:
    return Preempted(run_id=play.run_id, attempt_id=play.attempt(n).id, message="wanted")


@pytest.mark.parametrize(
    ("policy", "cause"),
    [
        ({}, Reason.MAX_DURATION_EXCEEDED),
        ({"on_time_limit": OnTimeLimit.REQUEUE}, Reason.TIME_LIMIT_REACHED),
    ],
)
def test_it_comes_so_long_before_max_duration_and_the_stop_signal_does_not_wait(
    policy: dict[str, Any], cause: Reason
) -> None:
    play = play_of(max_duration=HOUR, **policy).to_running()
    assert play.wake_at == START + HOUR - BEFORE
    assert EffectKind.SIGNAL_JOB not in play.wait(HOUR - BEFORE - 1).wanted()
    play.wait(1)
    assert told(play) == [(cause, HOUR - BEFORE, HOUR)]
    assert EffectKind.SIGNAL_JOB in play.wanted()
    assert EffectKind.SIGNAL_JOB not in sent(play).wanted()
    play.wait(BEFORE)
    assert play.attempt().reason is cause
    assert (told(play), delay(play)) == ([(cause, HOUR - BEFORE, HOUR)], 0.0)
    (event,) = [one for one in play.events if one.kind is EventKind.SIGNAL]
    assert (event.to_status, event.reason) == ("SIGUSR1", cause)
    assert event.message == "its stop signal comes in 600 s"


def test_each_life_gets_its_own() -> None:
    play = play_of(max_duration=HOUR, on_time_limit=OnTimeLimit.REQUEUE)
    for _ in range(2):
        play.to_running()
        began = play.now - START
        play.wait(HOUR - BEFORE)
        assert told(play) == [(Reason.TIME_LIMIT_REACHED, began + HOUR - BEFORE, began + HOUR)]
        play.wait(BEFORE).clean().wait(1)


@pytest.mark.parametrize(
    ("before", "grace", "waits"),
    [(600.0, 300.0, 290.0), (60.0, 300.0, 60.0), (600.0, 8.0, 4.0), (600.0, 0.0, 0.0)],
)
def test_a_preempted_job_gets_it_at_once_and_its_stop_signal_waits(
    before: float, grace: float, waits: float
) -> None:
    signal = EndSignal(name="SIGUSR1", before=before)
    spec = JobSpec(image="busybox", signal=signal)
    play = Play(
        plan=[PlannedJob(group="main", replica=0, cookie=0, spec=spec)], stop_duration=grace
    ).to_running()
    play.wait(50).send(preempted(play))
    assert play.attempt().remove_at == START + 50 + grace
    assert told(play) == [(Reason.PREEMPTED, 50.0, 50.0 + waits)]
    left = end_signal.stop_delay(play.run, play.attempt(), signal, play.now)
    assert left == waits
    later = end_signal.stop_delay(play.run, play.attempt(), signal, play.now + waits / 2)
    assert later == waits / 2
    if grace:
        assert EffectKind.STOP_JOB in play.wanted()


def test_a_drain_is_foreseen_from_its_deadline() -> None:
    play = play_of().to_running()
    drain(play, HOUR)
    assert play.wake_at == START + HOUR - BEFORE
    play.wait(HOUR - BEFORE)
    assert told(play) == [(Reason.NODE_DRAINED, HOUR - BEFORE, HOUR)]
    sent(play).wait(BEFORE).send(drained(play))
    assert (len(told(play)), delay(play)) == (1, 0.0)


def test_a_drain_with_less_time_left_signals_at_once() -> None:
    play = drain(play_of().to_running(), 60.0)
    assert told(play) == [(Reason.NODE_DRAINED, 0.0, 60.0)]


def test_a_job_that_begins_on_a_node_that_is_about_to_be_empty_gets_it_when_it_begins() -> None:
    play = drain(play_of().to_container(), 60.0)
    assert told(play) == []
    assert told(play.send(play.started())) == [(Reason.NODE_DRAINED, 0.0, 60.0)]


def test_a_deadline_that_is_moved_back_is_another_end_and_one_called_off_none() -> None:
    play = sent(drain(play_of().to_running(), 300.0))
    first = play.attempt().signalled[0].id
    drain(play, 200.0)
    assert told(play) == [(Reason.NODE_DRAINED, 0.0, 300.0)]
    play.around = DecisionContext()
    play.send()
    assert [one.id for one in play.attempt().signalled] == [first]
    drain(play, HOUR)
    play.wait(HOUR - BEFORE)
    assert told(play) == [(Reason.NODE_DRAINED, HOUR - BEFORE, HOUR)]
    assert play.attempt().signalled[0].id != first


def test_another_reason_is_another_end() -> None:
    play = play_of(max_duration=HOUR).to_running()
    sent(play.wait(HOUR - BEFORE))
    play.send(preempted(play))
    assert [cause for cause, _, _ in told(play)] == [
        Reason.MAX_DURATION_EXCEEDED,
        Reason.PREEMPTED,
    ]
    assert delay(play) == GRACE - 10


def test_one_that_its_runner_did_not_get_in_time_is_sent_in_the_grace_under_its_id() -> None:
    play = play_of(max_duration=HOUR).to_running().wait(HOUR - BEFORE)
    first = play.attempt().signalled[0].id
    play.wait(BEFORE)
    assert told(play) == [(Reason.MAX_DURATION_EXCEEDED, HOUR, HOUR + GRACE - 10)]
    assert [one.id for one in play.attempt().signalled] == [first]
    assert delay(play) == GRACE - 10


def test_a_controller_that_was_away_signals_when_it_is_back() -> None:
    play = play_of(max_duration=HOUR).to_running().wait(HOUR - 10)
    assert told(play) == [(Reason.MAX_DURATION_EXCEEDED, HOUR - 10, HOUR)]


def test_a_user_who_stops_the_run_sends_none() -> None:
    play = play_of().to_running()
    play.send(play.stop())
    assert (told(play), delay(play)) == ([], 0.0)


def test_a_job_that_has_exited_gets_none() -> None:
    play = play_of().to_running()
    play.send(play.exited(), preempted(play))
    assert told(play) == []


@pytest.mark.parametrize(("code", "comes_back"), [(85, True), (1, False)])
def test_a_job_that_got_it_may_ask_to_be_started_again(code: int, comes_back: bool) -> None:
    spec = JobSpec(image="busybox", signal=SIGNAL, restart_exit_code=85)
    play = Play(
        plan=[PlannedJob(group="main", replica=0, cookie=0, spec=spec)], max_duration=HOUR
    ).to_running()
    play.wait(HOUR - BEFORE)
    play.send(play.exited(0, Reason.CONTAINER_EXITED_WITH_ERROR, code))
    assert (play.attempt().reason is Reason.INTERRUPTED) is comes_back
    play.clean()
    assert (len(play.job().attempts) == 2) is comes_back


def test_a_job_that_got_none_cannot_ask_for_that() -> None:
    spec = JobSpec(image="busybox", signal=SIGNAL, restart_exit_code=85)
    play = Play(plan=[PlannedJob(group="main", replica=0, cookie=0, spec=spec)]).to_running()
    play.send(play.exited(0, Reason.CONTAINER_EXITED_WITH_ERROR, 85))
    assert play.attempt().reason is Reason.CONTAINER_EXITED_WITH_ERROR


def test_a_job_without_a_signal_is_as_ever() -> None:
    play = Play(max_duration=HOUR).to_running()
    assert play.wake_at == START + HOUR
    assert told(drain(play, 60.0)) == []


def test_every_rank_of_a_gang_is_told_of_the_first_end() -> None:
    play = drain(gang(), HOUR, "n2")
    play.wait(HOUR - BEFORE)
    for n in range(2):
        assert told(play, n) == [(Reason.NODE_DRAINED, HOUR - BEFORE, HOUR)]


def test_jobs_that_end_apart_are_told_apart() -> None:
    play = play_of(jobs=2)
    play.to_running(0).to_running(1, "n2")
    drain(play, 60.0, "n2")
    assert (told(play, 0), told(play, 1)) == ([], [(Reason.NODE_DRAINED, 0.0, 60.0)])


def test_a_switch_that_cuts_the_grace_leaves_the_stop_signal_half_of_it() -> None:
    play = gang()
    play.send(preempted(play, 0))
    assert play.attempt(0).remove_at == START + 10
    assert delay(play, 0) == 5.0
