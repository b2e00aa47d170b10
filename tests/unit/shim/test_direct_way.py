"""The direct way, with a HAProxy that a test plays: which ports it leads to, and for whom."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import stat
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from common import haproxy_admin, pinned_certificates
from fairlead.wire.gateway import DirectAnswer, DirectQuestion
from fairlead.wire.node import FindingLevel
from fairlead.wire.shim import GatewayKeys, TaskStatus
from shim.access import direct_way
from shim.access.direct_way import DirectWays, configuration
from shim.access.exposed_ports import ExposedPorts, ExposureRecord
from shim.daemon import disk_threads
from shim.settings import DirectAccess, GatewayAccess
from shim.state.events import EventLog
from shim.state.records import DiskRecords
from tests.support.waiting import eventually
from tests.unit.shim.test_exposed_ports import KEY, a_task, only


class PlayedHaproxy:
    """The runtime API of the node's HAProxy: its map, whom it trusts, and how often it cut all."""

    def __init__(self, access: DirectAccess) -> None:
        self._access = access
        self.ways: dict[str, str] = {}
        self.trusted = ""
        self.cuts = 0
        self._offered = ""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """One life, which begins with what the files say."""
        lines = (line.partition(" ") for line in self._access.ways.read_text().splitlines())
        self.ways = {name: to for name, _, to in lines}
        self.trusted = self._access.gateways.read_text()
        server = await asyncio.start_unix_server(self._serve, self._access.admin)
        try:
            yield
        finally:
            server.close()
            self._access.admin.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        command = (await reader.readline()).decode().split()
        if command[-1] == "<<":
            self._offered = (await reader.readuntil(b"\n\n")).decode().strip() + "\n"
        writer.write(f"{self._answer(command)}\n\n".encode())
        writer.close()

    def _answer(self, command: list[str]) -> str:
        match command:
            case ["show", "map", _]:
                return "\n".join(f"0x1 {name} {to}" for name, to in self.ways.items())
            case [("add" | "set"), "map", _, name, to]:
                self.ways[name] = to
            case ["del", "map", _, name]:
                del self.ways[name]
            case ["set", "ssl", "ca-file", _, "<<"]:
                return "transaction created for CA"
            case ["commit", "ssl", "ca-file", _]:
                self.trusted = self._offered
                return "Success!"
            case ["shutdown", "sessions", "server", "exposed/exposed"]:
                self.cuts += 1
        return ""


