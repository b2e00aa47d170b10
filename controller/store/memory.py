"""The store as a value in memory: for simulations and tests, with the same promises.

`MemoryDatabase` is what survives a controller: open another `MemoryStore` over it to restart.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.lifecycle.model import Allocation, Node, RunState
from controller.lifecycle.statuses import FINAL_RUN_STATUSES, AllocationState
from controller.store.base import (
    Boot,
    Changes,
    LeaseHeld,
    LeaseLost,
    Snapshot,
    StoredEvent,
    StoreUnavailable,
)
from controller.store.tables import SCHEMA_VERSION
from controller.store.users import StoredToken, User


class MemoryDatabase:
    """`seize` stands for what `kill -9` does to a lock: the holder of the lease is gone."""

    def __init__(self, installation_id: str = "installation") -> None:
        self.installation_id = installation_id
        self.epoch = 1
        self.token = 0
        self.held = False
        self.runs: dict[str, RunState] = {}
        self.nodes: dict[str, Node] = {}
        self.users: dict[str, User] = {}
        self.tokens: dict[str, StoredToken] = {}
        self.events: list[StoredEvent] = []

    def seize(self) -> None:
        self.held = False


class MemoryStore:
    def __init__(self, database: MemoryDatabase | None = None) -> None:
        self._database = database or MemoryDatabase()
        self._token: int | None = None

    async def open(self) -> Boot:
        database = self._database
        if database.held:
            raise LeaseHeld("another controller works on this store: stop it first")
        database.held = True
        database.token += 1
        self._token = database.token
        return Boot(
            epoch=database.epoch,
            token=database.token,
            installation_id=database.installation_id,
            schema_version=SCHEMA_VERSION,
        )

    async def load(self) -> Snapshot:
        database = self._opened()
        return Snapshot(
            runs=tuple(reversed(self._newest_first(lambda state: not _is_final(state)))),
            nodes=tuple(sorted(database.nodes.values(), key=lambda node: node.name)),
            users=tuple(database.users.values()),
            tokens=tuple(database.tokens.values()),
            leftover_allocations=tuple(
                place
                for state in database.runs.values()
                if _is_final(state)
                for place in state.allocations
                if _is_occupied(place)
            ),
        )

    async def commit(self, changes: Changes) -> None:
        database = self._verified()
        for run_id, (_, new) in changes.runs.items():
            database.runs[run_id] = new
        database.nodes.update(changes.nodes)
        for node_id in changes.removed_nodes:
            database.nodes.pop(node_id, None)
        database.users.update({user.name: user for user in changes.users})
        database.tokens.update({token.id: token for token in changes.tokens})
        first = len(database.events) + 1
        database.events += [
            StoredEvent(seq=seq, event=event) for seq, event in enumerate(changes.events, first)
        ]

    async def renew_lease(self) -> None:
        self._verified()

    async def find_run(self, key: str) -> RunState | None:
        found = self._opened().runs.get(key)
        return found or self._newest(lambda state: state.run.name == key)

    async def find_submission(self, user: str, client_key: str) -> RunState | None:
        return self._newest(
            lambda state: state.run.user == user and state.run.client_key == client_key
        )

    async def list_runs(
        self,
        *,
        include_finished: bool = True,
        limit: int = 100,
        before: str | None = None,
        user: str | None = None,
    ) -> list[RunState]:
        database = self._opened()
        runs = self._newest_first(
            lambda state: (
                (include_finished or not _is_final(state))
                and (user is None or state.run.user == user)
            )
        )
        if before is not None:
            last = database.runs.get(before)
            runs = [state for state in runs if last is not None and _age(state) < _age(last)]
        return runs[:limit]

    async def events(
        self, *, run_id: str | None = None, after: int = 0, limit: int = 1000
    ) -> list[StoredEvent]:
        later = self._opened().events[after:]
        return [stored for stored in later if run_id is None or stored.event.run_id == run_id][
            :limit
        ]

    async def close(self) -> None:
        if self._token is not None and self._token == self._database.token:
            self._database.held = False
        self._token = None

    def _opened(self) -> MemoryDatabase:
        if self._token is None:
            raise StoreUnavailable("the store is not open")
        return self._database

    def _verified(self) -> MemoryDatabase:
        database = self._opened()
        if self._token != database.token:
            raise LeaseLost("another controller has taken over; this one stops")
        return database

    def _newest(self, wanted: Callable[[RunState], bool]) -> RunState | None:
        return next(iter(self._newest_first(wanted)), None)

    def _newest_first(self, wanted: Callable[[RunState], bool]) -> list[RunState]:
        runs = [state for state in self._opened().runs.values() if wanted(state)]
        return sorted(runs, key=_age, reverse=True)


def _age(state: RunState) -> tuple[float, str]:
    return (state.run.submitted_at, state.run.id)


def _is_final(state: RunState) -> bool:
    return state.run.status in FINAL_RUN_STATUSES


def _is_occupied(place: Allocation) -> bool:
    return place.state is not AllocationState.RELEASED
