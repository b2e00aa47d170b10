"""The changes that the proxy makes in requests and answers: paths, hop-by-hop headers, addresses.

Paths and values are passed on as they came; a replica reads them by its own rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from urllib.parse import unquote_to_bytes, urlsplit

import msgspec

from controller.proxy.view import Service

SERVICES = "/services/"
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_SET_HERE = frozenset(
    {
        "content-length",
        "expect",
        "forwarded",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-prefix",
        "x-forwarded-proto",
    }
)
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_UNSAFE = re.compile(r"[\x00-\x20\x7f]")
_COOKIE_PATH = re.compile(r";\s*path=([^;]*)", re.IGNORECASE)
_COOKIE_DOMAIN = re.compile(r";\s*domain=[^;]*", re.IGNORECASE)
Headers = Sequence[tuple[str, str]]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a request's target below its service, query included."""

    service: str
    rest: str
    """Begins with `/`."""
    prefix: str
    """The path in front of it, `/services/NAME`; empty when the host name tells the service."""
    own_origin: bool = False
    """The host name is the service's alone."""


def origin_form(raw: str) -> str:
    """Return the target of a request without scheme and host, which clients of proxies send."""
    if raw.startswith("/"):
        return raw
    parts = urlsplit(raw)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def target_by_path(raw: str) -> Target | None:
    """Return the target of `/services/NAME/…`; None for another path.

    The name is compared as it was sent, so no encoding and no `..` reaches another service.
    """
    if not raw.startswith(SERVICES):
        return None
    path, question, query = raw[len(SERVICES) :].partition("?")
    name, slash, rest = path.partition("/")
    if not NAME.fullmatch(name):
        return None
    return Target(
        service=name, rest=f"{slash or '/'}{rest}{question}{query}", prefix=SERVICES + name
    )


def service_of_host(host: str, domain: str) -> str | None:
    """Return NAME of the host `NAME.domain`, with or without a port."""
    name, dot, rest = host.rsplit(":", 1)[0].lower().partition(".")
    return name if dot and rest == domain and NAME.fullmatch(name) else None


def plain_path(rest: str) -> str | None:
    """Return the path as a server may understand it: decoded, without dot segments. None: it climbs
    out of its service, or no request line can hold it."""
    if _UNSAFE.search(rest):
        return None
    path = unquote_to_bytes(rest.partition("?")[0].encode("utf-8", "surrogateescape"))
    segments: list[str] = []
    for segment in re.split(r"[/\\]+", path.decode("utf-8", "surrogateescape")):
        if segment == "..":
            if not segments:
                return None
            segments.pop()
        elif segment not in ("", "."):
            segments.append(segment)
    return "/" + "/".join(segments)


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a request."""

    address: str
    forwarded_for: str
    scheme: str
    host: str


def client_of(
    peer: str,
    is_secure: bool,
    host: str,
    headers: Iterable[tuple[str, str]],
    *,
    is_proxied: bool = False,
) -> Client:
    """Return the client. A peer on this machine, or one that `is_proxied`, is a reverse proxy,
    whose X-Forwarded-* count; those of others are dropped, because anybody can send them."""
    scheme = "https" if is_secure else "http"
    if not is_proxied and not _is_loopback(peer):
        return Client(address=peer, forwarded_for=peer, scheme=scheme, host=host)
    given = {
        name: ", ".join(value for one, value in headers if one.lower() == name)
        for name in ("x-forwarded-for", "x-forwarded-proto", "x-forwarded-host")
    }
    chain = given["x-forwarded-for"]
    return Client(
        address=chain.rpartition(",")[2].strip() or peer,
        forwarded_for=", ".join(one for one in (chain, peer) if one),
        scheme=given["x-forwarded-proto"] or scheme,
        host=given["x-forwarded-host"] or host,
    )


def _is_loopback(peer: str) -> bool:
    try:
        return ip_address(peer).is_loopback
    except ValueError:
        return False


def end_to_end(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers that are meant for the other end."""
    pairs = list(headers)
    named = {
        token.strip().lower()
        for name, value in pairs
        if name.lower() == "connection"
        for token in value.split(",")
    }
    dropped = _HOP_BY_HOP | named
    return [(name, value) for name, value in pairs if name.lower() not in dropped]


def request_headers(
    headers: Iterable[tuple[str, str]],
    *,
    client: Client,
    service: Service,
    prefix: str,
    drop: frozenset[str],
) -> list[tuple[str, str]]:
    """Return the headers for the replica, without those of the body. `drop`: what the proxy alone
    may see."""
    replaced = {name.lower() for name, _ in service.headers} | _SET_HERE | drop
    kept = [(name, value) for name, value in end_to_end(headers) if name.lower() not in replaced]
    kept += [
        ("X-Forwarded-For", client.forwarded_for),
        ("X-Forwarded-Proto", client.scheme),
        ("X-Forwarded-Host", client.host),
    ]
    if prefix and service.strip_prefix:
        kept.append(("X-Forwarded-Prefix", prefix))
    return [*kept, *service.headers]


_ONLY_ON_AN_OWN_ORIGIN = frozenset(
    {
        "service-worker-allowed",
        "cross-origin-opener-policy",
        "cross-origin-opener-policy-report-only",
    }
)


def response_headers(
    headers: Iterable[tuple[str, str]], *, prefix: str, hosts: frozenset[str], own_origin: bool
) -> list[tuple[str, str]]:
    """Return the headers for the client. `prefix`: what was stripped from the path; redirects and
    cookies of a replica that does not know it get it back.

    Without an origin of its own no replica may widen its service worker's scope: the worker would
    answer for other services and for the dashboard. None may have an opener policy either: a page
    with the dashboard's own could open the dashboard and read it.
    """
    dropped = frozenset[str]() if own_origin else _ONLY_ON_AN_OWN_ORIGIN
    kept = [one for one in end_to_end(headers) if one[0].lower() not in dropped]
    if not prefix:
        return kept
    return [(name, _with_prefix(name.lower(), value, prefix, hosts)) for name, value in kept]


def _with_prefix(name: str, value: str, prefix: str, hosts: frozenset[str]) -> str:
    if name in ("location", "content-location", "refresh"):
        return _redirect(value, prefix, hosts) if name != "refresh" else value
    if name == "set-cookie":
        return _cookie(value, prefix)
    return value


def _redirect(location: str, prefix: str, hosts: frozenset[str]) -> str:
    if location.startswith("//"):
        return location
    if location.startswith("/"):
        return location if _is_below(location, prefix) else prefix + location
    try:
        parts = urlsplit(location)
    except ValueError:
        return location
    if parts.scheme not in ("http", "https") or parts.netloc not in hosts:
        return location
    if _is_below(parts.path, prefix):
        return location
    return parts._replace(path=prefix + (parts.path or "/")).geturl()


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith((f"{prefix}/", f"{prefix}?"))


def _cookie(cookie: str, prefix: str) -> str:
    """Keep the cookie within its service: all services of a path share one host."""
    cookie = _COOKIE_DOMAIN.sub("", cookie)

    def path(match: re.Match[str]) -> str:
        old = match[1].strip()
        below = old if old.startswith("/") else "/"
        return f"; Path={below if _is_below(below, prefix) else prefix + below}"

    return _COOKIE_PATH.sub(path, cookie)


def head_of(method: str, target: str, headers: Headers) -> bytes:
    """Return the request's first bytes. No value can hold a line end: aiohttp refuses those."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")
