"""The seam between the proxy and the lifecycle of services: what it knows, what it tells."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

import msgspec


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """One replica in traffic: where its port is reached."""

    id: str
    """The id of its primary attempt; another life of the replica has another one."""
    group: str
    node_id: str
    socket: str
    """The path of its runner's socket on the node."""
    port: int


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """At most `burst` requests at once, then `rps` each second, for each client."""

    prefix: str = "/"
    header: str | None = None
    """The header that tells clients apart; None: their IP address."""
    rps: float
    burst: int = 1


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A registered service as the proxy serves it."""

    run_id: str
    name: str
    owner: str
    auth: bool = True
    strip_prefix: bool = True
    model: str | None = None
    model_prefix: str = "/v1"
    headers: tuple[tuple[str, str], ...] = ()
    """They are set on each request to a replica."""
    rate_limits: tuple[RateLimit, ...] = ()
    replicas: tuple[Replica, ...] = ()
    asleep: bool = False
    """No replica runs, and a request starts one."""


class Services(Protocol):
    """The registered services."""

    def find(self, name: str) -> Service | None: ...

    def all(self) -> Iterable[Service]: ...

    def hold(self, run_id: str, held: int) -> None:
        """So many requests of this service wait for a replica now."""

    async def changed(self) -> None:
        """Return when a service has changed since the call."""


class NoServices:
    """No service is registered."""

    def find(self, name: str) -> Service | None:
        return None

    def all(self) -> Iterable[Service]:
        return ()

    def hold(self, run_id: str, held: int) -> None:
        pass

    async def changed(self) -> None:
        await asyncio.Event().wait()


class Traffic(Protocol):
    """The counts of requests, by which services are scaled."""

    def began(self, service: Service, group: str) -> None: ...

    def ended(self, service: Service, group: str, *, seconds: float | None, failed: bool) -> None:
        """A request has ended. `seconds` None: it was a stream whose length says nothing about the
        replica's speed. `failed`: the replica gave no answer, or one from 500 on."""


class Uncounted:
    """Counts nothing."""

    def began(self, service: Service, group: str) -> None:
        pass

    def ended(self, service: Service, group: str, *, seconds: float | None, failed: bool) -> None:
        pass
