"""The first follower never waits; the others take turns."""

import contextlib

import pytest

from runner.logs.pacing import MAX_PIECE, MIN_PIECE, PRESSED_TURN, PRESSURE_LASTS, TURN, Pacing


class StillClock:
    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


def test_turns_follow_one_another() -> None:
    pacing = Pacing(StillClock())
    assert [pacing.reserve() for _ in range(3)] == pytest.approx([0, TURN, 2 * TURN])


def test_a_job_that_waits_for_us_makes_turns_rare_for_a_while() -> None:
    clock = StillClock()
    pacing = Pacing(clock)
    pacing.press()
    waits = [pacing.reserve(), pacing.reserve()]
    clock.at += PRESSURE_LASTS + PRESSED_TURN
    waits += [pacing.reserve(), pacing.reserve()]
    assert waits == pytest.approx([0, PRESSED_TURN, 0, TURN])


def test_the_first_never_waits_and_the_next_takes_its_place() -> None:
    pacing = Pacing(StillClock())
    with contextlib.ExitStack() as rest:
        with pacing.seat() as first:
            second = rest.enter_context(pacing.seat())
            before = [pacing.is_first(seat) for seat in (first, second)]
        assert before == [True, False]
        assert pacing.is_first(second)


def test_pieces_become_smaller_as_followers_become_more_but_for_the_first() -> None:
    pacing = Pacing(StillClock())
    sizes = []
    with pacing.seat() as first, contextlib.ExitStack() as seats:
        for _ in range(200):
            sizes.append(seats.enter_context(pacing.seat()).piece_size)
        assert first.piece_size == MAX_PIECE
    assert (sizes[0], sizes[-1]) == (MAX_PIECE, MIN_PIECE)
    assert sizes == sorted(sizes, reverse=True)
