"""A follower's links to the leader: who may open them, and when one is used again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from common.proxy.headers import CLIENT
from common.proxy.upstream import ReplicaConnection
from controller.forwarding.credentials import link_tls
from controller.forwarding.follower_links import (
    LINK_PATH,
    PROTOCOL,
)
from controller.relay import Leader
from tests.support.waiting import eventually
from tests.unit.forwarding.passing import ALeader, Bed, at


async def test_a_link_without_the_key_of_the_installation_carries_nothing(
    bed: Bed, tmp_path: Path
) -> None:
    leader = await bed.leader()
    wrong = link_tls(b"another secret", tmp_path).follower
    for context in (wrong, _without_certificate()):
        reader, writer = await asyncio.open_connection("127.0.0.1", at(leader).port)
        asked = f"GET {LINK_PATH} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
        writer.write(f"{asked}Upgrade: {PROTOCOL}\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        # The leader notices what is wrong after the client's own handshake has ended (TLS 1.3).
        with contextlib.suppress(OSError):
            await writer.start_tls(context)
            writer.write(b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            assert await reader.read() == b""
        writer.transport.abort()
    assert leader.writes == 0


async def test_a_follower_that_left_before_its_link_was_opened_is_no_error(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leader = await bed.leader()
    asked = asyncio.Event()

    async def find_it_gone(*_: object) -> None:
        asked.set()
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    monkeypatch.setattr(web.StreamResponse, "prepare", find_it_gone)
    reader, writer = await asyncio.open_connection("127.0.0.1", at(leader).port)
    head = f"GET {LINK_PATH} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
    writer.write(f"{head}Upgrade: {PROTOCOL}\r\n\r\n".encode())
    await asked.wait()
    assert await reader.read() == b""
    writer.close()
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []


def _without_certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def test_connections_to_a_leader_with_another_key_are_carried_by_bytes(
    bed: Bed, tmp_path: Path
) -> None:
    bed.lead_to(await bed.leader(tls=link_tls(b"another secret", tmp_path)))
    async with bed.session.get(bed.url + "/seen", headers={CLIENT: "https 10.9.9.9"}) as answer:
        seen = await answer.json()
    assert (seen["remote"], seen["scheme"]) == ("127.0.0.1", "http")


async def test_connections_to_a_leader_of_an_earlier_version_are_carried_by_bytes(
    bed: Bed,
) -> None:
    old = ALeader(None)
    await bed.serve(old)
    bed.lead_to(old)
    async with bed.session.get(bed.url + "/seen") as answer:
        assert (await answer.json())["by"] == "one"


async def test_connections_to_the_leader_are_used_again(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await bed.leader()
    bed.lead_to(leader)
    opened = 0
    own = bed.follower._links._open

    async def counted(to: Leader, over: asyncio.Event) -> ReplicaConnection:
        nonlocal opened
        opened += 1
        return await own(to, over)

    monkeypatch.setattr(bed.follower._links, "_open", counted)
    for _ in range(5):
        async with bed.session.get(bed.url + "/seen") as answer:
            await answer.read()
    # The first one asks whether the leader opens links at all.
    assert opened == 2


async def test_a_connection_whose_client_left_while_its_request_was_sent_is_not_used_again(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that is paused reads nothing, so that sending takes until it goes on."""
    leader = await bed.leader()
    bed.lead_to(leader)
    async with bed.session.get(bed.url + "/seen") as answer:
        await answer.read()
    has_sent, send = asyncio.Event(), ReplicaConnection.send

    async def stuck(connection: ReplicaConnection, data: bytes) -> None:
        await send(connection, data)
        has_sent.set()
        await asyncio.get_running_loop().create_future()

    with monkeypatch.context() as patched:
        patched.setattr(ReplicaConnection, "send", stuck)
        leaving = asyncio.create_task(bed.session.get(bed.url + "/wait"))
        await has_sent.wait()
        leaving.cancel()
        await eventually(lambda: not bed.follower.forwarder._hang_ups.in_flight)
    # The next one on it would get the answer that comes when the leader goes on.
    term = bed.follower._links._term
    assert term is not None
    assert not term.kept
