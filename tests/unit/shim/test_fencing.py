"""An old voice revives nothing."""

from __future__ import annotations

import pytest

from fairlead.wire.errors import Refused
from fairlead.wire.shim import Fence
from shim.state import fencing
from shim.state.fencing import FenceBook


def code_of(act: object) -> str:
    with pytest.raises(Refused) as caught:
        act()  # type: ignore[operator]
    return caught.value.code


def test_an_older_token_is_refused_and_the_same_one_is_not() -> None:
    book = FenceBook()
    book.raise_to("r", Fence(1, 5), 0)
    book.check("r", Fence(1, 5), 0)
    assert code_of(lambda: book.check("r", Fence(1, 4), 0)) == "fenced"


def test_a_higher_epoch_beats_any_token() -> None:
    book = FenceBook()
    book.raise_to("r", Fence(2, 1), 0)
    assert code_of(lambda: book.check("r", Fence(1, 999), 0)) == "fenced"


def test_an_older_incarnation_is_refused() -> None:
    book = FenceBook()
    book.raise_to("r", Fence(1, 1), 3)
    assert code_of(lambda: book.check("r", Fence(1, 1), 2)) == "fenced"


def test_a_new_epoch_begins_with_whatever_incarnation_its_database_knows() -> None:
    book = FenceBook()
    book.raise_to("r", Fence(1, 9), 5)
    book.check("r", Fence(2, 1), 4)
    book.raise_to("r", Fence(2, 1), 4)
    book.check("r", Fence(2, 1), 4)
    assert code_of(lambda: book.check("r", Fence(2, 1), 3)) == "fenced"
    assert code_of(lambda: book.check("r", Fence(1, 9), 5)) == "fenced"


def test_raising_says_only_what_is_new() -> None:
    book = FenceBook()
    first = book.raise_to("r", Fence(1, 1), 0)
    again = book.raise_to("r", Fence(1, 1), 0)
    assert (first is not None, again) == (True, None)


def test_a_forgotten_task_is_refused_until_its_time() -> None:
    book = FenceBook()
    book.raise_to("r", Fence(1, 1), 0)
    book.forget("r", "t", until=110.0, now=100.0)
    assert code_of(lambda: book.check_revival("r", "t", 109.0)) == "terminated"
    book.check_revival("r", "t", 111.0)


@pytest.mark.parametrize("tasks", [3, 5, 8, 9, 12])
def test_a_run_of_many_tasks_forgets_the_oldest_ids_alone(
    monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    monkeypatch.setattr(fencing, "MAX_FORGOTTEN", 8)
    book = FenceBook()
    book.raise_to("r", Fence(1, 1), 0)
    for number in range(tasks):
        record = book.forget("r", f"t{number}", until=200.0 + number, now=100.0)
    assert record is not None
    assert list(record.forgotten) == [f"t{number}" for number in range(max(0, tasks - 8), tasks)]


def test_a_run_without_tasks_is_dropped_when_its_time_has_come() -> None:
    book = FenceBook()
    book.raise_to("r", Fence(1, 1), 0)
    book.expire("r", 50.0)
    assert (book.drop_expired(49.0), book.drop_expired(50.0)) == ((), ("r",))


def test_a_new_task_keeps_a_run_that_was_about_to_expire() -> None:
    book = FenceBook()
    book.raise_to("r", Fence(1, 1), 0)
    book.expire("r", 50.0)
    record = book.raise_to("r", Fence(1, 1), 0)
    assert record is not None
    assert record.expires_at is None
