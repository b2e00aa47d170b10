"""Gateways: an admin adds and removes them; a service asks for one, and its users are let in."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import re
from collections.abc import Callable, Iterable, Mapping

import msgspec

from common.refusals import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    ServiceError,
    Unauthenticated,
    Unavailable,
    Unprocessable,
)
from controller.clock import Clock
from controller.gateways.manager import GatewayManager
from controller.gateways.session import GatewayAway, GatewaySession, HostTaken
from controller.gateways.snapshots import url_of
from controller.lifecycle.inventory import NodeAddress
from controller.lifecycle.model import Run, RunState
from controller.service.accounts.rights import require_admin, sees_all
from controller.service.accounts.users import Gate
from controller.service.machines.nodes import check_address, check_word
from controller.service.ssh_keys import HostKeys, trusted_key
from controller.store.accounts import User
from controller.store.base import Gateway
from controller.traffic.routes import RouteTable
from fairlead.configuration.runs.plan import Plan
from fairlead.configuration.runs.service import is_gateway_name
from fairlead.model.dev_environment import browser_service
from fairlead.model.service import Https, ServicePolicy
from fairlead.wire.gateway import AGENT_SOCKET, Answer, Certificate, HostCertificate, Question

FIRST_GREETING_SECONDS = 20.0
SETTLE_SECONDS = 25.0
"""It is longer than the agent waits for Caddy."""
PUBLIC_PORTS = (None, 80, 443)
CERTIFICATES = ("lets-encrypt", "internal", "none", "files")
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"(?=.{{1,190}}$)({_LABEL}\.)*{_LABEL}", re.ASCII)
_URL = re.compile(r"https?://[!-~]{1,500}", re.ASCII)
_EMAIL = re.compile(r"[^@\s]{1,100}@[^@\s]{1,150}", re.ASCII)


class CertificateRequest(Certificate, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gateway's certificate as an admin writes it. Agents and stored gateways take what a newer
    one knows."""


class GatewayRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gateway to add or change: `local_socket`, or `host` with `host_key` or
    `accept_host_key`."""

    name: str
    domain: str
    local_socket: str | None = None
    host: str | None = None
    port: int = 22
    user: str = "fairlead"
    socket: str = AGENT_SOCKET
    host_key: str | None = None
    accept_host_key: str | None = None
    certificate: CertificateRequest = CertificateRequest()
    default: bool = False


class GatewayNow(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway, and how its agent is."""

    gateway: Gateway
    is_up: bool
    message: str | None
    version: str | None
    services: tuple[str, ...]
    """The names of the live services that use it."""
    certificates: tuple[HostCertificate, ...] = ()
    """The certificates of its services' hosts, as its agent last saw them."""


