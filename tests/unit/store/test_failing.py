"""The misbehaving stores misbehave in exactly the way of their names."""

from __future__ import annotations

import asyncio

import pytest

from controller.store.errors import LeaseLost, StoreUnavailable
from fairlead.queries import RunQuery
from tests.doubles.failing_stores import (
    Crash,
    CrashAfterCommit,
    CrashBeforeCommit,
    DiskFull,
    SlowCommit,
    TakenOver,
)
from tests.doubles.memory_store import MemoryDatabase, MemoryStore
from tests.unit.store.samples import a_run, submission


async def opened() -> MemoryStore:
    store = MemoryStore()
    await store.open()
    return store


async def test_a_full_disk_refuses_to_commit_but_still_reads() -> None:
    inner = await opened()
    await inner.commit(submission(a_run()))
    store = DiskFull(inner)

    with pytest.raises(StoreUnavailable, match="full"):
        await store.commit(submission(a_run("run2")))
    assert await store.find_run("run1") == a_run()
    assert await store.find_run("run2") is None


async def test_a_slow_commit_waits_until_it_is_told_to_go_on() -> None:
    store = SlowCommit(await opened())
    commit = asyncio.create_task(store.commit(submission(a_run())))
    await store.waiting.wait()
    before = await store.find_run("run1")
    store.go_on.set()
    await commit

    assert before is None
    assert await store.find_run("run1") == a_run()


async def test_a_store_that_was_taken_over_loses_the_lease_after_its_last_commit() -> None:
    store = TakenOver(await opened(), commits=1)
    await store.commit(submission(a_run()))

    with pytest.raises(LeaseLost):
        await store.commit(submission(a_run("run2")))
    with pytest.raises(LeaseLost):
        await store.renew_lease()


async def test_a_crash_before_the_commit_keeps_nothing_and_one_after_it_everything() -> None:
    inner = await opened()
    with pytest.raises(Crash):
        await CrashBeforeCommit(inner).commit(submission(a_run("before")))
    with pytest.raises(Crash):
        await CrashAfterCommit(inner).commit(submission(a_run("after")))

    assert [state.run.id for state in await inner.list_runs(RunQuery(all=True))] == ["after"]


async def test_a_killed_controllers_memory_can_be_taken_over_and_fences_it() -> None:
    database = MemoryDatabase()
    killed, successor = MemoryStore(database), MemoryStore(database)
    await killed.open()
    database.seize()
    await successor.open()

    with pytest.raises(LeaseLost):
        await killed.commit(submission(a_run()))
    await killed.close()
    await successor.commit(submission(a_run()))
    assert await successor.find_run("run1") == a_run()
