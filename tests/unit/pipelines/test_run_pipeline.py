"""Turns over stores that behave and stores that do not: nothing is said before it is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from controller.lifecycle import decide
from controller.lifecycle.decide import Decision
from controller.lifecycle.model import RunState
from controller.lifecycle.reports import (
    LogsComplete,
    NodeDisconnected,
    RunnerExited,
    StopRequested,
    TaskRemoved,
    TaskSeen,
    Tick,
)
from controller.pipelines import run_pipeline, turn
from controller.pipelines.admissions import Admissions, NameTaken, NotAdmitted
from controller.pipelines.turn import Brake
from controller.store.base import Store
from controller.store.errors import LeaseLost, LeaseTaken, NotKnown, NotYetStored, StoreUnavailable
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus, IllegalMove, RunStatus
from tests.doubles.clock import NOW, ManualClock
from tests.doubles.failing_stores import CountedCommits, DiskFull, SlowCommit, TakenOver
from tests.support.kept import Kept
from tests.unit.pipelines.looping import until_committed, working, working_over
from tests.unit.pipelines.parts import SOCKET, a_node, attempt_of, placed, submitted


@pytest.fixture(autouse=True)
def quick_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_pipeline, "COMMIT_RETRY_SECONDS", 0.0)


async def test_an_admitted_run_is_durable_and_live_when_the_caller_is_told(
    database: Kept,
) -> None:
    async with working(database) as (pipeline, listener, _):
        state = submitted()
        await pipeline.admit(state)
        assert database.runs[state.run.id] == pipeline.runs[state.run.id]
        assert [told.run.id for told in listener.told] == [state.run.id]
        assert pipeline.live_run_named("hello") == state.run.id


async def test_nobody_is_told_before_the_commit(database: Kept) -> None:
    async with working_over(database, SlowCommit) as (store, pipeline, listener, _):
        state = submitted()
        admitting = asyncio.create_task(pipeline.admit(state))
        await store.waiting.wait()
        assert (pipeline.runs, listener.told, admitting.done()) == ({}, [], False)
        store.go_on.set()
        await admitting
        assert state.run.id in pipeline.runs
        assert state.run.id in database.runs


async def test_a_name_belongs_to_one_live_run_even_while_it_is_being_committed(
    database: Kept,
) -> None:
    async with working(database) as (pipeline, _, _loop):
        first = asyncio.create_task(pipeline.admit(submitted()))
        await asyncio.sleep(0)
        with pytest.raises(NameTaken):
            await pipeline.admit(submitted())
        await first
        with pytest.raises(NameTaken):
            await pipeline.admit(submitted())


async def test_a_refusal_that_nobody_names_is_told_and_keeps_no_other_run_back(
    database: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(NotAdmitted):
        """A refusal that the module has not yet."""

    take = Admissions.take

    def refuse(admissions: Admissions, states: Sequence[RunState]) -> None:
        if states[0].run.name == "second":
            raise Full
        take(admissions, states)

    monkeypatch.setattr(Admissions, "take", refuse)
    async with working(database) as (pipeline, _, _loop):
        first, second = submitted("first"), submitted("second")
        told, refused = await pipeline.admit_all([first, second])
        assert (told, type(refused)) == (None, Full)
        assert list(database.runs) == [first.run.id]


async def test_a_finished_run_gives_its_name_back(database: Kept) -> None:
    async with working(database) as (pipeline, listener, _):
        state = submitted()
        await pipeline.admit(state)
        await pipeline.report(StopRequested(run_id=state.run.id, abort=True, by="ann"))
        assert pipeline.runs == {}
        assert listener.told[-1].run.status is RunStatus.TERMINATED
        await pipeline.admit(submitted())
        assert pipeline.live_run_named("hello") != state.run.id


async def test_a_run_that_could_not_be_committed_never_was(database: Kept) -> None:
    async with working(database, DiskFull) as (pipeline, listener, _):
        state = submitted()
        with pytest.raises(StoreUnavailable, match="full"):
            await pipeline.admit(state)
        assert (pipeline.runs, database.runs, listener.told) == ({}, {}, [])
        assert pipeline.live_run_named("hello") is None
        with pytest.raises(StoreUnavailable, match="full"):
            await pipeline.admit(submitted())


async def test_a_caller_who_leaves_during_the_commit_does_not_free_the_name(
    database: Kept,
) -> None:
    async with working_over(database, SlowCommit) as (store, pipeline, _, _loop):
        state = submitted()
        admitting = asyncio.create_task(pipeline.admit(state))
        await store.waiting.wait()
        admitting.cancel()
        await asyncio.gather(admitting, return_exceptions=True)
        with pytest.raises(NameTaken):
            await pipeline.admit(submitted())
        store.go_on.set()
        await pipeline.settled()
        assert pipeline.live_run_named("hello") == state.run.id


async def test_a_caller_who_leaves_before_the_turn_frees_the_name(
    database: Kept,
) -> None:
    async with working_over(database, SlowCommit) as (store, pipeline, _, _loop):
        pipeline.set_node(a_node(), "n1")
        await store.waiting.wait()
        admitting = asyncio.create_task(pipeline.admit(submitted()))
        await asyncio.sleep(0)
        admitting.cancel()
        await asyncio.gather(admitting, return_exceptions=True)
        store.go_on.set()
        await pipeline.settled()
        assert (database.runs, pipeline.live_run_named("hello")) == ({}, None)


async def test_a_submitted_job_is_placed_in_the_same_commit(database: Kept) -> None:
    async with working_over(database, CountedCommits) as (store, pipeline, _, _loop):
        await pipeline.save_node(a_node(), "n1")
        await pipeline.admit(submitted())
    (change,) = store.commits[-1].runs.values()
    assert change[0] is None
    assert attempt_of(change[1]).status is AttemptStatus.PROVISIONING
    assert change[1].allocations[0].node_id == "n1"


async def test_a_waiting_job_is_placed_when_a_node_comes(database: Kept) -> None:
    async with working(database) as (pipeline, _, _loop):
        state = submitted()
        await pipeline.admit(state)
        assert attempt_of(pipeline.runs[state.run.id]).pending_reason
        await pipeline.save_node(a_node(), "n1")
        await pipeline.settled()
        assert attempt_of(pipeline.runs[state.run.id]).node_id == "n1"
        assert [live.run.id for live in pipeline.runs_on("n1")] == [state.run.id]


async def test_reports_outlive_a_failed_commit(database: Kept) -> None:
    state = placed(AttemptStatus.RUNNING)
    database.put(state)
    async with working_over(database, CountedCommits) as (store, pipeline, listener, _):
        await pipeline.settled()
        store.full = True
        with pytest.raises(NotYetStored):
            await pipeline.report(
                RunnerExited(
                    run_id=state.run.id,
                    attempt_id=attempt_of(state).id,
                    reason=Reason.DONE_BY_RUNNER,
                    exit_code=0,
                )
            )
        with pytest.raises(NotYetStored):
            await pipeline.settled()
        assert store.failures >= 2
        assert attempt_of(pipeline.runs[state.run.id]).status is AttemptStatus.RUNNING
        told = len(listener.told)
        store.full = False
        await until_committed(pipeline, state.run.id, lambda: len(listener.told) > told)
        assert attempt_of(pipeline.runs[state.run.id]).status is AttemptStatus.TERMINATING
        assert attempt_of(database.runs[state.run.id]).reason is Reason.DONE_BY_RUNNER


async def test_node_changes_outlive_a_failed_commit_and_the_newest_wins(
    database: Kept,
) -> None:
    async with working_over(database, CountedCommits) as (store, pipeline, _, _loop):
        store.full = True
        with pytest.raises(NotYetStored):
            await pipeline.save_node(a_node(message="old"), "n1")
        pipeline.set_node(a_node(message="new"), "n1")
        store.full = False
        await pipeline.settled()
        await pipeline.settled()
        assert database.nodes["n1"].message == "new"


async def test_a_job_placed_in_a_failed_commit_is_placed_again(
    database: Kept,
) -> None:
    async with working_over(database, CountedCommits) as (store, pipeline, _, _loop):
        state = submitted()
        await pipeline.admit(state)
        store.full = True
        with pytest.raises(StoreUnavailable):
            await pipeline.save_node(a_node(), "n1")
        store.full = False
        await until_committed(
            pipeline, state.run.id, lambda: attempt_of(pipeline.runs[state.run.id]).node_id == "n1"
        )
        assert attempt_of(database.runs[state.run.id]).status is AttemptStatus.PROVISIONING


async def test_a_report_about_a_run_that_is_not_live_changes_nothing(
    database: Kept,
) -> None:
    async with working(database) as (pipeline, listener, _):
        await pipeline.report(StopRequested(run_id="0" * 16, abort=False, by="ann"))
        assert (pipeline.runs, listener.told, database.events) == ({}, [], [])


async def test_a_run_goes_from_running_to_done_by_what_is_reported(
    database: Kept,
) -> None:
    state = placed(AttemptStatus.RUNNING)
    database.put(state)
    run_id, attempt_id = state.run.id, attempt_of(state).id
    async with working(database) as (pipeline, _, _loop):
        pipeline.post(
            RunnerExited(run_id=run_id, attempt_id=attempt_id, reason=Reason.DONE_BY_RUNNER)
        )
        pipeline.post(
            TaskSeen(
                run_id=run_id,
                attempt_id=attempt_id,
                container_started=True,
                terminated=True,
                runner_socket=SOCKET,
            )
        )
        pipeline.post(LogsComplete(run_id=run_id, attempt_id=attempt_id))
        await pipeline.report(TaskRemoved(run_id=run_id, attempt_id=attempt_id))
        assert pipeline.runs == {}
        assert pipeline.runs_on("n1") == []
    assert database.runs[state.run.id].run.status is RunStatus.DONE


def node_reached(state: RunState) -> NodeDisconnected:
    """Until then a restored run's start limits stand still."""
    node_id = attempt_of(state).node_id
    assert node_id is not None
    return NodeDisconnected(run_id=state.run.id, node_id=node_id, disconnected=False)


