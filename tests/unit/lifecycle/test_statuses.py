from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from fairlead.model.statuses import (
    ALLOCATION_MOVES,
    ATTEMPT_MOVES,
    FINAL_ATTEMPT_STATUSES,
    FINAL_RUN_STATUSES,
    RUN_MOVES,
    AllocationState,
    AttemptStatus,
    IllegalMove,
    RunStatus,
    move_allocation,
    move_attempt,
    move_run,
)
from tests import lifecycle_pages


@pytest.mark.parametrize(("source", "target"), [*product(AttemptStatus, AttemptStatus)])
def test_an_attempt_moves_only_along_its_table(
    source: AttemptStatus, target: AttemptStatus
) -> None:
    if target in ATTEMPT_MOVES[source]:
        assert move_attempt(source, target) is target
    else:
        with pytest.raises(IllegalMove, match=f"attempt: {source} may not become {target}"):
            move_attempt(source, target)


@pytest.mark.parametrize(("source", "target"), [*product(RunStatus, RunStatus)])
def test_a_run_moves_only_along_its_table(source: RunStatus, target: RunStatus) -> None:
    if target in RUN_MOVES[source]:
        assert move_run(source, target) is target
    else:
        with pytest.raises(IllegalMove, match=f"run: {source} may not become {target}"):
            move_run(source, target)


@pytest.mark.parametrize(("source", "target"), [*product(AllocationState, AllocationState)])
def test_an_allocation_moves_only_along_its_table(
    source: AllocationState, target: AllocationState
) -> None:
    if target in ALLOCATION_MOVES[source]:
        assert move_allocation(source, target) is target
    else:
        with pytest.raises(IllegalMove, match=f"allocation: {source} may not become {target}"):
            move_allocation(source, target)


def test_only_final_statuses_lead_nowhere() -> None:
    assert {s for s, targets in ATTEMPT_MOVES.items() if not targets} == FINAL_ATTEMPT_STATUSES
    assert {s for s, targets in RUN_MOVES.items() if not targets} == FINAL_RUN_STATUSES


def test_a_final_status_of_an_attempt_is_reached_from_terminating_alone() -> None:
    ways = {s for s, targets in ATTEMPT_MOVES.items() if targets & FINAL_ATTEMPT_STATUSES}
    assert ways == {AttemptStatus.TERMINATING}


@pytest.mark.parametrize("name", sorted(lifecycle_pages.pages()))
def test_the_page_is_what_the_tables_say(name: str) -> None:
    folder = Path(__file__).parents[3] / lifecycle_pages.FOLDER
    assert (folder / name).read_text(encoding="utf-8") == lifecycle_pages.pages()[name]


def test_writing_the_pages_makes_the_folder(tmp_path: Path) -> None:
    lifecycle_pages.main(tmp_path / "new")
    assert {page.name for page in (tmp_path / "new").iterdir()} == set(lifecycle_pages.pages())