class GatewayService:
    def __init__(
        self,
        *,
        gateways: GatewayManager,
        routes: RouteTable,
        clock: Clock,
        host_keys: HostKeys,
        live_runs: Callable[[], Iterable[RunState]],
        own_url: Callable[[str], str | None],
    ) -> None:
        """`own_url`: the address of a service at a host name of this controller; None: no such."""
        self._gateways = gateways
        self._routes = routes
        self._clock = clock
        self._host_keys = host_keys
        self._live_runs = live_runs
        self._own_url = own_url
        self._changing = asyncio.Lock()

    # -- what an admin does -----------------------------------------------------------------

    def all(self) -> list[GatewayNow]:
        names = sorted(self._gateways.gateways)
        return [self.get(name) for name in names]

    def get(self, name: str) -> GatewayNow:
        """Raises NotFound."""
        gateway = self._gateways.gateways.get(name)
        if gateway is None:
            raise NotFound(
                f"there is no gateway {name!r}; `fairlead gateway list` shows them",
                field="gateway",
            )
        session = self._gateways.session(name)
        return GatewayNow(
            gateway=gateway,
            is_up=session is not None and session.is_up,
            message=None if session is None else session.message,
            version=None if session is None else session.version,
            services=self._services(name),
            certificates=() if session is None else session.certificates,
        )

    async def add(self, request: GatewayRequest, *, user: User) -> GatewayNow:
        """Add a gateway whose agent answers and can use its settings. Raises Invalid, Conflict,
        Refused, Unprocessable, Unavailable, Forbidden."""
        require_admin(user, "add a gateway")
        async with self._changing:
            if request.name in self._gateways.gateways:
                raise Conflict(f"a gateway named {request.name} exists already", field="name")
            # Saved first: only a saved gateway has the session over which its agent can answer.
            await self._gateways.save(await self._gateway(request))
            try:
                await self._answers(request.name)
                await self._settles(request.name)
            # A client that goes away cancels its request: nothing of it stays, as after a refusal.
            except (Unavailable, Unprocessable, asyncio.CancelledError):
                await self._gateways.remove(request.name)
                raise
        return self.get(request.name)

    async def put(self, request: GatewayRequest, *, user: User) -> GatewayNow:
        """Add a gateway, or change the one with this name. Raises as `add` does."""
        require_admin(user, "change a gateway")
        known = self._gateways.gateways.get(request.name)
        if known is None:
            return await self.add(request, user=user)
        async with self._changing:
            if request.domain != known.domain and (used := self._services(request.name)):
                raise Conflict(
                    f"the domain of gateway {request.name} cannot change while services use it: "
                    f"{', '.join(used)}",
                    code="gateway_in_use",
                    field="domain",
                )
            changed = await self._gateway(request, known)
            await self._gateways.save(changed)
            try:
                if (changed.domain, changed.certificate) != (known.domain, known.certificate):
                    await self._settles(request.name)
            # Also when the request is cut off: nobody would hear that the new settings do not work.
            except (Unprocessable, asyncio.CancelledError):
                await self._gateways.save(known)
                raise
        return self.get(request.name)

    async def remove(self, name: str, *, user: User) -> GatewayNow:
        """Remove a gateway that no live service uses. Raises NotFound, Conflict, Forbidden."""
        require_admin(user, "remove a gateway")
        async with self._changing:
            found = self.get(name)
            if found.services:
                raise Conflict(
                    f"gateway {name} is used by {', '.join(found.services)}: stop them first",
                    code="gateway_in_use",
                    field="gateway",
                )
            await self._gateways.remove(name)
        return found

    def _services(self, name: str) -> tuple[str, ...]:
        live = (state.run for state in self._live_runs())
        return tuple(
            sorted(run.name for run in live if run.service and run.service.gateway == name)
        )

    async def _answers(self, name: str) -> None:
        session = self._gateways.session(name)
        assert session is not None, "it was just saved"
        try:
            async with asyncio.timeout(FIRST_GREETING_SECONDS):
                await session.until(_is_decided)
        # What its session says of it tells more than that time is over.
        except TimeoutError:
            pass
        if not session.is_up:
            raise Unavailable(
                f"the agent of gateway {name} cannot be reached: "
                f"{session.message or 'it does not answer'}",
                code="gateway_unreachable",
                field="host",
            )

    async def _settles(self, name: str) -> None:
        """Wait until a connected agent has applied the gateway's settings. Raises Unprocessable
        when it could not."""
        session = self._gateways.session(name)
        assert session is not None, "it was just saved"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                await session.until(lambda one: not one.is_up or one.has_settings)
        refused = session.refused
        if refused is not None and session.has_settings:
            raise Unprocessable(
                f"gateway {name} cannot use its {refused.field or 'settings'}: {refused.error}",
                code="gateway_refused",
                field=refused.field,
            )

    async def _gateway(self, request: GatewayRequest, known: Gateway | None = None) -> Gateway:
        _check(request)
        for other in self._gateways.gateways.values():
            if other.domain == request.domain and other.name != request.name:
                raise Conflict(
                    f"the domain {request.domain} is of gateway {other.name}", field="domain"
                )
        address = await self._address(request, known)
        self._check_address(request, address)
        return Gateway(
            name=request.name,
            domain=request.domain,
            address=address,
            certificate=Certificate(**msgspec.structs.asdict(request.certificate)),
            is_default=request.default,
            key=None if known is None else known.key,
            created_at=self._clock.now() if known is None else known.created_at,
        )

    def _check_address(self, request: GatewayRequest, address: NodeAddress) -> None:
        """Raises Conflict: one agent serves one gateway."""
        own = (address.host, address.port, address.shim_socket)
        for other in self._gateways.gateways.values():
            its = (other.address.host, other.address.port, other.address.shim_socket)
            if its == own and other.name != request.name:
                raise Conflict(
                    f"the agent at {address.host or ''}{address.shim_socket} serves gateway "
                    f"{other.name} already; a gateway needs a machine of its own",
                    field="host" if address.host else "local_socket",
                )

    async def _address(self, request: GatewayRequest, known: Gateway | None) -> NodeAddress:
        if request.local_socket is not None:
            return NodeAddress(shim_socket=request.local_socket, local_socket=True)
        assert request.host is not None, "checked"
        host_key = request.host_key
        if host_key is None and request.accept_host_key is None and known is not None:
            same = (known.address.host, known.address.port) == (request.host, request.port)
            host_key = known.address.host_key if same else None
        key = await trusted_key(
            self._host_keys,
            host=request.host,
            port=request.port,
            host_key=host_key,
            accepted=request.accept_host_key,
        )
        return NodeAddress(
            shim_socket=request.socket,
            host=request.host,
            port=request.port,
            user=request.user,
            host_key=key,
        )

    # -- what a service asks for ------------------------------------------------------------

    def chosen(self, plan: Plan, present: Run | None = None) -> Plan:
        """See `with_gateway`."""
        return with_gateway(plan, self._gateways.gateways, present)

    async def claim(self, service: ServicePolicy | None, name: str) -> None:
        """Reserve the host name of a service that is being submitted. Raises Unavailable,
        Conflict."""
        if service is None or service.gateway is None:
            return
        try:
            await self._gateways.claim(service.gateway, name)
        except GatewayAway as error:
            raise Unavailable(
                f"gateway {service.gateway} does not answer, so the service cannot be registered: "
                f"{error}",
                code="gateway_unreachable",
                field="gateway",
            ) from None
        except HostTaken as error:
            raise Conflict(
                f"gateway {service.gateway} refuses the service's host name: {error}",
                code="host_taken",
                field="name",
            ) from None

    def url(self, run: Run) -> str | None:
        """Return the address of a service, or of an IDE in the browser, at a host name of its own:
        its gateway's, else the controller's. None: it has none."""
        service = run.service or browser_service(run.policy.dev_environment)
        if service is None:
            return None
        gateway = self._gateways.gateways.get(service.gateway or "")
        if gateway is None:
            return self._own_url(run.name)
        return url_of(run.name, service.https, gateway)


