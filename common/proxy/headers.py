"""The changes that the proxy makes in requests and answers: paths, hop-by-hop headers, addresses.

Paths and values are passed on as they came; a replica reads them by its own rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from urllib.parse import unquote_to_bytes, urlsplit

import msgspec

from common.proxy.judgement import may_hold_a_token
from common.proxy.view import Service

SERVICES = "/services/"
LOCAL_DOMAIN = "localhost"
"""Browsers reach all names below it on their own machine, without DNS (RFC 6761, 6.3). Each is an
origin and a site of its own: none can set a cookie for `localhost`."""
# RFC 9110, 7.6.1, and two that older programs send all the same.
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
CLIENT = "Fairlead-Client"
"""Of a request between controllers: the scheme and the address by which its client came."""
_SET_HERE = frozenset(
    {
        "content-length",
        "expect",
        CLIENT.lower(),
        "forwarded",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-prefix",
        "x-forwarded-proto",
    }
)
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
# They would end the request line: what follows would be headers of the client's choice.
_UNSAFE = re.compile(r"[\x00-\x20\x7f]")
OWN_COOKIES = ("fairlead-", "__host-fairlead-", "__secure-fairlead-")
"""Names of our own cookies begin like this, in small letters; no replica sees or sets one."""
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
    # A name that ends with the root's dot is the same host (RFC 1034, 3.1).
    name, dot, rest = host.rsplit(":", 1)[0].lower().rstrip(".").partition(".")
    return name if dot and rest == domain and NAME.fullmatch(name) else None


def own_origin(service: str, client: Client, domain: str | None) -> str | None:
    """Return `scheme://NAME.domain[:port]`, where a client reaches this service alone; None: there
    is no such origin."""
    if domain is None:
        if client.scheme != "http" or not is_loopback_host(client.host):
            return None  # a certificate for `*.localhost` is nobody's
        domain = LOCAL_DOMAIN
    return f"{client.scheme}://{service}.{domain}{port_of(client.host)}"


def port_of(host: str) -> str:
    """Return `:PORT` of a `Host`, empty if it names none."""
    _, colon, port = host.rpartition(":")
    return f":{port}" if colon and port.isdecimal() else ""


def is_loopback_host(host: str) -> bool:
    """Return whether a browser reaches this `Host` on its own machine alone, so that it trusts the
    way there as it trusts TLS: `localhost`, names below it, and loopback addresses."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        # urlsplit raises it for brackets without an IPv6 address between them.
        return False
    return name == "localhost" or name.endswith(".localhost") or _is_loopback(name)


def plain_path(rest: str) -> str | None:
    """Return the path as a server may understand it: decoded, without dot segments. None: it climbs
    out of its service, or no request line can hold it."""
    if _UNSAFE.search(rest):
        return None
    path = unquote_to_bytes(rest.partition("?")[0].encode("utf-8", "surrogateescape"))
    segments: list[str] = []
    # Browsers, and some servers, take a backslash for a slash (URL Standard, 4.4).
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
        # The reverse proxy appended the last one; those before it are what the client claims.
        address=chain.rpartition(",")[2].strip() or peer,
        forwarded_for=", ".join(one for one in (chain, peer) if one),
        scheme=given["x-forwarded-proto"] or scheme,
        host=given["x-forwarded-host"] or host,
    )


def _is_loopback(peer: str) -> bool:
    try:
        return ip_address(peer).is_loopback
    # aiohttp has no address for a peer at a unix socket.
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
    # `Connection: Host` would take the host away that the request was admitted for.
    dropped = _HOP_BY_HOP | (named - {"host"})
    return [(name, value) for name, value in pairs if name.lower() not in dropped]


def request_headers(
    headers: Iterable[tuple[str, str]],
    *,
    client: Client,
    service: Service,
    prefix: str,
    drop: frozenset[str],
) -> list[tuple[str, str]]:
    """Return the headers for the replica, without those of the body and those that may hold a token
    of ours. `drop`: what the proxy alone may see."""
    replaced = {name.lower() for name, _ in service.headers} | _SET_HERE | drop
    kept = [
        (name, value)
        for name, value in end_to_end(headers)
        if name.lower() not in replaced and not may_hold_a_token(name, value)
    ]
    kept += [
        ("X-Forwarded-For", client.forwarded_for),
        ("X-Forwarded-Proto", client.scheme),
        ("X-Forwarded-Host", client.host),
    ]
    if prefix and service.strip_prefix:
        kept.append(("X-Forwarded-Prefix", prefix))
    return [*kept, *service.headers]


