"""Scheduled runs: docs/rules.md 4, what it says about triggers and occurrences."""

from __future__ import annotations

from controller.lifecycle.draft import DecisionContext
from controller.lifecycle.events import EventKind
from controller.lifecycle.model import RetryEvent, RetryPolicy
from controller.lifecycle.reports import (
    CompleteRequested,
    JobAbandonRequested,
    ResumeRequested,
    ScaleRequested,
    SuspendRequested,
)
from controller.lifecycle.runs.schedules import KEPT, PHASE_MOVES, Phase, needs_next_trigger, phase
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from tests.unit.lifecycle.gangs.stage import GangPlay, gang
from tests.unit.lifecycle.play import HOUR, SCHEDULE, START, Play, Scheduled

FAILED = Reason.CONTAINER_EXITED_WITH_ERROR


def _told(play: Play) -> list[str | None]:
    return [e.to_status for e in play.events if e.kind is EventKind.OCCURRENCE]


def test_a_scheduled_run_is_pending_without_attempts_until_its_first_trigger() -> None:
    play = Scheduled(jobs=2)
    assert play.run.status is RunStatus.PENDING
    assert play.run.next_triggered_at == play.wake_at == START + HOUR
    assert [job.attempts for job in play.state.jobs] == [(), ()]


def test_a_trigger_starts_an_occurrence_with_new_attempts_for_all_jobs() -> None:
    play = Scheduled(jobs=2)
    play.to_trigger()
    assert play.run.status is RunStatus.SUBMITTED
    assert (play.run.occurrence, play.run.triggered_at) == (1, play.now)
    assert [play.attempt(n).occurrence for n in (0, 1)] == [1, 1]
    assert play.run.next_triggered_at == START + 2 * HOUR


def test_the_occurrence_gets_the_status_and_the_run_waits_for_the_next_trigger() -> None:
    play = Scheduled()
    play.to_trigger().live_and_end(reason=FAILED)
    (over,) = play.run.occurrences
    assert (over.number, over.status, over.reason) == (1, RunStatus.FAILED, RunReason.JOB_FAILED)
    assert (over.started_at, over.finished_at) == (START + HOUR, play.now)
    assert over.message == "the job ended with exit code 1"
    assert (play.run.status, play.run.reason, play.run.message) == (RunStatus.PENDING, None, None)
    assert play.run.finished_at is None
    assert play.wake_at == START + 2 * HOUR


def test_the_next_occurrence_runs_the_jobs_again() -> None:
    play = Scheduled()
    play.to_trigger().live_and_end()
    play.to_trigger().live_and_end()
    assert [o.status for o in play.run.occurrences] == [RunStatus.DONE, RunStatus.DONE]
    assert [a.occurrence for a in play.job().attempts] == [1, 2]
    assert [a.number for a in play.job().attempts] == [0, 1]
    assert _told(play) == ["started", "done", "started", "done"]


def test_a_trigger_that_comes_while_an_occurrence_is_going_is_skipped_and_recorded() -> None:
    play = Scheduled()
    play.to_trigger().to_running()
    play.to_trigger()
    assert play.run.occurrence == 1
    assert play.run.next_triggered_at == START + 3 * HOUR
    assert _told(play) == ["started", "skipped"]


def test_budgets_count_within_the_occurrence() -> None:
    retry = RetryPolicy(on_events=frozenset({RetryEvent.ERROR}), max_failures=1)
    play = Scheduled(retry=retry)
    play.to_trigger()
    for _ in range(2):
        play.live_and_end(reason=FAILED).wait(20)
    assert play.run.occurrences[-1].reason is RunReason.RETRY_LIMIT_EXCEEDED
    play.to_trigger().live_and_end(reason=FAILED)
    assert play.run.status is RunStatus.SUBMITTED
    assert play.attempt().status is AttemptStatus.SUBMITTED


def test_max_duration_counts_within_the_occurrence() -> None:
    play = Scheduled(max_duration=100.0)
    for _ in range(2):
        play.to_trigger().to_running().wait(60)
        play.send(play.exited()).clean()
    assert [o.status for o in play.run.occurrences] == [RunStatus.DONE, RunStatus.DONE]


def test_abandoned_is_cleared_by_a_new_occurrence() -> None:
    play = Scheduled(jobs=2)
    play.to_trigger()
    play.send(JobAbandonRequested(run_id=play.run_id, job_id=play.job(0).id, by="ada"))
    play.live_and_end(1)
    assert play.run.occurrences[-1].status is RunStatus.DONE
    play.to_trigger()
    assert not play.job(0).abandoned
    assert play.attempt(0).status is AttemptStatus.SUBMITTED


