"""The controller's own numbers for Prometheus."""

from __future__ import annotations

import re
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from controller.lifecycle.machines.model import MachineStatus
from controller.lifecycle.reports import ProbeSeen
from controller.scheduling.index import CapacityIndex
from tests.unit.api.asking import submit
from tests.unit.api.conftest import USER_TOKEN, Controller
from tests.unit.cli.conftest import PlayedNode
from tests.unit.machines.parts import NOW, known_orphan, machine, offer, rentals_of
from tests.unit.scheduling.cluster import gpu_node


async def numbers(api: TestClient[Any, Any]) -> dict[str, float]:
    async with api.get("/metrics") as answer:
        assert answer.status == 200
        text = await answer.text()
    return {name: float(value) for name, value in re.findall(r"^(\w+(?:{.*})?) (\S+)$", text, re.M)}


async def test_what_lives_and_how_long_it_took_is_counted(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    node = PlayedNode(controller)
    for name in ("one", "two"):
        await submit(api, name=name)
    await node.runs("one")
    found = await numbers(api)
    assert found['fairlead_runs{status="running"}'] == 1
    assert found['fairlead_jobs{status="submitted"}'] == 1
    assert found['fairlead_oldest_queued_seconds{band="interactive"}'] >= 0
    assert found['fairlead_attempt_queue_seconds_count{band="interactive"}'] == 1
    assert found["fairlead_attempt_start_seconds_count"] == 1
    assert found["fairlead_scheduler_pass_seconds_count"] >= 2
    assert 'fairlead_attempts_ended_total{reason="done_by_runner"}' not in found
    await node.ends("one", 0)
    found = await numbers(api)
    assert found['fairlead_runs{status="running"}'] == 0
    assert found['fairlead_attempts_ended_total{reason="done_by_runner"}'] == 1
    assert found['fairlead_attempt_queue_seconds_count{band="interactive"}'] == 1


async def test_nodes_and_their_gpus_are_counted_by_state(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    await controller.pipeline.save_node(gpu_node("n1", 4), "n1")
    await submit(api, name="hello")
    found = await numbers(api)
    assert found['fairlead_nodes{status="connected"}'] == 1
    assert found['fairlead_nodes_kept_from_work{why="draining"}'] == 0
    gpus = {name: value for name, value in found.items() if name.startswith("fairlead_gpus{")}
    assert [(name.rpartition("state=")[2], value) for name, value in gpus.items()] == [
        ('"free"}', 4)
    ]


async def test_the_replicas_of_services_are_counted(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    service = {"type": "service", "image": "busybox", "commands": ["serve"], "port": 80}
    configuration = {**service, "name": "web", "replicas": 2}
    async with api.post("/v1/runs", json={"configuration": configuration}) as answer:
        assert answer.status == 201
    node = PlayedNode(controller)
    attempt_id = await node.runs("web")
    run_id = (await controller.service.runs.lookup.get("web")).run.id
    await controller.pipeline.report(
        ProbeSeen(run_id=run_id, attempt_id=attempt_id, probe=0, passed=True, message=None)
    )
    found = await numbers(api)
    assert {name: value for name, value in found.items() if "service_replicas" in name} == {
        'fairlead_service_replicas{group="main",service="web",state="wanted"}': 2,
        'fairlead_service_replicas{group="main",service="web",state="ready"}': 1,
    }


async def test_only_an_admin_reads_the_numbers(server: TestServer) -> None:
    async with TestClient(server) as client:
        for token, status in ((USER_TOKEN, 403), ("none", 401)):
            headers = {"Authorization": f"Bearer {token}"}
            async with client.get("/metrics", headers=headers) as answer:
                assert answer.status == status


async def test_rented_machines_are_counted_by_status_with_what_they_cost(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    assert not any("fairlead_machines" in name for name in await numbers(api))
    controller.pipeline.rentals = rentals_of(
        CapacityIndex(),
        machine("m1", status=MachineStatus.JOINED, joined_at=NOW, idle_since=NOW),
        machine("m2", offer=offer(price=2.5)),
        machine("m3", status=MachineStatus.TERMINATED, terminated_at=NOW),
        orphans=[known_orphan(price=0.25), known_orphan(id="o2", instance_id="i-2", gone_at=NOW)],
    )
    found = await numbers(api)
    assert found['fairlead_machines{status="idle"}'] == 1
    assert found['fairlead_machines{status="provisioning"}'] == 1
    assert found['fairlead_machines{status="busy"}'] == 0
    assert found['fairlead_machines_price_per_hour{fleet="burst"}'] == 3.75
