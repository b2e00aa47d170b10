"""`explain` and `plan` over REST: why a run waits, and where one would go."""

from __future__ import annotations

import re
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace

from controller.clock import iso
from controller.lifecycle.model import NodeStatus, RunState
from controller.lifecycle.reports import TaskSeen
from controller.service.runs.explanations import why_nothing_waits
from fairlead.wire.engine_abilities import EngineAbility
from tests.unit.api.asking import error_of, hold, place_gang
from tests.unit.api.conftest import USER_TOKEN, Controller
from tests.unit.lifecycle.play import Scheduled
from tests.unit.scheduling.cluster import gpu_node

TASK = {"type": "task", "commands": ["true"], "resources": {"cpu": 1, "memory": "1GB"}}


def task(**more: Any) -> dict[str, Any]:
    return {**TASK, **more}


async def plan(api: TestClient[Any, Any], configuration: dict[str, Any]) -> dict[str, Any]:
    async with api.post("/v1/plan", json={"configuration": configuration}) as response:
        assert response.status == 200, await response.text()
        return dict(await response.json())


async def submit(api: TestClient[Any, Any], name: str, **more: Any) -> None:
    body = {"configuration": task(**more), "name": name}
    async with api.post("/v1/runs", json=body) as response:
        assert response.status == 201, await response.text()


async def explain(api: TestClient[Any, Any], name: str) -> dict[str, Any]:
    async with api.get(f"/v1/runs/{name}/explain") as response:
        assert response.status == 200, await response.text()
        return dict(await response.json())


@pytest.fixture
def nodes(controller: Controller) -> Controller:
    for name in ("n1", "n2"):
        controller.pipeline.set_node(gpu_node(name, 2), name)
    return controller


async def test_a_plan_shows_node_and_gpus_and_submits_nothing(
    api: TestClient[Any, Any], nodes: Controller
) -> None:
    found = await plan(api, task(resources={"cpu": 1, "memory": "1GB", "gpu": 2}))
    (job,) = found["jobs"]
    assert (job["job"], job["node"], job["gpus"]) == ("main/0", "n1", ["n1-g0", "n1-g1"])
    assert (found["refused"], found["warning"], nodes.pipeline.runs) == (None, None, {})


async def test_a_plan_tells_what_the_jobs_of_each_group_begin_with(
    api: TestClient[Any, Any], nodes: Controller
) -> None:
    found = await plan(api, task(python="3.12", setup=["a", "b"]))
    image = "astral/uv:python3.12-bookworm"
    (group,) = found["groups"]
    assert group == {"group": "main", "image": image, "python": "3.12", "setup": 2}


async def test_a_plan_names_no_image_where_no_node_would_use_one(
    api: TestClient[Any, Any], nodes: Controller
) -> None:
    plain = gpu_node("n1", 2)
    plain = replace(plain, capacity=replace(plain.capacity, engine_lacks=tuple(EngineAbility)[:3]))
    nodes.pipeline.set_node(plain, "n1")
    # It fits on n1, the first; what waits might also go to n2, which has images.
    goes, waits = task(), task(resources={"cpu": 1, "memory": "1GB", "gpu": 2}, nodes=3)
    waits["gang"] = False
    (group,) = (await plan(api, goes))["groups"]
    (other,) = (await plan(api, waits))["groups"]
    assert (group["image"], other["image"]) == (None, "astral/uv:python3.13-bookworm")


async def test_a_plan_of_a_sweep_tells_its_sets_and_whether_they_share_containers(
    api: TestClient[Any, Any], nodes: Controller
) -> None:
    sweep = {"matrix": {"n": "0..99"}, "max_parallel": 4, "reuse_container": True}
    found = await plan(api, task(sweep=sweep))
    assert found["sweep"] == {"sets": 100, "parallel": 4, "reuse_container": True}
    assert (await plan(api, task()))["sweep"] is None


async def test_a_plan_says_what_would_be_refused(
    api: TestClient[Any, Any], nodes: Controller
) -> None:
    found = await plan(api, task(resources={"cpu": 1, "memory": "1GB", "gpu": 3}))
    assert (found["jobs"], found["field"]) == ([], "resources")
    assert found["refused"].startswith("no node could ever hold it: needs 3 GPU; best node n1 has")


async def test_offers_for_a_fleet_that_is_not_there_are_refused_as_the_run_would_be(
    api: TestClient[Any, Any],
) -> None:
    body = {"configuration": {**TASK, "fleets": ["trainig"]}}
    async with api.post("/v1/offers", json=body) as answer:
        assert await error_of(answer) == (400, "invalid", "fleets")
        assert "there is no fleet trainig" in (await answer.json())["error"]["message"]


