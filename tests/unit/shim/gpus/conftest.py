"""The watch of GPUs reads often enough for a test."""

from __future__ import annotations

import pytest

from shim.gpus import watch


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "READ_EVERY", 0.01)
    monkeypatch.setattr(watch, "LIST_EVERY", 0.02)
    monkeypatch.setattr(watch, "CONFIRM_AFTER", 0.02)
