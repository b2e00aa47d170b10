#!/usr/bin/env python3
"""A provider of machines for `type: exec`: the servers of an OpenStack cloud (Keystone v3, Nova).

It needs only Python 3.11, and nothing next to this file. The environment has the application
credential as for other programs of OpenStack: OS_AUTH_URL, OS_APPLICATION_CREDENTIAL_ID,
OS_APPLICATION_CREDENTIAL_SECRET, OS_REGION_NAME; a file may have the secret instead.

    openstack.py --image ID --prices FILE [--network ID]... [--security-group NAME]...
"""

import argparse
import base64
import http.client
import json
import os
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

Wish = dict[str, Any]
Wishes = list[Wish]
INSTALLATION, MACHINE, FLEET = "fairlead-installation", "fairlead-machine", "fairlead-fleet"
MAX_ANSWER = 16 << 20
TIMEOUT_SECONDS = 60
POLL_SECONDS = 2.0
BUILD_SECONDS = 120
"""A cloud without room says so some seconds after it took the order."""
MAX_USER_DATA = 65535
"""Nova's limit, of the base64."""
IMAGE_GIB = 8
GONE = ("DELETED", "SOFT_DELETED")


class Refusal(Exception):
    """`kind`: no_capacity, quota, refused, throttled or unauthorized. Anything else leaves open
    whether the call did its work. `is_missing`: Nova has no such thing. `reach`: which offers would
    be refused for the same cause."""

    def __init__(
        self, kind: str, message: str, after: float = 5.0, is_missing: bool = False
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.after = after
        self.is_missing = is_missing
        self.reach = "offer"


class Servers:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.api = Nova()
        self.region = setting("OS_REGION_NAME")

    def offers(self, wish: Wish) -> Wish:
        prices = json.loads(read_file("--prices", self.options.prices))
        found = []
        for flavor in self._pages("flavors"):
            entry = prices.get(flavor["name"])
            # Without a disk of its own, a server boots from a volume, which would outlive it.
            if entry is None or not flavor["disk"]:
                continue
            # The kernel, the image and the shim keep a part.
            offer = {
                "instance_type": flavor["name"],
                "region": self.region,
                "price": entry["price"],
                "cpu": flavor["vcpus"],
                "memory_gib": max(0.0, flavor["ram"] / 1024 * 0.975 - 0.5),
                "disk_gib": max(0.0, flavor["disk"] * 0.94 - IMAGE_GIB),
                "gpus": entry.get("gpus", []),
            }
            found += [{**offer, "zone": zone} for zone in self.options.zone or [None]]
        return {"offers": found}

    def create(self, wish: Wish) -> Wish:
        if wish["spot"] or wish["reservation"] or wish["region"] != self.region:
            raise Refusal("refused", f"this cloud has machines on demand in {self.region} only")
        # Nova's names are not unique: only a look finds what an earlier try made. Fairlead
        # gives all tries of an order one token.
        name = f"{wish['name'][:200]}-{wish['token'][:12]}"
        for one in self._pages("servers", {"name": f"^{re.escape(name)}$"}):
            if one["name"] == name and is_of(one, wish["installation"]):
                return shown(self._built(one["id"]))
        try:
            made = self.api.call("POST", "/servers", {"server": self._order(wish, name)})
        except Refusal as refusal:
            refusal.reach = reach_of(str(refusal))
            raise
        return shown(self._built(made["server"]["id"]))

    def _order(self, wish: Wish, name: str) -> Wish:
        user_data = base64.b64encode(wish["user_data"].encode()).decode()
        if len(user_data) > MAX_USER_DATA:
            raise Refusal("refused", f"user-data is {len(user_data)} bytes of {MAX_USER_DATA}")
        ids = [one["id"] for one in self._pages("flavors") if one["name"] == wish["instance_type"]]
        if not ids:
            raise Refusal("refused", f"there is no flavor {wish['instance_type']}")
        order = {
            "name": name,
            "imageRef": self.options.image,
            "flavorRef": ids[0],
            "user_data": user_data,
            "config_drive": True,
            "metadata": {
                INSTALLATION: wish["installation"],
                MACHINE: wish["machine"],
                FLEET: wish["fleet"],
            },
        }
        if self.options.network:
            order["networks"] = [{"uuid": one} for one in self.options.network]
        if self.options.security_group:
            order["security_groups"] = [{"name": one} for one in self.options.security_group]
        if wish["zone"]:
            order["availability_zone"] = wish["zone"]
        return order

    def _built(self, server_id: str) -> Wish:
        """Return the server once it is built, or still builds after long. One that cannot be built
        is deleted: Nova keeps it, with its name and in the quota."""
        server = self._settled(server_id, ("BUILD",))
        if server is None:
            raise Refusal("away", f"the server {server_id} is gone before it was built")
        if server["status"] != "ERROR":
            return server
        why = server.get("fault", {}).get("message", "the server cannot be built")
        self.api.call("DELETE", f"/servers/{server_id}")
        if self._settled(server_id, ("BUILD", "ERROR", "ACTIVE")) is not None:
            raise Refusal(
                "away", f"the server {server_id} cannot be built, and does not end: {why}"
            )
        raise Refusal("no_capacity", why)

    def _settled(self, server_id: str, passing: tuple[str, ...]) -> Wish | None:
        """Return the server once its status is another one, or long after; None: it is gone."""
        until = time.monotonic() + BUILD_SECONDS
        while True:
            server = self._server(server_id)
            if server is None or server["status"] not in passing or time.monotonic() > until:
                return server
            time.sleep(POLL_SECONDS)

    def _server(self, server_id: str) -> Wish | None:
        try:
            server: Wish = self.api.call("GET", f"/servers/{server_id}")["server"]
        except Refusal as refusal:
            if not refusal.is_missing:
                raise
            return None
        return None if server["status"] in GONE else server

    def describe(self, wish: Wish) -> Wish:
        wanted = set(wish["ids"])
        every = self._pages("servers")
        return {"machines": [shown(one) for one in every if one["id"] in wanted]}

    def list(self, wish: Wish) -> Wish:
        own = [one for one in self._pages("servers") if is_of(one, wish["installation"])]
        # A server names its flavor by the id.
        types = {one["id"]: one["name"] for one in self._pages("flavors")} if own else {}
        return {"machines": [{**shown(one), **self._traits(one, types)} for one in own]}

    def _traits(self, server: Wish, types: dict[str, str]) -> Wish:
        """Return the offer that the server was made of: budgets count an orphan by its price."""
        zone = server.get("OS-EXT-AZ:availability_zone")
        # An offer has no zone where the arguments name none.
        return {
            "instance_type": types.get(server["flavor"]["id"]),
            "region": self.region,
            "zone": zone if self.options.zone and zone else None,
        }

    def _pages(self, what: str, query: Wish | None = None) -> Wishes:
        """Return the flavors or servers of all pages. A page that fails raises."""
        found: dict[str, Wish] = {}
        following: Wish | None = query or {}
        while following is not None:
            answer = self.api.call(
                "GET", f"/{what}/detail?{urllib.parse.urlencode(following, doseq=True)}"
            )
            page = answer[what]
            links = answer.get(f"{what}_links", [])
            more = [one["href"] for one in links if one["rel"] == "next"]
            # Only the query: behind a proxy, Nova may write an address that is not reached.
            query_of = [urllib.parse.parse_qs(urllib.parse.urlsplit(one).query) for one in more]
            following = query_of[0] if more else None
            if more and not {one["id"] for one in page} - set(found):
                raise Refusal("away", f"the pages of {what} do not end")
            found |= {one["id"]: one for one in page}
        return [one for one in found.values() if one.get("status") not in GONE]

    def terminate(self, wish: Wish) -> Wish:
        if self._server(wish["id"]) is None:
            return {"gone": True}
        try:
            self.api.call("DELETE", f"/servers/{wish['id']}")
        except Refusal as refusal:
            if not refusal.is_missing:
                raise
            return {"gone": True}
        return {"gone": False}

    def console(self, wish: Wish) -> Wish:
        action = {"os-getConsoleOutput": {"length": 200}}
        try:
            answer = self.api.call("POST", f"/servers/{wish['id']}/action", action)
        except Refusal as refusal:
            # A server that builds has none yet, and some clouds have none at all.
            if refusal.kind != "refused":
                raise
            return {"text": None}
        return {"text": answer["output"]}


def is_of(server: Wish, installation: str) -> bool:
    return bool(server["metadata"].get(INSTALLATION) == installation)


def shown(server: Wish) -> Wish:
    every = [one for network in server.get("addresses", {}).values() for one in network]
    # A floating address first, IPv4 before IPv6.
    every.sort(key=lambda one: (one.get("OS-EXT-IPS:type") != "floating", one["version"]))
    return {
        "id": server["id"],
        "machine": server["metadata"].get(MACHINE),
        "fleet": server["metadata"].get(FLEET),
        "created_at": datetime.fromisoformat(server["created"]).timestamp(),
        "host": every[0]["addr"] if every else None,
    }


def reach_of(refusal: str) -> str:
    """Return which offers share what a refused order names: each order has the image, networks and
    groups of this program's arguments."""
    words = re.sub("[_-]", " ", refusal.lower())
    # As in "Flavor's disk is too small for requested image": another flavor may fit.
    if "flavor" in words:
        return "offer"
    if any(one in words for one in ("image", "network", "security group", "user data")):
        return "provider"
    return "zone" if "availability zone" in words else "offer"


def setting(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise Refusal("unauthorized", f"{name} is not set in the controller's environment")
    return value


def read_file(what: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise Refusal("unreadable", f"{what} {path}: {why}") from None


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """urllib would send the token to whatever host a redirect names."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Nova:
    """The compute API of the application credential's project, with a token of its own."""

    def __init__(self) -> None:
        self.opener = urllib.request.build_opener(NoRedirect)
        file = os.environ.get("OS_APPLICATION_CREDENTIAL_SECRET_FILE")
        secret = (
            setting("OS_APPLICATION_CREDENTIAL_SECRET")
            if file is None
            else read_file("OS_APPLICATION_CREDENTIAL_SECRET_FILE", file).strip()
        )
        identity = {
            "methods": ["application_credential"],
            "application_credential": {
                "id": setting("OS_APPLICATION_CREDENTIAL_ID"),
                "secret": secret,
            },
        }
        keystone = setting("OS_AUTH_URL").rstrip("/").removesuffix("/v3") + "/v3/auth/tokens"
        headers, answer = self._exchange("POST", keystone, {"auth": {"identity": identity}}, {})
        self.headers = {
            "X-Auth-Token": headers["X-Subject-Token"],
            "OpenStack-API-Version": "compute 2.1",
        }
        self.endpoint = endpoint_of(answer["token"]["catalog"])

    def call(self, method: str, path: str, content: Wish | None = None) -> Any:
        """Return the answer. Raises Refusal."""
        return self._exchange(method, self.endpoint + path, content, self.headers)[1]

    def _exchange(
        self, method: str, url: str, content: Wish | None, headers: dict[str, str]
    ) -> tuple[Any, Any]:
        what = f"{method} {urllib.parse.urlsplit(url).path}"
        request = urllib.request.Request(
            url,
            method=method,
            data=None if content is None else json.dumps(content).encode(),
            headers={**headers, "Content-Type": "application/json", "Accept": "application/json"},
        )
        try:
            with self.opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                body = answer.read(MAX_ANSWER)
                # A cut answer is no JSON, so a page is whole or an error.
                return answer.headers, json.loads(body) if answer.status != 204 else None
        except urllib.error.HTTPError as error:
            raise refusal_of(what, error) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Refusal("away", f"{what}: {type(error).__name__}: {error}") from None


def endpoint_of(catalog: Wishes) -> str:
    region = setting("OS_REGION_NAME")
    for service in catalog:
        for one in service["endpoints"] if service["type"] == "compute" else ():
            if one["interface"] == "public" and one["region_id"] == region:
                return str(one["url"]).rstrip("/")
    raise Refusal("unconfigured", f"OS_REGION_NAME: the catalog has no compute API in {region}")


def refusal_of(what: str, error: urllib.error.HTTPError) -> Refusal:
    try:
        # As in {"itemNotFound": {"code": 404, "message": "…"}}.
        ((code, told),) = json.loads(error.read(MAX_ANSWER)).items()
        message = str(told["message"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError):
        code, message = "", "no error of OpenStack"
    text = f"{what}: {message} ({error.code} {code})"
    after = error.headers.get("Retry-After") or ""
    is_of_quota = "quota" in message.lower()
    if error.code == 429 or (code == "overLimit" and not is_of_quota):
        return Refusal("throttled", text, min(3600, int(after)) if after.isdecimal() else 5.0)
    if error.code in (403, 413) and is_of_quota:
        return Refusal("quota", text)
    if error.code in (401, 403):
        return Refusal("unauthorized", text)
    # The code too: a wrong endpoint also answers 404.
    if code in ("badRequest", "itemNotFound", "conflictingRequest"):
        return Refusal("refused", text, is_missing=code == "itemNotFound")
    return Refusal("away", text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--image", required=True, help="the id of the node's image")
    parser.add_argument("--prices", required=True, help="a JSON file: flavors with price and GPUs")
    parser.add_argument("--network", action="append", help="the ids of each server's networks")
    parser.add_argument("--security-group", action="append", help="the names of its groups")
    parser.add_argument("--zone", action="append", help="the availability zones to rent in")
    options = parser.parse_args()
    wish = json.load(sys.stdin)
    try:
        answer = getattr(Servers(options), wish["call"])(wish)
    except Refusal as refusal:
        answer = {"error": refusal.kind, "message": str(refusal), "after": refusal.after}
        answer["reach"] = refusal.reach
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
