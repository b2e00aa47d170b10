"""The client of the runner's API, for callers with a way to its socket.

The caller owns the `aiohttp.ClientSession`, whose connector leads to the socket (base URL
`http://runner`). Every call may be repeated. There are two errors: the runner refused
(`RunnerError`), or it could not be asked (`RunnerUnavailable`), after which nothing is known about
the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import TypeVar

import aiohttp
import msgspec

from common.http import why_lost
from common.kept_connections import KeptConnections
from common.open_answers import (
    Dial,
    InvalidAnswer,
    OpenAnswer,
    UpgradedAnswer,
    open_answer,
    open_upgraded,
    upgrade,
)
from common.streams import PortStream, StreamReader, StreamWriter
from fairlead.connections.websocket import (
    FrameReader,
    frame,
    handshake,
    new_key,
    require_accepted,
)
from fairlead.wire.decoders import decoder_of
from fairlead.wire.errors import AgentError, AgentUnavailable, read_error
from fairlead.wire.job import SubmitRequest
from fairlead.wire.runner import (
    LOG_COMPLETE_HEADER,
    LOG_END_HEADER,
    WS_TOO_SLOW,
    AckRequest,
    AgainAnswer,
    AgainRequest,
    BatchAnswer,
    BatchRequest,
    JobMetrics,
    LogsHeader,
    NoticeRequest,
    RunnerHealth,
    RunnerState,
    SignalRequest,
    StatusEvent,
    StopRequest,
    SuspendRequest,
)
from fairlead.wire.websocket import CloseCode, Opcode, Violation

_MAX_HEAD = 8192
_MAX_BODY = 64 << 10
_END_OF_HEAD = b"\r\n\r\n"
_CLOSE = {"Connection": "close"}


DialStream = Callable[[], Awaitable[tuple[StreamReader, StreamWriter]]]
"""Opens a stream to the runner's socket. Raises OSError."""


class Answer(msgspec.Struct, frozen=True):
    status: int
    rest: bytes


async def ask(reader: StreamReader, writer: StreamWriter, port: int) -> Answer:
    """Ask for a port. `rest` is what came after the head: the body of an error, or the job's first
    bytes.

    Raises OSError, and ValueError for an invalid answer.
    """
    writer.write(f"CONNECT /v1/ports/{port} HTTP/1.1\r\nHost: runner\r\n\r\n".encode())
    await writer.drain()
    received = await _read_to(reader, b"", _END_OF_HEAD, _MAX_HEAD)
    head, end, rest = received.partition(_END_OF_HEAD)
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    if not end or len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise ValueError("not an answer of a runner")
    status = int(words[1])
    if status != 200:
        rest = await _read_to(reader, rest, None, _MAX_BODY)
    return Answer(status, rest)


async def _read_to(reader: StreamReader, data: bytes, end: bytes | None, most: int) -> bytes:
    while (end is None or end not in data) and len(data) < most:
        more = await reader.read(most)
        if not more:
            break
        data += more
    return data


BASE_URL = "http://runner"
REQUEST_TIMEOUT = 30.0
STATUS_HEARTBEAT = 60
"""Seconds between the heartbeats of a status stream. Thousands of streams are followed, and a node
that is gone is noticed by its shim's heartbeats."""
FIRST_PAGE_WAIT = 20.0
"""Seconds to wait for the first output of a job that is followed from its beginning."""
SILENCE = 150.0
"""Seconds without a byte after which a status stream counts as lost."""
_CODE_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_read=300.0)
"""Every piece of a large blob may take this long; the answer comes when the blob is on the disk."""
_MAX_MESSAGE = 8 << 20
_MAX_ANSWER = 1 << 20
_MAX_PAGE = 16 << 20
_MAX_BATCH = 8 << 20
_MAX_TEXT = 2000
_MAX_STATUS = 128 << 10
_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_T = TypeVar("_T")


class RunnerError(AgentError):
    """The runner refused the request."""


class RunnerUnavailable(AgentUnavailable):
    """The runner cannot be reached, or the connection was lost."""


class LogPage(msgspec.Struct, frozen=True):
    """A page of the log. `frames`: whole frames, up to `end` (None: an older runner). `complete`:
    the job has ended and the page reaches the end."""

    frames: bytes
    complete: bool
    end: int | None


