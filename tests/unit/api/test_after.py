"""Runs that wait for others: names become ids at the submission, alone or as one act."""

from __future__ import annotations

from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from tests.unit.api.asking import HELLO, error_of, submit
from tests.unit.api.conftest import USER_TOKEN, Controller


async def post(api: TestClient[Any, Any], **fields: object) -> tuple[int, dict[str, Any]]:
    body = {"configuration": {**HELLO, **fields}}
    async with api.post("/v1/runs", json=body) as answer:
        return answer.status, await answer.json()


async def together(
    api: TestClient[Any, Any], *configurations: dict[str, object], key: str | None = None
) -> tuple[int, dict[str, Any]]:
    runs = [
        {"configuration": {**HELLO, **one}, "client_key": key and f"{key}{number}"}
        for number, one in enumerate(configurations)
    ]
    async with api.post("/v1/runs/together", json={"runs": runs}) as answer:
        return answer.status, await answer.json()


async def shown(api: TestClient[Any, Any], key: str) -> dict[str, Any]:
    async with api.get(f"/v1/runs/{key}") as answer:
        found: dict[str, Any] = await answer.json()
        return found


async def end(api: TestClient[Any, Any], key: str, how: str) -> None:
    async with api.post(f"/v1/runs/{key}/{how}", json={}) as answer:
        assert answer.status == 200


async def test_a_run_waits_for_the_run_that_its_name_meant_at_the_submission(
    api: TestClient[Any, Any],
) -> None:
    prepare = await submit(api, name="prepare")
    status, train = await post(api, name="train", after="prepare")
    assert (status, train["status"]) == (201, "pending")
    assert train["jobs"][0]["pending_reason"] == "after run prepare: waits until it is done"
    expected = {"name": "prepare", "when": "done", "job": "all", "met": False}
    assert train["after"] == [{"run_id": prepare["id"], **expected}]
    await end(api, "prepare", "stop")
    await submit(api, name="prepare")
    ended = await shown(api, "train")
    assert (ended["status"], ended["termination_reason"]) == ("failed", "dependency_failed")
    assert ended["message"].startswith("run prepare ended as terminated")


async def test_it_begins_after_a_run_that_had_ended_before(api: TestClient[Any, Any]) -> None:
    await submit(api, name="prepare")
    await end(api, "prepare", "complete")
    _, train = await post(api, name="train", after="prepare")
    assert train["status"] == "submitted"


async def test_explain_and_the_list_say_for_whom_a_run_waits(api: TestClient[Any, Any]) -> None:
    await submit(api, name="prepare")
    await post(api, name="train", after=[{"run": "prepare", "when": "ended"}])
    async with api.get("/v1/runs/train/explain") as answer:
        assert (await answer.json())["about"] == "after run prepare: waits until it has ended"
    async with api.get("/v1/runs") as answer:
        found = {run["name"]: run["pending_reason"] for run in (await answer.json())["runs"]}
    assert found["train"] == "after run prepare: waits until it has ended"


async def test_a_run_that_is_not_there_and_anothers_are_refused_alike(
    api: TestClient[Any, Any], server: TestServer
) -> None:
    await submit(api, name="prepare")
    headers = {"Authorization": f"Bearer {USER_TOKEN}"}
    for name in ("prepare", "nobody"):
        body = {"configuration": {**HELLO, "after": name}}
        async with api.post("/v1/runs", json=body, headers=headers) as answer:
            assert await error_of(answer) == (404, "not_found", "after[0].run")


async def test_a_run_that_waits_for_itself_is_told_so(api: TestClient[Any, Any]) -> None:
    status, answer = await post(api, name="train", after="train")
    assert (status, answer["error"]["field"]) == (400, "after[0].run")
    assert "run 'train' cannot wait for itself" in answer["error"]["message"]