def test_a_stop_between_occurrences_ends_the_run_at_once() -> None:
    play = Scheduled()
    play.send(play.stop())
    assert (play.run.status, play.run.reason) == (RunStatus.TERMINATED, RunReason.STOPPED_BY_USER)
    assert play.run.occurrences == ()
    assert play.run.next_triggered_at is None
    assert play.wake_at is None


def test_a_stop_ends_the_occurrence_and_the_run() -> None:
    play = Scheduled()
    play.to_trigger().to_running()
    play.send(play.stop()).clean()
    assert play.run.occurrences[-1].status is RunStatus.TERMINATED
    assert play.run.status is RunStatus.TERMINATED


def test_a_stop_while_an_occurrence_fails_leaves_it_its_reason_and_ends_the_run() -> None:
    play = Scheduled()
    play.to_trigger().to_running()
    play.send(play.exited(0, FAILED)).send(play.stop()).clean()
    assert play.run.occurrences[-1].reason is RunReason.JOB_FAILED
    assert (play.run.status, play.run.reason) == (RunStatus.TERMINATED, RunReason.STOPPED_BY_USER)
    assert play.run.message is None


def test_complete_ends_a_scheduled_run_as_done() -> None:
    play = Scheduled()
    play.send(CompleteRequested(run_id=play.run_id, by="ada"))
    assert (play.run.status, play.run.reason) == (RunStatus.DONE, RunReason.COMPLETED_BY_USER)


def test_a_suspended_run_misses_its_triggers_for_good() -> None:
    play = Scheduled()
    play.send(SuspendRequested(run_id=play.run_id, abort_running=False, by="ada"))
    assert play.wake_at is None
    play.wait(2.5 * HOUR)
    assert play.run.occurrence == 0
    play.send(ResumeRequested(run_id=play.run_id, by="ada"))
    assert play.run.occurrence == 0
    assert play.wake_at == START + 3 * HOUR


def test_a_trigger_that_passed_while_the_controller_was_away_is_made_up_for_once() -> None:
    play = Scheduled()
    play.wait(5.5 * HOUR)
    assert play.run.occurrence == 1
    assert play.run.next_triggered_at == START + 6 * HOUR


def test_a_slot_that_scale_adds_between_occurrences_gets_its_attempt_from_the_trigger() -> None:
    play = Scheduled()
    play.send(ScaleRequested(run_id=play.run_id, group="main", nodes=2, by="ada"))
    assert play.job(1).attempts == ()
    play.to_trigger()
    assert [len(job.attempts) for job in play.state.jobs] == [1, 1]


def test_a_gang_begins_a_new_incarnation_with_each_occurrence() -> None:
    play = GangPlay(gang(nodes=3, size=2), schedule=SCHEDULE)
    around = DecisionContext(next_trigger=START + HOUR)
    play.around = around
    play.send()
    assert (play.run.status, play.number) == (RunStatus.PENDING, 0)
    play.around = DecisionContext(next_trigger=START + 2 * HOUR)
    play.wait(HOUR)
    assert play.number == 1
    assert [play.attempt(n).rank for n in range(3)] == [0, 1, None]
    play.run_all().send(play.exited(0), play.exited(1)).clean_all().clean_all()
    assert [o.status for o in play.run.occurrences] == [RunStatus.DONE]
    assert (play.run.status, play.number) == (RunStatus.PENDING, 1)
    assert {a.state for a in play.state.allocations} == {AllocationState.RELEASED}
    play.wait(HOUR)
    assert play.number == 2
    assert play.statuses() == [AttemptStatus.SUBMITTED] * 3


def test_a_run_remembers_only_its_latest_occurrences() -> None:
    play = Scheduled()
    for _ in range(KEPT + 2):
        play.to_trigger().live_and_end()
    assert [o.number for o in play.run.occurrences] == list(range(3, KEPT + 3))


def test_the_next_trigger_is_asked_for_only_when_it_will_be_looked_at() -> None:
    play = Scheduled()
    assert not needs_next_trigger(play.run, play.now)
    assert needs_next_trigger(play.run, START + HOUR)
    assert not needs_next_trigger(Play().run, play.now)


def test_a_scheduled_run_moves_along_its_table() -> None:
    play = Scheduled()
    seen = [phase(play.run)]

    def note(_: object) -> None:
        if phase(play.run) is not seen[-1]:
            seen.append(phase(play.run))

    note(play.to_trigger())
    note(play.to_running().send(play.exited()).clean())
    note(play.to_trigger().to_running())
    note(play.send(play.stop()))
    note(play.clean())
    assert seen == [
        Phase.WAITING,
        Phase.GOING,
        Phase.WAITING,
        Phase.GOING,
        Phase.ENDING,
        Phase.OVER,
    ]
    assert phase(Play().run) is None


def test_every_phase_has_its_moves() -> None:
    assert set(PHASE_MOVES) == set(Phase)
    assert PHASE_MOVES[Phase.OVER] == frozenset()
