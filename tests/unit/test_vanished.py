"""A connection to a machine that has vanished ends, one to a process that reads nothing goes on."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from fairlead.connections import vanished
from fairlead.connections.vanished import end_when_vanished
from tests.support.waiting import eventually

_LATE, _ANSWERED = 1, 0


class Kernel:
    """What it tells of a connection, look by look; the last word is told again."""

    def __init__(self, *told: tuple[int, float]) -> None:
        self._told = list(told)
        self.looks = 0

    def __call__(self, _: socket.socket) -> tuple[bool, float]:
        self.looks += 1
        late, silent = self._told.pop(0) if len(self._told) > 1 else self._told[0]
        return bool(late), silent


@contextlib.asynccontextmanager
async def a_connection() -> AsyncIterator[asyncio.StreamWriter]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        _, writer = await asyncio.open_connection(*server.getsockname())
        other, _ = server.accept()
        with other:
            yield writer
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vanished, "_EVERY_SECONDS", 0.001)


async def test_one_whose_other_kernel_answers_nothing_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = Kernel((_ANSWERED, 60.0), (_LATE, 1.0), (_LATE, 2.0), (_LATE, 3.0))
    monkeypatch.setattr(vanished, "_unanswered", kernel)
    async with a_connection() as writer:
        end_when_vanished(writer.transport)
        await eventually(writer.transport.is_closing)
        assert kernel.looks == 4


async def test_one_whose_other_kernel_answers_in_between_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine far away, which is asked whether its process reads again."""
    asked = ((_LATE, 9.0), (_LATE, 9.0), (_ANSWERED, 0.1)) * 3
    kernel = Kernel(*asked, (_LATE, 0.2))
    monkeypatch.setattr(vanished, "_unanswered", kernel)
    async with a_connection() as writer:
        end_when_vanished(writer.transport)
        await eventually(lambda: kernel.looks > 20)
        assert not writer.transport.is_closing()


async def test_one_that_was_closed_is_looked_at_until_all_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = Kernel((_ANSWERED, 0.0))
    monkeypatch.setattr(vanished, "_unanswered", kernel)
    async with a_connection() as writer:
        end_when_vanished(writer.transport)
        # Nobody reads it.
        writer.write(b"x" * (32 << 20))
        writer.close()
        looks = kernel.looks
        await eventually(lambda: kernel.looks > looks)
        writer.transport.abort()
        await eventually(lambda: not writer.transport.get_write_buffer_size())
        looks = kernel.looks
        # One may have been due.
        await asyncio.sleep(0.02)
        assert kernel.looks <= looks + 1


async def test_the_kernel_is_asked_in_its_own_words() -> None:
    async with a_connection() as writer:
        end_when_vanished(writer.transport)
        connection = writer.get_extra_info("socket")
        is_late, silent = vanished._unanswered(connection)
        assert (is_late, silent < 60.0) == (False, True)
        # The kernel alone would end it as soon as nothing was read for a while.
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_what_was_repeated_or_asked_in_vain_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As linux/tcp.h has it."""

    class Connection:
        def __init__(self, retransmits: int, probes: int, last_ack: int) -> None:
            self._told = struct.pack("=8B13I", 1, 0, retransmits, probes, *[0] * 16, last_ack)

        def getsockopt(self, level: int, option: int, size: int) -> bytes:
            assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO)
            return self._told[:size]

    assert vanished._unanswered(Connection(0, 0, 5000)) == (False, 5.0)  # type: ignore[arg-type]
    assert vanished._unanswered(Connection(2, 0, 4000)) == (True, 4.0)  # type: ignore[arg-type]
    assert vanished._unanswered(Connection(0, 1, 0)) == (True, 0.0)  # type: ignore[arg-type]
