"""The promises of every store about a run that has had many attempts: the recent ones come with its
state, the others in pages, and the oldest are forgotten. Used as `store_contract` is.
"""

from __future__ import annotations

import time

import msgspec

from controller.lifecycle.events import NO_RUN, Event, EventKind
from controller.lifecycle.machines.cost import CostOfDay, DayCosts
from controller.lifecycle.machines.orphans import KnownOrphan, OrphanStatus
from controller.lifecycle.machines.reconcile import Traits
from controller.lifecycle.model import Incarnation
from controller.lifecycle.runs.compaction import KEPT_ATTEMPTS, recent
from controller.store.base import Changes, Store
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from fairlead.queries import AttemptQuery, EventQuery, RunQuery
from tests.support.store_contract import Opened
from tests.unit.store.samples import (
    a_run,
    an_attempt,
    an_event,
    change,
    submission,
    with_history,
    with_status,
)


class HistoryContract(Opened):
    async def test_a_run_comes_back_with_what_is_recent_of_it(self, store: Store) -> None:
        whole = with_history(a_run(), 50)
        await store.commit(submission(whole))
        found = await store.find_run("run1")
        (loaded,) = (await store.load()).runs

        assert found is not None
        for state in (found, loaded, *await store.list_runs(RunQuery(all=True))):
            (job,) = state.jobs
            assert job.attempts == whole.jobs[0].attempts[-KEPT_ATTEMPTS:]
            assert [place.id for place in state.allocations] == [
                f"run1-place-{number}" for number in range(51 - KEPT_ATTEMPTS, 51)
            ]
        assert loaded == recent(whole)

    async def test_all_of_a_present_occurrence_is_counted(self, store: Store) -> None:
        state = a_run()
        ended = [
            an_attempt("run1", number, status=AttemptStatus.FAILED, finished_at=150.0)
            for number in range(50)
        ]
        attempts = tuple(msgspec.structs.replace(one, cleanup_unknown=False) for one in ended)
        jobs = (msgspec.structs.replace(state.jobs[0], attempts=attempts),)
        whole = msgspec.structs.replace(state, jobs=jobs, allocations=())
        await store.commit(submission(whole))

        (loaded,) = (await store.load()).runs
        assert loaded == recent(whole)
        assert loaded.jobs[0].past.failures == 50 - len(loaded.jobs[0].attempts) > 20

    async def test_attempts_that_a_state_no_longer_has_stay_stored(self, store: Store) -> None:
        whole = with_history(a_run(), 50)
        await store.commit(submission(whole))
        kept = recent(whole)
        await store.commit(change(kept, with_status(kept, RunStatus.TERMINATING)))

        history = await store.attempts("run1", AttemptQuery())
        assert history == list(whole.jobs[0].attempts)
        (loaded,) = (await store.load()).runs
        assert loaded == with_status(kept, RunStatus.TERMINATING)

    async def test_history_is_told_in_pages_by_occurrence_job_id_and_number(
        self, store: Store
    ) -> None:
        whole = with_history(a_run(), 7)
        await store.commit(submission(whole, a_run("run2")))
        attempts = list(whole.jobs[0].attempts)

        first = await store.attempts("run1", AttemptQuery(limit=4))
        rest = await store.attempts("run1", AttemptQuery(limit=4, cursor=first[-1].id))
        assert first + rest == attempts
        assert await store.attempts("run1", AttemptQuery(cursor="nobody")) == []
        assert await store.attempts("run1", AttemptQuery(occurrence=3)) == [attempts[2]]
        assert await store.attempts("run1", AttemptQuery(job="run1-job", key="5")) == [attempts[5]]
        assert await store.attempts("run1", AttemptQuery(key="run1-attempt-6")) == [attempts[6]]
        assert await store.attempts("run1", AttemptQuery(key="9" * 30)) == []
        assert await store.attempts("run1", AttemptQuery(job="run2-job")) == []

    async def test_history_is_told_by_incarnation_by_its_number_or_id(self, store: Store) -> None:
        whole = with_history(a_run(), 12)
        attempts = [
            msgspec.structs.replace(one, incarnation=incarnation)
            for one, incarnation in zip(
                whole.jobs[0].attempts,
                [None, *(Incarnation(number=n // 2, id=f"{n // 2:016x}") for n in range(2, 13))],
                strict=True,
            )
        ]
        job = msgspec.structs.replace(whole.jobs[0], attempts=tuple(attempts))
        await store.commit(submission(msgspec.structs.replace(whole, jobs=(job,))))

        assert await store.attempts("run1", AttemptQuery(incarnation="2")) == attempts[3:5]
        assert await store.attempts("run1", AttemptQuery(incarnation=f"{2:016x}")) == attempts[3:5]
        assert await store.attempts("run1", AttemptQuery(incarnation="2", limit=1)) == attempts[3:4]
        assert (
            await store.attempts("run1", AttemptQuery(incarnation="2", cursor=attempts[3].id))
            == attempts[4:5]
        )
        assert (
            await store.attempts("run1", AttemptQuery(incarnation="2", occurrence=5))
            == attempts[4:5]
        )
        assert await store.attempts("run1", AttemptQuery(incarnation="7" * 30)) == []
        assert await store.attempts("run1", AttemptQuery(incarnation="'")) == []

    async def test_the_attempts_and_events_of_one_node_are_told(self, store: Store) -> None:
        first, second = a_run("first", name="one"), a_run("second", name="two", user="ben")
        elsewhere = [
            msgspec.structs.replace(one, node_id="other", submitted_at=300.0 + one.number)
            for one in second.jobs[0].attempts[1:]
        ]
        attempts = (*second.jobs[0].attempts[:1], *elsewhere)
        job = msgspec.structs.replace(second.jobs[0], attempts=attempts)
        events = [
            Event(run_id=run_id, attempt_id=attempt, kind=EventKind.CONNECTION, cause="x", at=1.0)
            for run_id, attempt in (
                ("first", "first-attempt-0"),
                ("second", "second-attempt-0"),
                ("second", "second-attempt-1"),
                ("first", None),
            )
        ]
        await store.commit(submission(first, msgspec.structs.replace(second, jobs=(job,))))
        await store.commit(Changes(events=tuple(events)))

        async def ids(node: str, since: float = 0.0, limit: int = 9) -> list[tuple[str, str]]:
            found = await store.attempts_on(node.split(), since=since, limit=limit)
            return [(run_id, one.id) for run_id, one in found]

        assert await ids("node1") == [
            ("second", "second-attempt-0"),
            ("first", "first-attempt-1"),
            ("first", "first-attempt-0"),
        ]
        assert await ids("node1", since=150.5) == [("first", "first-attempt-1")]
        assert await ids("other") == [("second", "second-attempt-1")]
        assert len(await ids("node1 other nowhere")) == 4
        assert await ids("") == []
        assert len(await ids("node1", limit=1)) == 1
        there = await store.events(EventQuery(node_id="node1"))
        assert [one.event.attempt_id for one in there] == ["first-attempt-0", "second-attempt-0"]
        assert len(await store.events(EventQuery(node_id="node1", user="ben"))) == 1

    async def test_sums_of_days_are_kept_changed_and_removed(self, store: Store) -> None:
        def day(name: str, cost: float) -> DayCosts:
            one = CostOfDay(
                fleet="burst", user="ada", run="r1", run_name=None, hours=1.0, cost=cost
            )
            return DayCosts(day=name, costs=(one,))

        first, second = day("2025-12-31", 1.0), day("2026-01-01", 2.0)
        await store.commit(Changes(costs=(second, first)))
        assert await store.costs_of_days("2025-12-31") == [first, second]
        assert await store.costs_of_days("2026-01-01") == [second]
        third = day("2026-01-02", 4.0)
        await store.commit(
            Changes(costs=(day("2026-01-01", 3.0), third), costs_before="2026-01-01")
        )
        assert await store.costs_of_days("") == [day("2026-01-01", 3.0), third]
        assert await store.costs_of_days("2026-01-03") == []

    async def test_use_of_places_that_left_the_state_still_counts(self, store: Store) -> None:
        now = time.time()
        whole = with_history(a_run(), 50, day=60.0)
        places = tuple(
            msgspec.structs.replace(
                place,
                created_at=now - 90.0,
                released_at=None if place.released_at is None else now - 30.0,
            )
            for place in whole.allocations
        )
        await store.commit(submission(msgspec.structs.replace(whole, allocations=places)))

        snapshot = await store.load()
        at_hand = len(snapshot.runs[0].allocations)
        assert at_hand == KEPT_ATTEMPTS
        assert len(snapshot.past_use) == 50 - at_hand
        assert {(use.user, use.end) for use in snapshot.past_use} == {("ada", now - 30.0)}

    async def test_earlier_occurrences_of_live_runs_are_forgotten(self, store: Store) -> None:
        day = 86400.0
        whole = with_history(a_run(), 50)
        events = [an_event("run1", attempt_id=one.id) for one in whole.jobs[0].attempts]
        stays = an_event("run2")
        await store.commit(
            Changes(
                runs=submission(whole, a_run("run2")).runs,
                events=(an_event("run1", attempt_id=None), *events, stays),
            )
        )
        cut = 10 * day

        assert await store.forget_attempts(finished_before=cut, limit=6) == 6
        assert await store.forget_attempts(finished_before=cut, limit=6) == 4
        assert await store.forget_attempts(finished_before=cut, limit=6) == 0
        left = await store.attempts("run1", AttemptQuery())
        assert left == list(whole.jobs[0].attempts[10:])
        told = [stored.event for stored in await store.events(EventQuery())]
        assert told == [*events[10:], stays]
        (loaded, other) = (await store.load()).runs
        assert (loaded.run.id, other) == ("run1", a_run("run2"))
        assert loaded == recent(whole)
        await store.forget_attempts(finished_before=1000 * day, limit=1000)
        assert await store.attempts("run1", AttemptQuery()) == list(
            whole.jobs[0].attempts[-KEPT_ATTEMPTS:]
        )

    async def test_an_old_attempt_that_still_occupies_its_place_is_not_forgotten(
        self, store: Store
    ) -> None:
        whole = with_history(a_run(), 50)
        orphan = msgspec.structs.replace(
            whole.allocations[3], state=AllocationState.ORPHANED, released_at=None
        )
        places = (*whole.allocations[:3], orphan, *whole.allocations[4:])
        whole = msgspec.structs.replace(whole, allocations=places)
        await store.commit(submission(whole))

        assert await store.forget_attempts(finished_before=1e12, limit=1000) == 29
        left = await store.attempts("run1", AttemptQuery())
        assert left[0].allocation_id == orphan.id
        (loaded,) = (await store.load()).runs
        kept = recent(whole)
        assert loaded.jobs == kept.jobs
        assert {place.id for place in loaded.allocations} == {p.id for p in kept.allocations}

    async def test_events_of_no_run_are_forgotten_as_runs_are(self, store: Store) -> None:
        told = [
            Event(run_id=NO_RUN, at=at, kind=EventKind.ORPHAN, to_status="found", cause="a test")
            for at in (100.0, 200.0)
        ]
        of_a_run = an_event()
        await store.commit(Changes(events=(told[0], of_a_run, told[1])))
        nobodys = await store.events(EventQuery(user="ada"))
        assert [one.event for one in nobodys] == []
        await store.forget(finished_before=150.0, limit=10)
        assert [one.event for one in await store.events(EventQuery())] == [of_a_run, told[1]]

    async def test_orphans_are_read_at_a_start_and_outlast_their_events(self, store: Store) -> None:
        def orphan(key: str, gone_at: float | None = None) -> KnownOrphan:
            return KnownOrphan(
                id=key,
                provider="lab",
                instance_id="x" * 500,
                status=OrphanStatus.ENDING if gone_at is None else OrphanStatus.GONE,
                traits=Traits(instance_type="small", region="north", spot=True),
                price=0.3,
                fleet="burst",
                created_at=1.0,
                found_at=2.0,
                costs_since=3.0,
                gone_at=gone_at,
            )

        async def loaded() -> list[KnownOrphan]:
            return sorted((await store.load()).orphans, key=lambda one: one.id)

        now = time.time()
        there, left, long_gone = (
            orphan("a"),
            orphan("b", now - 60.0),
            orphan("c", now - 40 * 86400.0),
        )
        every = {one.id: one for one in (there, left, long_gone)}
        event = Event(run_id=NO_RUN, at=100.0, kind=EventKind.ORPHAN, cause="a test")
        await store.commit(Changes(orphans=every, events=(event,)))
        assert await loaded() == [there, left]
        await store.forget(finished_before=now, limit=10)
        assert await loaded() == [there, left]
        gone = msgspec.structs.replace(there, status=OrphanStatus.GONE, gone_at=now)
        await store.commit(Changes(orphans={"a": gone}))
        assert await loaded() == [gone, left]
