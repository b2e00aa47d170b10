"""The page of users and tokens, for admins: roles, bands, tokens, and what can be changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from common.refusals import Invalid
from controller.api.accounts import users as api
from controller.api.http.paging import PageQuery
from controller.lifecycle.model import Band, Role
from controller.service.accounts.rights import require_admin
from controller.store.accounts import StoredToken
from controller.web.page import Done, Page, PageRoute, Visit
from fairlead.documents.accounts import TokenView, UserView

PAGE_OF_USERS = 1000
MAX_TOKENS = 20
"""Of one user. Programs can make any number of them."""
HERE = "/dashboard/users"


class UserRow(msgspec.Struct, frozen=True, kw_only=True):
    """`other_role`: the role that a button gives; `has_production`: whether the button gives or
    takes the production band. `more_tokens`: how many the page does not list."""

    name: str
    role: str
    other_role: str
    bands: str
    has_production: bool
    tokens: tuple[TokenView, ...]
    more_tokens: int
    is_caller: bool


def user_rows(
    users: Sequence[UserView], tokens: Iterable[StoredToken], caller: str
) -> tuple[UserRow, ...]:
    """`tokens`: those of all users, the oldest of each first."""
    own: dict[str, list[StoredToken]] = {}
    for token in tokens:
        own.setdefault(token.user, []).append(token)
    return tuple(
        UserRow(
            name=user.name,
            role=user.role.value,
            other_role=(Role.USER if user.role is Role.ADMIN else Role.ADMIN).value,
            bands=", ".join(band.value for band in user.bands) or "none",
            has_production=Band.PRODUCTION in user.bands,
            tokens=tuple(map(api.token_view, own.get(user.name, [])[-MAX_TOKENS:])),
            more_tokens=max(0, len(own.get(user.name, ())) - MAX_TOKENS),
            is_caller=user.name == caller,
        )
        for user in users
    )


async def list_people(visit: Visit) -> Page:
    require_admin(visit.user, "see the users")
    users = await api.list_users(visit.as_call(query=PageQuery(limit=PAGE_OF_USERS)))
    # All of them: a page of tokens would be in the order of their ids, and leave users without.
    tokens = visit.service.accounts.users.tokens(None, by=visit.user)
    return Page(
        template="users.html",
        title="Users and tokens",
        section="Users",
        context={
            "users": user_rows(users.users, tokens, visit.user.name),
            "are_more": users.next_cursor is not None,
            "made": None,
        },
    )


async def act(visit: Visit) -> Done:
    """Give a role, grant or take the production band, or remove the user."""
    user, name = visit.path("user"), visit.path("action")
    if name in tuple(Role):
        await api.set_user(visit.as_call(body=api.RoleBody(role=Role(name)), user=user))
        return Done(message=f"{user} is now {name}", location=HERE)
    bands = {"grant": (Band.PRODUCTION,), "take": ()}
    if name in bands:
        await api.grant_user(visit.as_call(body=api.GrantBody(bands=bands[name]), user=user))
        return Done(message=f"the bands of {user} changed", location=HERE)
    if name == "remove":
        await api.remove_user(visit.as_call(user=user))
        return Done(message=f"{user} is removed", location=HERE)
    raise Invalid(f"there is no action {name!r} of a user", field="action")


async def revoke(visit: Visit) -> Done:
    token = await api.revoke_token(visit.as_call(token=visit.path("token")))
    return Done(message=f"the token {token.id} of {token.user} is revoked", location=HERE)


async def add(visit: Visit) -> Page:
    """Add a user, or a token of one; the page shows the new token once."""
    require_admin(visit.user, "add users and tokens")
    form = await visit.request.post()
    given = {name: str(form.get(name, "")).strip() for name in ("name", "label", "days", "what")}
    if given["what"] == "user":
        body = api.UserBody(name=given["name"])
        secret = (await api.add_user(visit.as_call(body=body))).token.token
    else:
        days = _days(given["days"])
        token = api.TokenBody(user=given["name"], label=given["label"], expires_in=days)
        secret = (await api.add_token(visit.as_call(body=token))).token
    page = await list_people(visit)
    made = {"user": given["name"], "token": secret}
    return msgspec.structs.replace(page, context={**page.context, "made": made})


def _days(text: str) -> float | None:
    """Return the seconds of so many days; None: no limit."""
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 6):
        raise Invalid(f"{text!r} is not a whole number of days", field="days")
    return int(text) * 86400.0


PAGES: tuple[PageRoute, ...] = (
    PageRoute(path="/users", handler=list_people),
    PageRoute(path="/users", handler=add, method="POST"),
    PageRoute(path="/users/{user}/{action:[a-z]+}", handler=act, method="POST"),
    PageRoute(path="/tokens/{token}/revoke", handler=revoke, method="POST"),
)
