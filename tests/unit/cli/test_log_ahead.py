"""Logs that are fetched ahead of the one that is printed."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator

import pytest

from fairlead.cli import log_ahead
from fairlead.cli.log_ahead import MAX_AT_ONCE, MAX_HELD, first_of, last_of, stored_logs
from fairlead.cli.log_start import Start
from fairlead.errors import ConnectionLost
from fairlead.rest import ControllerClient
from fairlead.wire.frames import Frame, Stream
from tests.support.waiting import LONG

ALL = Start()


def frames(count: int, size: int) -> list[Frame]:
    lines = (b"%d" % at + b"." * (size - 2) for at in range(count))
    return [
        Frame(at * size, 1, Stream.STDOUT, line[: size - 1] + b"\n")
        for at, line in enumerate(lines)
    ]


class Crowd(ControllerClient):
    """Its logs come only when so many are asked for at once. `read`: offsets that were asked for
    in a thread of the test itself."""

    def __init__(self, several: int) -> None:
        super().__init__("http://127.0.0.1:1", None)
        self._gate = threading.Barrier(several)
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0

    def stored_frames(self, key: str, **query: object) -> Generator[Frame, None, None]:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            self._gate.wait(LONG)
            if query["attempt"] == "lost":
                raise ConnectionLost("cut")
            yield Frame(0, 1, Stream.STDOUT, str(query["attempt"]).encode())
        finally:
            with self._lock:
                self._now -= 1


def test_as_many_as_allowed_are_fetched_at_once_and_come_in_their_order() -> None:
    crowd = Crowd(MAX_AT_ONCE)
    wanted = [(number, f"a{number}") for number in range(3 * MAX_AT_ONCE)]
    found = [
        (number, b"".join(frame.payload for frame in log))
        for number, log in stored_logs(crowd, "r1", ALL, wanted)
    ]
    assert found == [(number, attempt.encode()) for number, attempt in wanted]
    assert crowd.most == MAX_AT_ONCE


def test_a_log_that_cannot_be_fetched_says_so_in_its_turn() -> None:
    logs = stored_logs(Crowd(2), "r1", ALL, [("one", "a1"), ("two", "lost")])
    (_, first), (_, second) = logs
    assert [frame.payload for frame in first] == [b"a1"]
    with pytest.raises(ConnectionLost, match="cut"):
        next(second)


def test_of_a_long_log_only_the_beginning_is_held() -> None:
    stored = frames(100, 64 << 10)
    asked: list[Frame] = []

    def counted() -> Iterator[Frame]:
        for frame in stored:
            asked.append(frame)
            yield frame

    held, goes_on_at = first_of(counted())
    assert (list(held), goes_on_at) == (asked, asked[-1].end)
    assert len(asked) == MAX_HELD // (64 << 10)


def test_many_short_frames_are_held_up_to_the_same_size() -> None:
    held, goes_on_at = first_of(frames(100_000, 4))
    assert len(list(held)) < 2000
    assert goes_on_at is not None


def test_the_last_lines_are_held_and_nothing_is_fetched_twice() -> None:
    stored = frames(100, 64 << 10)
    held, goes_on_at = last_of(stored, Start(tail=2))
    assert (list(held), goes_on_at) == (stored[-2:], None)


def test_last_lines_that_are_too_long_to_hold_are_fetched_again() -> None:
    stored = frames(100, 64 << 10)
    assert last_of(stored, Start(tail=50)) == ((), stored[-50].offset)
    longest = [Frame(0, 1, Stream.STDOUT, b"." * (2 * log_ahead.MAX_HELD))]
    held, goes_on_at = last_of(longest, Start(tail=1))
    assert (list(held), goes_on_at) == (longest, None)


def test_an_empty_log_is_all_there() -> None:
    for found in (first_of([]), last_of([], Start(tail=3))):
        assert (list(found.frames), found.goes_on_at) == ([], None)
