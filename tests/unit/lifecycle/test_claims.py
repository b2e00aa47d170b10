"""docs/rules.md 2: of several words about one end, which one stands."""

from __future__ import annotations

from itertools import permutations

import pytest
from msgspec.structs import replace

from controller.lifecycle.model import Amount, Resources
from controller.lifecycle.reports import (
    Report,
    TaskMissing,
    TaskRefused,
)
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from fairlead.wire.runner import ExitReason
from fairlead.wire.shim import TaskReason
from tests.unit.lifecycle.play import NO_RETRY, SHIM_SAYS, START, Play

# -- claims ------------------------------------------------------------------------------------


def _claims(play: Play) -> dict[str, Report]:
    return {
        "runner exit 0": play.exited(),
        "out_of_memory": play.exited(reason=Reason.OUT_OF_MEMORY, code=137),
        "runner exit code": play.exited(reason=Reason.CONTAINER_EXITED_WITH_ERROR, code=7),
        "shim error": play.seen(terminated=True, reason=Reason.VOLUME_ERROR),
        "node loss": play.node_gone(),
    }


RANKING = ("runner exit 0", "out_of_memory", "runner exit code", "shim error", "node loss")
REASONS = (
    Reason.DONE_BY_RUNNER,
    Reason.OUT_OF_MEMORY,
    Reason.CONTAINER_EXITED_WITH_ERROR,
    Reason.VOLUME_ERROR,
    Reason.INSTANCE_UNREACHABLE,
)


@pytest.mark.parametrize("order", list(permutations(RANKING, 2)), ids=" after ".join)
def test_the_higher_claim_of_one_turn_wins_in_either_order(order: tuple[str, str]) -> None:
    play = Play(retry=NO_RETRY).to_running()
    claims = _claims(play)
    play.send(*(claims[name] for name in order))
    best = min(RANKING.index(name) for name in order)
    assert play.attempt().reason is REASONS[best]
    worst = max(RANKING.index(name) for name in order)
    assert play.attempt().later_reasons == (REASONS[worst],)


def test_the_shim_s_out_of_memory_wins_over_the_runner_s_exit_code() -> None:
    play = Play(retry=NO_RETRY).to_running()
    play.send(
        play.exited(reason=Reason.CONTAINER_EXITED_WITH_ERROR, code=137),
        play.seen(terminated=True, reason=Reason.OUT_OF_MEMORY),
    )
    assert play.attempt().reason is Reason.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("unset", "advice"),
    [
        ((), "raise resources.memory"),
        ((Amount.MEMORY,), "resources.memory is not set: set it to what the job needs"),
    ],
)
def test_an_out_of_memory_message_names_the_limit_and_the_field(
    unset: tuple[Amount, ...], advice: str
) -> None:
    play = Play(retry=NO_RETRY)
    placed = play.placed()
    resources = Resources(memory=5 << 29, unset=unset)
    play.send(replace(placed, allocation=replace(placed.allocation, resources=resources)))
    play.send(play.accepted())
    play.send(play.seen(terminated=True, reason=Reason.OUT_OF_MEMORY, message="killed"))
    assert play.attempt().message == f"killed; the limit was 2.5 GiB; {advice}"


NOT_A_SHIM_S = sorted(
    set(Reason)
    - SHIM_SAYS
    - {
        Reason.OUT_OF_MEMORY,
        Reason.CONTAINER_EXITED_WITH_ERROR,
    }
)


@pytest.mark.parametrize("reason", [*NOT_A_SHIM_S, "a reason of a newer shim"])
def test_a_reason_that_is_not_a_shim_s_to_give_is_the_loss_of_the_allocation(reason: str) -> None:
    """A database that was restored to before a decision hears of what that decision ordered."""
    play = Play().to_running().wait(60)
    play.send(play.seen(terminated=True, reason=reason, message="told so"))
    assert play.attempt().reason is Reason.INSTANCE_UNREACHABLE
    assert play.attempt().message == (
        f"its node ended it as {reason}, which this controller did not request: told so"
    )
    play.clean()
    assert (play.attempt().number, play.attempt().status) == (1, AttemptStatus.SUBMITTED)


