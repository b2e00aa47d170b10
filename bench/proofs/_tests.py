"""A proof that is a set of tests: one command for one promise."""

from __future__ import annotations

import argparse
import sys

import pytest


def prove(promise: str | None, *paths: str) -> None:
    """Run these tests; further arguments go to pytest. Raises SystemExit when one fails."""
    parser = argparse.ArgumentParser(description=promise, epilog="Options are pytest's.")
    _, given = parser.parse_known_args(sys.argv[1:])
    if status := pytest.main(["-q", *paths, *given]):
        raise SystemExit(int(status))
