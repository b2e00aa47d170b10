"""docs/rules.md 5: what a gang is when it is submitted."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from controller.lifecycle.membership import ranks
from controller.lifecycle.model import Group, JobSpec, RunPolicy
from controller.lifecycle.runs.first_state import new_run
from fairlead.model.spec import PlannedGroup
from tests.unit.lifecycle.gangs.stage import GangPlay, gang
from tests.unit.lifecycle.play import Play


def test_size_jobs_carry_a_rank_and_the_rest_are_reserved() -> None:
    play = GangPlay(gang(4, 3))
    assert play.ranks() == [0, 1, 2, None]
    assert [play.attempt(n).rank for n in range(4)] == [0, 1, 2, None]
    assert [job.cookie for job in play.state.jobs] == [0, 1, 2, 3]
    assert play.number == 1
    assert {play.attempt(n).incarnation for n in range(4)} == {play.run.incarnation}


def test_all_jobs_of_a_gang_are_one_replica_and_each_independent_job_its_own() -> None:
    play = GangPlay(gang(2), Group(name="data", nodes=2))
    assert [job.replica for job in play.state.jobs] == [0, 0, 0, 1]
    assert [job.index for job in play.state.jobs] == [0, 1, 2, 3]
    assert [job.cookie for job in play.state.jobs] == [0, 1, 0, 1]


def test_a_plain_group_beside_a_gang_has_ranks_of_its_own() -> None:
    assert GangPlay(gang(2), Group(name="data", nodes=2)).ranks() == [0, 1, 0, 1]


def test_groups_without_a_gang_have_no_ranks_and_no_incarnation() -> None:
    play = Play(groups=[Group(name="data", nodes=2)])
    assert [job.rank for job in play.state.jobs] == [None, None]
    assert play.run.incarnation is None
    assert not ranks.is_gang_run(play.run)


@pytest.mark.parametrize("size", [0, 3])
def test_a_size_above_nodes_or_below_one_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="between 1 and its 2 nodes"):
        _submit(Group(name="train", nodes=2, gang_size=size))


@pytest.mark.parametrize(
    "policy",
    [{"fail_on_job_restart": True}, {"restart_completed_jobs": True}, {"max_failed_jobs": 1}],
)
def test_a_gang_is_refused_with_what_lets_its_jobs_live_alone(policy: dict[str, Any]) -> None:
    (field,) = policy
    with pytest.raises(ValueError, match=field):
        _submit(gang(2), **policy)
    _submit(Group(name="data", nodes=2), **policy)


def test_two_groups_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="same name"):
        _submit(gang(2), gang(1))


def _submit(*groups: Group, **policy: Any) -> None:
    ids = itertools.count()
    new_run(
        name="r",
        user="ada",
        groups=[PlannedGroup(group=group, spec=JobSpec(image="i")) for group in groups],
        now=0.0,
        new_id=lambda: str(next(ids)),
        policy=RunPolicy(**policy),
    )
