"""Cookies of our own: their names, and how they are read."""

from __future__ import annotations

from aiohttp import web

from common.proxy.headers import Client


def cookie_name(name: str, client: Client) -> str:
    """Return the name of a cookie of ours. Over TLS it begins with `__Host-`: no other host and no
    plain connection can set one of this name (RFC 6265bis, 4.1.3)."""
    return f"__Host-{name}" if client.scheme == "https" else name


def the_cookie(request: web.Request, name: str) -> str | None:
    """Return the value of the cookie with this name. None: there is none, or there are two, of
    which one was planted: the order in which browsers send them tells nothing."""
    found = cookies(request, name)
    return found[0] if len(found) == 1 else None


def cookies(request: web.Request, name: str) -> list[str]:
    """Return the values of all cookies with this name."""
    return [
        value.strip()
        for line in request.headers.getall("Cookie", [])
        for one, equals, value in (pair.partition("=") for pair in line.split(";"))
        if equals and one.strip() == name
    ]


def set_cookie(
    answer: web.Response,
    name: str,
    value: str,
    client: Client,
    *,
    path: str,
    seconds: float,
    same_site: str,
) -> None:
    """Set a cookie of ours that no script can read. `path`: where browsers send it over a plain
    connection; over TLS the name asks for the whole host."""
    answer.set_cookie(
        cookie_name(name, client),
        value,
        path="/" if client.scheme == "https" else path,
        max_age=int(seconds),
        httponly=True,
        samesite=same_site,
        secure=client.scheme == "https",
    )
