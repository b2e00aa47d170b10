"""Users and tokens as REST: bodies, answers and routes."""

from __future__ import annotations

import msgspec

from controller.api.http.paging import PageQuery, page
from controller.api.http.routes import Call, Route
from controller.api.views import derived
from controller.clock import iso
from controller.lifecycle.model import Band, Role
from controller.service.accounts.users import NewToken
from controller.store.accounts import StoredToken, User
from fairlead.documents.accounts import (
    CallerView,
    LoginLinkView,
    NewTokenView,
    NewUserView,
    TokenView,
    UserView,
)


class UserBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    role: Role = Role.USER
    bands: tuple[Band, ...] = ()


class RoleBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: Role


class GrantBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All bands that the user shall have; empty: none."""

    bands: tuple[Band, ...]


class TokenBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`user` defaults to the caller; without `expires_in` (seconds) the token does not expire."""

    user: str | None = None
    label: str = ""
    expires_in: float | None = None


class TokensQuery(PageQuery, frozen=True, kw_only=True):
    """`user`: only this user's tokens; default: all for an admin, else the caller's own."""

    user: str | None = None


class UsersAnswer(msgspec.Struct, frozen=True, kw_only=True):
    users: tuple[UserView, ...]
    next_cursor: str | None


class TokensAnswer(msgspec.Struct, frozen=True, kw_only=True):
    tokens: tuple[TokenView, ...]
    next_cursor: str | None


async def list_users(call: Call) -> UsersAnswer:
    query: PageQuery = call.query
    found, cursor = page(
        call.service.accounts.users.all(by=call.caller), query, lambda user: user.name
    )
    return UsersAnswer(users=tuple(map(user_view, found)), next_cursor=cursor)


async def add_user(call: Call) -> NewUserView:
    body: UserBody = call.body
    user, made = await call.service.accounts.users.add(
        body.name, role=body.role, bands=body.bands, by=call.caller
    )
    return derived(NewUserView, user, token=new_token_view(made))


async def get_me(call: Call) -> CallerView:
    assert call.token is not None
    return derived(CallerView, call.caller, token=token_view(call.token))


async def make_login_link(call: Call) -> LoginLinkView:
    assert call.token is not None
    made = call.service.accounts.login_links.make(call.token)
    return LoginLinkView(path=f"/dashboard/enter#{made.code}", expires_at=iso(made.expires_at))


async def get_user(call: Call) -> UserView:
    return user_view(call.service.accounts.users.get(call.path("user"), by=call.caller))


async def set_user(call: Call) -> UserView:
    body: RoleBody = call.body
    users = call.service.accounts.users
    return user_view(await users.set_role(call.path("user"), body.role, by=call.caller))


async def grant_user(call: Call) -> UserView:
    body: GrantBody = call.body
    return user_view(
        await call.service.accounts.users.grant(call.path("user"), body.bands, by=call.caller)
    )


async def remove_user(call: Call) -> UserView:
    return user_view(await call.service.accounts.users.remove(call.path("user"), by=call.caller))


async def list_tokens(call: Call) -> TokensAnswer:
    query: TokensQuery = call.query
    tokens = call.service.accounts.users.tokens(query.user, by=call.caller)
    found, cursor = page(tokens, query, lambda token: token.id)
    return TokensAnswer(tokens=tuple(map(token_view, found)), next_cursor=cursor)


async def add_token(call: Call) -> NewTokenView:
    body: TokenBody = call.body
    return new_token_view(
        await call.service.accounts.users.add_token(
            body.user, label=body.label, by=call.caller, expires_in=body.expires_in
        )
    )


async def revoke_token(call: Call) -> TokenView:
    return token_view(await call.service.accounts.users.revoke(call.path("token"), by=call.caller))


def user_view(user: User) -> UserView:
    return derived(UserView, user)


def token_view(token: StoredToken) -> TokenView:
    return derived(TokenView, token)


def new_token_view(made: NewToken) -> NewTokenView:
    return derived(NewTokenView, made.token, token=made.secret)


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/users",
        summary="All users",
        handler=list_users,
        query=PageQuery,
        answer=UsersAnswer,
    ),
    Route(
        method="POST",
        path="/v1/users",
        summary="Add a user; only this answer has the first token",
        handler=add_user,
        body=UserBody,
        answer=NewUserView,
        status=201,
    ),
    Route(
        method="GET",
        path="/v1/me",
        summary="The caller's own user",
        handler=get_me,
        answer=CallerView,
    ),
    Route(
        method="POST",
        path="/v1/me/login-link",
        summary="Make a link that logs a browser in to the dashboard with this token, once",
        handler=make_login_link,
        answer=LoginLinkView,
        status=201,
    ),
    Route(
        method="GET",
        path="/v1/users/{user}",
        summary="One user: the caller, or any user for an admin",
        handler=get_user,
        answer=UserView,
    ),
    Route(
        method="PATCH",
        path="/v1/users/{user}",
        summary="Give a user another role; open streams of the user end",
        handler=set_user,
        body=RoleBody,
        answer=UserView,
    ),
    Route(
        method="PUT",
        path="/v1/users/{user}/bands",
        summary="Set the bands that a user may use beyond those that every user may",
        handler=grant_user,
        body=GrantBody,
        answer=UserView,
    ),
    Route(
        method="DELETE",
        path="/v1/users/{user}",
        summary="Remove a user who has no live runs; the user's tokens end at once",
        handler=remove_user,
        answer=UserView,
    ),
    Route(
        method="GET",
        path="/v1/tokens",
        summary="Tokens, without their secrets",
        handler=list_tokens,
        query=TokensQuery,
        answer=TokensAnswer,
    ),
    Route(
        method="POST",
        path="/v1/tokens",
        summary="Make another token; only this answer has it",
        handler=add_token,
        body=TokenBody,
        answer=NewTokenView,
        status=201,
    ),
    Route(
        method="DELETE",
        path="/v1/tokens/{token}",
        summary="Revoke a token; its open streams end",
        handler=revoke_token,
        answer=TokenView,
    ),
)
