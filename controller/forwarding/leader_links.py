"""The follower's end: connections to the leader, kept and used again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from functools import partial

from aiohttp import web

from common.links.dialling import dial
from common.proxy.headers import CLIENT, end_to_end, head_of
from common.proxy.upstream import ReplicaConnection
from common.streams import PortStream
from controller.forwarding.follower_links import HANDSHAKE_SECONDS, LINK_PATH, ONLY_FIND, PROTOCOL
from controller.relay import CONNECT_SECONDS, Leader, drained, while_it_leads
from fairlead.connections.vanished import end_when_vanished

log = logging.getLogger(__name__)

MAX_KEPT = 256
_RETRY_SECONDS = 0.1
_MAX_HEAD = 64 << 10
_SET_HERE = frozenset((CLIENT.lower(), ONLY_FIND.lower(), "content-length", "expect"))


class NoLink(Exception):
    """The leader opens no links: it is of an earlier version, or something between takes them
    away."""


class NobodyLeads(Exception):
    """No controller led in time; nothing was sent."""


class _Term:
    """A leader while it is known as the leader."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.over = asyncio.Event()
        self.kept: deque[ReplicaConnection] = deque()
        self.opens_links: bool | None = None
        self.asking = asyncio.Lock()


class Link:
    """A connection to the leader, for one request. `is_over` is set when the leader leads no
    more."""

    def __init__(self, term: _Term, connection: ReplicaConnection) -> None:
        self._term = term
        self.connection = connection

    @property
    def over(self) -> asyncio.Event:
        return self._term.over

    @property
    def leader(self) -> Leader:
        return self._term.leader

    @property
    def host(self) -> str:
        return self.leader.url.partition("://")[2]

    def give_back(self) -> None:
        """Keep the connection for another request, if it can carry one."""
        kept = self._term.kept
        if self.connection.finish() and not self.over.is_set() and len(kept) < MAX_KEPT:
            kept.append(self.connection)
        else:
            self.connection.close()


