from __future__ import annotations

from itertools import pairwise

from controller.cli.follow import LONGEST_WAIT_SECONDS, News, Patience, unread
from runner.schemas.frames import Frame, Stream


def test_waits_grow_with_jitter_up_to_a_limit_and_begin_anew_when_found() -> None:
    waits: list[float] = []
    patience = Patience(News(lambda _: None), waits.append)
    for _ in range(12):
        patience.lost(OSError("away"))
    patience.found()
    patience.lost(OSError("away"))
    assert 0.16 <= waits[0] <= 0.24
    assert all(later > earlier for earlier, later in pairwise(waits[:6]))
    assert max(waits) <= LONGEST_WAIT_SECONDS * 1.2
    assert 0.16 <= waits[-1] <= 0.24


def test_two_who_wait_tell_once_that_the_controller_is_away_and_back() -> None:
    told: list[str] = []
    news = News(told.append)
    first, second = Patience(news, lambda _: None), Patience(news, lambda _: None)
    first.lost(OSError("away"))
    second.lost(OSError("away"))
    second.found()
    first.found()
    assert told == ["away; trying again", "the controller is back"]


def frame(offset: int, payload: bytes) -> Frame:
    return Frame(offset, 1, Stream.STDOUT, payload)


def test_bytes_that_come_again_are_left_out() -> None:
    again = iter([frame(0, b"abc"), frame(3, b"def"), frame(3, b"def"), frame(6, b"g")])
    assert [one.payload for one in unread(again, 4)] == [b"ef", b"g"]
