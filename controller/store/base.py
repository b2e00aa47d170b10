"""The Store protocol, what a starting controller gets from it, and what a turn changes in it."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping
from contextvars import ContextVar
from typing import Protocol

import msgspec

from controller.lifecycle.events import Event
from controller.lifecycle.inventory import NodeAddress
from controller.lifecycle.machines.cost import DayCosts
from controller.lifecycle.machines.model import Machine
from controller.lifecycle.machines.orphans import KEPT_SECONDS, KnownOrphan
from controller.lifecycle.model import Allocation, Attempt, Fleet, Node, RunState, Use
from controller.store.accounts import ServiceKey, StoredSecret, StoredToken, User
from fairlead.queries import AttemptQuery, EventQuery, RunQuery
from fairlead.wire.gateway import Certificate

USE_SECONDS = 10 * 86400.0
"""Use that lies farther back weighs less than a thousandth, with a half-life of a day."""
MACHINES_SECONDS = KEPT_SECONDS
"""How long a controller needs ended machines: the budget of a month counts them."""
COSTS_SECONDS = 400 * 86400.0
"""How long the sums of days are kept: a year, and the months in which it begins and ends."""


class Commits:
    """What was stored on behalf of one request. A request of which nothing was stored may be done
    by another controller."""

    def __init__(self) -> None:
        self.has_any = False

    @staticmethod
    def counted() -> Commits:
        """Return those of this task from now on."""
        counted = Commits()
        _COMMITS.set(counted)
        return counted

    @staticmethod
    def note() -> None:
        """Note that something was stored on behalf of the request of this task, if it has one."""
        if (counted := _COMMITS.get()) is not None:
            counted.has_any = True


_COMMITS: ContextVar[Commits | None] = ContextVar("commits", default=None)


class Store(Protocol):
    """Keeps the controller's state."""

    async def open(self) -> Boot:
        """Bring the schema up to date and take the lease.

        Raises LeaseHeld, StoreUnusable, StoreUnavailable.
        """

    async def load(self) -> Snapshot:
        """Return all that is live. Raises StoreUnavailable."""

    async def commit(self, changes: Changes) -> None:
        """Make the changes durable, all or none, and note it (`Commits`). Raises LeaseLost,
        StoreUnavailable, StoreRefused."""

    async def find_run(self, key: str, *, user: str | None = None) -> RunState | None:
        """Return the run with this id, else the live one with this name, else the newest one.

        `user`: look only at this user's runs.
        """

    async def find_submissions(
        self, keys: Collection[tuple[str, str]]
    ) -> dict[tuple[str, str], RunState]:
        """Return the newest run of each pair of user and `client_key` that made one. Raises
        StoreUnavailable."""

    async def submission_marks(self) -> array[int]:
        """Return the `submission_mark` of each user and `client_key` that made a run. Raises
        StoreUnavailable."""

    async def list_runs(self, query: RunQuery) -> list[RunState]:
        """Return runs, newest first; none after a `cursor` that is no run's id."""

    async def events(self, query: EventQuery) -> list[StoredEvent]:
        """Return events, oldest first; `run` is the id of a run."""

    async def attempts_on(
        self, node_ids: Collection[str], *, since: float, limit: int = 1000
    ) -> list[tuple[str, Attempt]]:
        """Return the attempts that these nodes had at this Unix time or later, the newest first,
        each with the id of its run."""

    async def costs_of_days(self, first: str) -> list[DayCosts]:
        """Return the sums that are kept of this day (such as 2026-01-31) and later ones, the oldest
        first. Raises StoreUnavailable."""

    async def attempts(self, run_id: str, query: AttemptQuery) -> list[Attempt]:
        """Return the stored attempts of this run, oldest first; `job` is the id of a job, and none
        come after a `cursor` that is no attempt's id."""

    async def peers(self) -> Sight | None:
        """Return the controllers that share this database; None: this one shares it with none.

        Raises StoreUnavailable.
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


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A controller as the others of its database see it. `keys`: the fingerprint of its key files,
    and that of its bucket of logs if it has one; None: it has no keys yet. Times are the database's
    Unix seconds."""

    id: str
    url: str
    version: str
    keys: str | None
    started_at: float
    seen_at: float
    leads: bool
    has_lock: bool = True
    """Of one that leads: the end of its session tells that it is dead."""
    free: int | None = None
    """Bytes of its disk; None: it has not told."""

    @property
    def key_files(self) -> str | None:
        return None if self.keys is None else self.keys.partition(BEFORE_BUCKET)[0]

    @property
    def buckets(self) -> str | None:
        """The fingerprint of its buckets, empty if it has none; None: it is not known."""
        return None if self.keys is None else self.keys.partition(BEFORE_BUCKET)[2]


