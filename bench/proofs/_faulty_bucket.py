"""A front of an object storage that is slow, answers 503 or 403, or is away."""

from __future__ import annotations

import http.client
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_SLOW_SECONDS = 3.0
_ONE_PASSES_OF = 10
_EXPIRED = (
    b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
)
_HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length")


class Mode(StrEnum):
    WORKS = "works"
    SLOW = "slow"
    """Each request takes 3 s longer."""
    FULL = "full of 503"
    """One request of 10 passes."""
    AWAY = "away"
    """Connections are refused."""
    HANGS = "hangs"
    """Connections are accepted, and no request is answered."""
    EXPIRED = "of expired keys"
    """Each request is refused as S3 does it when a session's keys are over."""


class FaultyBucket:
    """`endpoint` is that of the front; `mode` may be changed at any time."""

    def __init__(self, endpoint: str) -> None:
        self._target = urlsplit(endpoint).netloc
        self._mode = Mode.WORKS
        self._changed = threading.Condition()
        self._requests = itertools.count(1)
        self._open: set[socket.socket] = set()
        self.answered: dict[Mode, int] = dict.fromkeys(Mode, 0)
        """The requests that came in each mode; those that were refused cannot be counted."""
        self._server: ThreadingHTTPServer | None = None
        self._listen(0)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def change(self, mode: Mode) -> None:
        with self._changed:
            self._mode = mode
            self._changed.notify_all()
        if mode is Mode.AWAY:
            self._stop()
        elif self._server is None:
            self._listen(self._port)

    def close(self) -> None:
        self.change(Mode.AWAY)

    def _listen(self, port: int) -> None:
        front = self

        class Handler(_Handler):
            def do_GET(self) -> None:
                # The client gives up on a request that takes too long.
                with suppress(ConnectionError):
                    front._answer(self)

            do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

            def setup(self) -> None:
                super().setup()
                front._open.add(self.connection)

            def finish(self) -> None:
                front._open.discard(self.connection)
                with suppress(OSError):
                    super().finish()

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        # Connections that are kept alive would still be answered.
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, request: _Handler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        with self._changed:
            mode = self._mode
            self.answered[mode] += 1
            if mode is Mode.HANGS:
                self._changed.wait_for(lambda: self._mode is not Mode.HANGS)
                request.close_connection = True
                return
        if mode is Mode.AWAY:
            request.close_connection = True
            return
        if mode is Mode.FULL and next(self._requests) % _ONE_PASSES_OF:
            request.reply(503, [], b"<Error><Code>SlowDown</Code></Error>")
            return
        if mode is Mode.EXPIRED:
            request.reply(403, [], _EXPIRED)
            return
        if mode is Mode.SLOW:
            time.sleep(_SLOW_SECONDS)
        connection = http.client.HTTPConnection(self._target, timeout=60)
        try:
            connection.request(request.command, request.path, body, dict(request.headers))
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        request.reply(answer.status, answer.getheaders(), content)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def reply(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response(status)
        length = str(len(content))
        for name, value in headers:
            if name.lower() not in (*_HOP_BY_HOP, "date", "server"):
                self.send_header(name, value)
            elif name.lower() == "content-length" and self.command == "HEAD":
                length = value
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def faulty_bucket(endpoint: str) -> Iterator[FaultyBucket]:
    made = FaultyBucket(endpoint)
    try:
        yield made
    finally:
        made.close()
