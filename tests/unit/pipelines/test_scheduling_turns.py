"""The scheduler within the turns: one transaction, and nothing of it when that fails."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.lifecycle.model import Band, Run, RunState
from controller.pipelines.run_pipeline import RunPipeline
from controller.scheduling.scheduler import JobSubmittedPipeline
from controller.store.errors import StoreUnavailable
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AllocationState, AttemptStatus
from tests.doubles.failing_stores import CountedCommits
from tests.support.indexes import index_of
from tests.support.kept import Kept
from tests.unit.pipelines.looping import working, working_over
from tests.unit.pipelines.parts import submitted
from tests.unit.scheduling.cluster import gpu_node


def in_band(name: str, band: Band) -> RunState:
    state = submitted(name)
    need = replace(state.jobs[0].spec.resources, whole_node=True)
    job = replace(state.jobs[0], spec=replace(state.jobs[0].spec, resources=need))
    run: Run = replace(state.run, policy=replace(state.run.policy, band=band))
    return replace(state, run=run, jobs=(job,))


def scheduler_of(pipeline: RunPipeline) -> JobSubmittedPipeline:
    assert isinstance(pipeline.scheduler, JobSubmittedPipeline)
    return pipeline.scheduler


def assert_index_is_true(pipeline: RunPipeline) -> None:
    mine = scheduler_of(pipeline).index
    mine.refresh()
    fresh = index_of(pipeline.runs.values(), pipeline.nodes.values(), pipeline.fleets)
    assert mine.rooms == fresh.rooms
    assert mine.taken == fresh.taken
    assert mine.nomination_on == fresh.nomination_on
    assert mine.units.keys() == fresh.units.keys()


async def test_nomination_and_eviction_are_one_transaction(database: Kept) -> None:
    async with working_over(database, CountedCommits) as (store, pipeline, _, _loop):
        await pipeline.save_node(gpu_node("n1"), "n1")
        low, high = in_band("low", Band.BATCH), in_band("high", Band.PRODUCTION)
        await pipeline.admit(low)
        await pipeline.admit(high)
        (commit,) = (one for one in store.commits if high.run.id in one.runs)
        assert set(commit.runs) == {low.run.id, high.run.id}
        (nominated,) = pipeline.runs[high.run.id].allocations
        assert nominated.state is AllocationState.NOMINATED
        assert pipeline.runs[low.run.id].jobs[0].attempts[0].reason is Reason.PREEMPTED
        assert_index_is_true(pipeline)


async def test_a_failed_commit_leaves_the_scheduler_as_it_was(database: Kept) -> None:
    async with working_over(database, CountedCommits) as (store, pipeline, _, _loop):
        await pipeline.save_node(gpu_node("n1"), "n1")
        await pipeline.admit(in_band("low", Band.BATCH))
        store.full = True
        with pytest.raises(StoreUnavailable):
            await pipeline.admit(in_band("high", Band.PRODUCTION))
        assert_index_is_true(pipeline)
        assert not scheduler_of(pipeline).index.nominations


async def test_a_nomination_survives_the_controller(database: Kept) -> None:
    low, high = in_band("low", Band.BATCH), in_band("high", Band.PRODUCTION)
    async with working(database) as (pipeline, _, _loop):
        await pipeline.save_node(gpu_node("n1"), "n1")
        await pipeline.admit(low)
        await pipeline.admit(high)
    async with working(database) as (pipeline, _, _loop):
        await pipeline.settled()
        again = pipeline.runs[high.run.id]
        assert again.jobs[0].attempts[0].status is AttemptStatus.SUBMITTED
        place = pipeline.runs[low.run.id].allocations[0].id
        assert scheduler_of(pipeline).nominated(pipeline.runs[low.run.id]) == {place}
        assert_index_is_true(pipeline)