async def test_a_plan_of_a_gang_that_has_to_wait_says_why(
    api: TestClient[Any, Any], nodes: Controller
) -> None:
    nodes.pipeline.set_node(replace(gpu_node("n2", 2), cordoned=True), "n2")
    found = await plan(api, task(nodes=2))
    assert [job["node"] for job in found["jobs"]] == [None, None]
    assert found["jobs"][0]["why"] == ("needs 2 whole nodes in one fleet; best fleet default has 1")


async def test_a_plan_warns_when_no_node_is_there_yet(api: TestClient[Any, Any]) -> None:
    found = await plan(api, task())
    assert found["warning"] == "this controller has no node yet: the run waits for the first one"
    assert found["jobs"][0]["why"] == "no node is connected"


async def test_a_plan_warns_of_a_name_that_another_live_run_has(
    api: TestClient[Any, Any], nodes: Controller
) -> None:
    await submit(api, "train")
    found = await plan(api, task(name="train"))
    assert "a live run is named train already" in found["warning"]
    assert "--if-exists keep or replace" in found["warning"]
    assert (await plan(api, task(name="other")))["warning"] is None


async def test_a_plan_warns_of_a_run_to_wait_for_that_is_not_there(
    api: TestClient[Any, Any],
) -> None:
    for field in ("after", "outputs_from"):
        warning = (await plan(api, task(**{field: ["nobody"]})))["warning"]
        assert f"{field}[0]" in warning
        assert "you have no run 'nobody'" in warning


async def test_a_plan_says_that_a_run_cannot_be_waited_for(api: TestClient[Any, Any]) -> None:
    await submit(api, name="nightly", schedule="0 3 * * *")
    found = await plan(api, task(after="nightly"))
    assert found["field"] == "after[0].run"
    assert "run nightly is scheduled" in found["refused"]


async def test_a_plan_of_a_live_services_next_deployment_warns_of_nothing(
    api: TestClient[Any, Any], nodes: Controller
) -> None:
    service = task(type="service", port=80)
    await submit(api, "web", type="service", port=80)
    assert (await plan(api, {**service, "name": "web", "commands": ["x"]}))["warning"] is None
    assert "is named web already" in (await plan(api, task(name="web")))["warning"]


async def test_a_plan_refuses_what_a_live_service_cannot_become(
    api: TestClient[Any, Any], nodes: Controller
) -> None:
    await submit(api, "web", type="service", port=80)
    found = await plan(api, task(type="service", port=80, name="web", band="batch"))
    assert found["field"] == "band"
    assert found["refused"].startswith("band cannot change in place from interactive to batch")


async def test_a_wrong_configuration_is_refused_as_apply_does(api: TestClient[Any, Any]) -> None:
    async with api.post("/v1/plan", json={"configuration": {"type": "tusk"}}) as response:
        assert response.status == 400
        assert (await response.json())["error"]["field"] == "type"


async def test_explain_goes_node_by_node_and_tells_what_stands_before(
    api: TestClient[Any, Any], nodes: Controller
) -> None:
    nodes.pipeline.set_node(
        replace(gpu_node("n2", 2), status=NodeStatus.UNREACHABLE, message="cut"), "n2"
    )
    await submit(api, "first")
    await submit(api, "second", resources={"cpu": 100, "memory": "1GB"})
    found = await explain(api, "second")
    (waiting,) = found["waiting"]
    assert waiting["why"] == "needs 100 CPU; best node n1 has 64 free of 64"
    assert (waiting["position"], waiting["ahead"]) == (2, ["first"])
    assert waiting["nodes"] == [
        {"node": "n1", "why": ["needs 100 CPU, it has 64 free of 64"]},
        {
            "node": "n2",
            "why": ["it is unreachable: cut", "needs 100 CPU, it has 64 free of 64"],
        },
    ]


@pytest.mark.parametrize(
    ("order", "places"), [("master-first", ["n1", None, None]), ("workers-first", [None, "n1"])]
)
async def test_a_job_that_waits_for_its_turn_says_so(
    api: TestClient[Any, Any], nodes: Controller, order: str, places: list[str | None]
) -> None:
    asked = task(nodes=len(places), gang=False, share_nodes=True, startup_order=order)
    planned = (await plan(api, asked))["jobs"]
    assert [job["node"] for job in planned] == places
    turn = f"waits for its turn (startup_order: {order})"
    assert {job["why"] for job in planned if job["node"] is None} == {turn}


