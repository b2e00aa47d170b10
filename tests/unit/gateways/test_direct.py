"""Replicas that HAProxy reaches without SSH: when, and what follows when that fails."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from common import pinned_certificates
from common.proxy.outliers import Outliers
from common.proxy.reported import ReportedTraffic
from common.proxy.view import Replica
from fairlead.wire.gateway import DirectAnswer, DirectQuestion, GatewayNode
from gateway import direct, fast_path
from gateway.direct import DirectWays, prepare
from gateway.fast_path import FastPath
from gateway.fast_plan import FastService
from gateway.haproxy import DIRECT, DirectPlace, Haproxy, Limits, Paths
from gateway.ssh_forwards import SshForwards
from tests.support.waiting import eventually
from tests.unit.gateways.test_fast_path import PlayedHaproxy, PlayedLinks

NODE = GatewayNode(id="n", host="127.0.0.1", host_key="k")
PLACE = DirectPlace(address="10.0.0.9", port=8443, name="a.b.fairlead.internal")


class FarLinks(PlayedLinks):
    """All replicas are on another machine."""

    def node(self, replica: Replica) -> GatewayNode:
        return NODE


class PlayedForwards(SshForwards):
    """Forwards that lead nowhere: only their sockets' names are seen."""

    def __init__(self) -> None:
        self.open_to: dict[str, Path] = {}

    async def open(self, node: GatewayNode, remote: str, local: Path) -> None:
        self.open_to[Path(remote).stem] = local

    async def close_one(self, node_id: str, remote: str, local: Path) -> None:
        self.open_to.pop(Path(remote).stem, None)

    async def keep_nodes(self, node_ids: set[str]) -> None: ...

    async def end_leftovers(self) -> None: ...

    async def close(self) -> None: ...


class PlayedWays(DirectWays):
    """`offers`: the nodes have a direct way."""

    def __init__(self, paths: Paths) -> None:
        async def unasked(*_: object) -> None:
            raise AssertionError("`find` decides here")

        super().__init__(paths, unasked, unasked)
        self.offers = True

    async def find(self, replica: Replica, node: GatewayNode) -> DirectPlace | None:
        return PLACE if self.offers else None


class Bed:
    def __init__(self, folder: Path) -> None:
        self.paths = Paths.of(folder, folder / "agent.sock", folder, folder)
        self.paths.servers.mkdir()
        self.haproxy = PlayedHaproxy(self.paths)
        self.ways = PlayedWays(self.paths)
        self.forwards = PlayedForwards()
        self.links = FarLinks()
        self._folder = folder

    def service(self, *ids: str) -> dict[str, FastService]:
        replicas = tuple(
            Replica(id=id, group="main", node_id="n", socket=f"/x/{id}.sock", port=0) for id in ids
        )
        return {"r": FastService(run_id="r", ways=("http|api.apps.test",), replicas=replicas)}

    @contextlib.asynccontextmanager
    async def running(self, *ids: str) -> AsyncIterator[FastPath]:
        loop = asyncio.get_running_loop()
        made = FastPath(
            Haproxy(self.paths),
            lambda lost: self.forwards,
            self.links,
            ReportedTraffic(loop.time, lambda id: None),
            lambda id: None,
            self.paths.server,
            Outliers(lambda: 0.0),
            self.ways,
        )
        running = asyncio.create_task(made.run())
        try:
            await made.update(self.service(*ids), Limits())
            yield made
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            self.haproxy.counts.clear()
            await made.close(5.0)

    def up(self) -> set[str]:
        """The servers that get requests."""
        replicas = {key: one for key, one in self.haproxy.states.items() if key[1][0] in "rd"}
        return {name for (_, name), state in replicas.items() if state == "UP"}


