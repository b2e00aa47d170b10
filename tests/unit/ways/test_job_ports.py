"""Forwarded ports and terminals that a follower carries itself, or leaves to the leader."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import aiohttp
import asyncssh
import msgspec
import pytest
from aiohttp import web

from common.links.host_keys import public_line
from common.tokens import digest
from controller.api.app import make_runner
from controller.clock import SystemClock
from controller.forwarding import reader_rights
from controller.forwarding.credentials import link_tls
from controller.forwarding.dashboard_reads import DashboardReads
from controller.forwarding.follower import Routes
from controller.forwarding.follower_links import FollowerLinks
from controller.forwarding.leader_feed import LeaderFeed
from controller.forwarding.leader_links import LeaderLinks
from controller.forwarding.reads import Reads
from controller.lifecycle.reports import TaskSeen
from controller.pipelines.performers.cluster import terminal_key
from controller.relay import leader_at
from controller.service.jobs import terminals
from controller.store.reading import StoreReader
from controller.ways import lent
from controller.ways.job_ports import JobPorts
from controller.ways.lent import LentWays
from controller.ways.messages import JobWay
from controller.web.app import Dashboard, session_key
from fairlead.wire.gateway import GatewayNode
from tests.support.replicas import a_server, accepting
from tests.support.ssh_daemon import free_port
from tests.support.terminals import shown
from tests.support.waiting import eventually
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN
from tests.unit.api.test_terminals import JobsSsh
from tests.unit.cli.conftest import PlayedNode
from tests.unit.forwarding.test_reads import TO_THE_LEADER, Bed, answered, bearer, opened_bed

SECRET = b"secret of the tests"
HERE = GatewayNode(id="n1", host="", host_key="", local=True)


class PortsBed:
    """A leader that lends ways, and a follower. The ports of jobs are those of this machine."""

    def __init__(self, folder: Path) -> None:
        self.tls = link_tls(SECRET, folder)
        self.links = LeaderLinks(self.tls.follower)
        self.socket = folder / "w.sock"
        self.asked: list[str] = []
        self.lends = True
        self.may_lend = asyncio.Event()
        self.may_lend.set()
        self.bed: Bed
        self.url = ""

    async def lend(self, run_id: str, attempt_id: str) -> bytes | None:
        self.asked.append(attempt_id)
        await self.may_lend.wait()
        way = JobWay(socket=str(self.socket), node=HERE)
        return msgspec.json.encode(way) if self.lends else None

    def ports(self, reads: Reads) -> Routes:
        key = asyncssh.generate_private_key("ssh-ed25519")
        self.ways = LentWays(self.links, key)
        return JobPorts(cast(DashboardReads, reads), self.ways, SECRET)

    def connect(self, path: str, token: str = USER_TOKEN) -> Any:
        return self.bed.follower.ws_connect(path, headers=bearer(token))

    async def status(self, path: str, token: str = USER_TOKEN) -> int:
        async with self.bed.follower.get(path, headers=bearer(token)) as answer:
            return answer.status

    async def revoke(self, token: str) -> None:
        gate = self.bed.controller.service.accounts.gate
        (id,) = [one.id for one in gate.tokens if one.digest == digest(token)]
        headers = bearer(ADMIN_TOKEN)
        async with self.bed.leader.delete(f"/v1/tokens/{id}", headers=headers) as answer:
            assert answer.status == 200


async def _shim(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Leads to the port that the first line names."""
    port = int(await reader.readline())
    try:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        writer.write(b"nothing listens on port %d\n" % port)
        return
    writer.write(b"ok\n")

    async def carry(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            to.write(data)
        to.write_eof()

    with contextlib.closing(far_writer):
        await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))