async def test_explain_tells_who_waits_for_his_turn(
    api: TestClient[Any, Any], nodes: Controller
) -> None:
    await submit(api, "a", nodes=3, gang=False, share_nodes=True, startup_order="master-first")
    async with api.get("/v1/runs/a") as answer:
        await hold(nodes, await answer.json(), "n1")
    found = await explain(api, "a")
    assert found["waiting"] == []
    assert found["about"] == "main/1 and 1 more: waits for its turn (startup_order: master-first)"


async def test_explain_tells_what_comes_next_for_jobs_that_have_a_place(
    api: TestClient[Any, Any], nodes: Controller
) -> None:
    await submit(api, "a", nodes=3, gang=False, share_nodes=True, startup_order="master-first")
    async with api.get("/v1/runs/a") as answer:
        run = await answer.json()
    await hold(nodes, run, "n1")
    placed_at = nodes.pipeline.runs[run["id"]].jobs[0].attempts[0].provisioned_at
    assert placed_at is not None
    first, others = (await explain(api, "a"))["under_way"]
    assert first == {
        "jobs": ["main/0"],
        "status": "provisioning",
        "what": "waits for node n1 to accept it",
        "until": iso(placed_at + 120),
        "ends_as": "waiting_instance_limit_exceeded",
    }
    assert (others["jobs"], others["until"]) == (["main/1", "main/2"], None)


async def test_jobs_that_wait_for_the_same_thing_are_told_together(
    api: TestClient[Any, Any], nodes: Controller
) -> None:
    many = {"gang": False, "share_nodes": True}
    groups = [
        {"name": "large", "nodes": 3, "resources": {"cpu": 60}, **many},
        {"name": "small", "nodes": 2, "resources": {"cpu": 50}, **many},
    ]
    for name in ("n1", "n2"):
        nodes.pipeline.set_node(replace(gpu_node(name, 2), cordoned=True), name)
    await submit(api, "several", groups=groups)
    large, small = (await explain(api, "several"))["waiting"]
    assert (large["jobs"], large["position"]) == (["large/0", "large/1", "large/2"], 1)
    assert (small["jobs"], small["position"]) == (["small/0", "small/1"], 4)


def test_a_run_is_told_to_wait_for_its_trigger_between_occurrences_only() -> None:
    play = Scheduled()
    between = why_nothing_waits(play.state)
    play.to_trigger().to_running()
    assert between == "it waits for its next trigger"
    assert why_nothing_waits(play.state) == "none of its jobs waits for an allocation"


async def test_explain_hides_the_names_of_others_runs(
    api: TestClient[Any, Any], server: TestServer
) -> None:
    await submit(api, "secret")
    headers = {"Authorization": f"Bearer {USER_TOKEN}"}
    async with TestClient(server, headers=headers) as ada:
        await submit(ada, "mine")
        found = await explain(ada, "mine")
    assert found["waiting"][0]["ahead"] == ["a run of admin"]


async def test_a_run_that_has_ended_waits_for_nothing(api: TestClient[Any, Any]) -> None:
    await submit(api, "a")
    async with api.post("/v1/runs/a/stop", json={"abort": True}) as response:
        assert response.status == 200
    found = await explain(api, "a")
    assert (found["about"], found["waiting"]) == ("it has ended: terminated", [])


def looked_at(state: RunState, job: int, **more: Any) -> TaskSeen:
    return TaskSeen(
        run_id=state.run.id,
        attempt_id=state.jobs[job].attempts[0].id,
        container_started=False,
        terminated=False,
        runner_socket="",
        **more,
    )


async def test_explain_and_inspect_tell_what_a_gang_that_is_not_whole_waits_for(
    api: TestClient[Any, Any], nodes: Controller
) -> None:
    await submit(api, "a", nodes=2, gang={}, share_nodes=True)
    state = await place_gang(nodes)
    await nodes.pipeline.report(looked_at(state, 0))
    found = await explain(api, "a")
    waits = (
        "0 of 2 ranks are there: main/0 pulls its image; "
        "main/1 has an allocation and waits for its node"
    )
    told = (
        re.escape(f"{waits}; it releases its allocations in ") + r"\d+ s unless .* makes progress"
    )
    assert found["waiting"] == []
    assert re.fullmatch(told, found["about"])
    async with api.get("/v1/runs/a") as response:
        run = await response.json()
    assert (run["gathering"], run["gives_up_at"] is None) == (waits, False)
    for n in (0, 1):
        await nodes.pipeline.report(looked_at(state, n, creating=True))
    async with api.get("/v1/runs/a") as response:
        run = await response.json()
    assert (run["gathering"], run["gives_up_at"]) == (None, None)
