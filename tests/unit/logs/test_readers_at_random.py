"""Readers and writers of one log in random order, with faults: each reader gets what the file has,
in order, whether its bytes come from memory or from the disk."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.files.durable import write_all
from controller.logs import newest, segments
from controller.logs.store import LogStore, LogWriter
from fairlead.wire.frames import Decoder, Frame, Stream, encode
from tests.support.waiting import LONG, eventually

ATTEMPT = "a1b2c3d4e5f60718"
STEPS = 150


class Play:
    """One log, its source, which has all of `text`, and who follows it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.heard: list[tuple[int, int]] = []
        self.logs = LogStore(folder, stored=self._hear)
        self.text = b""
        self.cuts = [0]
        self.readers: list[tuple[int, asyncio.Task[bytes]]] = []
        self.fault = 0.0
        self.writer: LogWriter | None = None

    def _hear(self, _: str, frames: list[Frame]) -> None:
        self.heard += [(frame.offset, frame.end) for frame in frames]

    def write_all(self, fd: int, data: bytes) -> None:
        if self.random.random() < self.fault:
            write_all(fd, data[: self.random.randrange(len(data))])
            raise OSError(errno.ENOSPC, "full")
        write_all(fd, data)

    def open(self, path: Path) -> int:
        if self.random.random() < self.fault:
            raise OSError(errno.EMFILE, "too many")
        return OPEN(path)

    async def step(self) -> None:
        await self.random.choice([self.append, self.append, self.append, self.join, self.leave])()
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)

    async def append(self) -> None:
        """Send frames as a runner does, from where the writer is after a fault."""
        for _ in range(self.random.randrange(1, 5)):
            self.text += self.random.randbytes(self.random.choice([1, 30, 900, 5000]))
            self.cuts.append(len(self.text))
        await self.send(is_cut_short=self.random.random() < 0.2)

    async def send(self, *, is_cut_short: bool) -> None:
        with contextlib.suppress(OSError):
            if self.writer is None:
                self.writer = await self.logs.writer(ATTEMPT)
            appending = asyncio.create_task(self.writer.append(self.frames(self.writer.end)))
            if is_cut_short:
                for _ in range(self.random.randrange(4)):
                    await asyncio.sleep(0)
                appending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await appending
                return
        if self.writer is not None:
            await self.writer.close()
            self.writer = None

    def frames(self, end: int) -> bytes:
        """Some of what comes at or before `end`, and all that comes after it."""
        first = max(0, next(i for i, cut in enumerate(self.cuts) if cut >= end) - 2)
        return b"".join(
            encode(Frame(begin, begin, Stream.STDOUT, self.text[begin:after]))
            for begin, after in zip(self.cuts[first:], self.cuts[first + 1 :], strict=False)
        )

    async def join(self) -> None:
        offset = self.random.randrange(len(self.text) + 1)
        following = collect(self.logs.follow(ATTEMPT, offset))
        self.readers.append((offset, asyncio.create_task(following)))

    async def leave(self) -> None:
        if len(self.readers) > 3:
            _, reader = self.readers.pop(self.random.randrange(len(self.readers)))
            reader.cancel()


OPEN = segments._open


async def collect(pieces: AsyncIterator[bytes]) -> bytes:
    decoder = Decoder()
    return b"".join([f.payload async for piece in pieces for f in decoder.feed(piece)])


@pytest.mark.parametrize("seed", range(8))
async def test_each_reader_gets_what_the_file_has(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(seed, tmp_path)
    for module in (segments, newest):
        monkeypatch.setattr(module, "READ_BYTES", 4096)
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 20_000)
    monkeypatch.setattr(newest, "MAX_BYTES", 16_000)
    monkeypatch.setattr(segments, "write_all", play.write_all)
    monkeypatch.setattr(segments, "_open", play.open)
    for number in range(STEPS):
        play.fault = 0.15 if number % 3 else 0.0
        await play.step()
    play.fault = 0.0
    while play.writer is None or play.writer.end < len(play.text):
        await play.send(is_cut_short=False)
    await play.join()
    await play.writer.close()
    await play.logs.complete(ATTEMPT)

    async with asyncio.timeout(LONG):
        for offset, reader in play.readers:
            assert await reader == play.text[offset:]
    assert await collect(play.logs.read(ATTEMPT, 0)) == play.text
    assert play.logs._newest._size == 0
    end = 0
    for begin, after in play.heard:
        assert begin <= end, "frames were stored of which nobody heard"
        end = max(end, after)
    assert end == len(play.text)
    await asyncio.to_thread(play.logs.close)


async def test_what_a_writer_stores_after_its_caller_left_is_heard_of_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[int] = []
    logs = LogStore(tmp_path, stored=lambda _, frames: heard.extend(one.end for one in frames))
    first, second = (Frame(at, at, Stream.STDOUT, b"line\n") for at in (0, 5))
    reader = logs.follow(ATTEMPT, 0)
    writer = await logs.writer(ATTEMPT)
    await writer.append(encode(first))
    assert await anext(reader) == encode(first)
    begun, go_on = threading.Event(), threading.Event()

    def slow(fd: int, data: bytes) -> None:
        begun.set()
        go_on.wait()
        write_all(fd, data)

    monkeypatch.setattr(segments, "write_all", slow)
    appending = asyncio.create_task(writer.append(encode(second)))
    reading = asyncio.ensure_future(anext(reader))
    await eventually(begun.is_set)
    appending.cancel()
    await asyncio.gather(appending, return_exceptions=True)
    closing = asyncio.create_task(writer.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing
    # Nobody writes any more: the reader is woken by what the thread had still to write.
    assert await asyncio.wait_for(reading, LONG) == encode(second)
    assert heard == [5, 10]
    await reader.aclose()
    await asyncio.to_thread(logs.close)
