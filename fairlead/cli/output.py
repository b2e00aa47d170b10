"""The output of commands: results on stdout, messages about them on stderr.

A log's bytes go to the descriptors unchanged, so nothing is lost by decoding or buffering.
"""

from __future__ import annotations

import os
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Protocol

from fairlead.cli.errors import OutputError

if TYPE_CHECKING:
    from fairlead.wire.frames import Frame

_terminals = threading.RLock()

STDOUT_FD = 1
STDERR_FD = 2
MAX_IN_A_CELL = 200
_GAP = "  "
_CLEAR = "\x1b[H\x1b[2J"
REPEAT_SECONDS = 2.0
_MIN_OF_LAST = 24
_MIN_OF_CUT = 8


def emit(text: str) -> None:
    """Print a line. Raises as `write_all` does."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    # It is an OSError too; the command ends quietly at it.
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error) from None


def emit_json(data: bytes) -> None:
    """Print the JSON as it came from the controller."""
    write_all(STDOUT_FD, data.rstrip(b"\n") + b"\n")


def emit_done(data: bytes, json: bool, sentence: str) -> int:
    """Print the answer as JSON, or else the sentence; return the exit status."""
    if json:
        emit_json(data)
    else:
        emit(sentence)
    return 0


def note(text: str) -> None:
    write_all(STDERR_FD, f"fairlead: {text}\n".encode(errors="replace"))


def write_frame(frame: Frame, stdout: int = STDOUT_FD) -> None:
    """Write the frame to stderr, or to `stdout`, as its job did."""
    from fairlead.wire.frames import Stream

    write_all(stdout if frame.stream is Stream.STDOUT else STDERR_FD, frame.payload)


class Writer(Protocol):
    """Prints a log's frames in their order."""

    def write(self, frame: Frame) -> None: ...

    def close(self) -> None:
        """Finish: no more frames come."""


class PlainWriter:
    """Prints each byte as it came."""

    def __init__(self, stdout: int = STDOUT_FD) -> None:
        self._stdout = stdout

    def write(self, frame: Frame) -> None:
        write_frame(frame, self._stdout)

    def close(self) -> None:
        pass


class LineWriter:
    """Prints whole lines of one of several jobs, each after the job's name.

    One thread at a time uses it, next to other writers.
    """

    _one_at_a_time = threading.Lock()

    def __init__(self, name: str, stdout: int = STDOUT_FD, *, timestamps: bool = False) -> None:
        self._prefix = f"{name} | ".encode() if name else b""
        self._timestamps = timestamps
        self._time = b""
        self._stdout = stdout
        self._rest: dict[int, bytes] = {}

    def write(self, frame: Frame) -> None:
        from fairlead.wire.frames import Stream

        fd = self._stdout if frame.stream is Stream.STDOUT else STDERR_FD
        if self._timestamps:
            moment = datetime.fromtimestamp(frame.time_ns / 1e9, UTC)
            self._time = f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z ".encode()
        text, newline, rest = (self._rest.pop(fd, b"") + frame.payload).rpartition(b"\n")
        if rest:
            self._rest[fd] = rest
        if newline:
            self._put(fd, text.split(b"\n"))

    def close(self) -> None:
        for fd, rest in self._rest.items():
            self._put(fd, [rest])
        self._rest.clear()

    def _put(self, fd: int, lines: list[bytes]) -> None:
        with self._one_at_a_time:
            write_all(fd, b"".join(self._prefix + self._time + line + b"\n" for line in lines))


def log_writer(
    name: str, *, alone: bool, beside_json: bool = False, timestamps: bool = False
) -> Writer:
    """Return the writer of a job's log. `alone`: the run has no other job; `beside_json`: stdout is
    kept for a document; `timestamps`: each line begins with its time."""
    stdout = STDERR_FD if beside_json else STDOUT_FD
    if alone and not timestamps:
        return PlainWriter(stdout)
    return LineWriter("" if alone else name, stdout, timestamps=timestamps)


@contextmanager
def alone_on_terminals() -> Iterator[None]:
    """Make other threads' output to a terminal wait, so that nothing is printed over a question and
    its answer."""
    with _terminals:
        yield


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes. Raises BrokenPipeError when no reader is left, OutputError when they cannot
    be written."""
    view = memoryview(data)
    try:
        with _terminals if os.isatty(fd) else nullcontext():
            while view:  # write(2) may take less than it gets
                view = view[os.write(fd, view) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error) from None


def emit_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns, on a terminal not wider than it."""
    for line in table_lines(columns, rows, table_width()):
        emit(line)


def table_width() -> int | None:
    """Return the terminal's width; None: stdout is no terminal, and a line may have any."""
    if not sys.stdout.isatty():
        return None
    import shutil  # brings three libraries for archives

    return shutil.get_terminal_size().columns


