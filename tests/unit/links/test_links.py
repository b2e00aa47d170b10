"""Both links against a real server: whatever goes wrong below is an error that callers expect."""

from __future__ import annotations

import asyncio
import contextlib
import io
from pathlib import Path

import pytest
from msgspec import structs

from common.links import host_keys
from common.links.errors import HostKeyRefused, LinkError
from common.links.ssh import KEEPALIVE_SECONDS
from controller.lifecycle.model import NodeAddress
from controller.links.clients import SshLink
from runner.client import RunnerUnavailable
from shim.client import ShimUnavailable
from tests.support.leaks import keepers
from tests.support.testbed import ProxyFactory
from tests.support.waiting import eventually
from tests.unit.links.linked import http_over_ssh, linked, ssh_linked
from tests.unit.links.sshd import (
    CLIENT_KEY,
    DOWNLOAD_MIB,
    HEALTH,
    HOST_KEYS,
    MIB,
    STRANGER_KEY,
    listening,
    sshd,
)
from tests.unit.runner.harness import a_runner

LINKS = pytest.mark.parametrize("kind", ["ssh", "local"])


@LINKS
async def test_the_shim_is_asked_through_the_link(kind: str) -> None:
    async with linked(kind) as (connection, _):
        assert await connection.shim.health() == HEALTH


@LINKS
async def test_events_arrive_one_by_one_while_the_stream_stays_open(kind: str) -> None:
    async with linked(kind) as (connection, sockets):
        async with contextlib.aclosing(connection.shim.events()) as events:
            seen = [(await anext(events)).cursor, (await anext(events)).cursor]
        assert seen == ["e.1", "e.2"]
        assert sockets.asked.is_set()


@LINKS
async def test_binary_websocket_messages_of_megabytes_arrive_whole(kind: str) -> None:
    async with linked(kind) as (connection, sockets):
        runner = connection.runner(sockets.runner_path)
        received = [piece async for piece in runner.follow_logs(0)]
    assert received == [bytes([number]) * (4 * MIB) for number in range(3)]


@LINKS
async def test_who_follows_a_quiet_log_keeps_nothing_of_what_came(kind: str) -> None:
    async with linked(kind) as (connection, sockets):
        pieces = connection.runner(sockets.runner_path).follow_logs(7)
        assert await keepers(pieces, [await anext(pieces) for _ in range(3)]) == 0


@LINKS
async def test_a_runner_that_was_forgotten_is_connected_to_anew(kind: str) -> None:
    async with linked(kind) as (connection, sockets):
        first = connection.runner(sockets.runner_path)
        await connection.forget_runner(sockets.runner_path)
        assert connection.runner(sockets.runner_path) is not first
        with pytest.raises(RunnerUnavailable, match="closed"):
            await first.health()


@LINKS
async def test_a_port_of_a_job_is_spoken_to_through_the_link(kind: str, tmp_path: Path) -> None:
    async def reverse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read())[::-1])
        writer.close()

    job = await asyncio.start_server(reverse, "127.0.0.1", 0)
    async with job, a_runner(tmp_path), linked(kind) as (connection, _):
        runner = connection.runner(str(tmp_path / "runner.sock"))
        stream = await runner.connect_port(job.sockets[0].getsockname()[1])
        stream.writer.write(b"abc" * MIB)
        stream.writer.write_eof()
        answer = stream.first
        while data := await stream.reader.read(MIB):
            answer += data
        stream.writer.close()
    assert answer == b"cba" * MIB


@LINKS
async def test_a_port_behind_a_socket_that_is_not_there_is_unavailable(
    kind: str, tmp_path: Path
) -> None:
    async with linked(kind) as (connection, _):
        with pytest.raises(RunnerUnavailable):
            await connection.runner(str(tmp_path / "runner.sock")).connect_port(80)


async def test_a_port_whose_ssh_connection_is_lost_does_not_look_ended(tmp_path: Path) -> None:
    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    job = await asyncio.start_server(wait, "127.0.0.1", 0)
    async with (
        job,
        a_runner(tmp_path),
        listening() as sockets,
        sshd() as server,
        ssh_linked(sockets, server) as connection,
    ):
        runner = connection.runner(str(tmp_path / "runner.sock"))
        stream = await runner.connect_port(job.sockets[0].getsockname()[1])
        for accepted in server.connections:
            accepted.abort()
        with pytest.raises(ConnectionResetError):
            await stream.reader.read(1)
        stream.writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await stream.writer.drain()


