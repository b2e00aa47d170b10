"""Slots, and tasks that leave them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from controller.aio import Slots


class Holders:
    """`enter` takes a slot until `leave`; `inside` in the order in which they got in."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._leaving: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.inside: list[str] = []

    async def enter(self, *names: str) -> None:
        for name in names:
            self._leaving[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._hold(name))
        await _settle()

    async def leave(self, name: str) -> None:
        self._leaving[name].set()
        await _settle()

    async def _hold(self, name: str) -> None:
        async with self._slots.slot(60.0):
            self.inside.append(name)
            try:
                await self._leaving[name].wait()
            finally:
                self.inside.remove(name)


async def _settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def holders(slots: Slots) -> AsyncIterator[Holders]:
    made = Holders(slots)
    try:
        yield made
    finally:
        for task in made.tasks.values():
            task.cancel()
        await asyncio.gather(*made.tasks.values(), return_exceptions=True)


async def test_a_task_that_leaves_lets_the_next_one_in_and_no_other() -> None:
    async with holders(Slots(2)) as them:
        await them.enter("a", "b", "c", "d")
        assert them.inside == ["a", "b"]
        await them.leave("a")
        assert them.inside == ["b", "c"]


async def test_a_waiter_that_gives_up_keeps_no_slot_and_no_place_in_the_queue() -> None:
    async with holders(Slots(1)) as them:
        await them.enter("a", "b", "c")
        them.tasks["b"].cancel()
        await _settle()
        await them.leave("a")
        assert them.inside == ["c"]


async def test_a_waiter_that_is_cancelled_with_its_slot_passes_the_slot_on() -> None:
    slots = Slots(1)
    async with holders(slots) as them:
        async with slots.slot(60.0):
            await them.enter("b", "c")
        them.tasks["b"].cancel()
        await _settle()
        assert them.inside == ["c"]


async def test_when_all_who_waited_gave_up_the_next_one_still_gets_in() -> None:
    async with holders(Slots(1)) as them:
        await them.enter("a", "b")
        them.tasks["b"].cancel()
        await _settle()
        await them.leave("a")
        await them.enter("c")
        assert them.inside == ["c"]


async def test_a_slot_that_was_given_back_early_is_not_given_back_again() -> None:
    slots = Slots(1)
    async with holders(slots) as them:
        async with slots.slot(60.0) as mine:
            mine.give_back()
            await them.enter("a", "b")
            mine.give_back()
            await _settle()
        await _settle()
        assert them.inside == ["a"]
