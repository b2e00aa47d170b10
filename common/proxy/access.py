"""What a request shows to be admitted to a service, and the service's rate limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from common.proxy.errors import TooMany
from common.proxy.judgement import may_hold_a_token
from common.proxy.view import Access, RequestLimit, Service
from common.rate_limiter import RateLimiter
from common.refusals import Forbidden, Unauthenticated


def how_to_be_admitted(service: str) -> str:
    return (
        "send `Authorization: Bearer TOKEN` with the token of a user who may see the service, or "
        f"with one of its keys (`fairlead service key add {service}`)"
    )


async def may_see(access: Access, service: Service, authorization: str) -> bool:
    try:
        await access.admit(service, authorization)
    except (Unauthenticated, Forbidden):
        return False
    return True


def secret_of(service: Service, authorization: str) -> str | None:
    """Return the token or key by which a request must be admitted; None: everybody is. Raises
    Unauthenticated."""
    if not service.auth:
        return None
    secret = bearer(authorization)
    if not secret:
        raise Unauthenticated(
            f"the service {service.name} asks for a token; {how_to_be_admitted(service.name)}"
        )
    return secret


def hidden_headers(service: Service, authorization: str) -> frozenset[str]:
    """Return the headers that the replica must not see."""
    is_ours = service.auth or may_hold_a_token("authorization", authorization)
    return frozenset({"authorization"}) if is_ours else frozenset()


def bearer(authorization: str) -> str:
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class RateLimits:
    """The rate limits of all services. `now`: seconds that only grow."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._limits: dict[str, dict[RequestLimit, RateLimiter]] = {}

    def check(self, service: Service, path: str, address: str, headers: Mapping[str, str]) -> None:
        """Count a request for the longest prefix that its path has. Raises TooMany."""
        fitting = [limit for limit in service.rate_limits if covers(limit.prefix, path)]
        if not fitting:
            return
        limit = max(fitting, key=lambda one: len(one.prefix))
        key = address if limit.header is None else headers.get(limit.header, "")
        known = self._limits.setdefault(service.run_id, {})
        if limit not in known:
            # A new deployment may change the limits while requests go on.
            for old in known.keys() - set(service.rate_limits):
                del known[old]
            known[limit] = RateLimiter(self._now, every=1 / limit.rps, burst=max(limit.burst, 1))
        wait = known[limit].wait_of(key)
        if wait:
            raise TooMany(
                f"the service {service.name} takes {limit.rps:g} requests a second of each client "
                f"below {limit.prefix}; try again in {math.ceil(wait)} s",
                wait,
            )

    def forget(self, live: set[str]) -> None:
        """Forget services that are gone. `live`: the run ids of those that are there."""
        for run_id in self._limits.keys() - live:
            del self._limits[run_id]


def covers(prefix: str, path: str) -> bool:
    """Return whether the path begins with the prefix; both are plain (`headers.plain_path`)."""
    return path.startswith(prefix) or (prefix.endswith("/") and path == prefix[:-1])
