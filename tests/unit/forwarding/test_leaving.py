"""A controller that is stopped answers what has come and ends its connections in good order."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest
from aiohttp import web

from controller.api.app import make_runner
from controller.api.http.leaving import Leaving
from controller.forwarding import follower as module
from controller.forwarding.follower_links import FollowerLinks
from controller.relay import leader_at
from tests.support.waiting import LONG, eventually
from tests.unit.forwarding.passing import Bed
from tests.unit.forwarding.watching import WatchBed

ASKED = b"GET /seen HTTP/1.1\r\nHost: x\r\n\r\n"
HEALTH = "/v1/health"


def address(bed: Bed) -> tuple[str, int]:
    host, _, port = bed.url.removeprefix("http://").partition(":")
    return host, int(port)


async def answered(reader: asyncio.StreamReader) -> bytes:
    """Return all of an answer after which the server closes the connection."""
    async with asyncio.timeout(LONG):
        return await reader.read()


async def test_connections_without_a_request_yet_and_kept_ones_are_answered(bed: Bed) -> None:
    bed.lead_to(await bed.leader())
    fresh = await asyncio.open_connection(*address(bed))
    kept = await asyncio.open_connection(*address(bed))
    kept[1].write(ASKED)
    head = await kept[0].readuntil(b"\r\n\r\n")
    assert b"connection: close" not in head.lower()
    await kept[0].readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
    bed.follower.leave()
    for reader, writer in (fresh, kept):
        writer.write(ASKED)
        last = await answered(reader)
        assert last.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in last.lower()
        writer.close()


@pytest.mark.parametrize(("path", "text"), [("/wait", "one"), ("/long", "firstsecond")])
async def test_its_end_waits_for_requests_that_have_come(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, path: str, text: str
) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", LONG)
    leader = await bed.leader()
    bed.lead_to(leader)
    asked = asyncio.create_task(read(bed, path))
    await leader.begun.wait()
    bed.follower.leave()
    ending = asyncio.create_task(bed.follower.until_answered())
    # Quiet for long enough; but for this request it would have ended.
    done, _ = await asyncio.wait((ending,), timeout=2 * module.QUIET_SECONDS)
    assert not done
    leader.goes_on.set()
    await ending
    assert await asked == (200, text)


async def test_its_end_waits_for_no_stream(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 10 * LONG)
    leader = await bed.leader()
    bed.lead_to(leader)
    async with bed.session.get(bed.url + "/log") as answer:
        assert await answer.content.read(5) == b"first"
        async with asyncio.timeout(LONG):
            await bed.follower.until_answered()
    leader.goes_on.set()


async def test_one_that_is_never_answered_holds_up_nothing(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.01)
    leader = await bed.leader()
    bed.lead_to(leader)
    asked = asyncio.create_task(read(bed, "/wait"))
    await leader.begun.wait()
    async with asyncio.timeout(LONG):
        await bed.follower.until_answered()
    leader.goes_on.set()
    assert await asked == (200, "one")


async def test_requests_that_are_held_are_told_that_nothing_was_done(bed: Bed) -> None:
    asked = asyncio.create_task(read(bed, "/seen"))
    await eventually(lambda: bed.follower.forwarder._room.held == 1)
    bed.follower.leave()
    async with asyncio.timeout(LONG):
        await bed.follower.until_answered()
        status, text = await asked
    assert (status, "leads_no_more" in text) == (503, True)


async def read(bed: Bed, path: str) -> tuple[int, str]:
    async with bed.session.get(bed.url + path) as answer:
        return answer.status, await answer.text()


async def test_connections_in_the_queue_of_the_socket_are_not_reset(bed: Bed) -> None:
    """They came before the socket was closed, and nobody had accepted them yet."""
    bed.lead_to(await bed.leader())
    clients = [socket.create_connection(address(bed)) for _ in range(100)]
    for client in clients:
        client.sendall(ASKED)
    bed.follower.leave()
    bed.relay.accept_no_more()
    bed.listening.close()
    await bed.relay.until_given_away(LONG)
    await bed.follower.until_answered()
    await bed.follower.close()
    for client in clients:
        client.settimeout(LONG)
        assert (await asyncio.to_thread(all_of, client)).startswith(b"HTTP/1.1 200 ")
        client.close()


def all_of(client: socket.socket) -> bytes:
    found = b""
    while piece := client.recv(1 << 16):
        found += piece
    return found


async def test_its_health_says_so_and_that_of_another_one_does_not(
    bed: Bed, watched: WatchBed
) -> None:
    leaving, links = Leaving(), FollowerLinks(bed.tls.leader)
    runner = make_runner(
        watched.bed.controller.service,
        shutdown_timeout=0.1,
        mounts=(links.mount,),
        first=(links.middleware,),
        leaving=leaving,
    )
    links.serve_with(runner)
    await runner.setup()
    bed.closing.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = "http://{}:{}".format(*runner.addresses[0][:2])
    bed.relay.lead_to(leader_at(url, "one"))
    assert (await read(bed, HEALTH))[0] == 200
    bed.follower.leave()
    assert (await read(bed, HEALTH))[0] == 503
    async with bed.session.get(bed.url + HEALTH, headers={"Host": "api.localhost"}) as answer:
        assert answer.status != 503, "that is a service's"
    async with aiohttp.ClientSession(url) as session:
        for status, connection in ((200, None), (503, "close")):
            async with session.get(HEALTH) as answer:
                assert answer.status == status
                assert answer.headers.get("Connection") == connection
            leaving.begin()
