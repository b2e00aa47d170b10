"""What only the leader knows: an answer from a copy asks for it, or goes on without it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import NoReturn, TypeVar

V = TypeVar("V")


class NeedsLeader(Exception):
    """The answer has something that only the leader knows."""


class LeaderKnowsMore(NeedsLeader):
    """The answer is right without what only the leader knows, and says less."""


_alone: ContextVar[bool] = ContextVar("alone", default=False)


def is_alone() -> bool:
    """Return whether this answer goes on without the leader."""
    return _alone.get()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Within this block answers go on without what only the leader knows."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def ask_leader() -> None:
    """Raise LeaderKnowsMore, unless the leader does not answer."""
    if not _alone.get():
        raise LeaderKnowsMore


class AtLeader(Mapping[str, V]):
    """What the leader alone has by this key. Without the leader: nothing."""

    def __getitem__(self, key: str) -> V:
        ask_leader()
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        ask_leader()
        return False

    def __iter__(self) -> Iterator[str]:
        ask_leader()
        return iter(())

    def __len__(self) -> int:
        ask_leader()
        return 0


class Absent:
    """Stands for a part that a follower does not have: an answer that needs it is the leader's."""

    def __getattr__(self, name: str) -> NoReturn:
        raise NeedsLeader
