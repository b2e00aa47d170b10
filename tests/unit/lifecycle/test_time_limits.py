"""`on_time_limit: requeue` brings a job back that has been running for its max_duration (4.19)."""

from __future__ import annotations

from controller.lifecycle.model import Group
from controller.lifecycle.reports import SuspendRequested
from fairlead.model.reasons import Reason
from fairlead.model.spec import OnTimeLimit
from fairlead.model.statuses import AttemptStatus, RunStatus
from tests.unit.lifecycle.play import NO_RETRY, START, Play

HOUR = 3600.0


def requeueing(**more: object) -> Play:
    return Play(max_duration=HOUR, on_time_limit=OnTimeLimit.REQUEUE, **more)  # type: ignore[arg-type]


def test_a_job_comes_back_after_its_time_whatever_its_exit_code_and_retry_say() -> None:
    play = requeueing(retry=NO_RETRY).to_running()
    assert play.wake_at == START + HOUR
    play.wait(HOUR)
    assert play.attempt().reason is Reason.TIME_LIMIT_REACHED
    assert play.attempt().remove_at == START + HOUR + play.run.policy.stop_duration
    play.end(0, Reason.DONE_BY_RUNNER).clean()
    assert play.run.status is not RunStatus.DONE
    assert play.wait(1).attempt(number=-1).number == 1
    assert play.attempt().status is AttemptStatus.SUBMITTED


def test_each_life_has_the_whole_time_again_and_none_is_charged() -> None:
    play = requeueing()
    for life in range(3):
        play.to_running()
        began = play.now
        assert play.wake_at == began + HOUR
        play.wait(HOUR).clean().wait(1)
        assert len(play.job().attempts) == life + 2
    play.live_and_end()
    assert play.run.status is RunStatus.DONE


def test_only_the_job_whose_time_is_over_comes_back() -> None:
    play = requeueing(jobs=2).to_running(0)
    play.wait(60).to_running(1).wait(HOUR - 60)
    assert play.attempt(0).reason is Reason.TIME_LIMIT_REACHED
    assert play.attempt(1).reason is None


def test_a_gang_comes_back_as_a_whole() -> None:
    play = requeueing(groups=[Group(name="main", nodes=2, gang_size=2)])
    play.send(play.placed(0), play.placed(1, "n2"))
    for n in range(2):
        play.send(play.accepted(n)).send(play.seen(n)).send(play.started(n))
    play.wait(HOUR)
    assert play.attempt(0).reason is Reason.TIME_LIMIT_REACHED
    for n in range(2):
        play.clean(n)
    play.release_places()
    play.wait(1)
    assert play.run.incarnation is not None
    assert play.run.incarnation.number == 2


def test_a_suspension_puts_the_end_off() -> None:
    play = requeueing().to_running()
    play.send(SuspendRequested(run_id=play.run_id, abort_running=False, by="ada"))
    assert play.wait(2 * HOUR).attempt().reason is None
