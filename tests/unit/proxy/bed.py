"""A proxy in front of replicas on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from common.proxy.browsers.site import Site
from common.proxy.entry import Proxy, Settings, tidy, to_services
from common.proxy.forwarding import ProxyLimits
from common.proxy.view import Replica, Service
from common.tokens import digest
from controller.lifecycle.model import Role
from controller.proxy.registered import GateAccess, through_runners
from controller.proxy.sealed import SealedSessions
from controller.service.accounts.users import Gate
from controller.store.accounts import ServiceKey, StoredToken, User
from tests.doubles.clock import ManualClock
from tests.doubles.proxy import NodeHere, NotedTraffic, PlantedServices
from tests.support.waiting import LONG

TOKENS = {"ada": "fl_ada", "bob": "fl_bob", "root": "fl_root"}
KEY = "flk_key"
SMALL = ProxyLimits(answer_seconds=LONG, hold_seconds=LONG, max_held=2, most_body=1 << 20)
"""A replica of a test lives in the loop of the proxy, and may be as late as that."""


def as_user(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name]}"}


def prove(service: str, origin: str) -> str:
    """What the dashboard of the tests says of its own origin."""
    return f"{service} has pages at {origin}"


class Bed:
    """A proxy with one service `api` of ada's, open to all unless a test says otherwise."""

    def __init__(self, client: TestClient[Any, Any], proxy: Proxy, gate: Gate) -> None:
        self.client = client
        self.proxy = proxy
        self.gate = gate
        self.services = PlantedServices()
        self.traffic = NotedTraffic()
        self.node = NodeHere()

    def serve(self, *ports: int, **fields: Any) -> Service:
        service = Service(
            run_id="run-api",
            name="api",
            owner="ada",
            replicas=tuple(replica(port) for port in ports),
        )
        service = msgspec.structs.replace(service, **{"auth": False, **fields})
        self.services.put(service)
        return service


def replica(port: int) -> Replica:
    return Replica(id=f"at-{port}", group="main", node_id="n", socket="/s", port=port)


def gate() -> Gate:
    roles = {"ada": Role.USER, "bob": Role.USER, "root": Role.ADMIN}
    users = [User(name=name, role=role, created_at=0.0) for name, role in roles.items()]
    tokens = [
        StoredToken(id=name, user=name, digest=digest(token), created_at=0.0)
        for name, token in TOKENS.items()
    ]
    key = ServiceKey(id="k", service="api", user="ada", digest=digest(KEY), created_at=0.0)
    return Gate(users, tokens, ManualClock(), [key])


@contextlib.asynccontextmanager
async def a_bed(
    limits: ProxyLimits = SMALL,
    domain: str | None = None,
    site: Site = Site(),  # noqa: B008  (frozen)
    *,
    is_gateway: bool = False,
    sealed: SealedSessions | None = None,
) -> AsyncIterator[Bed]:
    services, traffic, node, guard = PlantedServices(), NotedTraffic(), NodeHere(), gate()
    proxy = Proxy(
        services=services,
        traffic=traffic,
        access=GateAccess(guard, sealed),
        connect=through_runners(node.connect),
        settings=Settings(domain=domain, limits=limits, site=site, is_gateway=is_gateway),
        prove=prove,
        sessions=sealed,
    )
    app = web.Application(middlewares=[to_services(proxy)])
    app.on_response_prepare.append(tidy)
    server = TestServer(app, access_log=None)
    client: TestClient[Any, Any] = TestClient(
        server, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
    )
    await client.start_server()
    assert server.runner is not None
    assert server.runner.server is not None
    server.runner.server.handler_cancellation = False  # as in the product
    bed = Bed(client, proxy, guard)
    bed.services, bed.traffic, bed.node = services, traffic, node
    try:
        yield bed
    finally:
        await client.close()
        proxy.close()
