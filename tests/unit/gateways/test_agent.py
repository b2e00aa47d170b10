"""The agent over its sockets, with a replica on this machine and a controller that a test plays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from common.links.host_keys import public_line
from common.proxy.view import Replica
from common.tokens import digest
from fairlead.wire.gateway import (
    LINK_PATH,
    Answer,
    Applied,
    Certificate,
    Claim,
    Claimed,
    Counts,
    FromAgent,
    FromController,
    GatewayNode,
    GatewayReplica,
    GatewayService,
    Hello,
    InFlight,
    Question,
    Reached,
    Snapshot,
)
from gateway import link, reach
from gateway.agent import Agent
from gateway.state import AgentState
from tests.support.gateway_here import options_in, served
from tests.support.waiting import LONG

DEADLINE = LONG
_decode = msgspec.json.Decoder(FromAgent)


class PlayedReplica:
    """A node's exposed socket with an app behind it; a request waits while `gate` is shut."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.first_line = b"ok\n"
        self.gate = asyncio.Event()
        self.gate.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            writer.write(self.first_line)
            while b"\r\n\r\n" in (head := await _head(reader)):
                await self.gate.wait()
                path = head.split()[1]
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(path) + path)


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


class Machine:
    """The gateway's folder, which outlives its agent."""

    def __init__(self, folder: Path) -> None:
        self.options = options_in(folder)
        self.state = AgentState(self.options.data)

    @contextlib.asynccontextmanager
    async def agent(self) -> AsyncIterator[Agent]:
        agent = Agent(self.options, self.state, await asyncio.to_thread(self.state.identity))
        known = await asyncio.to_thread(self.state.snapshot)
        if known is not None:
            agent.begin(known, is_known=True)
            await agent.take(known)
        async with served(agent, self.options):
            try:
                yield agent
            finally:
                await agent.close()

    async def ask(self, path: str, host: str = "web.apps.test", **headers: str) -> tuple[int, str]:
        """As HAProxy passes it on, which had it by TLS."""
        sent = {"Host": host, "X-Forwarded-Proto": "https", **headers}
        connector = aiohttp.UnixConnector(str(self.options.traffic))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"http://x{path}", headers=sent, allow_redirects=False) as answer,
        ):
            return answer.status, answer.headers.get("Location") or await answer.text()


class PlayedLink:
    """The controller's end of the link."""

    def __init__(self, websocket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        self._websocket = websocket

    async def send(self, message: FromController) -> None:
        await self._websocket.send_str(msgspec.json.encode(message).decode())

    async def hear(self, kind: type[Any]) -> Any:
        """Return the next message of this kind."""
        async with asyncio.timeout(DEADLINE):
            while True:
                message = _decode.decode(await self._websocket.receive_str())
                if isinstance(message, kind):
                    return message


@contextlib.asynccontextmanager
async def linked(machine: Machine) -> AsyncIterator[PlayedLink]:
    connector = aiohttp.UnixConnector(str(machine.options.socket))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.ws_connect(f"http://x{LINK_PATH}") as websocket,
    ):
        yield PlayedLink(websocket)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[PlayedReplica]:
    played = PlayedReplica(tmp_path / "exposed.sock")
    server = await asyncio.start_unix_server(played.serve, played.path)
    yield played
    server.close()


def a_snapshot(replica: PlayedReplica, version: int = 1, **changes: Any) -> Snapshot:
    service = GatewayService(
        run_id="r",
        name="web",
        owner="ada",
        host="web.apps.test",
        auth=False,
        replicas=(GatewayReplica(id="a1", group="main", node_id="n1", socket=str(replica.path)),),
    )
    return Snapshot(
        version=version,
        controller="c1",
        gateway="main",
        domain="apps.test",
        certificate=Certificate(kind="internal"),
        nodes=(GatewayNode(id="n1", host="", host_key="", local=True),),
        services=(msgspec.structs.replace(service, **changes),),
    )


async def test_a_snapshot_is_served_once_it_is_on_disk_and_after_a_restart_too(
    machine: Machine, replica: PlayedReplica
) -> None:
    async with machine.agent(), linked(machine) as link:
        hello = await link.hear(Hello)
        assert (hello.key, hello.serves) == (public_line(machine.state.identity()), None)
        assert (await machine.ask("/"))[0] == 503
        await link.send(a_snapshot(replica))
        applied = await link.hear(Applied)
        assert (applied.version, "Caddy does not answer" in applied.error) == (1, True)
        assert await machine.ask("/a?b") == (200, "/a?b")
    async with machine.agent(), linked(machine) as link:
        assert (await link.hear(Hello)).controller == "c1"
        assert await machine.ask("/again") == (200, "/again")


