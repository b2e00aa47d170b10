"""Real browsers, each with a profile of its own."""

from __future__ import annotations

from tests.unit.api.conftest import controller

__all__ = ["controller"]
