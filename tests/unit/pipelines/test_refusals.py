"""Turns over a store that refuses what one run holds: that run waits, nobody else notices."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from controller.lifecycle.events import EventKind
from controller.lifecycle.model import RunPolicy, RunState
from controller.lifecycle.predecessors import Predecessor
from controller.lifecycle.reports import CompleteRequested, RunnerExited, StopRequested, TaskSeen
from controller.pipelines.refused_runs import WAITS
from controller.pipelines.run_pipeline import RunPipeline
from controller.store.errors import StoreRefused
from fairlead.model.beginning import After
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.statuses import AttemptStatus, RunStatus
from tests.doubles.clock import ManualClock
from tests.doubles.failing_stores import Refusing
from tests.support.kept import Kept
from tests.unit.pipelines.looping import working, working_over
from tests.unit.pipelines.parts import a_node, attempt_of, placed, submitted


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """One that all who ask share."""
    clock = ManualClock()
    monkeypatch.setattr(ManualClock, "now", lambda self: clock.time)
    return clock


@contextlib.asynccontextmanager
async def refusing(database: Kept) -> AsyncIterator[tuple[RunPipeline, Refusing]]:
    async with working_over(database, Refusing) as (store, pipeline, _, _loop):
        await pipeline.settled()
        yield pipeline, store


def exited(state: RunState) -> RunnerExited:
    return RunnerExited(
        run_id=state.run.id,
        attempt_id=attempt_of(state).id,
        reason=Reason.DONE_BY_RUNNER,
        exit_code=0,
    )


def two_running(database: Kept) -> tuple[RunState, RunState]:
    wrong, sound = placed(AttemptStatus.RUNNING, "wrong"), placed(AttemptStatus.RUNNING, "sound")
    database.put(wrong)
    database.put(sound)
    return wrong, sound


async def test_reports_to_other_runs_in_the_same_turn_are_stored(
    database: Kept, clock: ManualClock
) -> None:
    wrong, sound = two_running(database)
    async with refusing(database) as (pipeline, store):
        store.runs.add(wrong.run.id)
        pipeline.post(exited(wrong))
        await pipeline.report(exited(sound))
        assert attempt_of(database.runs[sound.run.id]).reason is Reason.DONE_BY_RUNNER
        assert pipeline.runs[wrong.run.id].run == database.runs[wrong.run.id].run
        assert attempt_of(pipeline.runs[wrong.run.id]).status is AttemptStatus.RUNNING


async def test_a_run_aside_is_left_alone_until_its_time_and_then_told_everything(
    database: Kept, clock: ManualClock
) -> None:
    wrong, sound = two_running(database)
    async with refusing(database) as (pipeline, store):
        store.runs.add(wrong.run.id)
        pipeline.post(exited(wrong))
        await pipeline.settled()
        await pipeline.settled()
        assert store.refused == 1
        store.runs.clear()
        await pipeline.report(exited(sound))
        assert attempt_of(pipeline.runs[wrong.run.id]).status is AttemptStatus.RUNNING
        clock.time += WAITS[0]
        await pipeline.settled()
        assert attempt_of(database.runs[wrong.run.id]).reason is Reason.DONE_BY_RUNNER


async def test_the_waits_between_tries_grow_and_the_run_ends_when_all_have_failed(
    database: Kept, clock: ManualClock
) -> None:
    wrong, _ = two_running(database)
    async with refusing(database) as (pipeline, store):
        store.runs.add(wrong.run.id)
        store.takes = lambda state: state.run.reason is RunReason.SERVER_ERROR
        pipeline.post(exited(wrong))
        await pipeline.settled()
        for tries, wait in enumerate(WAITS, 1):
            clock.time += wait - 0.5
            await pipeline.settled()
            assert store.refused == tries
            clock.time += 0.5
            await pipeline.settled()
        run = database.runs[wrong.run.id].run
        assert store.refused == len(WAITS)
        assert (run.status, run.reason) == (RunStatus.TERMINATING, RunReason.SERVER_ERROR)
        assert run.message == (
            "the run's new state could not be stored: the database refuses it: out of range"
        )
        assert attempt_of(database.runs[wrong.run.id]).reason is Reason.TERMINATED_BY_SERVER


async def test_its_story_says_once_that_it_waits(database: Kept, clock: ManualClock) -> None:
    wrong, _ = two_running(database)
    async with refusing(database) as (pipeline, store):
        store.runs.add(wrong.run.id)
        pipeline.post(exited(wrong))
        await pipeline.settled()
        clock.time += WAITS[0]
        await pipeline.settled()
        told = [one.event for one in database.events if one.event.kind is EventKind.STORING]
        assert store.refused == 2
        assert [(one.run_id, one.to_status) for one in told] == [(wrong.run.id, "refused")]


async def test_a_request_about_a_run_aside_is_answered_by_a_try(
    database: Kept, clock: ManualClock
) -> None:
    wrong, _ = two_running(database)
    stop = StopRequested(run_id=wrong.run.id, abort=True, by="ann")
    async with refusing(database) as (pipeline, store):
        store.runs.add(wrong.run.id)
        pipeline.post(exited(wrong))
        await pipeline.settled()
        with pytest.raises(StoreRefused, match="out of range"):
            await pipeline.report(stop)
        assert store.refused == 2
        store.runs.clear()
        await pipeline.report(stop)
        assert database.runs[wrong.run.id].run.reason is RunReason.ABORTED_BY_USER


async def test_a_new_run_that_is_refused_never_was_and_a_sound_one_beside_it_is(
    database: Kept,
) -> None:
    wrong, sound = submitted("wrong"), submitted("sound")
    async with refusing(database) as (pipeline, store):
        store.runs.add(wrong.run.id)
        pipeline.set_node(a_node("n1"), "n1")
        with pytest.raises(StoreRefused):
            await pipeline.admit(wrong)
        await pipeline.admit(sound)
        assert pipeline.live_run_named("wrong") is None
        assert database.runs.keys() == pipeline.runs.keys() == {sound.run.id}
        assert attempt_of(pipeline.runs[sound.run.id]).node_id == "n1"


async def test_a_refused_change_of_a_node_never_was(database: Kept) -> None:
    async with refusing(database) as (pipeline, store):
        await pipeline.save_node(a_node("n1"), "n1")
        store.nodes.add("n1")
        with pytest.raises(StoreRefused):
            await pipeline.save_node(a_node("n1", message="x"), "n1")
        with pytest.raises(StoreRefused):
            await pipeline.save_node(None, "n1")
        await pipeline.save_node(a_node("n2"), "n2")
        assert pipeline.nodes == database.nodes
        told = {key: [one.what for one in node.history] for key, node in pipeline.nodes.items()}
        assert told == {"n1": ["added"], "n2": ["added"]}
        assert pipeline.nodes["n1"] == a_node("n1", history=pipeline.nodes["n1"].history)


async def test_a_waiting_run_aside_is_not_placed_and_one_that_comes_later_is(
    database: Kept, clock: ManualClock
) -> None:
    wrong, sound = submitted("wrong"), submitted("sound")
    async with refusing(database) as (pipeline, store):
        await pipeline.admit(wrong)
        store.runs.add(wrong.run.id)
        await pipeline.save_node(a_node("n1"), "n1")
        await pipeline.admit(sound)
        assert attempt_of(pipeline.runs[wrong.run.id]).status is AttemptStatus.SUBMITTED
        assert attempt_of(pipeline.runs[sound.run.id]).status is AttemptStatus.PROVISIONING
        assert store.refused == 1
        store.runs.clear()
        clock.time += WAITS[0]
        await pipeline.settled()
        assert attempt_of(database.runs[wrong.run.id]).status is AttemptStatus.PROVISIONING


async def test_a_child_aside_hears_of_its_parents_end_when_it_can_be_stored(
    database: Kept, clock: ManualClock
) -> None:
    parent, child = submitted("parent"), submitted("child")
    child = msgspec.structs.replace(
        child, run=msgspec.structs.replace(child.run, parent_id=parent.run.id)
    )
    async with refusing(database) as (pipeline, store):
        await pipeline.admit(parent)
        await pipeline.admit(child)
        store.runs.add(child.run.id)
        await pipeline.report(StopRequested(run_id=parent.run.id, abort=True, by="ann"))
        assert database.runs[parent.run.id].run.status is RunStatus.TERMINATED
        assert database.runs[child.run.id].run.reason is None
        store.runs.clear()
        clock.time += WAITS[0]
        await pipeline.settled()
        assert database.runs[child.run.id].run.reason is RunReason.STOPPED_BY_USER


async def test_a_run_aside_begins_after_its_predecessor_when_it_can_be_stored(
    database: Kept, clock: ManualClock
) -> None:
    prepare, train = submitted("prepare"), submitted("train")
    waits = Predecessor(run_id=prepare.run.id, name="prepare")
    policy = RunPolicy(after=(After(run="prepare"),))
    train = msgspec.structs.replace(
        train,
        run=msgspec.structs.replace(train.run, after=(waits,), policy=policy),
        jobs=(msgspec.structs.replace(train.jobs[0], attempts=()),),
    )
    async with refusing(database) as (pipeline, store):
        await pipeline.admit(prepare)
        await pipeline.admit(train)
        store.runs.add(train.run.id)
        await pipeline.report(CompleteRequested(run_id=prepare.run.id, by="ann"))
        assert database.runs[prepare.run.id].run.status is RunStatus.DONE
        store.runs.clear()
        clock.time += WAITS[0]
        await pipeline.settled()
        assert attempt_of(database.runs[train.run.id]).status is AttemptStatus.SUBMITTED
        assert list(pipeline.known) == [train.run.id]


async def test_a_number_that_no_database_holds_stops_only_the_run_that_brought_it(
    database: Kept, clock: ManualClock
) -> None:
    wrong, sound = two_running(database)
    async with working(database) as (pipeline, _, loop):
        await pipeline.settled()
        pipeline.post(
            TaskSeen(
                run_id=wrong.run.id,
                attempt_id=attempt_of(wrong).id,
                container_started=True,
                terminated=True,
                runner_socket="",
                exit_code=1 << 70,
            )
        )
        await pipeline.report(exited(sound))
        assert attempt_of(database.runs[sound.run.id]).reason is Reason.DONE_BY_RUNNER
        assert not loop.done()