async def test_a_restored_run_has_its_start_limits_anew_once_its_node_is_reached(
    database: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = placed(AttemptStatus.PROVISIONING)
    database.put(state)
    clock = ManualClock()
    monkeypatch.setattr(ManualClock, "now", lambda self: clock.time)
    limit = state.run.policy.limits.waiting_instance
    clock.time += 2 * limit
    async with working(database) as (pipeline, _, _loop):
        pipeline.post(node_reached(state))
        await pipeline.settled()
        clock.time += limit - 1
        pipeline.post(Tick(run_id=state.run.id))
        await pipeline.settled()
        assert attempt_of(pipeline.runs[state.run.id]).reason is None


async def test_a_deadline_that_passes_is_decided_without_a_report(
    database: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = placed(AttemptStatus.PROVISIONING)
    database.put(state)
    clock = ManualClock()
    monkeypatch.setattr(ManualClock, "now", lambda self: clock.time)
    async with working(database) as (pipeline, _, _loop):
        pipeline.post(node_reached(state))
        await pipeline.settled()
        assert attempt_of(pipeline.runs[state.run.id]).status is AttemptStatus.PROVISIONING
        clock.time += state.run.policy.limits.waiting_instance + 1
        await pipeline.settled()
        await pipeline.settled()
        ended = attempt_of(pipeline.runs[state.run.id])
        assert ended.reason is Reason.WAITING_INSTANCE_LIMIT_EXCEEDED


async def test_a_run_that_reports_much_keeps_one_deadline(database: Kept) -> None:
    state = placed(AttemptStatus.PROVISIONING)
    database.put(state)
    async with working(database) as (pipeline, _, _loop):
        pipeline.post(node_reached(state))
        for _ in range(20):
            pipeline.post(StopRequested(run_id="other", abort=False, by="ann"))
            pipeline.post(Tick(run_id=state.run.id))
            await pipeline.settled()
        assert pipeline.deadlines == 1


async def test_a_run_that_always_asks_to_be_looked_at_now_is_slowed_and_told_as_an_error(
    database: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, asked = ManualClock(), 0

    def restless(state: RunState, *rest: Any) -> Decision:
        nonlocal asked
        asked += 1
        return Decision(state, (), clock.time)

    monkeypatch.setattr(ManualClock, "now", lambda self: clock.time)
    async with working(database) as (pipeline, _, _loop):
        state = submitted()
        await pipeline.admit(state)
        monkeypatch.setattr(turn, "decide", restless)
        pipeline.post(Tick(run_id=state.run.id))
        for _ in range(20):
            await pipeline.settled()
        assert asked == 1
        for seconds, looks in ((1.0, 2), (1.0, 2), (1.0, 3), (4.0, 4)):
            clock.time += seconds
            await pipeline.settled()
            await pipeline.settled()
            assert asked == looks
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [message.rpartition("again in ")[2] for message in told] == ["1 s", "2 s", "4 s", "8 s"]
    assert told[0].startswith(f"internal error: run hello ({state.run.id}) asks for a decision")


def test_a_run_that_something_changes_is_slowed_no_longer() -> None:
    brake, run = Brake(), submitted().run
    for wait in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        assert brake.next_look(run, NOW, NOW, changed=False) == NOW + wait
    assert brake.next_look(run, NOW, NOW, changed=True) == NOW
    assert brake.next_look(run, NOW, NOW, changed=False) == NOW + 1.0
    assert brake.next_look(run, NOW + 5.0, NOW, changed=False) == NOW + 5.0
    assert brake.next_look(run, None, NOW, changed=False) is None


async def test_a_controller_that_was_taken_over_stops_and_tells_everybody(
    database: Kept,
) -> None:
    async with working(database, TakenOver) as (pipeline, listener, loop):
        with pytest.raises(LeaseLost):
            await pipeline.admit(submitted())
        with pytest.raises(LeaseLost):
            await loop
        with pytest.raises(LeaseLost):
            await pipeline.admit(submitted("other"))
        assert (database.runs, listener.told) == ({}, [])


async def test_a_controller_that_finds_its_lease_taken_answers_who_waits_for_its_last_commit(
    database: Kept,
) -> None:
    def replaced(inner: Store) -> SlowCommit:
        return SlowCommit(TakenOver(inner))

    async with working_over(database, replaced) as (store, pipeline, _, loop):
        in_commit = asyncio.create_task(pipeline.admit(submitted("first")))
        await store.waiting.wait()
        queued = asyncio.create_task(pipeline.admit_all([submitted("second")]))
        await asyncio.sleep(0)
        taken = LeaseTaken("another controller has taken over")
        losing = asyncio.create_task(pipeline.lost(taken))
        with pytest.raises(LeaseTaken):
            await queued
        assert not losing.done()
        store.go_on.set()
        with pytest.raises(LeaseTaken):
            await in_commit
        await losing
        with pytest.raises(LeaseTaken):
            await loop


async def test_a_controller_that_finds_its_lease_taken_does_not_wait_for_a_database_that_hangs(
    database: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_pipeline, "LOST_SECONDS", 0.0)
    async with working_over(database, SlowCommit) as (store, pipeline, _, loop):
        in_commit = asyncio.create_task(pipeline.admit(submitted("first")))
        await store.waiting.wait()
        await pipeline.lost(LeaseTaken("another controller has taken over"))
        loop.cancel()
        with pytest.raises(NotKnown):
            await in_commit


async def test_a_controller_that_stops_leaves_no_caller_waiting(database: Kept) -> None:
    async with working_over(database, SlowCommit) as (store, pipeline, _, loop):
        in_commit = asyncio.create_task(pipeline.admit(submitted("first")))
        await store.waiting.wait()
        queued = asyncio.create_task(pipeline.admit(submitted("second")))
        await asyncio.sleep(0)
        loop.cancel()
        for waiting in (in_commit, queued):
            with pytest.raises(StoreUnavailable, match="stopping"):
                await waiting


async def test_a_restarted_controller_decides_every_live_run_anew(
    database: Kept,
) -> None:
    state = submitted()
    async with working(database) as (pipeline, _, _loop):
        await pipeline.save_node(a_node(), "n1")
        await pipeline.admit(state)
    async with working(database) as (pipeline, listener, _):
        await pipeline.settled()
        assert [told.run.id for told in listener.told] == [state.run.id]
        assert [live.run.id for live in pipeline.runs_on("n1")] == [state.run.id]
        with pytest.raises(NameTaken):
            await pipeline.admit(submitted())


async def test_watchers_of_a_run_a_node_and_anything_are_woken_each_for_their_own(
    database: Kept,
) -> None:
    state = submitted()
    async with (
        working(database) as (pipeline, _, _loop),
        pipeline.watch(state.run.id) as of_run,
        pipeline.watch("n1") as of_node,
        pipeline.watch(None) as of_all,
    ):
        await pipeline.admit(state)
        assert (of_run.is_set(), of_node.is_set(), of_all.is_set()) == (True, False, True)
        of_run.clear()
        of_all.clear()
        await pipeline.save_node(a_node(draining=True), "n1")
        assert (of_node.is_set(), of_all.is_set()) == (True, True)


async def test_a_fault_in_one_runs_decision_does_not_stop_the_others(
    database: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(database) as (pipeline, _, work):
        faulty, sound = submitted("faulty"), submitted("sound")
        await pipeline.admit(faulty)
        await pipeline.admit(sound)
        really_decide = decide.decide

        def decide_or_fail(state: RunState, *rest: Any) -> Decision:
            if state.run.id == faulty.run.id:
                raise IllegalMove("run", RunStatus.DONE, RunStatus.RUNNING)
            return really_decide(state, *rest)

        monkeypatch.setattr(turn, "decide", decide_or_fail)
        for state in (faulty, sound):
            await pipeline.report(StopRequested(run_id=state.run.id, abort=True, by="ann"))
        assert faulty.run.id in pipeline.runs
        assert sound.run.id not in pipeline.runs
        assert not work.done()
    assert "run faulty" in caplog.text


async def test_a_run_on_a_node_that_was_removed_unheard_ends_there(database: Kept) -> None:
    state = placed(AttemptStatus.RUNNING)
    database.put(state)
    async with working(database, nodes=[a_node("another")]) as (pipeline, _, _):
        await pipeline.settled()
        first = pipeline.runs[state.run.id].jobs[0].attempts[0]
    assert (first.reason, first.status) == (Reason.INSTANCE_UNREACHABLE, AttemptStatus.FAILED)
