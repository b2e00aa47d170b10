"""A follower before the dashboard and its services: browsers know it alone.

The leader, the link between the two and what the follower answers are the real ones. The ways to
replicas are sockets here, as a node exposes them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import asyncssh
import msgspec
from aiohttp import web

from common.proxy.entry import Proxy, Settings
from common.proxy.view import Service
from controller.api.app import make_runner
from controller.clock import SystemClock
from controller.forwarding.credentials import link_tls
from controller.forwarding.dashboard_reads import DashboardReads
from controller.forwarding.follower import make_app
from controller.forwarding.follower_links import FollowerLinks
from controller.forwarding.forwarder import Forwarder
from controller.forwarding.leader_feed import LeaderFeed
from controller.forwarding.leader_links import LeaderLinks
from controller.proxy.sealed import SealedSessions
from controller.relay import leader_at
from controller.service import ControllerService
from controller.store.reading import StoreReader
from controller.ways.carrying import FollowerServices
from controller.ways.messages import FROM_FOLLOWER, Lines, ServicesChanged, encoded
from controller.web.app import Dashboard, session_key
from fairlead.wire.gateway import GatewayNode
from tests.support.replicas import accepting

HERE = GatewayNode(id="n", host="", host_key="", local=True)
KEY = b"secret of the tests"


class Front:
    """Makes a follower with these sessions of browsers, which reads at the database. `carried` has
    the service of each connection to a replica that it made."""

    def __init__(self, reader: StoreReader, folder: Path) -> None:
        self.sealed = SealedSessions(KEY, SystemClock())
        self.carried: list[str] = []
        self._reader = reader
        self._folder = folder

    @contextlib.asynccontextmanager
    async def before(
        self,
        leader: ControllerService,
        proxy: Proxy,
        dashboard: Dashboard,
        settings: Settings,
        services: Iterable[Service],
    ) -> AsyncIterator[web.Application]:
        """Give the application of a follower of this leader, which knows the services."""
        async with contextlib.AsyncExitStack() as stack:
            known = [await stack.enter_async_context(self._exposed(one)) for one in services]
            tls = await asyncio.to_thread(link_tls, KEY, self._folder)
            told = _Told(known)
            links = LeaderLinks(tls.follower)
            taken = FollowerLinks(tls.leader, ways=told.feed)
            runner = make_runner(
                leader,
                shutdown_timeout=0.1,
                proxy=proxy,
                mounts=(dashboard.mount, taken.mount),
                first=(taken.middleware,),
            )
            taken.serve_with(runner)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            links.lead_to(leader_at("http://{}:{}".format(*runner.addresses[0][:2]), "1"))
            stack.callback(links.close)
            forwarder, clock = Forwarder(links), SystemClock()
            key = asyncssh.generate_private_key("ssh-ed25519")
            here = FollowerServices(
                links, self._reader, clock, key, settings, forwarder.forward, self.sealed
            )
            stack.push_async_callback(here.close)
            here.start()
            await told.confirmed.wait()
            pages = session_key(KEY)
            reads = DashboardReads(self._reader, clock, LeaderFeed(links), pages, settings.site)
            stack.push_async_callback(reads.close)
            yield make_app(forwarder, settings.domain, reads, None, here)

    @contextlib.asynccontextmanager
    async def _exposed(self, service: Service) -> AsyncIterator[Service]:
        (replica,) = service.replicas
        path = str(self._folder / f"{service.name}.sock")

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.carried.append(service.name)
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", replica.port)
            with contextlib.closing(far_writer):
                await asyncio.gather(_carry(reader, far_writer), _carry(far_reader, writer))

        async with accepting(serve, b"ok\n") as accept:
            server = await asyncio.start_unix_server(accept, path)
            with contextlib.closing(server):
                exposed = msgspec.structs.replace(replica, node_id=HERE.id, socket=path)
                yield msgspec.structs.replace(service, replicas=(exposed,))


class _Told:
    """The leader's word about services; `confirmed` once the follower has it."""

    def __init__(self, services: Iterable[Service]) -> None:
        self._message = ServicesChanged(
            version=1, begins=True, services=tuple(services), nodes=(HERE,)
        )
        self.confirmed = asyncio.Event()

    async def feed(self, request: web.Request, response: web.StreamResponse) -> None:
        await response.write(encoded(self._message))
        lines = Lines(1 << 20)
        while piece := await request.content.readany():
            if any(FROM_FOLLOWER.decode(line).version for line in lines.whole(piece)):
                self.confirmed.set()


async def _carry(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        to.write(data)
    to.close()