class RunnerClient:
    """The client. Each method raises RunnerError or RunnerUnavailable.

    `transport_errors` are exceptions of the session's connector, besides aiohttp's own, that mean a
    lost connection. `dial` opens a stream to the runner's socket; `connect_port` needs it.
    `dial_answer` connects there for `status_events` and `follow_logs`. `kept`: connections to that
    socket, by which a request costs less than by the session; only `put_code` and `logs` need that.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        transport_errors: tuple[type[Exception], ...] = (),
        dial: DialStream | None = None,
        dial_answer: Dial | None = None,
        kept: KeptConnections | None = None,
    ) -> None:
        self._session = session
        self._kept = kept
        self._dial = dial
        self._dial_answer = dial_answer
        own = (aiohttp.ClientError, OSError, TimeoutError)
        self._lost: tuple[type[Exception], ...] = (*own, *transport_errors)

    async def health(self) -> RunnerHealth:
        return await self._call("GET", "/v1/health", RunnerHealth)

    async def submit(self, request: SubmitRequest) -> StatusEvent:
        return await self._call("POST", "/v1/submit", StatusEvent, request)

    async def put_code(self, digest: str, content: bytes | AsyncIterable[bytes]) -> StatusEvent:
        """Upload a blob. `digest`: the sha256 of `content`, by which the job names it."""
        query = {"digest": digest}
        with self._transport():
            async with self._session.put(
                "/v1/code", params=query, data=content, timeout=_CODE_TIMEOUT
            ) as response:
                answer = await _read(response)
                _raise_for_error(response.status, answer)
                return _decode(answer, StatusEvent)

    async def run(self) -> StatusEvent:
        return await self._call("POST", "/v1/run", StatusEvent)

    async def start(self, request: SubmitRequest) -> StatusEvent:
        """`submit` and `run` in one request. If the job waits for its code, `run` is still
        necessary.

        A runner that has just started answers this request first.
        """
        try:
            return await self._call("POST", "/v1/start", StatusEvent, request)
        except RunnerError as error:
            if error.status != 404:
                raise
        event = await self.submit(request)  # an older runner
        return await self.run() if event.state is RunnerState.READY else event

    async def stop(
        self,
        *,
        signal: str | None = None,
        grace: float = 10.0,
        interrupt: bool = False,
        delay: float = 0.0,
    ) -> StatusEvent:
        """Stop the job with this signal (default: the job's stop signal); SIGKILL follows `grace`
        seconds from now. `interrupt`, `delay`: see StopRequest."""
        body = StopRequest(signal=signal, grace=grace, interrupt=interrupt, delay=delay)
        return await self._call("POST", "/v1/stop", StatusEvent, body)

    async def signal(self, request: SignalRequest) -> StatusEvent:
        """Send the job its signal, because an end comes."""
        return await self._call("POST", "/v1/signal", StatusEvent, request)

    async def suspend(self, suspended: bool) -> None:
        """Tell the runner that the job's run is suspended or resumed. RunnerError 404: the runner
        is too old for that."""
        await self._call("POST", "/v1/suspend", StatusEvent, SuspendRequest(suspended=suspended))

    async def batch(self, request: BatchRequest) -> BatchAnswer:
        """Exchange jobs, orders and news with a container that runs jobs one after another."""
        return await self._call("POST", "/v1/batch", BatchAnswer, request, most=_MAX_BATCH)

    async def again(self, request: AgainRequest) -> AgainAnswer:
        """Start the job again in its container; see AgainRequest. RunnerError 404: the runner is
        too old for that."""
        return await self._call("POST", "/v1/again", AgainAnswer, request)

    async def ack(self, offset: int) -> int:
        """Acknowledge: everything before `offset` is stored. Return the acknowledged offset.

        To acknowledge the end of an ended job, 0 included, lets the runner exit.
        """
        body = AckRequest(offset=offset)
        return (await self._call("POST", "/v1/logs/ack", AckRequest, body)).offset

    async def notice(self, id: str, text: str) -> None:
        """Add a line to the job's log; the same `id` again changes nothing. Raises RunnerError
        `ended` after the job's end."""
        await self._call("POST", "/v1/notices", StatusEvent, NoticeRequest(id=id, text=text))

    async def metrics(self) -> JobMetrics:
        """Ask on a connection that ends with the answer.

        A controller asks all its runners in turn, 20 a second; connections kept for a next request
        would all be open at the same time. By aiohttp each costs it twice the CPU time.
        """
        if self._dial_answer is None:
            return await self._call("GET", "/v1/metrics", JobMetrics, headers=_CLOSE)
        with self._transport():
            async with asyncio.timeout(REQUEST_TIMEOUT), self._opened("/v1/metrics") as answer:
                return _decode(await _body_of(answer), JobMetrics)

    async def logs(self, offset: int, *, wait: float = 0.0) -> LogPage:
        """Return frames from `offset` on, at most a few MiB; wait up to `wait` s when there are
        none."""
        query = {"offset": str(offset), "wait": str(int(wait))}
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT + wait)
        with self._transport():
            async with self._session.get("/v1/logs", params=query, timeout=timeout) as response:
                body = await _read(response, _MAX_PAGE)
                _raise_for_error(response.status, body)
                complete = response.headers.get(LOG_COMPLETE_HEADER) == "true"
                return LogPage(body, complete, _whole(response.headers.get(LOG_END_HEADER)))

    async def status_events(self, after: int = 0) -> AsyncGenerator[StatusEvent, None]:
        """Yield events after the one numbered `after`, until the runner ends; heartbeats repeat the
        last event."""
        if self._dial_answer is None:
            raise RunnerUnavailable("this connection cannot follow a status")
        path = f"/v1/status?after={after}&heartbeat={STATUS_HEARTBEAT}"
        async with self._opened(path) as answer:
            while (line := await answer.read_line(_MAX_STATUS, SILENCE)) is not None:
                yield _decode(line, StatusEvent)

    async def follow_logs(self, offset: int) -> AsyncGenerator[bytes, None]:
        """Yield raw frames from `offset` on, each item whole frames, until the job has ended and
        all was sent.

        Raises RunnerError `too_slow` when this side read nothing for too long.
        """
        if self._dial_answer is None:
            raise RunnerUnavailable("this connection cannot follow a log")
        within = REQUEST_TIMEOUT + FIRST_PAGE_WAIT
        first = f"/v1/logs?offset=0&wait={FIRST_PAGE_WAIT:.0f}"
        with self._transport():
            socket = None
            try:
                # The first page, which a runner that has only just come up gives first. The rest
                # comes on the same connection: over SSH, each one is a channel more.
                if not offset:
                    async with asyncio.timeout(within):
                        socket = await open_upgraded(self._dial_answer, "runner", first, {}, within)
                        page = await _page_of(socket)
                    if page.frames and page.end is not None:
                        yield page.frames
                        offset = page.end
                    if page.complete and page.end is not None:
                        return
                    del page  # what follows may wait for as long as the job runs
                path, key = f"/v1/logs/ws?offset={offset}", new_key()
                if socket is None:
                    socket = await open_upgraded(
                        self._dial_answer, "runner", path, handshake(key), REQUEST_TIMEOUT
                    )
                else:
                    await upgrade(socket, "runner", path, handshake(key), REQUEST_TIMEOUT)
                if socket.status != 101:
                    text = f"the log cannot be followed from offset {offset}"
                    raise RunnerError("refused", text, socket.status)
                _require_accepted(key, socket)
                async with aclosing(_messages(socket)) as messages:
                    async for message in messages:
                        yield message
                        del message  # the next one may be long in coming
            except (InvalidAnswer, Violation) as error:
                raise RunnerError("bad_answer", str(error), 502) from error
            finally:
                if socket is not None:
                    socket.close()

    async def connect_port(self, port: int) -> PortStream:
        """Connect to a port on the job's loopback; the caller closes it. Raises RunnerError
        `port_refused` when nothing listens there."""
        if self._dial is None:
            raise RunnerUnavailable("this connection cannot reach the ports of a job")
        with self._transport():
            reader, writer = await self._dial()
            try:
                answer = await ask(reader, writer, port)
                _raise_for_error(answer.status, answer.rest)
            except ValueError as error:
                writer.close()
                raise RunnerError("bad_answer", str(error), 502) from error
            except BaseException:
                # Also when it is cancelled: nobody else knows this connection yet.
                writer.close()
                raise
        return PortStream(reader, writer, answer.rest)

    @asynccontextmanager
    async def _opened(self, path: str) -> AsyncIterator[OpenAnswer]:
        """Yield an answer with status 200 to a request on a connection of its own."""
        assert self._dial_answer is not None, "the caller has looked"
        with self._transport():
            try:
                if self._kept is not None:
                    answer = await self._kept.open(path, REQUEST_TIMEOUT)
                else:
                    answer = await open_answer(self._dial_answer, "runner", path, REQUEST_TIMEOUT)
                try:
                    if answer.status != 200:
                        async with asyncio.timeout(REQUEST_TIMEOUT):
                            body = await _body_of(answer)
                        raise _refusal(answer.status, body)
                    yield answer
                finally:
                    answer.close()
            except InvalidAnswer as error:
                raise RunnerError("bad_answer", str(error), 502) from error

    async def _call(
        self,
        method: str,
        path: str,
        kind: type[_T],
        body: msgspec.Struct | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        most: int = _MAX_ANSWER,
    ) -> _T:
        data = msgspec.json.encode(body) if isinstance(body, msgspec.Struct) else body
        with self._transport():
            status, answer = await self._asked(method, path, headers, data, most)
            _raise_for_error(status, answer)
            return _decode(answer, kind)

    async def _asked(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None,
        data: bytes | None,
        most: int,
    ) -> tuple[int, bytes]:
        if self._kept is not None:
            try:
                return await self._kept.ask(
                    method, path, headers, data, within=REQUEST_TIMEOUT, most=most
                )
            except InvalidAnswer as error:
                raise RunnerError("bad_answer", str(error), 502) from error
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT)
        async with self._session.request(
            method, path, data=data, headers=headers, timeout=timeout
        ) as response:
            return response.status, await _read(response, most)

    @contextmanager
    def _transport(self) -> Iterator[None]:
        if self._session.closed:
            raise RunnerUnavailable("this connection was closed")
        try:
            yield
        except self._lost as error:
            raise RunnerUnavailable(why_lost(error)) from error


