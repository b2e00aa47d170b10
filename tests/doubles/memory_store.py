"""MemoryStore keeps its state in memory, for simulations and tests, with the promises of a real
store.

`MemoryDatabase` is what survives a controller: open another `MemoryStore` over it to restart.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

from msgspec.structs import replace

from controller.lifecycle.attempts.allocations import use_of
from controller.lifecycle.events import NO_RUN
from controller.lifecycle.machines.cost import DayCosts
from controller.lifecycle.machines.model import Machine
from controller.lifecycle.machines.orphans import KnownOrphan
from controller.lifecycle.model import (
    Allocation,
    Attempt,
    Fleet,
    Job,
    Node,
    Past,
    PastRunning,
    RunState,
    Use,
)
from controller.lifecycle.runs.compaction import KEPT_ATTEMPTS, recent
from controller.store.accounts import ServiceKey, StoredSecret, StoredToken, User
from controller.store.base import (
    MACHINES_SECONDS,
    USE_SECONDS,
    Boot,
    Changes,
    Commits,
    Gateway,
    Sight,
    Snapshot,
    StoredCatalog,
    StoredEvent,
)
from controller.store.errors import LeaseHeld, LeaseTaken, StoreUnavailable
from controller.store.rows import submission_mark
from controller.store.schema import SCHEMA_VERSION
from fairlead.model.statuses import FINAL_RUN_STATUSES, AllocationState
from fairlead.queries import AttemptQuery, EventQuery, RunQuery


def is_of_incarnation(attempt: Attempt, key: str) -> bool:
    incarnation = attempt.incarnation
    return incarnation is not None and key in (incarnation.id, str(incarnation.number))


def whole(old: RunState | None, new: RunState) -> RunState:
    """The committed state with all that it no longer has."""
    if old is None:
        return new
    before = {job.id: job for job in old.all_jobs}
    there = {place.id for place in new.allocations}
    earlier = tuple(place for place in old.allocations if place.id not in there)
    jobs = tuple(_whole_job(before.get(job.id), job) for job in new.all_jobs)
    same = not new.ended.jobs and all(job is one for job, one in zip(jobs, new.jobs, strict=True))
    if not earlier and same:
        return new
    return RunState(
        sweep=new.sweep,
        run=replace(new.run, past_running=PastRunning()),
        jobs=jobs,
        allocations=(*earlier, *new.allocations),
    )


def _whole_job(old: Job | None, new: Job) -> Job:
    there = {attempt.id for attempt in new.attempts}
    earlier = [a for a in (old.attempts if old else ()) if a.id not in there]
    if not earlier:
        return new
    attempts = sorted((*earlier, *new.attempts), key=lambda attempt: attempt.number)
    return replace(new, attempts=tuple(attempts), past=Past())


def forgettable(state: RunState, finished_before: float) -> list[Attempt]:
    occupied = {p.id for p in state.allocations if p.state is not AllocationState.RELEASED}
    return [
        attempt
        for job in state.jobs
        for attempt in job.attempts
        if attempt.occurrence < state.run.occurrence
        and attempt.finished_at is not None
        and attempt.finished_at < finished_before
        and attempt.number <= job.attempts[-1].number - KEPT_ATTEMPTS
        and attempt.allocation_id not in occupied
    ]


def without(state: RunState, old: Collection[Attempt], released_before: float) -> RunState:
    gone = {attempt.id for attempt in old}
    jobs = tuple(
        replace(job, attempts=tuple(a for a in job.attempts if a.id not in gone))
        for job in state.jobs
    )
    used = {attempt.allocation_id for job in jobs for attempt in job.attempts}
    places = tuple(
        place
        for place in state.allocations
        if place.id in used or place.released_at is None or place.released_at >= released_before
    )
    return replace(state, jobs=jobs, allocations=places)


T = TypeVar("T")


class MemoryDatabase:
    """`seize` stands for what `kill -9` does to a lock: the holder of the lease is gone."""

    def __init__(self, installation_id: str = "installation") -> None:
        self.installation_id = installation_id
        self.epoch = 1
        self.restored_at: float | None = None
        self.token = 0
        self.held = False
        self.runs: dict[str, RunState] = {}
        self.nodes: dict[str, Node] = {}
        self.fleets: dict[str, Fleet] = {}
        self.users: dict[str, User] = {}
        self.tokens: dict[str, StoredToken] = {}
        self.service_keys: dict[str, ServiceKey] = {}
        self.secrets: dict[str, StoredSecret] = {}
        self.gateways: dict[str, Gateway] = {}
        self.machines: dict[str, Machine] = {}
        self.orphans: dict[str, KnownOrphan] = {}
        self.catalogs: dict[str, StoredCatalog] = {}
        self.costs: dict[str, DayCosts] = {}
        self.events: list[StoredEvent] = []
        self.last_seq = 0
        self.sight: Sight | None = None

    def seize(self) -> None:
        self.held = False


class MemoryStore:
    def __init__(
        self, database: MemoryDatabase | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._database = database or MemoryDatabase()
        self._now = now
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
            restored_at=database.restored_at,
        )

    async def load(self) -> Snapshot:
        database = self._opened()
        runs = tuple(reversed(self._newest_first(lambda state: not _is_final(state))))
        return Snapshot(
            runs=runs,
            nodes=tuple(sorted(database.nodes.values(), key=lambda node: node.name)),
            users=tuple(database.users.values()),
            tokens=tuple(database.tokens.values()),
            service_keys=tuple(database.service_keys.values()),
            leftover_allocations=tuple(
                place
                for state in database.runs.values()
                if _is_final(state)
                for place in state.allocations
                if _is_occupied(place)
            ),
            fleets=tuple(sorted(database.fleets.values(), key=lambda fleet: fleet.name)),
            past_use=tuple(self._past_use(runs)),
            secrets=tuple(database.secrets.values()),
            gateways=tuple(database.gateways.values()),
            machines=tuple(self._machines()),
            orphans=tuple(
                one
                for one in database.orphans.values()
                if one.gone_at is None or one.gone_at > self._now() - MACHINES_SECONDS
            ),
            catalogs=tuple(database.catalogs.values()),
        )

    def _machines(self) -> list[Machine]:
        ended_after = self._now() - MACHINES_SECONDS
        found = [
            one
            for one in self._opened().machines.values()
            if one.terminated_at is None or one.terminated_at > ended_after
        ]
        return sorted(found, key=lambda one: (one.ordered_at, one.id))

    def _past_use(self, runs: Iterable[RunState]) -> Iterator[Use]:
        at_hand = {place.id for state in runs for place in state.allocations}
        since = self._now() - USE_SECONDS
        places = [
            (place, state.run.user)
            for state in self._opened().runs.values()
            for place in state.allocations
            if place.id not in at_hand and not place.victims
        ]
        for place, user in sorted(places, key=lambda entry: (entry[0].created_at, entry[0].id)):
            if place.state is not AllocationState.NOMINATED and (
                place.released_at is None or place.released_at > since
            ):
                yield use_of(place, user)

    async def commit(self, changes: Changes) -> None:
        database = self._verified()
        for run_id, (_, new) in changes.runs.items():
            database.runs[run_id] = whole(database.runs.get(run_id), new)
        _put(database.fleets, changes.fleets, changes.removed_fleets)
        _put(database.nodes, changes.nodes, changes.removed_nodes)
        database.machines.update(changes.machines)
        database.orphans.update(changes.orphans)
        database.catalogs.update({one.name: one for one in changes.catalogs})
        database.costs.update({one.day: one for one in changes.costs})
        database.costs = {
            day: one for day, one in database.costs.items() if day >= (changes.costs_before or "")
        }
        _put(database.users, {user.name: user for user in changes.users}, changes.removed_users)
        orphans = [
            token.id for token in database.tokens.values() if token.user in changes.removed_users
        ]
        _put(
            database.tokens,
            {token.id: token for token in changes.tokens},
            (*changes.removed_tokens, *orphans),
        )
        _put(
            database.service_keys,
            {key.id: key for key in changes.service_keys},
            (
                *changes.removed_service_keys,
                *(
                    key.id
                    for key in database.service_keys.values()
                    if key.user in changes.removed_users
                ),
            ),
        )
        left = [one.id for one in database.secrets.values() if one.user in changes.removed_users]
        _put(
            database.secrets,
            {secret.id: secret for secret in changes.secrets},
            (*changes.removed_secrets, *left),
        )
        named = {gateway.name: gateway for gateway in changes.gateways}
        _put(database.gateways, named, changes.removed_gateways)
        first = database.last_seq + 1
        database.last_seq += len(changes.events)
        database.events += [
            StoredEvent(seq=seq, event=event) for seq, event in enumerate(changes.events, first)
        ]
        Commits.note()

    async def forget(self, *, finished_before: float, limit: int) -> int:
        database = self._verified()
        old = [
            state.run.id
            for state in database.runs.values()
            if _is_final(state)
            and state.run.finished_at is not None
            and state.run.finished_at < finished_before
            and not any(map(_is_occupied, state.allocations))
        ][:limit]
        for run_id in old:
            del database.runs[run_id]
        database.events = [
            one
            for one in database.events
            if one.event.run_id not in old
            and (one.event.run_id != NO_RUN or one.event.at >= finished_before)
        ]
        long_gone = finished_before - MACHINES_SECONDS
        database.orphans = {
            key: one
            for key, one in database.orphans.items()
            if one.gone_at is None or one.gone_at >= long_gone
        }
        return len(old)

    async def forget_attempts(self, *, finished_before: float, limit: int) -> int:
        database = self._verified()
        removed: set[str] = set()
        for state in list(database.runs.values()):
            old = [] if _is_final(state) else forgettable(state, finished_before)
            old = old[: limit - len(removed)]
            if old:
                removed |= {attempt.id for attempt in old}
                database.runs[state.run.id] = without(state, old, finished_before)
                database.events = [
                    one
                    for one in database.events
                    if one.event.run_id != state.run.id
                    or (
                        one.event.attempt_id not in removed
                        and (one.event.attempt_id is not None or one.event.at >= finished_before)
                    )
                ]
        return len(removed)

    def plant_sight(self, sight: Sight) -> None:
        """The controllers that share the database are these."""
        self._database.sight = sight

    def lose_lease(self) -> None:
        """Another controller has taken over."""
        self._database.token += 1

    async def peers(self) -> Sight | None:
        return self._opened().sight

    async def attempts(self, run_id: str, query: AttemptQuery) -> list[Attempt]:
        state = self._opened().runs.get(run_id)
        everything = [a for job in (state.jobs if state else ()) for a in job.attempts]
        everything.sort(key=lambda attempt: (attempt.submitted_at, attempt.id))
        if query.cursor is not None:
            ids = [attempt.id for attempt in everything]
            known = query.cursor in ids
            everything = everything[ids.index(query.cursor) + 1 :] if known else []
        return [
            attempt
            for attempt in everything
            if query.job in (None, attempt.job_id)
            and query.occurrence in (None, attempt.occurrence)
            and (query.incarnation is None or is_of_incarnation(attempt, query.incarnation))
            and query.key in (None, attempt.id, str(attempt.number))
        ][: query.limit]

    async def renew_lease(self) -> None:
        self._verified()

    async def find_run(self, key: str, *, user: str | None = None) -> RunState | None:
        found = self._opened().runs.get(key)
        if found is not None and user in (None, found.run.user):
            return recent(found)
        named = self._newest_first(
            lambda state: state.run.name == key and user in (None, state.run.user)
        )
        return min(named, key=_is_final, default=None)

    async def find_submissions(
        self, keys: Collection[tuple[str, str]]
    ) -> dict[tuple[str, str], RunState]:
        oldest_first = reversed(self._newest_first(lambda state: True))
        made = {(state.run.user, state.run.client_key): state for state in oldest_first}
        return {key: made[key] for key in keys if key in made}

    async def submission_marks(self) -> array[int]:
        runs = (state.run for state in self._opened().runs.values())
        made = ((run.user, run.client_key) for run in runs)
        return array("q", (submission_mark(user, key) for user, key in made if key is not None))

    async def list_runs(self, query: RunQuery) -> list[RunState]:
        database = self._opened()
        name = None if query.name is None else query.name.replace("[", "[[]")
        runs = self._newest_first(
            lambda state: (
                (query.with_finished or not _is_final(state))
                and query.user in (None, state.run.user)
                and query.parent_id in (None, state.run.parent_id)
                and (not query.statuses or state.run.status in query.statuses)
                and query.band in (None, state.run.policy.band)
                and (name is None or fnmatchcase(state.run.name, name))
            )
        )
        if query.last_known is not None:
            last = database.runs.get(query.last_known)
            runs = [state for state in runs if last is not None and _age(state) < _age(last)]
        return runs[: query.limit]

    async def events(self, query: EventQuery) -> list[StoredEvent]:
        there = {one.id for _, one in self._attempts() if one.node_id == query.node_id}
        found = [
            stored
            for stored in self._opened().events
            if stored.seq > query.last_known
            and (query.before is None or stored.seq < query.before)
            and query.run in (None, stored.event.run_id)
            and (query.user is None or self._owner(stored.event.run_id) == query.user)
            and (query.node_id is None or stored.event.attempt_id in there)
        ]
        return found[: query.limit] if query.before is None else found[-query.limit :]

    def _attempts(self) -> Iterator[tuple[str, Attempt]]:
        for state in self._opened().runs.values():
            for job in state.jobs:
                for attempt in job.attempts:
                    yield state.run.id, attempt

    async def attempts_on(
        self, node_ids: Collection[str], *, since: float, limit: int = 1000
    ) -> list[tuple[str, Attempt]]:
        found = [
            (run_id, one)
            for run_id, one in self._attempts()
            if one.node_id in node_ids and (one.finished_at is None or one.finished_at >= since)
        ]
        found.sort(key=lambda pair: (pair[1].submitted_at, pair[1].id), reverse=True)
        return found[:limit]

    async def costs_of_days(self, first: str) -> list[DayCosts]:
        days = self._opened().costs
        return [days[day] for day in sorted(days) if day >= first]

    def _owner(self, run_id: str) -> str | None:
        state = self._opened().runs.get(run_id)
        return None if state is None else state.run.user

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
            raise LeaseTaken("another controller has taken over; this one leads no more")
        return database

    def _newest_first(self, wanted: Callable[[RunState], bool]) -> list[RunState]:
        runs = [recent(state) for state in self._opened().runs.values() if wanted(state)]
        return sorted(runs, key=_age, reverse=True)


def _put(kept: dict[str, T], changed: Mapping[str, T], removed: Iterable[str]) -> None:
    kept.update(changed)
    for key in removed:
        kept.pop(key, None)


def _age(state: RunState) -> tuple[float, str]:
    return (state.run.submitted_at, state.run.id)


def _is_final(state: RunState) -> bool:
    return state.run.status in FINAL_RUN_STATUSES


def _is_occupied(place: Allocation) -> bool:
    return place.state is not AllocationState.RELEASED
