"""Each user's recent use: GPU-seconds, else CPU-seconds, with a half-life of a day.

Every second is weighted from one fixed moment, so spans can be added and removed in any order and
need no update later.
"""

from __future__ import annotations

from math import log

from controller.lifecycle.model import Use

HALF_LIFE = 86_400.0
_MAX_VIEW = 20 * HALF_LIFE
"""The fixed moment moves when it is older than this, before the weights exceed a float."""
_MAX_DOUBLINGS = 500.0
"""A clock that goes back by years would double a weight more often than a float has room for."""


class _Account:
    __slots__ = ("ended", "going", "since")

    def __init__(self) -> None:
        self.ended = [0.0, 0.0]
        """Weighted GPU-seconds and CPU-seconds of finished spans."""
        self.going = [0.0, 0.0]
        """GPUs and CPUs that are held now."""
        self.since = [0.0, 0.0]
        """The weight that the running spans would have if they had begun at the beginning of
        time."""


class UseMeter:
    """The weighted use of each user."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._moment: float | None = None

    def add(self, use: Use) -> None:
        self._count(use, 1.0)

    def take_away(self, use: Use) -> None:
        """Remove a use that was added before with the same values."""
        self._count(use, -1.0)

    def used(self, user: str, now: float) -> tuple[int, int]:
        """Return the user's weighted GPU-seconds and CPU-seconds, rounded: less than a second makes
        no difference between users."""
        account = self._accounts.get(user)
        if account is None or self._moment is None:
            return (0, 0)
        self._look_from(now)
        weight, upto = _doubled(self._moment - now), self._weight(now)
        gpu, cpu = (
            round((account.ended[at] + account.going[at] * upto - account.since[at]) * weight)
            for at in (0, 1)
        )
        # Spans that were added and taken away leave a rounding error, which may be below 0.
        return (max(0, gpu), max(0, cpu))

    def _count(self, use: Use, sign: float) -> None:
        self._look_from(use.start if use.end is None else use.end)
        account = self._accounts.setdefault(use.user, _Account())
        start = self._weight(use.start)
        for at, amount in enumerate((use.gpus, use.cpu)):
            if use.end is None:
                account.going[at] += sign * amount
                account.since[at] += sign * amount * start
            else:
                account.ended[at] += sign * amount * max(0.0, self._weight(use.end) - start)

    def _weight(self, at: float) -> float:
        """Return the integral of the weights up to then, in seconds as seen from the fixed
        moment."""
        assert self._moment is not None
        return HALF_LIFE / log(2) * _doubled(at - self._moment)

    def _look_from(self, at: float) -> None:
        if self._moment is None:
            self._moment = at
        elif at - self._moment > _MAX_VIEW:
            factor = _doubled(self._moment - at)
            for account in self._accounts.values():
                account.ended = [value * factor for value in account.ended]
                account.since = [value * factor for value in account.since]
            self._moment = at


def _doubled(seconds: float) -> float:
    """Return what 1 becomes in this time if it doubles in each half-life."""
    return float(2.0 ** min(seconds / HALF_LIFE, _MAX_DOUBLINGS))
