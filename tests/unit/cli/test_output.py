"""Commands write, and wait while a person is asked a question."""

from __future__ import annotations

import os
import threading
import tty
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli.output import (
    MAX_IN_A_CELL,
    alone_on_terminals,
    lasted,
    shortened,
    table_lines,
    write_all,
)


def test_a_long_text_is_cut_with_a_mark_in_a_list_and_a_short_one_is_not() -> None:
    assert shortened("x" * MAX_IN_A_CELL) == "x" * MAX_IN_A_CELL
    assert shortened("x" * 20_000) == "x" * MAX_IN_A_CELL + "…"


@pytest.mark.parametrize(
    ("end", "shown"),
    [
        ("2026-11-24T08:00:00Z", "0s"),
        ("2026-11-24T08:00:59Z", "59s"),
        ("2026-11-24T08:10:05Z", "10m 5s"),
        ("2026-11-24T10:00:05Z", "2h"),
        ("2026-11-27T09:30:00Z", "3d 1h"),
        (None, "1h"),
    ],
)
def test_how_long_something_lasted_is_told_in_two_units(end: str | None, shown: str) -> None:
    now = datetime(2026, 11, 24, 9, tzinfo=UTC)
    assert lasted("2026-11-24T08:00:00Z", end, now) == shown
    assert lasted(None, end, now) == "-"


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Bytes that are written to the second come out of the first."""
    screen, own = os.openpty()
    tty.setraw(own)
    yield screen, own
    os.close(screen)
    os.close(own)


def test_the_log_waits_while_the_terminal_asks_a_question(terminal: tuple[int, int]) -> None:
    screen, own = terminal
    begun = threading.Event()

    def log() -> None:
        begun.set()
        write_all(own, b"log")

    writer = threading.Thread(target=log)
    with alone_on_terminals():
        write_all(own, b"stop? ")
        writer.start()
        begun.wait()
        assert os.read(screen, 6) == b"stop? "
        for _ in range(1000):
            write_all(own, b"yes ")
            assert os.read(screen, 4) == b"yes "
    writer.join()
    assert os.read(screen, 3) == b"log"


def test_output_that_goes_elsewhere_does_not_wait_for_the_answer() -> None:
    ours, theirs = os.pipe()
    with alone_on_terminals():
        writer = threading.Thread(target=write_all, args=(theirs, b"log"))
        writer.start()
        writer.join()
        assert os.read(ours, 3) == b"log"
    os.close(ours)
    os.close(theirs)


COLUMNS = ("NAME", "STATUS", "ABOUT")
ROWS = [("train", "pending", "needs 8 GPU; best node gpu-3 has 2 free of 8"), ("x", "done", "")]


def test_in_a_pipe_each_row_is_one_line() -> None:
    assert table_lines(COLUMNS, ROWS, None) == [
        "NAME   STATUS   ABOUT",
        "train  pending  needs 8 GPU; best node gpu-3 has 2 free of 8",
        "x      done",
    ]


def test_on_a_terminal_the_last_column_is_wrapped_between_words() -> None:
    assert table_lines(COLUMNS, ROWS, 44) == [
        "NAME   STATUS   ABOUT",
        "train  pending  needs 8 GPU; best node gpu-3",
        "                has 2 free of 8",
        "x      done",
    ]


def test_on_a_narrow_terminal_the_last_column_stands_below() -> None:
    assert table_lines(COLUMNS, ROWS, 32) == [
        "NAME   STATUS",
        "    ABOUT",
        "train  pending",
        "    needs 8 GPU; best node gpu-3",
        "    has 2 free of 8",
        "x      done",
    ]


def test_the_longest_cells_are_cut_where_even_that_is_too_wide() -> None:
    rows = [("gpu-1", "an-address-that-is-long.example.com", "")]
    assert table_lines(("NAME", "ADDRESS", "ABOUT"), rows, 24) == [
        "NAME   ADDRESS",
        "    ABOUT",
        "gpu-1  an-address-that-…",
    ]


@given(
    rows=st.lists(st.tuples(*[st.text(max_size=60)] * 4), min_size=1, max_size=4),
    width=st.integers(40, 200),
)
def test_no_line_is_wider_than_the_terminal(rows: list[tuple[str, ...]], width: int) -> None:
    lines = table_lines(("A", "B", "C", "D"), rows, width)
    assert max(map(len, lines)) <= width


def test_a_table_without_rows_has_its_header() -> None:
    assert table_lines(COLUMNS, [], None) == table_lines(COLUMNS, [], 80) == ["NAME  STATUS  ABOUT"]
