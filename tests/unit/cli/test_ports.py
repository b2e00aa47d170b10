"""`port-forward`, through the real API and a real runner, to servers of this machine's loopback."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from controller.api.app import make_app
from controller.links.base import NodeConnection
from fairlead.configuration.values.container import port_mapping
from runner.client import RunnerClient
from tests.support.ssh_daemon import free_port
from tests.support.waiting import LONG
from tests.unit.api.conftest import USER_TOKEN, Controller
from tests.unit.cli.conftest import Command, Fairlead, PlayedNode
from tests.unit.runner.harness import a_runner

DEADLINE = LONG


class ConnectedNode:
    """Has one runner, and that is a real one."""

    def __init__(self, client: RunnerClient) -> None:
        self._client = client

    def runner(self, socket_path: str) -> RunnerClient:
        return self._client


@pytest.fixture
async def running(
    controller: Controller, node: PlayedNode, start: Fairlead, task: str, tmp_path: Path
) -> AsyncIterator[None]:
    """A run named hello whose job runs."""
    async with a_runner(tmp_path) as (_, client):
        controller.connections["n1"] = cast(NodeConnection, ConnectedNode(client))
        assert (await (await start("apply", "-d", "-f", task)).ended()).status == 0
        await node.runs("hello")
        yield


@contextlib.asynccontextmanager
async def digesting(begun: asyncio.Event | None = None) -> AsyncIterator[int]:
    """A server that answers, after the end of what it is sent, with the digest of that. `begun` is
    set with its first connection; it ends after its connections."""
    serving: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        digest = hashlib.sha256()
        while data := await reader.read(1 << 18):
            digest.update(data)
        writer.write(digest.digest() * 1000)
        writer.close()
        # The peer of a connection that was cut does not take the answer.
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.create_task(serve(reader, writer)))
        if begun is not None:
            begun.set()

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
    async with asyncio.timeout(DEADLINE):
        await asyncio.gather(*serving)


async def local_port(command: Command) -> int:
    await command.hears("leads to port")
    found = re.search(r"127\.0\.0\.1:(\d+) leads", command.said)
    assert found is not None
    return int(found[1])


async def talk(port: int, said: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(DEADLINE):
        writer.write(said)
        await writer.drain()
        writer.write_eof()
        answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.usefixtures("running")
async def test_several_connections_at_once_each_with_its_own_end(start: Fairlead) -> None:
    texts = [bytes([number]) * (number << 18) for number in range(8)]
    async with digesting() as port:
        command = await start("port-forward", "hello", f"{port}:0")
        local = await local_port(command)
        answers = await asyncio.gather(*(talk(local, text) for text in texts))
        command.interrupt()
        ended = await command.ended()
    assert answers == [hashlib.sha256(text).digest() * 1000 for text in texts]
    assert ended.status == 130


@pytest.mark.usefixtures("running")
async def test_a_port_that_nobody_listens_on_is_told_and_the_connection_reset(
    start: Fairlead,
) -> None:
    port = free_port()
    command = await start("port-forward", "hello", f"{port}:0")
    local = await local_port(command)
    with pytest.raises(ConnectionResetError):
        await talk(local, b"anybody?")
    await command.hears(f"nothing listens on port {port} of the job")
    command.interrupt()
    await command.ended()


@pytest.mark.usefixtures("running")
async def test_a_connection_made_while_the_controller_is_away_waits_for_it(
    start: Fairlead, controller: Controller, server: TestServer
) -> None:
    controllers = server.port
    async with digesting() as port:
        command = await start("port-forward", "hello", f"{port}:0")
        local = await local_port(command)
        await server.close()
        talking = [asyncio.create_task(talk(local, text)) for text in (b"one", b"two")]
        await command.hears("trying again")
        again = TestServer(make_app(controller.service), port=controllers)
        await again.start_server()
        answers = await asyncio.gather(*talking)
        command.interrupt()
        ended = await command.ended()
        await again.close()
    assert answers == [hashlib.sha256(text).digest() * 1000 for text in (b"one", b"two")]
    assert ended.err.count("trying again") == 1


async def test_a_job_that_does_not_run_yet_is_told(start: Fairlead, task: str) -> None:
    await (await start("apply", "-d", "-f", task)).ended()
    command = await start("port-forward", "hello", "80:0")
    local = await local_port(command)
    with pytest.raises(ConnectionResetError):
        await talk(local, b"anybody?")
    await command.hears("the job of hello does not run (submitted)")
    command.interrupt()
    await command.ended()


@pytest.mark.parametrize("ports", [[], ["x"], ["0"], ["80:"], ["70000"], ["80:1:2"]])
async def test_an_argument_that_is_no_port_is_a_usage_error(
    start: Fairlead, ports: list[str]
) -> None:
    ended = await (await start("port-forward", "hello", *ports)).ended()
    assert ended.status == 2


async def test_a_run_that_is_not_there_is_an_error_at_once(start: Fairlead) -> None:
    ended = await (await start("port-forward", "nobody", "80")).ended()
    assert (ended.status, "there is no run 'nobody'" in ended.err) == (1, True)


async def test_a_run_that_has_ended_is_an_error_at_once(start: Fairlead, task: str) -> None:
    await (await start("apply", "-d", "-f", task)).ended()
    await (await start("stop", "hello", "--abort")).ended()
    ended = await (await start("port-forward", "hello", "80:0")).ended()
    assert (ended.status, "hello has ended (terminated)" in ended.err) == (1, True)


@pytest.mark.usefixtures("running")
async def test_a_local_port_in_use_is_named(start: Fairlead) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        local = taken.getsockname()[1]
        ended = await (await start("port-forward", "hello", f"80:{local}")).ended()
    assert ended.status == 1
    assert f"cannot listen on 127.0.0.1:{local} (" in ended.err
    assert "give another port as 80:LOCAL" in ended.err


@pytest.mark.usefixtures("running")
class TestApi:
    async def test_another_users_run_is_closed(self, server: TestServer) -> None:
        headers = {"Authorization": f"Bearer {USER_TOKEN}"}
        url = server.make_url("/v1/runs/hello/ports/80")
        async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as answer:
            assert answer.status == 404

    @pytest.mark.parametrize("port", ["0", "65536", "x", "1e3"])
    async def test_a_path_without_a_port_is_refused(
        self, server: TestServer, environment: dict[str, str], port: str
    ) -> None:
        headers = {"Authorization": f"Bearer {environment['FAIRLEAD_TOKEN']}"}
        url = server.make_url(f"/v1/runs/hello/ports/{port}")
        async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as answer:
            error = (await answer.json())["error"]
        assert (answer.status, error["field"]) == (400, "port")

    async def test_a_user_who_vanishes_ends_the_jobs_side(
        self, server: TestServer, environment: dict[str, str]
    ) -> None:
        ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ended.set_result(await reader.read())
            writer.close()

        headers = {"Authorization": f"Bearer {environment['FAIRLEAD_TOKEN']}"}
        job = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = job.sockets[0].getsockname()[1]
        async with job, aiohttp.ClientSession(headers=headers) as session:
            stream = await session.ws_connect(server.make_url(f"/v1/runs/hello/ports/{port}"))
            await stream.send_bytes(b"last words")
            await stream.close()
            assert await asyncio.wait_for(ended, DEADLINE) == b"last words"


@contextlib.asynccontextmanager
async def attached(
    start: Fairlead, controller: Controller, node: PlayedNode, folder: Path, *ports: str
) -> AsyncIterator[Command]:
    """`fairlead attach` to a run that has these ports and runs."""
    file = folder / "ports.yml"
    file.write_text(f"type: task\nname: served\ncommands: [serve]\nports: [{', '.join(ports)}]\n")
    async with a_runner(folder) as (_, client):
        controller.connections["n1"] = cast(NodeConnection, ConnectedNode(client))
        assert (await (await start("apply", "-d", "-f", str(file))).ended()).status == 0
        await node.runs("served")
        yield await start("attach", "served")


async def test_attach_leads_local_ports_to_those_of_the_configuration_until_it_is_left(
    start: Fairlead, controller: Controller, node: PlayedNode, tmp_path: Path
) -> None:
    async with digesting() as port:
        mapping = f'"*:{port}"'
        async with attached(start, controller, node, tmp_path, mapping) as command:
            local = await local_port(command)
            assert await talk(local, b"hello") == hashlib.sha256(b"hello").digest() * 1000
            command.interrupt()
            ended = await command.ended()
    assert ended.status == 130
    assert "served goes on (`fairlead attach served`" in ended.err
    assert (await controller.service.runs.lookup.get("served")).run.status == "running"


async def test_a_local_port_that_is_taken_gets_another_and_this_is_said(
    start: Fairlead, controller: Controller, node: PlayedNode, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        mapping = f'"{number}:8000"'
        async with attached(start, controller, node, tmp_path, mapping) as command:
            local = await local_port(command)
            command.interrupt()
            ended = await command.ended()
    assert local != number
    assert f"127.0.0.1:{number} (Address already in use); using another port" in ended.err


async def test_attach_ends_with_the_run_and_its_exit_status(
    start: Fairlead, controller: Controller, node: PlayedNode, tmp_path: Path
) -> None:
    async with attached(start, controller, node, tmp_path, '"*:8000"') as command:
        await local_port(command)
        await node.prints("served", b"last words\n")
        await node.ends("served", 5)
        ended = await command.ended()
    assert (ended.status, ended.out) == (5, b"last words\n")


async def test_attach_refuses_a_job_that_is_not_there(
    start: Fairlead, controller: Controller, node: PlayedNode, tmp_path: Path
) -> None:
    async with attached(start, controller, node, tmp_path, '"*:8000"') as command:
        await local_port(command)
        command.interrupt()
        await command.ended()
        other = await (await start("attach", "served", "--job", "9")).ended()
    assert other.status == 2
    assert "served has no job '9': give one of main/0" in other.err


@pytest.mark.parametrize(
    ("written", "forward"),
    [
        (8080, (8080, 8080)),
        ("8080", (8080, 8080)),
        ("80:8000", (8000, 80)),
        ("*:8000", (8000, 0)),
    ],
)
def test_ports_are_written_as_dstack_writes_them(written: object, forward: tuple[int, int]) -> None:
    found = port_mapping(written)
    assert (found.port, found.local) == forward


@pytest.mark.parametrize("written", [0, 70000, "80:", "a:80", True, 1.5, "80:0", "1:2:3"])
def test_what_is_no_port_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r"is not a port|out of range"):
        port_mapping(written)
