"""Connections that are kept for the next request: when one is used again, and when it is not."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from common import kept_connections, open_answers
from common.kept_connections import KeptConnections
from common.open_answers import InvalidAnswer
from tests.support.dialling import dial_to
from tests.support.waiting import LONG, eventually

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
MOST = 1 << 20


class Daemon:
    """A daemon that talks on each connection as `talk` does."""

    def __init__(self, path: Path, talk: Talk) -> None:
        self.kept = KeptConnections(dial_to(path), "daemon")
        self.asked: list[bytes] = []
        self.opened = self.open = 0
        self.go_on = asyncio.Event()
        self._path = path
        self._talk = talk
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Daemon:
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def ask(self, method: str = "GET", body: bytes | None = None, most: int = MOST) -> bytes:
        answer = await self.kept.ask(method, "/it", None, body, within=LONG, most=most)
        return answer.body

    async def request(self, reader: Reader) -> bool:
        """Return whether another request came, whole."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        size = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        self.asked.append(head + await reader.readexactly(int(size or b"0")))
        return True

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.opened += 1
        self.open += 1
        try:
            await self._talk(self, reader, writer)
        finally:
            self.open -= 1
            writer.close()
            self._tasks.discard(task)


Talk = Callable[[Daemon, Reader, Writer], Awaitable[None]]
Serve = Callable[[Talk], Daemon]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    return lambda talk: Daemon(tmp_path / "socket", talk)


async def answer_all(daemon: Daemon, reader: Reader, writer: Writer) -> None:
    while await daemon.request(reader):
        writer.write(OK)


async def test_requests_one_after_the_other_share_a_connection(serve: Serve) -> None:
    async with serve(answer_all) as daemon:
        found = [await daemon.ask(), await daemon.ask("POST", b"{}"), await daemon.ask("DELETE")]
        assert (found, daemon.opened) == ([b"ok"] * 3, 1)
    assert daemon.asked == [
        b"GET /it HTTP/1.1\r\nHost: daemon\r\n\r\n",
        b"POST /it HTTP/1.1\r\nHost: daemon\r\nContent-Length: 2\r\n\r\n{}",
        b"DELETE /it HTTP/1.1\r\nHost: daemon\r\nContent-Length: 0\r\n\r\n",
    ]


async def test_requests_at_once_have_a_connection_each(serve: Serve) -> None:
    async with serve(answer_all) as daemon:
        assert await asyncio.gather(*(daemon.ask() for _ in range(3))) == [b"ok"] * 3
        assert daemon.opened == 3


async def test_a_connection_that_nobody_needs_is_closed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_connections, "IDLE_SECONDS", 0.01)
    async with serve(answer_all) as daemon:
        await asyncio.gather(*(daemon.ask() for _ in range(3)))
        await eventually(lambda: daemon.opened == 3 and daemon.open == 0, LONG, "closed")


async def close_after_one(daemon: Daemon, reader: Reader, writer: Writer) -> None:
    await daemon.request(reader)
    writer.write(OK)
    await daemon.request(reader)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_kept_connection_that_breaks_is_replaced(serve: Serve, method: str) -> None:
    async with serve(close_after_one) as daemon:
        assert [await daemon.ask(method), await daemon.ask(method)] == [b"ok", b"ok"]
        assert (daemon.opened, len(daemon.asked)) == (2, 3)


async def test_what_may_not_be_repeated_is_not_asked_again(serve: Serve) -> None:
    async with serve(close_after_one) as daemon:
        assert await daemon.ask("POST") == b"ok"
        with pytest.raises(ConnectionResetError):
            await daemon.ask("POST")
        assert (daemon.opened, len(daemon.asked)) == (1, 2)


async def break_in_the_answer(daemon: Daemon, reader: Reader, writer: Writer) -> None:
    await daemon.request(reader)
    writer.write(OK)
    if await daemon.request(reader):
        writer.write(OK[:-1])


async def test_an_answer_that_breaks_off_is_an_error(serve: Serve) -> None:
    async with serve(break_in_the_answer) as daemon:
        assert await daemon.ask() == b"ok"
        with pytest.raises(ConnectionResetError):
            await daemon.ask()
        assert len(daemon.asked) == 2


async def say_close(daemon: Daemon, reader: Reader, writer: Writer) -> None:
    while await daemon.request(reader):
        writer.write(OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))


async def test_a_connection_that_its_daemon_will_close_is_not_kept(serve: Serve) -> None:
    async with serve(say_close) as daemon:
        assert [await daemon.ask("POST"), await daemon.ask("POST")] == [b"ok", b"ok"]
        assert daemon.opened == 2


async def say_too_much(daemon: Daemon, reader: Reader, writer: Writer) -> None:
    await daemon.request(reader)
    writer.write(OK)
    if daemon.opened == 1:
        await daemon.go_on.wait()
        writer.write(OK.replace(b"ok", b"no"))
    await daemon.request(reader)


