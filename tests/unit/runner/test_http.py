"""What any client may send to the runner's server, and what that may cost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import tracemalloc
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.wire.errors import Refused
from runner.http import connection
from runner.http.connection import MAX_HEAD, MAX_WAITING
from runner.http.messages import Answer, Request, Response, Streamed, as_json
from runner.http.server import Routes, Server
from runner.sockets import listen
from tests.unit.runner.harness import DEADLINE

MIB = 1 << 20
MAX_BODY = 1 * MIB
CLOSE = b"Connection: close\r\n"


async def echo(request: Request) -> Answer:
    return Response(body=await request.body.read(MAX_BODY), content_type="text/plain")


async def show(request: Request) -> Answer:
    return as_json([dict(request.query), dict(request.headers)])


async def count(request: Request) -> Answer:
    sizes = [len(piece) async for piece in request.body.pieces(MIB)]
    return as_json([sum(sizes), max(sizes, default=0)])


async def deaf(_: Request) -> Answer:
    raise Refused(409, "no", "not now")


async def broken(_: Request) -> Answer:
    raise ValueError("a fault of ours")


async def lines(request: Request) -> Answer:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(int(request.query["n"])):
            yield b"%d\n" % number

    return Streamed(pieces=pieces(), content_type="text/plain")


ROUTES: Routes = {
    "/echo": {"POST": echo},
    "/show": {"GET": show},
    "/count": {"PUT": count},
    "/deaf": {"PUT": deaf},
    "/broken": {"GET": broken},
    "/lines": {"GET": lines},
}


@contextlib.asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Path]:
    server = Server(ROUTES, failed="it failed; see the log", known={})
    path = folder / "s"
    loop = asyncio.get_running_loop()
    listener = await asyncio.to_thread(listen, path)
    at = await loop.create_unix_server(server.make_protocol, sock=listener)
    try:
        yield path
    finally:
        at.close()
        await server.close(2.0)
        await asyncio.to_thread(path.unlink)


async def said(path: Path, *pieces: bytes, half_closed: bool = False) -> bytes:
    """What the server sends until it closes the connection, to these bytes."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        async with asyncio.timeout(DEADLINE):
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                if half_closed:
                    writer.write_eof()
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def post(body: bytes, *lines: bytes, path: bytes = b"/echo", method: bytes = b"POST") -> bytes:
    size = b"Content-Length: %d\r\n" % len(body)
    return method + b" " + path + b" HTTP/1.1\r\n" + size + b"".join(lines) + b"\r\n" + body


def statuses(raw: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 ([0-9]{3}) ", raw)]


def error_of(raw: bytes) -> str:
    return str(json.loads(raw.rpartition(b"\r\n\r\n")[2])["error"]["code"])


async def test_requests_on_one_connection_are_answered_in_their_order(tmp_path: Path) -> None:
    async with serving(tmp_path) as path:
        raw = await said(path, *(post(b"%d" % n) for n in range(5)), post(b"end", CLOSE))
    bodies = [part.partition(b"\r\n\r\n")[2] for part in raw.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    assert bodies == [b"0", b"1", b"2", b"3", b"4", b"end"]
    assert raw.count(b"Connection: close") == 1


async def test_pipelined_requests_are_limited(tmp_path: Path) -> None:
    async with serving(tmp_path) as path:
        within = await said(path, post(b"x") * (MAX_WAITING - 1) + post(b"", CLOSE))
        beyond = await said(path, post(b"x") * (MAX_WAITING + 50))
    assert statuses(within) == [200] * MAX_WAITING
    assert statuses(beyond)[-1] == 400
    assert error_of(beyond) == "invalid"


@pytest.mark.parametrize("step", [1, 7])
async def test_a_request_may_come_in_pieces(tmp_path: Path, step: int) -> None:
    whole = post(b"hello", b"X-A: b\r\n", CLOSE)
    async with serving(tmp_path) as path:
        raw = await said(path, *(whole[at : at + step] for at in range(0, len(whole), step)))
    assert raw.endswith(b"\r\n\r\nhello")


async def test_a_chunked_body_is_read_and_its_trailers_are_no_headers(tmp_path: Path) -> None:
    head = b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    async with serving(tmp_path) as path:
        raw = await said(path, head, b"3\r\nabc\r\n", b"2;x=y\r\nde\r\n0\r\nX-T: 1\r\n\r\n")
    assert raw.endswith(b"\r\n\r\nabcde")


async def test_headers_and_query_come_as_they_were_sent(tmp_path: Path) -> None:
    request = b"GET /show?a=1&b=%20x&a=2 HTTP/1.1\r\nX-A: 1\r\nx-a: 2\r\nConnection: close\r\n\r\n"
    async with serving(tmp_path) as path:
        raw = await said(path, request)
    query, headers = json.loads(raw.rpartition(b"\r\n\r\n")[2])
    assert query == {"a": "2", "b": " x"}
    assert headers["x-a"] == "1, 2"


@pytest.mark.parametrize(
    "query",
    ["", "a", "a=", "a=b=c", "&&a=1&", "=1", "a=1;b=2", "a=+&b=%2B", "a+b=%20"],
)
async def test_a_query_is_read_as_urllib_reads_it(query: str, tmp_path: Path) -> None:
    request = f"GET /show?{query} HTTP/1.1\r\nConnection: close\r\n\r\n".encode("latin-1")
    async with serving(tmp_path) as path:
        raw = await said(path, request)
    found, _ = json.loads(raw.rpartition(b"\r\n\r\n")[2])
    assert found == dict(parse_qsl(query, keep_blank_values=True))


BAD = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
    "an unknown method": b"FOO /echo HTTP/1.1\r\n\r\n",
    "a later version": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a target with a space": b"GET /a b HTTP/1.1\r\n\r\n",
    "a header without a colon": b"GET /show HTTP/1.1\r\nbad\r\n\r\n",
    "a header with NUL": b"GET /show HTTP/1.1\r\nX: a\0b\r\n\r\n",
    "two lengths": b"POST /echo HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a negative length": b"POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    "a length beyond all numbers": b"POST /echo HTTP/1.1\r\nContent-Length: "
    + b"9" * 30
    + b"\r\n\r\n",
    "length and chunks": (
        b"POST /echo HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "another coding": b"POST /echo HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\nx",
    "a chunk size that is none": (
        b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n"
    ),
}


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD.keys())
async def test_bad_bytes_get_one_400_and_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, raw: bytes
) -> None:
    async with serving(tmp_path) as path:
        answer = await said(path, raw)
    assert statuses(answer)[-1] == 400
    assert statuses(answer).count(400) == 1
    assert error_of(answer) == "invalid"
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


