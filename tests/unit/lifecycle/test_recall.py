"""A provider takes a node back: its jobs end in the time there is (docs/rules.md 12.18)."""

from __future__ import annotations

import pytest

from controller.lifecycle.attempts import end_signal
from controller.lifecycle.draft import DecisionContext
from controller.lifecycle.effects import EffectKind
from controller.lifecycle.model import Group, JobSpec
from controller.lifecycle.runs.first_state import PlannedJob
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus
from fairlead.wire.job import EndSignal
from tests.unit.lifecycle.play import START, Play


def recalled(play: Play, at: float, node: str = "n1") -> Play:
    nodes = frozenset({node})
    play.around = DecisionContext(
        unusable_nodes=nodes, draining_nodes=nodes, recalled={node: START + at}
    )
    return play.send()


@pytest.mark.parametrize(
    ("stop_duration", "left", "grace"),
    [(300.0, 120.0, 110.0), (30.0, 120.0, 30.0), (300.0, 30.0, 20.0), (300.0, 8.0, 4.0)],
)
def test_a_running_job_stops_at_once_with_the_time_there_is(
    stop_duration: float, left: float, grace: float
) -> None:
    play = recalled(Play(stop_duration=stop_duration).to_running(), left)
    assert play.attempt().reason is Reason.INTERRUPTED_BY_NO_CAPACITY
    assert play.attempt().remove_at == START + grace
    assert EffectKind.STOP_JOB in play.wanted()


def test_a_recall_that_is_over_leaves_no_time() -> None:
    play = recalled(Play().to_running(), -5.0)
    assert play.attempt().remove_at == START


def test_a_job_that_has_not_begun_ends_at_once() -> None:
    play = recalled(Play().to_container(), 120.0)
    assert play.attempt().reason is Reason.INTERRUPTED_BY_NO_CAPACITY
    assert play.attempt().remove_at == START


def test_the_job_is_tried_again_and_no_failure_is_charged() -> None:
    play = recalled(Play().to_running(), 120.0)
    play.clean().wait(60)
    assert len(play.job().attempts) == 2
    assert play.attempt().status is AttemptStatus.SUBMITTED


def test_only_the_rank_on_that_node_is_the_cause() -> None:
    play = Play(groups=[Group(name="main", nodes=2, gang_size=2)])
    play.send(play.placed(0), play.placed(1, "n2"))
    for n in range(2):
        play.send(play.accepted(n)).send(play.seen(n)).send(play.started(n))
    recalled(play, 120.0)
    assert play.attempt(0).reason is Reason.INTERRUPTED_BY_NO_CAPACITY
    assert play.attempt(1).reason is Reason.INCARNATION_CHANGED


def test_what_ends_already_keeps_its_reason() -> None:
    play = Play().to_running()
    play.send(play.exited(0))
    recalled(play, 120.0)
    assert play.attempt().reason is Reason.DONE_BY_RUNNER


@pytest.mark.parametrize(("before", "waits"), [(600.0, 100.0), (60.0, 60.0)])
def test_its_signal_comes_first_and_the_stop_signal_waits_as_long_as_it_may(
    before: float, waits: float
) -> None:
    signal = EndSignal(name="SIGUSR1", before=before)
    spec = JobSpec(image="busybox", signal=signal)
    plan = [PlannedJob(group="main", replica=0, cookie=0, spec=spec)]
    play = recalled(Play(plan=plan, stop_duration=300.0).to_running(), 120.0)
    (told,) = play.attempt().signalled
    assert (told.cause, told.at) == (Reason.INTERRUPTED_BY_NO_CAPACITY, START)
    assert EffectKind.STOP_JOB in play.wanted()
    assert end_signal.stop_delay(play.run, play.attempt(), signal, play.now) == waits
