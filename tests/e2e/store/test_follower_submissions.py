"""Submissions through two followers: each client has its own answer, and each key makes one run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.store.test_leaders import HELLO, Controllers
from tests.support.processes import ControllerProcess

pytestmark = pytest.mark.e2e
CLIENTS = 12
RUNS = 8
"""Of each client, one after the other."""


@pytest.fixture
def controllers(database_url: str, tmp_path: Path) -> Iterator[Controllers]:
    with closing(Controllers(tmp_path, database_url)) as made:
        yield made


async def test_many_clients_of_two_followers_get_a_run_for_each_key_though_the_leader_is_killed(
    controllers: Controllers,
) -> None:
    await asyncio.to_thread(controllers.start)
    first, *followers = controllers.all
    half_done = asyncio.Event()
    done: dict[str, Any] = {}

    async def submit(session: aiohttp.ClientSession, at: ControllerProcess, key: str) -> None:
        body = {"configuration": HELLO, "name": key, "client_key": key}
        async with session.post(at.url + "/v1/runs", json=body) as answer:
            assert answer.status == 201, await answer.text()
            done[key] = await answer.json()
        if len(done) >= CLIENTS * RUNS // 2:
            half_done.set()

    async def be_a_client(session: aiohttp.ClientSession, number: int) -> None:
        for run in range(RUNS):
            await submit(session, followers[number % 2], f"c{number}-r{run}")

    headers = {"Authorization": f"Bearer {controllers.token}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        clients = [asyncio.create_task(be_a_client(session, number)) for number in range(CLIENTS)]
        await half_done.wait()
        await asyncio.to_thread(first.kill9)
        await asyncio.gather(*clients)
        assert {name: run["name"] for name, run in done.items()} == {name: name for name in done}
        async with session.get(followers[0].url + "/v1/runs?all=true&limit=1000") as answer:
            listed = (await answer.json())["runs"]
        # Who was accepted is there, once; the next leader knows the keys.
        assert sorted(one["name"] for one in listed) == sorted(done)
        await submit(session, followers[1], "c0-r0")
    assert done["c0-r0"]["id"] in {one["id"] for one in listed}
