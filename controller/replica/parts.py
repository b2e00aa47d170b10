"""The parts of the leader's services as a follower has them: over the database, or not at all."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import cast

from controller.gateways.manager import GatewayManager
from controller.gateways.session import GatewaySession
from controller.lifecycle.machines.cost import DayCosts
from controller.lifecycle.model import Attempt, RunState
from controller.links.base import NodeConnection
from controller.replica.alone import Absent, NeedsLeader, ask_leader
from controller.service.runs.progress import PullsInProgress
from controller.store.accounts import StoredSecret
from controller.store.base import Boot, Changes, Sight, Snapshot, StoredEvent
from controller.store.errors import StoreError
from controller.store.reading import Moment, StoreReader
from controller.traffic.statistics import GroupStatistics, Traffic
from controller.vault import KeyFile, Vault
from fairlead.queries import AttemptQuery, EventQuery, RunQuery
from fairlead.wire.shim import PullProgress


class FollowedStore:
    """The part of `Store` that reads. All else raises NeedsLeader, also what the database has not
    given."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader

    @asynccontextmanager
    async def _moment(self) -> AsyncIterator[Moment]:
        try:
            async with self._reader.moment() as moment:
                yield moment
        except StoreError as error:
            raise NeedsLeader from error

    async def find_run(self, key: str, *, user: str | None = None) -> RunState | None:
        async with self._moment() as moment:
            return await moment.find_run(key, user=user)

    async def list_runs(self, query: RunQuery) -> list[RunState]:
        async with self._moment() as moment:
            return await moment.list_runs(query)

    async def events(self, query: EventQuery) -> list[StoredEvent]:
        async with self._moment() as moment:
            return await moment.events(query)

    async def attempts(self, run_id: str, query: AttemptQuery) -> list[Attempt]:
        async with self._moment() as moment:
            return await moment.attempts(run_id, query)

    async def attempts_on(
        self, node_ids: Collection[str], *, since: float, limit: int = 1000
    ) -> list[tuple[str, Attempt]]:
        async with self._moment() as moment:
            return await moment.attempts_on(node_ids, since, limit)

    async def costs_of_days(self, first: str) -> list[DayCosts]:
        async with self._moment() as moment:
            return await moment.costs_of_days(first)

    async def peers(self) -> Sight | None:
        async with self._moment() as moment:
            return await moment.sight()

    async def open(self) -> Boot:
        raise NeedsLeader

    async def load(self) -> Snapshot:
        raise NeedsLeader

    async def commit(self, changes: Changes) -> None:
        raise NeedsLeader

    async def find_submissions(
        self, keys: Collection[tuple[str, str]]
    ) -> dict[tuple[str, str], RunState]:
        raise NeedsLeader

    async def submission_marks(self) -> array[int]:
        raise NeedsLeader

    async def forget(self, *, finished_before: float, limit: int) -> int:
        raise NeedsLeader

    async def forget_attempts(self, *, finished_before: float, limit: int) -> int:
        raise NeedsLeader

    async def renew_lease(self) -> None:
        raise NeedsLeader

    async def close(self) -> None:
        """Nothing is open here."""


class FollowedVault(Vault):
    """The stored secrets, without the key that opens them."""

    def __init__(self, stored: Iterable[StoredSecret]) -> None:
        super().__init__(cast(KeyFile, Absent()), stored)

    def begin_with(self, stored: Iterable[StoredSecret]) -> None:
        self._stored = {(secret.user, secret.name): secret for secret in stored}

    def value(self, user: str | None, name: str) -> str:
        """Return no value. The leader knows whether a job would get one. Raises SecretMissing if
        there is no such secret."""
        self.meant(user, name)
        ask_leader()
        return ""


class FollowedTraffic(Traffic):
    """The requests of services are counted at the leader."""

    def group(self, run_id: str, group: str) -> GroupStatistics:
        raise NeedsLeader

    def ejected_until(self, attempt_id: str) -> float | None:
        raise NeedsLeader


class FollowedGateways(GatewayManager):
    """The records of gateways; the leader is connected to them."""

    def session(self, name: str) -> GatewaySession | None:
        raise NeedsLeader


class FollowedProgress(PullsInProgress):
    """The bytes that come are counted at the leader."""

    def __getitem__(self, attempt_id: str) -> PullProgress:
        ask_leader()
        raise KeyError(attempt_id)

    def __contains__(self, attempt_id: object) -> bool:
        ask_leader()
        return False

    def __iter__(self) -> Iterator[str]:
        ask_leader()
        return iter(())


async def connect(_node_id: str) -> NodeConnection:
    """The leader alone is connected to nodes."""
    raise NeedsLeader
