"""Requests that programs understand differently, and the one judgement that they get: at the
controller's proxy, and at a gateway whether HAProxy or the agent judges."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re

import msgspec

TOKEN = b"fl_" + b"0a" * 32
KEY = b"flk_" + b"0a" * 32
_BASIC = base64.b64encode(b"me:" + TOKEN)
_HOST = b"Host: api.DOMAIN\r\n"


class Odd(msgspec.Struct, frozen=True, kw_only=True):
    """`raw`: the request; DOMAIN is that of the service. `status`: of the answer; `gateway_status`:
    where HAProxy itself says it with another number. `seen`: the request line that the replica gets
    and `unseen`: what else of the request it does not get."""

    name: str
    raw: bytes
    status: int = 200
    gateway_status: int | None = None
    seen: bytes = b"GET /x HTTP/1.1"
    unseen: tuple[bytes, ...] = ()


def _get(name: str, *lines: bytes, target: bytes = b"/x", **fields: object) -> Odd:
    head = b"GET " + target + b" HTTP/1.1\r\n" + _HOST + b"".join(one + b"\r\n" for one in lines)
    return msgspec.structs.replace(Odd(name=name, raw=head + b"\r\n"), **fields)


def _refused(name: str, *lines: bytes, target: bytes = b"/x", status: int = 400) -> Odd:
    return _get(name, *lines, target=target, status=status)


def _hidden(name: str, line: bytes, secret: bytes = TOKEN) -> Odd:
    return _get(name, line, unseen=(secret,))


ODD_REQUESTS = (
    _get("an ordinary one"),
    Odd(
        name="a tunnel",
        raw=b"CONNECT api.DOMAIN:80 HTTP/1.1\r\n" + _HOST + b"\r\n",
        status=405,
    ),
    Odd(name="an unknown method", raw=b"FOO /x HTTP/1.1\r\n" + _HOST + b"\r\n", status=400),
    Odd(
        name="all of a server",
        raw=b"OPTIONS * HTTP/1.1\r\n" + _HOST + b"\r\n",
        seen=b"OPTIONS * HTTP/1.1",
    ),
    _get("an absolute target", target=b"http://api.DOMAIN/x?y", seen=b"GET /x?y HTTP/1.1"),
    _get("an absolute target without a path", target=b"http://api.DOMAIN", seen=b"GET / HTTP/1.1"),
    _refused("an absolute target elsewhere", target=b"http://other.DOMAIN/x"),
    _refused("an absolute target with a user", target=b"http://u:p@api.DOMAIN/x"),
    _refused("an absolute target of another scheme", target=b"ftp://api.DOMAIN/x"),
    _refused("a target with a fragment", target=b"/x#y"),
    _refused("a target with NUL", target=b"/x\0y"),
    _refused("a target with DEL", target=b"/x\x7fy"),
    _refused("a header with NUL", b"X-A: a\0b"),
    _refused("a header with a control character", b"X-A: a\x01b"),
    _refused("a header with CR", b"X-A: a\rb"),
    _get("a long target", target=b"/" + b"a" * 7000, seen=b"GET /" + b"a" * 7000 + b" HTTP/1.1"),
    _refused("a target that is too long", target=b"/" + b"a" * 9000),
    _refused("a target beyond all buffers", target=b"/" + b"a" * 70_000),
    _get("a long header", b"X-A: " + b"a" * 7000),
    _refused("a header that is too long", b"X-A: " + b"a" * 9000),
    _refused("a header beyond all buffers", b"X-A: " + b"a" * 70_000),
    _get("many headers", *(b"X-%d: a" % number for number in range(110))),
    _refused("too many headers", *(b"X-%d: a" % number for number in range(200))),
    _get(
        "a header of this hop", b"Connection: X-Mine, keep-alive", b"X-Mine: 1", unseen=(b"mine",)
    ),
    _get(
        "what Connection would take away",
        b"Connection: Host, X-Forwarded-For, X-Fairlead-Admitted",
        unseen=(b"connection", b"admitted"),
    ),
    _get(
        "headers of the hop",
        *(b"TE: trailers", b"Keep-Alive: timeout=5", b"Trailer: z"),
        *(b"Proxy-Connection: x", b"Proxy-Authorization: y"),
        unseen=(b"\r\nte:", b"keep-alive:", b"proxy-", b"trailer:"),
    ),
    Odd(
        name="an encoding of the body",
        raw=b"POST /x HTTP/1.1\r\n" + _HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        status=400,
        gateway_status=422,
    ),
    _refused("two Authorizations", b"Authorization: Basic YTpi", b"Authorization: Bearer " + TOKEN),
    _hidden("a token", b"Authorization: Bearer " + TOKEN),
    _hidden("a key", b"Authorization: Bearer " + KEY, KEY),
    _hidden("a token behind a tab", b"Authorization: Bearer\t" + TOKEN),
    _hidden("a token behind spaces", b"Authorization:   bEARER   " + TOKEN),
    _hidden("a token alone", b"Authorization: " + TOKEN),
    _hidden("a token of another scheme", b"Authorization: Token " + TOKEN),
    _hidden("a token in a list", b"Authorization: Bearer x, Bearer " + TOKEN),
    _hidden("a token as a password", b"Authorization: Basic " + _BASIC, _BASIC),
    _hidden("a token as a password in odd Basic", b"Authorization: basic\t" + _BASIC, _BASIC),
    _hidden(
        "a token as a password without padding",
        b"Authorization: Basic " + _BASIC.rstrip(b"="),
        _BASIC[:40],
    ),
    _hidden("a token in a header of another name", b"X-Api-Key: " + TOKEN),
    _hidden("a token as a subprotocol", b"Sec-WebSocket-Protocol: fairlead.token." + TOKEN),
    _hidden("a token in a cookie", b"Cookie: a=b; t=" + TOKEN),
    _get("what only looks like one", b"X-A: fl_lang=en; sl_" + b"0a" * 32),
)


ODD_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"
    b"Alt-Svc: h3=x\r\nNEL: {}\r\nStrict-Transport-Security: max-age=9\r\nKeep-Alive: timeout=5\r\n"
    b"X-A: 1\r\n"
    b"Set-Cookie: a=b; Path=/; Domain=DOMAIN; HttpOnly\r\n"
    b"Set-Cookie: c=d; domain = .DOMAIN;Domain=x\r\n"
    b"Set-Cookie: e=f\r\n\r\n"
)
KEPT_OF_IT = {
    b"content-length: 0",
    b"x-a: 1",
    b"set-cookie: a=b; path=/; httponly",
    b"set-cookie: a=b; httponly; path=/",
    b"set-cookie: c=d",
    b"set-cookie: e=f",
}
"""The order of a cookie's attributes tells nothing."""
OWN_COOKIE = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nSet-Cookie: __Host-fairlead-x=1\r\n\r\n"


