"""A job's output is read at once, and a busy pipe once in a millisecond."""

from __future__ import annotations

import asyncio
import fcntl
import os
import selectors
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from fairlead.wire.frames import Decoder, Frame, Stream
from runner.logs import output as outputs
from runner.logs.output import LARGE_PIPE, Output
from runner.logs.pacing import PRESSED_TURN
from runner.logs.pump import ALONE, GATHERING, OutputPump
from runner.logs.reading import LogReader
from runner.logs.segments import SegmentLog
from runner.processes import terminal
from tests.support.waiting import LONG

USUAL_PIPE = 64 << 10
OFTEN = GATHERING / 10


class _Selector(selectors.DefaultSelector):
    """Sees what real pipes have now; if they have nothing, the clock moves to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nobody will write any more"
            self.now += timeout
        return ready


class PipeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._pipes = _Selector()
        super().__init__(self._pipes)

    def time(self) -> float:
        return self._pipes.now


class Job:
    """The writing ends, and what the log has."""

    def __init__(self, folder: Path, *, tty: bool = False) -> None:
        self.log = SegmentLog(folder / "log")
        read, self.stdout = terminal.open_for(None) if tty else os.pipe()
        error_read, self.stderr = os.pipe()
        for fd in (read, error_read):
            os.set_blocking(fd, False)
        self._held = [self.stdout, self.stderr]
        self.output = Output(self.log, read, error_read, is_terminal=tty)
        self.pump = OutputPump(self.output)

    def frames(self) -> list[Frame]:
        reader = LogReader(self.log, 0)
        try:
            return list(Decoder().feed(reader.read()))
        finally:
            reader.close()

    def pieces(self) -> list[bytes]:
        return [frame.payload for frame in self.frames()]

    def end(self) -> None:
        """End the job; may be repeated."""
        while self._held:
            os.close(self._held.pop())


async def let_it_read() -> None:
    """Let the loop look at the pipes; no time passes."""
    for _ in range(4):
        await asyncio.sleep(0)


async def print_often(job: Job, count: int, piece: bytes = b".") -> None:
    for _ in range(count):
        os.write(job.stdout, piece)
        await asyncio.sleep(OFTEN)


def play(folder: Path, story: Callable[[Job], Awaitable[None]], *, tty: bool = False) -> None:
    loop, failures = PipeLoop(), list[object]()
    loop.set_exception_handler(lambda _, context: failures.append(context))

    async def tell() -> None:
        job = Job(folder, tty=tty)
        try:
            await story(job)
        finally:
            job.end()
            job.pump.close()
            job.log.close()
            # A timer or reader that was left would fail, or do harm to who has the number next.
            await asyncio.sleep(10 * GATHERING)

    try:
        loop.run_until_complete(tell())
    finally:
        loop.close()
    assert failures == []


@pytest.mark.parametrize("pause", [0.01, 2 * GATHERING])
def test_a_job_that_prints_from_time_to_time_is_never_kept_waiting(
    tmp_path: Path, pause: float
) -> None:
    async def story(job: Job) -> None:
        for number in range(1, 50):
            os.write(job.stdout, b"line\n")
            await let_it_read()
            assert len(job.pieces()) == number
            await asyncio.sleep(pause)

    play(tmp_path, story)


def test_a_job_that_prints_all_the_time_is_read_once_in_a_millisecond(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        await print_often(job, 100)
        job.end()
        await job.pump.wait_ended()
        pieces = job.pieces()
        assert b"".join(pieces) == b"." * 100
        assert 10 <= len(pieces) <= 13

    play(tmp_path, story)


def test_no_byte_waits_longer_than_a_millisecond(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        loop, late = asyncio.get_running_loop(), list[float]()
        for number in range(1, 101):
            os.write(job.stdout, b".")
            begin = loop.time()
            while job.log.end < number:  # noqa: ASYNC110 (each step moves the clock)
                await asyncio.sleep(GATHERING / 20)
            late.append(loop.time() - begin)
        assert max(late) <= GATHERING * 1.1

    play(tmp_path, story)


def test_after_a_silence_output_is_read_at_once_again(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        await print_often(job, 20)
        await asyncio.sleep(0.01)
        before = len(job.pieces())
        os.write(job.stdout, b"now\n")
        await let_it_read()
        assert job.pieces()[before:] == [b"now\n"]

    play(tmp_path, story)


def test_what_gathered_comes_before_what_the_other_pipe_got_later(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        await print_often(job, 22)
        os.write(job.stdout, b"about to fail\n")
        os.write(job.stderr, b"Traceback\n")
        await let_it_read()
        last = job.frames()[-2:]
        assert last[0].payload.endswith(b"about to fail\n")
        assert (last[1].stream, last[1].payload) == (Stream.STDERR, b"Traceback\n")

    play(tmp_path, story)


def test_while_both_pipes_are_written_each_piece_is_read_in_its_turn(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        wanted = list[bytes]()
        for number in range(200):
            piece = str(number).encode()
            os.write(job.stderr if number % 3 else job.stdout, piece)
            wanted.append(piece)
            await let_it_read()
            await asyncio.sleep(OFTEN)
        assert job.pieces() == wanted

    play(tmp_path, story)


def test_a_pipe_gathers_again_when_the_other_has_been_silent(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        os.write(job.stderr, b"warning\n")
        await let_it_read()
        await print_often(job, 50)
        alone = len(job.pieces())
        await asyncio.sleep(ALONE)
        await print_often(job, 50)
        assert (alone, len(job.pieces()) - alone <= 8) == (51, True)

    play(tmp_path, story)


def test_what_gathered_is_read_when_a_job_ends_at_once(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        await print_often(job, 22)
        os.write(job.stdout, b"last words")
        job.end()
        begin = asyncio.get_running_loop().time()
        await job.pump.wait_ended()
        assert asyncio.get_running_loop().time() - begin <= 3 * GATHERING
        assert b"".join(job.pieces()).endswith(b"last words")

    play(tmp_path, story)


def test_closing_reads_what_gathered_and_stops(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        await print_often(job, 22)
        os.write(job.stdout, b"last words")
        job.pump.close()
        assert b"".join(job.pieces()).endswith(b"last words")
        with pytest.raises(BrokenPipeError):
            os.write(job.stdout, b"too late")
        await job.pump.wait_ended()

    play(tmp_path, story)


def test_a_terminal_is_read_as_it_gives(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        for number in range(1, 51):
            os.write(job.stdout, b".")
            # The kernel brings it from one side to the other in a thread of its own.
            limit = time.monotonic() + LONG
            while job.log.end < number:
                assert time.monotonic() < limit, "it waits for the clock"
                await asyncio.sleep(0)
            await asyncio.sleep(OFTEN)

    play(tmp_path, story, tty=True)


def size_of(pipe: int) -> int:
    return fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)


def test_only_the_pipe_of_a_job_that_prints_much_becomes_larger(tmp_path: Path) -> None:
    async def story(job: Job) -> None:
        sizes = [size_of(job.stdout)]
        for piece in (b"x" * (USUAL_PIPE // 4 - 1), b"x" * (USUAL_PIPE // 4)):
            os.write(job.stdout, piece)
            await let_it_read()
            sizes.append(size_of(job.stdout))
        assert sizes == [USUAL_PIPE, USUAL_PIPE, LARGE_PIPE]
        assert size_of(job.stderr) == USUAL_PIPE
        assert job.log.pacing.reserve() == 0
        assert job.log.pacing.reserve() < PRESSED_TURN / 2

    play(tmp_path, story)


def test_where_no_larger_pipe_is_granted_the_job_is_read_at_once_and_readers_step_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "LARGE_PIPE", 1 << 31)  # above what the kernel knows

    async def story(job: Job) -> None:
        much = b"x" * (USUAL_PIPE // 2)
        for number in range(1, 21):
            os.write(job.stdout, much)
            await let_it_read()
            assert job.log.end == number * len(much)
            await asyncio.sleep(OFTEN)
        assert size_of(job.stdout) == USUAL_PIPE
        job.log.pacing.reserve()
        assert job.log.pacing.reserve() > PRESSED_TURN / 2

    play(tmp_path, story)
