"""`outputs_from` names runs of the same user that have outputs, or will have them by then."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from tests.unit.api.asking import HELLO, submit
from tests.unit.api.conftest import USER_TOKEN, Controller
from tests.unit.api.test_after import end, post, together
from tests.unit.api.test_outputs import stored
from tests.unit.cli.conftest import PlayedNode, node

__all__ = ["node"]


async def test_a_run_that_has_not_ended_must_be_waited_for(api: TestClient[Any, Any]) -> None:
    await submit(api, name="prepare")
    status, refused = await post(api, name="train", outputs_from="prepare")
    assert (status, refused["error"]["field"]) == (409, "outputs_from[0]")
    assert refused["error"]["message"] == (
        "run prepare has not ended, and has outputs only then: add `after: prepare`"
    )
    status, train = await post(api, name="train", outputs_from="prepare", after="prepare")
    assert (status, train["status"]) == (201, "pending")


async def test_runs_that_are_submitted_as_one_act_take_from_each_other(
    api: TestClient[Any, Any],
) -> None:
    status, made = await together(
        api, {"name": "train", "after": "prepare", "outputs_from": ["prepare"]}, {"name": "prepare"}
    )
    assert status == 201, made


@pytest.mark.parametrize("after", [{"when": "running"}, {"job": "same"}])
async def test_the_wait_must_be_for_its_end(
    api: TestClient[Any, Any], after: dict[str, str]
) -> None:
    await submit(api, name="prepare")
    asked = [{"run": "prepare", **after}]
    status, refused = await post(api, name="train", outputs_from=["prepare"], after=asked)
    assert (status, refused["error"]["field"]) == (400, "outputs_from[0]")
    assert "write `when: done` or `when: ended`" in refused["error"]["message"]


async def test_a_run_without_outputs_and_one_that_is_not_there_are_refused(
    api: TestClient[Any, Any],
) -> None:
    await submit(api, name="prepare")
    await end(api, "prepare", "complete")
    status, refused = await post(api, name="train", outputs_from="prepare")
    assert (status, refused["error"]["field"]) == (404, "outputs_from[0]")
    assert "run prepare left no outputs" in refused["error"]["message"]
    status, refused = await post(api, name="train", outputs_from=["nobody"])
    assert (status, refused["error"]["field"]) == (404, "outputs_from[0]")
    assert "you have no run 'nobody'" in refused["error"]["message"]


async def test_another_users_run_is_not_there(api: TestClient[Any, Any]) -> None:
    await submit(api, name="prepare")
    headers = {"Authorization": f"Bearer {USER_TOKEN}"}
    body = {"configuration": {**HELLO, "name": "train", "outputs_from": "prepare"}}
    async with api.post("/v1/runs", json=body, headers=headers) as answer:
        refused = (await answer.json())["error"]
    assert (answer.status, refused["field"]) == (404, "outputs_from[0]")


async def test_a_run_of_too_many_jobs_is_refused(api: TestClient[Any, Any]) -> None:
    many = {"nodes": 101, "gang": False, "share_nodes": True}
    assert (await post(api, name="prepare", **many))[0] == 201
    status, refused = await post(api, name="train", outputs_from="prepare", after="prepare")
    assert (status, refused["error"]["field"]) == (400, "outputs_from[0]")
    assert "more than 100 jobs" in refused["error"]["message"]


async def test_two_runs_of_one_name_are_refused(api: TestClient[Any, Any]) -> None:
    made = await submit(api, name="prepare")
    both = ["prepare", made["id"]]
    status, refused = await post(api, name="train", outputs_from=both, after="prepare")
    assert (status, refused["error"]["field"]) == (400, "outputs_from[1]")
    assert "both would be the folder inputs/prepare" in refused["error"]["message"]


async def test_outputs_that_were_removed_are_refused_before_a_job_is_placed_for_them(
    api: TestClient[Any, Any], controller: Controller, node: PlayedNode
) -> None:
    made = await submit(api, name="prepare")
    await stored(controller, made)
    await node.ends("prepare", 0)
    status, _ = await post(api, name="train", outputs_from="prepare")
    assert status == 201
    assert await controller.outputs.sweep((), float("inf")) == 1
    status, refused = await post(api, name="again", outputs_from="prepare")
    error = refused["error"]
    assert (status, error["code"], error["field"]) == (410, "outputs_removed", "outputs_from[0]")
    assert error["message"].startswith("the outputs of run prepare were removed: they are older")


@pytest.mark.parametrize("wrong", ["", ["a", "a"], 7, [["a"]], ["no name!"]])
async def test_what_is_no_run_is_refused(api: TestClient[Any, Any], wrong: object) -> None:
    status, refused = await post(api, name="train", outputs_from=wrong)
    assert (status, refused["error"]["field"].partition("[")[0]) == (400, "outputs_from")
