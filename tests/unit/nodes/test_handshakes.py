"""A thousand nodes come back at once: some are connected to at a time, the dead block nobody."""

from __future__ import annotations

import asyncio

from controller.nodes.session import Handshakes
from tests.support.waiting import LONG


async def test_only_so_many_connect_at_once_and_all_have_their_turn() -> None:
    handshakes, now, most, done = Handshakes(at_once=3, lent=3600.0), 0, 0, 0

    async def connect() -> None:
        nonlocal now, most, done
        async with handshakes.slot():
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1
            done += 1

    async with asyncio.timeout(LONG):
        await asyncio.gather(*(connect() for _ in range(1000)))
    assert (most, done) == (3, 1000)


async def test_a_host_that_does_not_answer_keeps_its_slot_only_for_a_while() -> None:
    handshakes, never = Handshakes(at_once=1, lent=0.01), asyncio.Event()

    async def dead() -> None:
        async with handshakes.slot():
            await never.wait()

    tasks = [asyncio.create_task(dead()) for _ in range(5)]
    async with asyncio.timeout(LONG), handshakes.slot():
        assert not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(LONG), handshakes.slot():
        second = asyncio.create_task(dead())
        await asyncio.sleep(0)
        assert not second.done()
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
