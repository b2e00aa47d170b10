"""Windows of a stored log: rows without gap or repetition, from any place."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.logs.segments import SegmentWriter
from controller.logs.windows import (
    ROW_BYTES,
    STYLE_BYTES,
    KnownLog,
    LogRow,
    offset_at,
    split,
    window_before,
    window_from,
    window_near,
)
from fairlead.queries import MAX_ROWS
from fairlead.wire.frames import Frame, Stream

SECOND = 1_000_000_000


class Log:
    """A stored log whose frames were written one second after the other."""

    def __init__(self, folder: Path, *payloads: bytes | tuple[Stream, bytes]) -> None:
        self.folder = folder
        self.known = KnownLog(folder)
        self._writer = SegmentWriter(folder)
        self._writer.open()
        self._count = 0
        for payload in payloads:
            self.add(payload)

    def add(self, payload: bytes | tuple[Stream, bytes], dropped: int = 0) -> None:
        stream, text = (Stream.STDOUT, payload) if isinstance(payload, bytes) else payload
        self._count += 1
        time_ns = self._count * SECOND
        self._writer.append([Frame(self._writer.end, time_ns, stream, text, dropped)])

    def forward(self, size: int) -> list[LogRow]:
        """All rows, window after window."""
        rows: list[LogRow] = []
        at = 0
        while (window := window_from(self.known, self.folder, at, size)).rows:
            assert window.start == at
            rows += window.rows
            at = window.end
        return rows

    def backward(self, size: int) -> list[LogRow]:
        rows: list[LogRow] = []
        at = self.known.end()
        while (window := window_before(self.known, self.folder, at, size)).rows:
            assert window.end == at
            rows = [*window.rows, *rows]
            at = window.start
        return rows


def texts(rows: list[LogRow] | tuple[LogRow, ...]) -> list[str]:
    return [row.text for row in rows]


def test_windows_forward_and_backward_hold_the_same_lines(tmp_path: Path) -> None:
    lines = [b"line %04d\n" % number for number in range(500)]
    log = Log(tmp_path, b"".join(lines[:300]), *lines[300:])
    wanted = [line.decode().rstrip("\n") for line in lines]
    assert texts(log.forward(700)) == wanted
    assert texts(log.backward(700)) == wanted


def test_a_window_knows_the_number_of_its_first_line(tmp_path: Path) -> None:
    log = Log(tmp_path, *(b"line %04d\n" % number for number in range(500)))
    window = window_from(log.known, tmp_path, 10 * 123, 100)
    assert (window.first_line, window.rows[0].text) == (124, "line 0123")
    assert window_before(log.known, tmp_path, log.known.end(), 20).first_line == 499


def test_a_window_has_no_more_rows_than_it_is_asked_for(tmp_path: Path) -> None:
    log = Log(tmp_path, b"\n" * 5000, b"last\n")
    end = log.known.end()
    below = window_from(log.known, tmp_path, 100, 4000, 50)
    assert (below.start, below.end, below.first_line, len(below.rows)) == (100, 150, 101, 50)
    above = window_before(log.known, tmp_path, end, 4000, 50)
    assert (above.end, len(above.rows), above.rows[-1].text) == (end, 50, "last")
    assert above.first_line == 4952
    near = window_near(log.known, tmp_path, 700, 4000, 50)
    assert (near.start, near.end) == (700, 750)
    assert len(window_from(log.known, tmp_path, 0, 4000).rows) == MAX_ROWS


RED, BOLD, PLAIN = "\033[31m", "\033[1m", "\033[0m"


@pytest.mark.parametrize(
    ("above", "style"),
    [
        (f"{RED}red\n", RED),
        (f"{RED}{BOLD}{RED}red and bold\n", BOLD + RED),
        (f"{BOLD}{PLAIN}{RED}red\n", RED),
        (f"{RED}red{PLAIN}\n", ""),
        (f"{RED}red\033[m\n", ""),
        ("\033[2Kcleared\n", ""),
        ("plain\n", ""),
        (f"{RED}far away\n{'x' * STYLE_BYTES}\n", ""),
    ],
)
def test_a_window_begins_in_the_style_that_is_left_above_it(
    tmp_path: Path, above: str, style: str
) -> None:
    log = Log(tmp_path, above.encode(), (Stream.STDERR, b"here\n"))
    end = log.known.end()
    window = window_before(log.known, tmp_path, end, 100, 1)
    assert (texts(window.rows), window.style) == (["here"], style)
    assert window_from(log.known, tmp_path, end - 5, 100).style == style


def test_colours_of_thousands_of_lines_are_one_short_style(tmp_path: Path) -> None:
    shades = b"".join(b"\033[38;2;%d;0;0mx\n" % (number % 256) for number in range(3000))
    log = Log(tmp_path, shades + b"here\n")
    window = window_before(log.known, tmp_path, log.known.end(), 100, 1)
    assert window.style.count("m") == 64
    assert window.style.endswith(f"38;2;{2999 % 256};0;0m")


def test_a_log_that_grows_is_known_to_its_new_end(tmp_path: Path) -> None:
    log = Log(tmp_path, b"one\n")
    assert window_before(log.known, tmp_path, log.known.end(), 100).log_end == 4
    log.add(b"two\n")
    window = window_before(log.known, tmp_path, log.known.end(), 100)
    assert (window.log_end, texts(window.rows)) == (8, ["one", "two"])
    assert log.known.lines_before(8) == 2


def test_a_window_near_an_offset_begins_with_its_line(tmp_path: Path) -> None:
    log = Log(tmp_path, b"first\nsecond line\nthird\n")
    window = window_near(log.known, tmp_path, 12, 5)
    assert (window.start, texts(window.rows)) == (6, ["second line"])
    assert window_near(log.known, tmp_path, 6, 5).start == 6


def test_streams_are_rows_of_their_own_and_share_a_line(tmp_path: Path) -> None:
    log = Log(tmp_path, b"50 %", (Stream.STDERR, b" warning\n"), b"next\n")
    rows = log.forward(1000)
    assert [(row.stream, row.text, row.starts, row.ends) for row in rows] == [
        ("stdout", "50 %", True, False),
        ("stderr", " warning", False, True),
        ("stdout", "next", True, True),
    ]


def test_a_long_line_is_cut_into_rows(tmp_path: Path) -> None:
    log = Log(tmp_path, b"x" * (2 * ROW_BYTES + 5) + b"\n", b"end\n")
    rows = log.forward(1000)
    assert [len(row.text) for row in rows] == [ROW_BYTES, ROW_BYTES, 5, 3]
    assert [row.starts for row in rows] == [True, False, False, True]
    assert log.known.lines_before(rows[-1].offset) == 1


def test_a_character_that_came_in_two_frames_is_one(tmp_path: Path) -> None:
    log = Log(tmp_path, b"gr\xc3", b"\xbcn\n", b"\xff\n")
    assert texts(log.forward(1000)) == ["grün", "\ufffd"]


def test_dropped_bytes_are_one_row(tmp_path: Path) -> None:
    log = Log(tmp_path, b"before\n")
    log.add((Stream.MARKER, b"[fairlead] 100 bytes were dropped\n"), dropped=100)
    log.add(b"after\n")
    assert [(row.text, row.offset, row.end) for row in log.forward(10)] == [
        ("before", 0, 7),
        ("[fairlead] 100 bytes were dropped", 7, 107),
        ("after", 107, 113),
    ]
    assert log.known.lines_before(113) == 3


@given(st.lists(st.binary(max_size=40), max_size=12), st.integers(1, 60))
def test_any_output_is_shown_without_gap_or_repetition(parts: list[bytes], size: int) -> None:
    offset, frames = 0, []
    for part in parts:
        frames.append(Frame(offset, 1, Stream.STDOUT, part))
        offset += len(part)
    rows = list(split(frames, begins=True))
    assert [row.offset for row in rows[1:]] == [row.end for row in rows[:-1]]
    joined = "".join(row.text + "\n" * row.ends for row in rows)
    assert joined == b"".join(parts).decode(errors="replace")


def test_a_time_is_found(tmp_path: Path) -> None:
    log = Log(tmp_path, *(b"line %04d\n" % number for number in range(50)))
    assert offset_at(log.known, tmp_path, 20 * SECOND) == 190
    assert offset_at(log.known, tmp_path, 0) == 0
    assert offset_at(log.known, tmp_path, 99 * SECOND) == 500
