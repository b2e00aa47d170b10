"""The cloud of Hetzner in memory, over HTTP, as its API reference describes it: labels and their
selectors, pages, unique names, refusals by code, a machine that takes a moment to end."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any

import msgspec
from aiohttp import web

from tests.doubles.serving import served

TOKEN = "canary-of-hetzner"
IMAGE = 4711
NAMED_IMAGE = "fairlead-node"
"""A name for an image with one of each architecture, as all of Hetzner's own have."""
SSH_RULE = {"direction": "in", "protocol": "tcp", "port": "22", "source_ips": ["0.0.0.0/0"]}
_ENDS = {"announced": "2025-10-16T00:00:00Z", "unavailable_after": "2026-01-01T00:00:00Z"}
_TYPES: tuple[tuple[str, int, float, int, str, dict[str, Any], float], ...] = (
    ("cx23", 2, 4.0, 40, "x86", {"fsn1": None, "hel1": None}, 0.006),
    ("ccx63", 48, 192.0, 960, "x86", {"fsn1": None, "hel1": None}, 0.5),
    ("cax11", 2, 4.0, 40, "arm", {"fsn1": None, "hel1": None}, 0.006),
    ("cx22", 2, 4.0, 40, "x86", {"fsn1": _ENDS, "hel1": _ENDS}, 0.005),
    ("cpx11", 2, 2.0, 40, "x86", {"fsn1": _ENDS, "hel1": None}, 0.007),
    ("cpx12", 1, 2.0, 40, "x86", {"sin": None}, 0.008),
)
"""Each with the locations where it may be ordered, and with what is announced there."""
_LOCATIONS = ("fsn1", "hel1")


class HetznerFailure(msgspec.Struct, frozen=True):
    status: int
    code: str
    message: str = "eight are enough"
    details: Any = None


