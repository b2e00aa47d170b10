"""Probes of replicas, with what each failure says."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from controller.proxy import probes
from controller.proxy.probes import Probe, Prober, ProbeResult
from controller.proxy.replicas import Replicas
from tests.doubles.clock import NOW, ManualClock
from tests.doubles.proxy import NodeHere
from tests.support.ssh_daemon import free_port
from tests.unit.proxy.bed import a_server, an_app, echo, replica, says

SOON = 10.0


@pytest.fixture
async def replicas() -> AsyncIterator[Replicas]:
    made = Replicas(NodeHere().connect)
    yield made
    made.close()


async def result(replicas: Replicas, port: int, probe: Probe) -> ProbeResult:
    return await probes.run(replicas, ManualClock(), replica(port), probe)


async def test_without_a_url_the_port_must_accept_a_connection(replicas: Replicas) -> None:
    async with an_app(echo) as port:
        found = await result(replicas, port, Probe())
    assert (found.ok, found.at, found.status, found.message) == (True, NOW, None, None)
    gone = free_port()
    found = await result(replicas, gone, Probe())
    assert (found.ok, found.message) == (False, f"nothing listens on port {gone}")


async def test_a_probe_sends_what_it_says_and_wants_a_2xx(replicas: Replicas) -> None:
    seen: list[tuple[str, str, str, bytes]] = []

    async def check(request: web.Request) -> web.Response:
        asked = (request.method, request.path_qs, request.headers["X-A"], await request.read())
        seen.append(asked)
        return web.Response(status=204 if len(seen) == 1 else 503)

    probe = Probe(url="/ready?deep=1", method="POST", headers=(("X-A", "b"),), body="{}")
    async with an_app(check) as port:
        first, second = [await result(replicas, port, probe) for _ in range(2)]
    assert seen == [("POST", "/ready?deep=1", "b", b"{}")] * 2
    assert (first.ok, first.status) == (True, 204)
    assert (second.ok, second.status) == (False, 503)
    assert second.message == "POST /ready?deep=1 was answered with status 503"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "the replica closed the connection"),
        (b"hello\r\n\r\n", "the replica answered with bytes that are not HTTP/1.1"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
            "the replica closed the connection",
        ),
    ],
)
async def test_a_wrong_answer_fails_with_a_sentence(
    replicas: Replicas, answer: bytes, message: str
) -> None:
    async with a_server(says(answer)) as port:
        found = await result(replicas, port, Probe(url="/"))
    assert (found.ok, found.message) == (False, message)


async def test_a_replica_that_hangs_fails_after_the_timeout(replicas: Replicas) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with a_server(hang) as port:
        found = await result(replicas, port, Probe(url="/", timeout=0.1))
    assert (found.ok, found.message) == (False, "no answer within 0.1 s")
    assert found.seconds >= 0.1


class Heard:
    """Notes the results."""

    def __init__(self) -> None:
        self.results: list[tuple[str, int, bool]] = []
        self.news = asyncio.Event()

    def probed(self, replica_id: str, probe: int, result: ProbeResult) -> None:
        self.results.append((replica_id, probe, result.ok))
        self.news.set()

    async def wait(self, many: int) -> None:
        async with asyncio.timeout(SOON):
            while len(self.results) < many:
                self.news.clear()
                await self.news.wait()


async def test_probes_run_again_and_again_until_they_are_not_wanted(replicas: Replicas) -> None:
    heard = Heard()
    prober = Prober(replicas, ManualClock(), heard)
    async with an_app(echo) as port:
        quick, slow = Probe(interval=0.001), Probe(url="/", interval=60.0)
        prober.probe([(replica(port), (quick, slow))])
        await heard.wait(4)
        assert [one for one in heard.results if one[1] == 1] == [(f"at-{port}", 1, True)]
        prober.probe([(replica(port), (None, slow))])
        before = list(heard.results)
        prober.probe([(replica(port), (None, slow))])
        prober.probe([])
        assert heard.results == before
        await prober.close()
