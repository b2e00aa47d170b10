"""Long work on the loop lets everybody else have a turn, and leaves nothing out."""

from __future__ import annotations

import asyncio

from controller.aio import MAX_AT_A_STRETCH, in_stretches


async def test_others_have_a_turn_between_two_stretches() -> None:
    order: list[object] = []

    async def work() -> None:
        async for number in in_stretches(range(2 * MAX_AT_A_STRETCH)):
            order.append(number)

    async def other() -> None:
        order.append("other")

    await asyncio.gather(work(), other())
    first, second = range(MAX_AT_A_STRETCH), range(MAX_AT_A_STRETCH, 2 * MAX_AT_A_STRETCH)
    assert order == [*first, "other", *second]
