"""An attempt always says in words for what it waits, and until when where there is a limit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.lifecycle.attempts.awaited import NOT_LOOKED_AT, Awaited, awaited
from controller.lifecycle.model import Group, StartupOrder
from controller.lifecycle.pending_reasons import NoNodeConnected
from controller.lifecycle.reports import NotPlaced
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus
from tests.unit.lifecycle.asking import Ask
from tests.unit.lifecycle.gangs.stage import GangPlay, gang
from tests.unit.lifecycle.play import START, Play


def of(play: Play, n: int = 0) -> Awaited:
    found = awaited(play.state, play.attempt(n))
    assert found is not None
    return found


def to_queue(play: Play) -> Play:
    why = NotPlaced(
        run_id=play.run_id, attempt_id=play.attempt().id, pending_reason=NoNodeConnected()
    )
    return play.send(why)


def to_creating(play: Play) -> Play:
    return play.to_pulling().send(play.seen(started=False, creating=True))


def to_asking(play: Play) -> Play:
    return play.to_pulling().send(play.seen(started=False, needs_credentials=True, version=1))


def to_silence(play: Play) -> Play:
    return play.to_pulling().send(play.link(down=True))


NODE_LIMIT = Reason.WAITING_INSTANCE_LIMIT_EXCEEDED


@pytest.mark.parametrize(
    ("to", "what", "seconds", "ends_as"),
    [
        (lambda play: play, NOT_LOOKED_AT, None, None),
        (to_queue, "no node is connected", None, None),
        (Play.to_provisioning, "waits for node n1 to accept it", 120, NODE_LIMIT),
        (Play.to_pulling, "waits for node n1 to pull its image", 1200, NODE_LIMIT),
        (to_creating, "waits for node n1 to create its container", 1200, NODE_LIMIT),
        (
            to_asking,
            "node n1 was restarted and is sent the registry's credentials again",
            1200,
            NODE_LIMIT,
        ),
        (to_silence, "waits for node n1, which is silent", None, None),
        (
            Play.to_container,
            "waits for its runner on node n1 to start the job",
            300,
            Reason.WAITING_RUNNER_LIMIT_EXCEEDED,
        ),
        (Play.to_running, "runs on node n1", None, None),
    ],
)
def test_on_its_way_to_its_start(
    to: Callable[[Play], Play], what: str, seconds: float | None, ends_as: Reason | None
) -> None:
    until = None if seconds is None else START + seconds
    assert of(to(Play())) == Awaited(what=what, until=until, ends_as=ends_as)


def test_an_interrupted_job_runs_until_its_time_is_over() -> None:
    play = Play(stop_duration=60.0).to_running()
    play.send(Ask(play).interrupt())
    what = "was interrupted, and runs until it ends by itself"
    assert of(play) == Awaited(what=what, until=START + 70, ends_as=Reason.INTERRUPTED)


def test_on_its_way_to_its_end() -> None:
    play = Play(stop_duration=60.0).to_running()
    play.send(play.stop())
    grace = "ends; waits for its container on node n1 to stop or be removed"
    assert of(play) == Awaited(what=grace, until=START + 60)
    play.send(play.seen(terminated=True))
    assert of(play) == Awaited(what="ends; waits for the rest of its log from node n1")
    play.send(play.logs_complete())
    assert of(play) == Awaited(what="ends; waits for node n1 to clean up")
    play.send(play.link(down=True))
    assert of(play) == Awaited(what="ends; waits for node n1, which is silent")
    play.send(play.link(down=False), play.removed())
    assert awaited(play.state, play.attempt()) is None


def test_a_rank_with_its_container_waits_for_the_others() -> None:
    play = GangPlay(startup_order=StartupOrder.MASTER_FIRST).place_waiting()
    play.send(*(play.accepted(n) for n in range(3)), *(play.seen(n) for n in range(3)))
    assert of(play, 1) == Awaited(what="waits for its turn (startup_order: master-first)")
    assert of(play, 0).what == "waits for its runner on node n0 to start the job"


def test_a_suspended_run_waits_for_its_user() -> None:
    play = Play()
    play.send(Ask(play).suspend())
    assert of(play) == Awaited(what="the run is suspended")


def test_a_suspended_run_waits_for_its_user_also_where_its_turn_would_have_come() -> None:
    play = Play(jobs=2, startup_order=StartupOrder.MASTER_FIRST).to_running(0)
    assert play.attempt(1).status is AttemptStatus.SUBMITTED
    play.send(Ask(play).suspend(abort_running=True)).clean(0)
    assert of(play, 1) == Awaited(what="the run is suspended")
    play.send(Ask(play).resume())
    assert of(play, 1) == Awaited(what="waits for its turn (startup_order: master-first)")


def test_a_reserved_job_says_that_it_waits_for_a_rank_that_comes_back() -> None:
    play = GangPlay(gang(2, 1), Group(name="data", nodes=1))
    play.send(play.placed_in(0), play.placed_in(2))
    play.send(play.accepted(2), play.seen(2)).fail(2, Reason.CREATING_CONTAINER_ERROR)
    assert of(play, 1).what == "it is reserved: a rank of its run comes back and is placed first"
