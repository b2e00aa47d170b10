"""The requests of a client: which address gets a request, what a
lost connection is called, and how `close` ends the streams. What a request is for: `fairlead.rest`.

A command is over before a larger client would be imported. For the same reason, modules that only
the answer needs are imported while the controller works.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress

from fairlead.connections.addresses import Address, Addresses, Tell, Tries
from fairlead.connections.dialling import dial, host_of
from fairlead.connections.http1 import Answer, BadAnswer, BadRequest, Connection, quoted
from fairlead.connections.keepalives import GONE_SECONDS, notice_the_gone
from fairlead.errors import ClientClosed, ConnectionLost, FairleadError, api_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fairlead.connections.websocket import WebSocket
CONNECT_SECONDS = 10.0
NEXT_SECONDS = 1.5
"""Of a connection where other addresses are left: a lost SYN is repeated after 1 s (RFC 6298)."""
ANSWER_SECONDS = 60.0
SILENT_SECONDS = 10.0
"""Of an answer that another address could begin to give: longer than a controller holds a
request."""
LOOK_SECONDS = 1.0
"""After so long without such an answer, the client looks whether the address answers anything. The
kernel of one whose process is paused takes requests all the same."""
AWAKE_SECONDS = 1.0
"""A controller answers in this time what needs neither its leader nor its database."""
_AT_ONCE = "/v1/controllers/link"
"""Each controller answers it at once. A follower asks the leader about its health."""
HANDSHAKE_SECONDS = 3.0
"""Of the TLS of a connection where other addresses are left."""
UPLOAD_SECONDS = 300.0
"""Seconds without any progress."""
SILENCE_SECONDS = 35.0
"""Seconds of three missed heartbeats of a watch."""
SILENCE_OF_SEVERAL_SECONDS = 15.0
"""The same of one, where another address can go on."""
UNHEARD_SECONDS = 60
"""A connection to the only address breaks when the machine confirms nothing for so long."""
_SWITCHING_PROTOCOLS = 101
_CLOSED = "the client was closed: make another one"
_LOST = (OSError, BadAnswer, BadRequest)


class Requests:
    """Sends requests to the first address that answers. Threads can share it."""

    def __init__(
        self, url: str | Addresses, token: str | None, *, tell: Tell | None = None
    ) -> None:
        """`url`: one URL, or several separated by commas, of controllers that share a database.
        `tell` gets a sentence about one that is passed over; by default it goes to stderr. Raises
        SettingsError."""
        self._addresses = url if isinstance(url, Addresses) else Addresses(url, tell)
        self._token = token
        self._streams: set[socket.socket] = set()
        self._closed = False
        self._lock = threading.Lock()
        self._meanwhile: Callable[[], object] | None = None

    @property
    def url(self) -> str:
        """The URL that answered last, of several."""
        return self._addresses.current.url

    @property
    def addresses(self) -> Addresses:
        return self._addresses

    def meanwhile(self, work: Callable[[], object]) -> None:
        """Let `work` be called once, when the next request has been sent and its answer is still to
        come: it may load what the answer needs."""
        self._meanwhile = work

    def close(self) -> None:
        """End all streams, from any thread; later requests raise ClientClosed."""
        with self._lock:
            self._closed = True
            streams = tuple(self._streams)
        for stream in streams:
            with suppress(OSError):
                # shutdown(2) wakes a thread that waits in recv(2), close(2) does not.
                socket.socket.shutdown(stream, socket.SHUT_RDWR)  # below TLS: it has a reader

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, object] | None = None,
        body: object = None,
        headers: dict[str, str] | None = None,
        repeatable: bool = False,
    ) -> bytes:
        """A request that only reads is always repeatable. The whole answer belongs to a try."""
        tries = self._addresses.tries(repeatable=repeatable or method == "GET")
        for address in tries:
            try:
                with closing(self._connected(address, ANSWER_SECONDS, tries)) as connection:
                    response = self._send(
                        connection, address, method, path, query, body, headers, tries=tries
                    )
                    answer = self._read(response)
            except FairleadError as error:
                tries.failed(address, error)
            else:
                tries.answered(address)
                return answer
        raise tries.lost()

    @contextmanager
    def _opened(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, object] | None = None,
        body: object = None,
        headers: dict[str, str] | None = None,
        patience: float = ANSWER_SECONDS,
        passes: tuple[int, ...] = (),
        repeatable: bool = False,
    ) -> Iterator[tuple[Connection, Answer]]:
        """Give the answer whose body is still to be read, from the first address that answers."""
        tries = self._addresses.tries(repeatable=repeatable or method == "GET")
        for address in tries:
            connection = None
            try:
                connection = self._connected(address, patience, tries)
                response = self._send(
                    connection, address, method, path, query, body, headers, passes, tries
                )
            except FairleadError as error:
                if connection is not None:
                    connection.close()
                tries.failed(address, error)
                continue
            tries.answered(address)
            with closing(connection):
                yield connection, response
            return
        raise tries.lost()

    def _put(self, path: str, pieces: Callable[[], Iterable[bytes]], size: int) -> None:
        """Put a file whose path has its digest: sent twice, it is the same file."""
        tries = self._addresses.tries(repeatable=True)
        for address in tries:
            try:
                self._put_there(address, path, pieces(), size, tries)
            except FairleadError as error:
                tries.failed(address, error)
            else:
                tries.answered(address)
                return
        raise tries.lost()

    def _lines(self, path: str, **query: object) -> Iterator[bytes]:
        several = self._addresses.are_several
        patience = SILENCE_OF_SEVERAL_SECONDS if several else SILENCE_SECONDS
        opened = self._opened("GET", path, query=query, patience=patience)
        with opened as (connection, response), self._open_stream(connection.sock):
            yield from self._lines_of(response)

    @contextmanager
    def _websocket(
        self, path: str, query: dict[str, object]
    ) -> Iterator[tuple[Address, WebSocket]]:
        """Open a WebSocket at the first address that answers. It may be opened twice."""
        self._refuse_when_closed()
        tries = self._addresses.tries(repeatable=True)
        for address in tries:
            try:
                stream = self._websocket_there(address, path, query, tries)
            except FairleadError as error:
                tries.failed(address, error)
                continue
            tries.answered(address)
            with stream, self._open_stream(stream.socket):
                yield address, stream
            return
        raise tries.lost()

    def _lines_of(self, response: Answer) -> Iterator[bytes]:
        while True:
            try:
                line = response.readline()
            except _LOST as error:
                raise self.lost(error, response.address) from None
            if not line:
                self._refuse_when_closed()
                return
            # The controller was killed within a line of an answer that the connection's end ends.
            if not line.endswith(b"\n"):
                raise self.lost(ConnectionResetError(), response.address)
            yield line

    def _websocket_there(
        self, address: Address, path: str, query: dict[str, object], tries: Tries
    ) -> WebSocket:
        from fairlead.connections import websocket
        from fairlead.wire.websocket import Violation

        connection = self._connected(address, CONNECT_SECONDS, tries, is_exact=True)
        key = websocket.new_key()
        with ExitStack() as unless_accepted:
            unless_accepted.callback(connection.close)
            handshake = websocket.handshake(key)
            response = self._send(
                connection, address, "GET", path, query, None, handshake, tries=tries
            )
            if response.status != _SWITCHING_PROTOCOLS:
                raise self.refusal(response.status, self._read(response), address)
            names = ("Upgrade", "Connection", "Sec-WebSocket-Accept")
            try:
                websocket.require_accepted(key, *map(response.header, names))
            except Violation as error:
                raise self.lost(error, address) from None
            response.close()
            # The WebSocket has the socket now; the end of this block must not close it.
            unless_accepted.pop_all()
        several = self._addresses.are_several
        return websocket.WebSocket(connection.sock, connection.received(), are_several=several)

    def _put_there(
        self, address: Address, path: str, pieces: Iterable[bytes], size: int, tries: Tries
    ) -> None:
        def stalled(seconds: float) -> None:
            # Its disk or its bucket may be slow. If it answers nothing else, it is paused or gone.
            is_doubtful = tries.are_left or seconds >= UNHEARD_SECONDS
            if seconds >= UPLOAD_SECONDS or (is_doubtful and not _is_awake(address)):
                raise TimeoutError

        connected = self._connected(address, LOOK_SECONDS, tries, is_read=False)
        with closing(connected) as connection:
            headers = {**self._headers(), "Content-Length": str(size)}
            try:
                connection.request("PUT", _target(address, path, None), pieces, headers, stalled)
            except (BrokenPipeError, ConnectionResetError):
                pass  # refused before all was sent: the answer says why
            except _LOST as error:
                raise self.lost(error, address) from None
            try:
                _hear_slow(connection, stalled)
                response = connection.answer()
            except _LOST as error:
                raise self.lost(error, address) from None
            body = self._read(response)
            if response.status >= 300:
                raise self.refusal(response.status, body, address)

    def _connected(
        self,
        address: Address,
        patience: float,
        tries: Tries,
        *,
        is_exact: bool = False,
        is_read: bool = True,
    ) -> Connection:
        """Connect; nothing is sent yet. `patience`: seconds without any progress, later.
        `is_read` False: the controller may read nothing of it for a while."""
        self._refuse_when_closed()
        try:
            handshake = HANDSHAKE_SECONDS if tries.are_left else CONNECT_SECONDS
            made = dial(address, self.connect_seconds, handshake)
            made.settimeout(patience)
            notice_the_gone(made, self._gone_seconds, is_read=is_read)
        # Not even connected: the request can be repeated, also one that changes something.
        except _LOST as error:
            raise self.lost(error, address, unsent=True) from None
        return Connection(made, host_of(address), is_exact=is_exact, address=address)

    def _hear(self, connection: Connection, address: Address) -> None:
        """Wait for the beginning of an answer that another address may give. Raises OSError, after
        less time if this one is paused."""
        plain, patience = connection.sock, connection.sock.gettimeout()
        until = time.monotonic() + SILENT_SECONDS
        while True:
            left = max(until - time.monotonic(), 0.001)
            plain.settimeout(min(LOOK_SECONDS, left))
            try:
                connection.hear()
            except TimeoutError:
                if time.monotonic() >= until or not _is_awake(address):
                    raise
            else:
                plain.settimeout(patience)
                return

    def _send(
        self,
        connection: Connection,
        address: Address,
        method: str,
        path: str,
        query: dict[str, object] | None,
        body: object,
        headers: dict[str, str] | None = None,
        passes: tuple[int, ...] = (),
        tries: Tries | None = None,
    ) -> Answer:
        """Send the request; return the answer before its body. `body`: bytes are JSON already.
        `passes`: no errors here."""
        content = body if body is None or isinstance(body, bytes) else _json(body)
        work, self._meanwhile = self._meanwhile, None
        try:
            target = _target(address, path, query)
            connection.request(method, target, content, {**self._headers(), **(headers or {})})
        except _LOST as error:
            raise self.lost(error, address) from None
        if work is not None:
            work()
        try:
            if tries is not None and tries.may_go_on:
                self._hear(connection, address)
            response = connection.answer()
        except _LOST as error:
            raise self.lost(error, address) from None
        # A redirection too: a controller sends none, so it is of a proxy or a portal.
        if response.status >= 300 and response.status not in passes:
            raise self.refusal(response.status, self._read(response), address)
        return response

    def _read(self, response: Answer, amount: int | None = None) -> bytes:
        try:
            return response.read() if amount is None else response.read1(amount)
        except _LOST as error:
            # Another thread's request may have found another address meanwhile.
            raise self.lost(error, response.address) from None

    def _headers(self) -> dict[str, str]:
        return {} if self._token is None else {"Authorization": f"Bearer {self._token}"}

    @contextmanager
    def _open_stream(self, connection: socket.socket) -> Iterator[None]:
        with self._lock:
            self._refuse_when_closed()
            self._streams.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._streams.discard(connection)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise ClientClosed(_CLOSED)

    @property
    def _gone_seconds(self) -> int:
        """How long the machine of one address may be silent."""
        return GONE_SECONDS if self._addresses.are_several else UNHEARD_SECONDS

    @property
    def connect_seconds(self) -> float:
        """How long the machine of one address may take to accept a connection."""
        return NEXT_SECONDS if self._addresses.are_several else CONNECT_SECONDS

    def socket(
        self, path: str, *, at: Address | None = None, **query: object
    ) -> tuple[str, dict[str, str]]:
        """Return the URL of a WebSocket and the headers for its request. `at`: one of the
        addresses; None: the one that answered last."""
        return _ws_url(at or self._addresses.current, path, query), self._headers()

    def lost(
        self, error: Exception, address: Address | None = None, *, unsent: bool = False
    ) -> ConnectionLost | ClientClosed:
        """Return the error of a broken connection; the next request begins with the next
        address."""
        if self._closed:
            return ClientClosed(_CLOSED)
        address = address or self._addresses.current
        self._addresses.leave(address)
        why = why_lost(error)
        return ConnectionLost(
            f"cannot reach the controller at {address.url}: {why}; is it running? "
            f"(`fairlead login URL` says where it is, `fairlead controller` starts one)",
            refused=isinstance(error, ConnectionRefusedError | socket.gaierror),
            unsent=unsent,
            why=why,
        )

    def refusal(
        self, status: int, body: bytes | None, address: Address | None = None
    ) -> FairleadError:
        from fairlead.wire.errors import read_error

        detail = read_error(body or b"")
        if detail is None:
            url = (address or self._addresses.current).url
            return ConnectionLost(
                f"{url} answered with HTTP {status}, but not like a Fairlead controller; "
                f"is the URL right?",
                refused=True,
                status=status,
                why=f"it answers with HTTP {status}, but not like a Fairlead controller",
            )
        return api_error(status, detail.code, detail.message, detail.field)


def _json(body: object) -> bytes:
    import msgspec  # 9 ms, which a request without a body saves until its answer

    return msgspec.json.encode(body)


def _hear_slow(connection: Connection, stalled: Callable[[float], None]) -> None:
    """Wait for the beginning of an answer. Raises OSError; also what `stalled` raises, which is
    told again and again how long there was none."""
    since = time.monotonic()
    while True:
        try:
            connection.hear()
        except TimeoutError:
            stalled(time.monotonic() - since)
        else:
            connection.sock.settimeout(UPLOAD_SECONDS)
            return


def _is_awake(address: Address) -> bool:
    """Return whether the process at this address answers anything."""
    try:
        with closing(dial(address, AWAKE_SECONDS, AWAKE_SECONDS)) as made:
            made.settimeout(AWAKE_SECONDS)
            connection = Connection(made, host_of(address))
            connection.request("GET", f"{address.base}{_AT_ONCE}")
            connection.hear()
            return True
    except _LOST:
        return False


def why_lost(error: Exception) -> str:
    """Return errors of sockets, TLS, HTTP and WebSocket clients in words."""
    # The first four are OSErrors too. The number of a gaierror is one of getaddrinfo(3), which
    # strerror(3) takes for another error.
    if "ssl" in sys.modules:  # else there was no TLS, and it costs 7 ms
        import ssl

        if isinstance(error, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted ({error.verify_message})"
        if isinstance(error, ssl.SSLError):
            return "a secure connection to it is not possible"
    match error:
        case socket.gaierror():
            return "its name cannot be looked up"
        case TimeoutError():
            return "it does not answer"
        case ConnectionResetError() | BrokenPipeError():
            return "the connection was cut"
        case OSError(errno=int(number)):
            return os.strerror(number)
        case OSError():
            return "the connection failed"
        case _:
            return "it does not answer like a Fairlead controller"


def _target(address: Address, path: str, query: Mapping[str, object] | None) -> str:
    given = {name: _text(value) for name, value in (query or {}).items() if value is not None}
    if not given:
        return f"{address.base}{path}"
    pairs = "&".join(f"{quoted(name)}={quoted(text)}" for name, text in given.items())
    return f"{address.base}{path}?{pairs}"


def _ws_url(address: Address, path: str, query: Mapping[str, object]) -> str:
    root = address.url.removesuffix(address.base).replace("http", "ws", 1)
    return root + _target(address, path, query)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
