"""What a follower keeps in memory is what the leader has, whatever was committed in between."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from controller.aio import MAX_AT_A_STRETCH
from controller.clock import Chance
from controller.lifecycle.inventory import MachinesPolicy
from controller.lifecycle.machines.orphans import OrphanStatus
from controller.lifecycle.model import Band, Fleet, NodeStatus, Run, RunState
from controller.lifecycle.reports import NodeGone, StopRequested, TaskRemoved
from controller.lifecycle.runs.compaction import KEPT_ATTEMPTS
from controller.pipelines.run_pipeline import RunPipeline
from controller.replica import reading
from controller.replica.copy import Chosen, Copy
from controller.replica.reading import Following
from controller.scheduling.index import CapacityIndex
from controller.scheduling.scheduler import JobSubmittedPipeline
from controller.service.machines.use import node_uses
from controller.store.base import Changes
from controller.store.errors import StoreUnavailable
from controller.store.reading import Moment, StoreReader
from controller.store.sql import SqlStore
from controller.store.sqlite import DATABASE_NAME
from controller.store.turns import notes
from controller.store.turns.changed_state import Beginning
from fairlead.documents.machines import OrphanCosts
from fairlead.model.reasons import Reason
from fairlead.model.spec import Role
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, AllocationState, AttemptStatus
from tests.doubles.clock import ManualClock
from tests.doubles.watched_databases import FollowedSqlite
from tests.support.waiting import LONG, eventually
from tests.unit.machines.parts import known_orphan
from tests.unit.pipelines.parts import Ids, steady_chance, submitted
from tests.unit.scheduling.cluster import gpu_node
from tests.unit.store.samples import a_run, an_attempt
from tests.unit.store.test_turns import ADA

NODES = ("n1", "n2", "n3")
BANDS = tuple(Band)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer to read than requests wait."""
    monkeypatch.setattr(reading, "WAIT_SECONDS", LONG)


class Leader:
    """A leader that takes turns over SQLite, and a follower of it."""

    def __init__(self, store: SqlStore, reader: StoreReader, own: StoreReader) -> None:
        self.store = store
        self.clock = ManualClock(1_000_000.0)
        self.ids = Ids()
        chance = Chance(new_id=self.ids, jitter=lambda: 0.0)
        self.pipeline = RunPipeline(store, self.clock, chance, JobSubmittedPipeline(self.ids))
        self.made = 0
        self.chosen = Chosen(providers=("lab",))
        """What the operator chose for the follower."""

        def made(beginning: Beginning) -> Copy:
            self.made += 1
            return Copy(beginning, reader, self.clock, steady_chance(), self.chosen)

        self.following = Following(own, made, self.clock)
        self._names = 0

    async def act(self, random: Random) -> None:
        """Do something that is committed."""
        live = list(self.pipeline.runs.values())
        match random.randrange(8):
            case 0 | 1 | 2:
                self._names += 1
                await self.pipeline.admit(waiting(f"run-{self._names}", self.ids, random))
            case 3 if live:
                run_id = random.choice(live).run.id
                stop = StopRequested(run_id=run_id, abort=random.random() < 0.5, by="ann")
                await self.pipeline.report(stop)
            case 4:
                await self._remove_tasks(random)
            case 5:
                node_id = random.choice(NODES)
                cordoned = random.random() < 0.5
                known = self.pipeline.nodes.get(node_id) or gpu_node(node_id)
                await self.pipeline.save_node(replace(known, cordoned=cordoned), node_id)
            case 6:
                await self._lose(random.choice(NODES))
            case _:
                rack = random.choice(("rack", None))
                fleet = Fleet(name="default", created_at=0.0, placement=rack)
                await self.pipeline.save_fleet(fleet, "default")
        self.clock.time += random.choice((0.5, 30.0, 4000.0))
        await self.pipeline.settled()

    async def _remove_tasks(self, random: Random) -> None:
        """The nodes have removed what was ended there."""
        for state in list(self.pipeline.known.values()):
            for job in state.jobs:
                for attempt in job.attempts:
                    is_over = attempt.status in FINAL_ATTEMPT_STATUSES
                    if attempt.node_id is not None and not is_over and random.random() < 0.7:
                        self.pipeline.post(TaskRemoved(run_id=state.run.id, attempt_id=attempt.id))
        await self.pipeline.settled()

    async def _lose(self, node_id: str) -> None:
        for state in self.pipeline.runs_on(node_id):
            self.pipeline.post(
                NodeGone(
                    run_id=state.run.id,
                    node_id=node_id,
                    reason=Reason.INSTANCE_UNREACHABLE,
                    message="lost",
                    cleanup_confirmed=node_id != "n1",
                )
            )
        await self.pipeline.settled()

    async def assert_is_followed(self) -> None:
        copy = await self.following.now()
        mine, its = self.pipeline, copy._pipeline
        assert its.runs == mine.runs
        assert list(its.runs) == list(mine.runs)
        assert its.nodes == mine.nodes
        assert its.fleets == mine.fleets
        assert its._admissions.names == mine._admissions.names
        assert uses(its) == uses(mine)
        now = self.clock.now()
        assert [unit.run.id for unit in its.scheduler.queue(now)] == [
            unit.run.id for unit in mine.scheduler.queue(now)
        ]
        # The sums are made in another order: the last digit may be rounded in another way.
        used, wanted = its.scheduler.used("ann", now), mine.scheduler.used("ann", now)
        assert [abs(a - b) <= 1 for a, b in zip(used, wanted, strict=True)] == [True, True]
        for run_id in mine.runs:
            assert its.scheduler.explain(run_id, now, lambda run: run.name) == (
                mine.scheduler.explain(run_id, now, lambda run: run.name)
            )