def repeat(lines_of: Callable[[int | None], list[str]]) -> NoReturn:
    """Show these lines again and again, until interrupted: in place on a terminal, else whenever
    they have changed. A controller that is away is waited for."""
    from fairlead.follow import until_answered
    from fairlead.patience import Outages

    outages, shown = Outages(note), list[str]()
    while True:
        width = table_width()
        lines = until_answered(outages, partial(lines_of, width))
        if width is not None:
            emit("\n".join([f"{_CLEAR}{utc_now():%H:%M:%S} UTC", *lines]))
        elif lines != shown:
            emit("\n".join(lines))
        shown = lines
        time.sleep(REPEAT_SECONDS)


def repeat_json(ask: Callable[[], bytes]) -> NoReturn:
    """Print the answer as a line of JSON, now and whenever it has changed, until interrupted."""
    from fairlead.follow import until_answered
    from fairlead.patience import Outages

    outages, shown = Outages(note), b""
    while True:
        answer = until_answered(outages, ask)
        if answer != shown:
            emit_json(answer)
        shown = answer
        time.sleep(REPEAT_SECONDS)


def table_lines(
    columns: Sequence[str], rows: Iterable[Sequence[str]], width: int | None
) -> list[str]:
    """Return the lines of a table; without `width` each row is one line.

    With `width` (characters) the last column, which has sentences, is wrapped between words: next
    to the other columns, or below them if they leave too little room. If the others are too wide,
    their longest cells are cut with a mark.
    """
    lines = [tuple(_one_line(cell) for cell in row) for row in rows]
    if any(columns):
        lines.insert(0, tuple(columns))
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    if width is None:
        return [_joined(line, widths) for line in lines]
    short = _narrowed(widths[:-1], width)
    left = sum(short) + len(_GAP) * len(short)
    if width - left >= min(_MIN_OF_LAST, widths[-1]):
        return [text for line in lines for text in _beside(line, short, left, width)]
    return [text for line in lines for text in _below(line, short, width)]


def _narrowed(widths: Sequence[int], width: int) -> list[int]:
    """Return widths that fit, as far as each column keeps `_MIN_OF_CUT` characters."""
    narrowed = list(widths)
    while narrowed and sum(narrowed) + len(_GAP) * (len(narrowed) - 1) > width:
        widest = max(range(len(narrowed)), key=narrowed.__getitem__)
        if narrowed[widest] <= _MIN_OF_CUT:
            break
        narrowed[widest] -= 1
    return narrowed


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    cut = (
        cell if len(cell) <= width else f"{cell[: width - 1]}…"
        for cell, width in zip(cells, widths, strict=True)
    )
    padded = (cell.ljust(width) for cell, width in zip(cut, widths, strict=True))
    return _GAP.join(padded).rstrip()


def _beside(line: Sequence[str], short: Sequence[int], left: int, width: int) -> list[str]:
    first, *more = textwrap.wrap(line[-1], width - left) or [""]
    beginning = _joined((*line[:-1], first), (*short, max(len(first), 1)))
    return [beginning, *(" " * left + text for text in more)]


def _below(line: Sequence[str], short: Sequence[int], width: int) -> list[str]:
    indent = " " * min(4, width - 1)
    wrapped = textwrap.wrap(line[-1], width, initial_indent=indent, subsequent_indent=indent)
    return [_joined(line[:-1], short), *wrapped]


def _one_line(text: str) -> str:
    """Return the text without characters that would move the cursor or break the table."""
    return "".join(char if char.isprintable() else " " for char in text)


def shortened(text: str) -> str:
    """Return the text for a cell of a list; commands that show one thing print all of it."""
    return text if len(text) <= MAX_IN_A_CELL else f"{text[:MAX_IN_A_CELL]}…"


def ago(time: str | None, now: datetime) -> str:
    """Return the age of `time` (ISO 8601, as in the API)."""
    if time is None:
        return "-"
    seconds = max(0, int((now - datetime.fromisoformat(time)).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"


def short_time(time: str | None) -> str:
    """Return the time (ISO 8601, as in the API) as a table has it: month, day and time in UTC."""
    if time is None:
        return "-"
    return f"{datetime.fromisoformat(time).astimezone(UTC):%m-%d %H:%M:%S}"


def lasted(start: str | None, end: str | None, now: datetime) -> str:
    """Return the time from `start` to `end`, or until now, in its two largest units."""
    if start is None:
        return "-"
    until = now if end is None else datetime.fromisoformat(end)
    seconds = max(0, int((until - datetime.fromisoformat(start)).total_seconds()))
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        parts.append((seconds // size, unit))
        seconds %= size
    first = next((at for at, (number, _) in enumerate(parts) if number), len(parts) - 1)
    shown = [f"{number}{unit}" for number, unit in parts[first : first + 2] if number]
    return " ".join(shown) or "0s"


def utc_now() -> datetime:
    return datetime.now(UTC)
