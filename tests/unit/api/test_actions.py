"""Actions on live runs and jobs are recorded when answered, refused when they make no sense."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from fairlead.connections.order_keys import ORDER_KEY
from tests.unit.api.asking import HELLO, error_of, submit
from tests.unit.api.conftest import Controller
from tests.unit.cli.conftest import PlayedNode

API = TestClient[Any, Any]
PLAIN = {**HELLO, "nodes": 2, "gang": False, "share_nodes": True}


async def act(api: API, what: str, **body: object) -> dict[str, Any]:
    async with api.post(f"/v1/runs/hello/{what}", json=body) as answer:
        assert answer.status == 200, await answer.text()
        run: dict[str, Any] = await answer.json()
        return run


async def refusal(api: API, what: str, **body: object) -> tuple[int, str, str | None]:
    async with api.post(f"/v1/runs/hello/{what}", json=body) as answer:
        return await error_of(answer)


async def test_a_completed_run_is_done_and_stays_so(api: API) -> None:
    await submit(api, name="hello")
    first, second = await act(api, "complete"), await act(api, "complete")
    assert (first["status"], first["termination_reason"]) == ("done", "completed_by_user")
    assert second == first


async def test_a_suspended_run_says_so_until_it_is_resumed(api: API) -> None:
    await submit(api, name="hello")
    assert (await act(api, "suspend"))["suspended"] is True
    assert (await act(api, "suspend", abort_running=True))["suspended"] is True
    assert (await act(api, "resume"))["suspended"] is False
    assert (await act(api, "resume"))["suspended"] is False


@pytest.mark.parametrize(
    ("what", "body", "undone_by", "its_body"),
    [
        ("suspend", {}, "resume", {}),
        ("scale", {"group": "main", "nodes": 3}, "scale", {"group": "main", "nodes": 1}),
    ],
)
@pytest.mark.parametrize("changes_nothing_at_first", [False, True])
async def test_an_order_that_is_repeated_with_its_key_undoes_no_later_one(
    api: API,
    what: str,
    body: dict[str, object],
    undone_by: str,
    its_body: dict[str, object],
    *,
    changes_nothing_at_first: bool,
) -> None:
    await submit(api, name="hello", configuration=PLAIN)
    if changes_nothing_at_first:
        await act(api, what, **body)

    async def order() -> dict[str, Any]:
        headers = {ORDER_KEY: "k"}
        async with api.post(f"/v1/runs/hello/{what}", json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            run: dict[str, Any] = await answer.json()
            return run

    await order()
    undone = await act(api, undone_by, **its_body)
    assert await order() == undone
    await act(api, "stop")
    assert (await order())["status"] == "terminated", "it was done, so it is not refused"


async def test_an_order_whose_key_is_too_long_is_refused(api: API) -> None:
    await submit(api, name="hello")
    async with api.post("/v1/runs/hello/suspend", json={}, headers={ORDER_KEY: "k" * 65}) as answer:
        assert await error_of(answer) == (400, "invalid", ORDER_KEY)


@pytest.mark.parametrize(
    "what",
    ["complete", "suspend", "resume", "scale", "jobs/0/abort", "jobs/0/abandon"],
)
async def test_a_run_that_was_stopped_takes_no_more_wishes(api: API, what: str) -> None:
    await submit(api, name="hello")
    await act(api, "stop")
    body: dict[str, object] = {"group": "main", "nodes": 2} if what == "scale" else {}
    assert await refusal(api, what, **body) == (409, "ended", "run")


async def test_an_independent_group_gets_the_number_of_jobs_that_was_asked_for(api: API) -> None:
    await submit(api, name="hello", configuration=PLAIN)
    up = await act(api, "scale", group="main", nodes=3)
    down = await act(api, "scale", group="main", nodes=1)
    assert [job["cookie"] for job in up["jobs"]] == [0, 1, 2]
    assert [job["scaled_down"] for job in down["jobs"]] == [False, True, True]


async def test_a_gang_is_not_scaled(api: API) -> None:
    await submit(api, name="hello", configuration={**HELLO, "nodes": 2})
    assert await refusal(api, "scale", group="main", nodes=3) == (409, "gang", "group")


@pytest.mark.parametrize(
    ("configuration", "said"),
    [
        ({"type": "service", "port": 80, "commands": ["serve"]}, "change `replicas` there"),
        ({"type": "dev-environment", "ide": "vscode"}, "has one job"),
    ],
)
async def test_only_a_task_is_scaled(api: API, configuration: dict[str, Any], said: str) -> None:
    await submit(api, name="hello", configuration=configuration)
    async with api.post("/v1/runs/hello/scale", json={"group": "main", "nodes": 2}) as answer:
        assert answer.status == 409
        assert said in (await answer.json())["error"]["message"]


async def test_scaling_names_what_is_wrong(api: API) -> None:
    await submit(api, name="hello", configuration=PLAIN)
    assert await refusal(api, "scale", group="nobody", nodes=3) == (404, "not_found", "group")
    assert await refusal(api, "scale", group="main", nodes=0) == (400, "invalid", "nodes")
    assert await refusal(api, "scale", group="main") == (400, "invalid", "nodes")


async def test_a_run_is_not_scaled_beyond_the_jobs_that_one_may_have(api: API) -> None:
    plain = {"gang": False, "share_nodes": True, "nodes": 2}
    groups = [{"name": name, **plain} for name in ("a", "b")]
    await submit(api, name="hello", configuration={**HELLO, "groups": groups})
    assert await refusal(api, "scale", group="a", nodes=9_999) == (400, "invalid", "nodes")
    assert len((await act(api, "scale", group="a", nodes=3))["jobs"]) == 5


@pytest.mark.parametrize("key", ["main%2F1", "1"])
async def test_a_job_is_named_by_group_and_cookie_or_index(api: API, key: str) -> None:
    await submit(api, name="hello", configuration=PLAIN)
    run = await act(api, f"jobs/{key}/abandon")
    assert [job["abandoned"] for job in run["jobs"]] == [False, True]
    assert await act(api, f"jobs/{key}/abandon") == run


async def test_an_unknown_job_is_named(api: API) -> None:
    await submit(api, name="hello")
    assert await refusal(api, "jobs/7/abort") == (404, "not_found", "job")


async def test_an_aborted_job_gets_a_new_attempt(api: API, controller: Controller) -> None:
    await submit(api, name="hello")
    await PlayedNode(controller).runs("hello")
    run = await act(api, "jobs/0/abort")
    assert run["jobs"][0]["attempts"][0]["termination_reason"] == "job_aborted_by_user"
    assert run["status"] != "terminating"


async def test_only_a_job_that_runs_can_be_interrupted(api: API, controller: Controller) -> None:
    await submit(api, name="hello")
    assert await refusal(api, "jobs/0/interrupt") == (409, "not_running", "job")
    await PlayedNode(controller).runs("hello")
    run = await act(api, "jobs/0/interrupt")
    assert run["jobs"][0]["attempts"][0]["interrupt_requested_at"] is not None


@pytest.mark.parametrize("what", ["abort", "abandon", "interrupt"])
async def test_a_job_that_was_scaled_down_is_asked_nothing(api: API, what: str) -> None:
    await submit(api, name="hello", configuration=PLAIN)
    await act(api, "scale", group="main", nodes=1)
    async with api.post(f"/v1/runs/hello/jobs/1/{what}", json={}) as answer:
        text = await answer.text()
    assert answer.status == 409
    assert "main/1 was scaled down" in text


async def test_where_an_abandoned_job_stands_is_told_to_who_asks_it(api: API) -> None:
    await submit(api, name="hello", configuration=PLAIN)
    await act(api, "jobs/1/abandon")
    for what in ("abort", "interrupt"):
        async with api.post(f"/v1/runs/hello/jobs/1/{what}", json={}) as answer:
            text = await answer.text()
        assert answer.status == 409
        assert "abandoned" in text
        assert "fairlead job abort" not in text


async def test_a_run_that_has_ended_is_not_suspended_any_more(api: API) -> None:
    await submit(api, name="hello")
    await act(api, "suspend")
    ended = await act(api, "complete")
    assert (ended["status"], ended["suspended"]) == ("done", False)