class Bed:
    """A shim with one running task whose app listens at `port`."""

    def __init__(self, folder: Path, threads: ThreadPoolExecutor, port: int) -> None:
        self.port = port
        self.access = DirectAccess(folder=folder / "direct", port=8443)
        self.exposed = GatewayAccess(folder=folder / "exposed", keys=folder / "keys")
        self.haproxy = PlayedHaproxy(self.access)
        self.tasks = {"t1": a_task("t1", folder / "runner.sock")}
        self.address: str | None = "127.0.0.1"
        self.events = EventLog(epoch="e")
        self.gateway = pinned_certificates.certificate_of(pinned_certificates.make())
        self._folder = folder
        self._threads = threads

    @contextlib.asynccontextmanager
    async def shim(self) -> AsyncIterator[ExposedPorts]:
        """One life of the shim."""
        direct = DirectWays(
            self.access,
            self._folder / "direct.pem",
            self.tasks.get,
            lambda info: self.address,
            self._threads,
        )
        records = DiskRecords(self._folder / "records", ExposureRecord, self._threads)
        self.direct = direct
        made = ExposedPorts(self.exposed, records, self.tasks.get, self._threads, direct=direct)
        await made.open(self.events)
        try:
            yield made
        finally:
            await made.close()

    async def ask(self, certificate: str | None = None) -> DirectAnswer:
        socket = only(self.exposed, ".direct")
        reader, writer = await asyncio.open_unix_connection(socket)
        with contextlib.closing(writer):
            question = DirectQuestion(certificate=certificate or self.gateway)
            writer.write(msgspec.json.encode(question) + b"\n")
            return msgspec.json.decode(await reader.readline(), type=DirectAnswer)

    def end(self) -> None:
        ended = msgspec.structs.replace(self.tasks["t1"], status=TaskStatus.TERMINATED)
        self.tasks["t1"] = ended
        self.events.task_changed(ended)


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    threads = disk_threads()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    yield Bed(tmp_path, threads, server.sockets[0].getsockname()[1])
    server.close()
    threads.shutdown()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The time to the second cut of a removal, which is over as soon as this is set."""
    event = asyncio.Event()

    async def pause(seconds: float) -> None:
        assert seconds > direct_way.HANDSHAKE_SECONDS
        await event.wait()

    monkeypatch.setattr(direct_way, "pause", pause)
    return event


async def test_a_name_leads_to_the_exposed_port_for_the_gateway_that_asked(bed: Bed) -> None:
    async with bed.shim() as ports, bed.haproxy.serving():
        await ports.expose(bed.tasks["t1"], bed.port)
        answer = await bed.ask()
        assert answer.port == 8443
        assert answer.name.endswith("." + pinned_certificates.check(answer.certificate))
        assert bed.haproxy.ways == {answer.name: f"127.0.0.1:{bed.port}"}
        assert bed.haproxy.trusted == answer.certificate + bed.gateway
        assert await bed.ask() == answer


async def test_what_does_not_listen_has_no_direct_way(bed: Bed) -> None:
    async with bed.shim() as ports, bed.haproxy.serving():
        await ports.expose(bed.tasks["t1"], bed.port)
        bed.address = "127.0.0.2"  # nothing listens there
        assert "nothing listens at 127.0.0.2" in str((await bed.ask()).why)
        bed.address = None
        assert "no address" in str((await bed.ask()).why)
        assert bed.haproxy.ways == {}


@pytest.mark.parametrize("line", ["x", '{"certificate": "x"}', "{}"])
async def test_a_question_without_a_certificate_opens_nothing(bed: Bed, line: str) -> None:
    async with bed.shim() as ports, bed.haproxy.serving():
        await ports.expose(bed.tasks["t1"], bed.port)
        socket = only(bed.exposed, ".direct")
        reader, writer = await asyncio.open_unix_connection(socket)
        with contextlib.closing(writer):
            writer.write(f"{line}\n".encode())
            assert msgspec.json.decode(await reader.readline(), type=DirectAnswer).why
        assert bed.haproxy.ways == {}
        assert bed.gateway not in bed.haproxy.trusted


async def test_the_way_ends_with_its_task(bed: Bed) -> None:
    async with bed.shim() as ports, bed.haproxy.serving():
        await ports.expose(bed.tasks["t1"], bed.port)
        await bed.ask()
        bed.end()
        await eventually(lambda: not bed.haproxy.ways)
        await eventually(lambda: not list(bed.exposed.folder.iterdir()))
        assert bed.access.ways.read_text() == ""


async def test_ways_outlast_a_restart_of_the_shim_and_of_haproxy(bed: Bed) -> None:
    async with bed.shim() as ports, bed.haproxy.serving():
        await ports.expose(bed.tasks["t1"], bed.port)
        answer = await bed.ask()
        before, trusted = dict(bed.haproxy.ways), bed.haproxy.trusted
    async with bed.haproxy.serving(), bed.shim():
        assert (bed.haproxy.ways, bed.haproxy.trusted) == (before, trusted)
        assert await bed.ask() == answer


async def test_a_task_that_ended_while_the_shim_was_away_has_no_way(bed: Bed) -> None:
    async with bed.shim() as ports, bed.haproxy.serving():
        await ports.expose(bed.tasks["t1"], bed.port)
        await bed.ask()
    bed.end()
    async with bed.haproxy.serving():
        assert bed.haproxy.ways
        async with bed.shim():
            assert bed.haproxy.ways == {}


async def test_a_haproxy_that_is_away_leaves_the_way_through_ssh(bed: Bed) -> None:
    async with bed.shim() as ports:
        await ports.expose(bed.tasks["t1"], bed.port)
        assert (await bed.ask()).why == "the node's HAProxy does not answer"
        async with bed.haproxy.serving():
            assert (await bed.ask()).why is None
            assert bed.gateway in bed.haproxy.trusted


async def test_the_doctor_says_whether_haproxy_answers(bed: Bed) -> None:
    async with bed.shim() as ports:
        away = await bed.direct.examine()
        assert (away.level, "SSH" in away.message) == (FindingLevel.WARNING, True)
        async with bed.haproxy.serving():
            await ports.expose(bed.tasks["t1"], bed.port)
            await bed.ask()
            found = await bed.direct.examine()
            assert (found.level, found.message) == (
                FindingLevel.OK,
                "HAProxy lets 1 gateways in at port 8443, to 1 ports of jobs",
            )


async def test_a_damaged_certificate_is_made_anew(bed: Bed, tmp_path: Path) -> None:
    async with bed.shim():
        before = bed.access.own.read_text()
    (tmp_path / "direct.pem").write_text("-----BEGIN")
    async with bed.shim():
        assert bed.access.own.read_text() != before
        pinned_certificates.check(bed.access.own.read_text())


async def test_a_gateway_that_is_removed_is_cut_and_others_come_again(
    bed: Bed, at_once: asyncio.Event
) -> None:
    other = KEY[:-1] + "r"
    async with bed.shim() as ports, bed.haproxy.serving():
        await ports.put_keys(GatewayKeys(keys=(KEY,)))
        await ports.expose(bed.tasks["t1"], bed.port)
        await bed.ask()
        await ports.put_keys(GatewayKeys(keys=(KEY, other)))
        assert bed.gateway in bed.haproxy.trusted
    async with bed.haproxy.serving(), bed.shim() as ports:
        await ports.put_keys(GatewayKeys(keys=(KEY, other)))
        assert (bed.gateway in bed.haproxy.trusted, bed.haproxy.cuts) == (True, 0)
        await ports.put_keys(GatewayKeys(keys=(KEY,)))
        assert (bed.gateway in bed.haproxy.trusted, bed.haproxy.cuts) == (False, 1)
        # A handshake of before may be under way: it is cut too, and nobody comes in till then.
        assert "being removed" in str((await bed.ask()).why)
        at_once.set()
        await eventually(lambda: not bed.access.removal.exists())
        assert bed.haproxy.cuts == 2
        await eventually(lambda: not bed.direct.removes)
        await bed.ask()
        assert bed.gateway in bed.haproxy.trusted


async def test_a_removal_that_a_kill_cuts_short_goes_on_with_the_next_shim(
    bed: Bed, at_once: asyncio.Event
) -> None:
    async with bed.shim() as ports, bed.haproxy.serving():
        await ports.put_keys(GatewayKeys(keys=(KEY,)))
        await ports.expose(bed.tasks["t1"], bed.port)
        await bed.ask()
        # The shim is killed once the keys are written, before the gateways are forgotten.
        await bed.direct.begin_removal()
    assert bed.gateway in bed.access.gateways.read_text()
    async with bed.haproxy.serving():
        assert bed.gateway in bed.haproxy.trusted
        async with bed.shim():
            assert bed.gateway not in bed.haproxy.trusted
            at_once.set()
            await eventually(lambda: not bed.direct.removes)
            assert bed.haproxy.cuts == 2
            assert not bed.access.removal.exists()


async def test_a_removal_waits_for_a_haproxy_that_is_away(bed: Bed, at_once: asyncio.Event) -> None:
    async with bed.shim() as ports:
        async with bed.haproxy.serving():
            await ports.put_keys(GatewayKeys(keys=(KEY,)))
            await ports.expose(bed.tasks["t1"], bed.port)
            await bed.ask()
        await ports.put_keys(GatewayKeys(keys=()))
        assert bed.gateway not in bed.access.gateways.read_text()
        assert bed.access.removal.exists()
        async with bed.haproxy.serving():
            at_once.set()
            await eventually(lambda: not bed.direct.removes)
            assert bed.haproxy.cuts == 2


async def test_a_gateway_that_only_haproxy_knows_is_forgotten(bed: Bed) -> None:
    async with bed.shim() as ports, bed.haproxy.serving():
        await ports.put_keys(GatewayKeys(keys=(KEY,)))
        bed.haproxy.trusted += bed.gateway
        await ports.put_keys(GatewayKeys(keys=()))
        assert (bed.gateway in bed.haproxy.trusted, bed.haproxy.cuts) == (False, 1)


async def test_a_gateway_that_haproxy_did_not_hear_of_is_not_in_its_file(bed: Bed) -> None:
    async with bed.shim() as ports:
        await ports.expose(bed.tasks["t1"], bed.port)
        assert (await bed.ask()).why == "the node's HAProxy does not answer"
        assert bed.gateway not in bed.access.gateways.read_text()


async def test_a_question_that_waits_while_a_gateway_is_removed_is_refused(
    bed: Bed, at_once: asyncio.Event
) -> None:
    async with bed.shim() as ports, bed.haproxy.serving():
        await ports.put_keys(GatewayKeys(keys=(KEY,)))
        await ports.expose(bed.tasks["t1"], bed.port)
        socket = only(bed.exposed, ".direct")
        reader, writer = await asyncio.open_unix_connection(socket)
        with contextlib.closing(writer):
            question = msgspec.json.encode(DirectQuestion(certificate=bed.gateway))
            writer.write(question[:5])
            await bed.ask()  # accepted after the other one
            await ports.put_keys(GatewayKeys(keys=()))
            at_once.set()
            await eventually(lambda: not bed.direct.removes)
            writer.write(question[5:] + b"\n")
            answer = msgspec.json.decode(await reader.readline(), type=DirectAnswer)
        assert "being removed" in str(answer.why)
        assert bed.gateway not in bed.haproxy.trusted


async def test_only_the_shim_reads_what_is_secret(bed: Bed) -> None:
    async with bed.shim():
        for path in (bed.access.own, bed.access.gateways, bed.access.ways):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(bed.access.folder.stat().st_mode) == 0o700


def test_haproxy_asks_everybody_for_a_certificate(tmp_path: Path) -> None:
    text = configuration(DirectAccess(folder=tmp_path, port=8443))
    binds = [line for line in text.splitlines() if line.strip().startswith("bind ")]
    assert [line.split()[1] for line in binds] == ["*:8443", "[::]:8443"]
    for line in binds:
        assert "verify required ssl-min-ver TLSv1.3 no-tls-tickets" in line
        assert "strict-sni" in line


def test_strangers_take_neither_all_memory_nor_all_connections_from_one_address(
    tmp_path: Path,
) -> None:
    lines = configuration(DirectAccess(folder=tmp_path, port=8443)).splitlines()
    # Debian's HAProxy takes 46 KiB for a handshake that waits; its unit may have 1 GiB.
    assert lines.count("    maxconn 8000") == 2
    tracks = lines.index("    tcp-request connection track-sc0 src")
    assert lines[tracks + 1] == "    tcp-request connection reject if { sc0_conn_cur gt 4000 }"
    assert "    stick-table type ipv6 size 100k expire 1m store conn_cur" in lines[:tracks]


def test_haproxy_keeps_neither_roots_user_nor_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    user = pwd.getpwuid(os.getuid())
    text = configuration(DirectAccess(folder=tmp_path, port=8443, user=user.pw_name))
    assert f"    user {user.pw_name}\n    gid {user.pw_gid}\n" in text


def test_haproxy_can_be_told_of_as_many_gateways_as_come() -> None:
    most = (direct_way._MAX_GATEWAYS + 1) * pinned_certificates.MAX_BYTES
    assert most <= haproxy_admin.MAX_TRUSTED