async def _read(response: aiohttp.ClientResponse, most: int = _MAX_ANSWER) -> bytes:
    """Read the body, up to a limit: a job may answer in the runner's place."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > most:
            response.close()
            raise RunnerError("bad_answer", f"an answer of more than {most} bytes", 502)
    return bytes(body)


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 20 else None


async def _body_of(answer: OpenAnswer, most: int = _MAX_ANSWER) -> bytes:
    """Read the body, up to a limit: a job may answer in the runner's place."""
    body = bytearray()
    while piece := await answer.read(SILENCE):
        body += piece
        if len(body) > most:
            raise RunnerError("bad_answer", f"an answer of more than {most} bytes", 502)
    return bytes(body)


async def _page_of(answer: UpgradedAnswer) -> LogPage:
    body = await _body_of(answer, _MAX_PAGE)
    _raise_for_error(answer.status, body)
    headers, answer.headers = answer.headers, {}  # its connection may be open for days
    is_complete = headers.get(LOG_COMPLETE_HEADER.lower()) == "true"
    return LogPage(body, is_complete, _whole(headers.get(LOG_END_HEADER.lower())))


def _refusal(status: int, body: bytes) -> RunnerError:
    try:
        _raise_for_error(status, body)
    except RunnerError as error:
        return error
    return RunnerError("bad_answer", f"HTTP status {status}", 502)