@pytest.fixture
async def ported(tmp_path: Path) -> AsyncIterator[PortsBed]:
    made = PortsBed(tmp_path)

    def reads(reader: StoreReader) -> DashboardReads:
        return DashboardReads(reader, SystemClock(), LeaderFeed(made.links), session_key(SECRET))

    async with AsyncExitStack() as stack:
        made.bed = await stack.enter_async_context(opened_bed(tmp_path, reads, ports=made.ports))
        service = made.bed.controller.service
        taken = FollowerLinks(made.tls.leader, lend_way=made.lend)
        dashboard = Dashboard(service, session_key(SECRET), lambda: 0.0)
        runner = make_runner(
            service,
            shutdown_timeout=0.1,
            mounts=(taken.mount, dashboard.mount),
            first=(taken.middleware,),
        )
        taken.serve_with(runner)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.url = "http://{}:{}".format(*runner.addresses[0][:2])
        made.links.lead_to(leader_at(made.url, "1"))
        stack.callback(made.links.close)
        stack.push_async_callback(made.ways.close)
        accept = await stack.enter_async_context(accepting(_shim))
        server = await asyncio.start_unix_server(accept, made.socket)
        stack.callback(server.close)
        yield made


async def _capitals(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data.upper())


@pytest.fixture
async def port(ported: PortsBed) -> AsyncIterator[int]:
    """Of the running job `mine` of a user."""
    await ported.bed.submit("mine")
    await PlayedNode(ported.bed.controller).runs("mine")
    async with a_server(_capitals) as port:
        yield port


async def _talk(opened: aiohttp.ClientWebSocketResponse) -> None:
    await opened.send_bytes(b"hello")
    assert await opened.receive_bytes() == b"HELLO"


async def test_connections_to_a_job_share_a_way_and_need_no_leader_any_more(
    ported: PortsBed, port: int
) -> None:
    path = f"/v1/runs/mine/ports/{port}"
    async with ported.connect(path) as first:
        await _talk(first)
        ported.links.lead_to(None)
        async with ported.connect(path, ADMIN_TOKEN) as second:
            await _talk(second)
            await second.send_str("eof")
            assert await second.receive_str() == "eof"
        await _talk(first)
    assert len(ported.asked) == 1


@pytest.mark.parametrize(
    "path",
    [
        "mine/ports/x",
        "mine/ports/65536",
        "mine/ports/80?job=7",
        "mine/ports/80?other=1",
        "waits/ports/80",
        "waits/terminal",
        "mine/terminal",
        "mine/terminal?columns=0",
        "of-admin/ports/80",
        "of-admin/terminal",
        "unknown/ports/80",
    ],
)
async def test_a_follower_refuses_with_the_words_of_the_leader(
    ported: PortsBed, port: int, path: str
) -> None:
    await ported.bed.submit("waits")
    await ported.bed.submit("of-admin", ADMIN_TOKEN)
    there = await answered(ported.bed.leader, f"/v1/runs/{path}", USER_TOKEN)
    assert there[0] in (400, 404, 409)
    assert await answered(ported.bed.follower, f"/v1/runs/{path}", USER_TOKEN) == there


async def test_a_port_on_which_nothing_listens_is_refused_here(ported: PortsBed, port: int) -> None:
    path = f"/v1/runs/mine/ports/{free_port()}"
    status, refused, _ = await answered(ported.bed.follower, path, USER_TOKEN)
    assert (status, refused["error"]["code"]) == (502, "port_refused")


async def test_a_token_that_opens_nothing_is_refused_and_asks_the_leader_nothing(
    ported: PortsBed, port: int
) -> None:
    assert await ported.status(f"/v1/runs/mine/ports/{port}", "unknown") == 401
    assert ported.asked == []


