"""The API over a real unix socket, through the client that everybody uses."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from fairlead.wire.node import EngineKind
from fairlead.wire.shim import (
    DrainRequest,
    EventType,
    Fence,
    ImageState,
    RegistryAuth,
    TaskStatus,
    TerminateRequest,
    WantedImage,
    WantedImages,
)
from shim.api.app import Routes, make_runner
from shim.client import BASE_URL, ShimClient, ShimError, ShimUnavailable
from shim.engines.base import ImageInfo
from tests.support.dialling import dial_to
from tests.support.waiting import LONG
from tests.unit.shim.parts import RUN, Node, request

FENCE = Fence(1, 1)
DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
async def session(node: Node) -> AsyncIterator[aiohttp.ClientSession]:
    socket = node.settings.socket
    socket.parent.mkdir(parents=True)
    async with node.shim() as daemon:
        runner = make_runner(daemon, shutdown_timeout=1.0)
        await runner.setup()
        await web.UnixSite(runner, str(socket)).start()
        connector = aiohttp.UnixConnector(str(socket))
        async with aiohttp.ClientSession(connector=connector) as session:
            yield session
        daemon.events.close()
        await runner.cleanup()


@pytest.fixture
def client(session: aiohttp.ClientSession, node: Node) -> ShimClient:
    return ShimClient(session, dial=dial_to(node.settings.socket))


async def test_health_names_this_life_and_this_install(client: ShimClient) -> None:
    health = await client.health(fence=FENCE)
    assert health.at is not None
    assert health.api_versions == ("v1",)
    assert health.epoch.startswith("1-")
    assert len(health.install_id) == 32


async def test_the_node_says_what_it_has_and_what_is_taken(client: ShimClient) -> None:
    await client.put_task("t1", request(), fence=FENCE)
    info = await client.node()
    assert (info.engine, info.isolation) == (EngineKind.DOCKER, False)
    assert (info.cpu, info.cpu_allocated, info.memory_allocated) == (4.0, 1.0, 1 << 30)


async def test_a_task_is_followed_by_events_from_its_put_to_its_removal(
    client: ShimClient, node: Node
) -> None:
    seen: list[str] = []
    async with asyncio.timeout(LONG), aclosing(client.events()) as events:
        first = await anext(events)
        await client.put_task("t1", request(), fence=FENCE)
        async for event in events:
            if event.task is not None and event.task.status.value not in seen[-1:]:
                seen.append(event.task.status.value)
            if event.task is not None and event.task.status is TaskStatus.RUNNING:
                node.host.containers["c-t1"].end(0)
            if event.task is not None and event.task.status is TaskStatus.TERMINATED:
                await client.remove_task("t1", run_id=RUN, fence=FENCE)
            if event.type is EventType.REMOVED:
                break
    assert first.type is EventType.HEARTBEAT
    assert seen == ["pending", "preparing", "creating", "running", "terminated"]


async def test_terminate_remove_and_release_end_a_task_for_good(client: ShimClient) -> None:
    await client.put_task("t1", request(), fence=FENCE)
    async with asyncio.timeout(LONG), aclosing(client.events("none")) as events:
        assert (await anext(events)).type is EventType.RESYNC
        await client.terminate("t1", TerminateRequest(grace=0), run_id=RUN, fence=FENCE)
        async for event in events:
            if event.task is not None and event.task.status is TaskStatus.TERMINATED:
                break
    await client.remove_task("t1", run_id=RUN, fence=FENCE)
    await client.release_allocation("place-1", run_id=RUN, fence=FENCE)
    assert (await client.tasks(), await client.allocations()) == ((), ())
    with pytest.raises(ShimError) as caught:
        await client.put_task("t1", request(), fence=FENCE)
    assert (caught.value.status, caught.value.code) == (409, "terminated")


async def test_outputs_are_given_once_the_task_has_ended(client: ShimClient) -> None:
    await client.put_task("t1", request(), fence=FENCE)
    with pytest.raises(ShimError, match="its job may still write") as caught:
        async with client.outputs("t1", offset=0, limit=100):
            pass
    assert caught.value.status == 409
    async with asyncio.timeout(LONG), aclosing(client.events()) as events:
        await anext(events)  # the end is told to a stream that is open
        await client.terminate("t1", TerminateRequest(grace=0), run_id=RUN, fence=FENCE)
        async for event in events:
            if event.task is not None and event.task.status is TaskStatus.TERMINATED:
                break
    async with client.outputs("t1", offset=0, limit=100) as stream:
        data = b"".join([piece async for piece in stream.pieces()])
    assert (stream.about.files, stream.about.length) == (0, len(data))
    assert data == bytes(1024)


async def test_a_grace_below_nothing_is_no_order_to_stop(client: ShimClient) -> None:
    await client.put_task("t1", request(), fence=FENCE)
    with pytest.raises(ShimError, match="grace must be 0 or more") as caught:
        await client.terminate("t1", TerminateRequest(grace=-1), run_id=RUN, fence=FENCE)
    assert (caught.value.status, caught.value.code) == (400, "invalid")


async def test_only_the_last_to_claim_a_task_commands_it(client: ShimClient) -> None:
    await client.put_task("t1", request(), fence=FENCE)
    newer = Fence(FENCE.epoch, FENCE.token + 1)
    claimed = await client.claim("t1", run_id=RUN, fence=newer)
    assert claimed.id == "t1"
    for order in (
        client.terminate("t1", TerminateRequest(grace=0), run_id=RUN, fence=FENCE),
        client.claim("t1", run_id=RUN, fence=FENCE),
    ):
        with pytest.raises(ShimError) as caught:
            await order
        assert (caught.value.status, caught.value.code) == (409, "fenced")
    with pytest.raises(ShimError, match="there is no task nobody"):
        await client.claim("nobody", run_id=RUN, fence=newer)


async def test_logs_are_served_raw_from_the_segment_that_holds_the_offset(
    client: ShimClient, node: Node
) -> None:
    await client.put_task("t1", request(), fence=FENCE)
    logs = node.settings.job_folder("t1") / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for start, data in ((0, b"old"), (10, b"new"), (20, b"last")):
        (logs / f"{start:020d}.seg").write_bytes(data)
    async with client.logs("t1", offset=15) as stream:
        body = b"".join([piece async for piece in stream.pieces()])
    assert (stream.start, body) == (10, b"newlast")


async def test_an_error_of_the_reader_of_a_log_stays_what_it_is(client: ShimClient) -> None:
    await client.put_task("t1", request(), fence=FENCE)
    with pytest.raises(OSError, match="disk full"):
        async with client.logs("t1"):
            raise OSError("disk full")


async def test_draining_is_remembered_and_refuses_new_places(client: ShimClient) -> None:
    info = await client.drain(DrainRequest(draining=True))
    with pytest.raises(ShimError) as caught:
        await client.put_task("t1", request(), fence=FENCE)
    assert (info.draining, caught.value.code) == (True, "draining")


@pytest.mark.parametrize("missing", ["Fairlead-Fence", "Fairlead-Incarnation", "Fairlead-Run"])
async def test_a_missing_fence_header_is_named(
    session: aiohttp.ClientSession, missing: str
) -> None:
    headers = {"Fairlead-Fence": "1.1", "Fairlead-Incarnation": "0", "Fairlead-Run": RUN}
    del headers[missing]
    async with session.delete(f"{BASE_URL}/v1/tasks/t1", headers=headers) as response:
        body = await response.json()
    assert (response.status, body["error"]["field"]) == (400, missing)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Fairlead-Fence", "1"),
        ("Fairlead-Fence", "1.-1"),
        ("Fairlead-Fence", "9" * 30 + ".1"),
        ("Fairlead-Fence", "1." + "9" * 5000),
        ("Fairlead-Incarnation", "-1"),
        ("Fairlead-Incarnation", "9" * 30),
        ("Fairlead-Incarnation", "9" * 5000),
    ],
)
async def test_a_number_beyond_all_bounds_is_named_and_changes_nothing(
    session: aiohttp.ClientSession, name: str, value: str
) -> None:
    headers = {"Fairlead-Fence": "1.1", "Fairlead-Incarnation": "0", "Fairlead-Run": RUN}
    wrong = {**headers, name: value}
    async with session.delete(f"{BASE_URL}/v1/tasks/t1", headers=wrong) as response:
        body = await response.json()
    assert (response.status, body["error"]["field"]) == (400, name)
    assert len(body["error"]["message"]) < 200
    async with session.delete(f"{BASE_URL}/v1/tasks/t1", headers=headers) as response:
        assert response.status == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "body"),
        (b"[]", "body"),
        (b'{"x":' + b"[" * 50_000, "body"),
        (b'{"run_id":"\xff"}', "body"),
        (b'{"run_id":1}', "run_id"),
        (b"{}", "run_id"),
        (
            b'{"run_id":"r","run_name":"n","allocation_id":"a","image":"i","resources":{"cpu":1}}',
            "resources.memory",
        ),
        (
            b'{"run_id":"r","run_name":"n","allocation_id":"a","image":"i",'
            b'"resources":{"cpu":"many","memory":1}}',
            "resources.cpu",
        ),
    ],
)
async def test_a_body_that_is_wrong_names_the_field(
    session: aiohttp.ClientSession, body: bytes, field: str
) -> None:
    headers = {"Fairlead-Fence": "1.1", "Fairlead-Incarnation": "0", "Fairlead-Run": RUN}
    async with session.put(f"{BASE_URL}/v1/tasks/t1", data=body, headers=headers) as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (400, "invalid")
    assert answer["error"]["field"] == field


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
async def test_a_body_with_an_encoding_is_no_failure_of_the_shim(
    session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture, encoding: str
) -> None:
    headers = {"Fairlead-Fence": "1.1", "Fairlead-Incarnation": "0", "Fairlead-Run": RUN}
    headers["Content-Encoding"] = encoding
    async with session.put(f"{BASE_URL}/v1/tasks/t1", data=b"x" * 99, headers=headers) as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (400, "invalid")
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


async def test_every_error_has_the_one_shape(session: aiohttp.ClientSession) -> None:
    answers = []
    for method, path in (("GET", "/nowhere"), ("POST", "/v1/health"), ("GET", "/v1/tasks/none")):
        async with session.request(method, BASE_URL + path) as response:
            answers.append((response.status, set((await response.json())["error"])))
    assert answers == [(s, {"code", "message", "field"}) for s in (404, 405, 404)]


async def test_a_wrong_method_is_told_which_are_right(session: aiohttp.ClientSession) -> None:
    async with session.post(f"{BASE_URL}/v1/health") as response:
        assert (response.status, response.headers["Allow"]) == (405, "GET,HEAD")


async def test_the_description_names_every_route(session: aiohttp.ClientSession) -> None:
    async with session.get(f"{BASE_URL}/v1/openapi.json") as response:
        document = await response.json()
    described = {(method, path) for path, ops in document["paths"].items() for method in ops}
    served = {(route.method.lower(), route.path) for route in Routes(None).table()}  # type: ignore[arg-type]
    assert served - described == {("get", "/v1/openapi.json")}
    assert described <= served
    assert "TaskRequest" in document["components"]["schemas"]


def test_each_address_of_the_shim_that_the_pages_ask_for_is_one_of_its_routes() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    asked = set(re.findall(r"http://shim(/[\w/.-]*)", pages))
    served = {route.path for route in Routes(None).table() if route.method == "GET"}  # type: ignore[arg-type]
    assert asked
    assert asked - served == set()


async def test_the_description_names_what_a_query_may_say(session: aiohttp.ClientSession) -> None:
    async with session.get(f"{BASE_URL}/v1/openapi.json") as response:
        paths = (await response.json())["paths"]
    queries = {
        (path, parameter["name"], parameter["schema"]["type"])
        for path, operations in paths.items()
        for parameter in operations.get("get", {}).get("parameters", ())
        if parameter["in"] == "query"
    }
    assert queries == {
        ("/v1/tasks/{id}/logs", "offset", "integer"),
        ("/v1/tasks/{id}/outputs", "offset", "integer"),
        ("/v1/tasks/{id}/outputs", "limit", "integer"),
        ("/v1/tasks/{id}/outputs", "links", "integer"),
        ("/v1/events", "after", "string"),
    }


async def test_nobody_at_the_socket_is_unavailable(tmp_path: Path) -> None:
    connector = aiohttp.UnixConnector(str(tmp_path / "none.sock"))
    async with aiohttp.ClientSession(connector=connector) as session:
        with pytest.raises(ShimUnavailable):
            await ShimClient(session).health()


async def test_each_route_answers_as_its_description_says(
    client: ShimClient, session: aiohttp.ClientSession
) -> None:
    await client.put_task("t1", request(), fence=FENCE)
    async with session.get(f"{BASE_URL}/v1/openapi.json") as answer:
        described = await answer.json()
    for path, operations in described["paths"].items():
        if "get" not in operations or path in ("/v1/events", "/v1/tasks/{id}/outputs"):
            continue
        content = operations["get"]["responses"]["2XX"]["content"]
        async with session.get(BASE_URL + path.replace("{id}", "t1")) as answer:
            assert (path, answer.status, answer.content_type) == (path, 200, *content)
            if answer.content_type == "application/json":
                schema = content["application/json"]["schema"]
                check_described(await answer.json(), schema, described, path)


def check_described(value: Any, schema: Any, described: Any, where: str) -> None:
    """Every field of the answer is in the schema, and every required one in the answer."""
    while "$ref" in schema:
        schema = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if isinstance(value, list) and "items" in schema:
        for each in value:
            check_described(each, schema["items"], described, where)
    elif isinstance(value, dict) and "properties" in schema:
        assert set(value) <= set(schema["properties"]), where
        assert set(schema.get("required", ())) <= set(value), where
        for name, each in value.items():
            check_described(each, schema["properties"][name], described, f"{where}.{name}")


async def test_a_reader_of_events_that_goes_away_is_one_line_for_developers(
    client: ShimClient, session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "shim.api.app")
    answer = await session.get(f"{BASE_URL}/v1/events")
    await answer.content.readline()
    answer.close()
    async with asyncio.timeout(LONG):
        while "the reader has gone away" not in caplog.text:
            await client.drain(DrainRequest(draining=True))
    assert "Traceback" not in caplog.text


async def test_a_reader_that_goes_away_in_the_middle_of_a_log_is_one_line_for_developers(
    client: ShimClient,
    session: aiohttp.ClientSession,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG, "shim.api.app")
    asked = asyncio.Event()

    async def huge(*_: object) -> AsyncIterator[bytes]:
        asked.set()
        yield bytes(64 * 1024 * 1024)

    monkeypatch.setattr("shim.api.app.read_segments", huge)
    await client.put_task("t1", request(), fence=FENCE)
    answer = await session.get(f"{BASE_URL}/v1/tasks/t1/logs")
    await asked.wait()
    answer.close()
    async with asyncio.timeout(LONG):
        while "the reader has gone away" not in caplog.text and "failed" not in caplog.text:
            await client.health(fence=FENCE)
    assert "Traceback" not in caplog.text


async def test_images_are_pulled_ahead_by_request_and_shown_by_the_node(
    client: ShimClient, node: Node
) -> None:
    node.host.registry["team/tool:1"] = (ImageInfo(id="sha256:tool"), "s3cret")
    auth = RegistryAuth(username="anna", password="s3cret")
    wanted = WantedImage(image="team/tool:1", registry_auth=auth)
    await client.put_images(WantedImages(images=(wanted,)), fence=FENCE)
    async with asyncio.timeout(LONG), aclosing(client.events()) as events:
        async for _ in events:
            (listed,) = (await client.node()).images_ahead or ()
            if listed.state is ImageState.HERE:
                break
    assert listed.image == "team/tool:1"
    files = [path for path in node.settings.data.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"s3cret" in path.read_bytes()]


async def test_a_shim_whose_user_data_does_not_say_so_leaves_the_host_key_alone(
    client: ShimClient,
) -> None:
    for call in (client.prepare_host_key(), client.use_host_key("ssh-ed25519 AAAA")):
        with pytest.raises(ShimError) as caught:
            await call
        assert caught.value.code == "not_found"


async def test_a_list_of_images_needs_a_fence_and_a_right_body(
    client: ShimClient, session: aiohttp.ClientSession
) -> None:
    url = f"{BASE_URL}/v1/node/images"
    async with session.put(url, json={"images": []}) as answer:
        assert (answer.status, (await answer.json())["error"]["field"]) == (400, "Fairlead-Fence")
    headers = {"Fairlead-Fence": FENCE.header()}
    for body in ({}, {"images": [{"image": 3}]}, {"images": [{"image": ""}]}):
        async with session.put(url, json=body, headers=headers) as answer:
            assert answer.status == 400, body
    await client.put_images(WantedImages(images=()), fence=Fence(1, 2))
    with pytest.raises(ShimError) as caught:
        await client.put_images(WantedImages(images=()), fence=FENCE)
    assert (caught.value.code, (await client.node()).images_ahead) == ("fenced", ())