def _is_decided(session: GatewaySession) -> bool:
    return session.is_up or session.message is not None


def _check(request: GatewayRequest) -> None:
    if not is_gateway_name(request.name):
        raise Invalid(
            f"{request.name!r} is not a gateway's name: lowercase letters, digits and -",
            field="name",
        )
    if not _DOMAIN.fullmatch(request.domain):
        raise Invalid(
            f"{request.domain!r} is not a domain such as apps.example.com: write it in lowercase, "
            "without a scheme and without `*.`",
            field="domain",
        )
    if (request.local_socket is None) == (request.host is None):
        raise Invalid(
            "give either `host` or `local_socket` (an agent on the controller's machine)",
            field="host",
        )
    for field, path in (("local_socket", request.local_socket), ("socket", request.socket)):
        if path is not None and not path.startswith("/"):
            raise Invalid(f"{path!r} is not an absolute path", field=field)
    check_word(request.user, "user")
    if request.host is not None:
        check_address(request.host, request.port)
    if request.host_key is not None and request.accept_host_key is not None:
        raise Invalid("give host_key or accept_host_key, not both", field="host_key")
    _check_certificate(request.certificate)


def _check_certificate(wanted: Certificate) -> None:
    if wanted.kind not in CERTIFICATES:
        raise Invalid(
            f"{wanted.kind!r} is no kind of certificate: {', '.join(CERTIFICATES)}",
            field="certificate",
        )
    paths = (wanted.cert, wanted.key)
    if wanted.kind == "files" and not all(path and path.startswith("/") for path in paths):
        raise Invalid(
            "a certificate of files needs `cert` and `key`: absolute paths on the gateway's "
            "machine",
            field="certificate",
        )
    if wanted.kind != "files" and any(paths):
        raise Invalid("`cert` and `key` belong to a certificate of files", field="certificate")
    of_acme = (wanted.email, wanted.directory, wanted.directory_ca)
    if wanted.kind != "lets-encrypt" and any(of_acme):
        raise Invalid(
            "`email`, `directory` and `directory_ca` belong to lets-encrypt", field="certificate"
        )
    if wanted.email is not None and not _EMAIL.fullmatch(wanted.email):
        raise Invalid(f"{wanted.email!r} is not an e-mail address", field="certificate.email")
    if wanted.directory is not None and not _URL.fullmatch(wanted.directory):
        raise Invalid(f"{wanted.directory!r} is not a URL", field="certificate.directory")


