"""One PostgreSQL as several controllers see it: a lease that runs out by the server's clock, the
advisory lock of the leader and that of sessions for writes, sessions that end or hang, transactions
that lock the lease's row.

It stands for what `store/postgresql.py`, `store/lease.py` and `store/peers.py` ask of the server.
What a controller makes of the answers is the real code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from random import Random
from typing import Any, TypeVar

import msgspec

from controller.clock import Clock
from controller.lifecycle.model import RunState
from controller.store.base import Boot, Changes, Peer, Sight, Snapshot
from controller.store.errors import LeaseHeld, LeaseLost, StoreUnavailable
from controller.store.peers import LEASE_SECONDS, Peers
from controller.store.schema import SCHEMA_VERSION
from controller.store.sql import RECONNECT_PAUSES
from tests.doubles.memory_store import MemoryDatabase, MemoryStore
from tests.simulation.checks import Checks
from tests.simulation.virtual import EPOCH

T = TypeVar("T")

NOTICED_SECONDS = 3.0
"""After the last word of a machine, its server or its controller counts it as gone."""
IDLE_SECONDS = 4.0
"""The server ends a transaction whose controller says nothing for so long, as a paused one does."""
LOCK_SECONDS = 3.0
_LOOK_SECONDS = 0.1
KEYS = "keys"


def _time() -> float:
    return asyncio.get_running_loop().time()


class Way:
    """One controller's way to the database, for one life of it."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.failing = 0.0
        """Share of the answers to commits that are lost."""
        self.slowest = 0.02
        self._cut_at: float | None = None
        self._died = False

    def cut(self) -> None:
        if self._cut_at is None:
            self._cut_at = _time()

    def mend(self) -> None:
        self._cut_at = None

    def clear_up(self) -> None:
        self.failing, self.slowest = 0.0, 0.02

    @property
    def is_cut(self) -> bool:
        return self._cut_at is not None

    def die(self) -> None:
        """The process ends, and its kernel tells the server, unless the way is cut."""
        self._died = True

    def is_gone(self) -> bool:
        """Return whether the server has noticed that nobody is there any more."""
        if self._cut_at is not None:
            return _time() - self._cut_at >= NOTICED_SECONDS
        return self._died

    async def go(self) -> None:
        """Carry one message. Raises StoreUnavailable."""
        await asyncio.sleep(self.chance.uniform(0.0, self.slowest))
        until = _time() + NOTICED_SECONDS
        while self.is_cut:
            if _time() >= until:
                raise StoreUnavailable("the database can't be reached: no answer")
            await asyncio.sleep(_LOOK_SECONDS)

    def require(self) -> None:
        if self.is_cut:
            raise StoreUnavailable("the database can't be reached: no answer")


class Session:
    """A session of the server. `left`: its client has closed it."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self.left = False
        self._ended = False

    def is_over(self) -> bool:
        # What the server has ended stays ended when the way is open again.
        self._ended = self._ended or self._way.is_gone() or (self.left and not self._way.is_cut)
        return self._ended


class Row:
    """The lease's row, locked by a transaction until it ends."""

    def __init__(self, way: Way) -> None:
        self._session = Session(way)
        self._heard_at = _time()

    def is_over(self) -> bool:
        return self._session.is_over() or _time() - self._heard_at >= IDLE_SECONDS


