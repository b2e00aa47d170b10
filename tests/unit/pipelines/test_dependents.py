"""Runs that wait for others, through the turns and over restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from controller.lifecycle.model import Group, JobSpec, RunPolicy, RunState
from controller.lifecycle.predecessors import Predecessor
from controller.lifecycle.reports import (
    CompleteRequested,
    ResumeRequested,
    SetsRetried,
    SetsStopped,
    StopRequested,
    SuspendRequested,
)
from controller.lifecycle.runs.first_state import PlannedJob, new_run
from controller.pipelines.admissions import PredecessorGone
from controller.pipelines.dependents import Dependents, unknown_predecessors
from controller.pipelines.run_pipeline import RunPipeline
from controller.store.base import Store
from controller.store.errors import StoreRefused
from fairlead.model.beginning import After, SameJob, When
from fairlead.model.reasons import RunReason
from fairlead.model.spec import PlannedGroup
from fairlead.model.statuses import RunStatus
from fairlead.model.sweep import ParameterSets, SweepPlan
from tests.doubles.clock import NOW
from tests.doubles.failing_stores import Refusing, SlowCommit
from tests.support.kept import Kept
from tests.unit.pipelines.looping import working, working_over
from tests.unit.pipelines.parts import Ids, submitted


class _Ids(Ids):
    """Ids that those of `parts.submitted` never reach."""

    def __init__(self) -> None:
        super().__init__()
        self._made = 1 << 32


_ids = _Ids()


@pytest.fixture
async def pipeline(database: Kept) -> AsyncIterator[RunPipeline]:
    async with working(database) as (pipeline, _, _loop):
        yield pipeline


def after(*states: RunState, name: str = "train", when: When = When.DONE) -> RunState:
    """Return a run that waits for these."""
    return new_run(
        name=name,
        user="ada",
        jobs=[PlannedJob(spec=JobSpec(image="busybox"))],
        now=NOW,
        new_id=_ids,
        policy=RunPolicy(after=tuple(After(run=one.run.name, when=when) for one in states)),
        after=[Predecessor(run_id=s.run.id, name=s.run.name, when=when) for s in states],
    )


def done(state: RunState) -> CompleteRequested:
    return CompleteRequested(run_id=state.run.id, by="ada")


def stop(state: RunState) -> StopRequested:
    return StopRequested(run_id=state.run.id, abort=False, by="ada")


def sweep(name: str, *after: Predecessor) -> RunState:
    """Return a sweep of two sets."""
    return new_run(
        name=name,
        user="ada",
        groups=[PlannedGroup(group=Group(name="main"), spec=JobSpec(image="busybox"))],
        now=NOW,
        new_id=_ids,
        policy=RunPolicy(after=tuple(After(run=p.name, when=p.when, job=p.job) for p in after)),
        after=after,
        sweep=SweepPlan(sets=ParameterSets.of(["seed"], [[0], [1]])),
    )


def after_each(state: RunState, when: When) -> Predecessor:
    return Predecessor(run_id=state.run.id, name=state.run.name, when=when, job=SameJob.SAME)


def stop_set(state: RunState) -> SetsStopped:
    return SetsStopped(run_id=state.run.id, sets=((1, 1),), by="ada")


def retry(state: RunState) -> SetsRetried:
    return SetsRetried(run_id=state.run.id, sets=((1, 1),), by="ada")


async def test_a_run_begins_in_the_commit_in_which_its_predecessor_is_done(
    pipeline: RunPipeline,
) -> None:
    await pipeline.admit(prepare := submitted("prepare"))
    await pipeline.admit(train := after(prepare))
    assert pipeline.runs[train.run.id].run.status is RunStatus.PENDING
    await pipeline.report(done(prepare))
    state = pipeline.runs[train.run.id]
    assert (state.run.status, len(state.jobs[0].attempts)) == (RunStatus.SUBMITTED, 1)


async def test_a_chain_ends_in_the_commit_in_which_its_first_run_is_stopped(
    database: Kept,
) -> None:
    async with working(database) as (pipeline, _, _loop):
        first = submitted("first")
        second = after(first, name="second")
        third = after(second, name="third")
        for state in (first, second, third):
            await pipeline.admit(state)
        await pipeline.report(stop(first))
        assert pipeline.runs == {}
    reasons = [database.runs[state.run.id].run.reason for state in (second, third)]
    assert reasons == [RunReason.DEPENDENCY_FAILED] * 2


async def test_a_predecessor_may_end_in_the_turn_of_the_submission(
    pipeline: RunPipeline,
) -> None:
    await pipeline.admit(prepare := submitted("prepare"))
    train = after(prepare)
    # Both are handed in before the loop takes its turn.
    await asyncio.gather(pipeline.admit(train), pipeline.report(done(prepare)))
    assert pipeline.runs[train.run.id].run.status is RunStatus.SUBMITTED


async def test_a_predecessor_may_end_in_a_commit_that_is_under_way_at_the_submission(
    database: Kept,
) -> None:
    async with working_over(database, SlowCommit) as (store, pipeline, _, _loop):
        store.go_on.set()
        await pipeline.admit(prepare := submitted("prepare"))
        store.hold()
        ending = asyncio.create_task(pipeline.report(done(prepare)))
        await store.waiting.wait()
        admitting = asyncio.create_task(pipeline.admit(train := after(prepare)))
        await asyncio.sleep(0)
        store.go_on.set()
        await asyncio.gather(ending, admitting)
        assert pipeline.runs[train.run.id].run.status is RunStatus.SUBMITTED
        assert list(pipeline.known) == [train.run.id]


async def test_a_predecessor_that_ended_is_forgotten_with_a_submission_that_is_refused(
    database: Kept,
) -> None:
    train = after(prepare := submitted("prepare"))

    def slow_and_refusing(store: Store) -> SlowCommit:
        refusing = Refusing(store)
        refusing.runs.add(train.run.id)
        return SlowCommit(refusing)

    async with working_over(database, slow_and_refusing) as (store, pipeline, _, _loop):
        store.go_on.set()
        await pipeline.admit(prepare)
        store.hold()
        ending = asyncio.create_task(pipeline.report(done(prepare)))
        await store.waiting.wait()
        admitting = asyncio.create_task(pipeline.admit(train))
        await asyncio.sleep(0)
        store.go_on.set()
        await ending
        with pytest.raises(StoreRefused):
            await admitting
        assert dict(pipeline.known) == {}


async def test_both_runs_may_be_submitted_in_one_turn(pipeline: RunPipeline) -> None:
    prepare = submitted("prepare")
    train = after(prepare)
    await asyncio.gather(pipeline.admit(prepare), pipeline.admit(train))
    assert pipeline.runs[train.run.id].run.status is RunStatus.PENDING


async def test_no_set_begins_after_one_that_is_retried_in_the_same_turn(
    pipeline: RunPipeline,
) -> None:
    await pipeline.admit(prepare := sweep("prepare"))
    await pipeline.report(stop_set(prepare))
    train = sweep("train", after_each(prepare, When.ENDED))
    await asyncio.gather(pipeline.admit(train), pipeline.report(retry(prepare)))
    assert not pipeline.runs[train.run.id].all_jobs
    await pipeline.report(stop_set(prepare))
    assert [job.replica for job in pipeline.runs[train.run.id].jobs] == [1]


async def test_no_set_is_lost_for_one_that_is_retried_in_the_same_turn(
    pipeline: RunPipeline,
) -> None:
    await pipeline.admit(prepare := sweep("prepare"))
    await pipeline.admit(train := sweep("train", after_each(prepare, When.DONE)))
    await pipeline.report(SuspendRequested(run_id=train.run.id, abort_running=False, by="ada"))
    await pipeline.report(stop_set(prepare))
    # The one that waits is heard of first.
    resumed = pipeline.report(ResumeRequested(run_id=train.run.id, by="ada"))
    await asyncio.gather(resumed, pipeline.report(retry(prepare)))
    assert not pipeline.runs[train.run.id].all_jobs


async def test_a_run_whose_predecessor_ended_meanwhile_is_not_admitted(
    pipeline: RunPipeline,
) -> None:
    await pipeline.admit(prepare := submitted("prepare"))
    await pipeline.report(done(prepare))
    with pytest.raises(PredecessorGone):
        await pipeline.admit(after(prepare))


async def test_a_run_goes_on_waiting_after_a_restart(database: Kept) -> None:
    async with working(database) as (pipeline, _, _loop):
        await pipeline.admit(prepare := submitted("prepare"))
        await pipeline.admit(train := after(prepare))
    async with working(database) as (pipeline, _, _loop):
        await pipeline.settled()
        assert pipeline.runs[train.run.id].run.status is RunStatus.PENDING
        await pipeline.report(done(prepare))
        assert pipeline.runs[train.run.id].run.status is RunStatus.SUBMITTED


async def test_a_predecessor_that_ended_unheard_is_found_when_a_controller_begins(
    database: Kept,
) -> None:
    async with working(database) as (pipeline, _, _loop):
        await pipeline.admit(prepare := submitted("prepare"))
        await pipeline.report(done(prepare))
    prepared = database.runs[prepare.run.id]
    train = after(prepare)
    database.put(replace(train, run=replace(train.run, version=1)))
    async with working(database) as (pipeline, _, _loop):
        unknown = unknown_predecessors(pipeline.runs.values(), pipeline.runs)
        assert [(state.run.id, wanted) for state, wanted in unknown] == [
            (train.run.id, prepare.run.id)
        ]
        pipeline.remember(prepared)
        await pipeline.settled()
        assert pipeline.runs[train.run.id].run.status is RunStatus.SUBMITTED


def test_nothing_is_kept_of_runs_that_wait_no_more() -> None:
    prepare = submitted("prepare")
    train = after(prepare)
    dependents = Dependents()
    dependents.note(train)
    assert dependents.of(prepare.run.id) == (train.run.id,)
    met = replace(train.run, after=tuple(replace(one, met=True) for one in train.run.after))
    dependents.note(replace(train, run=met))
    dependents.forget(train.run.id)
    assert dependents.of(prepare.run.id) == ()
    assert vars(dependents) == vars(Dependents())
