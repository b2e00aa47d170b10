"""Compute Engine of Google in memory, over HTTP, after its discovery document: operations that end
later, well or not, request ids, unique names, pages of a list with all zones, lists that are not
whole. Beside it what the provider needs: tokens, permissions and the price list."""

from __future__ import annotations

import base64
import functools
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from aiohttp import web
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.doubles.google_apis import GoogleFailure, Method, WrongRequest, refused
from tests.doubles.serving import served

TOKEN = "canary-of-google"
PROJECT = "fairlead-tests"
IMAGE = f"projects/{PROJECT}/global/images/family/fairlead-node"
ZONES = ("europe-west4-a", "europe-west4-b", "us-central1-a")
_AUDIENCE = "https://oauth2.googleapis.com/token"
_LABEL = re.compile("[a-z0-9_-]{0,63}")
"""The document does not say what a label may have."""
_METHODS = {
    "insert": ("compute.v1", "instances.insert"),
    "get": ("compute.v1", "instances.get"),
    "list": ("compute.v1", "instances.aggregatedList"),
    "delete": ("compute.v1", "instances.delete"),
    "console": ("compute.v1", "instances.getSerialPortOutput"),
    "wait": ("compute.v1", "zoneOperations.wait"),
    "types": ("compute.v1", "machineTypes.list"),
    "family": ("compute.v1", "images.getFromFamily"),
    "region": ("compute.v1", "regions.get"),
    "subnetwork": ("compute.v1", "subnetworks.get"),
    "firewalls": ("compute.v1", "firewalls.list"),
    "act_as": ("iam.v1", "projects.serviceAccounts.testIamPermissions"),
    "skus": ("cloudbilling.v1", "services.skus.list"),
    "rights": ("cloudresourcemanager.v1", "projects.testIamPermissions"),
}
SSH_RULE: dict[str, Any] = {
    "name": "fairlead",
    "network": f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/global/networks/default",
    "direction": "INGRESS",
    "disabled": False,
    "sourceRanges": ["203.0.113.7/32"],
    "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}],
}
TYPES: tuple[dict[str, Any], ...] = (
    {"name": "e2-standard-4", "guestCpus": 4, "memoryMb": 16384, "architecture": "X86_64"},
    {"name": "e2-medium", "guestCpus": 2, "memoryMb": 4096, "isSharedCpu": True},
    {"name": "c4a-standard-4", "guestCpus": 4, "memoryMb": 16384, "architecture": "ARM64"},
    {
        "name": "n1-standard-1",
        "guestCpus": 1,
        "memoryMb": 3840,
        "deprecated": {"state": "DEPRECATED"},
    },
    {"name": "c4-standard-8", "guestCpus": 8, "memoryMb": 30720, "architecture": "X86_64"},
    {
        "name": "g2-standard-4",
        "guestCpus": 4,
        "memoryMb": 16384,
        "architecture": "X86_64",
        "accelerators": [{"guestAcceleratorType": "nvidia-l4", "guestAcceleratorCount": 1}],
    },
    {
        "name": "x9-new-1g",
        "guestCpus": 4,
        "memoryMb": 16384,
        "accelerators": [{"guestAcceleratorType": "nvidia-unheard-of", "guestAcceleratorCount": 1}],
    },
)