async def test_a_posted_body_of_megabytes_comes_back_equal() -> None:
    body = bytes(range(256)) * (16 * MIB // 256)
    async with http_over_ssh() as (session, _, _server):
        response = await session.post("/echo", data=io.BytesIO(body))
        assert await response.read() == body


async def test_many_mebibytes_are_downloaded_whole() -> None:
    wrong, total = 0, 0
    async with http_over_ssh() as (session, _, _server), session.get("/download") as response:
        async for chunk in response.content.iter_chunked(MIB):
            for at in (0, len(chunk) - 1):
                wrong += chunk[at] != (total + at) // MIB
            total += len(chunk)
    assert (total, wrong) == (DOWNLOAD_MIB * MIB, 0)


async def test_many_requests_at_once_share_one_ssh_connection() -> None:
    async with listening() as sockets, sshd() as server, ssh_linked(sockets, server) as connection:
        answers = await asyncio.gather(*(connection.shim.health() for _ in range(64)))
        assert answers == [HEALTH] * 64
        assert len(server.connections) == 1


async def test_a_slow_reader_makes_the_node_wait_and_not_our_memory_grow() -> None:
    async with http_over_ssh() as (session, sockets, _), session.get("/flood") as response:
        await response.content.readany()
        counts: list[int] = []

        def stands_still() -> bool:
            counts.append(sockets.flooded)
            return len(counts) > 30 and counts[-30] == counts[-1]

        await eventually(stands_still)
        assert sockets.flooded < 16 * MIB
        before = sockets.flooded
        while sockets.flooded == before:
            await response.content.readany()
        assert sockets.flooded > before


@pytest.mark.parametrize("kind", sorted(HOST_KEYS))
async def test_host_keys_of_all_usual_kinds_can_be_pinned(kind: str) -> None:
    key = HOST_KEYS[kind]
    async with listening() as sockets, sshd(key) as server, ssh_linked(sockets, server) as node:
        assert await node.shim.health() == HEALTH


async def test_a_cut_while_a_request_is_in_flight_is_an_unavailable_shim() -> None:
    async with listening() as sockets, sshd() as server, ssh_linked(sockets, server) as connection:
        asking = asyncio.create_task(connection.shim.node())
        await sockets.asked.wait()
        server.cut()
        with pytest.raises(ShimUnavailable):
            await asking
        await connection.wait_closed()


async def test_a_cut_while_events_are_followed_is_an_unavailable_shim() -> None:
    async with listening() as sockets, sshd() as server, ssh_linked(sockets, server) as connection:
        events = connection.shim.events()
        await anext(events)
        await anext(events)
        server.cut()
        with pytest.raises(ShimUnavailable):
            await anext(events)


async def test_a_cut_while_a_log_is_followed_is_an_unavailable_runner() -> None:
    async with listening() as sockets, sshd() as server, ssh_linked(sockets, server) as connection:
        pieces = connection.runner(sockets.runner_path).follow_logs(7)
        received = [len(await anext(pieces)) for _ in range(3)]
        await sockets.asked.wait()
        server.cut()
        with pytest.raises(RunnerUnavailable):
            await anext(pieces)
        assert received == [4 * MIB] * 3


async def test_a_connection_on_which_no_answer_comes_any_more_is_closed_at_once(
    cuttable_proxy: ProxyFactory,
) -> None:
    async with listening() as sockets, sshd() as server:
        network = cuttable_proxy(server.port)
        address = structs.replace(server.address(sockets.path), port=network.port)
        connection = await SshLink(address, CLIENT_KEY).connect()
        await connection.shim.health()
        network.stall()
        async with asyncio.timeout(KEEPALIVE_SECONDS):
            await connection.close()


async def test_asking_after_the_cut_is_an_unavailable_shim() -> None:
    async with listening() as sockets, sshd() as server, ssh_linked(sockets, server) as connection:
        server.cut()
        await connection.wait_closed()
        with pytest.raises(ShimUnavailable):
            await connection.shim.health()


@LINKS
async def test_asking_a_closed_connection_is_an_unavailable_shim(kind: str) -> None:
    async with linked(kind) as (connection, sockets):
        await connection.close()
        await connection.wait_closed()
        with pytest.raises(ShimUnavailable, match="closed"):
            await connection.shim.health()
        with pytest.raises(LinkError, match="closed"):
            connection.runner(sockets.runner_path)


@LINKS
async def test_a_socket_on_which_nobody_listens_is_an_unavailable_runner(kind: str) -> None:
    async with linked(kind) as (connection, sockets):
        with pytest.raises(RunnerUnavailable):
            await connection.runner(sockets.runner_path + ".missing").health()
        assert await connection.shim.health() == HEALTH


@pytest.mark.parametrize("presented", sorted(HOST_KEYS))
async def test_a_wrong_host_key_is_refused_with_both_fingerprints(presented: str) -> None:
    pinned = STRANGER_KEY
    async with sshd(HOST_KEYS[presented]) as server:
        with pytest.raises(HostKeyRefused) as refused:
            await SshLink(server.address("/shim.sock", pinned), CLIENT_KEY).connect()
        shown = await host_keys.fetch("127.0.0.1", server.port)
        (found,) = shown
    text = str(refused.value)
    assert pinned.get_fingerprint() in text
    assert HOST_KEYS[presented].get_fingerprint() in text
    assert host_keys.fingerprint(found) == HOST_KEYS[presented].get_fingerprint()


async def test_each_key_of_a_server_with_several_is_fetched() -> None:
    async with sshd(*HOST_KEYS.values()) as server:
        found = await host_keys.fetch("127.0.0.1", server.port)
    assert found == tuple(
        host_keys.public_line(HOST_KEYS[kind]) for kind in ("ed25519", "ecdsa", "rsa")
    )


@pytest.mark.parametrize("kind", sorted(HOST_KEYS))
async def test_only_the_algorithm_of_the_pinned_key_is_negotiated(kind: str) -> None:
    """The server has a key of each type, and would show another one first."""
    others = [key for name, key in HOST_KEYS.items() if name != kind]
    async with listening() as sockets, sshd(*others, HOST_KEYS[kind]) as server:
        address = server.address(sockets.path, HOST_KEYS[kind])
        connection = await SshLink(address, CLIENT_KEY).connect()
        shown = connection.ssh.get_server_host_key()
        await connection.close()
    assert shown == HOST_KEYS[kind].convert_to_public()


async def test_a_server_without_a_key_of_the_pinned_type_is_told_with_the_keys_it_has() -> None:
    async with sshd(HOST_KEYS["rsa"], HOST_KEYS["ecdsa"]) as server:
        with pytest.raises(HostKeyRefused) as refused:
            await SshLink(server.address("/s", HOST_KEYS["ed25519"]), CLIENT_KEY).connect()
    text = str(refused.value)
    for kind, name in (("ed25519", "ED25519"), ("ecdsa", "ECDSA"), ("rsa", "RSA")):
        assert f"{HOST_KEYS[kind].get_fingerprint()} ({name})" in text
    assert "no host key of the pinned type" in text
    assert "node set NODE --accept-host-key" in text
    assert "another machine" not in text


async def test_a_key_that_the_node_does_not_know_is_a_link_error_with_a_hint() -> None:
    async with sshd() as server:
        with pytest.raises(LinkError, match="fairlead node key") as refused:
            await SshLink(server.address("/shim.sock"), STRANGER_KEY).connect()
    assert not isinstance(refused.value, HostKeyRefused)


async def test_a_host_that_refuses_connections_is_a_link_error_that_names_it() -> None:
    async with sshd() as server:
        address = server.address("/shim.sock")
    with pytest.raises(LinkError, match=f"fairlead@127.0.0.1:{address.port}"):
        await SshLink(address, CLIENT_KEY).connect()
    with pytest.raises(LinkError, match=f"127.0.0.1:{address.port}"):
        await host_keys.fetch("127.0.0.1", address.port)


def test_an_ssh_link_without_a_pinned_key_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="pinned"):
        SshLink(NodeAddress(shim_socket="/shim.sock", host="node"), CLIENT_KEY)


async def test_every_byte_from_the_node_is_heard_whoever_asked_for_it() -> None:
    async with linked("ssh") as (connection, sockets):
        assert connection.heard_at() == float("-inf")
        await connection.shim.health()
        first = connection.heard_at()
        assert first > 0
        pieces = [
            len(piece) async for piece in connection.runner(sockets.runner_path).follow_logs(0)
        ]
        assert pieces
        assert connection.heard_at() > first
