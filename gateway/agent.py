"""The agent as a process (`serve`), and its parts: the controller's link, requests, certificates.

It serves two unix sockets: one for the controller, through SSH, and one for HAProxy, which has all
requests from outside. What it serves is on disk, so it goes on while the controller is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import asyncssh
import msgspec
from aiohttp import web

from common.http import is_our_failure, json_response
from common.links.host_keys import public_line
from common.links.node_links import NodeLinks
from common.proxy import headers, models
from common.proxy.browsers.site import Site
from common.proxy.entry import Proxy, Settings, tidy
from common.proxy.forwarding import ProxyLimits
from common.proxy.outliers import Outliers
from common.proxy.reported import ReportedTraffic
from common.sockets import BACKLOG, held_by_systemd
from fairlead.wire.gateway import (
    HEALTH_PATH,
    LINK_PATH,
    Applied,
    Certificate,
    Certificates,
    Counts,
    Hello,
    InFlight,
    Reached,
    Snapshot,
    Wake,
)
from gateway import caddy, direct
from gateway.access import AskingAccess
from gateway.caddy import CaddyRefused
from gateway.certificates import BadFile, HostCertificates, Pair, check_files
from gateway.direct import DirectWays
from gateway.fast_path import FastPath
from gateway.fast_plan import fast_services
from gateway.fast_sockets import LogSocket
from gateway.haproxy import ADMITTED, Haproxy, Limits, Paths, Ports
from gateway.link import ControllerLink
from gateway.reach import ReplicaReach
from gateway.served import SnapshotServices, service_of
from gateway.ssh_forwards import SshForwards
from gateway.state import AgentState, StateUnusable

log = logging.getLogger(__name__)
MODELS_NAME = "gateway"
"""The host `gateway.DOMAIN` leads to the services' models."""
AGAIN_SECONDS = 2.0
FILES_SECONDS = 5.0
"""Seconds between two looks at the operator's files of a certificate."""
SHUTDOWN_SECONDS = 5.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's options. Groups are ids; None: the files stay in the process's own group."""

    data: Path
    socket: Path
    traffic: Path
    caddy_admin: Path
    haproxy: Path
    """The folder of HAProxy."""
    group: int | None = None
    """It may open `socket`: that of the controller's SSH user."""
    ports: Ports = Ports()

    @property
    def paths(self) -> Paths:
        return Paths.of(self.haproxy, self.traffic, self.socket.parent, self.data)


class AgentCannotStart(Exception):
    """The message says what the operator must change."""


