"""The Store protocol, the errors that a store raises, and users with their tokens."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Collection, Iterable
from typing import Protocol, TypeVar

import msgspec
import sqlalchemy as sa

from controller.lifecycle.events import Event
from controller.lifecycle.inventory import NodeAddress
from controller.lifecycle.model import Allocation, Attempt, Band, Fleet, Node, Role, RunState, Use
from controller.lifecycle.statuses import RunStatus
from gateway.schemas import Certificate


class EndedLogin(msgspec.Struct, frozen=True):
    """A login to the dashboard that its user ended. `until`: when it would have expired."""

    id: str
    until: float


class User(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    role: Role
    created_at: float
    bands: tuple[Band, ...] = ()
    """Bands granted to this user beyond those that every user may use."""
    ended_logins: tuple[EndedLogin, ...] = ()


class StoredToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token of a user. `digest` is the result of `base.digest`; the token itself is never
    stored."""

    id: str
    user: str
    digest: str
    created_at: float
    label: str = ""
    expires_at: float | None = None
    """Unix seconds; None: it holds until it is revoked."""


class ServiceKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that opens one service alone: the one of this name while `user` owns it."""

    id: str
    service: str
    user: str
    """The owner of the service."""
    digest: str
    created_at: float
    label: str = ""


class StoredSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that jobs can name. `user` None: all users share it. `sealed` is its value, as only
    the key file can open it."""

    id: str
    user: str | None
    name: str
    sealed: str
    created_at: float
    updated_at: float

    def __repr__(self) -> str:
        return f"StoredSecret(user={self.user!r}, name={self.name!r})"


class Gateway(msgspec.Struct, frozen=True, kw_only=True):
    """A machine through which services are reached: each at its own host name below `domain`."""

    name: str
    domain: str
    address: NodeAddress
    """Its agent; `shim_socket` is the agent's socket."""
    certificate: Certificate = Certificate()
    is_default: bool = False
    """Services that name no gateway use it."""
    key: str | None = None
    """The public key by which its agent logs in at nodes; None: the agent was never seen."""
    created_at: float


TOKEN_PREFIX = "fl_"
KEY_PREFIX = "flk_"
BROWSER_PREFIX = "flb_"
TOKEN_BYTES = 32


def new_token(random_bytes: Callable[[int], bytes], prefix: str = TOKEN_PREFIX) -> str:
    """Make a token from `random_bytes(32)`, which must come from the system's secure source."""
    return prefix + random_bytes(TOKEN_BYTES).hex()


