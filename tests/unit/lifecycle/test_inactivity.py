"""A dev environment that is left alone is stopped, and one that is used is not."""

from __future__ import annotations

import random
from typing import Self

import msgspec
import pytest

from controller.lifecycle.attempts import inactivity
from controller.lifecycle.attempts.inactivity import (
    COMMITTED_EVERY,
    MAX_GAP,
    Look,
    Watched,
    after,
    needs_commit,
    resumed,
    warning,
)
from controller.lifecycle.effects import EffectKind
from controller.lifecycle.model import Inactivity, JobSpec
from controller.lifecycle.reports import InactivitySeen, ProbeSeen, SuspendRequested
from controller.lifecycle.runs.first_state import PlannedJob
from controller.traffic.routes import offered, route_of
from fairlead.model.dev_environment import DevEnvironment, Ide
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.service import Serves
from fairlead.model.statuses import AttemptStatus
from tests.unit.lifecycle.play import Play

HOUR = 3600.0
DESK = DevEnvironment(ide=Ide.VSCODE, folder="/workflow", inactivity_duration=HOUR)
NOTES = DevEnvironment(ide=Ide.JUPYTER, folder="/workflow")


class DeskPlay(Play):
    def __init__(self, wanted: DevEnvironment = DESK) -> None:
        serves = Serves(port=8888) if wanted.ide is Ide.JUPYTER else None
        job = PlannedJob(group="main", spec=JobSpec(image="desk", serves=serves))
        super().__init__(plan=[job], dev_environment=wanted)

    def looked(self, idle_since: float | None) -> Self:
        return self.send(
            InactivitySeen(
                run_id=self.run_id,
                attempt_id=self.attempt().id,
                at=self.now,
                idle_since=idle_since,
            )
        )

    def answers(self) -> Self:
        return self.send(
            ProbeSeen(run_id=self.run_id, attempt_id=self.attempt().id, probe=0, passed=True)
        )


def looks(*moments: tuple[float, bool]) -> Watched:
    watched: Watched | None = None
    for at, in_use in moments:
        watched = after(watched, Look(at=at, in_use=in_use))
    assert watched is not None
    return watched


def test_the_count_begins_with_the_first_look_that_finds_it_unused() -> None:
    assert looks((0, False), (5, False)).idle_since == 0
    assert looks((0, False), (5, True)).idle_since is None
    assert looks((0, True), (5, False), (10, False)).idle_since == 5


def test_a_gap_between_two_looks_begins_the_count_again() -> None:
    assert looks((0, False), (MAX_GAP, False)).idle_since == 0
    assert looks((0, False), (MAX_GAP + 1, False)).idle_since == MAX_GAP + 1


def test_a_request_between_two_looks_counts() -> None:
    look = Look(at=10.0, in_use=False, requested_at=8.0)
    assert after(Watched(looked_at=5.0, idle_since=0.0), look).idle_since == 8.0


@pytest.mark.parametrize(("limit", "ahead"), [(HOUR, 300.0), (10.0, 5.0)])
def test_the_warning_comes_before_the_end_and_only_then(limit: float, ahead: float) -> None:
    early = Watched(looked_at=limit - ahead - 1, idle_since=0.0)
    near = Watched(looked_at=limit - ahead, idle_since=0.0)

    assert warning(limit, early) is None
    assert f"is stopped in {ahead:.0f} s" in (warning(limit, near) or "")
    assert warning(limit, Watched(looked_at=limit, idle_since=0.0)) is None
    assert warning(limit, Watched(looked_at=limit, idle_since=None)) is None


def test_most_looks_are_no_news() -> None:
    play = DeskPlay().to_running()
    began = play.now

    def news(seconds: float, since: float | None) -> bool:
        return needs_commit(
            play.attempt(), HOUR, Watched(looked_at=began + seconds, idle_since=since)
        )

    assert not news(0, None)
    assert news(0, began)
    play.looked(began)
    assert not news(5, began)
    assert news(COMMITTED_EVERY, began)
    assert news(5, None)
    play.wait(HOUR - 5).looked(began)
    assert not news(HOUR - 1, began)
    assert news(HOUR, began)


