"""Names of live runs, and runs that belong to another one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from controller.service.machines.gateways import GatewayService
from controller.service.runs.blobs import require_uploads
from controller.service.runs.names import KEPT_SECONDS, Takeovers
from controller.service.runs.submission_stages import IfExists, Submission
from fairlead.model.statuses import RunStatus
from tests.unit.api.asking import HELLO, error_of, submit
from tests.unit.api.conftest import USER_TOKEN, Controller
from tests.unit.cli.conftest import PlayedNode

OTHER = {**HELLO, "priority": 9}


async def post(api: TestClient[Any, Any], **body: object) -> tuple[int, dict[str, Any]]:
    async with api.post("/v1/runs", json={"configuration": OTHER, "name": "same", **body}) as got:
        return got.status, await got.json()


async def status_of(api: TestClient[Any, Any], run_id: str) -> str:
    async with api.get(f"/v1/runs/{run_id}") as answer:
        status: str = (await answer.json())["status"]
        return status


async def test_keep_answers_with_the_live_run_whatever_its_configuration(
    api: TestClient[Any, Any],
) -> None:
    live = await submit(api, name="same")
    status, run = await post(api, if_exists="keep")
    assert (status, run["id"]) == (200, live["id"])


async def test_keep_submits_when_no_live_run_has_the_name(api: TestClient[Any, Any]) -> None:
    ended = await submit(api, name="same")
    await api.post("/v1/runs/same/stop", json={})
    status, run = await post(api, if_exists="keep")
    assert status == 201
    assert run["id"] != ended["id"]


async def test_keep_waits_for_the_run_that_is_being_made(controller: Controller) -> None:
    """Until then only its name is known: an ended run may have had that, too."""
    user = controller.service.accounts.gate.users["ada"]
    submit = controller.service.runs.submissions.submit
    keep = Submission(configuration=HELLO, name="same", if_exists=IfExists.KEEP)
    ended = await submit(keep, user=user)
    await controller.service.runs.actions.stop("same", abort=True, user=user)
    made, kept = await asyncio.gather(submit(keep, user=user), submit(keep, user=user))
    assert (made.kept, kept.kept) == (False, True)
    assert made.state.run.id == kept.state.run.id != ended.state.run.id


async def test_replace_ends_the_live_run_and_submits_when_asked_again(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    live = await submit(api, name="same")
    node = PlayedNode(controller)
    await node.runs("same")
    for _ in range(2):
        status, run = await post(api, if_exists="replace", client_key="k")
        assert (status, run["id"], run["status"]) == (202, live["id"], "terminating")
    await node.ends("same", 0)
    status, run = await post(api, if_exists="replace", client_key="k")
    assert status == 201
    assert run["id"] != live["id"]
    assert await status_of(api, live["id"]) == "terminated"
    assert await status_of(api, "same") == "submitted"


async def test_replace_of_what_ends_at_once_submits_at_once(api: TestClient[Any, Any]) -> None:
    live = await submit(api, name="same")
    status, run = await post(api, if_exists="replace")
    assert (status, run["id"] != live["id"]) == (201, True)
    assert await status_of(api, live["id"]) == "terminated"


async def test_runs_without_names_get_names_of_their_own(
    api: TestClient[Any, Any], controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they come in one request, or in several at once."""
    submissions = controller.service.runs.submissions
    # Of thousands of pairs of words, one is chosen: here always the same one.
    monkeypatch.setattr(submissions._names, "_pick", lambda _: 0)
    async with api.post("/v1/runs:batch", json={"runs": [{"configuration": HELLO}] * 3}) as got:
        assert [one["status"] for one in (await got.json())["results"]] == [201] * 3

    # Nobody has a name before his run is being committed.
    for place, checked in (
        ("controller.service.runs.submissions.require_uploads", require_uploads),
        ("controller.service.machines.gateways.GatewayService.claim", GatewayService.claim),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, at_once(checked))
            made = await asyncio.gather(submit(api), submit(api))
        assert made[0]["name"] != made[1]["name"]


