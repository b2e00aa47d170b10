"""The pieces of logs that were written last are kept in memory, within a limit."""

from __future__ import annotations

from controller.logs.newest import MAX_BYTES, NewestPieces
from controller.logs.segments import READ_BYTES, Position, Written

ONE, OTHER = "a1b2c3d4e5f60718", "b1b2c3d4e5f60718"


def written(at: int, size: int) -> Written:
    return Written(Position(0, at), b"." * size, Position(0, at + size))


def test_no_more_than_the_limit_is_kept_of_all_logs_together() -> None:
    pieces, kept = NewestPieces(), MAX_BYTES // READ_BYTES
    for number in range(kept + 3):
        pieces.add(ONE if number % 2 else OTHER, written(number * READ_BYTES, READ_BYTES))

    for number in range(kept + 3):
        found = pieces.at(ONE if number % 2 else OTHER, Position(0, number * READ_BYTES))
        assert (found is not None) == (number >= 3)


def test_pieces_that_follow_one_another_are_given_together_up_to_a_limit() -> None:
    pieces, half = NewestPieces(), READ_BYTES // 2
    for at in (0, half, 2 * half, 4 * half):
        pieces.add(ONE, written(at, half))
    pieces.add(OTHER, written(half, half))

    assert pieces.at(ONE, Position(0, 0)) == written(0, 2 * half)
    # What comes between is not here.
    assert pieces.at(ONE, Position(0, 2 * half)) == written(2 * half, half)
    assert pieces.at(OTHER, Position(0, half)) == written(half, half)


def test_many_small_pieces_do_not_pile_up() -> None:
    pieces = NewestPieces()
    for number in range(10_000):
        pieces.add(ONE, written(number, 1))

    assert pieces.at(ONE, Position(0, 9_999)) is not None
    assert pieces.at(ONE, Position(0, 9_999 - MAX_BYTES // 4096)) is None


def test_a_larger_piece_than_a_reader_takes_from_the_disk_is_left_to_the_disk() -> None:
    pieces = NewestPieces()
    pieces.add(ONE, written(0, READ_BYTES + 1))

    assert pieces.at(ONE, Position(0, 0)) is None
    assert not pieces.is_end(ONE, Position(0, 0))
    assert pieces.is_end(ONE, Position(0, READ_BYTES + 1))


def test_a_forgotten_log_leaves_room_and_the_others() -> None:
    pieces = NewestPieces()
    pieces.add(OTHER, written(0, 5))
    for number in range(3):
        for at in range(MAX_BYTES // READ_BYTES - 1):
            pieces.add(ONE, written(at * READ_BYTES, READ_BYTES))
        assert pieces.at(ONE, Position(0, 0)) is not None, number
        pieces.forget(ONE)
        assert pieces.at(ONE, Position(0, 0)) is None
        assert not pieces.is_end(ONE, Position(0, (MAX_BYTES // READ_BYTES - 1) * READ_BYTES))

    assert pieces.at(OTHER, Position(0, 0)) is not None
