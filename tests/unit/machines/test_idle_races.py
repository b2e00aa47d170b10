"""Uses of a machine race with the decision that it is idle, in 10,000 random orders: none is lost.

The turns, the scheduler and the records of machines are the real ones. The shim, the jobs and the
order in which everything happens are the test's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from controller.clock import month_began
from controller.lifecycle.machines.life import InstanceGone, ReleaseAnswered
from controller.lifecycle.machines.model import Machine, MachineEnd, MachineStatus
from controller.lifecycle.model import Attempt, CollectedOutputs, Resources, RunState
from controller.lifecycle.reports import (
    LogsComplete,
    OutputsCollected,
    RunnerExited,
    RunnerStarted,
    StopRequested,
    TaskAccepted,
    TaskRemoved,
    TaskSeen,
)
from controller.pipelines.renting.rentals import Rentals
from controller.pipelines.renting.settings import Pinned, RentalSettings
from controller.pipelines.run_pipeline import RunPipeline
from controller.scheduling.scheduler import JobSubmittedPipeline
from fairlead.model.reasons import Reason
from fairlead.model.spec import Band
from fairlead.model.statuses import AllocationState
from tests.doubles.clock import ManualClock
from tests.doubles.memory_store import MemoryStore
from tests.unit.machines.parts import fleet, machine
from tests.unit.pipelines.parts import Ids, steady_chance, submitted
from tests.unit.scheduling.parts import node

RACES, WORLDS = 10_000, 20
"""Two worlds are played with the short tests."""
IDLE_SECONDS = 10.0
BURST = fleet(idle_duration=IDLE_SECONDS)
USES: tuple[list[Band], ...] = (
    [],
    [Band.BATCH],
    [Band.BATCH, Band.INTERACTIVE],
    [Band.BATCH, Band.BATCH],
)


class Task(msgspec.Struct):
    """A task on the shim. `steps`: what happens to it next; a session is a shell or a forwarded
    port, which lasts at most as long as its job."""

    run_id: str
    steps: list[str]


class World:
    """A controller without its loop: a race says when it takes a turn."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = ManualClock()
        self.new_id = Ids()
        self.store = MemoryStore(now=self.clock.now)
        placement = JobSubmittedPipeline(self.new_id)
        settings = RentalSettings(
            installation="here",
            pin=lambda one: Pinned(host_key=one, token_digest=one),
            new_id=self.new_id,
            month_of=month_began,
        )
        self.rentals = Rentals(placement.index, settings)
        self.pipeline = RunPipeline(
            self.store, self.clock, steady_chance(), placement, self.rentals
        )
        self.seen: Counter[str] = Counter()
        self.reasons: set[Reason | None] = set()
        """Why attempts ended."""
        self.pipeline.listen(self)

    def committed(self, touched: Sequence[RunState]) -> None:
        self.reasons |= {
            attempt.reason
            for state in touched
            for job in state.jobs
            for attempt in job.attempts
            if attempt.node_id is not None
        }

    async def begin(self) -> None:
        await self.store.open()
        self.pipeline.restore((), (), (BURST,))

    async def turn(self) -> None:
        await self.pipeline._turn()