def uses(pipeline: RunPipeline) -> dict[str, object]:
    return dict(node_uses(pipeline.known.values(), lambda run: run.name))


def waiting(name: str, ids: Ids, random: Random) -> RunState:
    state = submitted(name, ids)
    gpu = replace(state.jobs[0].spec.resources.gpu, count=random.choice((0, 1, 8)))
    need = replace(state.jobs[0].spec.resources, gpu=gpu)
    job = replace(state.jobs[0], spec=replace(state.jobs[0].spec, resources=need))
    policy = replace(state.run.policy, band=random.choice(BANDS), priority=random.randrange(3))
    run: Run = replace(state.run, policy=policy)
    return replace(state, run=run, jobs=(job,))


@asynccontextmanager
async def a_leader(folder: Path) -> AsyncIterator[Leader]:
    database = FollowedSqlite(folder)
    store = SqlStore(database)
    await store.open()
    await store.commit(Changes(users=(replace(ADA, name="ann"),)))
    reader = StoreReader(database.reader)
    leader = Leader(store, reader, StoreReader(database.reader))
    loop = asyncio.create_task(leader.pipeline.run())
    try:
        for node_id in NODES:
            node = gpu_node(node_id)
            assert node.status is NodeStatus.CONNECTED
            await leader.pipeline.save_node(node, node_id)
        yield leader
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        await leader.following.close()
        await reader.close()
        await store.close()


