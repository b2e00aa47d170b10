"""A job that is root in its container may answer in its runner's place, with anything at all: its
reader gets an error, soon, and keeps its memory."""

import asyncio
import contextlib
import gzip
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from fairlead.wire.frames import BadFrame, Decoder
from runner import client as client_module
from runner.client import RunnerClient, RunnerError, RunnerUnavailable
from tests.support.dialling import dial_to
from tests.unit.runner.harness import DEADLINE, a_session

MIB = 1 << 20
ENDLESS = -1
DRIPS = -2
"""Endless too, and slow: no wait for the next byte is long."""
OK = b"HTTP/1.1 200 OK\r\n"
JSON = b"Content-Type: application/json\r\n"
Ask = Callable[[RunnerClient], Awaitable[object]]


async def logs(client: RunnerClient) -> object:
    """The reader judges the frames."""
    decoder = Decoder()
    frames = list(decoder.feed((await client.logs(0)).frames))
    if decoder.pending:
        raise BadFrame("cut")
    return frames


async def status(client: RunnerClient) -> object:
    events = client.status_events()
    try:
        return await anext(events)
    finally:
        await events.aclose()


async def follow(client: RunnerClient) -> object:
    return [frames async for frames in client.follow_logs(0)]


ASKED: dict[str, Ask] = {
    "health": lambda client: client.health(),
    "run": lambda client: client.run(),
    "ack": lambda client: client.ack(1),
    "logs": logs,
    "metrics": lambda client: client.metrics(),
    "status": status,
    "follow": follow,
}


@contextlib.asynccontextmanager
async def impostor(folder: Path, head: bytes, body: bytes, repeat: int) -> AsyncIterator[Path]:
    """Answers every request with `head`, then `body` so many times. Leave the client's session
    before it."""
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head)
            sent = 0
            while sent != repeat:
                writer.write(body)
                await writer.drain()
                sent += 1
                if repeat == DRIPS:
                    sent = 0
                    await asyncio.sleep(0.01)
        writer.close()

    path = folder / "runner.sock"
    server = await asyncio.start_unix_server(serve, path)
    async with server:
        yield path
    await asyncio.gather(*(task for task in serving if task is not None))


CHUNK = b"100000\r\n" + b"x" * MIB + b"\r\n"
ANSWERS = {
    "nothing": (b"", b"", 0),
    "no http": (b"\x00\xff garbage\r\n\r\n", b"", 0),
    "an endless body": (OK + b"Transfer-Encoding: chunked\r\n\r\n", CHUNK, ENDLESS),
    "an endless header": (OK, b"X-A: " + b"b" * 1000 + b"\r\n", ENDLESS),
    "an endless line": (OK, b"x" * 65536, ENDLESS),
    "a compressed bomb": (
        OK + b"Content-Encoding: gzip\r\n\r\n",
        gzip.compress(bytes(64 * MIB)),
        1,
    ),
    "an endless error": (
        b"HTTP/1.1 500 No\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n",
        CHUNK,
        ENDLESS,
    ),
    "not utf-8": (OK + JSON + b"Content-Length: 13\r\n\r\n", b'{"seq":"\xff\xfe"}\n', 1),
    "deep nesting": (OK + JSON + b"Content-Length: 100000\r\n\r\n", b"[" * 100_000, 1),
    "a redirect": (
        b"HTTP/1.1 307 Go\r\nLocation: /v1/health\r\nContent-Length: 0\r\n\r\n",
        b"",
        0,
    ),
    "a cut answer": (OK + b"Content-Length: 100\r\n\r\n", b"{", 1),
}
LONG_BODY = b"Content-Length: 1000000\r\n\r\n"


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("answer", ANSWERS)
async def test_each_hostile_answer_is_an_error_within_bounds(
    tmp_path: Path, answer: str, asked: str
) -> None:
    head, body, repeat = ANSWERS[answer]
    tracemalloc.start()
    try:
        async with (
            impostor(tmp_path, head, body, repeat) as path,
            a_session(path) as session,
            asyncio.timeout(DEADLINE),
        ):
            with pytest.raises((RunnerError, RunnerUnavailable, BadFrame)):
                await ASKED[asked](RunnerClient(session, dial_answer=dial_to(path)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * MIB


@pytest.mark.parametrize(
    ("head", "asked"),
    [
        *((OK + LONG_BODY, asked) for asked in ASKED if asked != "status"),
        *((b"HTTP/1.1 500 No\r\n" + LONG_BODY, asked) for asked in ASKED),
    ],
)
async def test_an_answer_that_drips_has_a_limit_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: bytes, asked: str
) -> None:
    """A status may drip: it is a stream, which each byte keeps open."""
    monkeypatch.setattr(client_module, "REQUEST_TIMEOUT", 0.1)
    monkeypatch.setattr(client_module, "FIRST_PAGE_WAIT", 0.0)
    async with (
        impostor(tmp_path, head, b"x", DRIPS) as path,
        a_session(path) as session,
        asyncio.timeout(DEADLINE),
    ):
        with pytest.raises(RunnerUnavailable):
            await ASKED[asked](RunnerClient(session, dial_answer=dial_to(path)))


async def test_a_long_complaint_is_cut(tmp_path: Path) -> None:
    message = b"x" * 100_000
    body = b'{"error": {"code": "c", "message": "' + message + b'"}}'
    head = b"HTTP/1.1 400 No\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with impostor(tmp_path, head, body, 1) as path, a_session(path) as session:
        with pytest.raises(RunnerError) as caught:
            await RunnerClient(session).health()
    assert len(caught.value.message) == 2000