class GatewayAccess:
    """Answers the questions of gateways: who may use a service, by the digest of a token or key.

    The rules are those of `common.proxy.access`; the secret itself never leaves the gateway.
    """

    def __init__(self, gate: Gate, routes: RouteTable) -> None:
        self._gate = gate
        self._routes = routes

    def answer(self, question: Question) -> Answer:
        try:
            self._admit(question)
        except ServiceError as error:
            return Answer(id=question.id, allowed=False, status=error.status, message=error.message)
        return Answer(id=question.id, allowed=True)

    def _admit(self, question: Question) -> None:
        route = self._routes.get(question.run_id)
        if route is None:
            raise NotFound("there is no such service any more")
        for key in self._gate.service_keys:
            if (key.service, key.user) == (route.name, route.user) and hmac.compare_digest(
                key.digest, question.digest
            ):
                return
        if question.is_key:
            raise Unauthenticated(f"this is no key of the service {route.name}, or it was revoked")
        held = self._gate.granted(question.digest, question.run_id)
        token = held.token if held is not None else self._gate.token_of_digest(question.digest)
        user = self._gate.users[token.user]
        if not sees_all(user) and user.name != route.user:
            raise Forbidden(
                f"the service {route.name} belongs to {route.user}; ask for a key of it "
                f"(`fairlead service key add {route.name}`)",
                field="service",
            )


def with_gateway(plan: Plan, gateways: Mapping[str, Gateway], present: Run | None = None) -> Plan:
    """Return the plan with the name of its gateway, of these. `present`: the live service that the
    plan changes, which keeps its gateway unless the plan names one. Raises Unprocessable."""
    if plan.service is None:
        return plan
    name = _gateway_of(plan, gateways, present)
    if name is None and plan.service.https is Https.ON:
        raise Unprocessable(
            "https: true needs a gateway: without one a service's URL is the controller's own",
            field="https",
        )
    public = plan.service.public_port
    if name is not None and public not in PUBLIC_PORTS:
        raise Unprocessable(
            f"gateway {name} serves all services at its ports 80 and 443, not at {public}: "
            f"write `port: {plan.service.port}`",
            field="port",
        )
    if name is not None:
        certificate = gateways[name].certificate
        if plan.service.https is Https.ON and certificate.kind == "none":
            raise Unprocessable(
                f"https: true needs a gateway with a certificate; {name} has none",
                field="https",
            )
    if name == plan.service.gateway:
        return plan
    service = msgspec.structs.replace(plan.service, gateway=name)
    return msgspec.structs.replace(plan, service=service)


def _gateway_of(plan: Plan, known: Mapping[str, Gateway], present: Run | None) -> str | None:
    wanted = plan.gateway
    if wanted is None and present is not None and present.service is not None:
        return present.service.gateway
    default = next((one.name for one in known.values() if one.is_default), None)
    if wanted is None or wanted is False:
        return default if wanted is None else None
    if wanted is True:
        if default is None and len(known) == 1:
            return next(iter(known))
        if default is None:
            raise Unprocessable(
                "gateway: true means the default gateway, and there is none; an admin makes "
                "one with `fairlead gateway add … --default`",
                code="no_gateway",
                field="gateway",
            )
        return default
    if wanted not in known:
        there = ", ".join(sorted(known)) or "none"
        raise Unprocessable(
            f"there is no gateway {wanted} (there: {there})",
            code="no_gateway",
            field="gateway",
        )
    return wanted
