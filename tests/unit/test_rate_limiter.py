"""The limit on the requests of each peer."""

from controller.rate_limiter import RateLimiter


def test_the_limit_is_each_peers_own_and_passes_with_time() -> None:
    now = 0.0
    limit = RateLimiter(lambda: now, every=6.0, burst=10)
    assert [limit.wait_of("a") for _ in range(11)] == [0.0] * 10 + [6.0]
    assert limit.wait_of("b") == 0.0
    now = 6.0
    assert [limit.wait_of("a") for _ in range(2)] == [0.0, 6.0]
