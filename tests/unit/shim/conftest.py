"""A machine whose tasks are plain processes: none of them outlives the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.shim.process_world import ProcessWorld


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[ProcessWorld]:
    world = ProcessWorld(tmp_path)
    await world.again()
    yield world
    await world.close()
