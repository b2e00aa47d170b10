"""The only source of time and of fresh ids, so that simulation and tests can replace both."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from typing import Protocol

import msgspec


class Clock(Protocol):
    def now(self) -> float:
        """Unix seconds."""


class SystemClock:
    def now(self) -> float:
        return time.time()


class Chance(msgspec.Struct, frozen=True):
    """Where ids and jitter come from; a simulation gives its own, made from its seed."""

    new_id: Callable[[], str]
    """16 hex digits, never twice the same."""
    jitter: Callable[[], float]
    """Uniform in [-1, 1]."""


def system_chance() -> Chance:
    return Chance(new_id=lambda: secrets.token_hex(8), jitter=lambda: random.uniform(-1.0, 1.0))