class GcpDouble:
    """One project. `instances` by zone and name; `calls` counts requests by method."""

    def __init__(self) -> None:
        self.url = ""
        self.instances: dict[tuple[str, str], dict[str, Any]] = {}
        self.calls: Counter[str] = Counter()
        self.wishes: list[dict[str, Any]] = []
        """The parameters and content of each request for an instance."""
        self.fails: dict[str, list[GoogleFailure]] = {}
        """Refusals of the next calls, by method."""
        self.fails_later: list[tuple[str, str]] = []
        """Codes and messages with which the operations of the next inserts fail."""
        self.loses = False
        """Whether the next instance is made and its answer is lost."""
        self.slow = 0
        """How many answers of `wait` come before their operation is done."""
        self.remembers = True
        """Whether request ids are known; they are for an hour."""
        self.hides = False
        """Whether a name that is taken is not noticed at once."""
        self.page: int | None = None
        """The most instances on a page."""
        self.cuts = False
        """Whether the next second page fails."""
        self.unreachable: tuple[str, ...] = ()
        """Zones that a list lacks and names."""
        self.silent: tuple[str, ...] = ()
        """Zones in whose place a list has a warning."""
        self.allowed: frozenset[str] | None = None
        """The permissions of the account; None: all."""
        self.skus: list[dict[str, Any]] = []
        self.quotas: list[dict[str, Any]] = []
        self.subnetworks = {"default": "default"}
        """Their networks, by name, in each region."""
        self.firewalls: list[dict[str, Any]] = [dict(SSH_RULE)]
        self.accounts: dict[str, bool] = {}
        """Service accounts, and whether this one may act as them."""
        self.public = "127.1.0"
        """The network of public addresses."""
        self.key = _key_of_tests()
        self._operations: dict[str, dict[str, Any]] = {}
        self._begun: dict[str, str] = {}
        self._pending: dict[str, Callable[[], None]] = {}

    def write_key(self, path: Path) -> Path:
        """Write the key of a service account whose tokens are given here."""
        private = self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        content = {
            "type": "service_account",
            "project_id": PROJECT,
            "private_key_id": "1",
            "private_key": private.decode(),
            "client_email": f"fairlead@{PROJECT}.iam.gserviceaccount.com",
            "token_uri": f"{self.url}/token",
        }
        path.write_text(json.dumps(content))
        path.chmod(0o600)
        return path

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/token", self._token)
        app.router.add_get("/computeMetadata/v1/{path:.*}", self._metadata)
        app.router.add_get("/", self._metadata)
        for name, (document, path) in _METHODS.items():
            method = Method(document, path)
            app.router.add_route(method.verb, method.route, self._guarded(name, method))
        return app

    def _guarded(self, name: str, method: Method) -> Any:
        """Return a handler that answers as the document has it."""
        handler = getattr(self, f"_{name}")

        async def handle(request: web.Request) -> web.StreamResponse:
            self.calls[name] += 1
            if request.headers.get("Authorization") != f"Bearer {TOKEN}":
                return refused(GoogleFailure(401, "authError", "Invalid Credentials"))
            content = await request.json() if request.can_read_body else None
            try:
                method.require(request.query, content)
            except WrongRequest as wrong:
                return refused(GoogleFailure(400, "invalid", str(wrong)))
            if waiting := self.fails.get(name):
                return refused(waiting.pop(0))
            answer = await handler(request)
            if isinstance(answer, GoogleFailure):
                return refused(answer)
            method.require_answer(answer)
            return web.json_response(answer)

        return handle

    # -- accounts -----------------------------------------------------------------------------

    async def _token(self, request: web.Request) -> web.Response:
        self.calls["token"] += 1
        asked = parse_qs((await request.read()).decode())
        signed, _, signature = asked["assertion"][0].rpartition(".")
        public = self.key.public_key()
        public.verify(_decoded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        claims = json.loads(_decoded(signed.partition(".")[2]))
        if claims["aud"] != _AUDIENCE or claims["exp"] < time.time():
            return web.json_response({"error": "invalid_grant"}, status=400)
        return web.json_response({"access_token": TOKEN, "expires_in": 3600})

    async def _metadata(self, request: web.Request) -> web.Response:
        told: dict[str, Any] = {
            "project/project-id": PROJECT,
            "universe/universe-domain": "googleapis.com",
            "universe/universe_domain": "googleapis.com",
        }
        path = request.match_info.get("path", "")
        headers = {"Metadata-Flavor": "Google"}
        if path.endswith("/token"):
            token = {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}
            return web.json_response(token, headers=headers)
        if path.startswith("instance/service-accounts/"):
            about = {
                "email": "default",
                "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
            }
            return web.json_response(about, headers=headers)
        return web.Response(text=told.get(path, ""), headers=headers)

    async def _rights(self, request: web.Request) -> Any:
        asked = (await request.json())["permissions"]
        allowed = [one for one in asked if self.allowed is None or one in self.allowed]
        return {"permissions": allowed}

    # -- instances ----------------------------------------------------------------------------

    async def _insert(self, request: web.Request) -> Any:
        zone, wish = request.match_info["zone"], await request.json()
        self.wishes.append({**request.query, **wish})
        known = self._begun.get(request.query["requestId"]) if self.remembers else None
        if known is not None:
            return self._operations[known]
        if (zone, wish["name"]) in self.instances and not self.hides:
            message = f"The resource 'projects/{PROJECT}/{wish['name']}' already exists"
            return GoogleFailure(409, "alreadyExists", message)
        if zone not in ZONES:
            return GoogleFailure(404, "notFound", f"Unknown zone {zone}")
        labels = [*wish["labels"].items(), *wish["disks"][0]["initializeParams"]["labels"].items()]
        if not all(_LABEL.fullmatch(part) for label in labels for part in label):
            return GoogleFailure(400, "invalid", f"{labels} are no labels")
        operation = self._operation("insert", zone)
        self._begun[request.query["requestId"]] = operation["name"]
        if self.fails_later:
            code, message = self.fails_later.pop(0)
            fault = {"error": {"errors": [{"code": code, "message": message}]}}
            self._pending[operation["name"]] = lambda: operation.update(fault)
        else:
            self._plant(zone, wish)
            self._pending[operation["name"]] = lambda: None
        if self.loses:
            self.loses = False
            assert request.transport is not None
            request.transport.abort()
        return dict(operation)

    def _operation(self, kind: str, zone: str) -> dict[str, Any]:
        name = f"operation-{len(self._operations) + 1}"
        operation = {"name": name, "operationType": kind, "status": "RUNNING", "zone": zone}
        self._operations[name] = operation
        return operation

    def _plant(self, zone: str, wish: dict[str, Any]) -> None:
        number = len(self.wishes) % 250
        (interface,) = wish["networkInterfaces"]
        address = {"networkIP": f"127.2.0.{number}", "subnetwork": interface["subnetwork"]}
        if "accessConfigs" in interface:
            address["accessConfigs"] = [
                {"type": "ONE_TO_ONE_NAT", "natIP": f"{self.public}.{number}"}
            ]
        self.instances[zone, wish["name"]] = {
            "name": wish["name"],
            "zone": f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{zone}",
            "status": "RUNNING",
            "machineType": f"https://www.googleapis.com/compute/v1/{wish['machineType']}",
            "scheduling": wish["scheduling"],
            "creationTimestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "labels": wish["labels"],
            "networkInterfaces": [address],
        }

    async def _wait(self, request: web.Request) -> Any:
        operation = self._operations[request.match_info["operation"]]
        if self.slow:
            self.slow -= 1
        else:
            operation["status"] = "DONE"
            self._pending.pop(operation["name"], lambda: None)()
        return operation

    async def _get(self, request: web.Request) -> Any:
        return self.instances.get(_key(request)) or _missing(request)

    async def _delete(self, request: web.Request) -> Any:
        if (instance := self.instances.get(_key(request))) is None:
            return _missing(request)
        if instance["status"] == "STOPPING":
            del self.instances[_key(request)]
            return _missing(request)
        instance["status"] = "STOPPING"
        return self._operation("delete", request.match_info["zone"])

    async def _console(self, request: web.Request) -> Any:
        if _key(request) not in self.instances:
            return _missing(request)
        return {"contents": "login: ", "start": "0", "next": "7"}

    async def _list(self, request: web.Request) -> Any:
        key, value = _label_of(request.query["filter"])
        chosen = [
            (zone, one)
            for (zone, _), one in sorted(self.instances.items())
            if key in one["labels"] and value in (None, one["labels"][key])
        ]
        start = int(request.query.get("pageToken", "0"))
        if start and self.cuts:
            self.cuts = False
            return GoogleFailure(503, "backendError", "a page is missing")
        size = self.page or int(request.query["maxResults"])
        items: dict[str, dict[str, Any]] = {}
        for zone in ZONES:
            shown = [one for where, one in chosen[start : start + size] if where == zone]
            empty = {"code": "NO_RESULTS_ON_PAGE", "message": "There are no results"}
            items[f"zones/{zone}"] = {"instances": shown} if shown else {"warning": empty}
        for zone in self.silent:
            away = {"code": "UNREACHABLE", "message": f"{zone} is away"}
            items[f"zones/{zone}"] = {"warning": away}
        answer: dict[str, Any] = {"items": items}
        if self.unreachable:
            answer["unreachables"] = list(self.unreachable)
        if start + size < len(chosen):
            answer["nextPageToken"] = str(start + size)
        return answer

    # -- what machines are made of --------------------------------------------------------------

    async def _types(self, request: web.Request) -> Any:
        zone = request.match_info["zone"]
        if zone not in ZONES:
            return GoogleFailure(400, "invalid", f"Unknown zone {zone}")
        start = int(request.query.get("pageToken", "0"))
        half = len(TYPES) // 2
        if start == 0:
            return {"items": list(TYPES[:half]), "nextPageToken": str(half)}
        return {"items": list(TYPES[half:])}

    async def _family(self, request: web.Request) -> Any:
        if request.path.removeprefix("/compute/v1/") != IMAGE:
            return GoogleFailure(404, "notFound", "The resource was not found")
        return {"name": "fairlead-node-1", "family": "fairlead-node", "diskSizeGb": "20"}

    async def _region(self, request: web.Request) -> Any:
        return {"name": request.match_info["region"], "quotas": self.quotas}

    async def _subnetwork(self, request: web.Request) -> Any:
        network = self.subnetworks.get(request.match_info["subnetwork"])
        if network is None:
            return _missing(request)
        url = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/global/networks/{network}"
        return {"name": request.match_info["subnetwork"], "network": url}

    async def _firewalls(self, request: web.Request) -> Any:
        start = int(request.query.get("pageToken", "0"))
        answer: dict[str, Any] = {"items": self.firewalls[start : start + 1]}
        if start + 1 < len(self.firewalls):
            answer["nextPageToken"] = str(start + 1)
        return answer

    async def _act_as(self, request: web.Request) -> Any:
        may = self.accounts.get(request.path.rpartition("/")[2].partition(":")[0])
        if may is None:
            return GoogleFailure(404, "NOT_FOUND", "Unknown service account")
        return {"permissions": (await request.json())["permissions"] if may else []}

    async def _skus(self, request: web.Request) -> Any:
        start = int(request.query.get("pageToken", "0"))
        half = -(-len(self.skus) // 2)
        if start == 0 and len(self.skus) > 1:
            return {"skus": self.skus[:half], "nextPageToken": str(half)}
        return {"skus": self.skus[start:], "nextPageToken": ""}


@functools.cache
def _key_of_tests() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _key(request: web.Request) -> tuple[str, str]:
    return request.match_info["zone"], request.match_info["instance"]


def _missing(request: web.Request) -> GoogleFailure:
    return GoogleFailure(404, "notFound", f"The resource '{request.path}' was not found")


def _label_of(chosen: str) -> tuple[str, str | None]:
    """Return the label and value of a filter as the API takes it."""
    name = chosen.removeprefix("labels.")
    if name.endswith(":*"):
        return name.removesuffix(":*"), None
    key, _, value = name.partition("=")
    assert value.startswith('"'), "a value without quotes may be taken for a number"
    return key, value.strip('"')


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def gcp() -> AbstractAsyncContextManager[GcpDouble]:
    """Serve an empty project in this event loop."""
    return served(GcpDouble())