class Race:
    """One machine, until it is given back."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.random = world.random
        self.id = f"m{number}"
        self.uses = list(self.random.choice(USES))
        self.runs: list[str] = []
        self.tasks: dict[str, Task] = {}
        self.answer: bool | None = None
        """What the shim answered; it may be on its way for long."""
        self.is_due = True
        """Something happened since the last turn; another one would find nothing."""
        self.delivered: set[str] = set()
        self.pending: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        world = self.world
        record = machine(
            self.id, status=MachineStatus.JOINED, instance_id=self.id, joined_at=world.clock.now()
        )
        world.rentals.machines[self.id] = world.rentals.committed[self.id] = record
        world.pipeline.set_node(node(self.id, fleet="burst"), self.id)
        if self.random.random() < 0.2:
            # One that the controller does not know, as after a restored backup.
            self.tasks["stray"] = Task(run_id="", steps=["remove"])
        was_closing = False
        while (record := self.record).status is MachineStatus.JOINED:
            if was_closing and not record.closing:
                world.seen["reopened"] += 1
            was_closing = record.closing
            act = self.random.choice(self._acts())
            self.is_due = act != self._turn
            await act()
        assert record.end is MachineEnd.IDLE
        self._check_end()
        await self._leave()

    @property
    def record(self) -> Machine:
        return self.world.rentals.committed[self.id]

    def _acts(self) -> list[Callable[[], Awaitable[None]]]:
        acts: list[Callable[..., Awaitable[None]]] = [self._wait]
        if self.is_due:
            acts += [self._turn, self._turn]
        if self.uses:
            acts.append(self._submit)
        if self.answer is not None:
            acts.append(self._tell)
        elif self.record.closing:
            acts.append(self._ask)
        # A stray task that leaves before the shim is asked is none.
        there = [key for key, task in self.tasks.items() if task.run_id or self.record.closing]
        acts += [lambda key=key: self._step(key) for key in there]
        acts += [lambda one=one: self._deliver(*one) for one in self._undelivered()]
        return acts

    async def _turn(self) -> None:
        await self.world.turn()

    async def _wait(self) -> None:
        self.world.clock.time += self.random.choice((0.5, 3.0, IDLE_SECONDS))

    async def _ask(self) -> None:
        self.answer = not self.tasks

    async def _tell(self) -> None:
        assert self.answer is not None
        self.world.rentals.post(ReleaseAnswered(machine_id=self.id, is_empty=self.answer))
        self.answer = None

    async def _submit(self) -> None:
        state = submitted(
            f"{self.id}-{len(self.runs)}", self.world.new_id, resources=Resources(cpu=4.0)
        )
        policy = replace(state.run.policy, band=self.uses.pop(0))
        state = replace(state, run=replace(state.run, policy=policy))
        self.runs.append(state.run.id)
        self.pending.add(asyncio.create_task(self.world.pipeline.admit(state)))
        await asyncio.sleep(0)
        if self.record.closing:
            self.world.seen["a job while it closes"] += 1
        elif self._closes_next():
            self.world.seen["a job as it is to close"] += 1

    def _closes_next(self) -> bool:
        since = self.record.idle_since
        return since is not None and self.world.clock.now() >= since + IDLE_SECONDS

    # -- jobs -------------------------------------------------------------------------------

    def _attempts(self) -> list[tuple[str, Attempt]]:
        """Return the attempts with a place on the machine, as they are committed."""
        known = self.world.pipeline.known
        states = [known[run_id] for run_id in self.runs if run_id in known]
        held = {
            place.id
            for state in states
            for place in state.allocations
            if place.state is AllocationState.HELD and place.node_id == self.id
        }
        return [
            (state.run.id, attempt)
            for state in states
            for job in state.jobs
            for attempt in job.attempts
            if attempt.allocation_id in held
        ]

    def _nominated(self) -> bool:
        known = self.world.pipeline.known
        return any(
            place.state is AllocationState.NOMINATED and place.node_id == self.id
            for run_id in self.runs
            if run_id in known
            for place in known[run_id].allocations
        )

    def _in_use(self) -> bool:
        return bool(self.tasks or self._attempts() or self._nominated())

    def _undelivered(self) -> list[tuple[str, str]]:
        return [
            (run_id, attempt.id)
            for run_id, attempt in self._attempts()
            if attempt.id not in self.delivered
        ]

    async def _deliver(self, run_id: str, attempt_id: str) -> None:
        """The shim takes the task."""
        sessions = self.random.choice(([], ["a shell"], ["a forwarded port"]))
        fetched = self.random.sample(["log", "outputs"], 2)
        steps = ["start", *sessions, "exit", "end", *fetched, "remove"]
        self.tasks[attempt_id] = Task(run_id=run_id, steps=steps)
        self.delivered.add(attempt_id)
        ids = {"run_id": run_id, "attempt_id": attempt_id}
        self.world.pipeline.post(TaskAccepted(**ids))

    async def _step(self, attempt_id: str) -> None:
        task = self.tasks[attempt_id]
        step = task.steps.pop(0)
        self.world.seen[step] += 1
        if step == "remove":
            del self.tasks[attempt_id]
        if not task.run_id:
            return
        ids: dict[str, Any] = {"run_id": task.run_id, "attempt_id": attempt_id}
        seen = TaskSeen(
            **ids,
            container_started=True,
            terminated=step == "end",
            runner_socket="/s",
            has_outputs=step == "end",
        )
        post = self.world.pipeline.post
        match step:
            case "start":
                post(seen)
                post(RunnerStarted(**ids, at=self.world.clock.now()))
            case "exit":
                post(RunnerExited(**ids, reason=Reason.DONE_BY_RUNNER, exit_code=0))
            case "end":
                post(seen)
            case "log":
                post(LogsComplete(**ids))
            case "outputs":
                post(OutputsCollected(**ids, outputs=CollectedOutputs(files=1, size=1)))
            case "remove":
                post(TaskRemoved(**ids))

    # -- the end ----------------------------------------------------------------------------

    def _check_end(self) -> None:
        """The commit that ends the machine finds nothing on it."""
        assert not self.tasks
        assert not self._attempts()
        assert not self._nominated()
        assert self.world.pipeline.nodes[self.id].cordoned
        self.world.seen["ended"] += 1

    async def _leave(self) -> None:
        """Nothing is placed on the machine any more, and it goes."""
        for _ in range(2):
            await self.world.turn()
            assert not self._in_use()
        for run_id in self.runs:
            state = self.world.pipeline.known.get(run_id)
            if state is not None:
                # It waits for another machine: the only one was given back before it came.
                assert all(one.node_id is None for job in state.jobs for one in job.attempts[-1:])
                self.world.seen["waits for another machine"] += 1
                self.world.pipeline.post(StopRequested(run_id=run_id, abort=True, by="ann"))
        self.world.rentals.post(InstanceGone(machine_id=self.id))
        for _ in range(2):
            await self.world.turn()
        assert self.id not in self.world.pipeline.nodes
        await asyncio.gather(*self.pending)
        del self.world.rentals.machines[self.id], self.world.rentals.committed[self.id]


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=() if seed < 2 else pytest.mark.long) for seed in range(WORLDS)],
)
async def test_no_use_is_lost_to_the_release_of_an_idle_machine(seed: int) -> None:
    world = World(seed)
    await world.begin()
    for number in range(RACES // WORLDS):
        await Race(world, number).run()
    assert world.seen["ended"] == RACES // WORLDS
    assert world.reasons == {None, Reason.DONE_BY_RUNNER, Reason.PREEMPTED}
    # Each kind of race was there, else the orders prove nothing.
    kinds = ("reopened", "a job as it is to close", "a job while it closes", "a shell")
    assert all(world.seen[kind] for kind in (*kinds, "a forwarded port", "outputs")), world.seen