@pytest.mark.parametrize("how", ["revoked", "removed from the role"])
async def test_a_connection_ends_with_its_right(
    ported: PortsBed, port: int, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(reader_rights, "LOOK_SECONDS", 0.01)
    path, token = f"/v1/runs/mine/ports/{port}", ADMIN_TOKEN
    async with ported.connect(path, token) as opened, ported.connect(path) as other:
        await _talk(opened)
        await _talk(other)
        if how == "revoked":
            await ported.revoke(USER_TOKEN)
            opened, other = other, opened
        else:
            headers, made = bearer(ADMIN_TOKEN), {"name": "root2", "role": "admin"}
            async with ported.bed.leader.post("/v1/users", json=made, headers=headers) as answer:
                assert answer.status == 201
            url = "/v1/users/admin"
            async with ported.bed.leader.patch(
                url, json={"role": "user"}, headers=headers
            ) as answer:
                assert answer.status == 200
        while not opened.closed:
            await opened.receive()
        await _talk(other)


@pytest.mark.parametrize("path", ["ports/80", "terminal"])
async def test_a_right_that_ends_while_the_leader_is_asked_opens_nothing(
    ported: PortsBed, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(reader_rights, "LOOK_SECONDS", 0.01)
    await _with_ssh(ported, free_port())
    ported.may_lend.clear()
    asking = asyncio.ensure_future(ported.connect(f"/v1/runs/shell/{path}"))
    await eventually(lambda: ported.asked)
    await ported.revoke(USER_TOKEN)
    with pytest.raises(aiohttp.ClientConnectionError):
        await asking
    ported.may_lend.set()


@pytest.mark.parametrize("path", ["ports/80", "terminal"])
async def test_the_leader_carries_what_it_lends_no_way_to(ported: PortsBed, path: str) -> None:
    await _with_ssh(ported, free_port())
    ported.lends = False
    assert await ported.status(f"/v1/runs/shell/{path}") == TO_THE_LEADER
    assert len(ported.asked) == 1
    ported.lends = True
    ported.socket.unlink()
    assert await ported.status(f"/v1/runs/shell/{path}") == TO_THE_LEADER
    # A node that was not reached is left alone for a while, and its way may be another one by then.
    assert await ported.status(f"/v1/runs/shell/{path}") == TO_THE_LEADER
    assert len(ported.asked) == 3


@pytest.mark.parametrize("path", ["ports/80", "terminal"])
async def test_while_nobody_leads_a_new_way_is_waited_for_once(
    ported: PortsBed, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The forwarder would hold the request for as long again."""
    await _with_ssh(ported, free_port())
    monkeypatch.setattr(lent, "HELD_SECONDS", 0.01)
    ported.links.lead_to(None)
    _, refused, _ = await answered(ported.bed.follower, f"/v1/runs/shell/{path}", USER_TOKEN)
    assert refused["error"]["code"] == "leads_no_more"
    assert ported.asked == []


async def test_no_client_is_lent_a_way(ported: PortsBed, port: int) -> None:
    path = "/v1/controllers/ways/r/a"
    async with aiohttp.ClientSession(headers=bearer(ADMIN_TOKEN)) as session:
        async with session.get(ported.url + path) as answer:
            assert answer.status == 404
        # What a follower passes on has its client's address.
        async with session.get(
            ported.url + path, headers={"Fairlead-Client": "follower"}
        ) as answer:
            assert answer.status == 404
    assert ported.asked == []


async def test_a_way_that_nobody_uses_is_forgotten(
    ported: PortsBed, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lent, "IDLE_SECONDS", 0.01)
    path = f"/v1/runs/mine/ports/{port}"
    async with ported.connect(path) as first:
        async with ported.connect(path) as second:
            await _talk(second)
        await eventually(
            lambda: ported.ways._kept and ported.ways._kept[ported.asked[0]].users == 1
        )
        await asyncio.sleep(0.05)
        await _talk(first)
    await eventually(lambda: not ported.ways._kept)
    async with ported.connect(path) as third:
        await _talk(third)
    assert len(ported.asked) == 2


# -- terminals ----------------------------------------------------------------------------------


async def _with_ssh(ported: PortsBed, port: int, host_key: str = "") -> str:
    """Have a job `shell` of a user run whose SSH server has this port; return the run's id."""
    run = await ported.bed.submit("shell", ssh="embedded")
    controller = ported.bed.controller
    attempt = await PlayedNode(controller).runs("shell")
    key = host_key or public_line(asyncssh.generate_private_key("ssh-ed25519"))
    seen = TaskSeen(
        run_id=run,
        attempt_id=attempt,
        container_started=True,
        terminated=False,
        runner_socket="/run/fairlead/runner.sock",
        ports={"ssh": port},
        ssh_host_key=key,
    )
    await controller.pipeline.report(seen)
    return run


@pytest.fixture
async def job(ported: PortsBed, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JobsSsh]:
    monkeypatch.setattr(terminals, "CLUSTER_SSH_PORT", free_port())
    server = JobsSsh()
    run = await _with_ssh(ported, server.port, public_line(server.host_key))
    async with asyncssh.listen(
        "127.0.0.1",
        server.port,
        server_host_keys=[server.host_key],
        authorized_client_keys=asyncssh.import_authorized_keys(terminal_key(SECRET, run).public),
        process_factory=server.shell,
        line_editor=False,
    ):
        yield server
        await eventually(lambda: server.shells == 0)


async def test_a_terminal_goes_on_without_a_leader(ported: PortsBed, job: JobsSsh) -> None:
    async with ported.connect("/v1/runs/shell/terminal?columns=100&rows=30") as terminal:
        await shown(terminal, "root (100, 30)")
        ported.links.lead_to(None)
        await terminal.send_bytes(b"hello\n")
        await shown(terminal, "typed hello")
        async with ported.connect("/v1/runs/shell/terminal") as another:
            await shown(another, "root (80, 24)")
        await terminal.send_bytes(b"exit\n")
        assert await terminal.receive_json() == {"exit": 3}


async def test_all_terminals_of_a_user_here_count(
    ported: PortsBed, job: JobsSsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminals, "MAX_OF_ONE_USER", 1)
    async with ported.connect("/v1/runs/shell/terminal") as first:
        await shown(first, "root")
        async with ported.connect("/v1/runs/shell/terminal") as second:
            assert "1 terminals of ada" in (await second.receive_json())["error"]
    await eventually(lambda: job.shells == 0)
    async with ported.connect("/v1/runs/shell/terminal") as third:
        await shown(third, "root")


async def test_a_page_of_the_dashboard_opens_a_terminal_with_its_login(
    ported: PortsBed, job: JobsSsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_rights, "LOOK_SECONDS", 0.01)
    follower = str(ported.bed.follower.make_url("")).rstrip("/")
    path = f"{follower}/dashboard/api/v1/runs/shell/terminal"
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        page = await _logged_in(session, ported.url)
        protocols = ("fairlead", f"fairlead.page.{page}")
        async with session.ws_connect(path, protocols=protocols, origin=follower) as terminal:
            await shown(terminal, "root")
            headers = {"X-Fairlead-Page": page, "HX-Request": "true"}
            async with session.post(f"{ported.url}/dashboard/logout", headers=headers) as answer:
                assert answer.status == 204
            while not terminal.closed:
                await terminal.receive()
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        page = await _logged_in(session, ported.url)
        for given, origin, status in (
            ("fairlead", follower, 403),
            (f"fairlead.page.{page}", "https://page.example", TO_THE_LEADER),
        ):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(path, protocols=(given,), origin=origin)
            assert refused.value.status == status


async def _logged_in(session: aiohttp.ClientSession, url: str) -> str:
    """Log in as a user; return the token of a page."""
    headers = {"Accept": "text/html"}
    async with session.get(f"{url}/dashboard/login", headers=headers) as answer:
        asked = re.search(r'name="asked" value="([^"]+)"', await answer.text())
    assert asked is not None
    form = {"asked": asked.group(1), "token": USER_TOKEN}
    async with session.post(f"{url}/dashboard/login", data=form) as answer:
        assert answer.status == 200
    async with session.get(f"{url}/dashboard/runs", headers=headers) as answer:
        page = re.search(r'name="fairlead-page" content="([^"]+)"', await answer.text())
    assert page is not None
    return page.group(1)
