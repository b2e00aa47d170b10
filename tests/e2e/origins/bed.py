"""A dashboard with two services: one of an attacker, and one of the user who visits it.

The controller is the real one without nodes, behind its real proxy; the replicas are servers here.
Browsers find all names below `.test` on this machine.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
from aiohttp import web
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import load_pem_x509_certificate

from common.proxy.browsers.site import Site
from common.proxy.entry import Proxy, Settings, tidy, to_services
from common.proxy.view import Service
from controller.api.app import make_app
from controller.lifecycle.model import Run
from controller.proxy.registered import GateAccess, through_runners
from controller.service.runs.submission_stages import Submission
from controller.web.app import Dashboard, session_key
from tests.doubles.proxy import NodeHere, NotedTraffic, PlantedServices
from tests.e2e.origins.follower import KEY, Front
from tests.support.certificates import Authority
from tests.support.ssh_daemon import free_port
from tests.support.waiting import LONG
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN, Controller
from tests.unit.proxy.bed import replica

SECRET = "secret-plan"
"""A run of the visiting admin; its name stands on the dashboard."""
STILL = """
<img src="AT-notes/still-img"><img src="AT-dashboard/dashboard/logout">
<iframe src="AT-notes/still-frame"></iframe><iframe src="AT-dashboard/dashboard/runs"></iframe>
<link rel="stylesheet" href="AT-notes/still-style"><link rel="prefetch" href="AT-notes/still-fetch">
<object data="AT-notes/still-object"></object><video src="AT-notes/still-video"></video>
"""
"""What a page can do where no script runs."""
END = '<img src="AT-home/end">'
"""It is asked for once the page's script has run, or was passed over."""
ATTACK = (Path(__file__).parent / "attack.js").read_text()


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """How an operator may set a controller up. `host`: where the dashboard is; `domain`: that of
    services; None: below `/services/`, or NAME.localhost. `gateway`: the domain of a gateway that
    serves them on another port."""

    host: str
    is_encrypted: bool = False
    domain: str | None = None
    gateway: str | None = None
    insists: bool = False
    reached: tuple[str, ...] = ()
    """The methods of blind requests by which a hostile page reaches the visitor's own service."""

    @property
    def scheme(self) -> str:
        return "https" if self.is_encrypted else "http"

    @property
    def has_own_origins(self) -> bool:
        return self.domain is not None or self.gateway is not None or self.host == "localhost"