class SharedDatabase(MemoryDatabase):
    def __init__(self) -> None:
        super().__init__()
        self.held = True
        self.expires_at = 0.0
        self.shown: dict[str, Peer] = {}
        self.leader_id: str | None = None
        self._lock: Session | None = None
        self._writing: list[Session] = []
        self._row: Row | None = None

    def now(self) -> float:
        return EPOCH + _time()

    def look(self) -> None:
        """Let the server notice what has gone: as it does all the time."""
        if self._lock is not None and self._lock.is_over():
            self._lock = None
        self._writing = [one for one in self._writing if not one.is_over()]
        if self._row is not None and self._row.is_over():
            self._row = None

    def try_lock(self, session: Session) -> bool:
        self.look()
        if self._lock is None:
            self._lock = session
        return self._lock is session

    def free_lock(self, session: Session) -> None:
        if self._lock is session:
            self._lock = None

    def is_written(self) -> bool:
        self.look()
        return bool(self._writing)

    def connect_for_writes(self, way: Way) -> Session:
        session = Session(way)
        self._writing.append(session)
        return session

    def seen(self) -> Sight:
        self.look()
        peers = tuple(
            msgspec.structs.replace(one, leads=one.id == self.leader_id)
            for one in self.shown.values()
        )
        return Sight(now=self.now(), peers=peers, may_lead=self.expires_at <= self.now())

    async def lock_row(self, way: Way) -> Row:
        """Raises StoreUnavailable when another transaction keeps the row."""
        until = _time() + LOCK_SECONDS
        while True:
            self.look()
            if self._row is None:
                self._row = Row(way)
                return self._row
            if _time() >= until:
                raise StoreUnavailable("canceling statement due to lock timeout")
            await asyncio.sleep(_LOOK_SECONDS)

    def has_row(self, row: Row) -> bool:
        self.look()
        return self._row is row

    def unlock(self, row: Row) -> None:
        if self._row is row:
            self._row = None

    def show(self, peers: SimulatedPeers, *, leads: bool) -> None:
        """Write the row that shows this controller."""
        known = self.shown.get(peers.id)
        now = self.now()
        self.shown[peers.id] = Peer(
            id=peers.id,
            url=peers.url,
            version="1",
            keys=peers.keys,
            started_at=now if known is None else known.started_at,
            seen_at=now,
            leads=leads,
            has_lock=leads and peers.has_lock,
            free=peers.free,
        )
        if leads:
            self.leader_id = peers.id
        elif self.leader_id == peers.id:
            self.leader_id = None


class SimulatedPeers(Peers):
    """The real decisions of `Peers`, over sessions of the simulated server."""

    def __init__(self, database: SharedDatabase, way: Way, url: str, new_id: str) -> None:
        super().__init__(url=url, version="1", keys=KEYS)
        self.id = new_id
        self._database = database
        self._way = way
        self._own: Session | None = None
        self._last_shown = float("-inf")

    def look(self) -> Sight | None:
        self._reach()
        if self._database.token == 0:
            return None
        if _time() - self._last_shown >= 1.0:
            self._database.show(self, leads=False)
            self._last_shown = _time()
        return self._claimed(_NO_CONNECTION, self._database.seen())

    def look_on(self) -> Sight | None:
        self._reach()
        return self._database.seen() if self._database.token else None

    def installation(self) -> str | None:
        self._reach()
        return self._database.installation_id if self._database.token else None

    def keep_lock(self) -> None:
        try:
            self._reach()
        except StoreUnavailable:
            return
        self._try_lock(_NO_CONNECTION)

    def leave(self) -> None:
        own, self._own = self._own, None
        self.has_lock = False
        if own is not None:
            own.left = True

    def _reach(self) -> None:
        if self._way.is_cut or (self._own is not None and self._own.is_over()):
            self.leave()
            self._way.require()
            raise StoreUnavailable("server closed the connection unexpectedly")
        if self._own is None:
            self._own = Session(self._way)

    def _try_lock(self, session: Any) -> None:
        if not self.has_lock and self._own is not None:
            self.has_lock = self._database.try_lock(self._own)

    def _free_lock(self, session: Any) -> None:
        if self.has_lock and self._own is not None:
            self._database.free_lock(self._own)
            self.has_lock = False

    def _is_written(self, session: Any) -> bool:
        return self._database.is_written()


_NO_CONNECTION: Any = None