@pytest.mark.parametrize("reason", sorted(SHIM_SAYS))
def test_a_reason_that_a_shim_may_give_is_believed(reason: Reason) -> None:
    play = Play(retry=NO_RETRY).to_running()
    play.send(play.seen(terminated=True, reason=reason, message="told so"))
    assert (play.attempt().reason, play.attempt().message) == (reason, "told so")


def test_how_a_job_took_a_stop_that_nobody_remembers_is_not_its_failure() -> None:
    play = Play(retry=NO_RETRY).to_running()
    killed = play.exited(reason=Reason.CONTAINER_EXITED_WITH_ERROR, code=143)
    play.send(killed, play.seen(terminated=True, reason=Reason.PREEMPTED))
    assert play.attempt().reason is Reason.INSTANCE_UNREACHABLE


@pytest.mark.parametrize(
    "reason",
    [
        Reason.DONE_BY_RUNNER,
        Reason.EXECUTOR_ERROR,
        Reason.LOG_QUOTA_EXCEEDED,
        Reason.MAX_DURATION_EXCEEDED,
    ],
)
def test_a_shim_that_repeats_what_the_runner_had_said_does_not_outrank_it(reason: Reason) -> None:
    play = Play(retry=NO_RETRY).to_running()
    play.send(play.exited(reason=reason), play.seen(terminated=True, reason=reason))
    assert (play.attempt().reason, play.attempt().later_reasons) == (reason, ())


def test_a_shim_that_repeats_its_order_adds_no_reason() -> None:
    play = Play().to_running()
    play.send(play.stop()).send(play.stop(abort=True))
    assert play.attempt().later_reasons == (Reason.ABORTED_BY_USER,)
    play.send(play.seen(terminated=True, reason=Reason.PREEMPTED))
    assert play.attempt().reason is Reason.TERMINATED_BY_USER
    assert play.attempt().later_reasons == (Reason.ABORTED_BY_USER,)


def test_a_user_request_comes_after_the_reports_of_its_turn() -> None:
    play = Play().to_running()
    play.send(play.stop(), play.exited())
    assert play.attempt().reason is Reason.DONE_BY_RUNNER
    assert play.attempt().later_reasons == (Reason.TERMINATED_BY_USER,)


def test_a_container_that_ended_without_a_word_is_an_executor_error() -> None:
    play = Play(retry=NO_RETRY).to_running()
    play.send(play.seen(terminated=True))
    assert play.attempt().reason is Reason.EXECUTOR_ERROR
    assert play.attempt().message == "the container ended without an exit record"


def test_a_container_that_ended_with_a_code_and_no_record_exited_with_an_error() -> None:
    play = Play(retry=NO_RETRY).to_running()
    play.send(play.seen(terminated=True, exit_code=3))
    assert play.attempt().reason is Reason.CONTAINER_EXITED_WITH_ERROR
    assert play.attempt().exit_code == 3


def test_the_end_of_a_container_says_nothing_new_about_a_runner_that_reported() -> None:
    play = Play(retry=NO_RETRY).to_running()
    play.send(play.exited(code=0), play.seen(terminated=True, exit_code=137))
    assert play.attempt().reason is Reason.DONE_BY_RUNNER
    assert play.attempt().later_reasons == ()
    assert play.attempt().exit_code == 0


@pytest.mark.parametrize("runner_first", [True, False])
def test_a_container_s_code_is_not_taken_for_that_of_a_job_that_never_began(
    runner_first: bool,
) -> None:
    play = Play(retry=NO_RETRY).to_running()
    told = replace(play.exited(reason=Reason.EXECUTOR_ERROR), exit_code=None)
    ended = play.seen(terminated=True, exit_code=125)
    play.send(*((told, ended) if runner_first else (ended, told)))
    assert play.attempt().reason is Reason.EXECUTOR_ERROR
    assert play.attempt().exit_code is None


def test_a_job_cannot_forge_a_reason_that_would_spare_its_budget() -> None:
    play = Play(retry=NO_RETRY).to_running()
    play.send(play.exited(reason=Reason.PREEMPTED, code=1))
    assert play.attempt().reason is Reason.CONTAINER_EXITED_WITH_ERROR
    assert "preempted" in (play.attempt().message or "")


