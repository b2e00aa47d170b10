"""The seams of the proxy: what it knows of services, whom it admits, what it tells."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from common.streams import PortStream


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """One replica in traffic: where its port is reached."""

    id: str
    """The id of its primary attempt; another life of the replica has another one."""
    group: str
    node_id: str
    socket: str
    """The path of its runner's socket on the node."""
    port: int


class RequestLimit(msgspec.Struct, frozen=True, kw_only=True):
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
    groups: tuple[str, ...] = ("main",)
    rate_limits: tuple[RequestLimit, ...] = ()
    replicas: tuple[Replica, ...] = ()
    eject_for: float | None = None
    """Seconds for which a replica that only fails gets no requests; None: never."""
    is_held: bool = False
    """Requests wait while it has no replica: they wake it, or it is waking up."""
    reconnects: bool = False
    """Requests wait for a moment while it has no replica: it has some that were ready on nodes that
    are not connected, as at the controller's start."""


Connect = Callable[[Replica], Awaitable[PortStream]]
"""Opens a byte stream to the replica's port; waits for its node as long as necessary. Raises
LinkError, AgentUnavailable, AgentError."""


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """The admission of a request. `secret_headers` must not reach the replica; `credential`
    is of the `Access` that gave it."""

    secret_headers: frozenset[str] = frozenset()
    credential: object = None


class Access(Protocol):
    """Decides which requests a service gets."""

    async def admit(self, service: Service, authorization: str) -> Admission:
        """Admit a request by its `Authorization`. Raises Unauthenticated, Forbidden,
        Unavailable."""

    def while_admitted(
        self, admission: Admission, end: Callable[[], object]
    ) -> AbstractContextManager[None]:
        """Call `end` if the token or key ends within this block."""


class Services(Protocol):
    """The registered services."""

    def find(self, name: str) -> Service | None: ...

    def all(self) -> Iterable[Service]: ...

    def wake(self, run_id: str) -> None:
        """A request waits for a replica of this service, which has none. May be repeated."""

    async def changed(self, run_id: str) -> None:
        """Return when this service has changed since the call, or is gone."""


class Counted(Protocol):
    """A request that was counted."""

    def end(self, *, failed: bool = False, is_stream: bool = False) -> None:
        """End it once. `failed`: the replica gave no answer, or one from 500 on. `is_stream`: its
        length says nothing about the replica's speed."""


class Traffic(Protocol):
    """The counts of requests, by which services are scaled and replicas drained."""

    def begin(self, service: Service, replica: Replica | None) -> Counted:
        """Count a request at this replica; None: one that is held until there is a replica."""

    def ejected(self, replica: Replica, seconds: float) -> None:
        """The replica gets no requests for this time (docs/rules.md 8.15)."""
