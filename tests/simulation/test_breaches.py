"""The checks of the simulation find what they are there to find."""

from __future__ import annotations

import msgspec
import pytest

from controller.lifecycle.model import Incarnation, RunState
from controller.lifecycle.pending_reasons import NoNodeConnected
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus
from tests.simulation import standstill
from tests.simulation.gangs import breaches, overdrawn_jobs
from tests.simulation.leaders import simulate_controllers
from tests.simulation.samples import a_gang, changed, placed
from tests.support.attempts import attempt_with


def failed_again(state: RunState, index: int, times: int) -> RunState:
    job = state.jobs[index]
    attempts = tuple(
        attempt_with(
            job.attempts[0],
            id=f"f{number}",
            number=number,
            status=AttemptStatus.FAILED,
            reason=Reason.CONTAINER_EXITED_WITH_ERROR,
            container_started=True,
            incarnation=state.run.incarnation and Incarnation(number=number + 1, id=f"i{number}"),
        )
        for number in range(times)
    )
    jobs = list(state.jobs)
    jobs[index] = msgspec.structs.replace(job, attempts=(*attempts, *job.attempts))
    return msgspec.structs.replace(state, jobs=tuple(jobs))


def test_a_gang_that_is_placed_whole_breaks_nothing() -> None:
    before = a_gang()
    after = placed(placed(before, 0), 1)
    assert list(breaches(before, after)) == []


def test_a_gang_that_is_placed_in_part_is_found() -> None:
    before = a_gang()
    assert list(breaches(before, placed(before, 0))) == [
        "gang g was placed in part: 1 ranked jobs still wait"
    ]


def test_a_gang_in_two_placement_values_is_found() -> None:
    before = a_gang()
    after = placed(placed(before, 0, "r0"), 1, "r1")
    assert list(breaches(before, after)) == ["gang g lies in several places: ['r0', 'r1']"]


def test_live_attempts_of_two_incarnations_are_found() -> None:
    after = changed(a_gang(), 2, incarnation=Incarnation(number=2, id="other"))
    assert "gang g has live attempts of the incarnations [1, 2]" in list(breaches(None, after))


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_is_given_twice_or_too_high_is_found(rank: int) -> None:
    (found,) = breaches(None, changed(a_gang(), 1, rank=rank))
    assert found == f"gang g: group main of size 2 has the ranks [0, {rank}]"


def test_an_attempt_that_changes_its_rank_is_found() -> None:
    before = a_gang(nodes=2)
    after = changed(changed(before, 0, rank=1), 1, rank=0)
    assert len([text for text in breaches(before, after) if "changed" in text]) == 2


def test_a_gang_that_failed_more_often_than_it_may_is_found() -> None:
    assert not [text for text in breaches(None, failed_again(a_gang(), 0, 2)) if "failed" in text]
    (found,) = breaches(None, failed_again(a_gang(), 0, 3))
    assert found == "gang g had 3 failed incarnations, allowed are 2"


def test_a_job_that_spent_more_than_its_budget_is_found() -> None:
    state = a_gang(size=None)
    assert list(overdrawn_jobs(failed_again(state, 0, 2))) == []
    (found,) = overdrawn_jobs(failed_again(state, 0, 3))
    assert found.endswith("spent 3 of 1 of budget failure")


def test_an_attempt_that_waits_for_a_node_without_a_deadline_is_found() -> None:
    state = placed(a_gang(), 0)
    (found,) = standstill.unlimited(state)
    assert found.endswith("is provisioning and has no deadline")
    assert list(standstill.unlimited(changed(state, 0, provisioned_at=0.0))) == []


def test_a_limit_that_stands_still_for_nothing_is_found() -> None:
    state = changed(placed(a_gang(), 0), 0, provisioned_at=0.0, limit_paused_since=5.0)
    (found,) = standstill.unlimited(state)
    assert found.endswith("stands still, and nothing is in its way")
    assert list(standstill.unlimited(changed(state, 0, disconnected=True))) == []


def test_a_deadline_that_nobody_kept_is_found() -> None:
    state = changed(placed(a_gang(), 0), 0, provisioned_at=0.0)
    attempt = state.jobs[0].attempts[0]
    assert standstill.stuck(state, attempt, None, None, 119.0) is None
    missed = standstill.stuck(state, attempt, None, None, 120.0)
    assert missed == "has missed its deadline (waiting_instance)"


def test_a_job_that_waits_for_words_of_the_scheduler_in_vain_is_found() -> None:
    state = a_gang()
    found = standstill.stuck(state, state.jobs[0].attempts[0], None, None, 0.0)
    assert found == "waits, and nobody says for what"
    told = changed(state, 0, pending_reason=NoNodeConnected())
    assert standstill.stuck(told, told.jobs[0].attempts[0], None, None, 0.0) is None


def test_a_deadline_that_is_further_away_than_its_limit_is_found() -> None:
    state = changed(placed(a_gang(), 0), 0, provisioned_at=100.0)
    assert list(standstill.too_far_away(state, 100.0)) == []
    (found,) = standstill.too_far_away(state, 50.0)
    assert found.endswith("ends 170 s from now by waiting_instance")


def test_a_controller_that_decides_without_its_lease_is_found() -> None:
    found = [one.text for one in simulate_controllers(3, is_fenced=False).violations]
    assert any(text.startswith("two controllers decided under the token") for text in found)
