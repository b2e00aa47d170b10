"""Which requests no replica gets, whoever asks; and which headers may hold a token of ours.

A gateway's HAProxy sends what it cannot judge alike to the agent, which asks this module too
(`gateway.haproxy`); `tests/support/odd_requests.py` has the table that both are held against.
"""

from __future__ import annotations

import base64
import binascii
import re
from urllib.parse import urlsplit

from aiohttp import web

from common.proxy.errors import NotAllowed
from common.refusals import Invalid
from common.tokens import TOKEN_BYTES, TOKEN_PREFIX

_KIND = TOKEN_PREFIX[:2]
"""All of ours begin with it. To look for it first costs 0.3 µs a header, where the search for the
expressions costs up to 13."""
TOKEN = f"{_KIND}[a-z]?_[0-9a-f]{{{TOKEN_BYTES * 2}}}"
"""A regular expression of all tokens and keys, wherever they stand."""
_TOKEN = re.compile(TOKEN)
_BEGINS_LIKE_ONE = re.compile(rf"""(?:^|[\s,;:="']){_KIND}[a-z]?_|{TOKEN}""")
_FORWARD = ("http", "https")


def require_plain(request: web.Request) -> None:
    """Refuse a request that programs understand differently. Raises Invalid, NotAllowed."""
    if request.method == "CONNECT":
        raise NotAllowed("a service opens no tunnels: CONNECT is for proxies")
    if len(request.headers.getall("Authorization", ())) > 1:
        raise Invalid("the request has more than one Authorization", field="Authorization")
    # Programs that read another coding differently see different requests (RFC 9112, 11.2).
    encodings = request.headers.getall("Transfer-Encoding", ())
    if any(one.strip().lower() != "chunked" for one in encodings):
        raise Invalid("only chunked is understood", field="Transfer-Encoding")
    raw = request.raw_path
    if "#" in raw:
        raise Invalid("the target of a request has no fragment (#)", field="path")
    if not raw.startswith("/") and raw != "*" and not _is_for_its_host(raw, request):
        raise Invalid("the target of the request is not at the host that it names", field="path")


def _is_for_its_host(raw: str, request: web.Request) -> bool:
    """Return whether an absolute target (RFC 9112, 3.2.2) leads where `Host` does."""
    try:
        parts = urlsplit(raw)
    except ValueError:
        # urlsplit raises it for brackets without an IPv6 address between them.
        return False
    host = request.headers.get("Host", "")
    return parts.scheme in _FORWARD and parts.netloc.lower() == host.lower()


def may_hold_a_token(name: str, value: str) -> bool:
    """Return whether a header may hold a token or key of ours, with whatever scheme and spaces. No
    replica may see it: it could act as the user."""
    is_authorization = name.lower() == "authorization"
    if _KIND in value:
        pattern = _BEGINS_LIKE_ONE if is_authorization else _TOKEN
        if pattern.search(value):
            return True
    if is_authorization and value.lstrip().lower().startswith("basic"):
        return any(map(_is_token_in_base64, value.split()))
    return False


def _is_token_in_base64(word: str) -> bool:
    """Return whether it is a name with a token as its password, as `Basic` has it."""
    try:
        decoded = base64.b64decode(word + "=" * (-len(word) % 4))
    except (binascii.Error, ValueError):
        # The word `Basic` itself is among them, and a client may send anything.
        return False
    return _TOKEN.search(decoded.decode("latin-1")) is not None
