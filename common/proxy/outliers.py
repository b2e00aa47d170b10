"""Ejection: a replica that only fails gets no requests for some time (docs/rules.md 8.15)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from common.proxy.view import Replica

MAX_FAILURES = 5
"""Failures in a row that eject a replica. One bad request that an app answers with 500 ejects none,
and a broken replica fails few."""
KEPT_SECONDS = 600.0
"""What is known of a replica without requests is forgotten after this time."""


class _Known(msgspec.Struct):
    failures: int = 0
    out_until: float = 0.0
    noted_at: float = 0.0


class Outliers:
    """The replicas of all services that are ejected. `now`: seconds that only grow."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._known: dict[str, _Known] = {}

    def note(
        self, replica_id: str, among: Sequence[Replica], seconds: float | None, *, failed: bool
    ) -> bool:
        """Count an answer of one `among` these replicas; return whether it ejects the replica, for
        `seconds`. `seconds` None: nothing does."""
        known = self._known.get(replica_id)
        if seconds is None or (known is None and not failed):
            return False
        now = self._now()
        if known is None:
            self._forget(now - KEPT_SECONDS)
            known = self._known[replica_id] = _Known()
        known.noted_at = now
        if not failed:
            known.failures = 0
            return False
        known.failures += 1
        if known.failures < MAX_FAILURES or now < known.out_until:
            return False
        out = sum(self._is_out(one.id, now) for one in among)
        # An app whose every replica fails must not lose all of them: half of them stay.
        if (out + 1) * 2 > len(among):
            return False
        # Once it is back, its first failure ejects it again.
        known.failures, known.out_until = MAX_FAILURES - 1, now + seconds
        return True

    def out_of(self, replicas: Sequence[Replica]) -> frozenset[str]:
        """Return which of these replicas are ejected: none, where they are more than half, because
        others are gone."""
        if not self._known:
            return frozenset()
        now = self._now()
        out = frozenset(one.id for one in replicas if self._is_out(one.id, now))
        return out if len(out) * 2 <= len(replicas) else frozenset()

    def seconds_left(self) -> dict[str, float]:
        """Return for how long each ejected replica is out still."""
        now = self._now()
        return {id: one.out_until - now for id, one in self._known.items() if now < one.out_until}

    def _is_out(self, replica_id: str, now: float) -> bool:
        known = self._known.get(replica_id)
        return known is not None and now < known.out_until

    def _forget(self, before: float) -> None:
        for replica_id in [id for id, one in self._known.items() if one.noted_at < before]:
            del self._known[replica_id]
