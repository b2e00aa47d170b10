"""Output goes from the job's pipes into the log; secrets are masked even if a piece ends inside
one.

Bytes that could begin a secret are held back until the next bytes decide; nothing else waits. A job
can always write its secrets in another form: this protects against accidents.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from fairlead.wire.frames import Stream
from fairlead.wire.job import MIN_SECRET
from runner.logs.segments import SegmentLog
from runner.processes import terminal

MASK = b"***"
_SHARED = 3
"""Bytes by which secrets are compared first; fewer than the shortest secret has."""


class Masker:
    def __init__(self, secrets: Iterable[str]) -> None:
        self._needles = _needles(secrets)
        self._pattern = re.compile(_any_of(self._needles))
        self._by_start: dict[bytes, list[bytes]] = {}
        for needle in self._needles:
            self._by_start.setdefault(needle[:MIN_SECRET], []).append(needle)
        self._starts = re.compile(b"(?=" + _any_of(list(self._by_start)) + b")")
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return what may be shown now."""
        if not self._needles:
            return data
        data = self._held + data
        keep = self._start_of_a_needle(data)
        self._held = data[keep:]
        return self._pattern.sub(MASK, data[:keep])

    def rest(self) -> bytes:
        """Return, at the end, what was held back and became no secret."""
        held, self._held = self._held, b""
        return self._pattern.sub(MASK, held) if self._needles else held

    def _start_of_a_needle(self, data: bytes) -> int:
        """Return where the unfinished end of `data` begins.

        It is the first position from which the rest is the beginning of a secret, unless that
        position lies within a whole one.
        """
        begin = max(0, len(data) - len(self._needles[0]) + 1)
        whole: list[tuple[int, int]] | None = None
        for at in self._possible_starts(data, begin):
            if not self.may_begin(data, at):
                continue
            if whole is None:
                whole = [m.span() for m in self._pattern.finditer(data) if m.end() > begin]
            if not any(start < at < end for start, end in whole):
                return at
        return len(data)

    def _possible_starts(self, data: bytes, begin: int) -> Iterator[int]:
        """Yield possible starts in order. The last few bytes may begin any secret."""
        last = max(begin, len(data) - MIN_SECRET + 1)
        for match in self._starts.finditer(data, begin):
            if match.start() < last:
                yield match.start()
        yield from range(last, len(data))

    def may_begin(self, data: bytes, at: int) -> bool:
        end = data[at:]
        if len(end) < MIN_SECRET:
            return any(start.startswith(end) for start in self._by_start)
        alike = self._by_start.get(end[:MIN_SECRET], ())
        return any(len(n) > len(end) and n.startswith(end) for n in alike)


def _any_of(needles: Sequence[bytes], depth: int = _SHARED) -> bytes:
    """Return a pattern of all of them, the earlier first.

    Secrets with equal beginnings are told apart by their next byte. So a position where none begins
    costs the same for one secret and for thousands.
    """
    if depth == 0 or len(needles) < 2:
        return b"|".join(map(re.escape, needles))
    by_first: dict[bytes, list[bytes]] = {}
    for needle in needles:
        by_first.setdefault(needle[:1], []).append(needle[1:])
    return b"|".join(
        re.escape(first) + b"(?:" + _any_of(rests, depth - 1) + b")"
        for first, rests in by_first.items()
    )


def _needles(secrets: Iterable[str]) -> list[bytes]:
    """Return the strings to mask, the longest first, so that of two with equal beginnings the
    longer is masked.

    The single lines of a secret with several lines (a key) count too, because tools print them one
    by one.
    """
    texts = {part for secret in secrets for part in (secret, *secret.splitlines())}
    needles = {text.encode() for text in texts if text.strip()}
    return sorted((n for n in needles if len(n) >= MIN_SECRET), key=lambda n: (-len(n), n))


_TAIL = 4096
_READ_SIZE = 256 << 10
LARGE_PIPE = 1 << 20
"""What a pipe may hold in which much was found. Not from the beginning: all pipes of an
unprivileged user share 64 MiB, and when they are used up each new one holds 8 KiB, the job's own
pipes too (pipe(7)). A container's root counts as unprivileged, with those of other containers."""


class Output:
    """Owns both pipes. The values in `secrets` never reach the log.

    With `is_terminal`, `stdout` is a terminal's side (see `terminal.open_for`) that carries both
    streams.
    """

    def __init__(
        self,
        log: SegmentLog,
        stdout: int,
        stderr: int,
        *,
        secrets: Iterable[str] = (),
        is_terminal: bool = False,
    ) -> None:
        self.before_close: Callable[[int], object] = _ignore
        self._log = log
        self._open = {stdout: Stream.STDOUT, stderr: Stream.STDERR}
        self._maskers = {fd: Masker(secrets) for fd in self._open}
        self._room = {fd: _room_in(fd) for fd in self._open}
        self._enlarged = set[int]()
        self._terminal = stdout if is_terminal else None
        self._tail_of = Stream.STDOUT if is_terminal else Stream.STDERR
        self._tail = b""

    @property
    def open(self) -> tuple[int, ...]:
        """The pipes that have not come to their end."""
        return tuple(self._open)

    @property
    def stderr_tail(self) -> bytes:
        """The last few KiB of stderr (or of the terminal), with secrets masked."""
        return self._tail

    def room(self, fd: int) -> int:
        """Bytes in this pipe that are few, so that the job can go on writing for some time; 0 of a
        terminal, which gives 4 KiB at once whatever it has."""
        return self._room[fd]

    def take(self, fd: int) -> int:
        """Read a piece of this pipe; return its bytes: 0 when it is empty, or has ended and is
        closed."""
        try:
            data = os.read(fd, _READ_SIZE)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""  # a terminal that no process holds any more
        if not data:
            self.close(fd)
            return 0
        size = len(data)
        if size >= self._room[fd] > 0 and not self._enlarge(fd):
            self._log.pacing.press()
        if fd == self._terminal:
            data = terminal.output_of(fd, data)
        self._append(self._open[fd], self._maskers[fd].feed(data))
        return size

    def _enlarge(self, fd: int) -> bool:
        """Let the job write on while the runner does something else. It is tried once; return
        whether the pipe became larger."""
        if fd in self._enlarged:
            return False
        self._enlarged.add(fd)
        try:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, LARGE_PIPE)
        except OSError:  # above a limit: a smaller pipe is slower, not wrong
            return False
        self._room[fd] = _room_in(fd)
        return True

    def close(self, fd: int) -> None:
        """Close the pipe and write what was held back; may be repeated."""
        stream = self._open.pop(fd, None)
        if stream is None:
            return
        self._append(stream, self._maskers.pop(fd).rest())
        self.before_close(fd)
        os.close(fd)

    def _append(self, stream: Stream, data: bytes) -> None:
        if stream is self._tail_of:
            self._tail = (self._tail + data)[-_TAIL:]
        if data:
            self._log.append(stream, data)


def _room_in(fd: int) -> int:
    try:
        # Written in pieces of little more than half a page, a pipe is full at half its size.
        return fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) // 4
    except OSError:  # a terminal
        return 0


def _ignore(_: int) -> None:
    pass
