"""Admission to a service: a user's token, or a key of this service; then its rate limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from controller.proxy.errors import TooMany
from controller.proxy.judgement import may_hold_a_token
from controller.proxy.view import Access, Admission, RequestLimit, Service
from controller.rate_limiter import RateLimiter
from controller.service.errors import Forbidden, Unauthenticated
from controller.service.users import Credential, Gate, sees_all
from controller.store.base import BROWSER_PREFIX, KEY_PREFIX, ServiceKey, digest

_HOW = (
    "send `Authorization: Bearer TOKEN` with the token of a user who may see the service, or with "
    "one of its keys (`fairlead service key add {name}`)"
)


class GateAccess:
    """Admits by the tokens and keys of the controller (`Access`)."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def admit(self, service: Service, authorization: str) -> Admission:
        secret, hidden = secret_of(service, authorization), hidden_headers(service, authorization)
        if secret is None:
            return Admission(secret_headers=hidden)
        key = self._gate.service_key(secret, service.name, service.owner)
        if key is not None:
            return Admission(credential=key, secret_headers=hidden)
        if secret.startswith(KEY_PREFIX):
            raise Unauthenticated(
                f"this is no key of the service {service.name}, or it was revoked; "
                f"{_HOW.format(name=service.name)}"
            )
        held = self._held(secret, service.run_id)
        user = self._gate.users[held.token.user]
        if not sees_all(user) and user.name != service.owner:
            raise Forbidden(
                f"the service {service.name} belongs to {service.owner}; ask for a key of it "
                f"(`fairlead service key add {service.name}`)",
                field="service",
            )
        return Admission(credential=held, secret_headers=hidden)

    def _held(self, secret: str, run_id: str) -> Credential:
        """Raises Unauthenticated."""
        if not secret.startswith(BROWSER_PREFIX):
            return Credential(token=self._gate.token_of(secret))
        held = self._gate.granted(digest(secret), run_id)
        if held is None:
            raise Unauthenticated("this browser's session has ended; open the service again")
        return held

    @contextmanager
    def while_admitted(self, admission: Admission, end: Callable[[], object]) -> Iterator[None]:
        if isinstance(admission.credential, Credential | ServiceKey):
            with self._gate.until_it_ends(admission.credential, end):
                yield
        else:
            yield


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
            f"the service {service.name} asks for a token; {_HOW.format(name=service.name)}"
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
