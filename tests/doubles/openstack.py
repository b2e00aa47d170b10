"""Keystone and Nova in memory, over HTTP: application credentials, pages, names that are not
unique, a server that takes a moment to build and to end, or cannot be built at all."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import msgspec
from aiohttp import web

from tests.doubles.serving import served

CREDENTIAL, SECRET, REGION, IMAGE = "credential-1", "canary-of-openstack", "north", "image-1"
_TOKEN = "canary-of-a-token"
_FLAVORS = (
    ("f-1", "m1.small", 2, 4096, 40),
    ("f-2", "g1.large", 16, 65536, 200),
    ("f-3", "diskless", 2, 4096, 0),
    ("f-4", "unpriced", 2, 4096, 40),
)


class NovaFailure(msgspec.Struct, frozen=True):
    status: int
    code: str
    message: str = "eight are enough"


class OpenStackDouble:
    """One project. `servers` by id; `calls` counts requests by method and path."""

    def __init__(self) -> None:
        self.url = ""
        self.servers: dict[str, dict[str, Any]] = {}
        self.calls: Counter[tuple[str, str]] = Counter()
        self.wishes: list[dict[str, Any]] = []
        """The content of each request for a server that was let through."""
        self.fails: dict[tuple[str, str], list[NovaFailure]] = {}
        """Refusals of the next calls, by method and path."""
        self.loses = False
        """Whether the next server is made and its answer is lost."""
        self.page = 1000
        self.cuts = False
        """Whether the next second page fails."""
        self.fault: str | None = None
        """Why the next server cannot be built."""

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.router.add_post("/identity/v3/auth/tokens", self._token)
        app.router.add_get("/compute/flavors/detail", self._flavors)
        app.router.add_get("/compute/servers/detail", self._list)
        app.router.add_post("/compute/servers", self._create)
        app.router.add_get("/compute/servers/{id}", self._show)
        app.router.add_delete("/compute/servers/{id}", self._delete)
        app.router.add_post("/compute/servers/{id}/action", self._action)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.calls[request.method, request.path] += 1
        is_known = request.headers.get("X-Auth-Token") == _TOKEN
        if not is_known and not request.path.startswith("/identity"):
            return _error(NovaFailure(401, "unauthorized", "The request you have made requires …"))
        if waiting := self.fails.get((request.method, request.path)):
            return _error(waiting.pop(0))
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _token(self, request: web.Request) -> web.Response:
        identity = (await request.json())["auth"]["identity"]
        asked = identity["application_credential"]
        if asked != {"id": CREDENTIAL, "secret": SECRET}:
            return _error(NovaFailure(401, "error", "The request you have made requires …"))
        endpoints = [
            {"interface": interface, "region_id": region, "url": f"{self.url}/{path}"}
            for interface, region, path in (
                ("internal", REGION, "inside"),
                ("public", "south", "elsewhere"),
                ("public", REGION, "compute"),
            )
        ]
        catalog = [{"type": "image", "endpoints": []}, {"type": "compute", "endpoints": endpoints}]
        return web.json_response(
            {"token": {"catalog": catalog}}, status=201, headers={"X-Subject-Token": _TOKEN}
        )

    async def _flavors(self, request: web.Request) -> web.Response:
        every = [
            {"id": key, "name": name, "vcpus": cpu, "ram": ram, "disk": disk}
            for key, name, cpu, ram, disk in _FLAVORS
        ]
        return self._paged(request, "flavors", every)

    async def _list(self, request: web.Request) -> web.Response:
        every = [self._moved(one) for one in list(self.servers.values())]
        if (name := request.query.get("name")) is not None:
            every = [one for one in every if f"^{one['name']}$" == name.replace("\\", "")]
        return self._paged(request, "servers", every)

    def _paged(self, request: web.Request, what: str, every: list[dict[str, Any]]) -> web.Response:
        marker = request.query.get("marker")
        ids = [one["id"] for one in every]
        at = 0 if marker is None else ids.index(marker) + 1
        if at and self.cuts:
            self.cuts = False
            return _error(NovaFailure(500, "computeFault", "Unexpected API Error."))
        page = every[at : at + self.page]
        answer: dict[str, Any] = {what: page}
        if at + self.page < len(every):
            # As behind a proxy that Nova does not know.
            href = f"http://inside.invalid/{what}/detail?marker={page[-1]['id']}"
            answer[f"{what}_links"] = [{"rel": "next", "href": href}]
        return web.json_response(answer)

    async def _create(self, request: web.Request) -> web.Response:
        wish = (await request.json())["server"]
        self.wishes.append(wish)
        server: dict[str, Any] = {
            "id": str(uuid4()),
            "name": wish["name"],
            "status": "ACTIVE",
            "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "metadata": wish["metadata"],
            "flavor": {"id": wish["flavorRef"], "links": []},
            "OS-EXT-AZ:availability_zone": wish.get("availability_zone", "nova"),
            "addresses": {},
        }
        if self.fault is not None:
            server |= {"status": "ERROR", "fault": {"code": 500, "message": self.fault}}
            self.fault = None
        self.servers[server["id"]] = server
        if self.loses:
            self.loses = False
            assert request.transport is not None
            request.transport.close()
        return web.json_response({"server": {"id": server["id"]}}, status=202)

    async def _show(self, request: web.Request) -> web.Response:
        server = self.servers.get(request.match_info["id"])
        return _missing() if server is None else web.json_response({"server": self._moved(server)})

    async def _delete(self, request: web.Request) -> web.Response:
        server = self.servers.get(request.match_info["id"])
        if server is None:
            return _missing()
        if server["status"] == "ERROR":
            del self.servers[server["id"]]
        server["OS-EXT-STS:task_state"] = "deleting"
        return web.Response(status=204)

    async def _action(self, request: web.Request) -> web.Response:
        server = self.servers.get(request.match_info["id"])
        return _missing() if server is None else web.json_response({"output": "login:"})

    def _moved(self, server: dict[str, Any]) -> dict[str, Any]:
        """Return the server as it is shown now; the next look finds it a step further."""
        shown = dict(server)
        if server.get("OS-EXT-STS:task_state") == "deleting":
            self.servers.pop(server["id"], None)
        server["addresses"] = {
            "inside": [
                {"addr": "fd00::1", "version": 6, "OS-EXT-IPS:type": "fixed"},
                {"addr": "127.1.0.9", "version": 4, "OS-EXT-IPS:type": "fixed"},
            ]
        }
        return shown


def _missing() -> web.Response:
    return _error(NovaFailure(404, "itemNotFound", "Instance could not be found."))


def _error(failure: NovaFailure) -> web.Response:
    content = {failure.code: {"code": failure.status, "message": failure.message}}
    return web.json_response(content, status=failure.status)


def openstack() -> AbstractAsyncContextManager[OpenStackDouble]:
    return served(OpenStackDouble())