class SharedStore(MemoryStore):
    """A controller's store in the shared database. Each transaction locks the lease's row and
    checks its token; the answer to a commit may be lost."""

    def __init__(
        self,
        database: SharedDatabase,
        peers: SimulatedPeers,
        way: Way,
        checks: Checks,
        clock: Clock,
        committed: Callable[[int], None],
    ) -> None:
        super().__init__(database, clock.now)
        self._shared = database
        self._peers = peers
        self._way = way
        self._checks = checks
        self._committed = committed
        self._writing: Session | None = None
        self.is_fenced = True
        """False: a breach, which the checks must find."""

    @property
    def token(self) -> int | None:
        return self._token

    async def open(self) -> Boot:
        self._peers.keep_lock()

        def begin() -> Boot:
            shared = self._shared
            shared.token += 1
            self._token = shared.token
            shared.expires_at = shared.now() + LEASE_SECONDS
            shared.show(self._peers, leads=True)
            return Boot(
                epoch=shared.epoch,
                token=shared.token,
                installation_id=shared.installation_id,
                schema_version=SCHEMA_VERSION,
            )

        try:
            return await self._transaction(self._require_free, begin, asks_again=False)
        except BaseException:
            self._token = None
            self._disconnect()
            raise

    def _require_free(self) -> None:
        shared = self._shared
        leader = shared.seen().leader
        has_shown = leader is not None and leader.has_lock
        if shared.expires_at > shared.now() and not (self._peers.has_lock and has_shown):
            raise LeaseHeld("another controller works on this database")

    async def load(self) -> Snapshot:
        await self._way.go()
        # A long history.
        await asyncio.sleep(self._way.chance.choice((0.0, 0.1, 1.0, 8.0)))
        await self._way.go()
        return await super().load()

    async def find_submissions(
        self, keys: Collection[tuple[str, str]]
    ) -> dict[tuple[str, str], RunState]:
        await self._way.go()
        found = await super().find_submissions(keys)
        await self._way.go()
        return found

    async def commit(self, changes: Changes) -> None:
        def apply() -> None:
            # Never awaits: MemoryStore's methods are asynchronous in their signature alone.
            _done(MemoryStore.commit(self, changes))
            assert self._token is not None
            self._committed(self._token)
            self._checks.committed(changes)

        await self._transaction(self._verify, apply)

    async def renew_lease(self) -> None:
        def renew() -> None:
            self._shared.expires_at = self._shared.now() + LEASE_SECONDS
            self._shared.show(self._peers, leads=True)

        await self._transaction(self._verify, renew)
        self._peers.keep_lock()

    async def close(self) -> None:
        def give_back() -> None:
            self._shared.expires_at = self._shared.now()

        try:
            if self._token is not None:
                await self._transaction(self._verify, give_back, asks_again=False)
        except (StoreUnavailable, LeaseLost):
            pass
        finally:
            self._token = None
            self._disconnect()
            self._peers.leave()

    def _connect(self) -> None:
        if self._writing is None or self._writing.is_over():
            self._writing = self._shared.connect_for_writes(self._way)

    def _disconnect(self) -> None:
        if self._writing is not None:
            self._writing.left = True
            self._writing = None

    def _verify(self) -> None:
        if self.is_fenced:
            self._verified()
        elif self._token is not None:
            self._token = self._shared.token

    async def _transaction(
        self, check: Callable[[], None], change: Callable[[], T], *, asks_again: bool = True
    ) -> T:
        way, shared = self._way, self._shared
        await way.go()
        self._connect()
        row = await shared.lock_row(way)
        try:
            check()
            await way.go()
            if not shared.has_row(row):
                raise StoreUnavailable("terminating connection due to idle-in-transaction timeout")
            # From here on it is done, whoever hears of it.
            result = change()
        finally:
            shared.unlock(row)
        is_heard = way.chance.random() >= way.failing
        try:
            await way.go()
        except StoreUnavailable:
            is_heard = False
        if not is_heard:
            await self._ask_again(asks_again)
        return result

    async def _ask_again(self, asks_again: bool) -> None:
        """Ask what became of the commit, as `SqlStore` does."""
        if not asks_again:
            raise StoreUnavailable("the connection broke in the commit")
        for pause in (0.0, *RECONNECT_PAUSES):
            await asyncio.sleep(pause)
            if not self._way.is_cut:
                return
        raise LeaseLost(UNKNOWN)


UNKNOWN = "the database does not say whether the last change was stored"


def _done(work: Coroutine[Any, Any, None]) -> None:
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("a method of MemoryStore waited")
