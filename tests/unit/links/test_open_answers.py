"""An answer that stays open: what its reader gets, and when it breaks off."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from common import open_answers
from common.open_answers import InvalidAnswer, OpenAnswer, UpgradedAnswer
from tests.support.waiting import LONG

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
MOST = 1000


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.fixture
def transport() -> Any:
    # Those of the controller's loop, uvloop's, are no subclass.
    transport = mock.NonCallableMock(spec_set=dir(asyncio.Transport))
    transport.get_write_buffer_size.return_value = 0
    transport.is_closing.return_value = False
    return transport


@pytest.fixture
async def answer(transport: Any) -> OpenAnswer:
    answer = OpenAnswer()
    answer.connection_made(transport)
    return answer


async def test_lines_come_whole_however_their_bytes_were_cut(answer: OpenAnswer) -> None:
    sent = HEAD + chunk(b"one\ntw") + chunk(b"o\n\nthree\n") + b"0\r\n\r\n"
    lines: list[bytes] = []

    async def read() -> None:
        while (line := await answer.read_line(MOST)) is not None:
            lines.append(line)

    reading = asyncio.create_task(read())
    for byte in sent:
        answer.data_received(bytes([byte]))
        await asyncio.sleep(0)
    await reading
    assert answer.status == 200
    assert lines == [b"one", b"two", b"", b"three"]


async def test_lines_that_came_before_the_loss_are_read_before_it_is_told(
    answer: OpenAnswer,
) -> None:
    answer.data_received(HEAD + chunk(b"one\ntwo\nthr"))
    answer.connection_lost(None)
    assert await answer.read_line(MOST) == b"one"
    assert await answer.read_line(MOST) == b"two"
    with pytest.raises(ConnectionResetError):
        await answer.read_line(MOST)


async def test_a_reader_that_waits_is_told_of_the_loss(answer: OpenAnswer) -> None:
    reading = asyncio.create_task(answer.read_head())
    await asyncio.sleep(0)
    answer.connection_lost(None)
    with pytest.raises(ConnectionResetError):
        await reading


async def test_who_asks_and_does_not_read_the_answers_is_cut(
    answer: OpenAnswer, transport: Any
) -> None:
    transport.get_write_buffer_size.return_value = 65 << 10
    answer.send(b"pong")
    transport.abort.assert_called_once_with()


async def test_nothing_is_sent_on_a_connection_that_was_closed_here(
    answer: OpenAnswer, transport: Any
) -> None:
    """uvloop would raise a RuntimeError, and the log of a controller that stops a traceback."""
    answer.close()
    transport.is_closing.return_value = True
    answer.send(b"goodbye")
    transport.write.assert_not_called()


async def test_a_closed_answer_forgets_why_it_broke(answer: OpenAnswer) -> None:
    answer.connection_lost(None)
    with pytest.raises(ConnectionResetError) as raised:
        await answer.read_head()
    answer.close()
    assert raised.value not in gc.get_referents(answer)


async def test_silence_is_a_loss(answer: OpenAnswer) -> None:
    answer.data_received(HEAD)
    with pytest.raises(TimeoutError):
        await answer.read_line(MOST, silence=0.0)


class SteppedLoop:
    """A loop whose time stands still until `step`; `timers` are those that are set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.create_future = asyncio.get_running_loop().create_future

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, act: Callable[[], None]) -> Any:
        timer = self.now + delay, act
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer))

    async def step(self, seconds: float) -> None:
        self.now += seconds
        for timer in [timer for timer in self.timers if timer[0] <= self.now]:
            self.timers.remove(timer)
            timer[1]()
        for _ in range(3):  # for who was woken
            await asyncio.sleep(0)


@pytest.fixture
async def stepped(monkeypatch: pytest.MonkeyPatch) -> SteppedLoop:
    loop = SteppedLoop()
    monkeypatch.setattr(open_answers, "asyncio", SimpleNamespace(get_running_loop=lambda: loop))
    return loop


async def test_silence_counts_from_the_last_line(answer: OpenAnswer, stepped: SteppedLoop) -> None:
    answer.data_received(HEAD)
    for _ in range(5):
        reading = asyncio.create_task(answer.read_line(MOST, silence=30.0))
        await stepped.step(0)
        await stepped.step(29)
        assert not reading.done()
        assert len(stepped.timers) == 1
        answer.data_received(chunk(b"beat\n"))
        assert await reading == b"beat"
    reading = asyncio.create_task(answer.read_line(MOST, silence=30.0))
    await stepped.step(0)
    await stepped.step(29)
    assert not reading.done()
    await stepped.step(1)
    with pytest.raises(TimeoutError):
        await reading


async def test_silence_while_nobody_reads_is_no_loss(
    answer: OpenAnswer, stepped: SteppedLoop
) -> None:
    answer.data_received(HEAD + chunk(b"one\n"))
    assert await answer.read_line(MOST, silence=30.0) == b"one"
    reading = asyncio.create_task(answer.read_line(MOST, silence=30.0))
    await stepped.step(0)
    answer.data_received(chunk(b"two\n"))
    assert await reading == b"two"
    await stepped.step(300)
    reading = asyncio.create_task(answer.read_line(MOST, silence=30.0))
    await stepped.step(29)
    answer.data_received(chunk(b"three\n"))
    assert await reading == b"three"


async def test_a_wait_without_a_limit_is_not_ended_by_the_timer_of_another(
    answer: OpenAnswer, stepped: SteppedLoop
) -> None:
    answer.data_received(HEAD)
    limited = asyncio.create_task(answer.read_line(MOST, silence=30.0))
    await stepped.step(0)
    answer.data_received(chunk(b"one\n"))
    assert await limited == b"one"
    reading = asyncio.create_task(answer.read_line(MOST))
    await stepped.step(0)
    await stepped.step(300)
    answer.data_received(chunk(b"two\n"))
    assert await reading == b"two"