async def test_what_nobody_asked_for_is_no_answer_to_the_next_request(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else it would be closed after a moment, for whatever reason.
    monkeypatch.setattr(kept_connections, "IDLE_SECONDS", LONG)
    async with serve(say_too_much) as daemon:
        assert await daemon.ask() == b"ok"
        (kept,) = [one for _, one in daemon.kept._idle]
        daemon.go_on.set()
        await eventually(lambda: not kept.is_usable, LONG, "noticed")
        assert await daemon.ask() == b"ok"
        assert daemon.opened == 2


@pytest.mark.parametrize("more", [OK.replace(b"ok", b"no"), b"HTTP/1.1 404"], ids=["all", "part"])
async def test_what_comes_in_one_piece_with_an_answer_is_no_part_of_it(
    serve: Serve, more: bytes
) -> None:
    async def say_more(daemon: Daemon, reader: Reader, writer: Writer) -> None:
        while await daemon.request(reader):
            writer.write(OK + more)

    async with serve(say_more) as daemon:
        assert [await daemon.ask("POST"), await daemon.ask("POST")] == [b"ok", b"ok"]
        assert daemon.opened == 2


async def test_an_interim_answer_is_not_the_one_that_was_asked_for(serve: Serve) -> None:
    async def say_interim(daemon: Daemon, reader: Reader, writer: Writer) -> None:
        while await daemon.request(reader):
            writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
            if len(daemon.asked) == 1:
                await daemon.go_on.wait()
            writer.write(OK)

    async with serve(say_interim) as daemon:
        asking = asyncio.create_task(daemon.kept.ask("GET", "/it", within=LONG, most=MOST))
        await eventually(lambda: bool(daemon.asked), LONG, "asked")
        daemon.go_on.set()
        assert await asking == (200, b"ok")
        assert await daemon.kept.ask("GET", "/it", within=LONG, most=MOST) == (200, b"ok")
        assert daemon.opened == 1


async def test_the_loss_of_a_connection_is_noticed_after_a_long_answer(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_connections, "IDLE_SECONDS", LONG)
    monkeypatch.setattr(open_answers, "_MAX_HELD", 1)

    async def close_when_told(daemon: Daemon, reader: Reader, writer: Writer) -> None:
        await daemon.request(reader)
        writer.write(OK)
        await daemon.go_on.wait()

    async with serve(close_when_told) as daemon:
        assert await daemon.ask() == b"ok"
        (kept,) = [one for _, one in daemon.kept._idle]
        assert kept.is_usable
        daemon.go_on.set()
        await eventually(lambda: not kept.is_usable, LONG, "noticed")


async def test_a_connection_with_the_rest_of_a_request_is_not_kept(serve: Serve) -> None:
    async def answer_at_once(daemon: Daemon, reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await daemon.go_on.wait()

    async with serve(answer_at_once) as daemon:
        assert await daemon.ask("PUT", b"x" * (4 << 20)) == b"ok"
        assert daemon.kept._idle == []
        assert await daemon.ask("POST") == b"ok"
        assert daemon.opened == 2


async def wait_forever(daemon: Daemon, reader: Reader, writer: Writer) -> None:
    while await daemon.request(reader):
        pass


async def test_a_request_that_is_given_up_closes_its_connection(serve: Serve) -> None:
    async with serve(wait_forever) as daemon:
        asking = asyncio.create_task(daemon.ask())
        await eventually(lambda: bool(daemon.asked), LONG, "asked")
        asking.cancel()
        await asyncio.wait({asking})
        await eventually(lambda: daemon.open == 0, LONG, "closed")


async def test_an_answer_that_does_not_come_in_time_is_an_error(serve: Serve) -> None:
    async with serve(wait_forever) as daemon:
        with pytest.raises(TimeoutError):
            await daemon.kept.ask("GET", "/it", within=0.05, most=MOST)


async def answer_much(daemon: Daemon, reader: Reader, writer: Writer) -> None:
    while await daemon.request(reader):
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(40):
            writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        writer.write(b"0\r\n\r\n")


async def test_a_long_answer_comes_whole_up_to_a_limit(serve: Serve) -> None:
    async with serve(answer_much) as daemon:
        assert await daemon.ask(most=40 << 16) == b"x" * (40 << 16)
        with pytest.raises(InvalidAnswer, match="more than"):
            await daemon.ask(most=(40 << 16) - 1)


async def test_a_long_request_is_sent_whole(serve: Serve) -> None:
    async with serve(answer_all) as daemon:
        assert await daemon.ask("PUT", b"x" * (4 << 20)) == b"ok"
        assert daemon.asked[0].endswith(b"\r\n\r\n" + b"x" * (4 << 20))


async def test_an_open_answer_takes_the_connection_of_the_last_request(serve: Serve) -> None:
    async with serve(answer_all) as daemon:
        await daemon.ask("POST")
        answer = await daemon.kept.open("/follow?after=0", LONG)
        assert (answer.status, await answer.read()) == (200, b"ok")
        assert daemon.opened == 1
        answer.close()
        assert await daemon.ask() == b"ok"
        assert daemon.opened == 2


async def test_names_add_no_header_and_no_request(serve: Serve) -> None:
    async with serve(answer_all) as daemon:
        path = "/v1/gpus/x HTTP/1.1\r\n\r\nGET /y#é"
        assert (await daemon.kept.ask("GET", path, within=LONG, most=MOST)).body == b"ok"
        with pytest.raises(ValueError, match="line break"):
            await daemon.kept.ask("GET", "/it", {"A": "b\r\nC: d"}, within=LONG, most=MOST)
    assert daemon.asked == [
        b"GET /v1/gpus/x%20HTTP/1.1%0D%0A%0D%0AGET%20/y%23%C3%A9 HTTP/1.1\r\nHost: daemon\r\n\r\n"
    ]
