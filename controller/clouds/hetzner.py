"""The cloud of Hetzner as a provider, over its REST API by the HTTP client of the controller.

It has no idempotency tokens, but a name is unique in a project: a second request for a machine is
refused because of its name, and then the first one's machine is the answer.

A machine that powers itself off goes on costing money there, until the controller ends it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import msgspec

from controller.clouds.base import (
    Abilities,
    CloudAway,
    CloudError,
    Created,
    Described,
    Examined,
    KnownOffers,
    NoCapacity,
    Order,
    QuotaReached,
    Refused,
    Throttled,
    Unauthorized,
    open_to_others,
)
from controller.clouds.rest import Rest
from controller.clouds.sizes import disk_for_jobs, memory_for_jobs
from controller.lifecycle.machines.life import Place
from controller.lifecycle.machines.model import Offer, Reach
from controller.lifecycle.machines.reconcile import Found, Traits
from controller.provider_config.hetzner import HetznerProvider
from fairlead.wire.decoders import decoder_of

INSTALLATION_LABEL = "fairlead-installation"
MACHINE_LABEL = "fairlead-machine"
FLEET_LABEL = "fairlead-fleet"
MAX_USER_DATA = 32 << 10
_VISIBLE_AFTER_SECONDS = 30.0
_THROTTLED_SECONDS = 10.0
_CALL_SECONDS = 60.0
_PER_PAGE = 50
_MAX_NAME = 63
_GIB = 1 << 30
_GB = 10**9
_ARCHITECTURE = "x86"
_MAX_SHOWN = 500
_FINGERPRINT = 12
_NO_CAPACITY = frozenset({"placement_error", "resource_unavailable"})
_UNAUTHORIZED = frozenset({"forbidden", "token_readonly", "unauthorized"})
_OPEN = frozenset({"conflict", "locked", "maintenance", "service_error", "timeout", "unavailable"})
_NAME_TAKEN = "uniqueness_error"
_NOT_FOUND = "not_found"
_SETUP = {
    "image": "image",
    "ssh_key": "ssh_keys",
    "firewall": "firewalls",
    "network": "networks",
}
"""What a refusal names, and the field of the controller's file that it is about."""
_OF_OFFER = ("server_type", "location")
_FIRST_SERVER_ERROR, _TOO_MANY = 500, 429
_SSH_PORT = 22
T = TypeVar("T")


class _Price(msgspec.Struct, frozen=True):
    net: str


class _LocalPrice(msgspec.Struct, frozen=True):
    location: str
    price_hourly: _Price


class _TypeLocation(msgspec.Struct, frozen=True):
    """Where a type may be ordered, and whether Hetzner is about to end that there."""

    name: str
    deprecation: Any = None


class _ServerType(msgspec.Struct, frozen=True, kw_only=True):
    """`memory`, `disk` in GB."""

    name: str
    cores: int
    memory: float
    disk: float
    architecture: str
    deprecation: Any = None
    locations: tuple[_TypeLocation, ...] | None = None
    prices: tuple[_LocalPrice, ...]

    def is_sold_in(self, location: str) -> bool:
        """Return whether orders in this location have a future: `prices` also has locations for
        which the API refuses the type, and since September 2025 `deprecation` is being replaced by
        that of each location (hetznercloud/hcloud-go#730)."""
        if self.locations is None:
            return self.deprecation is None
        return any(one.name == location and one.deprecation is None for one in self.locations)


class _Address(msgspec.Struct, frozen=True):
    ip: str | None = None


class _PublicNet(msgspec.Struct, frozen=True):
    ipv4: _Address | None = None
    ipv6: _Address | None = None


class _Named(msgspec.Struct, frozen=True):
    name: str


