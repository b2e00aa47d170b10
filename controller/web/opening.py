"""Opens a service for the user who is logged in: its own origin gets a code for this browser."""

from __future__ import annotations

import hashlib
import hmac
import re

from aiohttp import web

from common.proxy.browsers.login import beginning, entrance
from common.proxy.browsers.site import Site
from common.proxy.headers import own_origin
from common.refusals import Conflict, Invalid, NotFound
from controller.lifecycle.model import Run
from controller.web.page import Visit
from fairlead.model.dev_environment import browser_service

_STATE = re.compile(r"[0-9a-f]{64}", re.ASCII)


class Opening:
    """`domain`: that of services, as the proxy's. `key`: signs the dashboard's word on an origin of
    its own, which a service's host believes."""

    def __init__(self, site: Site, domain: str | None, key: bytes) -> None:
        self._site = site
        self._domain = domain
        self._key = key

    def prove(self, service: str, origin: str) -> str:
        """Return what shows that this origin is the dashboard's (`browser_login.Prove`)."""
        signed = f"opening:{service}:{origin}".encode("utf-8", "surrogateescape")
        return hmac.new(self._key, signed, hashlib.sha256).hexdigest()

    async def open(self, visit: Visit) -> web.StreamResponse:
        """Lead to the service: to its page that asks for a code, or with a code to its page that
        takes it. Raises NotFound, Invalid, Conflict, StoreUnavailable."""
        name, state = visit.path("service"), visit.query("state")
        there = visit.query("next") or "/"
        run = (await visit.service.runs.lookup.seen(name, visit.user)).run
        service = run.service or browser_service(run.policy.dev_environment)
        if service is None or run.name != name:
            raise NotFound(f"there is no service {name} that you may use", field="service")
        origin = self._origin(visit, run)
        if not service.auth:
            location = f"{origin}/"
        elif state:
            if not _STATE.fullmatch(state):
                raise Invalid("`state` is that of a login of another place", field="state")
            held = visit.credential
            code = visit.service.accounts.gate.grants.make(run.id, held.token, held.login, state)
            location = entrance(origin, code, there)
        else:
            location = beginning(origin, *self._own(visit, name), there)
        return web.Response(status=303, headers={"Location": location})

    def _own(self, visit: Visit, service: str) -> tuple[str, str]:
        client = self._site.client(visit.request)
        here = f"{client.scheme}://{client.host}"
        return here, self.prove(service, here)

    def _origin(self, visit: Visit, run: Run) -> str:
        """Raises Conflict."""
        url = visit.service.gateways.url(run)
        if url is not None:
            return url.rstrip("/")
        origin = own_origin(run.name, self._site.client(visit.request), self._domain)
        if origin is None:
            raise Conflict(
                f"the service {run.name} has no origin of its own at this address, and a browser "
                "opens it nowhere else: start the controller with --service-domain, give the "
                "service a gateway, or forward the controller's port to your own machine (`ssh -L "
                "8700:localhost:8700 …`) and open http://localhost:8700/dashboard",
                code="no_own_origin",
            )
        return origin