BEFORE_BUCKET = "."
"""What stands in `Peer.keys` between the two fingerprints."""
SHOWN_SECONDS = 10.0
"""A controller that was not seen for so long counts as gone."""
FULL_BYTES = 64 << 20
"""A disk with fewer free bytes counts as full. A leader puts logs and uploads on its disk before
they are in a bucket, and goes on with everything else if it is full."""
ROOM_BYTES = 256 << 20
"""A disk with so many free bytes has room. It is more than FULL_BYTES: else the lead would go to
and fro between two disks that are nearly full."""
_FRESH_SECONDS = 3.0
"""Controllers show themselves each second. A dead one must not be waited for longer."""


def is_full(free: int | None) -> bool:
    """Return whether a disk with so many free bytes is full; None: it is not known."""
    return free is not None and free < FULL_BYTES


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """The controllers of a database at one moment. `may_lead`: the lease is free, has run out, or
    its holder's session has ended."""

    now: float
    peers: tuple[Peer, ...]
    may_lead: bool

    @property
    def leader(self) -> Peer | None:
        return next((peer for peer in self.peers if peer.leads), None)

    def is_alive(self, peer: Peer) -> bool:
        return peer.seen_at > self.now - SHOWN_SECONDS

    def gives_lead_away(self, own_id: str, free: int | None, before: Sight) -> bool:
        """Return whether a leader with so many free bytes should let another controller lead.
        `before`: an earlier sight. Who has not shown himself since may be the leader before this
        one, and dead."""
        seen = {(peer.id, peer.seen_at) for peer in before.peers}
        fresh = tuple(peer for peer in self.peers if (peer.id, peer.seen_at) not in seen)
        return is_full(free) and self._has_room(own_id, fresh)

    def leaves_lead(self, own_id: str, free: int | None) -> bool:
        """Return whether a follower with so many free bytes should let another follower lead."""
        has_room = free is None or free >= ROOM_BYTES
        return not has_room and self._has_room(own_id, self.peers)

    def _has_room(self, own_id: str, among: tuple[Peer, ...]) -> bool:
        return any(peer.id != own_id and self._can_lead(peer) for peer in among)

    def _can_lead(self, peer: Peer) -> bool:
        # The row of a leader stays when it is dead.
        is_waiting = not peer.leads and peer.seen_at > self.now - _FRESH_SECONDS
        return is_waiting and peer.free is not None and peer.free >= ROOM_BYTES


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
    machines: tuple[Machine, ...] = ()
    """Those that may cost money, and those that ended within `MACHINES_SECONDS`."""
    orphans: tuple[KnownOrphan, ...] = ()
    """Those that are there, and those that are gone for less than `MACHINES_SECONDS`."""
    catalogs: tuple[StoredCatalog, ...] = ()


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
    machines: dict[str, Machine] = {}
    orphans: Mapping[str, KnownOrphan] = {}
    service_keys: tuple[ServiceKey, ...] = ()
    removed_service_keys: tuple[str, ...] = ()
    secrets: tuple[StoredSecret, ...] = ()
    removed_secrets: tuple[str, ...] = ()
    gateways: tuple[Gateway, ...] = ()
    removed_gateways: tuple[str, ...] = ()
    catalogs: tuple[StoredCatalog, ...] = ()
    costs: tuple[DayCosts, ...] = ()
    costs_before: str | None = None
    """The sums of days before this one are removed."""


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event with its number. `seq` counts from 1 over all events, in the order of their
    commits."""

    seq: int
    event: Event


class StoredCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of types and prices from a provider's API. `name`: the provider's and its
    cloud's; `content`: JSON, which only the catalog reads."""

    name: str
    content: str


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
