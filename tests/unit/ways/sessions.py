"""A leader with planted routes and a follower, with a real session between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from msgspec.structs import replace

from controller.api.http.streams import STREAMS, end_streams
from controller.forwarding.credentials import LinkTls, link_tls
from controller.forwarding.follower_links import FollowerLinks
from controller.forwarding.leader_links import LeaderLinks
from controller.links.base import NodeConnection
from controller.relay import leader_at
from controller.traffic.routes import ReplicaRoute, Route
from controller.traffic.statistics import Traffic
from controller.ways.exposing import Exposer
from controller.ways.follower import KnownServices, WaysSession
from controller.ways.leader import FollowerWays, Parts
from fairlead.model.service import ServicePolicy
from fairlead.wire.gateway import GatewayNode, GroupCounts
from fairlead.wire.shim import Fence
from tests.support.waiting import eventually
from tests.unit.pipelines.parts import NotedPipeline
from tests.unit.proxy.test_registered import AT, POLICY, ROUTE, PlantedRoutes
from tests.unit.store.samples import a_node

EXPOSED = replace(AT, node_id="node1", exposed_socket="/exposed/a.sock")
PLAIN: ServicePolicy = replace(POLICY, rate_limits=())


def route(*replicas: ReplicaRoute, name: str = "api", policy: ServicePolicy = PLAIN) -> Route:
    return replace(ROUTE, name=name, run_id=f"run of {name}", replicas=replicas, service=policy)


class PlantedLeader:
    """Leads at an address of its own."""

    def __init__(self, tls: LinkTls, *routes: Route, has_ways: bool = True) -> None:
        self.routes = PlantedRoutes(*routes)
        self.traffic = Traffic(asyncio.get_running_loop().time)
        self.pipeline = NotedPipeline()
        self.pipeline.nodes["node1"] = a_node()
        self.asked: list[str] = []
        nodes = Exposer(
            pipeline=self.pipeline, connect=self._connect, keys=tuple, fence=Fence(1, 1)
        )
        parts = Parts(routes=self.routes, traffic=self.traffic, nodes=nodes)
        self.ways = FollowerWays(parts)
        self._links = FollowerLinks(tls.leader, ways=self.ways.feed if has_ways else None)
        app = web.Application(middlewares=[self._links.middleware])
        app[STREAMS] = set()
        app.on_shutdown.append(end_streams)
        self._links.mount(app)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        self._links.serve_with(self._runner)
        self.url = ""

    async def _connect(self, node_id: str) -> NodeConnection:
        self.asked.append(node_id)
        raise TimeoutError

    async def start(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = "http://{}:{}".format(*self._runner.addresses[0][:2])

    async def stop(self) -> None:
        await self._runner.cleanup()

    def has(self, *routes: Route) -> None:
        """Commit that these are there, and no others."""
        self.routes.planted = {one.name: one for one in routes}
        self.ways._exposed("run of api")


class PlantedCarried:
    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        self.groups: tuple[GroupCounts, ...] = ()

    def in_flight(self) -> dict[str, int]:
        return dict(self.requests)

    def take(self) -> tuple[GroupCounts, ...]:
        taken, self.groups = self.groups, ()
        return taken

    def ejected(self) -> dict[str, float]:
        return {}


class SessionBed:
    def __init__(self, tls: LinkTls) -> None:
        self.tls = tls
        self.now = 0.0
        self.links = LeaderLinks(tls.follower)
        self.carried = PlantedCarried()
        self.nodes: tuple[GatewayNode, ...] = ()
        self.services = KnownServices(lambda: self.now)
        self.session = WaysSession(self.links, self.services, self._hear_nodes, self.carried)
        self.leaders: list[PlantedLeader] = []

    def _hear_nodes(self, nodes: Iterable[GatewayNode]) -> None:
        self.nodes = tuple(nodes)

    async def leads(self, *routes: Route, has_ways: bool = True) -> PlantedLeader:
        """Return the next leader, once it leads."""
        made = PlantedLeader(self.tls, *routes, has_ways=has_ways)
        self.leaders.append(made)
        await made.start()
        self.links.lead_to(leader_at(made.url, str(len(self.leaders))))
        return made

    async def dies(self, leader: PlantedLeader) -> None:
        self.links.lead_to(None)
        await leader.stop()
        self.leaders.remove(leader)

    def sockets(self, name: str = "api") -> list[str]:
        found = self.services.find(name)
        return [] if found is None else [one.socket for one in found.replicas]

    async def knows(self, *sockets: str) -> None:
        await eventually(lambda: self.sockets() == list(sockets), what=f"{sockets} at the follower")


@asynccontextmanager
async def opened_session_bed(tmp_path: Path) -> AsyncIterator[SessionBed]:
    made = SessionBed(link_tls(b"secret", tmp_path))
    running = asyncio.create_task(made.session.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        made.links.close()
        for leader in made.leaders:
            await leader.stop()
