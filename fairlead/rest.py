"""One method for each kind of request of the REST API, and its streams. All of them block. How a
request reaches a controller: `fairlead.connections.requests`."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from fairlead.connections import READ_BYTES
from fairlead.connections.http1 import quoted
from fairlead.connections.order_keys import ORDER_KEY, is_setting, new_order_key
from fairlead.connections.requests import UPLOAD_SECONDS, Requests
from fairlead.errors import ApiError, ConnectionLost, UnexpectedAnswer, UsageError

# Not of `typing`: it takes 3 ms to load, and msgspec 9, before a command's first request. So both
# come with the first answer.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO, TypeVar

    import msgspec

    from fairlead.documents.runs import EventView, RunView, WatchLine
    from fairlead.wire.blobs import Part
    from fairlead.wire.frames import Frame

    T = TypeVar("T")
CUT_WAITS = (0.2, 0.5, 1.0, 2.0)
"""Seconds before each further try after a cut: a controller that starts again is away for about so
long."""


class ControllerClient(Requests):
    """Talks to the controller. Every method raises ApiError when the controller refuses,
    ConnectionLost when it is away, ClientClosed after `close`. Threads can share it."""

    def another(self) -> ControllerClient:
        """Return another client of the same controller, which is closed on its own."""
        return ControllerClient(self._addresses, self._token)

    def get(self, path: str, **query: object) -> bytes:
        """Return the JSON as it came, for `--json` and for `decode`."""
        return self._request("GET", path, query=query)

    def post(self, path: str, body: object, *, repeatable: bool = False) -> bytes:
        """`repeatable`: the controller does the same request once, because the body has a key, or
        changes nothing. One that sets how a run goes on, named by its id, always is."""
        if not is_setting(path):
            return self._request("POST", path, body=body, repeatable=repeatable)
        headers = {ORDER_KEY: new_order_key()}
        return self._request("POST", path, body=body, headers=headers, repeatable=True)

    def put(self, path: str, body: object) -> bytes:
        return self._request("PUT", path, body=body)

    def submit(self, body: object) -> tuple[bytes, int]:
        """Submit a run. Return the run's JSON and the HTTP status.

        201: a new run. 200: the run that is kept. 202: the old run, which must end before the same
        submission makes the new one.
        """
        return self._submitted("/v1/runs", body, keyed=_has_key(body))

    def submit_yaml(self, body: bytes) -> tuple[bytes, int]:
        """Submit the task of a YAML file by its text, as `submit` does. The body is JSON, with a
        client key. A controller that cannot do with the text refuses it."""
        return self._submitted("/v1/runs:yaml", body, keyed=True)

    def _submitted(self, path: str, body: object, *, keyed: bool) -> tuple[bytes, int]:
        with self._opened("POST", path, body=body, repeatable=keyed) as (_, response):
            return self._read(response), response.status

    def submit_together(self, body: object) -> bytes:
        """Submit several runs as one act, each with a client key. Return the JSON of all."""
        return self.post("/v1/runs/together", body, repeatable=True)

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

            def pieces() -> Iterator[bytes]:
                content.seek(0)
                # Another address gets all of it: the one before may have taken a part.
                return _counted(content, sent)

            self._put(f"/v1/blobs/{digest}", pieces, file.stat().st_size)

    def missing_parts(self, digest: str, parts: Sequence[Part]) -> frozenset[str]:
        """Return the parts of a new upload that no earlier one of the user has."""
        from fairlead.wire.blobs import MissingParts

        data = self.post(f"/v1/blobs/{digest}/missing", {"parts": parts}, repeatable=True)
        return decode(data, MissingParts).missing

    def upload_parts(
        self,
        digest: str,
        file: Path,
        parts: Sequence[Part],
        missing: frozenset[str],
        sent: Callable[[int], None],
    ) -> None:
        """Upload the file as `upload` does, but send only the parts in `missing`."""
        import msgspec

        manifest = msgspec.json.encode({"parts": parts, "sent": sorted(missing)}) + b"\n"
        size = sum(part.size for part in parts if part.sha256 in missing)
        with file.open("rb") as content:

            def pieces() -> Iterator[bytes]:
                content.seek(0)
                return chain([manifest], _of_parts(content, parts, missing, sent))

            self._put(f"/v1/blobs/{digest}/parts", pieces, len(manifest) + size)

    def download(
        self, path: str, file: Path, heard: Callable[[int], None], **query: object
    ) -> None:
        """Download to the file, after what it has already; `heard` is told its bytes."""
        have = file.stat().st_size if file.exists() else 0
        wanted = {"Range": f"bytes={have}-"} if have else {}
        opened = self._opened(
            "GET", path, query=query, headers=wanted, patience=UPLOAD_SECONDS, passes=(416,)
        )
        with opened as (_, response), file.open("ab") as content:
            if response.status == 416:  # all of it is there
                return
            if response.status != 206:  # a server may ignore Range (RFC 9110, 14.2)
                content.truncate(0)
                have = 0
            left = int(response.header("Content-Length") or 0)
            while piece := self._read(response, READ_BYTES):
                content.write(piece)
                have, left = have + len(piece), left - len(piece)
                heard(have)
            if left > 0:
                raise self.lost(ConnectionResetError(), response.address)

    def patch(self, path: str, body: object) -> bytes:
        return self._request("PATCH", path, body=body)

    def delete(self, path: str, **query: object) -> bytes:
        return self._request("DELETE", path, query=query)

    def run(self, key: str) -> RunView:
        from fairlead.documents.runs import RunView

        return decode(self.get(run_path(key)), RunView)

    def watch(self, key: str, heard: Callable[[], None]) -> Iterator[WatchLine]:
        """Yield the lines of `GET .../watch` without heartbeats; ends when the run is final.

        `heard` is called for heartbeats too, here and in the other streams: they show that the
        controller is there.
        """
        from fairlead.documents.runs import WatchLine

        for line in self._lines(run_path(key, "watch")):
            heard()
            parsed = decode(line, WatchLine)
            if parsed.run is not None:
                yield parsed

    def watched_events(
        self, run: str | None, cursor: int, heard: Callable[[], None]
    ) -> Iterator[EventView]:
        """Yield the events of `GET /v1/events/watch`, without heartbeats."""
        from fairlead.documents.runs import EventLine

        for line in self._lines("/v1/events/watch", run=run, cursor=cursor):
            heard()
            parsed = decode(line, EventLine)
            if parsed.event is not None:
                yield parsed.event

    def stored_frames(
        self, key: str, *, offset: int = 0, attempt: str | None = None, **query: object
    ) -> Generator[Frame, None, None]:
        """Yield the log as it is stored now. If the connection breaks, it goes on at its byte."""
        from fairlead.wire.frames import ATTEMPT_HEADER, tail_from

        path, waits, at = run_path(key, "logs"), iter(CUT_WAITS), None
        while True:
            asked = query | {"attempt": attempt, "offset": offset if at is None else at}
            try:
                with self._opened("GET", path, query=asked) as (_, response):
                    # The job may begin another attempt before this connection breaks.
                    attempt = response.header(ATTEMPT_HEADER) or attempt
                    for frame in _frames(iter(lambda: self._read(response, READ_BYTES), b"")):
                        fresh = frame if at is None else tail_from(frame, at)
                        if fresh is not None:
                            at, waits = fresh.end, iter(CUT_WAITS)
                            yield fresh
                return
            except ConnectionLost:
                wait = next(waits, None)
                if attempt is None or at is None or wait is None:
                    raise
                self._addresses.sleep(wait)

    def followed_frames(
        self, key: str, heard: Callable[[], None], *, offset: int = 0, **query: object
    ) -> Iterator[Frame]:
        """Yield the log from an offset on, as it grows, until its attempt has ended."""
        while True:
            try:
                for frame in self._frames_of_stream(key, heard, query | {"offset": offset}):
                    offset = frame.end
                    yield frame
            except _Unread:
                continue  # the controller is there, so nothing is told
            return

    def _frames_of_stream(
        self, key: str, heard: Callable[[], None], query: dict[str, object]
    ) -> Iterator[Frame]:
        """Raises _Unread."""
        from fairlead.connections.websocket import Closed
        from fairlead.wire.websocket import Opcode, Violation

        with self._websocket(run_path(key, "logs/ws"), query) as (address, stream):
            pieces = stream.pieces()
            try:
                next(pieces, None)  # the header
                heard()
                yield from _frames(piece for opcode, piece in pieces if opcode is Opcode.BINARY)
            except Closed:
                # Any code but 1000: the controller stops, or cannot go on. The log is not over.
                raise self.lost(ConnectionResetError(), address) from None
            except (OSError, Violation) as error:
                if stream.was_unread and isinstance(error, ConnectionError) and not self._closed:
                    raise _Unread from None
                raise self.lost(error, address) from None


def _has_key(body: object) -> bool:
    return isinstance(body, Mapping) and body.get("client_key") is not None


def run_path(key: str, part: str = "") -> str:
    """Return the run's path.

    Raises UsageError for an empty key, which comes from a variable that is not set.
    """
    if not key:
        raise UsageError("RUN is empty: give the id or name of a run")
    path = f"/v1/runs/{quoted(key)}"
    return f"{path}/{part}" if part else path


def service_path(key: str, part: str = "") -> str:
    """Return the path of a service, or of a part of it."""
    return run_path(key, part).replace("/v1/runs/", "/v1/services/", 1)


def secret_path(name: str) -> str:
    return f"/v1/secrets/{quoted(name)}"


def service_key_path(id: str) -> str:
    return f"/v1/service-keys/{quoted(id)}"


def job_path(run: str, job: str, part: str) -> str:
    return run_path(run, f"jobs/{quoted(job)}/{part}")


def node_path(key: str, part: str = "") -> str:
    path = f"/v1/nodes/{quoted(key)}"
    return f"{path}/{part}" if part else path


def decode(data: bytes | msgspec.Raw, shape: type[T]) -> T:
    """Return the answer as `shape`. Raises UnexpectedAnswer for one that this version does
    not know."""
    import msgspec

    from fairlead.wire.decoders import decoder_of

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


def _counted(content: BinaryIO, sent: Callable[[int], None]) -> Iterator[bytes]:
    while piece := content.read(READ_BYTES):
        yield piece
        sent(content.tell())


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


class _Unread(Exception):
    """The controller cut a stream that nobody read for some time."""
