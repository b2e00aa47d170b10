"""The data that survives a controller, for tests that run on all kinds of stores.

A test opens a store with `store()`, puts down what a controller of before has left, and looks at
what is committed, beside any store that is open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from controller.lifecycle.model import Node, RunState
from controller.store import queries, schema, writes
from controller.store.base import Store, StoredEvent
from controller.store.sql import Database, SqlStore
from fairlead.queries import EventQuery, RunQuery
from tests.doubles.memory_store import MemoryDatabase, MemoryStore
from tests.unit.store.samples import submission


class Kept(Protocol):
    @property
    def runs(self) -> Mapping[str, RunState]: ...

    @property
    def nodes(self) -> Mapping[str, Node]: ...

    @property
    def events(self) -> Sequence[StoredEvent]: ...

    def store(self) -> Store: ...

    def put(self, state: RunState) -> None: ...


class KeptInMemory(MemoryDatabase):
    def store(self) -> Store:
        return MemoryStore(self)

    def put(self, state: RunState) -> None:
        self.runs[state.run.id] = state


class KeptInSql:
    """`make` gives another way into the same database, which has no schema yet."""

    def __init__(self, make: Callable[[], Database]) -> None:
        self._make = make
        self._aside = make()
        self._aside.enter("a test")
        with self._aside.writer().begin() as connection:
            schema.upgrade(connection)
        self._aside.leave()
        self._reader = self._aside.reader()

    def store(self) -> Store:
        return SqlStore(self._make())

    def put(self, state: RunState) -> None:
        with self._aside.writer().begin() as connection:
            writes.write(connection, submission(state))

    @property
    def runs(self) -> Mapping[str, RunState]:
        with self._reader.begin() as connection:
            states = queries.list_runs(connection, RunQuery(all=True, limit=1000))
        return {state.run.id: state for state in states}

    @property
    def nodes(self) -> Mapping[str, Node]:
        with self._reader.begin() as connection:
            return {node.id: node for node in queries.snapshot(connection, used_since=0.0).nodes}

    @property
    def events(self) -> Sequence[StoredEvent]:
        with self._reader.begin() as connection:
            return queries.events(connection, EventQuery())

    def close(self) -> None:
        self._aside.leave()
