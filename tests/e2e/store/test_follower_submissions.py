"""Submissions through two followers: each client has its own answer, and each key makes one run."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.e2e.store.test_leaders import HELLO, Controllers
from tests.support.object_storage import ObjectStorage

pytestmark = pytest.mark.e2e
CLIENTS = 12
RUNS = 8
"""Of each client and kind, one after the other."""
CODE = b"an archive"
DIGEST = hashlib.sha256(CODE).hexdigest()
WITH_CODE = {**HELLO, "files": [{"local_path": "a", "path": "/a", "uploaded": [DIGEST, "/"]}]}
ONE, SEVERAL, TOGETHER = "/v1/runs", "/v1/runs:batch", "/v1/runs/together"


@pytest.fixture
def controllers(database_url: str, tmp_path: Path, storage: ObjectStorage) -> Iterator[Controllers]:
    """They have a bucket, in which the next leader finds uploads."""
    place = msgspec.structs.replace(storage.bucket, prefix=tmp_path.name)
    options = ["--bucket", str(place), "--bucket-endpoint", storage.endpoint]
    with closing(Controllers(tmp_path, database_url, *options)) as made:
        yield made


def asked(number: int, key: str) -> tuple[str, dict[str, Any]]:
    """Return a request with this key for its path: kinds of requests take turns."""
    named = {"name": key, "client_key": key}
    two = [{**named, "name": f"{key}-{one}", "client_key": f"{key}-{one}"} for one in "ab"]
    match number % 6:
        case 0:
            return ONE, {"configuration": HELLO, **named}
        case 1:
            return ONE, {"configuration": {**HELLO, "type": "service", "port": 8000}, **named}
        case 2:
            return ONE, {"configuration": WITH_CODE, **named}
        case 3:
            # One name after the other's end: each replaces the one before.
            replaced = {**named, "name": key.partition("-")[0]}
            return ONE, {"configuration": HELLO, **replaced, "if_exists": "replace"}
        case 4:
            second = {**HELLO, "after": [two[0]["name"]]}
            runs = [{"configuration": second, **two[1]}, {"configuration": HELLO, **two[0]}]
            return TOGETHER, {"runs": runs}
        case _:
            plain, code = two
            runs = [{"configuration": HELLO, **plain}, {"configuration": WITH_CODE, **code}]
            return SEVERAL, {"runs": runs}


def made_by(path: str, answer: dict[str, Any]) -> list[str]:
    """Return the ids of the runs."""
    if path == SEVERAL:
        assert [one["status"] for one in answer["results"]] == [201, 201], answer
    found = answer.get("runs", answer.get("results", [answer]))
    return [one["id"] for one in found]


async def test_many_clients_of_two_followers_get_a_run_for_each_key_though_the_leader_is_killed(
    controllers: Controllers,
) -> None:
    await asyncio.to_thread(controllers.start)
    first, *followers = controllers.all
    half_done = asyncio.Event()
    done: dict[str, list[str]] = {}
    replaced: Counter[str] = Counter()

    async def submit(session: aiohttp.ClientSession, number: int, run: int) -> list[str]:
        key = f"c{number}-r{run}"
        path, body = asked(number + run, key)
        at = followers[number % 2]
        async with session.post(at.url + path, json=body) as answer:
            assert answer.status == (200 if path == SEVERAL else 201), await answer.text()
            return made_by(path, await answer.json())

    async def be_a_client(session: aiohttp.ClientSession, number: int) -> None:
        for run in range(RUNS):
            key = f"c{number}-r{run}"
            done[key] = await submit(session, number, run)
            replaced[f"c{number}"] += (number + run) % 6 == 3
            if len(done) >= CLIENTS * RUNS // 2:
                half_done.set()

    headers = {"Authorization": f"Bearer {controllers.token}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.put(f"{followers[0].url}/v1/blobs/{DIGEST}", data=CODE) as sent:
            assert sent.status == 200, await sent.text()
        clients = [asyncio.create_task(be_a_client(session, number)) for number in range(CLIENTS)]
        await half_done.wait()
        await asyncio.to_thread(first.kill9)
        await asyncio.gather(*clients)
        async with session.get(followers[0].url + "/v1/runs?all=true&limit=1000") as answer:
            listed = (await answer.json())["runs"]
        # Who was accepted is there, and no key made a second run.
        ids = [id for found in done.values() for id in found]
        assert sorted(one["id"] for one in listed) == sorted(ids)
        names = Counter(one["name"] for one in listed)
        again = {name: count for name, count in names.items() if count > 1}
        assert again == {name: count for name, count in replaced.items() if count > 1}
        # The next leader knows the keys, whichever kind they are of.
        for number in range(6):
            assert await submit(session, number, 0) == done[f"c{number}-r0"]