async def test_a_closed_answer_leaves_no_timer(answer: OpenAnswer, stepped: SteppedLoop) -> None:
    answer.data_received(HEAD)
    reading = asyncio.create_task(answer.read_line(MOST, silence=30.0))
    await stepped.step(0)
    answer.data_received(chunk(b"one\n"))
    await reading
    assert len(stepped.timers) == 1
    answer.close()
    assert stepped.timers == []


async def test_a_line_that_does_not_end_is_refused(answer: OpenAnswer) -> None:
    answer.data_received(HEAD + chunk(b"x" * (MOST + 1)))
    with pytest.raises(InvalidAnswer):
        await answer.read_line(MOST)


async def test_a_head_that_does_not_end_is_refused(answer: OpenAnswer) -> None:
    answer.data_received(b"HTTP/1.1 200 OK\r\nA: " + b"x" * (65 << 10))
    with pytest.raises(InvalidAnswer):
        await answer.read_head()


async def test_what_nobody_reads_stops_the_other_side_until_it_is_read(
    answer: OpenAnswer, transport: Any
) -> None:
    answer.data_received(HEAD + chunk(b"x" * (129 << 10)))
    transport.pause_reading.assert_called_once_with()
    assert len(await answer.read()) == 129 << 10
    reading = asyncio.create_task(answer.read())
    await asyncio.sleep(0)
    transport.resume_reading.assert_called_once_with()
    answer.data_received(b"0\r\n\r\n")
    assert await reading == b""


async def test_what_a_transport_delivers_while_it_resumes_wakes_the_reader(
    answer: OpenAnswer, transport: Any
) -> None:
    answer.data_received(HEAD + chunk(b"x" * (128 << 10) + b"x"))
    transport.pause_reading.assert_called_once_with()
    await answer.read()
    transport.resume_reading.side_effect = lambda: answer.data_received(chunk(b"held"))
    reading = asyncio.ensure_future(answer.read())
    for _ in range(5):
        await asyncio.sleep(0)
    assert reading.done()
    assert await reading == b"held"


@pytest.fixture
async def upgraded(transport: Any) -> UpgradedAnswer:
    answer = UpgradedAnswer()
    answer.connection_made(transport)
    return answer


async def test_after_an_upgrade_the_bytes_come_as_they_are(upgraded: UpgradedAnswer) -> None:
    head = b"HTTP/1.1 101 Go on\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    upgraded.data_received(head + b"\x82\x01")
    await upgraded.read_head()
    assert upgraded.status == 101
    assert upgraded.headers == {"upgrade": "websocket", "connection": "Upgrade"}
    assert await upgraded.read() == b"\x82\x01"
    upgraded.data_received(b"HTTP/1.1 ")
    upgraded.connection_lost(None)
    assert await upgraded.read() == b"HTTP/1.1 "
    with pytest.raises(ConnectionResetError):
        await upgraded.read()


async def test_pieces_after_an_upgrade_come_apart_and_stop_the_other_side_together(
    upgraded: UpgradedAnswer, transport: Any
) -> None:
    upgraded.data_received(b"HTTP/1.1 101 Go on\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
    pieces = [bytes([number]) * (32 << 10) for number in range(5)]
    for number, piece in enumerate(pieces, 1):
        assert transport.pause_reading.called is (number > 5)
        upgraded.data_received(piece)
    transport.pause_reading.assert_called_once_with()
    upgraded.connection_lost(None)
    assert [await upgraded.read() for _ in pieces] == pieces
    transport.resume_reading.assert_not_called()
    with pytest.raises(ConnectionResetError):
        await upgraded.read()


async def test_pieces_after_an_upgrade_are_asked_for_again_when_all_are_read(
    upgraded: UpgradedAnswer, transport: Any
) -> None:
    upgraded.data_received(b"HTTP/1.1 101 Go on\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
    for _ in range(2):
        for _ in range(3):
            upgraded.data_received(b"x" * (64 << 10))
        transport.pause_reading.assert_called_once_with()
        for _ in range(3):
            await upgraded.read()
        reading = asyncio.create_task(upgraded.read())
        await asyncio.sleep(0)
        transport.resume_reading.assert_called_once_with()
        upgraded.data_received(b"more")
        assert await reading == b"more"
        transport.reset_mock()


async def test_an_upgrade_that_nobody_asked_for_is_no_answer(answer: OpenAnswer) -> None:
    answer.data_received(b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
    with pytest.raises(InvalidAnswer):
        await answer.read()


async def test_an_answer_is_upgraded_after_another_one_on_its_connection(transport: Any) -> None:
    answer = UpgradedAnswer()
    answer.connection_made(transport)
    answer.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nA: b\r\n\r\none")
    assert (await answer.read(), await answer.read()) == (b"one", b"")
    upgrading = asyncio.create_task(open_answers.upgrade(answer, "here", "/up", {"C": "d"}, LONG))
    await asyncio.sleep(0)
    sent = b"GET /up HTTP/1.1\r\nHost: here\r\nC: d\r\n\r\n"
    transport.write.assert_called_once_with(sent)
    head = b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    answer.data_received(head + b"raw")
    await upgrading
    assert (answer.status, "a" in answer.headers) == (101, False)
    assert await answer.read() == b"raw"


async def test_a_connection_that_closes_between_two_answers_is_lost(transport: Any) -> None:
    answer = UpgradedAnswer()
    answer.connection_made(transport)
    answer.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    assert await answer.read() == b""
    answer.connection_lost(None)
    with pytest.raises(ConnectionResetError):
        await open_answers.upgrade(answer, "here", "/up", {}, LONG)