def digest(token: str) -> str:
    """Return the hex SHA-256 of the token; nothing else of it is stored."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def browser_secret(code: str, state: str) -> str:
    """Return the secret of a browser's session with a service: the dashboard's code, and the
    SHA-256 of what only that browser has."""
    return f"{BROWSER_PREFIX}{code}.{state}"


_Secret = TypeVar("_Secret", StoredToken, ServiceKey)


def matching(token: str, stored: Iterable[_Secret]) -> _Secret | None:
    """Return the stored token that equals `token`, compared in constant time; None if none does."""
    presented = digest(token)
    found = None
    for candidate in stored:
        if hmac.compare_digest(presented, candidate.digest):
            found = candidate
    return found


USE_SECONDS = 10 * 86400.0
"""Use that lies farther back weighs less than a thousandth, with a half-life of a day."""


class StoreError(Exception):
    """The store failed. The message is for the operator; it never holds stored values."""


class StoreUnavailable(StoreError):
    """Nothing was changed (disk full, database busy); the same commit may be tried again."""


class StoreRefused(StoreError):
    """Nothing was changed, and the same commit would never work.

    The store does not accept the values of some parts. The other parts can be stored without them.
    """

    def __init__(
        self,
        message: str,
        *,
        runs: Iterable[str] = (),
        nodes: Iterable[str] = (),
        fleets: Iterable[str] = (),
    ) -> None:
        super().__init__(message)
        self.runs = frozenset(runs)
        """The ids of the runs whose changes or events are refused."""
        self.nodes = frozenset(nodes)
        self.fleets = frozenset(fleets)

    @property
    def is_in_parts(self) -> bool:
        """Whether the refused parts are known, so that the rest could be stored."""
        return bool(self.runs or self.nodes or self.fleets)


class StoreUnusable(StoreError):
    """The store cannot be opened: a newer version made it, it is damaged, or it is not writable."""


class LeaseHeld(StoreError):
    """Another live controller uses this store."""


class LeaseLost(StoreError):
    """Another controller has taken over: this one must stop at once and change nothing."""


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """One life of the controller. `(epoch, token)` is the fence that shims compare."""

    epoch: int
    """It grows when the store was restored from a backup."""
    token: int
    """It grows each time the lease is taken."""
    installation_id: str
    schema_version: str
    restored_at: float | None = None
    """When a restore began the present epoch; None: no restore did. Nodes may have tasks of runs
    that this store never knew."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a starting controller needs."""

    runs: tuple[RunState, ...] = ()
    """The runs that are not final, oldest first."""
    nodes: tuple[Node, ...] = ()
    users: tuple[User, ...] = ()
    tokens: tuple[StoredToken, ...] = ()
    leftover_allocations: tuple[Allocation, ...] = ()
    """Allocations that finished runs still occupy (held or orphaned)."""
    fleets: tuple[Fleet, ...] = ()
    service_keys: tuple[ServiceKey, ...] = ()
    gateways: tuple[Gateway, ...] = ()
    past_use: tuple[Use, ...] = ()
    """Use within `USE_SECONDS` by allocations that are in none of `runs`."""
    secrets: tuple[StoredSecret, ...] = ()


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """One turn's changes.

    `runs` maps a run's id to its stored state (None: not stored yet) and its new state. Parts that
    are the *same object* in both are not written again.
    """

    runs: dict[str, tuple[RunState | None, RunState]] = {}
    nodes: dict[str, Node] = {}
    removed_nodes: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    users: tuple[User, ...] = ()
    tokens: tuple[StoredToken, ...] = ()
    removed_users: tuple[str, ...] = ()
    """Their tokens, secrets and the keys of their services are removed with them."""
    removed_tokens: tuple[str, ...] = ()
    fleets: dict[str, Fleet] = {}
    removed_fleets: tuple[str, ...] = ()
    service_keys: tuple[ServiceKey, ...] = ()
    removed_service_keys: tuple[str, ...] = ()
    secrets: tuple[StoredSecret, ...] = ()
    removed_secrets: tuple[str, ...] = ()
    gateways: tuple[Gateway, ...] = ()
    removed_gateways: tuple[str, ...] = ()


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event with its number. `seq` counts from 1 over all events, in the order of their
    commits."""

    seq: int
    event: Event


class Store(Protocol):
    """Keeps the controller's state."""

    async def open(self) -> Boot:
        """Bring the schema up to date and take the lease.

        Raises LeaseHeld, StoreUnusable, StoreUnavailable.
        """

    async def load(self) -> Snapshot:
        """Return all that is live. Raises StoreUnavailable."""

    async def commit(self, changes: Changes) -> None:
        """Make the changes durable, all or none. Raises LeaseLost, StoreUnavailable,
        StoreRefused."""

    async def find_run(self, key: str, *, user: str | None = None) -> RunState | None:
        """Return the run with this id, else the newest one with this name, finished ones included.

        `user`: look only at this user's runs.
        """

    async def find_submission(self, user: str, client_key: str) -> RunState | None:
        """Return the newest run that this user submitted with this key, so that a repeated submit
        gets the same run."""

    async def list_runs(
        self,
        *,
        include_finished: bool = True,
        limit: int = 100,
        before: str | None = None,
        user: str | None = None,
        parent_id: str | None = None,
        statuses: Collection[RunStatus] = (),
        name: str | None = None,
        band: Band | None = None,
    ) -> list[RunState]:
        """Return runs, newest first.

        `before` is the id of the last run of the previous page (unknown: the result is empty).
        `parent_id`: only the children of this run. `statuses`: only runs with one of these. `name`:
        only runs whose name fits this pattern, in which `*` stands for any characters and `?` for
        one. `band`: only runs of this band.
        """

    async def events(
        self,
        *,
        run_id: str | None = None,
        after: int = 0,
        before: int | None = None,
        limit: int = 1000,
        user: str | None = None,
        node_id: str | None = None,
    ) -> list[StoredEvent]:
        """Return the events with `seq` > after, oldest first; of one run, of one user's runs, of
        attempts on one node, or of all. With `before`: the latest of those with a lower `seq`."""

    async def attempts_on(
        self, node_id: str, *, since: float, limit: int = 1000
    ) -> list[tuple[str, Attempt]]:
        """Return the attempts that the node had at this Unix time or later, the newest first, each
        with the id of its run."""

    async def attempts(
        self,
        run_id: str,
        *,
        job_id: str | None = None,
        occurrence: int | None = None,
        incarnation: str | None = None,
        key: str | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> list[Attempt]:
        """Return the stored attempts of this run, oldest first.

        They can be limited to one job, occurrence or incarnation (its number or id), or to one id
        or number (`key`). `after` is the id of the last attempt of the previous page (unknown: the
        result is empty).
        """

    async def forget(self, *, finished_before: float, limit: int) -> int:
        """Remove up to `limit` runs that ended before then (Unix time) and occupy nothing, with
        their events.

        Return how many. Raises LeaseLost, StoreUnavailable.
        """

    async def forget_attempts(self, *, finished_before: float, limit: int) -> int:
        """Remove up to `limit` old attempts of live runs, with their allocations and events.

        They belong to earlier occurrences, ended before then (Unix time), occupy nothing and are
        not among the recent ones. Return how many. Raises LeaseLost, StoreUnavailable.
        """

    async def renew_lease(self) -> None:
        """Renew the lease: this controller lives. Raises LeaseLost, StoreUnavailable."""

    async def close(self) -> None:
        """Give the lease back and close everything; may be called twice."""


_VALUES, _RULES, _LIMITS = "22", "23", "54"
"""Classes of SQLSTATE: what a value is, what a constraint says, what is too large for an index."""
_UNTAKEN = (ValueError, TypeError, OverflowError, NotImplementedError, msgspec.MsgspecError)
"""Errors of drivers and encoders about a value, before the database has seen it."""


def is_about_values(error: Exception) -> bool:
    """Return whether the statement fails because of its values: with the same values it would fail
    forever."""
    if not isinstance(error, sa.exc.DBAPIError):
        return isinstance(error, (*_UNTAKEN, sa.exc.StatementError))
    if error.connection_invalidated:
        return False
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return state[:2] in (_VALUES, _RULES, _LIMITS)
    bound = (sa.exc.DataError, sa.exc.IntegrityError, sa.exc.InterfaceError)
    return isinstance(error, (*bound, sa.exc.ProgrammingError, sa.exc.NotSupportedError))


def as_store_error(error: Exception) -> StoreError:
    if is_about_values(error):
        return StoreRefused(f"the database refuses a value: {sentence(error)}")
    connection_lost = isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated
    if isinstance(error, sa.exc.OperationalError) or connection_lost:
        return StoreUnavailable(f"the database can't be used now: {sentence(error)}")
    return StoreUnusable(f"the database refuses: {sentence(error)}")


def sentence(error: Exception) -> str:
    """Return the error as one line, without the statement and its values, which may be secret."""
    if isinstance(error, StoreError):
        return str(error)
    original = getattr(error, "orig", None)
    text = str(original if original is not None else type(error).__name__)
    return next(iter(text.splitlines()), "")
