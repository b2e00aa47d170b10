"""Ports of jobs from Python, through the real API and a real runner."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
import websockets.version
from aiohttp.test_utils import TestServer

from controller.links.base import NodeConnection
from fairlead import AsyncClient, Client, PortTaken, Run, Task, UsageError, forward
from tests.unit.api.conftest import ADMIN_TOKEN, Controller
from tests.unit.cli.conftest import PlayedNode
from tests.unit.cli.test_ports import ConnectedNode, digesting, talk
from tests.unit.runner.harness import a_runner


@pytest.fixture
async def run(
    controller: Controller, node: PlayedNode, client: Client, tmp_path: Path
) -> AsyncIterator[Run]:
    """A run whose job runs."""
    async with a_runner(tmp_path) as (_, runner):
        controller.connections["n1"] = cast(NodeConnection, ConnectedNode(runner))
        task = Task(name="served", commands=["serve"])
        made = await asyncio.to_thread(client.submit, task)
        await node.runs("served")
        yield made


async def test_a_local_port_leads_to_the_job_until_it_is_closed(run: Run) -> None:
    async with digesting() as port:
        local = await asyncio.to_thread(run.forward, port, job=0)
        assert local.address == f"127.0.0.1:{local.port}"
        assert len(await talk(local.port, b"hello")) == 32_000
        await asyncio.to_thread(local.close)
    with pytest.raises(ConnectionRefusedError):
        await talk(local.port, b"anybody?")


async def test_a_connection_that_is_open_ends_with_its_port(run: Run) -> None:
    begun = asyncio.Event()
    async with digesting(begun) as port:
        local = await asyncio.to_thread(run.forward, port)
        reader, writer = await asyncio.open_connection("127.0.0.1", local.port)
        writer.write(b"not all of it")
        await begun.wait()
        await asyncio.to_thread(local.close)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        with pytest.raises(ConnectionResetError):
            await writer.wait_closed()


async def test_a_program_with_an_event_loop_forwards_ports_too(
    run: Run, server: TestServer
) -> None:
    async with digesting() as port, AsyncClient(str(server.make_url("")), ADMIN_TOKEN) as client:
        found = await client.run("served")
        async with found.forward(port) as local:
            assert len(await talk(local.port, b"hello")) == 32_000
        with pytest.raises(ConnectionRefusedError):
            await talk(local.port, b"anybody?")


async def test_a_local_port_that_is_taken_is_an_error_that_names_it(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=f"cannot listen on 127.0.0.1:{number} "):
            await asyncio.to_thread(run.forward, 80, local=number)


async def test_what_is_no_port_is_refused(run: Run) -> None:
    for port, local in ((0, 0), (65536, 0), (80, -1)):
        with pytest.raises(UsageError, match="give a port from 1 to 65535"):
            run.forward(port, local=local)


@pytest.mark.parametrize(("version", "options"), [("14.2", {}), ("15.0", {"proxy": None})])
def test_each_version_of_websockets_gets_the_options_that_it_knows(
    version: str, options: dict[str, None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websockets.version, "version", version)
    assert forward._without_proxy() == options
