from __future__ import annotations

from controller.cli.output import MOST_IN_A_CELL, shortened


def test_a_long_text_is_cut_with_a_mark_in_a_list_and_a_short_one_is_not() -> None:
    assert shortened("x" * MOST_IN_A_CELL) == "x" * MOST_IN_A_CELL
    assert shortened("x" * 20_000) == "x" * MOST_IN_A_CELL + "…"