def at_once(checked: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    both = asyncio.Barrier(2)

    async def check(*what: Any) -> None:
        await checked(*what)
        await both.wait()

    return check


async def test_the_name_of_a_run_that_is_replaced_is_kept_for_who_replaces_it(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    await submit(api, name="same")
    node = PlayedNode(controller)
    await node.runs("same")
    assert (await post(api, if_exists="replace", client_key="k"))[0] == 202
    meanwhile, answer = await post(api, if_exists="keep")
    assert (meanwhile, answer["error"]["code"]) == (409, "name_taken")
    await node.ends("same", 0)
    early, answer = await post(api)
    assert (early, answer["error"]["code"]) == (409, "name_taken")
    assert (await post(api, if_exists="replace", client_key="k"))[0] == 201


class _Clock:
    time = 0.0

    def now(self) -> float:
        return self.time


def test_a_name_that_nobody_asks_for_again_comes_free() -> None:
    clock = _Clock()
    takeovers = Takeovers(clock)
    takeovers.begin("same", ("ada", "k"), "r1")
    owners = [("ada", "k"), ("ada", None), ("bob", "k")]
    assert [takeovers.is_anothers("same", owner, "r1") for owner in owners] == [False, True, True]
    clock.time = 1000.0
    assert takeovers.is_anothers("same", ("bob", None), None)
    clock.time += KEPT_SECONDS - 1
    assert takeovers.is_anothers("same", ("bob", None), None)
    clock.time += 1
    assert not takeovers.is_anothers("same", ("bob", None), None)


async def test_a_refused_submission_replaces_nothing(api: TestClient[Any, Any]) -> None:
    live = await submit(api, name="same")
    wrong = {**HELLO, "nodes": 0}
    status, answer = await post(api, configuration=wrong, if_exists="replace")
    assert (status, answer["error"]["field"]) == (400, "nodes")
    assert await status_of(api, live["id"]) == "submitted"


async def test_nobody_replaces_or_keeps_anothers_run(
    api: TestClient[Any, Any], server: TestServer, controller: Controller
) -> None:
    live = await submit(api, name="same")
    async with TestClient(server, headers={"Authorization": f"Bearer {USER_TOKEN}"}) as ada:
        for wish in ("keep", "replace"):
            status, answer = await post(ada, if_exists=wish)
            assert (status, answer["error"]["code"]) == (403, "forbidden")
    assert controller.pipeline.runs[live["id"]].run.status is RunStatus.SUBMITTED


async def test_an_empty_name_is_refused_and_not_made_up(api: TestClient[Any, Any]) -> None:
    status, refused = await post(api, name="")
    assert (status, refused["error"]["field"]) == (400, "name")


async def test_an_unknown_wish_is_refused_by_its_field(api: TestClient[Any, Any]) -> None:
    status, answer = await post(api, if_exists="maybe")
    assert (status, answer["error"]["field"]) == (400, "if_exists")


async def test_a_child_names_its_parent_by_id(api: TestClient[Any, Any]) -> None:
    parent = await submit(api, name="parent")
    child = await submit(api, name="child", parent="parent")
    assert child["parent_id"] == parent["id"]


async def test_a_parent_must_live(api: TestClient[Any, Any]) -> None:
    await submit(api, name="parent")
    await api.post("/v1/runs/parent/stop", json={})
    body = {"configuration": HELLO, "parent": "parent"}
    async with api.post("/v1/runs", json=body) as answer:
        assert await error_of(answer) == (409, "parent_ended", "parent")
    async with api.post("/v1/runs", json={**body, "parent": "nobody"}) as answer:
        assert await error_of(answer) == (404, "not_found", "parent")


@pytest.mark.parametrize("parent", ["old", "grandchild"])
async def test_a_run_is_not_replaced_by_a_child_of_what_ends_with_it(
    api: TestClient[Any, Any], parent: str
) -> None:
    old = await submit(api, name="old")
    await submit(api, name="child", parent="old")
    await submit(api, name="grandchild", parent="child")
    body = {"configuration": HELLO, "name": "old", "if_exists": "replace", "parent": parent}
    async with api.post("/v1/runs", json=body) as answer:
        assert await error_of(answer) == (409, "parent_replaced", "parent")
    assert await status_of(api, old["id"]) == "submitted"


async def test_a_gang_is_submitted_with_ranks_and_an_incarnation(api: TestClient[Any, Any]) -> None:
    run = await submit(api, configuration={**HELLO, "nodes": 3, "gang": {"size": 2}})
    assert run["incarnation"]["number"] == 1
    assert [job["rank"] for job in run["jobs"]] == [0, 1, None]
