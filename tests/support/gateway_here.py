"""A gateway in this process: a real HAProxy and the agent, in front of replicas that a test plays.

There is no node, no SSH and no real controller: replicas are unix sockets of the test's own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web

from common.links.node_links import OK, raw_socket
from fairlead.wire.gateway import (
    LINK_PATH,
    Answer,
    Certificate,
    FromAgent,
    FromController,
    GatewayNode,
    GatewayReplica,
    GatewayService,
    Question,
    Snapshot,
)
from gateway.agent import Agent, Options, control_app, traffic_app
from gateway.fast_sockets import LogSocket
from gateway.haproxy import Ports
from gateway.state import AgentState
from tests.support.gateway import haproxy_daemon, listens
from tests.support.replicas import Serve, accepting
from tests.support.ssh_daemon import free_port
from tests.support.waiting import LONG, eventually

DOMAIN = "apps.test"
SOON = LONG
_decode = msgspec.json.Decoder(FromAgent)


def options_in(folder: Path, ports: Ports = Ports()) -> Options:  # noqa: B008  (frozen)
    """Return the options of an agent without Caddy, all of whose files are in this folder."""
    return Options(
        data=folder / "state",
        socket=folder / "agent.sock",
        traffic=folder / "traffic.sock",
        caddy_admin=folder / "no-caddy.sock",
        haproxy=folder / "haproxy",
        ports=ports,
    )


@contextlib.asynccontextmanager
async def served(agent: Agent, options: Options) -> AsyncIterator[None]:
    """The agent at its two sockets."""
    async with contextlib.AsyncExitStack() as stack:
        for runner, path in (
            (traffic_app(agent), options.traffic),
            (control_app(agent), options.socket),
        ):
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.UnixSite(runner, str(path), backlog=4096).start()
        yield


class GatewayHere:
    """`http` is HAProxy's port on the loopback. The controller that it asks lets every token in.

    `change`: what of HAProxy's configuration the test has otherwise, such as shorter times.
    """

    def __init__(self, folder: Path, change: Callable[[str], str] = lambda text: text) -> None:
        ports = Ports(http=free_port(), https=free_port(), challenges=free_port())
        self.http, self.https = ports.http, ports.https
        self.options = options_in(folder, ports)
        self.haproxy = haproxy_daemon(self.options.paths, ports)
        config = self.options.paths.maps / "haproxy.cfg"
        config.write_text(change(config.read_text()))
        self.agent: Agent
        self._folder = folder
        self._replicas = contextlib.AsyncExitStack()
        self._services: dict[str, GatewayService] = {}

    async def serve(
        self, name: str, *replicas: Serve, auth: bool = False, eject_for: float | None = None
    ) -> None:
        """Serve NAME.apps.test by these replicas, and wait until it has the fast path."""
        made = []
        for number, serve in enumerate(replicas):
            socket = self._folder / f"{name}{number}.sock"
            await self._replicas.enter_async_context(_replica(socket, serve))
            made.append(
                GatewayReplica(
                    id=f"{name}{number}", group="main", node_id="here", socket=str(socket)
                )
            )
        self._services[name] = GatewayService(
            run_id=f"run-{name}",
            name=name,
            owner="ada",
            host=f"{name}.{DOMAIN}",
            auth=auth,
            eject_for=eject_for,
            replicas=tuple(made),
        )
        await self.agent.apply(
            Snapshot(
                version=len(self._services),
                gateway="main",
                domain=DOMAIN,
                certificate=Certificate(kind="none"),
                nodes=(GatewayNode(id="here", host="", host_key="", local=True),),
                services=tuple(self._services.values()),
            )
        )

        async def is_fast() -> bool:
            return await self._is_fast(name, len(replicas), auth)

        fast: bool = await eventually(is_fast, SOON)
        assert fast

    async def _is_fast(self, name: str, replicas: int, auth: bool) -> bool:
        kind = "guarded" if auth else "slots"
        ways = await self.ask_haproxy(f"show map {self.options.paths.maps / kind}.map")
        slots = [line.split()[2] for line in ways.splitlines() if f"|{name}.{DOMAIN} " in line]
        states = (await self.ask_haproxy("show stat -1 4 -1")).splitlines()
        up = [
            one
            for one in states
            if slots and one.startswith(f"{slots[0]},r") and ",no check," in one
        ]
        return len(up) == replicas

    async def ask_haproxy(self, command: str) -> str:
        reader, writer = await asyncio.open_unix_connection(self.options.paths.admin)
        with contextlib.closing(writer):
            writer.write(f"{command}\n".encode())
            return (await reader.read()).decode()

    async def past_the_agent(self) -> int:
        """Return how many requests HAProxy has sent straight to replicas."""
        head, *rows = (await self.ask_haproxy("show stat -1 4 -1")).strip().splitlines()
        place = head.split(",").index("stot")
        servers = [row.split(",") for row in rows if row.split(",")[1].startswith("r")]
        return sum(int(cells[place]) for cells in servers)

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.http)

    async def close_replicas(self) -> None:
        await self._replicas.aclose()


@contextlib.asynccontextmanager
async def gateway_here(
    folder: Path, change: Callable[[str], str] = lambda text: text
) -> AsyncIterator[GatewayHere]:
    made = GatewayHere(folder, change)
    made.haproxy.spawn()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(made.haproxy.kill9)
        await eventually(lambda: listens(made.options.paths.admin), SOON)
        state = AgentState(made.options.data)
        agent = made.agent = Agent(made.options, state, await asyncio.to_thread(state.identity))
        stack.push_async_callback(agent.close)
        stack.push_async_callback(made.close_replicas)
        await stack.enter_async_context(served(agent, made.options))
        fast_path = agent.open_fast_path(state.key)
        log_socket = LogSocket(made.options.paths.log, fast_path.heard)
        stack.callback(log_socket.close)
        stack.push_async_callback(fast_path.close, 0.1)
        running = asyncio.create_task(fast_path.run())
        stack.push_async_callback(_ended, running)
        asking = asyncio.create_task(_let_all_in(made.options.socket))
        stack.push_async_callback(_ended, asking)
        await eventually(lambda: agent.link.is_up, SOON)
        yield made


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _let_all_in(socket: Path) -> None:
    """The controller: answers every question about a token with yes."""
    connector = aiohttp.UnixConnector(str(socket))
    async with (
        aiohttp.ClientSession("http://agent", connector=connector) as session,
        session.ws_connect(LINK_PATH) as link,
    ):
        async for message in link:
            said = _decode.decode(message.data)
            if isinstance(said, Question):
                answer: FromController = Answer(id=said.id, allowed=True)
                await link.send_str(msgspec.json.encode(answer).decode())


@contextlib.asynccontextmanager
async def _replica(socket: Path, serve: Serve) -> AsyncIterator[None]:
    """Both sockets of an exposed port: the agent's begins with a line, HAProxy's does not, and
    holds as many connections as OpenSSH's."""
    raw = Path(raw_socket(str(socket)))
    async with accepting(serve, OK) as for_agent, accepting(serve) as for_haproxy:
        servers = [
            await asyncio.start_unix_server(for_agent, socket, backlog=4096),
            await asyncio.start_unix_server(for_haproxy, raw, backlog=128),
        ]
        try:
            yield
        finally:
            for server in servers:
                server.close()