async def serve(options: Options, ready: Callable[[], None]) -> None:
    """Run the agent until SIGTERM or SIGINT. Raises AgentCannotStart."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    state = AgentState(options.data)
    try:
        identity = await asyncio.to_thread(state.identity)
        known = await asyncio.to_thread(state.snapshot)
    except StateUnusable as error:
        raise AgentCannotStart(str(error)) from error
    agent = Agent(options, state, identity)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(agent.close)
        keeping = asyncio.create_task(agent.keep_certificates(), name="settings")
        stack.callback(keeping.cancel)
        if known is not None:
            agent.begin(known, is_known=True)
        await _listen(stack, traffic_app(agent), options.traffic, None)
        await _start_fast_path(stack, agent, options, state.key)
        if known is not None:
            applied = await agent.take(known)
            if applied.error is not None:
                log.warning("%s", applied.error)
        # Last: the snapshot from the disk must not replace a newer one of the controller.
        await _listen(stack, control_app(agent), options.socket, options.group)
        ready()
        await stop.wait()
        await agent.link.close()  # else its handler would use up the time for requests
        if agent.fast_path is not None:
            await agent.fast_path.close(SHUTDOWN_SECONDS)


class Agent:
    """Performs what the link commands (`gateway.link.Served`), and answers HAProxy."""

    def __init__(self, options: Options, state: AgentState, identity: asyncssh.SSHKey) -> None:
        loop = asyncio.get_running_loop()
        self.link = ControllerLink()
        self.nodes = NodeLinks(identity)
        self._reach = ReplicaReach(self.nodes.connect, self._reach_changed)
        self.services = SnapshotServices(lambda run_id: self.link.say(Wake(run_id=run_id)))
        self.traffic = ReportedTraffic(loop.time, self._emptied)
        self._outliers = Outliers(loop.time)
        self.fast_path: FastPath | None = None
        self._access = AskingAccess(self.link.ask, loop.time, self._admitted)
        self._options = options
        self._state = state
        self._key = public_line(identity)
        self._snapshot: Snapshot | None = None
        self._claims: dict[str, float] = {}
        self._proxy: Proxy | None = None
        self._wants_settings = asyncio.Event()
        self._caddy_has: tuple[Certificate, frozenset[str]] | None = None
        self._refused: str | None = None
        """Why the newest settings do not hold."""
        self.haproxy = Haproxy(options.paths)
        self._certificates = HostCertificates(
            options.paths.certificates,
            self.haproxy,
            lambda: self.link.say(self.certificates()),
        )

    # -- what the link asks (`Served`) ------------------------------------------------------

    def hello(self) -> Hello:
        known = self._snapshot
        return Hello(
            version=_VERSION,
            key=self._key,
            serves=None if known is None else known.gateway,
            controller="" if known is None else known.controller,
            tries_replicas=True,
        )

    async def apply(self, snapshot: Snapshot) -> Applied:
        """Keep the snapshot and serve it."""
        try:
            await asyncio.to_thread(self._state.keep, snapshot)
        except OSError as error:
            why = f"the gateway cannot store what it serves: {error.strerror}"
            return Applied(version=snapshot.version, error=why)
        return await self.take(snapshot)

    async def take(self, snapshot: Snapshot) -> Applied:
        """Serve the snapshot."""
        self.begin(snapshot)
        if self.fast_path is not None:
            limits = Limits(
                seconds=snapshot.limits.timeout,
                most_body=snapshot.limits.most_body,
                has_challenges=snapshot.certificate.kind == "lets-encrypt",
            )
            await self.fast_path.update(fast_services(snapshot, self.services.find), limits)
        for service in snapshot.services:
            self._claims.pop(service.host, None)
        return await self._set_certificates(snapshot)

    def begin(self, snapshot: Snapshot, *, is_known: bool = False) -> None:
        """Answer requests by this snapshot. `is_known`: it was served in an earlier life."""
        before, self._snapshot = self._snapshot, snapshot
        self.nodes.update(snapshot.nodes)
        replicas = [one for each in snapshot.services for one in service_of(each).replicas]
        self._reach.update(replicas, are_known=is_known)
        self.services.update(snapshot, self._reach.reached)
        settings = (snapshot.limits, snapshot.browsers)
        if self._proxy is None or before is None or settings != (before.limits, before.browsers):
            if self._proxy is not None:
                self._proxy.close()
            self._proxy = self._make_proxy(snapshot)

    def claim(self, host: str, seconds: float) -> str | None:
        now = asyncio.get_running_loop().time()
        self._claims = {one: until for one, until in self._claims.items() if until > now}
        domain = "" if self._snapshot is None else self._snapshot.domain
        name = headers.service_of_host(host, domain)
        if name is None:
            return f"{host} is not below this gateway's domain {domain}"
        if name == MODELS_NAME:
            return f"{host} is the gateway's own name; give the service another one"
        if self.services.find(name) is not None or host in self._claims:
            return f"{host} is taken"
        self._claims[host] = now + seconds
        return None

    def revoke(self, digest: str) -> None:
        self._access.revoke(digest)
        if self.fast_path is not None:
            self.fast_path.revoked(digest)

    def _admitted(self, run_id: str, digest: str) -> None:
        if self.fast_path is not None:
            self.fast_path.admitted(run_id, digest)

    def take_counts(self) -> Counts:
        return Counts(groups=self.traffic.take(), ejected=self._outliers.seconds_left())

    def in_flight(self) -> InFlight:
        known = self._snapshot
        number = 0 if known is None else known.version
        counts = dict(self.traffic.in_flight)
        if self.fast_path is not None:
            for replica, count in self.fast_path.in_flight().items():
                counts[replica] = counts.get(replica, 0) + count
        return InFlight(version=number, replicas=counts)

    def reached(self) -> Reached:
        return Reached(replicas=self._reach.findings())

    def _reach_changed(self) -> None:
        if self._snapshot is not None:
            self.services.update(self._snapshot, self._reach.reached)
            if self.fast_path is not None:
                self.fast_path.changed(fast_services(self._snapshot, self.services.find))
        self.link.say(self.reached())

    def certificates(self) -> Certificates:
        return Certificates(hosts=self._certificates.found())

    def _emptied(self, replica: str) -> None:
        known = self._snapshot
        services = () if known is None else known.services
        if any(replica in service.draining for service in services):
            self.link.say(self.in_flight())

    def _make_proxy(self, snapshot: Snapshot) -> Proxy:
        limits = ProxyLimits(
            answer_seconds=snapshot.limits.timeout,
            hold_seconds=snapshot.limits.hold,
            most_body=snapshot.limits.most_body,
        )
        site = Site(
            public_url=snapshot.browsers.dashboard,
            allows_plain_http=snapshot.browsers.allows_plain_http,
            is_behind_proxy=True,
        )
        return Proxy(
            services=self.services,
            traffic=self.traffic,
            access=self._access,
            connect=self.nodes.connect,
            settings=Settings(site=site, is_gateway=True, limits=limits),
            outliers=self._outliers,
        )

    # -- certificates -----------------------------------------------------------------------

    async def _set_certificates(self, known: Snapshot) -> Applied:
        """Get certificates as the snapshot says. A failure is tried again in the background."""
        try:
            source = await self._source(known)
        except (BadFile, CaddyRefused) as refused:
            self._wants_settings.set()
            self._refused = str(refused)
            return Applied(version=known.version, error=self._refused, field=refused.field)
        hosts = [service.host for service in known.services]
        self._certificates.update(hosts, source, others=(_host_of_models(known),))
        self._refused = None
        return Applied(version=known.version)

    async def _source(self, known: Snapshot) -> Pair | Path | None:
        """Return where certificates come from. Raises BadFile, CaddyRefused."""
        if caddy.gets_certificates(known.certificate):
            hosts = frozenset(service.host for service in known.services)
            return await self._set_caddy(known.certificate, hosts | {_host_of_models(known)})
        with contextlib.suppress(CaddyRefused):  # it has nothing to do
            await self._set_caddy(known.certificate, frozenset())
        if known.certificate.kind == "none":
            return None
        now = datetime.datetime.now(datetime.UTC)
        return await asyncio.to_thread(check_files, known.certificate, known.domain, now)

    async def _set_caddy(self, certificate: Certificate, hosts: frozenset[str]) -> Path:
        """Let Caddy get these certificates; return where it keeps them. Raises CaddyRefused."""
        storage = caddy.storage_of(self._options.data / "caddy", certificate)
        if self._caddy_has != (certificate, hosts):
            admin = str(self._options.caddy_admin)
            config = caddy.configuration(
                certificate,
                hosts,
                admin=admin,
                storage=storage,
                challenges=self._options.ports.challenges,
            )
            await caddy.apply(config, admin)
            self._caddy_has = (certificate, hosts)
        return storage

    async def keep_certificates(self) -> None:
        """Keep them in step, and try again what failed, until cancelled."""
        showing = asyncio.create_task(self._certificates.keep(), name="certificates")
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FILES_SECONDS):
                        await self._wants_settings.wait()
                        await asyncio.sleep(AGAIN_SECONDS)
                self._wants_settings.clear()
                if self._snapshot is not None:
                    before = self._refused
                    applied = await self._set_certificates(self._snapshot)
                    if applied.error != before:
                        self.link.say(applied)
        finally:
            showing.cancel()

    # -- requests ---------------------------------------------------------------------------

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request that HAProxy passed on."""
        host = request.host.rsplit(":", 1)[0].lower()
        known, proxy = self._snapshot, self._proxy
        if known is None or proxy is None:
            return _refusal(503, "this gateway was not told yet what it serves")
        name = headers.service_of_host(host, known.domain)
        if name is None:
            return _refusal(404, f"there is no service at {host}")
        offered = self.services.offered(name)
        may_be_plain = offered is not None and offered.https == "off"
        is_plain = request.headers.get("X-Forwarded-Proto") == "http"
        if is_plain and known.certificate.kind != "none" and not may_be_plain:
            return web.Response(status=308, headers={"Location": _secure(request, self._options)})
        if name == MODELS_NAME and offered is None:
            if not headers.origin_form(request.raw_path).startswith(models.MODELS + "/"):
                return _refusal(404, f"{host} has the services' models below {models.MODELS}")
            return await proxy.answer_as(request, None)
        return await proxy.answer_as(request, name, admitted_by=ADMITTED)

    def open_fast_path(self, key: Path) -> FastPath:
        """Make the fast path; `direct.prepare` comes first. Raises OSError."""
        paths = self._options.paths
        paths.servers.mkdir(mode=0o700, exist_ok=True)
        self.fast_path = FastPath(
            self.haproxy,
            partial(SshForwards, paths.servers, key),
            self.nodes,
            self.traffic,
            self._emptied,
            paths.server,
            self._outliers,
            DirectWays(paths, self.nodes.ask_direct, self.haproxy.trust_nodes),
        )
        return self.fast_path

    async def close(self) -> None:
        await self.link.close()
        if self._proxy is not None:
            self._proxy.close()
        await self._reach.close()
        await self.nodes.close()