def test_a_restarted_controller_counts_on_from_the_last_committed_look() -> None:
    play = DeskPlay().to_running()
    began = play.now
    assert resumed(play.run, play.attempt()) is None
    play.looked(began).wait(40).looked(began)
    known = resumed(play.run, play.attempt())
    assert known == Watched(looked_at=began + 40, idle_since=began)
    assert after(known, Look(at=play.now + MAX_GAP, in_use=False)).idle_since == began
    late = play.now + MAX_GAP + 1
    assert after(known, Look(at=late, in_use=False)).idle_since == late
    play.looked(None)
    assert resumed(play.run, play.attempt()) is None


def test_an_ide_in_the_browser_counts_anew_after_a_restart() -> None:
    """The controller takes the time of the last request with it."""
    play = DeskPlay(msgspec.structs.replace(NOTES, inactivity_duration=HOUR)).to_running()
    play.looked(play.now)
    assert resumed(play.run, play.attempt()) is None


def test_a_running_dev_environment_with_a_duration_is_watched() -> None:
    play = DeskPlay()
    assert EffectKind.WATCH_USE not in play.wanted()
    assert EffectKind.WATCH_USE in play.to_running().wanted()
    play.send(SuspendRequested(run_id=play.run_id, abort_running=False, by="ada"))
    assert EffectKind.WATCH_USE not in play.wanted()
    assert EffectKind.WATCH_USE not in DeskPlay(NOTES).to_running().wanted()


def test_it_ends_only_by_a_look_that_finds_it_unused_for_the_whole_duration() -> None:
    play = DeskPlay().to_running()
    began = play.now
    play.looked(began)
    assert play.attempt().inactivity == Inactivity(since=began, seen_at=began)
    play.wait(HOUR + 60)
    assert play.attempt().status is AttemptStatus.RUNNING
    play.looked(None)
    assert play.attempt().inactivity is None
    left = play.now
    play.looked(left).wait(HOUR - 1)
    play.looked(left)
    assert play.attempt().reason is None
    play.wait(1).looked(left)
    assert play.attempt().reason is Reason.INACTIVITY_DURATION_EXCEEDED
    assert play.attempt().status is AttemptStatus.TERMINATING


def test_the_run_ends_with_its_job() -> None:
    play = DeskPlay().to_running()
    began = play.now
    play.wait(HOUR).looked(began)
    play.clean()

    assert play.attempt().status is AttemptStatus.TERMINATED
    assert play.run.reason is RunReason.JOB_FAILED
    assert len(play.job().attempts) == 1


def test_a_stop_wins_over_inactivity_that_is_seen_later() -> None:
    play = DeskPlay().to_running()
    began = play.now
    play.send(play.stop()).wait(HOUR)
    play.looked(began)
    assert play.attempt().reason is Reason.TERMINATED_BY_USER


def test_an_ide_in_the_browser_gets_requests_once_its_port_answers() -> None:
    play = DeskPlay(NOTES).to_running()
    assert EffectKind.PROBE_REPLICA in play.wanted()
    assert route_of(play.state).replicas == ()
    play.answers()

    route = route_of(play.state)
    assert [replica.port for replica in route.replicas] == [8888]
    assert (route.service.auth, route.service.strip_prefix) == (True, False)
    play.send(play.stop())
    assert play.attempt().drains_until is None


def test_a_desktop_ide_offers_the_proxy_nothing() -> None:
    assert offered(DeskPlay().run) is None


@pytest.mark.parametrize("seed", range(50))
def test_no_walk_stops_one_before_it_was_unused_for_the_duration(seed: int) -> None:
    """Uses and gaps at random moments of two hours, then rest: the end comes, and not early."""
    chance, play = random.Random(seed), DeskPlay().to_running()
    rests_at, used_at = play.now + 2 * HOUR, play.now
    watched: Watched | None = None
    while play.attempt().reason is None and play.now < rests_at + 2 * HOUR:
        busy = play.now < rests_at
        play.now += 2 * MAX_GAP if busy and chance.random() < 0.01 else inactivity.pause(HOUR)
        in_use = busy and chance.random() < 0.003
        used_at = play.now if in_use else used_at
        watched = after(watched, Look(at=play.now, in_use=in_use))
        if needs_commit(play.attempt(), HOUR, watched):
            play.looked(watched.idle_since)

    assert play.attempt().reason is Reason.INACTIVITY_DURATION_EXCEEDED
    assert play.now - used_at >= HOUR