LARGE = {
    "one line": b"GET /show HTTP/1.1\r\nX: " + b"a" * (2 * MAX_HEAD) + b"\r\n\r\n",
    "one line without an end": b"GET /show HTTP/1.1\r\nX: " + b"a" * (20 * MIB),
    "a target": b"GET /" + b"a" * (2 * MAX_HEAD) + b" HTTP/1.1\r\n\r\n",
    "many lines": b"GET /show HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
    "trailers": b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    + b"A: b\r\n" * 200,
}


@pytest.mark.parametrize("raw", LARGE.values(), ids=LARGE.keys())
async def test_a_head_is_limited(tmp_path: Path, raw: bytes) -> None:
    async with serving(tmp_path) as path:
        answer = await said(path, raw)
    # A server that closes while the client still writes may take its answer back (tcp(7), unix(7)).
    assert set(statuses(answer)) <= {431, 400}


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"CONNECT /v1/ports/1 HTTP/1.1\r\n\r\n", 404),
        (b"DELETE /show HTTP/1.1\r\n\r\n", 405),
        (b"GET /show HTTP/1.0\r\n\r\n", 200),
        (b"GET http://elsewhere/show HTTP/1.1\r\nConnection: close\r\n\r\n", 200),
        (b"GET /show HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", 200),
        (b"GET /broken HTTP/1.1\r\nConnection: close\r\n\r\n", 500),
    ],
)
async def test_other_requests_have_their_status(tmp_path: Path, raw: bytes, status: int) -> None:
    closes = (
        raw
        if b"close" in raw or b"1.0" in raw
        else raw.replace(b"\r\n\r\n", b"\r\n" + CLOSE + b"\r\n")
    )
    closes = raw if b"Upgrade" in raw else closes
    async with serving(tmp_path) as path:
        answer = await said(path, closes)
    assert statuses(answer) == [status]


async def test_a_body_above_the_limit_is_refused_while_it_is_still_sent(tmp_path: Path) -> None:
    async with serving(tmp_path) as path:
        raw = await said(path, post(b"x" * (3 * MIB), CLOSE))
    assert (statuses(raw), error_of(raw)) == ([413], "too_large")


async def test_a_body_that_nobody_reads_does_not_disturb_the_next_request(tmp_path: Path) -> None:
    refused = post(b"x" * (3 * MIB), path=b"/deaf", method=b"PUT")
    async with serving(tmp_path) as path:
        raw = await said(path, refused, post(b"next", CLOSE))
    assert statuses(raw) == [409, 200]
    assert raw.endswith(b"next")


