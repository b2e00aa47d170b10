"""The reason table against a copy of docs/rules.md's, typed anew."""

from __future__ import annotations

import pytest

from controller.lifecycle.model import RetryEvent, RetryPolicy
from fairlead.model.reasons import (
    ATTEMPT_REASON_OF_RUN,
    FINAL_STATUS_OF_RUN,
    ROWS,
    RUN_SENTENCES,
    Limit,
    Reason,
    RunReason,
    run_reason_of,
    state_of,
)
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, AttemptStatus
from fairlead.wire.runner import ExitReason
from fairlead.wire.shim import TaskReason
from tests.unit.lifecycle.play import Play

TABLE = """
done_by_runner | DONE | success | - | - | - | succeeded
container_exited_with_error, out_of_memory, executor_error, ports_binding_failed | FAILED | failure | error | failure | job_failed | failed
creating_container_error, image_pull_failed, volume_error, gateway_error, waiting_runner_limit_exceeded, probes_failed | FAILED | failure | error | failure | job_failed | failed
secret_missing | FAILED | failure | - | - | - | failed
log_quota_exceeded | FAILED | failure | - | - | - | failed
max_duration_exceeded | TERMINATED | failure | - | - | - | killed
failed_to_start_due_to_no_capacity | FAILED | failure | no-capacity | - | - | unschedulable
unschedulable | FAILED | failure | - | - | - | unschedulable
time_limit_reached | TERMINATED | neutral | interruption | - | job_interrupted | preempted
dependency_failed | FAILED | failure | - | failure | - | failed
waiting_instance_limit_exceeded, instance_access_revoked | FAILED | failure | interruption | preemption | job_aborted | worker_failed
interrupted_by_no_capacity, instance_unreachable, gpu_unhealthy, lost_after_revival | FAILED | failure | interruption | preemption | job_aborted | worker_failed
node_drained | TERMINATED | neutral | interruption | - | job_aborted | preempted
preempted | TERMINATED | neutral | interruption | preemption | job_aborted | preempted
interrupted | ABORTED | neutral | interruption | - | job_interrupted | preempted
job_aborted_by_user | ABORTED | neutral | interruption | - | job_aborted | killed
incarnation_changed | ABORTED | neutral | with its gang | - | - | killed
suspended | TERMINATED | neutral | on resume | - | - | killed
sibling_failed | TERMINATED | neutral | with its replica | - | - | killed
scaled_down, abandoned, released | TERMINATED | neutral | - | - | - | killed
terminated_by_user, terminated_by_server, inactivity_duration_exceeded, terminated_due_to_utilization_policy | TERMINATED | neutral | - | - | - | killed
aborted_by_user | ABORTED | neutral | - | - | - | killed
"""  # noqa: E501


def _expected() -> dict[str, tuple[str, ...]]:
    rows = {}
    for line in TABLE.strip().splitlines():
        names, *cells = (cell.strip() for cell in line.split("|"))
        for name in names.split(","):
            rows[name.strip()] = tuple(cells)
    return rows


EXPECTED = _expected()


def test_the_code_has_exactly_the_reasons_of_the_page() -> None:
    assert {str(reason) for reason in ROWS} == set(EXPECTED)
    assert set(ROWS) == set(Reason)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_reason_has_the_row_of_the_page(name: str) -> None:
    row = ROWS[Reason(name)]
    cells = (
        row.final.upper(),
        str(row.reason_class),
        str(row.event or "-"),
        str(row.budget or "-"),
        str(row.gang_switch or "-"),
        str(row.iris),
    )
    assert cells == EXPECTED[name]


@pytest.mark.parametrize("reason", list(Reason), ids=str)
def test_a_reason_has_a_sentence_of_its_own_for_a_person(reason: Reason) -> None:
    sentence = ROWS[reason].sentence
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    assert [row.sentence for row in ROWS.values()].count(sentence) == 1


@pytest.mark.parametrize("reason", list(Reason), ids=str)
def test_an_attempt_that_ran_becomes_final_as_its_reason_says(reason: Reason) -> None:
    play = Play(retry=RetryPolicy(on_events=frozenset(RetryEvent)))
    play.live_and_end(reason=reason)
    first = play.attempt(number=0)
    assert first.reason is reason
    assert first.status is ROWS[reason].final
    assert first.status in FINAL_ATTEMPT_STATUSES