async def test_what_cannot_be_meant_is_refused_with_its_field(api: TestClient[Any, Any]) -> None:
    await post(api, name="nightly", schedule="0 3 * * *")
    status, answer = await post(api, after="nightly")
    assert (status, answer["error"]["field"]) == (400, "after[0].run")
    await post(api, name="two", nodes=2, gang=False)
    status, answer = await post(api, after=[{"run": "two", "job": "same"}])
    assert "2 jobs and this one 1" in answer["error"]["message"]
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"after": "nightly", "schedule": "0 3 * * *"}, "after"),
        ({"after": [{"run": "two", "job": "same"}], "nodes": 2}, "after[0].job"),
        ({"after": [{"run": "two", "when": "soon"}]}, "after[0].when"),
        ({"after": [{"rum": "two"}]}, "after[0].rum"),
        ({"begin": "2026-12-01T08:00"}, "begin"),
        ({"begin": "3h", "start_before": "1h"}, "start_before"),
        ({"start_before": "1970-01-01T00:00Z"}, "start_before"),
    ]
    for wrong, field in wrongs:
        status, answer = await post(api, **wrong)
        assert (status, answer["error"]["field"]) == (400, field)


# -- sweeps --------------------------------------------------------------------------------------


def sweep(*seeds: object, **fields: object) -> dict[str, object]:
    return {"sweep": {"matrix": {"seed": list(seeds)}}, **fields}


async def test_a_sweep_waits_for_another_as_one_run_or_set_for_set(
    api: TestClient[Any, Any],
) -> None:
    await post(api, name="prepare", **sweep(1, 2, 3))
    _, whole = await post(api, name="whole", **sweep(7, after="prepare"))
    assert (whole["status"], whole["jobs"]) == ("pending", [])
    assert whole["sweep"]["waits_for"] == "after run prepare: waits until it is done"
    same = [{"run": "prepare", "job": "same"}]
    status, train = await post(api, name="train", **sweep(1, 2, 3, after=same))
    assert (status, train["sweep"]["waiting"]) == (201, 3)
    each = "after run prepare: each set waits until the one with its parameters is done"
    assert train["sweep"]["waits_for"] == each
    async with api.get("/v1/runs/train/explain") as answer:
        assert (await answer.json())["about"] == each
    async with api.get("/v1/runs") as answer:
        found = {run["name"]: run["pending_reason"] for run in (await answer.json())["runs"]}
    assert found["train"] == each
    await end(api, "prepare", "stop")
    ended = await shown(api, "train")
    assert (ended["status"], ended["message"]) == ("failed", "3 of 3 parameter sets failed")
    assert (await shown(api, "whole"))["termination_reason"] == "dependency_failed"
    async with api.get("/v1/runs/train/sets") as answer:
        reasons = [one["termination_reason"] for one in (await answer.json())["sets"]]
    assert reasons == ["dependency_failed"] * 3


async def test_a_set_that_the_other_sweep_lacks_is_refused_with_its_number(
    api: TestClient[Any, Any],
) -> None:
    await post(api, name="prepare", **sweep(1, 2, 3))
    await post(api, name="plain", nodes=3, gang=False)
    wrongs: list[tuple[dict[str, object], str, str]] = [
        (sweep(1, 5, 3), "prepare", "run prepare has no parameter set seed=5, as set 1 of this"),
        (sweep(1, 2, "3"), "prepare", "run prepare has no parameter set seed=3, as set 2 of this"),
        ({"sweep": {"matrix": {"lr": [1]}}}, "prepare", "has no parameter set lr=1, as set 0"),
        (sweep(1, 2, 3), "plain", "run plain is no sweep and the other is"),
        ({"nodes": 3, "gang": False}, "prepare", "this run is no sweep and the other is"),
    ]
    for fields, name, words in wrongs:
        status, answer = await post(api, **fields, after=[{"run": name, "job": "same"}])
        assert (status, answer["error"]["field"]) == (400, "after[0].run")
        assert words in answer["error"]["message"]


async def test_sets_wait_for_those_with_their_parameters_whatever_their_numbers(
    api: TestClient[Any, Any],
) -> None:
    await post(api, name="prepare", **sweep(1, 2, 3, 4))
    same = [{"run": "prepare", "job": "same"}]
    status, _ = await post(api, name="train", **sweep(4, 2, after=same))
    assert status == 201
    async with api.post("/v1/runs/prepare/sets/stop", json={"which": "seed=4"}) as answer:
        assert answer.status == 200
    async with api.get("/v1/runs/train/sets") as answer:
        found = [(one["parameters"], one["status"]) for one in (await answer.json())["sets"]]
    assert found == [({"seed": 4}, "failed"), ({"seed": 2}, "waiting")]


