"""The controller behind the seams of the proxy: its services, its counts, its tokens and keys.

Services are those of the routes of the last commits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager

from common.proxy.access import hidden_headers, how_to_be_admitted, secret_of
from common.proxy.view import Admission, Connect, Replica, RequestLimit, Service
from common.refusals import Forbidden, Unauthenticated
from common.streams import PortStream
from common.tokens import BROWSER_PREFIX, KEY_PREFIX, digest
from controller.lifecycle import reports
from controller.links.base import NodeConnection
from controller.pipelines.run_pipeline import RunPipeline
from controller.proxy.sealed import SealedSessions
from controller.service.accounts.rights import sees_all
from controller.service.accounts.users import Credential, Gate
from controller.store.accounts import ServiceKey
from controller.traffic.routes import Route, RouteTable
from controller.traffic.statistics import Request, Traffic


def through_runners(connection: Callable[[str], Awaitable[NodeConnection]]) -> Connect:
    """Reach replicas through their nodes' connections and the relays of their jobs' runners."""

    async def connect(replica: Replica) -> PortStream:
        node = await connection(replica.node_id)
        return await node.runner(replica.socket).connect_port(replica.port)

    return connect


class RegisteredServices:
    """Finds services by the routes; a request that waits wakes its service (`Services`)."""

    def __init__(self, routes: RouteTable, pipeline: RunPipeline) -> None:
        self._routes = routes
        self._pipeline = pipeline
        self._made: dict[str, tuple[Route, Service]] = {}

    def find(self, name: str) -> Service | None:
        route = self._routes.named(name)
        return None if route is None else self._service(route)

    def all(self) -> Iterable[Service]:
        """Return the services in the order of their submission; those that are ending last, so that
        another service of the same model gets its requests."""
        routes = sorted(self._routes.all(), key=lambda route: route.ending)
        return [self._service(route) for route in routes]

    def wake(self, run_id: str) -> None:
        route = self._routes.get(run_id)
        if route is not None and route.sleeping:
            self._pipeline.post(reports.WakeRequested(run_id=run_id))

    async def changed(self, run_id: str) -> None:
        await self._routes.changed(run_id)

    def _service(self, route: Route) -> Service:
        """Return the service of this route; the same object as long as the route is the same."""
        known = self._made.get(route.name)
        if known is None or known[0] is not route:
            self._forget_ended()
            known = self._made[route.name] = (route, service_of(route))
        return known[1]

    def _forget_ended(self) -> None:
        for name in [name for name in self._made if self._routes.named(name) is None]:
            del self._made[name]


def service_of(route: Route) -> Service:
    service = route.service
    limits = service.rate_limits
    return Service(
        run_id=route.run_id,
        name=route.name,
        owner=route.user,
        auth=service.auth,
        strip_prefix=service.strip_prefix,
        model=service.model,
        model_prefix=service.model_prefix,
        headers=service.headers,
        eject_for=service.eject_for,
        groups=tuple(group.name for group in service.groups),
        rate_limits=tuple(
            RequestLimit(prefix=one.prefix, header=one.header, rps=one.rps, burst=one.burst + 1)
            for one in limits
        ),
        replicas=tuple(
            Replica(
                id=one.attempt_id,
                group=one.group,
                node_id=one.node_id,
                socket=one.runner_socket,
                port=one.port,
            )
            for one in route.replicas
        ),
        is_held=not route.ending and all(group.least == 0 for group in service.groups),
        reconnects=not route.ending and bool(route.unreached),
    )


class CountedRequest:
    """A request that was counted (`Counted`)."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def end(self, *, failed: bool = False, is_stream: bool = False) -> None:
        self._request.end(failed=failed, is_stream=is_stream)


class CountedTraffic:
    """Counts the proxy's requests for scaling and drains (`Traffic`)."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic

    def begin(self, service: Service, replica: Replica | None) -> CountedRequest:
        group = service.groups[0] if replica is None else replica.group
        attempt_id = None if replica is None else replica.id
        return CountedRequest(self._traffic.begin(service.run_id, group, attempt_id))

    def ejected(self, replica: Replica, seconds: float) -> None:
        self._traffic.ejected(replica.id, seconds)


class GateAccess:
    """Admits by the tokens and keys of the controller (`Access`). `sealed`: opens sessions of
    browsers that are in their cookies."""

    def __init__(self, gate: Gate, sealed: SealedSessions | None = None) -> None:
        self._gate = gate
        self._sealed = sealed

    async def admit(self, service: Service, authorization: str) -> Admission:
        secret, hidden = secret_of(service, authorization), hidden_headers(service, authorization)
        if secret is None:
            return Admission(secret_headers=hidden)
        key = self._gate.service_key(secret, service.name, service.owner)
        if key is not None:
            return Admission(credential=key, secret_headers=hidden)
        if secret.startswith(KEY_PREFIX):
            raise Unauthenticated(
                f"this is no key of the service {service.name}, or it was revoked; "
                f"{how_to_be_admitted(service.name)}"
            )
        held = self._held(secret, service.run_id)
        user = self._gate.users[held.token.user]
        if not sees_all(user) and user.name != service.owner:
            raise Forbidden(
                f"the service {service.name} belongs to {service.owner}; ask for a key of it "
                f"(`fairlead service key add {service.name}`)",
                field="service",
            )
        return Admission(credential=held, secret_headers=hidden)

    def _held(self, secret: str, run_id: str) -> Credential:
        """Raises Unauthenticated."""
        if not secret.startswith(BROWSER_PREFIX):
            return Credential(token=self._gate.token_of(secret))
        session = None if self._sealed is None else self._sealed.granted(secret, run_id)
        if session is not None:
            token = self._gate.token_by_id(session.token_id)
            found = Credential(token=token, login=session.login)
            self._gate.require_login(found)
            return found
        # A code that goes on would open sessions for as long as one holds, the last for twice that.
        held = self._gate.granted(digest(secret), run_id, once=self._sealed is not None)
        if held is None:
            raise Unauthenticated("this browser's session has ended; open the service again")
        return held

    @contextmanager
    def while_admitted(self, admission: Admission, end: Callable[[], object]) -> Iterator[None]:
        if isinstance(admission.credential, Credential | ServiceKey):
            with self._gate.until_it_ends(admission.credential, end):
                yield
        else:
            yield