@pytest.mark.parametrize("reason", list(RunReason), ids=str)
def test_a_reason_of_a_run_has_a_final_status_an_attempt_reason_and_a_sentence(
    reason: RunReason,
) -> None:
    assert (
        FINAL_STATUS_OF_RUN[reason].upper()
        == {
            "all_jobs_done": "DONE",
            "completed_by_user": "DONE",
            "job_failed": "FAILED",
            "retry_limit_exceeded": "FAILED",
            "unschedulable": "FAILED",
            "dependency_failed": "FAILED",
            "worker_failed": "FAILED",
            "server_error": "FAILED",
            "gateway_error": "FAILED",
            "stopped_by_user": "TERMINATED",
            "aborted_by_user": "TERMINATED",
        }[reason]
    )
    expected = {"stopped_by_user": "terminated_by_user", "aborted_by_user": "aborted_by_user"}
    assert ATTEMPT_REASON_OF_RUN[reason] == expected.get(reason, "terminated_by_server")
    assert RUN_SENTENCES[reason].endswith(".")


PLACE_WAS_LOST = {
    "waiting_instance_limit_exceeded",
    "instance_access_revoked",
    "interrupted_by_no_capacity",
    "instance_unreachable",
    "gpu_unhealthy",
    "lost_after_revival",
    "node_drained",
    "preempted",
}
NO_PLACE_WAS_FOUND = {"failed_to_start_due_to_no_capacity", "unschedulable"}


@pytest.mark.parametrize("reason", list(Reason), ids=str)
def test_a_job_that_ended_for_good_gives_the_run_its_reason(reason: Reason) -> None:
    expected = (
        {
            "terminated_by_user": "stopped_by_user",
            "aborted_by_user": "aborted_by_user",
            "job_aborted_by_user": "aborted_by_user",
            "dependency_failed": "dependency_failed",
        }
        | dict.fromkeys(PLACE_WAS_LOST, "worker_failed")
        | dict.fromkeys(NO_PLACE_WAS_FOUND, "unschedulable")
    )
    assert run_reason_of(reason) == expected.get(str(reason), "job_failed")


@pytest.mark.parametrize("limit", list(Limit), ids=str)
@pytest.mark.parametrize(
    "reason", [Reason.OUT_OF_MEMORY, Reason.FAILED_TO_START_DUE_TO_NO_CAPACITY], ids=str
)
def test_a_limit_that_ended_a_job_gives_the_run_its_reason(reason: Reason, limit: Limit) -> None:
    assert run_reason_of(reason, limit) == "retry_limit_exceeded"


def test_a_used_up_budget_of_interruptions_is_the_nodes_doing_and_a_passed_duration_is_not() -> (
    None
):
    lost = Reason.INSTANCE_UNREACHABLE
    assert run_reason_of(lost, Limit.BUDGET) == "worker_failed"
    assert run_reason_of(lost, Limit.DURATION) == "retry_limit_exceeded"


@pytest.mark.parametrize(
    ("status", "reason", "state"),
    [
        (AttemptStatus.SUBMITTED, None, "pending"),
        (AttemptStatus.PROVISIONING, None, "assigned"),
        (AttemptStatus.PULLING, None, "building"),
        (AttemptStatus.RUNNING, None, "running"),
        (AttemptStatus.TERMINATING, Reason.PREEMPTED, "preempted"),
        (AttemptStatus.DONE, Reason.DONE_BY_RUNNER, "succeeded"),
        (AttemptStatus.FAILED, Reason.OUT_OF_MEMORY, "failed"),
        (AttemptStatus.FAILED, Reason.INSTANCE_UNREACHABLE, "worker_failed"),
        (AttemptStatus.FAILED, Reason.UNSCHEDULABLE, "unschedulable"),
        (AttemptStatus.ABORTED, Reason.ABORTED_BY_USER, "killed"),
    ],
)
def test_an_attempt_has_the_name_that_iris_users_know(
    status: AttemptStatus, reason: Reason | None, state: str
) -> None:
    assert state_of(status, reason) == state


@pytest.mark.parametrize("reason", TaskReason)
def test_each_reason_of_a_shim_has_a_rank(reason: TaskReason) -> None:
    assert ROWS[Reason(reason.value)].shim_rank is not None


@pytest.mark.parametrize("reason", sorted(set(ExitReason) - {ExitReason.INTERRUPTED}))
def test_each_reason_of_a_runner_has_a_rank(reason: ExitReason) -> None:
    """But `interrupted`, which counts only for a job that was asked to end."""
    assert ROWS[Reason(reason.value)].runner_rank is not None