async def test_two_sweeps_of_one_act_that_wait_for_each_other_are_refused(
    api: TestClient[Any, Any],
) -> None:
    one = sweep(1, 2, name="hen", after=[{"run": "egg", "job": "same"}])
    other = sweep(1, 2, name="egg", after=[{"run": "hen", "job": "same"}])
    status, answer = await together(api, one, other)
    assert (status, answer["error"]["code"]) == (400, "dependency_cycle")


# -- several as one act ---------------------------------------------------------------------------


async def test_runs_of_one_act_wait_for_each_other_in_any_order(api: TestClient[Any, Any]) -> None:
    await submit(api, name="prepare")
    await end(api, "prepare", "complete")
    status, answer = await together(api, {"name": "train", "after": "prepare"}, {"name": "prepare"})
    train, prepare = answer["runs"]
    assert (status, train["status"], prepare["status"]) == (201, "pending", "submitted")
    # The name means the run beside it, not the one that ended before.
    assert train["after"][0]["run_id"] == prepare["id"]


async def test_of_one_act_all_runs_are_submitted_or_none(api: TestClient[Any, Any]) -> None:
    await submit(api, name="taken")
    status, answer = await together(api, {"name": "fresh"}, {"name": "taken"})
    assert (status, answer["error"]["field"]) == (409, "name") or answer["error"]["field"] == (
        "runs[1].name"
    )
    status, answer = await together(api, {"name": "fresh"}, {"name": "other", "after": "nobody"})
    assert (status, answer["error"]["field"]) == (404, "runs[1].after[0].run")
    async with api.get("/v1/runs") as got:
        assert [run["name"] for run in (await got.json())["runs"]] == ["taken"]


async def test_a_circle_is_refused_by_its_names(api: TestClient[Any, Any]) -> None:
    status, answer = await together(
        api,
        {"name": "free"},
        {"name": "hen", "after": "egg"},
        {"name": "egg", "after": "hen"},
    )
    assert (status, answer["error"]["code"]) == (400, "dependency_cycle")
    assert answer["error"]["message"].startswith("hen waits for egg waits for hen: none of them")
    status, answer = await together(api, {"name": "me", "after": "me"})
    assert answer["error"]["message"].startswith("me waits for me:")


async def test_the_same_keys_give_the_same_runs(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    two: tuple[dict[str, object], ...] = ({"name": "a"}, {"name": "b", "after": "a"})
    _, first = await together(api, *two, key="k")
    status, again = await together(api, *two, key="k")
    assert status == 201
    assert [run["id"] for run in again["runs"]] == [run["id"] for run in first["runs"]]
    assert len(controller.pipeline.runs) == 2


async def test_two_runs_of_one_act_need_two_names(api: TestClient[Any, Any]) -> None:
    status, answer = await together(api, {"name": "same"}, {"name": "same"})
    assert (status, answer["error"]["field"]) == (400, "runs[1].name")


async def test_an_act_whose_key_has_made_a_run_alone_makes_no_second_one(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    """All of them, or none: neither can the act be made nor is it what the key made."""
    asked = {"configuration": {**HELLO, "name": "a"}, "client_key": "k1"}
    made = await submit(api, **asked)
    await end(api, "a", "stop")
    status, answer = await together(api, {"name": "b"}, {"name": "a"}, key="k")
    assert (status, answer["error"]["code"]) == (409, "client_key_used")
    assert answer["error"]["field"] == "runs[1].client_key"
    assert not controller.pipeline.runs
    assert (await submit(api, **asked))["id"] == made["id"]


async def test_a_key_that_stands_twice_in_an_act_is_refused(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    runs = [{"configuration": HELLO, "client_key": key} for key in ("a", "b", "a")]
    async with api.post("/v1/runs/together", json={"runs": runs}) as answer:
        error = (await answer.json())["error"]
    assert (answer.status, error["field"]) == (400, "runs[2].client_key")
    assert not controller.pipeline.runs
