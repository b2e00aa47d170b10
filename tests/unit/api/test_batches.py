"""Many submissions in one request: each has its own answer, and all new runs one commit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from controller.store.base import Changes
from controller.store.errors import StoreRefused
from fairlead.documents.runs import MAX_BATCH
from tests.unit.api.asking import HELLO, error_of, submit
from tests.unit.api.conftest import USER_TOKEN, Controller


async def send(api: TestClient[Any, Any], *runs: Mapping[str, object]) -> list[dict[str, Any]]:
    body = {"runs": [{"configuration": HELLO, **run} for run in runs]}
    async with api.post("/v1/runs:batch", json=body) as answer:
        assert answer.status == 200, await answer.text()
        results: list[dict[str, Any]] = (await answer.json())["results"]
        return results


def codes(results: list[dict[str, Any]]) -> list[object]:
    return [one["error"]["code"] if one["error"] else one["status"] for one in results]


async def names_of(api: TestClient[Any, Any]) -> set[str]:
    async with api.get("/v1/runs") as answer:
        return {run["name"] for run in (await answer.json())["runs"]}


async def test_each_run_has_its_own_answer_in_order(api: TestClient[Any, Any]) -> None:
    await submit(api, name="taken")
    results = await send(
        api,
        {"name": "a"},
        {"name": "taken"},
        {"configuration": {"type": "task", "comands": []}},
        {"name": "b"},
        {"name": "No Name"},
        {"name": "c", "parent": "nobody"},
    )
    assert codes(results) == [
        201,
        "name_taken",
        "invalid_configuration",
        201,
        "invalid",
        "not_found",
    ]
    assert [one["name"] for one in results] == ["a", None, None, "b", None, None]
    assert results[2]["error"]["field"] == "comands"
    assert await names_of(api) == {"taken", "a", "b"}


async def test_new_runs_of_a_request_are_one_commit(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    commits: list[int] = []
    commit = controller.store.commit

    async def counted(changes: Changes) -> None:
        commits.append(sum(old is None for old, _ in changes.runs.values()))
        await commit(changes)

    controller.store.commit = counted  # type: ignore[method-assign]
    results = await send(api, *({"name": f"r{number}"} for number in range(200)))
    assert codes(results) == [201] * 200
    assert [count for count in commits if count] == [200]


async def test_repeating_a_request_with_client_keys_makes_nothing_new(
    api: TestClient[Any, Any],
) -> None:
    runs = [{"name": f"r{number}", "client_key": f"k{number}"} for number in range(40)]
    at_once = await asyncio.gather(*(send(api, *runs) for _ in range(3)))
    again = await send(api, *reversed(runs))
    ids = [one["id"] for one in at_once[0]]
    assert len(set(ids)) == 40
    assert all([one["id"] for one in results] == ids for results in at_once)
    assert [one["id"] for one in reversed(again)] == ids
    assert len(await names_of(api)) == 40


async def test_a_client_key_that_stands_twice_is_one_run(api: TestClient[Any, Any]) -> None:
    same = {"name": "a", "client_key": "k"}
    other = {"name": "b", "client_key": "k", "configuration": {**HELLO, "priority": 9}}
    first, second, third = await send(api, same, same, other)
    assert first["id"] == second["id"] is not None
    assert codes([third]) == ["client_key_used"]
    assert await names_of(api) == {"a"}


async def test_true_is_not_the_one_of_the_run_before(api: TestClient[Any, Any]) -> None:
    one, true = ({"configuration": {**HELLO, "priority": value}} for value in (1, True))
    results = await send(api, one, true, one)
    assert codes(results) == [201, "invalid_configuration", 201]


async def test_a_name_that_stands_twice_is_one_run(api: TestClient[Any, Any]) -> None:
    assert codes(await send(api, {"name": "a"}, {"name": "a"})) == [201, "name_taken"]


async def test_a_live_run_is_kept(api: TestClient[Any, Any]) -> None:
    live = await submit(api, name="a")
    kept, made = await send(api, {"name": "a", "if_exists": "keep"}, {"name": "b"})
    assert (kept["status"], kept["id"], made["status"]) == (200, live["id"], 201)


async def test_a_run_that_the_database_refuses_keeps_no_other_from_being_made(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    commit = controller.store.commit

    async def picky(changes: Changes) -> None:
        refused = {id for id, (_, new) in changes.runs.items() if new.run.name == "r1"}
        if refused:
            raise StoreRefused("out of range", runs=refused, nodes=set(), fleets=set())
        await commit(changes)

    controller.store.commit = picky  # type: ignore[method-assign]
    results = await send(api, *({"name": f"r{number}"} for number in range(3)))
    assert codes(results) == [201, "store_refused", 201]
    assert await names_of(api) == {"r0", "r2"}


async def test_a_request_of_a_wrong_shape_is_refused_as_a_whole(api: TestClient[Any, Any]) -> None:
    for runs in ([], [{"configuration": HELLO}] * (MAX_BATCH + 1), [{"name": "a"}], "a"):
        async with api.post("/v1/runs:batch", json={"runs": runs}) as answer:
            status, code, field = await error_of(answer)
        assert (status, code) == (400, "invalid")
        assert field is not None
        assert field.startswith("runs")
    assert await names_of(api) == set()


async def test_runs_are_the_callers_own(api: TestClient[Any, Any], server: TestServer) -> None:
    await submit(api, name="a")
    headers = {"Authorization": f"Bearer {USER_TOKEN}"}
    async with TestClient[Any, Any](server, headers=headers) as other:
        results = await send(other, {"name": "b", "parent": "a"}, {"name": "c"})
    assert results[0]["status"] in (403, 404)
    assert results[1]["status"] == 201
