"""The pages by which a browser comes into a service at the service's own host name.

A user logs in at the dashboard, which gives this browser a code for this service alone: no user's
token is ever typed at a service. Others type a key of the service. A service's own pages can
imitate these, and what they get by that opens that service alone.
"""

from __future__ import annotations

import base64
import hashlib
import html
import secrets
from collections.abc import Callable
from urllib.parse import parse_qs, quote, urlencode

import msgspec
from aiohttp import web

from common.proxy.body import whole
from common.proxy.browsers.cookies import cookie_name, set_cookie, the_cookie
from common.proxy.browsers.sessions import (
    COOKIE,
    SESSION_SECONDS,
    BrowserSessions,
    is_of_own_page,
    wants_page,
)
from common.proxy.browsers.site import Site
from common.proxy.headers import LOCAL_DOMAIN, Client, Target, is_loopback_host, port_of
from common.proxy.view import Access, Service
from common.refusals import Forbidden, Unauthenticated
from common.tokens import KEY_PREFIX, browser_secret, digest

LOGIN = "/.fairlead/login"
ENTER = "/.fairlead/enter"
OPEN = "/dashboard/open/"
"""The dashboard's page that gives codes."""
STATE_COOKIE = "fairlead-opening"
_STATE_SECONDS = 3600.0
_MAX_FORM = 4096
_MAX_PATH = 2000
Prove = Callable[[str, str], str]
"""Returns what the dashboard alone can say of a service and an origin: that it has pages there."""

