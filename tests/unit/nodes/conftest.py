from __future__ import annotations

import pytest

from controller.nodes import session as session_module


@pytest.fixture(autouse=True)
def quick_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(session_module, "MAX_WAIT_SECONDS", 0.002)
