"""A limit on the requests of each peer: so many at once, then one every few seconds."""

from __future__ import annotations

import math
from collections.abc import Callable

_MAX_PEERS = 10_000


class RateLimiter:
    """Allows each peer `burst` requests at once, then one every `every` seconds.

    `now`: seconds that only grow.
    """

    def __init__(self, now: Callable[[], float], *, every: float, burst: int) -> None:
        self._now = now
        self._every = every
        self._burst = burst
        self._full_at: dict[str, float] = {}
        """When the peer may send a whole burst again."""
        self._pruned_at = -math.inf

    def wait_of(self, peer: str) -> float:
        """Count a request. Return 0 if it may be served, else the seconds until the next one
        may."""
        now = self._now()
        # At most once in `every`: in a flood from many addresses, each request would walk all.
        if len(self._full_at) >= _MAX_PEERS and now >= self._pruned_at + self._every:
            self._pruned_at = now
            self._full_at = {peer: at for peer, at in self._full_at.items() if at > now}
        # An attacker with many addresses must not fill the memory: unknown peers wait.
        if len(self._full_at) >= _MAX_PEERS and peer not in self._full_at:
            return self._every
        full_at = max(self._full_at.get(peer, now), now) + self._every
        over = full_at - now - self._burst * self._every
        if over > 0:
            return over
        self._full_at[peer] = full_at
        return 0.0