async def test_after_a_restart_a_token_waits_for_the_controller_longer_than_for_an_answer(
    machine: Machine, replica: PlayedReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "ANSWER_SECONDS", 0.2)
    async with machine.agent() as agent:
        await agent.take(a_snapshot(replica, auth=True))
        asking = asyncio.create_task(machine.ask("/a", Authorization="Bearer fl_known"))
        assert await asyncio.wait((asking,), timeout=0.6) == (set(), {asking})
        # From here the controller answers as soon as a busy machine lets it.
        monkeypatch.setattr(link, "ANSWER_SECONDS", DEADLINE)
        async with linked(machine) as controller:
            question = await controller.hear(Question)
            assert question.digest == digest("fl_known")
            await controller.send(Answer(id=question.id, allowed=True))
            assert await asking == (200, "/a")


async def test_a_controller_that_does_not_answer_or_come_is_away(
    machine: Machine, replica: PlayedReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(link, "FIRST_LINK_SECONDS", 0.1)
    async with machine.agent() as agent:
        await agent.take(a_snapshot(replica, auth=True))
        status, text = await machine.ask("/a", Authorization="Bearer fl_known")
        assert (status, "controller_away" in text) == (503, True)
        async with linked(machine) as controller:
            asking = asyncio.create_task(machine.ask("/a", Authorization="Bearer fl_known"))
            await controller.hear(Question)
            status, text = await asking
            assert (status, "controller_away" in text) == (503, True)


async def test_hosts_that_are_no_service_and_plain_http_are_told_so(
    machine: Machine, replica: PlayedReplica
) -> None:
    async with machine.agent() as agent:
        await agent.take(a_snapshot(replica))
        assert (await machine.ask("/", host="other.apps.test"))[0] == 401
        assert (await machine.ask("/", host="apps.test"))[0] == 404
        plain = await machine.ask("/a", **{"X-Forwarded-Proto": "http"})
        assert plain == (308, "https://web.apps.test/a")
        await agent.take(a_snapshot(replica, https="off"))
        assert (await machine.ask("/a", **{"X-Forwarded-Proto": "http"}))[0] == 200


async def test_requests_are_counted_and_a_draining_replica_is_left_with_its_last(
    machine: Machine, replica: PlayedReplica
) -> None:
    async with machine.agent(), linked(machine) as link:
        await link.send(a_snapshot(replica))
        await link.hear(Applied)
        replica.gate.clear()
        asking = asyncio.create_task(machine.ask("/slow"))
        while (await link.hear(InFlight)).replicas != {"a1": 1}:
            pass
        await link.send(a_snapshot(replica, 2, replicas=(), draining=("a1",)))
        await link.hear(Applied)
        replica.gate.set()
        assert (await asking)[0] == 200
        while (left := await link.hear(InFlight)).replicas:
            pass
        assert left.version == 2
        while not (groups := (await link.hear(Counts)).groups):
            pass
        assert (groups[0].run_id, groups[0].in_flight, groups[0].errors) == ("r", 0, 0)


async def test_a_host_name_is_claimed_once(machine: Machine, replica: PlayedReplica) -> None:
    async with machine.agent(), linked(machine) as link:
        await link.send(a_snapshot(replica))
        answers = []
        hosts = ("new.apps.test", "new.apps.test", "web.apps.test", "gateway.apps.test", "x.test")
        for number, host in enumerate(hosts):
            await link.send(Claim(id=number, host=host))
            claimed = await link.hear(Claimed)
            answers.append((claimed.id, claimed.error is None))
        assert answers == [(0, True), (1, False), (2, False), (3, False), (4, False)]


async def test_a_port_without_a_listener_is_a_sentence_for_the_client(
    machine: Machine, replica: PlayedReplica
) -> None:
    replica.first_line = b"nothing listens on port 80\n"
    async with machine.agent() as agent:
        await agent.take(a_snapshot(replica))
        status, text = await machine.ask("/")
        assert status == 502
        assert "nothing listens on port 80" in text


async def test_a_new_replica_gets_requests_only_once_it_was_reached(
    machine: Machine, replica: PlayedReplica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "AGAIN_SECONDS", 0.01)
    late = PlayedReplica(tmp_path / "late.sock")
    both = tuple(
        GatewayReplica(id=id, group="main", node_id="n1", socket=str(one.path))
        for id, one in (("a1", replica), ("a2", late))
    )
    async with machine.agent() as agent, linked(machine) as link:
        await link.send(a_snapshot(replica, replicas=both))
        while len(found := (await link.hear(Reached)).replicas) < 2:
            pass
        assert (found["a1"], "No such file" in found["a2"]) == ("", True)
        assert [one.id for one in _replicas(agent)] == ["a1"]
        assert {await machine.ask("/") for _ in range(5)} == {(200, "/")}
        server = await asyncio.start_unix_server(late.serve, late.path)
        while (await link.hear(Reached)).replicas != {"a1": "", "a2": ""}:
            pass
        assert [one.id for one in _replicas(agent)] == ["a1", "a2"]
        server.close()


def _replicas(agent: Agent) -> tuple[Replica, ...]:
    found = agent.services.find("web")
    return () if found is None else found.replicas
