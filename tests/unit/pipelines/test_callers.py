"""How many wait for a commit."""

from __future__ import annotations

import asyncio

import pytest

from controller import aio
from controller.aio import Callers
from controller.pipelines.run_pipeline import RunPipeline
from tests.support.waiting import eventually
from tests.unit.pipelines.parts import NotedTurns


async def test_who_was_told_counts_until_his_answer_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aio, "ANSWERING_SECONDS", 0.0)
    some = Callers()
    with some.one(), some.one():
        assert some.count == 2
    assert some.count == 2
    await eventually(lambda: some.count == 0)


async def test_who_waits_for_a_commit_counts_and_who_goes_away_soon_does_not_any_more() -> None:
    turns: RunPipeline = NotedTurns()
    waiting = [asyncio.create_task(turns.settled()) for _ in range(3)]
    await eventually(lambda: turns.callers.count == 3)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert all(task.cancelled() for task in waiting)
    await eventually(lambda: turns.callers.count == 0)
