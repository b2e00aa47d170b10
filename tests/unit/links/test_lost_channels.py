"""A connection that ends between two steps of a channel: asyncssh asserts that it still has one.
Our callers expect connection errors, and nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import asyncssh
import pytest

from common.links.ssh_http import SshUnixConnector
from controller.links.clients import SshConnection
from runner.client import RunnerUnavailable
from shim.client import ShimUnavailable
from tests.support.waiting import eventually
from tests.unit.links.linked import ssh_linked
from tests.unit.links.sshd import listening, sshd

ANSWERS = 40
"""So many that it takes several rounds of the loop until all are told that they are lost."""


@pytest.fixture
def closing(monkeypatch: pytest.MonkeyPatch) -> Callable[[SshConnection], None]:
    """Closes a connection in the turn in which its next channel is confirmed: asyncssh puts the
    connection away before the task that opens the channel wakes."""
    chosen: list[SshConnection] = []
    confirm = asyncssh.SSHUNIXChannel.process_open_confirmation

    def close_and_confirm(channel: Any, *args: Any) -> None:
        for connection in chosen:
            connection.ssh.abort()
        confirm(channel, *args)

    monkeypatch.setattr(asyncssh.SSHUNIXChannel, "process_open_confirmation", close_and_confirm)
    return chosen.append


async def test_a_connection_closed_while_a_channel_opens_is_an_unavailable_shim(
    closing: Callable[[SshConnection], None],
) -> None:
    async with listening() as sockets, sshd() as server, ssh_linked(sockets, server) as connection:
        closing(connection)
        with pytest.raises(ShimUnavailable):
            await connection.shim.health()


async def test_a_connection_closed_while_a_stream_opens_is_an_unavailable_runner(
    closing: Callable[[SshConnection], None],
) -> None:
    async with listening() as sockets, sshd() as server, ssh_linked(sockets, server) as connection:
        closing(connection)
        with pytest.raises(RunnerUnavailable):
            await connection.runner(sockets.runner_path).connect_port(80)


@pytest.fixture
def ended_channels(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], int]]:
    """How many channels have received the end of their data, read or not."""
    caplog.set_level(logging.DEBUG, "asyncssh")
    asyncssh.set_debug_level(2)
    yield lambda: caplog.text.count("Received EOF")
    asyncssh.set_debug_level(1)


async def test_answers_that_are_read_on_after_their_connection_is_lost_tell_its_loss(
    ended_channels: Callable[[], int],
) -> None:
    """All of each answer was received, its end too, but aiohttp had stopped reading; it hears of
    the loss only after others did, and reads on before."""
    async with listening() as sockets, sshd() as server, ssh_linked(sockets, server) as connection:
        connector = SshUnixConnector(connection.ssh, sockets.path)
        async with aiohttp.ClientSession("http://node", connector=connector) as session:
            answers = [await session.get("/page") for _ in range(ANSWERS)]
            await eventually(lambda: ended_channels() == ANSWERS)
            server.cut()
            await connection.wait_closed()
            ends = await asyncio.gather(
                *(answer.read() for answer in answers), return_exceptions=True
            )
    assert [type(end) for end in ends] == [aiohttp.ClientPayloadError] * ANSWERS
