from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.ways.sessions import SessionBed, opened_session_bed


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[SessionBed]:
    async with opened_session_bed(tmp_path) as made:
        yield made