def _host_of_models(known: Snapshot) -> str:
    return f"{MODELS_NAME}.{known.domain}"


def _secure(request: web.Request, options: Options) -> str:
    host = request.host.rsplit(":", 1)[0]
    port = "" if options.ports.https == 443 else f":{options.ports.https}"
    return f"https://{host}{port}{headers.origin_form(request.raw_path)}"


def _refusal(status: int, message: str) -> web.Response:
    return json_response({"error": {"code": "no_service", "message": message}}, status=status)


def _version() -> str:
    try:
        return version("fairlead")
    # A checkout that was not installed.
    except PackageNotFoundError:
        return "0"


_VERSION = _version()


async def _start_fast_path(
    stack: contextlib.AsyncExitStack, agent: Agent, options: Options, key: Path
) -> None:
    """Raises AgentCannotStart."""
    try:
        await asyncio.to_thread(direct.prepare, options.paths)
        fast_path = agent.open_fast_path(key)
        log_socket = LogSocket(options.paths.log, fast_path.heard)
    except OSError as error:
        raise AgentCannotStart(f"the fast path cannot be made: {error}") from error
    stack.callback(log_socket.close)
    running = asyncio.create_task(fast_path.run(), name="fast path")
    stack.callback(running.cancel)


def traffic_app(agent: Agent) -> web.AppRunner:
    """Return what HAProxy passes requests to."""

    @web.middleware
    async def answer(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        return await agent.answer(request)  # a route matches no `*` and no target without a path

    app = web.Application(middlewares=[answer])
    app.on_response_prepare.append(tidy)
    return _runner(app)


def control_app(agent: Agent) -> web.AppRunner:
    """Return what the controller reaches."""

    async def link(request: web.Request) -> web.StreamResponse:
        return await agent.link.serve(request, agent)

    async def health(request: web.Request) -> web.Response:
        return json_response({"version": _VERSION, "controller": agent.link.is_up})

    app = web.Application()
    app.router.add_get(LINK_PATH, link)
    app.router.add_get(HEALTH_PATH, health)
    return _runner(app)


def _runner(app: web.Application) -> web.AppRunner:
    logging.getLogger("aiohttp.server").addFilter(is_our_failure)
    return web.AppRunner(
        app, access_log=None, auto_decompress=False, shutdown_timeout=SHUTDOWN_SECONDS
    )


async def _listen(
    stack: contextlib.AsyncExitStack, runner: web.AppRunner, path: Path, group: int | None
) -> None:
    """Serve at a unix socket that only its group may open. Raises AgentCannotStart."""
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    held = held_by_systemd(lambda one: bool(one.getsockname() == str(path)))
    if held is not None:
        await web.SockSite(runner, held, backlog=BACKLOG).start()
        return
    try:
        await asyncio.to_thread(_make_room, path)
        await web.UnixSite(runner, str(path), backlog=BACKLOG).start()
        await asyncio.to_thread(_close_to_others, path, group)
    except OSError as error:
        raise AgentCannotStart(f"cannot listen at {path}: {error.strerror}") from error


def _make_room(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)


def _close_to_others(path: Path, group: int | None) -> None:
    # bind(2) leaves the mode to the umask, and to connect takes write permission (unix(7)).
    path.chmod(0o660)
    if group is not None:
        os.chown(path, -1, group)
