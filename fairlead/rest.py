"""One method for each kind of request of the REST API, and its streams. All of them block.

It uses the standard library's HTTP: a command is over before a larger client would be imported. For
the same reason, modules that only the answer needs are imported while the controller works.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from fairlead.errors import (
    ApiError,
    ClientClosed,
    ConnectionLost,
    FairleadError,
    SettingsError,
    UnexpectedAnswer,
    UsageError,
    api_error,
)
from fairlead.wire.decoders import decoder_of
from fairlead.wire.errors import read_error


def why_lost(error: Exception) -> str:
    """Return errors of sockets, TLS, HTTP and WebSocket clients in words."""
    # The first four are OSErrors too. The number of a gaierror is one of getaddrinfo(3), which
    # strerror(3) takes for another error.
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted ({error.verify_message})"
        case ssl.SSLError():
            return "a secure connection to it is not possible"
        case socket.gaierror():
            return "its name cannot be looked up"
        case TimeoutError():
            return "it does not answer"
        case ConnectionResetError() | BrokenPipeError() | http.client.IncompleteRead():
            return "the connection was cut"
        case OSError(errno=int(number)):
            return os.strerror(number)
        case OSError():
            return "the connection failed"
        case _:
            return "it does not answer like a Fairlead controller"


if TYPE_CHECKING:
    from fairlead.documents import EventView, RunView, WatchLine
    from fairlead.wire.blobs import Part
    from fairlead.wire.frames import Frame
T = TypeVar("T")
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
UPLOAD_SECONDS = 300.0
"""Seconds without any progress."""
SILENCE_SECONDS = 35.0
"""Seconds of three missed heartbeats of a watch."""
READ_BYTES = 1 << 18
MAX_MESSAGE_BYTES = 64 << 20
_CLOSED = "the client was closed: make another one"
_LOST = (OSError, http.client.HTTPException)


def _counted(content: BinaryIO, sent: Callable[[int], None]) -> Iterator[bytes]:
    while piece := content.read(READ_BYTES):
        yield piece
        sent(content.tell())


class _Missing(msgspec.Struct, frozen=True):
    missing: frozenset[str]


def _of_parts(
    content: BinaryIO, parts: Sequence[Part], wanted: frozenset[str], sent: Callable[[int], None]
) -> Iterator[bytes]:
    count = 0
    for part in parts:
        if part.sha256 not in wanted:
            content.seek(part.size, os.SEEK_CUR)
            continue
        left = part.size
        while left and (piece := content.read(min(left, READ_BYTES))):
            yield piece
            left -= len(piece)
            count += len(piece)
            sent(count)


class ControllerClient:
    """Talks to the controller. Every method raises ApiError when the controller refuses,
    ConnectionLost when it is away, ClientClosed after `close`. Threads can share it."""

    def __init__(self, url: str, token: str | None) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.scheme not in ("http", "https") or not host:
            raise SettingsError(f"FAIRLEAD_URL: {url!r} is not a URL like http://127.0.0.1:8700")
        self.url = url.rstrip("/")
        self._secure = parts.scheme == "https"
        self._host = host
        self._port = port
        self._base = parts.path.rstrip("/")
        self._token = token
        self._streams: set[socket.socket] = set()
        self._closed = False
        self._lock = threading.Lock()

    def another(self) -> ControllerClient:
        """Return another client of the same controller, which is closed on its own."""
        return ControllerClient(self.url, self._token)

    def close(self) -> None:
        """End all streams, from any thread; later requests raise ClientClosed."""
        with self._lock:
            self._closed = True
            streams = tuple(self._streams)
        for stream in streams:
            with suppress(OSError):
                # shutdown(2) wakes a thread that waits in recv(2), close(2) does not.
                socket.socket.shutdown(stream, socket.SHUT_RDWR)  # below TLS: it has a reader

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

    def get(self, path: str, **query: object) -> bytes:
        """Return the JSON as it came, for `--json` and for `decode`."""
        return self._request("GET", path, query=query)

    def post(self, path: str, body: object) -> bytes:
        return self._request("POST", path, body=body)

    def put(self, path: str, body: object) -> bytes:
        return self._request("PUT", path, body=body)

    def submit(self, body: object) -> tuple[bytes, int]:
        """Submit a run. Return the run's JSON and the HTTP status.

        201: a new run. 200: the run that is kept. 202: the old run, which must end before the same
        submission makes the new one.
        """
        with closing(self._connection(ANSWER_SECONDS)) as connection:
            response = self._open(connection, "POST", "/v1/runs", body=body)
            return self._read(response), response.status

    def submit_together(self, body: object) -> bytes:
        """Submit several runs as one act. Return the JSON of all of them."""
        return self.post("/v1/runs/together", body)

    def has_upload(self, digest: str) -> bool:
        try:
            self.get(f"/v1/blobs/{digest}")
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    def upload(self, digest: str, file: Path, sent: Callable[[int], None]) -> None:
        """Upload the file; `digest` is its sha256. `sent` is told how many bytes are on their
        way."""
        with file.open("rb") as content:
            pieces = _counted(content, sent)
            self._put(f"/v1/blobs/{digest}", pieces, file.stat().st_size)

    def missing_parts(self, digest: str, parts: Sequence[Part]) -> frozenset[str]:
        """Return the parts of a new upload that no earlier one of the user has."""
        data = self.post(f"/v1/blobs/{digest}/missing", {"parts": parts})
        return decode(data, _Missing).missing

    def upload_parts(
        self,
        digest: str,
        file: Path,
        parts: Sequence[Part],
        missing: frozenset[str],
        sent: Callable[[int], None],
    ) -> None:
        """Upload the file as `upload` does, but send only the parts in `missing`."""
        manifest = msgspec.json.encode({"parts": parts, "sent": sorted(missing)}) + b"\n"
        size = sum(part.size for part in parts if part.sha256 in missing)
        with file.open("rb") as content:
            pieces = chain([manifest], _of_parts(content, parts, missing, sent))
            self._put(f"/v1/blobs/{digest}/parts", pieces, len(manifest) + size)

    def _put(self, path: str, pieces: Iterable[bytes], size: int) -> None:
        with closing(self._connection(UPLOAD_SECONDS)) as connection:
            headers = {**self._headers(), "Content-Length": str(size)}
            try:
                connection.request("PUT", self._target(path, None), pieces, headers)
            except (BrokenPipeError, ConnectionResetError):
                pass  # refused before all was sent: the answer says why
            except _LOST as error:
                raise self.lost(error) from None
            try:
                response = connection.getresponse()
            except _LOST as error:
                raise self.lost(error) from None
            body = self._read(response)
            if response.status >= 400:
                raise self.refusal(response.status, body)

    def download(
        self, path: str, file: Path, heard: Callable[[int], None], **query: object
    ) -> None:
        """Download to the file, after what it has already; `heard` is told its bytes."""
        have = file.stat().st_size if file.exists() else 0
        with closing(self._connection(UPLOAD_SECONDS)) as connection, file.open("ab") as content:
            wanted = {"Range": f"bytes={have}-"} if have else {}
            try:
                target = self._target(path, query)
                connection.request("GET", target, None, {**self._headers(), **wanted})
                response = connection.getresponse()
            except _LOST as error:
                raise self.lost(error) from None
            if response.status == 416:  # all of it is there
                return
            if response.status >= 400:
                raise self.refusal(response.status, self._read(response))
            if response.status != 206:  # a server may ignore Range (RFC 9110, 14.2)
                content.truncate(0)
                have = 0
            left = int(response.headers.get("Content-Length") or 0)
            while piece := self._read(response, READ_BYTES):
                content.write(piece)
                have, left = have + len(piece), left - len(piece)
                heard(have)
            # http.client raises no IncompleteRead for reads of a given size.
            if left > 0:
                raise self.lost(ConnectionResetError())

    def patch(self, path: str, body: object) -> bytes:
        return self._request("PATCH", path, body=body)

    def delete(self, path: str, **query: object) -> bytes:
        return self._request("DELETE", path, query=query)

    def run(self, key: str) -> RunView:
        from fairlead.documents import RunView

        return decode(self.get(run_path(key)), RunView)

    def watch(self, key: str, heard: Callable[[], None]) -> Iterator[WatchLine]:
        """Yield the lines of `GET .../watch` without heartbeats; ends when the run is final.

        `heard` is called for heartbeats too, here and in the other streams: they show that the
        controller is there.
        """
        from fairlead.documents import WatchLine

        for line in self._lines(run_path(key, "watch")):
            heard()
            parsed = decode(line, WatchLine)
            if parsed.run is not None:
                yield parsed

    def watched_events(
        self, run: str | None, cursor: int, heard: Callable[[], None]
    ) -> Iterator[EventView]:
        """Yield the events of `GET /v1/events/watch`, without heartbeats."""
        from fairlead.documents import EventLine

        path = self._target("/v1/events/watch", {"run": run, "cursor": cursor})
        for line in self._lines(path.removeprefix(self._base)):
            heard()
            parsed = decode(line, EventLine)
            if parsed.event is not None:
                yield parsed.event

    def stored_frames(self, key: str, **query: object) -> Iterator[Frame]:
        """Yield the log as it is stored now."""
        with closing(self._connection(ANSWER_SECONDS)) as connection:
            response = self._open(connection, "GET", run_path(key, "logs"), query=query)
            yield from _frames(iter(lambda: self._read(response, READ_BYTES), b""))

    def followed_frames(
        self, key: str, heard: Callable[[], None], **query: object
    ) -> Iterator[Frame]:
        """Yield the log from an offset on, as it grows, until its attempt has ended."""
        from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
        from websockets.sync.client import connect

        self._refuse_when_closed()
        try:
            with (
                connect(
                    self._ws_url(run_path(key, "logs/ws"), query),
                    additional_headers=self._headers(),
                    open_timeout=CONNECT_SECONDS,
                    close_timeout=2.0,
                    # Compression costs CPU for each byte of a log.
                    compression=None,
                    max_size=MAX_MESSAGE_BYTES,
                    # websockets would use the environment's proxy, which http.client does not.
                    proxy=None,
                ) as stream,
                self._open_stream(stream.socket),
            ):
                stream.recv()
                heard()
                yield from _frames(_binary(message) for message in iter(stream.recv, None))
        except ConnectionClosed as closed:
            # 1000: it ended as it should (RFC 6455, 7.4.1).
            if closed.rcvd is None or closed.rcvd.code != 1000:
                raise self.lost(ConnectionResetError()) from None
        except InvalidStatus as refused:
            response = refused.response
            raise self.refusal(response.status_code, bytes(response.body or b"")) from None
        except (OSError, WebSocketException) as error:
            raise self.lost(error) from None

    def socket(self, path: str, **query: object) -> tuple[str, dict[str, str]]:
        """Return the URL of a WebSocket and the headers for its request."""
        return self._ws_url(path, query), self._headers()

    # -- transport --------------------------------------------------------------------------

    def _request(
        self, method: str, path: str, *, query: dict[str, object] | None = None, body: object = None
    ) -> bytes:
        with closing(self._connection(ANSWER_SECONDS)) as connection:
            response = self._open(connection, method, path, query=query, body=body)
            return self._read(response)

    def _lines(self, path: str) -> Iterator[bytes]:
        with closing(self._connection(SILENCE_SECONDS)) as connection:
            response = self._open(connection, "GET", path)
            if connection.sock is None:  # the answer was whole
                yield from response
                return
            with self._open_stream(connection.sock):
                yield from self._lines_of(response)

    def _lines_of(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        while True:
            try:
                line = response.readline()
            except _LOST as error:
                raise self.lost(error) from None
            if not line:
                self._refuse_when_closed()
                return
            # The controller was killed within a line, which http.client takes for the end.
            if not line.endswith(b"\n"):
                raise self.lost(ConnectionResetError())
            yield line

    def _connection(self, patience: float) -> http.client.HTTPConnection:
        self._refuse_when_closed()
        if self._secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=patience, context=context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=patience)

    def _open(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        *,
        query: dict[str, object] | None = None,
        body: object = None,
    ) -> http.client.HTTPResponse:
        content = None if body is None else msgspec.json.encode(body)
        try:
            connection.request(method, self._target(path, query), content, self._headers())
            response = connection.getresponse()
        except _LOST as error:
            raise self.lost(error) from None
        if response.status >= 400:
            raise self.refusal(response.status, self._read(response))
        return response

    def _read(self, response: http.client.HTTPResponse, amount: int | None = None) -> bytes:
        try:
            return response.read() if amount is None else response.read1(amount)
        except _LOST as error:
            raise self.lost(error) from None

    def _headers(self) -> dict[str, str]:
        return {} if self._token is None else {"Authorization": f"Bearer {self._token}"}

    def _target(self, path: str, query: dict[str, object] | None) -> str:
        given = {name: _text(value) for name, value in (query or {}).items() if value is not None}
        return f"{self._base}{path}" + (f"?{urlencode(given)}" if given else "")

    def _ws_url(self, path: str, query: dict[str, object]) -> str:
        return self.url.removesuffix(self._base).replace("http", "ws", 1) + self._target(
            path, query
        )

    def lost(self, error: Exception) -> ConnectionLost | ClientClosed:
        if self._closed:
            return ClientClosed(_CLOSED)
        return ConnectionLost(
            f"cannot reach the controller at {self.url}: {why_lost(error)}; is it running? "
            f"(`fairlead login URL` says where it is, `fairlead controller` starts one)",
            refused=isinstance(error, ConnectionRefusedError | socket.gaierror),
        )

    def refusal(self, status: int, body: bytes | None) -> FairleadError:
        detail = read_error(body or b"")
        if detail is None:
            return ConnectionLost(
                f"{self.url} answered with HTTP {status}, but not like a Fairlead controller; "
                f"is the URL right?",
                refused=True,
            )
        return api_error(status, detail.code, detail.message, detail.field)


def run_path(key: str, part: str = "") -> str:
    """Return the run's path.

    Raises UsageError for an empty key, which comes from a variable that is not set.
    """
    if not key:
        raise UsageError("RUN is empty: give the id or name of a run")
    path = f"/v1/runs/{quote(key, safe='')}"
    return f"{path}/{part}" if part else path


def service_path(key: str, part: str = "") -> str:
    """Return the path of a service, or of a part of it."""
    return run_path(key, part).replace("/v1/runs/", "/v1/services/", 1)


def secret_path(name: str) -> str:
    return f"/v1/secrets/{quote(name, safe='')}"


def service_key_path(id: str) -> str:
    return f"/v1/service-keys/{quote(id, safe='')}"


def job_path(run: str, job: str, part: str) -> str:
    return run_path(run, f"jobs/{quote(job, safe='')}/{part}")


def node_path(key: str, part: str = "") -> str:
    path = f"/v1/nodes/{quote(key, safe='')}"
    return f"{path}/{part}" if part else path


def decode(data: bytes | msgspec.Raw, shape: type[T]) -> T:
    """Return the answer as `shape`. Raises UnexpectedAnswer for one that this version does
    not know."""
    try:
        return decoder_of(shape).decode(data)
    except msgspec.MsgspecError as error:
        raise UnexpectedAnswer(
            f"the controller's answer is not understood ({error}); are command and controller of "
            f"the same version?"
        ) from None


def _frames(pieces: Iterable[bytes]) -> Iterator[Frame]:
    from fairlead.wire.frames import BadFrame, Decoder

    decoder = Decoder()
    try:
        for piece in pieces:
            yield from decoder.feed(piece)
    except BadFrame as error:
        raise UnexpectedAnswer(f"the log that the controller sent is damaged: {error}") from None


def _binary(message: Any) -> bytes:
    return message if isinstance(message, bytes) else b""


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