class HetznerDouble:
    """One project. `servers` by id; `calls` counts requests by method and path."""

    def __init__(self) -> None:
        self.url = ""
        self.tokens = {TOKEN}
        self.firewalls: dict[int, list[dict[str, Any]]] = {7: [dict(SSH_RULE)]}
        """Their rules, by id."""
        self.networks = {1}
        self.ssh_keys = {5: "operator"}
        """Their names, by id."""
        self.image_type = "snapshot"
        self.image_status = "available"
        self.servers: dict[int, dict[str, Any]] = {}
        self.calls: Counter[tuple[str, str]] = Counter()
        self.wishes: list[dict[str, Any]] = []
        """The content of each request for a server."""
        self.fails: dict[tuple[str, str], list[HetznerFailure]] = {}
        """Refusals of the next calls, by method and path."""
        self.loses = False
        """Whether the next server is made and its answer is lost."""
        self.public = "127.1.0"
        """The network of public addresses."""
        self.page: int | None = None
        """The most servers on a page."""
        self.cuts = False
        """Whether the next second page fails."""
        self.tells_locations = True
        """Whether types name their locations; another server with this API may not."""

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/server_types", self._server_types)
        app.router.add_get("/images", self._images)
        app.router.add_get("/images/{id}", self._image)
        app.router.add_get("/firewalls/{id}", self._firewall)
        app.router.add_get("/networks/{id}", self._network)
        app.router.add_get("/ssh_keys", self._keys)
        app.router.add_get("/ssh_keys/{id}", self._key)
        app.router.add_get("/servers", self._list)
        app.router.add_post("/servers", self._create)
        app.router.add_delete("/servers/{id}", self._delete)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        path = request.path if request.match_info.get("id") is None else "/servers/ID"
        self.calls[request.method, path] += 1
        if request.headers.get("Authorization") not in {f"Bearer {one}" for one in self.tokens}:
            return _error(HetznerFailure(401, "unauthorized", "unable to authenticate"))
        if waiting := self.fails.get((request.method, path)):
            return _error(waiting.pop(0))
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _server_types(self, request: web.Request) -> web.Response:
        types = [
            {
                "id": number,
                "name": name,
                "cores": cores,
                "memory": memory,
                "disk": disk,
                "architecture": architecture,
                # As while it is phased out: told for a type that ends everywhere, and not always.
                "deprecation": None,
                "locations": [
                    {"id": at, "name": location, "deprecation": ends, "available": True}
                    for at, (location, ends) in enumerate(where.items())
                ]
                if self.tells_locations
                else None,
                "prices": [
                    {
                        "location": location,
                        "price_hourly": {"net": f"{price:.10f}", "gross": f"{price * 1.19:.10f}"},
                        "price_monthly": {"net": "1", "gross": "1.19"},
                    }
                    for location in _LOCATIONS
                ],
            }
            for number, (name, cores, memory, disk, architecture, where, price) in enumerate(_TYPES)
        ]
        return self._paged(request, "server_types", types)

    async def _images(self, request: web.Request) -> web.Response:
        named = [
            {"id": 11 + at, "type": "system", "status": "available", "architecture": one}
            for at, one in enumerate(("arm", "x86"))
        ]
        found = named if request.query.get("name") == NAMED_IMAGE else []
        return self._paged(request, "images", found)

    async def _image(self, request: web.Request) -> web.Response:
        if int(request.match_info["id"]) != IMAGE:
            return _error(HetznerFailure(404, "not_found", "image not found"))
        image = {
            "id": IMAGE,
            "type": self.image_type,
            "status": self.image_status,
            "architecture": "x86",
        }
        return web.json_response({"image": image})

    async def _firewall(self, request: web.Request) -> web.Response:
        number = int(request.match_info["id"])
        if number not in self.firewalls:
            return _error(HetznerFailure(404, "not_found", "firewall not found"))
        return web.json_response({"firewall": {"id": number, "rules": self.firewalls[number]}})

    async def _network(self, request: web.Request) -> web.Response:
        number = int(request.match_info["id"])
        if number not in self.networks:
            return _error(HetznerFailure(404, "not_found", "network not found"))
        return web.json_response({"network": {"id": number}})

    async def _keys(self, request: web.Request) -> web.Response:
        name = request.query.get("name")
        found = [{"id": one} for one, its in self.ssh_keys.items() if name in (None, its)]
        return self._paged(request, "ssh_keys", found)

    async def _key(self, request: web.Request) -> web.Response:
        number = int(request.match_info["id"])
        if number not in self.ssh_keys:
            return _error(HetznerFailure(404, "not_found", "SSH key not found"))
        return web.json_response({"ssh_key": {"id": number}})

    async def _list(self, request: web.Request) -> web.Response:
        chosen = list(self.servers.values())
        if (name := request.query.get("name")) is not None:
            chosen = [one for one in chosen if one["name"] == name]
        if (selector := request.query.get("label_selector")) is not None:
            key, has_value, value = selector.partition("=")
            chosen = [
                one
                for one in chosen
                if key in one["labels"] and (not has_value or one["labels"][key] == value)
            ]
        return self._paged(request, "servers", chosen)

    def _paged(self, request: web.Request, key: str, every: list[dict[str, Any]]) -> web.Response:
        number = int(request.query.get("page", "1"))
        if number > 1 and self.cuts:
            self.cuts = False
            return _error(HetznerFailure(503, "unavailable", "a page is missing"))
        size = self.page or int(request.query.get("per_page", "25"))
        end = number * size
        pagination = {"page": number, "next_page": number + 1 if end < len(every) else None}
        shown = every[end - size : end]
        return web.json_response({key: shown, "meta": {"pagination": pagination}})

    async def _create(self, request: web.Request) -> web.StreamResponse:
        wish = await request.json()
        self.wishes.append(wish)
        if str(wish["image"]) not in (str(IMAGE), NAMED_IMAGE):
            return _error(HetznerFailure(404, "not_found", "image not found"))
        if any(one["name"] == wish["name"] for one in self.servers.values()):
            return _error(HetznerFailure(409, "uniqueness_error", "server name is already used"))
        number = 1000 + len(self.wishes)
        networks = wish.get("networks", [])
        server = {
            "id": number,
            "name": wish["name"],
            "status": "initializing",
            "server_type": {"id": 1, "name": wish["server_type"]},
            "location": {"id": 1, "name": wish["location"]},
            "created": datetime.now(UTC).isoformat(),
            "labels": wish["labels"],
            "public_net": {
                "ipv4": {"ip": f"{self.public}.{number % 250}"}
                if wish["public_net"]["enable_ipv4"]
                else None,
                "ipv6": None,
            },
            "private_net": [{"network": one, "ip": f"127.2.0.{number % 250}"} for one in networks],
        }
        self.servers[number] = server
        if self.loses:
            self.loses = False
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"server": server, "root_password": None}, status=201)

    async def _delete(self, request: web.Request) -> web.Response:
        if self.servers.pop(int(request.match_info["id"]), None) is None:
            return _error(HetznerFailure(404, "not_found", "server not found"))
        return web.json_response({"action": {"id": 1, "status": "running"}})


def _error(failure: HetznerFailure) -> web.Response:
    told = {"code": failure.code, "message": failure.message, "details": failure.details}
    content = {"error": told}
    return web.json_response(content, status=failure.status)


def hetzner() -> AbstractAsyncContextManager[HetznerDouble]:
    """Serve an empty project in this event loop."""
    return served(HetznerDouble())
