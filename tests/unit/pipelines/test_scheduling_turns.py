"""The scheduler within the turns: one transaction, and nothing of it when that fails."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.lifecycle.model import Band, Run, RunState
from controller.lifecycle.reasons import Reason
from controller.lifecycle.statuses import AllocationState, AttemptStatus
from controller.pipelines.run_pipeline import RunPipeline
from controller.scheduling.scheduler import JobSubmittedPipeline
from controller.store.base import Store, StoreUnavailable
from tests.doubles.failing_stores import CountedCommits, DiskFull
from tests.support.indexes import index_of
from tests.support.kept import Kept
from tests.unit.pipelines.looping import working
from tests.unit.pipelines.parts import submitted
from tests.unit.scheduling.cluster import gpu_node


def in_band(name: str, band: Band) -> RunState:
    state = submitted(name)
    need = replace(state.jobs[0].spec.resources, whole_node=True)
    job = replace(state.jobs[0], spec=replace(state.jobs[0].spec, resources=need))
    run: Run = replace(state.run, policy=replace(state.run.policy, band=band))
    return replace(state, run=run, jobs=(job,))


def scheduler_of(turns: RunPipeline) -> JobSubmittedPipeline:
    assert isinstance(turns.scheduler, JobSubmittedPipeline)
    return turns.scheduler


def assert_index_is_true(turns: RunPipeline) -> None:
    mine = scheduler_of(turns).index
    mine.refresh()
    fresh = index_of(turns.runs.values(), turns.nodes.values(), turns.fleets)
    assert mine.rooms == fresh.rooms
    assert mine.taken == fresh.taken
    assert mine.nomination_on == fresh.nomination_on
    assert mine.units.keys() == fresh.units.keys()


async def test_nomination_and_eviction_are_one_transaction(database: Kept) -> None:
    stores: list[CountedCommits] = []

    def counted(inner: Store) -> Store:
        stores.append(CountedCommits(inner))
        return stores[0]

    async with working(database, counted) as (turns, _, _loop):
        await turns.save_node(gpu_node("n1"), "n1")
        low, high = in_band("low", Band.BATCH), in_band("high", Band.PRODUCTION)
        await turns.admit(low)
        await turns.admit(high)
        (commit,) = (one for one in stores[0].commits if high.run.id in one.runs)
        assert set(commit.runs) == {low.run.id, high.run.id}
        (nominated,) = turns.runs[high.run.id].allocations
        assert nominated.state is AllocationState.NOMINATED
        assert turns.runs[low.run.id].jobs[0].attempts[0].reason is Reason.PREEMPTED
        assert_index_is_true(turns)


async def test_a_failed_commit_leaves_the_scheduler_as_it_was(database: Kept) -> None:
    stores: list[DiskFull] = []

    def full(inner: Store) -> Store:
        stores.append(DiskFull(inner))
        stores[0].full = False
        return stores[0]

    async with working(database, full) as (turns, _, _loop):
        await turns.save_node(gpu_node("n1"), "n1")
        await turns.admit(in_band("low", Band.BATCH))
        stores[0].full = True
        with pytest.raises(StoreUnavailable):
            await turns.admit(in_band("high", Band.PRODUCTION))
        assert_index_is_true(turns)
        assert not scheduler_of(turns).index.nominations


async def test_a_nomination_survives_the_controller(database: Kept) -> None:
    low, high = in_band("low", Band.BATCH), in_band("high", Band.PRODUCTION)
    async with working(database) as (turns, _, _loop):
        await turns.save_node(gpu_node("n1"), "n1")
        await turns.admit(low)
        await turns.admit(high)
    async with working(database) as (turns, _, _loop):
        await turns.settled()
        again = turns.runs[high.run.id]
        assert again.jobs[0].attempts[0].status is AttemptStatus.SUBMITTED
        place = turns.runs[low.run.id].allocations[0].id
        assert scheduler_of(turns).nominated(turns.runs[low.run.id]) == {place}
        assert_index_is_true(turns)
