from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Collection

import pytest

from controller.lifecycle.model import RunState
from controller.service.runs.earlier import EarlierRuns, MarkFilter
from controller.store.errors import StoreUnavailable
from tests.doubles.memory_store import MemoryDatabase, MemoryStore
from tests.unit.store.samples import a_run, submission


class _CountedStore(MemoryStore):
    """Notes which keys are looked up; the first look at all marks fails."""

    def __init__(self, database: MemoryDatabase) -> None:
        super().__init__(database)
        self.asked: list[tuple[str, str]] = []
        self.loads = 0

    async def submission_marks(self) -> array[int]:
        self.loads += 1
        await asyncio.sleep(0)
        if self.loads == 1:
            raise StoreUnavailable("the database is away")
        return await super().submission_marks()

    async def find_submissions(
        self, keys: Collection[tuple[str, str]]
    ) -> dict[tuple[str, str], RunState]:
        self.asked += keys
        return await super().find_submissions(keys)


def test_a_filter_forgets_no_number_when_it_grows() -> None:
    pick = random.Random(1)
    numbers = [pick.getrandbits(64) - (1 << 63) for _ in range(60_000)]
    known = MarkFilter(numbers[:1000])
    for number in numbers:
        known.add(number)

    assert not any(known.add(number) for number in numbers)


def test_a_filter_takes_few_new_numbers_for_known_ones() -> None:
    pick = random.Random(2)
    known = MarkFilter()

    wrong = sum(not known.add(pick.getrandbits(64) - (1 << 63)) for _ in range(20_000))

    assert wrong < 200


async def test_only_keys_that_may_be_known_are_looked_up() -> None:
    store = _CountedStore(MemoryDatabase())
    await store.open()
    run = a_run(client_key="old")
    await store.commit(submission(run))
    earlier = EarlierRuns(store)
    user = run.run.user

    with pytest.raises(StoreUnavailable):
        await earlier.of(user, "new")
    first = await asyncio.gather(*(earlier.of(user, key) for key in ("old", "new", "other")))
    again = await earlier.of(user, "new")

    assert (first, again) == ([run, None, None], None)
    assert store.asked == [(user, "old"), (user, "new")]
    assert store.loads == 2