async def test_a_follower_that_nobody_asks_reads_only_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much that is: it read all that is live each half a minute."""
    monkeypatch.setattr(reading, "NOTE_SECONDS", 0.01)
    monkeypatch.setattr(reading, "MANY_CHANGED", 10)
    monkeypatch.setattr(notes, "MAX_KEPT", 20)
    random = Random(1)
    async with a_leader(tmp_path) as leader:
        following = leader.following
        following.keep(wanted=True)
        await eventually(lambda: following.is_loaded)
        copy = await following.now()
        for number in range(60):
            await leader.pipeline.admit(waiting(f"run-{number}", leader.ids, random))
            # No turn is removed before it is noted, and what was noted is read soon.
            await eventually(lambda: following._noted_to.number == last_turn(tmp_path))
            await eventually(lambda: len(following._noted.runs) < 10)
        assert len(copy._pipeline.runs) >= 50
        # A question reads the rest.
        await leader.assert_is_followed()
        assert leader.made == 1
        # Nobody looks any more, and turns are missed.
        following.keep(wanted=False)
        following._is_wanted = True
        await following.now()
        for number in range(60, 160):
            await leader.pipeline.admit(waiting(f"run-{number}", leader.ids, random))
        await leader.assert_is_followed()
        assert leader.made == 3


async def test_what_is_taken_over_in_parts_is_told(tmp_path: Path) -> None:
    """Others go on in between, and see a part of what was committed at once."""
    random = Random(1)
    async with a_leader(tmp_path) as leader:
        copy = await leader.following.now()
        seen: set[int] = set()

        async def look() -> None:
            while True:
                if copy.shown_in_parts:
                    seen.add(len(copy._pipeline.runs))
                await asyncio.sleep(0)

        for count, times in ((MAX_AT_A_STRETCH, 0), (MAX_AT_A_STRETCH + 1, 1)):
            found = [waiting(f"run-{count}-{n}", leader.ids, random) for n in range(count)]
            assert await leader.pipeline.admit_all(found) == [None] * count
            looking = asyncio.create_task(look())
            assert await leader.following.now() is copy
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            assert copy.shown_in_parts == times
        assert 2 * MAX_AT_A_STRETCH in seen


def last_turn(folder: Path) -> int:
    with closing(sqlite3.connect(folder / DATABASE_NAME)) as connection:
        (number,) = connection.execute("SELECT max(number) FROM turns").fetchone()
        return int(number)


async def test_what_was_noted_is_read_after_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_leader(tmp_path) as leader:
        following = leader.following
        copy = await following.now()
        await leader.pipeline.admit(waiting("one", leader.ids, Random(1)))
        assert not await following._is_much_noted()

        async def away(*_: object) -> object:
            raise StoreUnavailable("it is away")

        with monkeypatch.context() as patch:
            patch.setattr(Moment, "changed_state", away)
            with pytest.raises(StoreUnavailable):
                await following.now()
        await leader.pipeline.admit(waiting("two", leader.ids, Random(1)))
        await leader.assert_is_followed()
        assert await following.now() is copy


@pytest.mark.parametrize("seed", range(4))
async def test_a_follower_has_what_the_leader_has(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    async with a_leader(tmp_path) as leader:
        await leader.assert_is_followed()
        for _ in range(20):
            for _ in range(random.randrange(1, 4)):
                await leader.act(random)
            await leader.assert_is_followed()
        assert leader.made == 1


async def test_use_stays_counted_when_its_allocation_leaves_the_state(tmp_path: Path) -> None:
    """A leader that trims a run keeps what it used; the follower sees only what is left of it."""
    async with a_leader(tmp_path) as leader:
        store, first = leader.store, a_run(user="ann")
        (job,) = first.jobs
        held = replace(first.allocations[0], state=AllocationState.HELD, released_at=None)
        job = replace(job, attempts=(replace(job.attempts[0], occurrence=1),))
        before = replace(first, jobs=(job,), allocations=(held,))
        await store.commit(Changes(runs={first.run.id: (None, before)}))
        copy = await leader.following.now()
        over = replace(held, state=AllocationState.RELEASED, released_at=held.created_at + 3600)
        # The attempts that had it are no longer among the recent ones.
        later = [
            replace(an_attempt(first.run.id, number, status=AttemptStatus.FAILED), occurrence=1)
            for number in range(10, 10 + 2 * KEPT_ATTEMPTS)
        ]
        after = replace(
            before,
            jobs=(replace(job, attempts=(*job.attempts, *later)),),
            allocations=(over,),
        )
        await store.commit(Changes(runs={first.run.id: (before, after)}))
        assert await leader.following.now() is copy
        assert copy._pipeline.runs[first.run.id].allocations == ()
        index = CapacityIndex()
        index.run_changed(first.run.id, after)
        now = over.created_at + 7200
        assert copy._pipeline.scheduler.used("ann", now) == index.use.used("ann", now)
        assert index.use.used("ann", now) != (0, 0)


async def test_a_follower_has_the_copy_before_anybody_asks_and_forgets_it_when_it_leads(
    tmp_path: Path,
) -> None:
    async with a_leader(tmp_path) as leader:
        following = leader.following
        following.keep(wanted=True)
        following.keep(wanted=True)
        await eventually(lambda: following.is_loaded)
        assert leader.made == 1
        following.keep(wanted=False)
        assert not following.is_loaded


async def test_a_follower_has_the_orphans_as_they_are_stored(tmp_path: Path) -> None:
    async with a_leader(tmp_path) as leader:
        policy = MachinesPolicy(provider="lab", max=1)
        burst = Fleet(name="burst", machines=policy, created_at=0.0)
        kept = known_orphan()
        await leader.store.commit(Changes(fleets={"burst": burst}, orphans={kept.id: kept}))
        rentals = (await leader.following.now())._pipeline.rentals
        assert rentals is not None
        assert rentals.orphans == [kept]
        gone = replace(kept, status=OrphanStatus.GONE, gone_at=kept.found_at)
        other = known_orphan(id="o2", instance_id="i-2")
        await leader.store.commit(Changes(orphans={gone.id: gone, other.id: other}))
        await leader.following.now()
        assert rentals.orphans == [other]
        assert leader.made == 1


async def test_orphans_at_a_provider_that_the_file_names_no_more_count_at_no_controller(
    tmp_path: Path,
) -> None:
    async with a_leader(tmp_path) as leader:
        leader.chosen = Chosen(providers=("other",))
        kept = known_orphan()
        await leader.store.commit(Changes(orphans={kept.id: kept}))
        copy = await leader.following.now()
        ann = replace(ADA, name="ann", role=Role.ADMIN)
        assert copy.service.machines.costs.orphans(ann) == OrphanCosts()
        assert await copy.service.machines.costs.per_hour(ann) == 0.0