async def answer_odd(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes
) -> None:
    """A replica that sends this."""
    while True:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)


async def headers_of(port: int, domain: str) -> set[bytes]:
    """Ask the service; return the lines of the answer's head, in small letters."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.closing(writer):
        writer.write(ODD_REQUESTS[0].raw.replace(b"DOMAIN", domain.encode()))
        head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    lines = head.lower().strip().split(b"\r\n")[1:]
    return {line for line in lines if not line.startswith((b"date:", b"server:"))}


async def ask(port: int, odd: Odd, domain: str) -> tuple[int, bytes]:
    """Send it; return the status and the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.closing(writer):
        writer.write(odd.raw.replace(b"DOMAIN", domain.encode()))
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: ([0-9]+)", head.lower())
        body = await reader.readexactly(int(length[1])) if length else b""
        return int(head.split()[1]), body


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A replica that answers with the heads that it gets."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(head), head))


def check(odd: Odd, domain: str, status: int, head: bytes, *, at_gateway: bool = False) -> None:
    expected = odd.gateway_status if at_gateway and odd.gateway_status else odd.status
    assert status == expected
    if expected != 200:
        return
    line, _, rest = head.partition(b"\r\n")
    assert line == odd.seen
    assert f"host: api.{domain}".encode() in rest.lower()
    for text in odd.unseen:
        assert text.lower() not in rest.lower()