MODES = {
    "this machine": Mode(host="localhost"),
    "tls, services on sibling hosts": Mode(
        host="fairlead.test", is_encrypted=True, domain="fairlead.test"
    ),
    "tls, services on another site": Mode(
        host="fairlead.test", is_encrypted=True, domain="apps.test"
    ),
    "tls, no domain for services": Mode(host="fairlead.test", is_encrypted=True),
    "tls, a gateway": Mode(host="fairlead.test", is_encrypted=True, gateway="shared.test"),
    "plain on another machine, insisted": Mode(
        host="fairlead.test", insists=True, domain="apps.test", reached=("GET",)
    ),
}


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A request that a replica got."""

    method: str
    path: str
    headers: dict[str, str]
    body: str


class Bed:
    """The dashboard at `origin`, and what happened there."""

    def __init__(self, mode: Mode, port: int, service_port: int) -> None:
        self.mode = mode
        self.origin = f"{mode.scheme}://{mode.host}:{port}"
        self._service_port = service_port
        self.is_unprotected = False
        self.stolen: list[str] = []
        """What the attacker's page sent home."""
        self.reports: list[str] = []
        """What browsers reported to the attacker by its headers."""
        self.evil: list[Seen] = []
        self.notes: list[Seen] = []

    def service(self, name: str) -> str:
        """Return where a browser has the service, without a slash at the end."""
        domain = self.mode.gateway or self.mode.domain
        if domain is None and self.mode.host == "localhost":
            domain = "localhost"
        if domain is None:
            return f"{self.origin}/services/{name}"
        return f"{self.mode.scheme}://{name}.{domain}:{self._service_port}"

    @property
    def _limit(self) -> float:
        """Milliseconds for each attempt. Without protection all of them end by themselves, and what
        one has got counts however slow the machine is."""
        return 1000 * (LONG if self.is_unprotected else 4)

    # -- the attacker's service -------------------------------------------------------------

    async def attack(self, request: web.Request) -> web.StreamResponse:
        body = await request.text()
        self.evil.append(_seen(request, body))
        if request.path.endswith("/collect"):
            self.stolen.append(body)
            return web.Response(headers={"Access-Control-Allow-Origin": "*"})
        if request.path.endswith("/report"):
            self.reports.append(body)
            return web.Response()
        if request.path.endswith("/sw.js"):
            answer = web.Response(text="self.onfetch = () => {};", content_type="text/javascript")
        else:
            where = {
                "dashboard": self.origin,
                "notes": self.service("notes"),
                "token": USER_TOKEN,
                "home": self.service("evil"),
                "host": self.mode.host,
                "limit": f"{self._limit:.0f}",
            }
            page = f"<!doctype html><title>evil</title>{STILL}<script>{ATTACK}</script>{END}"
            for name, value in where.items():
                page = page.replace(f"AT-{name}", value)
            text = page.replace("WHERE", json.dumps(where))
            answer = web.Response(text=text, content_type="text/html")
        self._poison(answer)
        return answer

    def _poison(self, answer: web.Response) -> None:
        """Set every header that is a policy for an origin, and cookies in the way of ours."""
        home = f"{self.service('evil')}/report"
        group = {"group": "home", "max_age": 86400, "endpoints": [{"url": home}]}
        policy = {"report_to": "home", "max_age": 86400, "success_fraction": 1.0}
        answer.headers.extend(
            {
                "Report-To": json.dumps({**group, "include_subdomains": True}),
                "NEL": json.dumps({**policy, "include_subdomains": True}),
                "Reporting-Endpoints": f'home="{home}"',
                "Strict-Transport-Security": "max-age=31536000; includeSubDomains",
                "Alt-Svc": 'h2="evil.test:443"; ma=86400; persist=1',
                "Service-Worker-Allowed": "/",
                "Accept-CH": "Sec-CH-UA-Model",
                "Content-Security-Policy": "default-src * 'unsafe-inline'",
                "Access-Control-Allow-Origin": self.origin,
                "Access-Control-Allow-Credentials": "true",
                "Origin-Agent-Cluster": "?0",
                "X-Frame-Options": "ALLOWALL",
            }
        )
        if not self.is_unprotected:  # it would clear what browsers have to report, too
            answer.headers["Clear-Site-Data"] = '"cookies"'
        for name in ("fairlead-dashboard", "__Host-fairlead-dashboard", "fairlead-service"):
            for path in ("Path=/dashboard", "Path =/dashboard", "path=/;domain=" + self.mode.host):
                answer.headers.add("Set-Cookie", f"{name}=planted; {path}")
        answer.headers.add("Set-Cookie", "crumb=1; Path =/; SameSite=None; Secure")

    # -- the visitor's own service ----------------------------------------------------------

    async def note(self, request: web.Request) -> web.Response:
        self.notes.append(_seen(request, await request.text()))
        headers = {"Access-Control-Allow-Origin": "*"}
        page = "<!doctype html><title>notes</title><p id=notes>the user's notes</p>"
        return web.Response(text=page, content_type="text/html", headers=headers)


def _seen(request: web.Request, body: str) -> Seen:
    headers = {name.lower(): value for name, value in request.headers.items()}
    return Seen(method=request.method, path=request.raw_path, headers=headers, body=body)


class Certificate:
    """A certificate that the browsers of the tests take for every name."""

    def __init__(self, folder: Path) -> None:
        self._files = folder / "tls.pem", folder / "tls.key"
        Authority(folder).issue(*self._files, host="fairlead.test")
        key = load_pem_x509_certificate(self._files[0].read_bytes()).public_key()
        spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self.pin = base64.b64encode(hashlib.sha256(spki).digest()).decode()

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*self._files)
        return context


@contextlib.asynccontextmanager
async def hostile(
    controller: Controller, mode: Mode, certificate: Certificate, front: Front | None = None
) -> AsyncIterator[Bed]:
    """A controller set up in this way, with the runs that own the services. `front`: browsers find
    a follower of it."""
    async with contextlib.AsyncExitStack() as stack:
        port = _port()
        bed = Bed(mode, port, _port() if mode.gateway else port)
        services = PlantedServices()
        for name, owner, handler in (
            ("evil", USER_TOKEN, bed.attack),
            ("notes", ADMIN_TOKEN, bed.note),
        ):
            run = await _submit(controller, name, owner)
            at = await stack.enter_async_context(_replica(handler))
            is_public = name == "evil" and not mode.has_own_origins
            services.put(
                Service(
                    run_id=run.id,
                    name=name,
                    owner=run.user,
                    auth=not is_public,
                    replicas=(replica(at),),
                )
            )
        await _submit(controller, SECRET, ADMIN_TOKEN)
        if mode.gateway is not None:
            at_gateway = mock.patch.object(
                controller.service.gateways, "url", lambda run: f"{bed.service(run.name)}/"
            )
            stack.enter_context(at_gateway)
        tls = certificate.context() if mode.is_encrypted else None
        for app, where in await _apps(controller, bed, services, stack, front):
            await stack.enter_async_context(_listening(app, where or port, tls))
        yield bed