def test_done_with_a_code_other_than_0_is_an_error() -> None:
    play = Play(retry=NO_RETRY).to_running()
    play.send(play.exited(reason=Reason.DONE_BY_RUNNER, code=9))
    assert play.attempt().reason is Reason.CONTAINER_EXITED_WITH_ERROR


@pytest.mark.parametrize("reason", [one for one in ExitReason if one is not ExitReason.INTERRUPTED])
def test_each_reason_that_a_runner_gives_is_believed(reason: ExitReason) -> None:
    play = Play(retry=NO_RETRY).to_running()
    play.send(play.exited(reason=Reason(reason)))
    assert play.attempt().reason is Reason(reason)


@pytest.mark.parametrize("reason", TaskReason)
def test_each_reason_that_a_shim_gives_is_believed(reason: TaskReason) -> None:
    play = Play(retry=NO_RETRY).to_running()
    play.send(play.seen(terminated=True, reason=reason))
    assert play.attempt().reason is Reason(reason)


def test_a_refused_task_ends_with_the_shim_s_reason() -> None:
    play = Play(retry=NO_RETRY).to_provisioning()
    refused = TaskRefused(
        run_id=play.run_id,
        attempt_id=play.attempt().id,
        reason=Reason.CREATING_CONTAINER_ERROR,
        message="no such volume",
    )
    play.send(refused)
    assert play.attempt().reason is Reason.CREATING_CONTAINER_ERROR
    assert play.attempt().message == "no such volume"


def test_a_failed_pull_ends_the_attempt_without_grace() -> None:
    play = Play(retry=NO_RETRY).to_pulling()
    play.send(play.seen(started=False, terminated=True, reason=Reason.IMAGE_PULL_FAILED))
    assert play.attempt().reason is Reason.IMAGE_PULL_FAILED
    assert play.attempt().remove_at == START


# -- missing tasks -----------------------------------------------------------------------------


def _missing(play: Play) -> TaskMissing:
    return TaskMissing(run_id=play.run_id, attempt_id=play.attempt().id)


def test_a_task_that_was_never_acknowledged_is_not_lost_but_sent_again() -> None:
    play = Play().to_provisioning()
    before = play.state
    assert play.send(_missing(play)).state is before


def test_a_task_accepted_in_the_turn_that_missed_it_is_not_lost() -> None:
    play = Play().to_provisioning()
    play.send(_missing(play), play.accepted())
    assert play.attempt().status is AttemptStatus.PULLING
    assert play.attempt().seen.container_gone is False


@pytest.mark.parametrize("running", [False, True])
def test_an_acknowledged_task_that_is_missing_was_lost(running: bool) -> None:
    play = Play(retry=NO_RETRY)
    play = play.to_running() if running else play.to_pulling()
    play.send(_missing(play))
    assert play.attempt().reason is Reason.LOST_AFTER_REVIVAL
    assert play.attempt().status is AttemptStatus.FAILED
    assert play.allocation().state is AllocationState.HELD, "the shim may still hold its place"
    assert play.allocation().releasing
    assert play.release_places().allocation().state is AllocationState.RELEASED
    assert play.run.status is RunStatus.FAILED


def test_a_task_removed_behind_our_back_was_lost() -> None:
    play = Play(retry=NO_RETRY).to_provisioning()
    play.send(play.accepted(), play.removed())
    assert play.attempt().reason is Reason.LOST_AFTER_REVIVAL
    assert play.allocation().state is AllocationState.RELEASED


def test_a_removal_before_the_task_was_accepted_means_nothing() -> None:
    play = Play().to_provisioning()
    before = play.state
    assert play.send(play.removed()).state is before


def test_a_missing_task_of_a_terminating_attempt_confirms_its_cleanup() -> None:
    play = Play().to_running()
    play.send(play.stop()).send(_missing(play))
    assert play.attempt().reason is Reason.TERMINATED_BY_USER
    assert play.attempt().status is AttemptStatus.TERMINATED
    assert play.run.status is RunStatus.TERMINATING
    assert play.release_places().run.status is RunStatus.TERMINATED
