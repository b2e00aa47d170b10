"""The limit on the requests of each peer."""

import pytest

from common import rate_limiter
from common.rate_limiter import RateLimiter


def test_the_limit_is_each_peers_own_and_passes_with_time() -> None:
    now = 0.0
    limit = RateLimiter(lambda: now, every=6.0, burst=10)
    assert [limit.wait_of("a") for _ in range(11)] == [0.0] * 10 + [6.0]
    assert limit.wait_of("b") == 0.0
    now = 6.0
    assert [limit.wait_of("a") for _ in range(2)] == [0.0, 6.0]


def test_in_a_flood_from_many_addresses_unknown_peers_wait_and_known_ones_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rate_limiter, "_MAX_PEERS", 3)
    now = 0.0
    limit = RateLimiter(lambda: now, every=6.0, burst=2)
    assert [limit.wait_of(peer) for peer in ("a", "b", "c", "d", "a")] == [0, 0, 0, 6.0, 0]
    now = 5.9
    assert limit.wait_of("d") == 6.0
    now = 6.0
    assert limit.wait_of("d") == 0.0
