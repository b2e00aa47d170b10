"""A run keeps what may be secret for as long as a job of it can start, and no longer."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from controller.lifecycle.model import JobRepo, JobSpec, RetryEvent, RetryPolicy
from controller.lifecycle.runs.first_state import PlannedJob
from fairlead.model.reasons import Reason
from fairlead.model.statuses import RunStatus
from fairlead.wire.shim import RegistryAuth
from tests.unit.lifecycle.play import Play, Scheduled

CANARY = "canary-of-the-test"
SPEC = JobSpec(
    image="busybox",
    commands=("work",),
    env={"A": CANARY},
    secrets={"S": CANARY},
    registry_auth=RegistryAuth(username="ada", password=CANARY),
    repos=(
        JobRepo(path="/workflow", url="https://host/code", token=CANARY, private_key=CANARY),
        JobRepo(path="/other", url=f"https://host/other?token={CANARY}&depth=1"),
    ),
)
PLAN = [PlannedJob(group="main", replica=n, cookie=n, spec=SPEC) for n in range(2)]


def keeps(play: Play) -> bool:
    return CANARY.encode() in msgspec.json.encode(play.state)


def test_a_run_that_has_ended_keeps_no_value_that_only_a_start_needs() -> None:
    play = Play(plan=PLAN)
    play.live_and_end(0)
    assert [job.spec for job in play.state.jobs] == [SPEC, SPEC]
    play.live_and_end(1)
    assert play.run.status is RunStatus.DONE
    assert not keeps(play)
    (spec,) = {id(job.spec): job.spec for job in play.state.jobs}.values()
    assert (spec.image, spec.commands) == (SPEC.image, SPEC.commands)
    assert [repo.url for repo in spec.repos] == ["https://host/code", "https://host/other"]


def test_a_run_that_is_tried_again_starts_with_all_of_it() -> None:
    play = Play(plan=PLAN[:1], retry=RetryPolicy(on_events=frozenset({RetryEvent.ERROR})))
    play.live_and_end(reason=Reason.CONTAINER_EXITED_WITH_ERROR)
    assert play.job().spec == SPEC
    play.to_running().send(play.stop(abort=True))
    assert (play.run.status, keeps(play)) == (RunStatus.TERMINATING, True)
    play.clean()
    assert (play.run.status, keeps(play)) == (RunStatus.TERMINATED, False)


def test_a_scheduled_run_keeps_it_for_its_next_occurrence() -> None:
    play = Scheduled()
    play.change_job(0, spec=SPEC)
    play.to_trigger().live_and_end()
    assert (play.run.status, keeps(play)) == (RunStatus.PENDING, True)
    play.send(play.stop())
    assert (play.run.status, keeps(play)) == (RunStatus.TERMINATED, False)


def test_a_run_without_any_is_left_as_it_is() -> None:
    play = Play()
    spec = replace(play.job().spec)
    play.change_job(0, spec=spec)
    play.live_and_end()
    assert play.run.status is RunStatus.DONE
    assert play.job().spec is spec
