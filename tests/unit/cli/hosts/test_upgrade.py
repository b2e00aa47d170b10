"""A version goes through nodes batch by batch, and no further than the first that it breaks."""

from __future__ import annotations

import asyncio

import pytest

from controller.commands.hosts.upgrade import End, Upgrade, roll

NAMES = ("a", "b", "c", "d", "e")


class Played:
    """Ends as it is told; `begun` is what was upgraded, and `most` how many at a time."""

    def __init__(self, **ends: End) -> None:
        self._ends = ends
        self._now = 0
        self.begun: list[str] = []
        self.most = 0

    async def __call__(self, name: str) -> Upgrade:
        self.begun.append(name)
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0)
        self._now -= 1
        return Upgrade(name=name, end=self._ends.get(name, End.UPGRADED))


@pytest.mark.parametrize("batch", [1, 2, 5, 9])
async def test_all_are_upgraded_no_more_than_a_batch_at_a_time(batch: int) -> None:
    played = Played(b=End.UNCHANGED)
    ends = await roll(NAMES, batch, played)
    assert [end.name for end in ends] == list(NAMES)
    assert {end.end for end in ends} == {End.UPGRADED, End.UNCHANGED}
    assert played.most == min(batch, 5)


@pytest.mark.parametrize("bad", [End.ROLLED_BACK, End.FAILED])
async def test_after_a_bad_end_no_further_batch_begins(bad: End) -> None:
    played = Played(c=bad)
    ends = await roll(NAMES, 2, played)
    assert played.begun == ["a", "b", "c", "d"]
    assert [end.end for end in ends] == [
        End.UPGRADED,
        End.UPGRADED,
        bad,
        End.UPGRADED,
        End.SKIPPED,
    ]
