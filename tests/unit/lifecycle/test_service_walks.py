"""Random lives of services, from fixed seeds: what must hold after every turn."""

from __future__ import annotations

import random

import pytest

from controller.lifecycle.membership import members
from controller.lifecycle.reports import Report
from controller.lifecycle.services import rollout
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus
from tests.unit.lifecycle.test_services import ServicePlay


class Walk(ServicePlay):
    def send(self, *reports: Report) -> Walk:
        before = self.state
        super().send(*reports)
        for job in self.state.jobs:
            for attempt in job.attempts:
                if attempt.serving.registered_at is not None:
                    assert attempt.status is AttemptStatus.RUNNING
                    assert attempt.reason is None
                    assert attempt.serving.ready
        if not self.run.deployments:
            return self
        group = self.run.deployments[-1].service.groups[0]
        wanted = rollout.wanted(self.run, "main")
        assert group.least <= wanted <= group.most
        nodes = max(one.service.groups[0].nodes for one in self.run.deployments)
        assert len(self.present) <= (wanted + 1) * nodes
        for replica in members.of_several(self.run, self.state.jobs):
            lasts = [job.attempts[-1] for job in replica]
            assert len({last.reason is None for last in lasts}) == 1
            if replica[0].attempts[-1].serving.registered_at is not None:
                assert {last.status for last in lasts} == {AttemptStatus.RUNNING}
                assert len(replica) == nodes
        old = {job.id: job for job in before.jobs}
        taken = [
            job
            for job in self.state.jobs
            if job.scaled_down
            and not old[job.id].scaled_down
            and old[job.id].attempts[-1].serving.registered_at is not None
        ]
        if taken:
            assert len(self.in_traffic) >= wanted
        return self


def step(play: Walk, chance: random.Random) -> None:
    live = [
        n
        for n, job in enumerate(play.state.jobs)
        if job.attempts and job.attempts[-1].finished_at is None
    ]
    action = chance.random()
    if action < 0.05:
        play.deploy(f"v{chance.randrange(4)}")
    elif action < 0.12:
        play.want(chance.randrange(6))
    elif action < 0.25 or not live:
        play.wait(chance.choice((1, 20, 700)))
    else:
        advance(play, chance.choice(live), chance)


def advance(play: Walk, n: int, chance: random.Random) -> None:
    match play.attempt(n).status:
        case AttemptStatus.SUBMITTED:
            play.to_provisioning(n, f"n{n}")
        case AttemptStatus.PROVISIONING:
            play.send(play.accepted(n)).send(play.seen(n))
        case AttemptStatus.PULLING:
            play.send(play.started(n))
        case AttemptStatus.RUNNING if chance.random() < 0.1:
            play.send(play.exited(n, play_reason()))
        case AttemptStatus.RUNNING if not play.job(n).rank:
            play.probe(n, passed=chance.random() < 0.8)
        case _:
            play.drained(n)
            if play.attempt(n).status is AttemptStatus.TERMINATING:
                play.clean(n)


def play_reason() -> Reason:
    return Reason.CONTAINER_EXITED_WITH_ERROR


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("seed", range(40))
def test_requests_go_to_ready_replicas_and_a_rollout_never_takes_them_away(
    seed: int, nodes: int
) -> None:
    chance = random.Random(seed)
    play = Walk(1, 4, nodes=nodes)
    for _ in range(150):
        step(play, chance)