@pytest.fixture
async def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    monkeypatch.setattr(fast_path, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(fast_path, "AGAIN_SECONDS", 0.05)
    made = Bed(tmp_path)
    async with made.haproxy.serving():
        yield made


def is_direct(bed: Bed) -> bool:
    return bool(bed.up()) and bed.up() <= set(DIRECT)


async def test_a_replica_is_reached_directly_where_its_node_offers_it(bed: Bed) -> None:
    async with bed.running("a"):
        await eventually(lambda: is_direct(bed) and bed.haproxy.ways)
        (name,) = bed.up()
        slot = bed.haproxy.ways["http|api.apps.test"]
        assert bed.haproxy.led == {(slot, name): ("10.0.0.9", "8443")}
        assert bed.haproxy.names == {f"{slot}-{name}": PLACE.name}
        assert bed.forwards.open_to == {}


async def test_a_replica_without_a_direct_way_is_reached_by_ssh(bed: Bed) -> None:
    bed.ways.offers = False
    async with bed.running("a"):
        await eventually(bed.up)
        assert bed.up() == {"r0"}
        assert set(bed.forwards.open_to) == {"a"}


@pytest.mark.parametrize("retries", [(1, 0), (0, 1)])
async def test_a_direct_way_that_fails_is_left_for_ssh_and_no_request_goes_there(
    bed: Bed, retries: tuple[int, int]
) -> None:
    async with bed.running("a") as path:
        await eventually(lambda: is_direct(bed) and bed.haproxy.ways)
        slot = bed.haproxy.ways["http|api.apps.test"]
        (name,) = bed.up()
        bed.haproxy.counts[(slot, name)] = (1, 7, 0)
        bed.haproxy.retries[(slot, name)] = retries
        await eventually(lambda: bed.up() == {"r0"})
        assert bed.haproxy.states[(slot, name)] == "MAINT"
        # Its last request is still known, though another server has the replica.
        assert path.in_flight() == {"a": 1}
        bed.haproxy.counts[(slot, name)] = (0, 7, 0)
        await eventually(lambda: path.in_flight() == {})


async def test_a_replica_comes_back_to_the_direct_way_and_loses_no_request(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "AGAIN_SECONDS", 0.1)
    bed.ways.offers = False
    async with bed.running("a") as path:
        await eventually(lambda: bed.up() == {"r0"} and bed.haproxy.ways)
        slot = bed.haproxy.ways["http|api.apps.test"]
        bed.haproxy.counts[(slot, "r0")] = (1, 1, 0)
        bed.ways.offers = True
        await eventually(lambda: is_direct(bed))
        assert bed.haproxy.states[(slot, "r0")] == "DRAIN"
        assert bed.haproxy.ways == {"http|api.apps.test": slot}
        await eventually(lambda: path.in_flight() == {"a": 1})
        bed.haproxy.counts[(slot, "r0")] = (0, 1, 0)
        await eventually(lambda: bed.haproxy.states[(slot, "r0")] == "MAINT")
        await eventually(lambda: bed.forwards.open_to == {})


async def test_more_replicas_than_direct_servers_are_reached_by_ssh(bed: Bed) -> None:
    ids = [f"a{number}" for number in range(len(DIRECT) + 2)]
    async with bed.running(*ids):
        await eventually(lambda: len(bed.up()) == len(ids))
        assert bed.up() == {*DIRECT, "r0", "r1"}


async def test_a_haproxy_that_starts_again_gets_its_direct_servers_again(bed: Bed) -> None:
    async with bed.running("a"):
        await eventually(lambda: is_direct(bed))
        bed.haproxy.begin()
        await eventually(lambda: is_direct(bed))
        assert bed.haproxy.led


async def test_a_direct_server_that_haproxy_refuses_is_left_for_ssh(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, refused = bed.haproxy._answer, []

    def refuse(words: list[str]) -> str:
        if "addr" in words:
            refused.append(words)
            return "No such server."
        return answer(words)

    monkeypatch.setattr(bed.haproxy, "_answer", refuse)
    async with bed.running("a"):
        await eventually(lambda: bed.up() == {"r0"})
        assert len(refused) == 1


# -- what a node answers ----------------------------------------------------------------------


class Node:
    """A node's HAProxy that a test plays: it speaks TLS, and closes or waits."""

    def __init__(self) -> None:
        self.identity = pinned_certificates.make()
        self.certificate = pinned_certificates.certificate_of(self.identity)
        self.name = f"0a.{pinned_certificates.check(self.certificate)}"
        self.answer: DirectAnswer | None = None
        self.trusted = ""
        self.asked: list[DirectQuestion] = []

    async def ask(self, replica: Replica, question: DirectQuestion) -> DirectAnswer | None:
        self.asked.append(question)
        return self.answer

    async def trust(self, certificates: str) -> None:
        self.trusted = certificates


REPLICA = Replica(id="a", group="main", node_id="n", socket="/x/a.sock", port=0)


@contextlib.asynccontextmanager
async def listening(node: Node, folder: Path, *, closes: bool) -> AsyncIterator[int]:
    file = folder / "node.pem"
    file.write_text(node.identity)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            if not closes:
                await reader.read()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]
    # asyncio's own task outlasts a handshake that the client broke off.
    handshakes = (one for one in asyncio.all_tasks() if "_accept_connection2" in repr(one))
    await asyncio.gather(*handshakes, return_exceptions=True)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths.of(tmp_path, tmp_path / "agent.sock", tmp_path, tmp_path / "data")
    prepare(made)
    return made


@pytest.mark.parametrize("closes", [False, True])
async def test_a_way_that_the_node_closes_is_none(
    paths: Paths, tmp_path: Path, *, closes: bool
) -> None:
    node = Node()
    ways = DirectWays(paths, node.ask, node.trust)
    async with listening(node, tmp_path, closes=closes) as port:
        node.answer = DirectAnswer(port=port, name=node.name, certificate=node.certificate)
        found = await ways.find(REPLICA, NODE)
    expected = DirectPlace(address="127.0.0.1", port=port, name=node.name)
    assert found == (None if closes else expected)
    own = pinned_certificates.certificate_of(paths.identity.read_text())
    assert node.asked == [DirectQuestion(certificate=own)]
    assert node.trusted == ("" if closes else own + node.certificate)
    assert paths.nodes.read_text() == (node.trusted or own)


async def test_a_node_that_shows_another_certificate_than_it_told_is_not_trusted(
    paths: Paths, tmp_path: Path
) -> None:
    told, shown = Node(), Node()
    ways = DirectWays(paths, told.ask, told.trust)
    async with listening(shown, tmp_path, closes=False) as port:
        told.answer = DirectAnswer(port=port, name=told.name, certificate=told.certificate)
        assert await ways.find(REPLICA, NODE) is None
    assert told.trusted == ""


@pytest.mark.parametrize(
    "change",
    [
        {"why": "none"},
        {"name": "0a.other.fairlead.internal"},
        {"name": "x y"},
        {"name": "0a;show info"},
        {"port": 0},
        {"port": 65536},
        {"certificate": "x"},
    ],
)
async def test_what_a_node_answers_is_checked_before_haproxy_hears_it(
    paths: Paths, change: dict[str, object]
) -> None:
    node = Node()
    ways = DirectWays(paths, node.ask, node.trust)
    fair = DirectAnswer(port=1, name=node.name, certificate=node.certificate)
    node.answer = msgspec.structs.replace(fair, **change)
    assert await ways.find(REPLICA, NODE) is None
    assert node.trusted == ""


async def test_a_node_of_before_has_no_direct_way(paths: Paths) -> None:
    node = Node()
    assert await DirectWays(paths, node.ask, node.trust).find(REPLICA, NODE) is None


def test_preparing_again_keeps_the_gateways_key(paths: Paths) -> None:
    before = paths.identity.read_text()
    prepare(paths)
    assert paths.identity.read_text() == before
    assert paths.identity.stat().st_mode & 0o777 == 0o600


def test_preparing_makes_files_that_are_empty(paths: Paths) -> None:
    paths.identity.write_text("")
    paths.nodes.write_text("")
    prepare(paths)
    assert paths.nodes.read_text() == pinned_certificates.certificate_of(paths.identity.read_text())


async def test_haproxy_is_told_of_no_more_nodes_than_it_can_hear(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node()
    ways = DirectWays(paths, node.ask, node.trust)
    own = pinned_certificates.certificate_of(paths.identity.read_text())
    monkeypatch.setattr(direct, "MAX_TRUSTED", len(own) + len(node.certificate))
    async with listening(node, tmp_path, closes=False) as port:
        node.answer = DirectAnswer(port=port, name=node.name, certificate=node.certificate)
        other = msgspec.structs.replace(NODE, id="m")
        assert await ways.find(REPLICA, NODE)
        assert await ways.find(REPLICA, other) is None
        assert node.trusted == own + node.certificate
        ways.keep([], ["m"])
        assert await ways.find(REPLICA, other)