def _require_accepted(key: str, answer: UpgradedAnswer) -> None:
    headers, answer.headers = answer.headers, {}  # the socket may be open for days
    require_accepted(
        key,
        headers.get("upgrade"),
        headers.get("connection"),
        headers.get("sec-websocket-accept"),
    )


async def _messages(socket: UpgradedAnswer) -> AsyncGenerator[bytes, None]:
    """Yield the binary messages until the runner closes with 1000; the first text is a header."""
    reader = FrameReader(whole=_MAX_MESSAGE)
    goodbye = CloseCode.OK.to_bytes(2, "big")
    try:
        while found := await _next_messages(socket, reader):
            found.reverse()
            while found:
                opcode, payload = found.pop()
                if opcode is Opcode.BINARY:
                    yield payload
                elif opcode is Opcode.TEXT:
                    _decode(payload, LogsHeader)
                elif opcode is Opcode.PING:
                    socket.send(frame(Opcode.PONG, payload))
                elif opcode is Opcode.CLOSE:
                    goodbye = payload[:2]
                    _raise_for_close(int.from_bytes(goodbye, "big"))
                    return
                del payload
    except Violation as error:
        goodbye = error.code.to_bytes(2, "big")
        raise
    finally:
        # Each side answers a close with one (RFC 6455, 5.5.1).
        socket.send(frame(Opcode.CLOSE, goodbye))


async def _next_messages(socket: UpgradedAnswer, reader: FrameReader) -> list[tuple[Opcode, bytes]]:
    # In a function of its own, so that nothing of the last one is kept while the next is awaited.
    while not (found := reader.feed(await socket.read())):
        pass
    return found


def _raise_for_close(code: int | None) -> None:
    if code == WS_TOO_SLOW:
        raise RunnerError("too_slow", "the reader read nothing for too long", WS_TOO_SLOW)
    if code == CloseCode.INTERNAL_ERROR:
        raise RunnerError("log_damaged", "the log's files were changed", 500)
    if code != CloseCode.OK:
        raise RunnerUnavailable("the connection was lost")


def _decode(raw: bytes, kind: type[_T]) -> _T:
    try:
        return decoder_of(kind).decode(raw)
    except _MALFORMED as error:
        raise RunnerError("bad_answer", f"not an answer of a runner: {error}", 502) from error


def _raise_for_error(status: int, body: bytes) -> None:
    if status < 400:
        return
    detail = read_error(body)
    if detail is None:
        raise RunnerError("bad_answer", f"HTTP status {status}", status)
    raise RunnerError(detail.code, detail.message[:_MAX_TEXT], status, detail.field)