class LeaderLinks:
    """Connections to the controller that leads; `lead_to` says which one that is."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._term: _Term | None = None
        self._left: Leader | None = None
        self._changed = asyncio.Event()
        self._waits = True

    @property
    def leader(self) -> Leader | None:
        return None if self._term is None else self._term.leader

    def wait_no_more(self) -> None:
        """Let nobody wait for a leader any more: this controller is being stopped."""
        self._waits = False
        self._changed.set()

    def lead_to(self, leader: Leader | None) -> None:
        known = None if self._term is None else self._term.leader
        if leader == known or (leader is not None and leader == self._left):
            return
        self._end_term()
        if leader is not None:
            self._term = _Term(leader)
            self._changed.set()

    def leave(self, link: Link) -> None:
        """Use this leader no more: it has said that it leads no more."""
        if self._term is not None and self._term.over is link.over:
            self._left = self._term.leader
            self._end_term()

    def close(self) -> None:
        self._end_term()

    def _end_term(self) -> None:
        term, self._term = self._term, None
        if term is not None:
            term.over.set()
            while term.kept:
                term.kept.pop().close()
        if self._waits:
            self._changed.clear()

    async def opens_links(self, leader: Leader) -> bool:
        """Return whether this leader does so; it is asked once. Raises OSError, TimeoutError."""
        self.lead_to(leader)
        term = self._term
        if term is None or term.leader != leader:
            raise ConnectionResetError("it leads no more")
        async with term.asking:
            if term.opens_links is None:
                try:
                    (await self._opened(term)).close()
                except NoLink as error:
                    log.warning("connections are carried to %s byte by byte: %s", leader.url, error)
                    term.opens_links = False
                else:
                    term.opens_links = True
        return term.opens_links

    async def get(self, seconds: float) -> Link:
        """Return a connection to the leader; wait for one for so long. Raises NobodyLeads,
        NoLink."""
        until = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(until):
                while True:
                    await self._changed.wait()
                    term = self._term
                    if term is not None and (found := await self._one(term)) is not None:
                        return found
                    if not self._waits:
                        raise NobodyLeads
                    # A leader that has just died is still the last one that was seen.
                    await asyncio.sleep(_RETRY_SECONDS)
        except TimeoutError:
            raise NobodyLeads from None

    async def _one(self, term: _Term) -> Link | None:
        while term.kept:
            # The newest: its server is the least likely to have closed it by now.
            connection = term.kept.pop()
            if connection.can_be_reused:
                return Link(term, connection)
            connection.close()
        # The leader may be gone before the database says so.
        with contextlib.suppress(OSError, TimeoutError):
            return Link(term, await self._opened(term))
        return None

    async def _opened(self, term: _Term) -> ReplicaConnection:
        """Return a new connection. Raises OSError, TimeoutError, NoLink."""
        return await while_it_leads(self._open(term.leader, term.over), term.over)

    async def _open(self, leader: Leader, over: asyncio.Event) -> ReplicaConnection:
        """`over` is set once it leads no more. Raises OSError, TimeoutError, NoLink."""
        outer = _UNVERIFIED if leader.is_secure else None
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await dial(
                    leader.host, leader.port, partial(asyncio.open_connection, port=leader.port)
                )
            try:
                end_when_vanished(writer.transport)
                if outer is not None:
                    await writer.start_tls(outer, server_hostname=leader.host)
                asked = [
                    ("Host", leader.url.partition("://")[2]),
                    ("Connection", "Upgrade"),
                    ("Upgrade", PROTOCOL),
                ]
                writer.write(head_of("GET", LINK_PATH, asked))
                head = await _head(reader)
                if not head.startswith(b"HTTP/1.1 101 "):
                    raise _refusal(head)
                await writer.start_tls(self._context)
            # Another installation, or anybody, may answer at the address of a leader that has
            # ended.
            except ssl.SSLCertVerificationError as error:
                writer.transport.abort()
                raise NoLink(f"its key is another one ({error.verify_message})") from error
            except BaseException:
                writer.transport.abort()
                raise
        return ReplicaConnection(PortStream(reader, _ToLeader(writer, over)))


class _ToLeader:
    """What is written to a leader, which may take nothing for a while."""

    def __init__(self, writer: asyncio.StreamWriter, over: asyncio.Event) -> None:
        self._writer = writer
        self._over = over

    def write(self, data: bytes, /) -> None:
        self._writer.write(data)

    async def drain(self) -> None:
        """Raises OSError."""
        await drained(self._writer, self._over)

    def write_eof(self) -> None:
        self._writer.write_eof()

    def close(self) -> None:
        self._writer.close()


def as_its_client_sent_it(request: web.Request) -> list[tuple[str, str]]:
    """Return the headers with which the leader sees this request as its client sent it, without
    those of its body."""
    kept = [
        (name, value)
        for name, value in end_to_end(request.headers.items())
        if name.lower() not in _SET_HERE
    ]
    if "Host" not in request.headers:
        # HTTP/1.0 knows none, which health checks of load balancers use; HTTP/1.1 asks for one.
        kept.append(("Host", request.host))
    kept.append((CLIENT, f"{request.scheme} {request.remote or ''}"))
    return kept


async def _head(reader: asyncio.StreamReader) -> bytes:
    """Raises OSError."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    # asyncio's errors of a stream that ends, or goes on, too early are no OSErrors.
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise ConnectionResetError("it gave no answer") from error


def _refusal(head: bytes) -> Exception:
    status = head.partition(b"\r\n")[0].decode("latin-1")
    # 502 to 504: one that leads no more, or not yet; or something between that does not reach it.
    if status.split(" ")[1:2] in (["502"], ["503"], ["504"]):
        return ConnectionResetError(status)
    return NoLink(f"it answers {status}")


def _unverified() -> ssl.SSLContext:
    """What is inside is verified, by the installation's key; this one may be a proxy's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


_UNVERIFIED = _unverified()