async def test_a_large_body_is_never_held_as_a_whole(tmp_path: Path) -> None:
    head = b"PUT /count HTTP/1.1\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (64 * MIB)
    async with serving(tmp_path) as path:
        tracemalloc.start()
        raw = await said(path, head, *[b"x" * MIB] * 64)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    total, largest = json.loads(raw.rpartition(b"\r\n\r\n")[2])
    assert total == 64 * MIB
    assert largest <= 2 * MIB
    assert peak < 16 * MIB


async def test_the_client_is_told_to_go_on_when_it_waits_for_that(tmp_path: Path) -> None:
    async with serving(tmp_path) as path:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(post(b"abc", b"Expect: 100-continue\r\n", CLOSE)[:-3])
        async with asyncio.timeout(DEADLINE):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"abc")
            assert (await reader.read()).endswith(b"\r\n\r\nabc")
        writer.close()


async def test_a_stream_is_chunked_and_ends_by_the_close_for_an_old_client(tmp_path: Path) -> None:
    async with serving(tmp_path) as path:
        new = await said(path, b"GET /lines?n=2 HTTP/1.1\r\nConnection: close\r\n\r\n")
        old = await said(path, b"GET /lines?n=2 HTTP/1.0\r\n\r\n")
    assert new.endswith(b"\r\n\r\n2\r\n0\n\r\n2\r\n1\n\r\n0\r\n\r\n")
    assert old.endswith(b"\r\n\r\n0\n1\n")


@pytest.mark.parametrize("raw", [b"GET /sh", post(b"abc")[:-1], b""])
async def test_half_a_request_ends_with_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: bytes
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.05)
    monkeypatch.setattr(connection, "BODY_SECONDS", 0.05)
    async with serving(tmp_path) as path:
        assert set(statuses(await said(path, raw))) <= {400, 408}


async def test_half_a_request_before_the_end_of_its_sender_is_forgotten(tmp_path: Path) -> None:
    async with serving(tmp_path) as path:
        assert await said(path, post(b"abc")[:-1], half_closed=True) == b""


async def test_a_connection_without_requests_is_closed_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.5)
    async with serving(tmp_path) as path:
        assert statuses(await said(path, post(b"x"))) == [200]


async def test_a_handler_ends_when_its_client_has_gone(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def forever(_: Request) -> Answer:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    server = Server({"/": {"GET": forever}}, failed="", known={})
    listener = await asyncio.to_thread(listen, tmp_path / "s")
    loop = asyncio.get_running_loop()
    at = await loop.create_unix_server(server.make_protocol, sock=listener)
    _, writer = await asyncio.open_unix_connection(tmp_path / "s")
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await writer.drain()
    writer.close()
    async with asyncio.timeout(DEADLINE):
        await ended.wait()
    at.close()
    await server.close(2.0)


# -- fuzz --------------------------------------------------------------------------------------

PARTS = st.one_of(
    st.sampled_from(
        (
            b"GET /show HTTP/1.1\r\n",
            b"POST /echo HTTP/1.1\r\n",
            b"PUT /count HTTP/1.0\r\n",
            b"Content-Length: 5\r\n",
            b"Content-Length: 99999999999\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Upgrade: websocket\r\nConnection: Upgrade\r\n",
            b"Expect: 100-continue\r\n",
            b"Connection: close\r\n",
            b"\r\n",
            b"\n",
            b"5\r\nabcde\r\n",
            b"0\r\n\r\n",
            b"ffffffffffffffff\r\n",
            b"hello",
            post(b"whole"),
        )
    ),
    st.binary(max_size=64),
)


class Transport(asyncio.Transport):
    """Takes everything, at once."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.written += b"".join(list_of_data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


@given(st.lists(PARTS, max_size=12), st.integers(1, 40))
def test_no_bytes_at_all_break_the_server(parts: list[bytes], step: int) -> None:
    """Whatever comes, and in whatever pieces, answers are whole, no task fails, and nothing but
    answers is written."""
    raw = b"".join(parts)
    failures: list[object] = []

    async def play() -> bytes:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: failures.append(told))
        server, transport = Server(ROUTES, failed="", known={}), Transport()
        protocol = server.make_protocol()
        protocol.connection_made(transport)
        for at in range(0, len(raw), step):
            if not transport.is_closing():
                protocol.data_received(raw[at : at + step])
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        protocol.connection_lost(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1
        return transport.written

    written = asyncio.run(play())
    assert failures == []
    assert written == b"" or written.startswith(b"HTTP/1.1 ")
    assert set(statuses(written)) <= {100, 200, 400, 404, 405, 408, 413, 431}
