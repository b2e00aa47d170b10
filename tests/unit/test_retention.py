"""Old runs go, runs that live or occupy a place stay; time is virtual."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from controller.lifecycle.model import RunState
from controller.logs.store import LogStore
from controller.outputs.store import OutputStore
from controller.retention import DAY, RUNS_AT_ONCE, Retention, RetentionTimes
from controller.store.base import Changes, Store
from controller.store.errors import LeaseLost, StoreRefused, StoreUnusable
from controller.store.sql import SqlStore
from controller.store.sqlite import SqliteDatabase
from fairlead.model.statuses import AllocationState, RunStatus
from fairlead.queries import EventQuery, RunQuery
from tests.doubles.clock import NOW, ManualClock
from tests.doubles.memory_store import MemoryStore
from tests.support.waiting import LONG
from tests.unit.store.samples import a_place, a_run, an_event, submission

KEEP = RetentionTimes(runs=90 * DAY, logs=30 * DAY)


@pytest.fixture
def outputs(tmp_path: Path) -> Iterator[OutputStore]:
    store = OutputStore(tmp_path / "outputs")
    yield store
    store.close()


@pytest.fixture(params=["sqlite", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    store: Store = MemoryStore()
    if request.param == "sqlite":
        store = SqlStore(SqliteDatabase(tmp_path / "data"))
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[LogStore]:
    logs = LogStore(tmp_path / "logs")
    yield logs
    await asyncio.to_thread(logs.close)


def ended(run_id: str, days_ago: float, status: RunStatus = RunStatus.DONE) -> RunState:
    state = a_run(run_id, status=status)
    released = a_place(run_id, "1", state=AllocationState.RELEASED)
    run = msgspec.structs.replace(state.run, finished_at=NOW - days_ago * DAY)
    return msgspec.structs.replace(state, run=run, allocations=(released,))


async def left(store: Store) -> set[str]:
    return {state.run.id for state in await store.list_runs(RunQuery(all=True, limit=1000))}


async def test_runs_are_kept_90_days_after_their_end(
    store: Store, logs: LogStore, outputs: OutputStore
) -> None:
    runs = (ended("old", 91), ended("young", 89), ended("live", 400, RunStatus.RUNNING))
    events = (an_event("old"), an_event("young"))
    await store.commit(Changes(runs=submission(*runs).runs, events=events))
    clock = ManualClock()
    retention = Retention(store, logs, outputs, clock, KEEP, lambda: ())

    await retention.sweep()
    assert await left(store) == {"young", "live"}
    assert [stored.event.run_id for stored in await store.events(EventQuery())] == ["young"]
    clock.time += 2 * DAY
    await retention.sweep()
    assert await left(store) == {"live"}
    assert await store.events(EventQuery()) == []
    await store.commit(Changes(events=(an_event("live"),)))
    assert [stored.seq for stored in await store.events(EventQuery())] == [3]


@pytest.mark.parametrize("state", [AllocationState.HELD, AllocationState.ORPHANED])
async def test_a_run_that_still_occupies_a_place_is_kept(
    store: Store, logs: LogStore, outputs: OutputStore, state: AllocationState
) -> None:
    occupying = msgspec.structs.replace(
        ended("old", 1000), allocations=(a_place("old", "1", state=state),)
    )
    await store.commit(submission(occupying))
    await Retention(store, logs, outputs, ManualClock(), KEEP, lambda: ()).sweep()

    assert await left(store) == {"old"}


async def test_more_than_one_transactions_worth_is_forgotten(
    store: Store, logs: LogStore, outputs: OutputStore
) -> None:
    count = 2 * RUNS_AT_ONCE + 1
    await store.commit(submission(*(ended(f"run{number}", 100) for number in range(count))))
    await Retention(store, logs, outputs, ManualClock(), KEEP, lambda: ()).sweep()

    assert await left(store) == set()


def a_log(folder: Path, attempt_id: str, days_ago: float) -> None:
    attempt = folder / attempt_id[:2] / attempt_id
    attempt.mkdir(parents=True)
    segment = attempt / f"{0:020d}.seg"
    segment.write_bytes(b"")
    for path in (segment, attempt):
        os.utime(path, (NOW - days_ago * DAY, NOW - days_ago * DAY))


async def test_logs_are_kept_30_days_and_those_of_present_attempts_for_ever(
    logs: LogStore, outputs: OutputStore, tmp_path: Path
) -> None:
    live = a_run("live")
    earlier, present = (attempt.id for attempt in live.jobs[0].attempts)
    for name, days_ago in {earlier: 31, present: 400, "old": 31, "young": 29}.items():
        a_log(tmp_path / "logs", name, days_ago)
    store = MemoryStore()
    await store.open()
    await Retention(store, logs, outputs, ManualClock(), KEEP, lambda: (live,)).sweep()
    await store.close()

    found = {path.name for path in await asyncio.to_thread(list, (tmp_path / "logs").glob("*/*"))}
    assert found == {present, "young"}


@pytest.mark.parametrize(
    ("keep", "seconds"),
    [
        (RetentionTimes(), 3600.0),
        (RetentionTimes(runs=10 * DAY, logs=3600.0), 360.0),
        (RetentionTimes(runs=5.0, logs=2 * DAY), 1.0),
        (RetentionTimes(runs=0.0, logs=0.0), 1.0),
    ],
)
def test_runs_kept_a_short_time_are_looked_for_more_often(
    keep: RetentionTimes, seconds: float
) -> None:
    assert keep.sweep_every == seconds


@pytest.mark.parametrize("trouble", [StoreRefused("rule"), StoreUnusable("damaged"), OSError(5)])
async def test_runs_that_cannot_be_removed_now_are_left_for_the_next_time(
    logs: LogStore, outputs: OutputStore, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    store = MemoryStore()
    await store.open()
    tries = asyncio.Queue[float]()

    async def fail(*, finished_before: float, limit: int) -> int:
        tries.put_nowait(finished_before)
        raise trouble

    monkeypatch.setattr(store, "forget", fail)
    monkeypatch.setattr(RetentionTimes, "sweep_every", 0.0)
    work = asyncio.create_task(Retention(store, logs, outputs, ManualClock(), KEEP, tuple).run())
    async with asyncio.timeout(LONG):
        assert await tries.get() == await tries.get()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    await store.close()


async def test_a_controller_that_was_taken_over_forgets_nothing_more(
    logs: LogStore, outputs: OutputStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    await store.open()

    async def fail(*, finished_before: float, limit: int) -> int:
        raise LeaseLost("another controller has taken over")

    monkeypatch.setattr(store, "forget", fail)
    with pytest.raises(LeaseLost):
        await Retention(store, logs, outputs, ManualClock(), KEEP, tuple).run()
    await store.close()


async def test_outputs_go_when_they_are_old_and_no_live_run_needs_them(
    logs: LogStore, outputs: OutputStore, tmp_path: Path
) -> None:
    store = MemoryStore()
    await store.open()
    for name, days in (("old", 31), ("young", 29)):
        folder = tmp_path / "outputs" / name[:2] / name
        folder.mkdir(parents=True)
        for file in ("outputs.tar", "about.json"):
            (folder / file).touch()
        os.utime(folder, (NOW - days * DAY, NOW - days * DAY))
    await Retention(store, logs, outputs, ManualClock(), KEEP, tuple).sweep()
    await store.close()
    left_there = {path.name for path in (tmp_path / "outputs").glob("*/*")}
    assert left_there == {"young"}