@contextlib.asynccontextmanager
async def unprotected(mode: Mode, certificate: Certificate) -> AsyncIterator[Bed]:
    """The attacker's page, the notes and something to read on one origin, with nothing between."""
    port = _port()
    bed = Bed(mode, port, port)
    bed.is_unprotected = True

    async def dashboard(request: web.Request) -> web.Response:
        return web.Response(text=SECRET, content_type="text/html")

    app = web.Application()
    app.router.add_route("*", "/services/evil/{path:.*}", bed.attack)
    app.router.add_route("*", "/services/notes/{path:.*}", bed.note)
    app.router.add_route("*", "/{path:.*}", dashboard)
    async with _listening(app, port, certificate.context()):
        yield bed


def _port() -> int:
    """Return a free port that browsers do not refuse (the Fetch standard's bad ports)."""
    found = (free_port() for _ in range(100))
    return next(port for port in found if port not in (6000, 6566, 6679, 6697, 10080))


async def _apps(
    controller: Controller,
    bed: Bed,
    services: PlantedServices,
    stack: contextlib.AsyncExitStack,
    front: Front | None,
) -> list[tuple[web.Application, int | None]]:
    mode, service = bed.mode, controller.service
    site = Site(public_url=bed.origin, allows_plain_http=mode.insists)
    sealed = None if front is None else front.sealed
    dashboard = Dashboard(
        service,
        session_key(KEY),
        lambda: 0.0,
        site=site,
        service_domain=mode.domain,
    )

    def proxy(settings: Settings) -> Proxy:
        made = Proxy(
            services=services,
            traffic=NotedTraffic(),
            access=GateAccess(service.accounts.gate, sealed),
            connect=through_runners(NodeHere().connect),
            settings=settings,
            prove=None if settings.is_gateway else dashboard.opening.prove,
            sessions=sealed,
        )
        stack.callback(made.close)
        return made

    settings = Settings(domain=mode.domain, site=site)
    here = proxy(settings)
    if front is not None:
        before = front.before(service, here, dashboard, settings, services.all())
        return [(await stack.enter_async_context(before), None)]
    found: list[tuple[web.Application, int | None]] = [
        (make_app(service, here, mounts=(dashboard.mount,)), None)
    ]
    if mode.gateway is not None:
        there = proxy(Settings(domain=mode.gateway, site=site, is_gateway=True))
        app = web.Application(middlewares=[to_services(there)])
        app.on_response_prepare.append(tidy)
        found.append((app, bed._service_port))
    return found


async def _submit(controller: Controller, name: str, token: str) -> Run:
    """Submit a run that never gets a node, so it stays."""
    gate = controller.service.accounts.gate
    user = gate.users[gate.token_of(token).user]
    fields = {"type": "service", "port": 8000} if name != SECRET else {"type": "task"}
    configuration = {"name": name, "commands": ["true"], **fields}
    submission = Submission(configuration=configuration)
    made = await controller.service.runs.submissions.submit(submission, user=user)
    return made.state.run


@contextlib.asynccontextmanager
async def _replica(handler: Any) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    port = free_port()
    async with _listening(app, port, None):
        yield port


@contextlib.asynccontextmanager
async def _listening(
    app: web.Application, port: int, tls: ssl.SSLContext | None
) -> AsyncIterator[None]:
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    assert runner.server is not None
    loop = asyncio.get_running_loop()
    server = await loop.create_server(runner.server, ["127.0.0.1", "::1"], port, ssl=tls)
    # Before 3.12 this waits for connections only when it is called before `close`.
    over = asyncio.create_task(server.wait_closed())
    try:
        yield
    finally:
        server.close()
        await runner.cleanup()
        # A browser that ends leaves TLS handshakes half done. aiohttp never heard of these
        # connections; asyncio closes each once it has read its end.
        await over
