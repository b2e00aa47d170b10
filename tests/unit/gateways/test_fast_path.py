"""The fast path in front of a HAProxy that a test plays: who has it, and what keeps it safe."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import pytest

from common.links.node_links import raw_socket
from common.proxy.outliers import MAX_FAILURES, Outliers
from common.proxy.reported import ReportedTraffic
from common.proxy.view import Replica
from common.streams import PortStream, StreamReader, StreamWriter
from fairlead.wire.gateway import (
    Certificate,
    GatewayNode,
    GatewayRateLimit,
    GatewayReplica,
    GatewayService,
    Snapshot,
)
from gateway import fast_path
from gateway.fast_path import FastPath
from gateway.fast_plan import FastService, fast_services
from gateway.fast_sockets import LogSocket
from gateway.haproxy import (
    DIRECT,
    NEW_REQUESTS,
    SERVERS,
    SLOTS,
    Haproxy,
    Limits,
    Paths,
    Ports,
    configuration,
)
from gateway.served import SnapshotServices
from gateway.ssh_forwards import SshForwards
from tests.support.waiting import eventually

NODE = GatewayNode(id="n", host="h", host_key="k", local=True)
WAY = "http|api.apps.test"


OTHERS = (("agent", "agent"), ("caddy", "caddy"), ("s0", "agent"))
"""Servers that are no replicas."""


class PlayedHaproxy:
    """Its runtime API: servers with states and counts, and one map of ways."""

    def __init__(self, paths: Paths) -> None:
        self._places = paths
        self._lives = 0
        self.begin()

    def begin(self) -> None:
        self._lives += 1
        self.states = {(slot, one): "MAINT" for slot in SLOTS for one in (*SERVERS, *DIRECT)}
        self.states |= dict.fromkeys(OTHERS, "UP")
        self.most: dict[tuple[str, str], int] = {}
        """The most requests that a server gets at once."""
        self.counts: dict[tuple[str, str], tuple[int, int, int]] = {}
        self.retries: dict[tuple[str, str], tuple[int, int]] = {}
        self.led: dict[tuple[str, str], tuple[str, str]] = {}
        """Where direct servers lead."""
        self.names: dict[str, str] = {}
        self.ways: dict[str, str] = {}
        self.guarded: dict[str, str] = {}
        self.doors: set[str] = set()
        self.limits: dict[str, str] = {}

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_unix_server(self._serve, self._places.admin)
        try:
            yield
        finally:
            server.close()
            self._places.admin.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = self._answer((await reader.readline()).decode().split())
        writer.write(f"{said}\n\n".encode())
        writer.close()

    def _answer(self, words: list[str]) -> str:
        match words:
            case ["show", "stat", *_]:
                rows = [
                    ",".join((*key, state, *map(str, (*self._counts(key), 0, 0))))
                    for key, state in self.states.items()
                ]
                head = "# pxname,svname,status,scur,stot,hrsp_5xx,wretr,wredis,econ,eresp,srv_icur"
                return "\n".join((head, *(f"{row},0" for row in rows)))
            case ["show", "info"]:
                return f"Name: HAProxy\nPid: {self._lives}\n"
            case ["set", "server", where, "state", state]:
                slot, _, name = where.partition("/")
                self.states[(slot, name)] = {"ready": "UP"}.get(state, state.upper())
            case ["set", "maxconn", "server", where, number]:
                slot, _, name = where.partition("/")
                self.most[(slot, name)] = int(number)
            case ["set", "server", where, "addr", address, "port", port]:
                slot, _, name = where.partition("/")
                self.led[(slot, name)] = (address, port)
                return "IP changed from '127.0.0.1'"
            case ["del", "map", where, key] if where == str(self._places.names):
                return "" if self.names.pop(key, None) else "Key not found."
            case ["clear", "map", where]:
                self._map(where).clear()
            case ["set", "table", "doors", "key", key, "data.gpc0", "1"]:
                self.doors.add(key)
            case ["clear", "table", "doors"]:
                self.doors.clear()
            case ["clear", "table", "doors", "key", key]:
                self.doors.discard(key)
            case ["del", "map", where, key] if where != str(self._places.limits):
                del self._map(where)[key]
            case ["add", "map", where, key, value]:
                self._map(where)[key] = value
        return ""

    def _counts(self, key: tuple[str, str]) -> tuple[int, ...]:
        return (*self.counts.get(key, (0, 0, 0)), *self.retries.get(key, (0, 0)))

    def _map(self, path: str) -> dict[str, str]:
        paths = self._places
        maps = {paths.slots: self.ways, paths.guarded: self.guarded, paths.limits: self.limits}
        maps[paths.names] = self.names
        return maps[Path(path)]


class PlayedLinks:
    """All replicas are on this machine."""

    def __init__(self) -> None:
        self.has_raw_sockets = True
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()
        self.answers.set()

    def node(self, replica: Replica) -> GatewayNode:
        return NODE

    async def has_raw_socket(self, replica: Replica) -> bool:
        self.asked.set()
        return self.has_raw_sockets

    async def connect(self, replica: Replica) -> PortStream:
        await self.answers.wait()
        reader, writer = await asyncio.open_unix_connection(raw_socket(replica.socket))
        return PortStream(cast(StreamReader, reader), cast(StreamWriter, writer), b"")


class Bed:
    def __init__(self, folder: Path) -> None:
        self.paths = Paths.of(folder, folder / "agent.sock", folder, folder)
        self.paths.servers.mkdir()
        self.haproxy = PlayedHaproxy(self.paths)
        self.links = PlayedLinks()
        self.emptied: list[str] = []
        loop = asyncio.get_running_loop()
        self.traffic = ReportedTraffic(loop.time, lambda id: None)
        self.time = 0.0
        self._folder = folder

    def replica(self, id: str) -> Replica:
        socket = str(self._folder / f"{id}.sock")
        return Replica(id=id, group="main", node_id="n", socket=socket, port=0)

    def service(self, *ids: str, is_guarded: bool = False) -> dict[str, FastService]:
        replicas = tuple(self.replica(id) for id in ids)
        one = FastService(run_id="r", ways=(WAY,), replicas=replicas, is_guarded=is_guarded)
        return {"r": one}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FastPath]:
        def forwards(lost: Callable[[str], None]) -> SshForwards:
            return SshForwards(self.paths.servers, self._folder / "key", lost)

        made = FastPath(
            Haproxy(self.paths),
            forwards,
            self.links,
            self.traffic,
            self.emptied.append,
            self.paths.server,
            Outliers(lambda: self.time),
        )
        running = asyncio.create_task(made.run())
        try:
            yield made
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            # What is still in flight there would be waited for.
            self.haproxy.counts.clear()
            await made.close(5.0)

    def server_of(self, id: str) -> tuple[str, str]:
        """The slot and server whose socket leads to the replica."""
        (found,) = (
            path
            for path in self.paths.servers.iterdir()
            if path.is_symlink() and path.readlink().stem == id
        )
        slot, _, name = found.name.partition("-")
        return slot, name

    def state_of(self, id: str) -> str:
        return self.haproxy.states[self.server_of(id)]

    def are_up(self, *ids: str) -> bool:
        led = {path.readlink().stem for path in self.paths.servers.iterdir()}
        return led >= set(ids) and all(self.state_of(id) == "UP" for id in ids)


@pytest.fixture
async def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    """It is looked at often, so that no test waits for the next look."""
    monkeypatch.setattr(fast_path, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(fast_path, "AGAIN_SECONDS", 0.1)
    made = Bed(tmp_path)
    async with made.haproxy.serving():
        yield made


async def update(path: FastPath, wanted: dict[str, FastService]) -> None:
    await path.update(wanted, Limits(most_body=1 << 30))


async def test_the_way_of_a_service_opens_with_its_first_server(bed: Bed) -> None:
    async with bed.running() as path:
        await update(path, bed.service("a", "b"))
        await eventually(lambda: bed.haproxy.ways)
        slot = bed.haproxy.ways[WAY]
        await eventually(lambda: bed.are_up("a", "b"))
        assert {bed.server_of("a")[0], bed.server_of("b")[0]} == {slot}


async def test_a_replica_gets_so_many_new_requests_and_more_once_it_has_them(bed: Bed) -> None:
    async with bed.running() as path:
        await update(path, bed.service("a"))
        await eventually(lambda: bed.are_up("a"))
        key = bed.server_of("a")
        assert bed.haproxy.most[key] == NEW_REQUESTS
        for has in (NEW_REQUESTS, 2 * NEW_REQUESTS, 2 * NEW_REQUESTS + 1, 5):
            bed.haproxy.counts[key] = (has, has, 0)
            wanted = {key: NEW_REQUESTS * (has // NEW_REQUESTS + 1)}
            await eventually(partial(wanted.__eq__, bed.haproxy.most))
        await update(path, {})


async def test_a_replica_that_only_fails_gets_no_requests_for_some_time(bed: Bed) -> None:
    wanted = bed.service("a", "b")
    wanted = {"r": msgspec.structs.replace(wanted["r"], eject_for=60.0)}
    async with bed.running() as path:
        await update(path, wanted)
        await eventually(lambda: bed.are_up("a", "b"))
        slot, name = bed.server_of("a")
        path.heard([f"{slot} {name} 30 -- 500".encode()] * (MAX_FAILURES - 1))
        path.heard([f"{slot} {name} 30 -- 404".encode()])
        path.heard([f"{slot} {name} 30 -- 500".encode()] * (MAX_FAILURES - 1))
        path.heard([f"{slot} {name} 30 CD 500".encode()])
        await eventually(lambda: bed.state_of("a") == "MAINT")
        assert bed.state_of("b") == "UP"
        bed.time += 60.0
        await eventually(lambda: bed.state_of("a") == "UP")


async def test_a_service_that_is_not_wanted_loses_its_way_before_the_update_returns(
    bed: Bed,
) -> None:
    async with bed.running() as path:
        await update(path, bed.service("a"))
        await eventually(lambda: bed.haproxy.ways)
        await update(path, {})
        assert bed.haproxy.ways == {}


async def test_a_replica_that_drains_gets_no_request_and_counts_until_its_last_one_ended(
    bed: Bed,
) -> None:
    async with bed.running() as path:
        await update(path, bed.service("a", "b"))
        await eventually(lambda: bed.are_up("a", "b"))
        key = bed.server_of("a")
        bed.haproxy.counts[key] = (1, 7, 0)
        await update(path, bed.service("b"))
        assert bed.state_of("a") == "DRAIN"
        assert path.in_flight() == {"a": 1}
        assert bed.emptied == []
        bed.haproxy.counts[key] = (0, 7, 0)
        await eventually(lambda: bed.emptied)
        assert set(bed.emptied) == {"a"}
        assert path.in_flight() == {}
        await eventually(lambda: bed.haproxy.states[key] == "MAINT")


async def test_a_replica_that_is_wanted_again_while_it_drains_gets_requests(bed: Bed) -> None:
    async with bed.running() as path:
        await update(path, bed.service("a", "b"))
        await eventually(lambda: bed.are_up("a", "b"))
        key = bed.server_of("a")
        bed.haproxy.counts[key] = (1, 7, 0)
        await update(path, bed.service("b"))
        assert bed.haproxy.states[key] == "DRAIN"
        await update(path, bed.service("a", "b"))
        assert bed.haproxy.states[key] == "UP"
        await eventually(lambda: path.in_flight() == {"a": 1})
        assert bed.server_of("a") == key


async def test_other_limits_leave_the_servers_as_they_are(bed: Bed) -> None:
    async with bed.running() as path:
        await update(path, bed.service("a"))
        await eventually(lambda: bed.are_up("a") and bed.haproxy.ways)
        known = bed.server_of("a")
        await path.update(bed.service("a"), Limits(seconds=60.0, most_body=7))
        assert bed.haproxy.limits == {"timeout": "60000", "most_body": "7", "challenges": "0"}
        assert (bed.server_of("a"), bed.state_of("a")) == (known, "UP")
        assert bed.haproxy.ways


async def test_a_fast_path_that_closes_takes_nothing_more(bed: Bed) -> None:
    async with bed.running() as path:
        await update(path, bed.service("a"))
        await eventually(lambda: bed.are_up("a") and bed.haproxy.ways)
        bed.haproxy.counts[bed.server_of("a")] = (1, 7, 0)
        closing = asyncio.create_task(path.close(30.0))
        await eventually(lambda: not bed.haproxy.ways)
        await update(path, bed.service("a", "b"))
        path.changed(bed.service("a", "b"))
        bed.haproxy.counts.clear()
        await closing
        replicas = {key: state for key, state in bed.haproxy.states.items() if key not in OTHERS}
        assert set(replicas.values()) == {"MAINT"}
        assert bed.haproxy.ways == {}


async def test_requests_past_the_agent_are_counted(bed: Bed) -> None:
    async with bed.running() as path:
        await update(path, bed.service("a"))
        await eventually(lambda: bed.haproxy.ways)
        slot, name = bed.server_of("a")
        path.heard([f"{slot} {name} 30 --".encode(), b"agent agent 5 --", b"nonsense"])
        bed.haproxy.counts[(slot, name)] = (3, 10, 2)
        await eventually(lambda: path.in_flight() == {"a": 3})
        (counted,) = bed.traffic.take()
        bed.haproxy.counts.clear()
        assert (counted.requests, counted.errors, counted.in_flight) == (10, 2, 3)
        assert sum(count for _, count in counted.latencies) == 1


async def test_a_replica_that_failed_gets_no_request_until_it_answers(bed: Bed) -> None:
    async with bed.running() as path:
        server = await asyncio.start_unix_server(
            lambda reader, writer: writer.close(), raw_socket(bed.replica("a").socket)
        )
        await update(path, bed.service("a"))
        await eventually(lambda: bed.haproxy.ways)
        bed.links.answers.clear()
        slot, name = bed.server_of("a")
        path.heard([f"{slot} {name} 0 SH".encode()])
        await eventually(lambda: bed.state_of("a") == "MAINT")
        await eventually(lambda: bed.haproxy.ways == {})
        bed.links.answers.set()
        await eventually(lambda: bed.state_of("a") == "UP" and bed.haproxy.ways)
        assert path.in_flight() == {}
        server.close()


async def test_without_a_raw_socket_on_its_node_a_service_has_no_fast_path(bed: Bed) -> None:
    bed.links.has_raw_sockets = False
    async with bed.running() as path:
        await update(path, bed.service("a"))
        await bed.links.asked.wait()
        await update(path, bed.service("a"))
        assert bed.haproxy.ways == {}


async def test_what_an_earlier_agent_left_is_taken_out_of_traffic(bed: Bed) -> None:
    bed.haproxy.ways["http|old.apps.test"] = "s3"
    bed.haproxy.states[("s3", "r0")] = "UP"
    async with bed.running() as path:
        await update(path, {})
        assert bed.haproxy.ways == {}
        assert bed.haproxy.states[("s3", "r0")] == "MAINT"
        assert {bed.haproxy.states[one] for one in OTHERS} == {"UP"}


async def test_a_haproxy_that_was_started_again_is_set_anew(bed: Bed) -> None:
    async with bed.running() as path:
        await update(path, bed.service("a"))
        await eventually(lambda: bed.haproxy.ways)
        bed.haproxy.begin()
        await eventually(lambda: bed.haproxy.ways)
        assert bed.state_of("a") == "UP"


async def test_a_token_that_was_let_in_opens_a_door_until_it_is_revoked(bed: Bed) -> None:
    async with bed.running() as path:
        await update(path, bed.service("a", is_guarded=True))
        await eventually(lambda: bed.haproxy.guarded)
        slot = bed.haproxy.guarded[WAY]
        assert bed.haproxy.ways == {}
        path.admitted("r", "abc")
        path.admitted("another", "abc")
        await eventually(lambda: bed.haproxy.doors == {f"{slot}.abc"})
        path.admitted("r", "def")
        path.revoked("def")
        path.revoked("abc")
        await eventually(lambda: bed.haproxy.doors == set())


async def test_a_service_that_asks_for_tokens_now_is_open_to_nobody_when_the_update_returns(
    bed: Bed,
) -> None:
    async with bed.running() as path:
        await update(path, bed.service("a"))
        await eventually(lambda: bed.haproxy.ways)
        bed.haproxy.doors.add("s0.of-another-service")
        await update(path, bed.service("a", is_guarded=True))
        assert bed.haproxy.ways == {}
        await eventually(lambda: bed.haproxy.guarded)
        assert bed.haproxy.doors == set()
        await update(path, bed.service("a"))
        assert bed.haproxy.guarded == {}


async def test_doors_of_an_earlier_agent_are_closed(bed: Bed) -> None:
    bed.haproxy.guarded["http|old.apps.test"] = "s3"
    bed.haproxy.doors.add("s3.abc")
    async with bed.running() as path:
        await update(path, {})
        assert (bed.haproxy.guarded, bed.haproxy.doors) == ({}, set())


async def test_limits_outlast_a_haproxy_that_has_no_server(bed: Bed) -> None:
    async with bed.running() as path:
        await path.update({}, Limits(most_body=7, has_challenges=True))
        known = dict(bed.haproxy.limits)
        assert known["challenges"] == "1"
        bed.haproxy.begin()
        await eventually(lambda: bed.haproxy.limits == known)


async def test_without_haproxy_nothing_is_in_flight_there(tmp_path: Path) -> None:
    bed = Bed(tmp_path)
    async with bed.running() as path:
        async with bed.haproxy.serving():
            await update(path, bed.service("a"))
            await eventually(lambda: bed.haproxy.ways)
            bed.haproxy.counts[bed.server_of("a")] = (2, 2, 0)
            await eventually(lambda: path.in_flight() == {"a": 2})
        await update(path, {})
        assert path.in_flight() == {}


async def test_the_log_socket_passes_lines_on(tmp_path: Path) -> None:
    heard: list[bytes] = []
    made = LogSocket(tmp_path / "log", heard.extend)

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for number in range(3):
            sender.sendto(b"s0 r0 %d --" % number, str(tmp_path / "log"))
    await eventually(lambda: len(heard) == 3)
    made.close()
    assert heard[-1] == b"s0 r0 2 --"


# -- which services ---------------------------------------------------------------------------


def told(**fields: object) -> GatewayService:
    replica = GatewayReplica(id="a", group="main", node_id="n", socket="/a.sock")
    given = {"run_id": "r", "name": "api", "owner": "o", "host": "api.apps.test", "auth": False}
    return GatewayService(**{**given, "replicas": (replica,), **fields})  # type: ignore[arg-type]


def fast(service: GatewayService, kind: str = "none") -> dict[str, FastService]:
    snapshot = Snapshot(
        version=1,
        gateway="g",
        domain="apps.test",
        certificate=Certificate(kind=kind),
        services=(service,),
    )
    services = SnapshotServices(lambda run_id: None)
    services.update(snapshot, lambda replicas: replicas)
    return fast_services(snapshot, services.find)


def ways(service: GatewayService, kind: str = "none") -> list[str]:
    return [way for one in fast(service, kind).values() for way in one.ways]


def test_a_service_with_tokens_is_guarded() -> None:
    for auth in (True, False):
        (found,) = fast(told(auth=auth)).values()
        assert found.is_guarded is auth


def test_a_public_service_is_fast_at_the_schemes_that_it_serves() -> None:
    assert ways(told()) == ["http|api.apps.test"]
    assert ways(told(), "internal") == ["https|api.apps.test"]
    assert ways(told(https="off"), "internal") == ["https|api.apps.test", "http|api.apps.test"]


@pytest.mark.parametrize(
    "fields",
    [
        {"rate_limits": (GatewayRateLimit(rps=1.0),)},
        {"headers": (("X-A", "b"),)},
        {"replicas": ()},
    ],
)
def test_a_service_that_needs_a_decision_is_not(fields: dict[str, object]) -> None:
    assert ways(told(**fields)) == []


def test_haproxy_keeps_back_what_the_agent_must_see(tmp_path: Path) -> None:
    text = configuration(Paths.of(tmp_path, tmp_path / "agent.sock", tmp_path, tmp_path))
    for condition in (
        "fl[a-z]?_[0-9a-f]{64}",
        "req.hdr(cookie) -m sub -i fairlead-",
        "upgrade",
        "text/event-stream",
    ):
        assert condition in text
    assert text.count("backup") == len(SLOTS)
    assert text.count(" disabled\n") == len(SLOTS) * len((*SERVERS, *DIRECT))


def test_haproxy_listens_at_each_address_and_passes_challenges_to_caddy(tmp_path: Path) -> None:
    paths = Paths.of(tmp_path, tmp_path / "agent.sock", tmp_path, tmp_path)
    ports = Ports(http=8, https=9, challenges=7)
    text = configuration(paths, ports=ports, addresses=("*", "[::]"))
    tls = f"ssl strict-sni alpn h2,http/1.1 crt-list {tmp_path}/certificates/shown.list"
    binds = [line.strip() for line in text.splitlines() if line.startswith("    bind ")]
    assert binds == [
        "bind *:8",
        f"bind *:9 {tls}",
        "bind [::]:8 v6only",
        f"bind [::]:9 v6only {tls}",
    ]
    assert "server caddy 127.0.0.1:7" in text
