from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controller.forwarding import leader_feed
from tests.unit.forwarding import submitting
from tests.unit.forwarding.passing import Bed
from tests.unit.forwarding.watching import WatchBed, opened_watch_bed


@pytest.fixture
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WatchBed]:
    # However busy the machine is: no watch is left to the leader because its feed begins late.
    monkeypatch.setattr(leader_feed, "BEGIN_SECONDS", 3600.0)
    async with opened_watch_bed(tmp_path) as made:
        yield made


@pytest.fixture
async def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    # However busy the machine is: a kept link is still used.
    monkeypatch.setattr("common.proxy.upstream.IDLE_SECONDS", 3600.0)
    made = Bed(tmp_path)
    await made.follow()
    yield made
    await made.session.close()
    await made.closing.aclose()


@pytest.fixture
async def submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[submitting.Bed]:
    # However busy the machine is: a kept link is still used, no message counts as slow, and its
    # requests are ready within a moment.
    monkeypatch.setattr("common.proxy.upstream.IDLE_SECONDS", 3600.0)
    monkeypatch.setattr("controller.forwarding.submissions.batches.SLOW_SECONDS", 3600.0)
    monkeypatch.setattr("controller.service.runs.shared_turns.MOMENT_SECONDS", 3600.0)
    async with submitting.opened_bed(tmp_path) as made:
        yield made