NOT_KEPT = {"Cache-Control": "no-store"}
# `replaceState` takes the code out of the tab's address and out of the browser's history.
_SCRIPT = """const given = new URLSearchParams(location.hash.slice(1));
history.replaceState(null, "", location.pathname);
const form = document.forms[0];
form.code.value = given.get("code");
form.next.value = given.get("next");
form.submit();"""
_SCRIPT_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
_HEADERS = {
    **NOT_KEPT,
    "Content-Security-Policy": (
        f"default-src 'none'; script-src 'sha256-{_SCRIPT_HASH}'; style-src 'unsafe-inline'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    # A page that has opened this one as a window keeps no hold of it.
    "Cross-Origin-Opener-Policy": "same-origin",
    # Not `no-referrer`: with it browsers send a form of the page itself as `Origin: null`.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{{font:16px sans-serif;max-width:30em;margin:15vh auto;padding:0 1em}}
input,button,.login{{font:inherit;padding:.4em;width:100%;margin:.3em 0;box-sizing:border-box}}
.login{{display:block;text-align:center;border:1px solid;border-radius:.2em}}</style>
<h1>{name}</h1><p>{message}</p>
"""
_LINK = '<a class="login" href="{login}">Log in with Fairlead</a>\n'
_KEY_FORM = """<form method="post" action="{login}"><p>Or open it with a key of this service:</p>
<input type="password" name="key" autocomplete="off" required placeholder="{prefix}…"
 aria-label="A key of this service"><button>Open</button></form>
"""
_ARRIVED = """<form method="post" action="{enter}"><input type="hidden" name="code">
<input type="hidden" name="next"></form><script>{script}</script>
<noscript>This page needs scripts.</noscript>
"""
_CLOSED = (
    "Browsers cannot open this service here. Programs can, with a token or key. Its operator opens "
    "it for browsers with --service-domain or a gateway; or forward the controller's port to your "
    "own machine and open http://localhost:PORT there."
)
_NO_TOKENS = (
    f"that is no key of this service: keys begin with {KEY_PREFIX}. Never type the token of a user "
    "here"
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`knows_local`: the controller itself answers here, so its dashboard is at `localhost` for a
    browser on the same machine. `prove`: see `Prove`; None: no link of a dashboard is believed."""

    site: Site = Site()
    knows_local: bool = True
    prove: Prove | None = None


class BrowserLogin:
    """Answers the paths below `/.fairlead/` that let browsers in."""

    def __init__(self, access: Access, sessions: BrowserSessions, settings: Settings) -> None:
        self._access = access
        self._sessions = sessions
        self._site = settings.site
        self._knows_local = settings.knows_local
        self._prove = settings.prove

    async def answer(
        self, request: web.Request, target: Target, client: Client, service: Service | None
    ) -> web.Response | None:
        """Answer a request of a login; None: it is for the service. `service`: None: there is none
        of the target's name, which no answer tells. Raises TooMany."""
        path = target.rest.partition("?")[0]
        if path not in (LOGIN, ENTER) or request.method not in ("GET", "POST"):
            return None
        try:
            self._site.require_unread(client)
            if request.method == "POST":
                self._sessions.count_try(client.address)
                if not is_of_own_page(request, client):
                    raise Forbidden("another page sent this form", code="cross_site")
        except Forbidden as error:
            return _page(target, error.message, "", status=error.status)
        if request.method == "GET":
            return self._begin(request, target, client) if path == LOGIN else _arrived(target)
        form = parse_qs((await whole(request, _MAX_FORM)).decode("utf-8", "replace"))
        given = {name: values[0].strip() for name, values in form.items()}
        try:
            if path == LOGIN:
                return await self._by_key(target, client, service, given.get("key", ""))
            return await self._by_code(request, target, client, service, given)
        except (Unauthenticated, Forbidden) as error:
            return self.page(request, target, client, error.message)

    def page(
        self, request: web.Request, target: Target, client: Client, message: str
    ) -> web.Response:
        """Return the page that asks to log in, instead of a 401."""
        try:
            self._site.require_unread(client)
        except Forbidden as error:
            return _page(target, error.message, "", status=error.status)
        there = target.rest if wants_page(request) and request.method == "GET" else "/"
        query = urlencode({"next": there if _is_path(there) else "/"})
        knows = self._dashboard(client) is not None
        login = f"{LOGIN}?{query}"
        body = _LINK.format(login=html.escape(login)) if knows else ""
        form = _KEY_FORM.format(login=LOGIN, prefix=KEY_PREFIX)
        hint = "" if knows else "Users open it from the page of services of their dashboard. "
        return _page(target, f"{hint}{message}", body + form, status=401)

    def _begin(self, request: web.Request, target: Target, client: Client) -> web.Response:
        """Lead the browser to the dashboard; only this browser can use the code that it gets."""
        there, origin = _next(request.query.get("next", "")), request.query.get("from", "")
        proof = request.query.get("proof", "")
        dashboard = self._dashboard(client)
        if origin and self._prove is not None:
            wanted = self._prove(target.service, origin)
            # As bytes: `compare_digest` raises TypeError for a string that is not ASCII.
            if secrets.compare_digest(proof.encode("utf-8", "replace"), wanted.encode()):
                dashboard = origin
        if dashboard is None:
            return self.page(request, target, client, "")
        # Two tabs may log in at once: a new state would make the first tab's code useless.
        known = the_cookie(request, cookie_name(STATE_COOKIE, client)) or secrets.token_hex(32)
        query = urlencode({"state": digest(known), "next": there})
        answer = web.Response(
            status=303,
            headers={"Location": f"{dashboard}{OPEN}{target.service}?{query}", **NOT_KEPT},
        )
        set_cookie(
            answer, STATE_COOKIE, known, client, path="/", seconds=_STATE_SECONDS, same_site="Lax"
        )
        return answer

    def _dashboard(self, client: Client) -> str | None:
        """Return the dashboard's origin for this browser; None: it is not known."""
        if self._knows_local and client.scheme == "http" and is_loopback_host(client.host):
            return f"http://{LOCAL_DOMAIN}{port_of(client.host)}"
        return self._site.public_url

    async def _by_key(
        self, target: Target, client: Client, service: Service | None, key: str
    ) -> web.Response:
        """Raises Unauthenticated, Forbidden."""
        if not key.startswith(KEY_PREFIX):
            raise Unauthenticated(_NO_TOKENS)
        return await self._opened(target, client, service, key, "/")

    async def _by_code(
        self,
        request: web.Request,
        target: Target,
        client: Client,
        service: Service | None,
        given: dict[str, str],
    ) -> web.Response:
        """Raises Unauthenticated, Forbidden."""
        known = the_cookie(request, cookie_name(STATE_COOKIE, client))
        if known is None:
            raise Unauthenticated("this browser did not ask for the login; open the service again")
        secret = browser_secret(given.get("code", ""), digest(known))
        return await self._opened(target, client, service, secret, _next(given.get("next", "")))

    async def _opened(
        self, target: Target, client: Client, service: Service | None, secret: str, there: str
    ) -> web.Response:
        """Return the answer that sets the cookie and leads to the service. Raises Unauthenticated,
        Forbidden."""
        if service is None:
            raise Unauthenticated(f"there is no service {target.service} that this opens")
        credential: object = None
        if service.auth:
            credential = (await self._access.admit(service, f"Bearer {secret}")).credential
        answer = web.Response(status=303, headers={"Location": there, **NOT_KEPT})
        value = self._sessions.open(service, secret, credential)
        set_cookie(
            # With Strict, who follows a link from another site would be asked to log in again.
            answer,
            COOKIE,
            value,
            client,
            path="/",
            seconds=SESSION_SECONDS,
            same_site="Lax",
        )
        return answer


def entrance(service_origin: str, code: str, there: str) -> str:
    """Return where the dashboard sends a browser with its code. It is behind the `#`, which
    browsers tell nobody."""
    return f"{service_origin}{ENTER}#{urlencode({'code': code, 'next': there})}"


def beginning(service_origin: str, dashboard: str | None, proof: str, there: str) -> str:
    """Return where a link of the dashboard, which has this origin, leads."""
    origin = {} if dashboard is None else {"from": dashboard, "proof": proof}
    return f"{service_origin}{LOGIN}?{urlencode({**origin, 'next': there}, quote_via=quote)}"


def closed_page(target: Target) -> web.Response:
    """Return the page that says why a browser cannot use a service below `/services/`."""
    return _page(target, _CLOSED, "", status=401)


def _next(there: str) -> str:
    """Return the path if it is one of the service's own, else `/`."""
    return there if _is_path(there) else "/"


def _is_path(there: str) -> bool:
    is_own = there.startswith("/") and not there.startswith("//") and "\\" not in there
    return is_own and there.isprintable() and " " not in there and len(there) <= _MAX_PATH


def _arrived(target: Target) -> web.Response:
    """Return the page that sends the code of its address to this origin, with its cookies."""
    body = _ARRIVED.format(enter=ENTER, script=_SCRIPT)
    return _page(target, "Opening …", body, status=200)


def _page(target: Target, message: str, body: str, *, status: int) -> web.Response:
    head = _HEAD.format(name=html.escape(target.service), message=html.escape(message))
    text = f"{head}{body}</html>"
    return web.Response(status=status, text=text, content_type="text/html", headers=_HEADERS)
