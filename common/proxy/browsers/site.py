"""How browsers reach a controller or a gateway, and whether others can read along."""

from __future__ import annotations

import msgspec
from aiohttp import web

from common.proxy.headers import Client, client_of, is_loopback_host
from common.refusals import Forbidden


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """`public_url`: the origin at which browsers find the dashboard; None: where they come from.
    `allows_plain_http`: the operator insists that browsers log in without TLS from other machines.
    `is_behind_proxy`: every request comes from a reverse proxy, whose X-Forwarded-* count."""

    public_url: str | None = None
    allows_plain_http: bool = False
    is_behind_proxy: bool = False

    def client(self, request: web.Request) -> Client:
        """Return the request's client. At the public URL's own host its scheme holds: a reverse
        proxy may say nothing of the TLS that it ends."""
        found = client_of(
            request.remote or "",
            request.secure,
            request.host,
            request.headers.items(),
            is_proxied=self.is_behind_proxy,
        )
        scheme, _, host = (self.public_url or "").partition("://")
        if scheme == "https" and found.host.lower() == host:
            return msgspec.structs.replace(found, scheme=scheme)
        return found

    def require_unread(self, client: Client) -> None:
        """Refuse a browser's login where everybody on the way can read it, and change the pages
        that it sees. Raises Forbidden."""
        if client.scheme == "https" or is_loopback_host(client.host) or self.allows_plain_http:
            return
        raise Forbidden(
            f"browsers do not log in at http://{client.host}: it is not encrypted, so whoever is "
            "on the way can read the login and change the pages. Forward the port to your own "
            "machine (`ssh -L 8700:localhost:8700 …`) and open http://localhost:8700; or ask the "
            "operator for TLS (`--tls-cert`, or a reverse proxy that ends it and `--public-url "
            "https://…`). `--allow-plain-http` insists on it as it is.",
            code="not_encrypted",
        )
