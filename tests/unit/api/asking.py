"""Requests of the tests of the API, and readers of the answers."""

from __future__ import annotations

from typing import Any

from aiohttp.test_utils import TestClient

from controller.lifecycle.model import Allocation, Resources, RunState
from controller.lifecycle.reports import Placed
from fairlead.model.statuses import AllocationState
from fairlead.wire.frames import Decoder, Frame, Stream, encode
from tests.unit.api.conftest import Controller

HELLO = {"type": "task", "commands": ["echo hello"]}


async def submit(api: TestClient[Any, Any], **more: object) -> dict[str, Any]:
    async with api.post("/v1/runs", json={"configuration": HELLO, **more}) as answer:
        assert answer.status == 201, await answer.text()
        run: dict[str, Any] = await answer.json()
        return run


async def error_of(answer: Any) -> tuple[int, str, str | None]:
    body = await answer.json()
    return answer.status, body["error"]["code"], body["error"]["field"]


async def write_log(controller: Controller, attempt_id: str, *texts: bytes) -> None:
    writer = await controller.logs.writer(attempt_id)
    for text in texts:
        frame = Frame(writer.end, 1, Stream.STDOUT, text)
        await writer.append(encode(frame))
    await writer.close()


def payload(data: bytes) -> bytes:
    return b"".join(frame.payload for frame in Decoder().feed(data))


async def shape_of(answer: Any) -> tuple[int, str, str | None]:
    body = await answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "field"}
    assert body["error"]["message"]
    return answer.status, body["error"]["code"], body["error"]["field"]


LOCAL = {"name": "here", "local_socket": "/run/fairlead/shim.sock"}


async def added(api: TestClient[Any, Any], body: dict[str, Any]) -> dict[str, Any]:
    async with api.post("/v1/nodes", json=body) as answer:
        assert answer.status == 201, await answer.text()
        node: dict[str, Any] = await answer.json()
        return node


async def hold(controller: Controller, run: dict[str, Any], node_id: str) -> None:
    """The run's job has a place on this node."""
    job = run["jobs"][0]
    place = Allocation(
        id="a1",
        run_id=run["id"],
        job_id=job["id"],
        node_id=node_id,
        state=AllocationState.HELD,
        resources=Resources(cpu=2.0, memory=512),
        created_at=0.0,
    )
    attempt_id = job["attempts"][0]["id"]
    await controller.pipeline.report(
        Placed(run_id=run["id"], attempt_id=attempt_id, allocation=place)
    )


async def place_gang(controller: Controller) -> RunState:
    """The only run there is: what the scheduler would say, in one turn."""
    (state,) = controller.pipeline.runs.values()
    for job in state.jobs:
        place = Allocation(
            id=f"place-of-{job.id}",
            run_id=state.run.id,
            job_id=job.id,
            node_id="n1",
            state=AllocationState.HELD,
            resources=Resources(),
            created_at=0.0,
        )
        attempt = job.attempts[0]
        placed = Placed(run_id=state.run.id, attempt_id=attempt.id, allocation=place)
        controller.pipeline.post(placed)
    await controller.pipeline.settled()
    return state