class _Server(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    name: str
    created: datetime
    server_type: _Named | None = None
    location: _Named | None = None
    labels: dict[str, str] = {}
    public_net: _PublicNet = _PublicNet()
    private_net: tuple[_Address, ...] = ()


class _Pagination(msgspec.Struct, frozen=True):
    next_page: int | None = None


class _Meta(msgspec.Struct, frozen=True):
    pagination: _Pagination


class _Page(msgspec.Struct, frozen=True, kw_only=True):
    meta: _Meta


class _ServerTypes(_Page, frozen=True, kw_only=True):
    server_types: tuple[_ServerType, ...]


class _Servers(_Page, frozen=True, kw_only=True):
    servers: tuple[_Server, ...]


class _Image(msgspec.Struct, frozen=True):
    type: str
    status: str = "available"
    architecture: str = _ARCHITECTURE


class _AnImage(msgspec.Struct, frozen=True):
    image: _Image


class _Images(msgspec.Struct, frozen=True):
    images: tuple[_Image, ...]


class _Rule(msgspec.Struct, frozen=True):
    """Of a firewall. `port`: one, a range such as 80-85, or `any`; None: the protocol has none."""

    direction: str
    protocol: str
    port: str | None = None

    def lets_in(self, port: int) -> bool:
        if (self.direction, self.protocol) != ("in", "tcp") or self.port is None:
            return False
        first, _, last = self.port.partition("-")
        if not first.isdecimal():
            return self.port == "any"
        return int(first) <= port <= int(last if last.isdecimal() else first)


class _Firewall(msgspec.Struct, frozen=True):
    rules: tuple[_Rule, ...] = ()


class _AFirewall(msgspec.Struct, frozen=True):
    firewall: _Firewall


class _Keys(msgspec.Struct, frozen=True):
    ssh_keys: tuple[Any, ...]


class _Made(msgspec.Struct, frozen=True):
    server: _Server


class _Nothing(msgspec.Struct, frozen=True):
    pass


class _ErrorContent(msgspec.Struct, frozen=True):
    """`details`: of `invalid_input`, the fields that are wrong; of other codes, anything."""

    code: str = ""
    message: str = ""
    details: Any = None

    def fields(self) -> str:
        """Return the names of the fields that are wrong, with a colon before them."""
        found = self.details.get("fields") if isinstance(self.details, dict) else None
        every = found if isinstance(found, list) else []
        names = [str(one["name"]) for one in every if isinstance(one, dict) and "name" in one]
        return f": {', '.join(names)}" if names else ""


class _ErrorAnswer(msgspec.Struct, frozen=True):
    error: _ErrorContent


class _NameTaken(CloudAway):
    """A server of this name exists."""


class _NotFound(CloudAway):
    """There is no such thing in the project, such as a server."""


P = TypeVar("P", bound=_Page)


class HetznerCloud:
    """One project at Hetzner."""

    def __init__(self, name: str, config: HetznerProvider) -> None:
        self.abilities = Abilities(idempotent=True, visible_after=_VISIBLE_AFTER_SECONDS)
        self._name = name
        self._config = config
        self._rest = Rest(partial(_refusal, name), _CALL_SECONDS)
        self._project: tuple[str, str] | None = None
        """The latest token, and the account that it is of."""

    async def close(self) -> None:
        await self._rest.close()

    async def account(self) -> str:
        """Return the project's name in the controller's file, or by what else it is known: the API
        tells no project."""
        if self._config.project is not None:
            return self._config.project
        token = self._token()
        if self._project is None or self._project[0] != token:
            self._project = token, await self._known_by(token)
        return self._project[1]

    async def _known_by(self, token: str) -> str:
        """Return a thing of the controller's file that only tokens of its project see, so that a
        new token changes nothing; without one, what this token is known by. Raises CloudError."""
        config = self._config
        for kind, ids in (("network", config.networks), ("firewall", config.firewalls)):
            for one in ids:
                if await self._sees(_Nothing, token, f"{kind}s/{one}") is not None:
                    return f"{kind}-{one}"
        if isinstance(config.image, int):
            found = await self._sees(_AnImage, token, f"images/{config.image}")
            # All projects have Hetzner's own images.
            if found is not None and found.image.type == "snapshot":
                return f"snapshot-{config.image}"
        digest = hashlib.sha256(token.encode()).hexdigest()
        return f"token-{digest[:_FINGERPRINT]}"

    async def _sees(self, type_: type[T], token: str, path: str) -> T | None:
        """Raises CloudError."""
        url, what = f"{self._config.endpoint}/{path}", f"GET /{path}"
        try:
            return await self._rest.call(type_, "GET", url, token, what=what)
        except _NotFound:
            return None

    async def offers(self) -> KnownOffers:
        pages = await self._pages(_ServerTypes, "server_types")
        offers = (
            self._offer(one, price)
            for page in pages
            for one in page.server_types
            if one.architecture == _ARCHITECTURE
            for price in one.prices
            if price.location in self._config.locations and one.is_sold_in(price.location)
        )
        return KnownOffers(offers=tuple(offers)).at(self._config.rate)

    def _offer(self, one: _ServerType, price: _LocalPrice) -> Offer:
        return Offer(
            provider=self._name,
            instance_type=one.name,
            region=price.location,
            price=float(price.price_hourly.net),
            cpu=float(one.cores),
            memory=memory_for_jobs(int(one.memory * _GIB)),
            disk=disk_for_jobs(int(one.disk * _GB)),
        )

    async def create(self, order: Order) -> Created:
        size = len(order.user_data.encode())
        if size > MAX_USER_DATA:
            raise Refused(f"the user-data has {size} bytes, and Hetzner takes {MAX_USER_DATA}")
        if order.offer.region not in self._config.locations:
            message = f"providers.{self._name}.locations does not name {order.offer.region}"
            raise Refused(message, Reach.REGION)
        try:
            made = await self._call(_Made, "POST", "servers", content=self._request(order))
        except _NameTaken as error:
            return await self._made_before(order, error)
        except (_NotFound, Refused) as error:
            raise self._named(error) from None
        return self._created(made.server)

    def _named(self, error: CloudError) -> Refused:
        """Return the refusal of an order with the field of the controller's file that it is about;
        what that names is the whole project's, unless it only does not go with the offer."""
        text, within = str(error), f"providers.{self._name}"
        lowered = text.lower().replace(" ", "_")
        is_of_offer = any(word in lowered for word in _OF_OFFER)
        # An image may be too large for one server type, and a network not reach one location.
        reach = Reach.OFFER if is_of_offer else Reach.PROVIDER
        for word, field in _SETUP.items():
            if word in lowered:
                return Refused(f"{within}.{field}: {text}", reach)
        if isinstance(error, Refused) or is_of_offer:
            return Refused(text)
        see_to = f"see to {', '.join(_SETUP.values())} of {within}"
        return Refused(f"{text}: {see_to}", Reach.PROVIDER)

    def _request(self, order: Order) -> dict[str, Any]:
        """Return what is asked for: the same for the same order and settings."""
        config = self._config
        request: dict[str, Any] = {
            "name": _name_of(order),
            "server_type": order.offer.instance_type,
            "location": order.offer.region,
            "image": config.image,
            "user_data": order.user_data,
            "labels": {
                INSTALLATION_LABEL: order.installation,
                MACHINE_LABEL: order.machine_id,
                FLEET_LABEL: order.fleet,
            },
            "start_after_create": True,
            "public_net": {"enable_ipv4": config.is_public, "enable_ipv6": config.is_public},
        }
        if config.ssh_keys:
            request["ssh_keys"] = list(config.ssh_keys)
        if config.firewalls:
            request["firewalls"] = [{"firewall": one} for one in config.firewalls]
        if config.networks:
            request["networks"] = list(config.networks)
        return request

    async def _made_before(self, order: Order, taken: _NameTaken) -> Created:
        """Return the machine of this name, if an earlier call of this order made it."""
        for server in await self._servers(name=_name_of(order)):
            labels = server.labels
            if (labels.get(INSTALLATION_LABEL), labels.get(MACHINE_LABEL)) == (
                order.installation,
                order.machine_id,
            ):
                return self._created(server)
            raise Refused(f"a server of another owner has the name {server.name}")
        # It may not be visible yet, or end right now.
        raise taken

    def _created(self, server: _Server) -> Created:
        return Created(instance_id=str(server.id), place=self._place(server))

    async def describe(self, instance_ids: Sequence[str]) -> Mapping[str, Described]:
        wanted = set(instance_ids)
        return {
            str(one.id): Described(place=self._place(one))
            for one in await self._servers(label_selector=MACHINE_LABEL)
            if str(one.id) in wanted
        }

    async def terminate(self, instance_id: str) -> bool:
        try:
            await self._call(_Nothing, "DELETE", f"servers/{instance_id}")
        except _NotFound:
            # An earlier call has deleted it, whose answer was lost.
            return True
        return False

    async def list_tagged(self, installation: str) -> Sequence[Found]:
        return [
            Found(
                instance_id=str(one.id),
                machine_id=one.labels.get(MACHINE_LABEL),
                fleet=one.labels.get(FLEET_LABEL),
                created_at=one.created.timestamp(),
                place=self._place(one),
                traits=Traits(
                    instance_type=None if one.server_type is None else one.server_type.name,
                    region=None if one.location is None else one.location.name,
                ),
            )
            for one in await self._servers(label_selector=f"{INSTALLATION_LABEL}={installation}")
        ]

    async def console(self, instance_id: str) -> str | None:
        """Hetzner shows a console to browsers alone."""
        return None

    async def examine(self) -> Sequence[Examined]:
        exposed = open_to_others(self._name, "token_file", self._config.token_file)
        return [
            *exposed,
            *await self._never_rented(),
            await self._image_there(),
            *await self._keys_there(),
            *await self._networks_there(),
            *await self._firewalls_there(),
        ]

    async def _never_rented(self) -> list[Examined]:
        """Return what the controller's file names in vain."""
        offered = {one.region for one in (await self.offers()).offers}
        field = f"providers.{self._name}.locations"
        return [
            Examined(
                what=f"offers in {location}",
                fault=f"{field}: Hetzner rents no type of machine for x86 in {location!r}",
            )
            for location in self._config.locations
            if location not in offered
        ]

    async def _image_there(self) -> Examined:
        image, what = self._config.image, f"image {self._config.image}"
        try:
            fault, note = await self._judged(image)
        except _NotFound as error:
            fault, note = f"{error}: write the id of a snapshot of this project", None
        except CloudError as error:
            fault, note = str(error), None
        within = f"providers.{self._name}.image: "
        return Examined(
            what=what,
            fault=None if fault is None else within + fault,
            note=None if note is None else within + note,
        )

    async def _judged(self, image: int | str) -> tuple[str | None, str | None]:
        """Return what is wrong with the image, and what is to be known of it. Raises CloudError."""
        if isinstance(image, int):
            every = [(await self._call(_AnImage, "GET", f"images/{image}")).image]
        else:
            every = list((await self._call(_Images, "GET", "images", {"name": image})).images)
        if not every:
            raise _NotFound(f"there is no image of the name {image}")
        # Hetzner's own images have one of each name for each architecture.
        fitting = [one for one in every if one.architecture == _ARCHITECTURE]
        if not fitting:
            return f"it is for {every[0].architecture}, and machines are of {_ARCHITECTURE}", None
        if fitting[0].status != "available":
            return f"it is {fitting[0].status}: wait, or write the id of another snapshot", None
        if fitting[0].type != "snapshot":
            note = f"it is of the type {fitting[0].type}: only an image of Fairlead becomes a node"
            return None, note
        return None, None

    async def _keys_there(self) -> list[Examined]:
        return [
            await self._there("ssh_keys", f"SSH key {key}", self._key(key))
            for key in self._config.ssh_keys
        ]

    async def _key(self, key: int | str) -> None:
        """Raises CloudError."""
        if isinstance(key, int):
            await self._call(_Nothing, "GET", f"ssh_keys/{key}")
        elif not (await self._call(_Keys, "GET", "ssh_keys", {"name": key})).ssh_keys:
            raise _NotFound(f"there is no SSH key of the name {key}")

    async def _networks_there(self) -> list[Examined]:
        return [
            await self._there(
                "networks", f"network {one}", self._call(_Nothing, "GET", f"networks/{one}")
            )
            for one in self._config.networks
        ]

    async def _firewalls_there(self) -> list[Examined]:
        rules: list[_Rule] = []

        async def read(firewall: int) -> None:
            rules.extend(
                (await self._call(_AFirewall, "GET", f"firewalls/{firewall}")).firewall.rules
            )

        found = [
            await self._there("firewalls", f"firewall {one}", read(one))
            for one in self._config.firewalls
        ]
        is_known = bool(found) and all(one.fault is None for one in found)
        # What any of them lets in comes in. Hetzner asks none of them in a private network.
        is_shut = self._config.is_public and not any(one.lets_in(_SSH_PORT) for one in rules)
        if is_known and is_shut:
            fault = (
                f"providers.{self._name}.firewalls: no rule lets TCP port {_SSH_PORT} in, so the "
                f"controller reaches no machine: add one for the controller's address"
            )
            found.append(Examined(what="rules of the firewalls", fault=fault))
        return found

    async def _there(self, field: str, what: str, call: Awaitable[object]) -> Examined:
        """Return whether what the field names is in the project."""
        within = f"providers.{self._name}.{field}: "
        try:
            await call
        except _NotFound as error:
            fix = "name one of this project, or take it out"
            return Examined(what=what, fault=f"{within}{error}: {fix}")
        # A call that fails for another cause tells nothing of what the field names.
        except CloudError as error:
            return Examined(what=what, fault=f"{within}{error}")
        return Examined(what=what)

    def _place(self, server: _Server) -> Place | None:
        if not self._config.is_public:
            host = next((one.ip for one in server.private_net), None)
        else:
            address = server.public_net.ipv4
            host = None if address is None else address.ip
        return Place(host=host) if host else None

    # -- the API ----------------------------------------------------------------------------

    async def _servers(self, **chosen: str) -> list[_Server]:
        """Return all servers that these parameters choose, page by page."""
        pages = await self._pages(_Servers, "servers", **chosen)
        return [one for page in pages for one in page.servers]

    async def _pages(self, type_: type[P], path: str, **chosen: str) -> list[P]:
        pages: list[P] = []
        number: int | None = 1
        while number is not None:
            asked = chosen | {"page": str(number), "per_page": str(_PER_PAGE)}
            page = await self._call(type_, "GET", path, asked)
            pages.append(page)
            number = page.meta.pagination.next_page
        return pages

    def _token(self) -> str:
        """Raises CloudAway."""
        try:
            return self._config.token()
        except (OSError, ValueError) as error:
            raise CloudAway(f"providers.{self._name}.token_file: {error}"[:_MAX_SHOWN]) from None

    async def _call(
        self,
        type_: type[T],
        method: str,
        path: str,
        asked: Mapping[str, str] | None = None,
        content: Mapping[str, Any] | None = None,
    ) -> T:
        """Raises CloudError."""
        url, what = f"{self._config.endpoint}/{path}", f"{method} /{path}"
        return await self._rest.call(
            type_, method, url, self._token(), what=what, asked=asked, content=content
        )


def _name_of(order: Order) -> str:
    """Return the server's name: unique in the project also among several installations."""
    end = f"-{order.token[:12]}"
    return order.name[: _MAX_NAME - len(end)] + end


def _refusal(name: str, what: str, status: int, body: bytes) -> CloudError:
    try:
        content = decoder_of(_ErrorAnswer).decode(body).error
    # A proxy on the way, or another server at `endpoint`, answers with a page of its own.
    except msgspec.MsgspecError:
        content = _ErrorContent()
    code = content.code
    cause = f"{code or status}{content.fields()}"
    text = f"{what}: {content.message or 'no reason'} ({cause})"[:_MAX_SHOWN]
    if code in _NO_CAPACITY:
        return NoCapacity(text)
    if code == "resource_limit_exceeded":
        return QuotaReached(text)
    if status == _TOO_MANY or code == "rate_limit_exceeded":
        return Throttled(text, _THROTTLED_SECONDS)
    if code in _UNAUTHORIZED:
        return Unauthorized(text)
    if code == _NAME_TAKEN:
        return _NameTaken(text)
    if code == _NOT_FOUND:
        return _NotFound(text)
    if status >= _FIRST_SERVER_ERROR or code in _OPEN:
        return CloudAway(text)
    if not code:
        why = f"{what}: status {status}, in words that are not of Hetzner's API"
        return CloudAway(f"{why}: see to providers.{name}.endpoint, and to proxies on the way")
    return Refused(text)
