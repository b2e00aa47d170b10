"""A page is a route, a visit, and an answer that a template turns into HTML."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from controller.api.http.routes import Call, NoQuery
from controller.lifecycle.model import Role
from controller.service import ControllerService
from controller.service.accounts.users import Credential
from controller.store.accounts import StoredToken, User
from controller.web.assets import Assets

TEMPLATES = Path(__file__).parent / "templates"


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a user who has logged in."""

    request: web.Request
    service: ControllerService
    user: User
    credential: Credential
    page_token: str
    """The token of the document that this answer may become."""
    mark: str
    """Tells the live stream which changes the answer holds."""

    @property
    def token(self) -> StoredToken:
        return self.credential.token

    def path(self, name: str) -> str:
        return self.request.match_info[name]

    def query(self, name: str) -> str:
        """Return a parameter of the address, empty if it is not given."""
        return self.request.query.get(name, "").strip()

    @property
    def is_admin(self) -> bool:
        return self.user.role is Role.ADMIN

    def as_call(self, *, query: object = None, body: object = None, **paths: str) -> Call:
        """Return the call with which a handler of the API answers this user."""
        return Call(
            request=self.request,
            service=self.service,
            user=self.user,
            token=self.token,
            query=NoQuery() if query is None else query,
            body=body,
            paths=paths,
        )


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A template's name and context. Its blocks are its fragments: a request of htmx whose target
    has a block's name as its id gets that block alone."""

    template: str
    title: str
    section: str = ""
    """The entry of the navigation that it belongs to."""
    context: Mapping[str, Any] = {}
    status: int = 200
    beside: Mapping[str, tuple[str, ...]] = {}
    """The fragments that come with one, so that a change of all of them is asked for once."""


def theme_of(request: web.Request) -> str:
    """Return the theme that the browser's user chose; empty: none."""
    chosen = request.cookies.get("fairlead-theme", "")
    return chosen if chosen in ("light", "dark") else ""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """An action was carried out. `message` is told to the user; `location`: where to go then."""

    message: str
    location: str | None = None


Handler = Callable[[Visit], Awaitable[Page | Done | web.StreamResponse]]


class PageRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A page or an action; `path` is below `/dashboard`. `shared`: its fragments depend on the
    user, the address, and runs and nodes alone."""

    path: str
    handler: Handler
    method: str = "GET"
    shared: bool = False


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the navigation; `key`: `g` and this letter lead there."""

    name: str
    path: str
    key: str
    admins: bool = False
    renting: bool = False
    """Only where machines are rented."""


_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")


def dated(sentence: str) -> Markup:
    """Return the sentence with each moment in it as an element that a reader sees in the own
    zone."""
    return Markup(_MOMENT.sub(_MOMENT_SHOWN, str(escape(sentence))))


def few(names: Sequence[str], most: int = 3) -> str:
    """Return the first of these names, and how many there are besides."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


_MOMENT_SHOWN = r'<time class="moment" datetime="\g<0>">\g<0></time>'


@cache
def _environment(assets: Assets) -> Environment:
    """Return the templates. They are compiled once: a follower that begins to lead has them."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters["dated"] = dated
    made.filters["few"] = few
    made.globals["asset"] = assets.address
    made.globals["version"] = lambda: assets.version
    return made


class Renderer:
    def __init__(self, assets: Assets) -> None:
        self._environment = _environment(assets)

    def whole(self, template: str, context: Mapping[str, Any]) -> str:
        return self._environment.get_template(template).render(context)

    def plain(self, template: str, context: Mapping[str, object], status: int) -> web.Response:
        """Return a page without a visit, so without a navigation."""
        text = self.whole(template, {"theme": "", **context})
        return web.Response(text=text, status=status, content_type="text/html")

    def fragment(self, page: Page, block: str, context: Mapping[str, Any]) -> str | None:
        """Return one block of the page's template, with what comes beside it; None: the template
        has none of this name.

        Without the line break at its end, which would stay on the page after each replacement.
        """
        found = self._environment.get_template(page.template)
        if block not in found.blocks:
            return None
        blocks = [(block, False), *((one, True) for one in page.beside.get(block, ()))]
        return "".join(
            "".join(found.blocks[name](found.new_context({**context, "beside": beside}))).strip()
            for name, beside in blocks
        )