SANDBOX = "sandbox allow-downloads"
"""The policy of every answer of a replica on an origin that it shares with the dashboard. Its
document has an opaque origin, runs no script and sends no form: it can read and do nothing as its
viewer, and cannot ask for a token below the dashboard's name."""
_ON_A_SHARED_ORIGIN = frozenset(
    {
        "accept-ranges",
        "age",
        "allow",
        "cache-control",
        "content-digest",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-length",
        "content-location",
        "content-range",
        "content-security-policy",
        "content-type",
        "date",
        "deprecation",
        "digest",
        "etag",
        "expires",
        "last-modified",
        "link",
        "location",
        "mcp-protocol-version",
        "mcp-session-id",
        "pragma",
        "preference-applied",
        "repr-digest",
        "request-id",
        "retry-after",
        "server",
        "server-timing",
        "set-cookie",
        "sunset",
        "traceparent",
        "tracestate",
        "vary",
        "want-repr-digest",
        "www-authenticate",
    }
)
"""Headers that speak of one answer alone. A policy for an origin (NEL, Clear-Site-Data, Alt-Svc,
Service-Worker-Allowed and those that browsers will invent) would be one for the dashboard."""
_FAMILIES_ON_A_SHARED_ORIGIN = (
    "access-control-",
    "anthropic-",
    "docker-",
    "grpc-",
    "openai-",
    "ratelimit",
    "sec-websocket-",
    "tus-",
    "upload-",
    "x-",
)
_ORDERS_TO_REVERSE_PROXIES = ("x-accel-", "x-sendfile", "x-lighttpd-", "x-reproxy-")
"""nginx and its kin obey them: `X-Accel-Redirect` makes it answer with a file of its own."""
NEVER = frozenset(
    {
        "alt-svc",
        "clear-site-data",
        "nel",
        "report-to",
        "set-login",
        "strict-transport-security",
    }
)
"""They outlive the service in a browser, and its name may be another user's next. Clear-Site-Data
removes the cookies of sibling hosts, too: the dashboard's login (Clear Site Data, 4.2.1)."""


def response_headers(
    headers: Iterable[tuple[str, str]],
    *,
    prefix: str,
    stripped: str,
    hosts: frozenset[str],
    own_origin: bool,
) -> list[tuple[str, str]]:
    """Return the headers for the client. `prefix`: below it are the service's paths. `stripped`:
    what of it the replica did not see; its redirects get it back. `own_origin`: the host name is
    the service's alone; else the answer is confined (`SANDBOX`)."""
    kept = []
    for name, value in end_to_end(headers):
        lower = name.lower()
        if not (_is_passed(lower) if own_origin else _is_shareable(lower)):
            continue
        changed: str | None = value
        if lower == "set-cookie":
            changed = confined_cookie(value, prefix) if own_origin or prefix else None
        elif lower in ("location", "content-location") and stripped:
            changed = _redirect(value, stripped, hosts)
        if changed is not None:
            kept.append((name, changed))
    if not own_origin:
        kept.append(("Content-Security-Policy", SANDBOX))
    return kept


def _is_passed(name: str) -> bool:
    if name == "x-accel-buffering":  # it is about this answer alone; event streams set it
        return True
    return name not in NEVER and not name.startswith(_ORDERS_TO_REVERSE_PROXIES)


def _is_shareable(name: str) -> bool:
    if not _is_passed(name):
        return False
    return (
        name == "x-accel-buffering"
        or name in _ON_A_SHARED_ORIGIN
        or name.startswith(_FAMILIES_ON_A_SHARED_ORIGIN)
    )


def confined_cookie(cookie: str, prefix: str) -> str | None:
    """Return a replica's `Set-Cookie` so that it stays within its host and below `prefix`; None: it
    would replace a cookie of ours.

    Attributes are read as browsers read them (RFC 6265, 5.2): spaces around their names count for
    nothing, and the last one of a name holds.
    """
    pair, *attributes = cookie.split(";")
    name, equals, _ = pair.partition("=")
    # Browsers take a cookie without `=` for a value with an empty name, and send it back bare.
    if (name if equals else pair).strip().lower().startswith(OWN_COOKIES):
        return None
    if not name.strip() and pair.partition("=")[2].strip().lower().startswith(OWN_COOKIES):
        return None
    kept, path = [pair.strip()], None
    for attribute in attributes:
        key, _, value = attribute.partition("=")
        match key.strip().lower():
            # With a Domain, browsers would send it to other services too (RFC 6265, 5.3).
            case "domain" | "":
                continue
            case "path":
                path = value.strip()
            case _:
                kept.append(attribute.strip())
    # Browsers pass over any other Path (RFC 6265, 5.2.4).
    if path is not None and path.startswith("/"):
        kept.append(f"Path={path if _is_below(path, prefix) else prefix + path}")
    return "; ".join(kept)


def _redirect(location: str, prefix: str, hosts: frozenset[str]) -> str:
    # It names another host (RFC 3986, 4.2), though it looks like a path.
    if location.startswith("//"):
        return location
    if location.startswith("/"):
        return location if _is_below(location, prefix) else prefix + location
    try:
        parts = urlsplit(location)
    except ValueError:
        # As above: a job's `Location` may have anything between brackets.
        return location
    if parts.scheme not in ("http", "https") or parts.netloc not in hosts:
        return location
    if _is_below(parts.path, prefix):
        return location
    return parts._replace(path=prefix + (parts.path or "/")).geturl()


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith((f"{prefix}/", f"{prefix}?"))


def head_of(method: str, target: str, headers: Headers) -> bytes:
    """Return the request's first bytes. No value can hold a line end: aiohttp refuses those."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")
