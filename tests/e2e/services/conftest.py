"""The lab of the tests of runs, for services."""

from __future__ import annotations

from tests.e2e.runs.conftest import lab, whole_lab

__all__ = ["lab", "whole_lab"]
