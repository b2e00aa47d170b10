"""Parents and children through the turns, and scheduled runs that are given their triggers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from controller.aio import Flag, Watchers
from controller.clock import next_trigger
from controller.lifecycle.model import JobSpec, OnParentEnd, RunPolicy, RunState
from controller.lifecycle.reports import CompleteRequested, StopRequested
from controller.lifecycle.runs.first_state import PlannedJob, new_run
from controller.pipelines.admissions import ParentGone
from controller.pipelines.live_state import unknown_parents
from controller.pipelines.run_pipeline import RunPipeline
from fairlead.model.reasons import RunReason
from fairlead.model.statuses import RunStatus
from tests.doubles.clock import NOW
from tests.doubles.failing_stores import Refusing, SlowCommit
from tests.support.kept import Kept
from tests.unit.pipelines.looping import working, working_over
from tests.unit.pipelines.parts import Ids, submitted

_ids = Ids()


@pytest.fixture
async def pipeline(database: Kept) -> AsyncIterator[RunPipeline]:
    async with working(database) as (pipeline, _, _loop):
        yield pipeline


def child_of(parent: RunState, name: str = "child", **policy: object) -> RunState:
    state = submitted(name)
    run = replace(state.run, parent_id=parent.run.id, policy=RunPolicy(**policy))  # type: ignore[arg-type]
    return replace(state, run=run)


def _stop(state: RunState) -> StopRequested:
    return StopRequested(run_id=state.run.id, abort=False, by="ann")


async def test_children_end_in_the_same_commit_as_a_parent_that_is_stopped(
    database: Kept,
) -> None:
    async with working(database) as (pipeline, _, _loop):
        parent = submitted("parent")
        child = child_of(parent)
        grandchild = child_of(child, "grandchild")
        for state in (parent, child, grandchild):
            await pipeline.admit(state)
        await pipeline.report(_stop(parent))
        assert pipeline.runs == {}
    ended = [database.runs[state.run.id].run for state in (child, grandchild)]
    assert [run.reason for run in ended] == [RunReason.STOPPED_BY_USER] * 2
    assert [run.message for run in ended] == [
        "its parent run parent ended as terminated",
        "its parent run child ended as terminated",
    ]


async def test_a_child_that_is_submitted_during_the_commit_of_its_parents_end_ends_too(
    database: Kept,
) -> None:
    async with working_over(database, SlowCommit) as (store, pipeline, _, _loop):
        store.go_on.set()
        await pipeline.admit(parent := submitted("parent"))
        store.hold()
        ending = asyncio.create_task(pipeline.report(_stop(parent)))
        await store.waiting.wait()
        admitting = asyncio.create_task(pipeline.admit(child := child_of(parent)))
        await asyncio.sleep(0)
        store.go_on.set()
        await asyncio.gather(ending, admitting)
        assert pipeline.runs == {}
    assert database.runs[child.run.id].run.reason is RunReason.STOPPED_BY_USER


async def test_children_of_a_parent_that_is_done_go_on(pipeline: RunPipeline) -> None:
    parent = submitted("parent")
    await pipeline.admit(parent)
    await pipeline.admit(child := child_of(parent))
    await pipeline.report(CompleteRequested(run_id=parent.run.id, by="ann"))
    assert list(pipeline.runs) == [child.run.id]
    assert pipeline.runs[child.run.id].run.status is RunStatus.SUBMITTED


async def test_a_child_that_is_to_be_kept_goes_on(pipeline: RunPipeline) -> None:
    parent = submitted("parent")
    await pipeline.admit(parent)
    await pipeline.admit(child := child_of(parent, on_parent_end=OnParentEnd.KEEP))
    await pipeline.report(_stop(parent))
    assert list(pipeline.runs) == [child.run.id]


async def test_a_run_whose_parent_is_not_live_is_not_admitted(pipeline: RunPipeline) -> None:
    orphan = child_of(submitted("parent"))
    with pytest.raises(ParentGone):
        await pipeline.admit(orphan)
    assert pipeline.live_run_named("child") is None


async def test_children_are_known_after_a_restart(database: Kept) -> None:
    async with working(database) as (pipeline, _, _loop):
        await pipeline.admit(parent := submitted("parent"))
        await pipeline.admit(child_of(parent))
    async with working(database) as (pipeline, _, _loop):
        await pipeline.settled()
        await pipeline.report(_stop(parent))
        assert pipeline.runs == {}


async def test_a_child_that_was_refused_hears_of_its_parents_end_from_the_next_controller(
    database: Kept,
) -> None:
    parent = submitted("parent")
    child = child_of(parent)
    kept = child_of(parent, "kept", on_parent_end=OnParentEnd.KEEP)
    grandchild = child_of(child, "grandchild")
    async with working_over(database, Refusing) as (store, pipeline, _, _loop):
        for state in (parent, child, kept, grandchild):
            await pipeline.admit(state)
        store.runs.add(child.run.id)
        await pipeline.report(_stop(parent))
        assert database.runs[child.run.id].run.reason is None
    async with working(database) as (pipeline, _, _loop):
        unknown = unknown_parents(pipeline.runs.values(), pipeline.runs)
        assert [(state.run.id, wanted) for state, wanted in unknown] == [
            (child.run.id, parent.run.id)
        ]
        pipeline.remember(database.runs[parent.run.id])
        await pipeline.settled()
        assert list(pipeline.known) == [kept.run.id]
    for state in (child, grandchild):
        assert database.runs[state.run.id].run.reason is RunReason.STOPPED_BY_USER


async def test_a_child_of_a_parent_that_is_done_goes_on_under_the_next_controller(
    database: Kept,
) -> None:
    async with working(database) as (pipeline, _, _loop):
        await pipeline.admit(parent := submitted("parent"))
        await pipeline.admit(child := child_of(parent))
        await pipeline.report(CompleteRequested(run_id=parent.run.id, by="ann"))
    async with working(database) as (pipeline, _, _loop):
        pipeline.remember(database.runs[parent.run.id])
        await pipeline.settled()
        assert list(pipeline.known) == [child.run.id]
        assert pipeline.runs[child.run.id].run.reason is None


async def test_a_scheduled_run_is_told_when_its_expressions_fire_next(
    pipeline: RunPipeline,
) -> None:
    schedule = ("0 8 * * *", "30 7 * * *")
    state = new_run(
        name="nightly",
        user="ann",
        jobs=[PlannedJob(spec=JobSpec(image="busybox"))],
        now=NOW,
        new_id=_ids,
        policy=RunPolicy(schedule=schedule),
    )
    await pipeline.admit(state)
    run = pipeline.runs[state.run.id].run
    assert run.status is RunStatus.PENDING
    assert run.next_triggered_at == next_trigger(schedule, NOW)


def test_cron_expressions_are_in_utc_and_fire_after_the_moment() -> None:
    midnight = 1_700_006_400.0
    assert next_trigger(["0 0 * * *"], midnight - 1) == midnight
    assert next_trigger(["0 0 * * *"], midnight) == midnight + 86400
    assert next_trigger(["0 0 * * *", "15 * * * *"], midnight) == midnight + 900
    assert next_trigger([], midnight) is None


def test_watchers_are_woken_in_the_order_in_which_they_came() -> None:
    watchers = Watchers()
    woken: list[int] = []

    class Noting(Flag):
        def set(self) -> None:
            woken.append(events.index(self))

    events = [Noting() for _ in range(20)]
    for event in events:
        watchers.add("r", event)
    watchers.wake(["r", None])
    assert woken == list(range(20))


def test_what_changed_after_a_revision_is_known_until_it_is_forgotten() -> None:
    watchers = Watchers()
    watchers.wake(("first", None))
    then = watchers.revision
    watchers.wake(("second", None))
    assert [watchers.changed_since(key, then) for key in ("first", "second", None)] == [
        False,
        True,
        True,
    ]
    for number in range(10_000):
        watchers.wake((f"run-{number}",))
    assert watchers.changed_since("second", then)
    assert not watchers.changed_since("run-9999", watchers.revision)
