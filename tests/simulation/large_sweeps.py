"""A sweep of 10,000 sets: real turns, scheduler and effects over nodes that are a table of tasks.

The worlds of `world` look at every job of every run after each commit, which such a sweep is too
large for. Here only what a commit touched is looked at. The controller is killed between any two of
its steps, nodes are rebooted and drained, jobs of a higher band take the sweep's places, and its
owner resizes, stops and retries sets, each request twice at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from controller.lifecycle import reports
from controller.lifecycle.attempts import allocations
from controller.lifecycle.effects import EffectKind
from controller.lifecycle.inventory import NodeCapacity
from controller.lifecycle.model import (
    EndedSets,
    Group,
    JobSpec,
    Node,
    NodeAddress,
    NodeStatus,
    Resources,
    RetryEvent,
    RetryPolicy,
    RunPolicy,
    RunState,
)
from controller.lifecycle.ranges import in_ranges
from controller.lifecycle.runs.first_state import PlannedJob, new_run
from controller.lifecycle.sweeps.sets import status_of
from controller.links.base import NodeConnection
from controller.logs.store import LogStore
from controller.pipelines.effects import EffectRunner, Performer
from controller.pipelines.run_pipeline import RunPipeline
from controller.pipelines.to_node import AttemptContext
from controller.scheduling.scheduler import JobSubmittedPipeline
from controller.store.base import Changes, Store
from controller.store.errors import StoreUnavailable
from fairlead.model.reasons import Reason
from fairlead.model.spec import Band, PlannedGroup
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, FINAL_RUN_STATUSES, AllocationState
from fairlead.model.sweep import ParameterSets, SetStatus, SweepPlan
from tests.simulation.tally import Tally
from tests.simulation.virtual import EPOCH, Deadlock, Life, VirtualClock, VirtualLoop, seeded_chance

GIB = 1 << 30
STEP = 0.5
"""Virtual seconds; everything happens at a multiple of it, so that a turn has many reports."""
SETTLING_SECONDS = 4 * 3600.0
NODES = 5
CPU = 24.0
"""Of each node; all of them have less than the sweep may take, so that it is preempted."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    violations: tuple[str, ...]
    done: int
    failed: int
    stopped: int
    attempts: int
    preempted: int
    kills: int
    commits: int


class Task:
    """A task on a node; `exit_code` once its job has ended."""

    def __init__(self, context: AttemptContext) -> None:
        self.attempt_id = context.attempt.id
        self.run_id = context.state.run.id
        self.set = context.job.replica
        self.node_id = context.attempt.node_id
        self.is_started = False
        self.exit_code: int | None = None
        self.ended = asyncio.Event()

    def end(self, exit_code: int) -> None:
        if self.exit_code is None:
            self.exit_code = exit_code
            self.ended.set()


class CommittedOnly:
    """The store: the last committed objects. `commit` fails at times, before anything is kept."""

    def __init__(self, world: LargeSweep, chance: Random) -> None:
        self.runs: dict[str, RunState] = {}
        self.nodes: dict[str, Node] = {}
        self._world = world
        self._chance = chance

    async def commit(self, changes: Changes) -> None:
        await asyncio.sleep(0)
        if self._chance.random() < 0.005:
            raise StoreUnavailable("the database is busy")
        self.nodes |= changes.nodes
        for run_id, (_, after) in changes.runs.items():
            self.runs[run_id] = after
            self._world.committed(after)


class LargeSweep:
    def __init__(self, seed: int, sets: int, loop: VirtualLoop) -> None:
        self.loop = loop
        self.clock = VirtualClock(loop)
        self.tasks: dict[str, Task] = {}
        self.gone: set[str] = set()
        """The attempts whose tasks went with a reboot, until a commit has ended them."""
        self.kills = 0
        self.store = CommittedOnly(self, Random(f"{seed}/store"))
        self._chance = Random(f"{seed}/story")
        self._ids = seeded_chance(Random(f"{seed}/ids"))
        self._life = Life("controller")
        self._lives = [self._life]
        self._pipeline: RunPipeline
        self._effects: EffectRunner
        self.sweep = self._new_sweep(sets)
        self.tally = Tally(self.sweep)

    # -- the story ----------------------------------------------------------------------------

    async def live(self) -> None:
        nodes = {f"n{number}": a_node(f"n{number}") for number in range(NODES)}
        self.store.nodes |= nodes
        self._begin()
        await self._pipeline.admit(self.sweep)
        faults = asyncio.create_task(self._faults())
        patience = self.loop.time() + SETTLING_SECONDS
        try:
            while not self._is_over() and not faults.done():
                await asyncio.sleep(60 * STEP)
                if self.loop.time() > patience:
                    self.tally.violated("the sweep did not end")
                    break
        except Deadlock as error:
            self.tally.violated(str(error))
        finally:
            faults.cancel()
            await asyncio.gather(faults, return_exceptions=True)
        if not faults.cancelled():
            faults.result()
        self._check_the_end()
        self.loop.kill(self._life)
        for life in self._lives:
            await self.loop.bury(life)

    def _new_sweep(self, sets: int) -> RunState:
        chance = self._chance
        spec = JobSpec(image="i", resources=Resources(cpu=1.0, memory=GIB))
        retry = chance.choice(
            (
                RetryPolicy(on_events=frozenset(RetryEvent), max_failures=2, max_preemptions=9),
                RetryPolicy(on_events=frozenset({RetryEvent.INTERRUPTION})),
                RetryPolicy(on_events=frozenset()),
            )
        )
        return new_run(
            name="large",
            user="ann",
            groups=[PlannedGroup(group=Group(name="main", nodes=1), spec=spec)],
            now=EPOCH,
            new_id=self._ids.new_id,
            policy=RunPolicy(retry=retry, band=Band.BATCH, stop_duration=2.0),
            sweep=SweepPlan(
                sets=ParameterSets.of(["seed"], [[number] for number in range(sets)]),
                max_parallel=chance.choice((None, 40, 100, 250)),
                stop_after_failures=chance.choice((None, None, sets // 20, sets // 2)),
            ),
        )

    def _is_over(self) -> bool:
        runs = self.store.runs.values()
        return all(state.run.status in FINAL_RUN_STATUSES for state in runs)

    async def _faults(self) -> None:
        """Go on for as long as the sweep lives: a user retries what fails."""
        kinds: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self._kill, 10),
            (self._reboot, 3),
            (self._drain, 3),
            (self._urgent, 8),
            (self._resize, 4),
            (self._retry, 4),
            (self._stop, 2),
        ]
        acts, weights = zip(*kinds, strict=True)
        while True:
            await asyncio.sleep(STEP * self._chance.randint(1, 30))
            await self._chance.choices(acts, weights)[0]()

    async def _kill(self) -> None:
        """Between any two steps of the controller; the next one begins some time later."""
        killed = asyncio.Event()
        life = self._life

        def kill() -> None:
            self.loop.kill(life)
            killed.set()

        self.loop.after_steps(life, self._chance.randint(1, 400), kill)
        await asyncio.sleep(10 * STEP)
        if not killed.is_set():
            kill()
        self.kills += 1
        await asyncio.sleep(STEP * self._chance.randint(0, 8))
        self._begin()

    async def _reboot(self) -> None:
        """All tasks of a node end at once, by no fault of theirs."""
        node_id = self._chance.choice(sorted(self.store.nodes))
        for task in [one for one in self.tasks.values() if one.node_id == node_id]:
            self.gone.add(task.attempt_id)
            del self.tasks[task.attempt_id]
            task.end(137)
        self._tell_of_reboot(node_id)

    def _tell_of_reboot(self, node_id: str) -> None:
        for state in self._pipeline.runs_on(node_id):
            self._pipeline.post(
                reports.NodeGone(
                    run_id=state.run.id,
                    node_id=node_id,
                    reason=Reason.INSTANCE_UNREACHABLE,
                    message="it was rebooted",
                    cleanup_confirmed=True,
                )
            )

    async def _drain(self) -> None:
        node_id = self._chance.choice(sorted(self.store.nodes))
        self._change(node_id, draining=True, drain_deadline=self.clock.now() + 5.0)
        for state in self._pipeline.runs_on(node_id):
            self._pipeline.post(reports.Tick(run_id=state.run.id))
        await asyncio.sleep(5.0)
        for state in self._pipeline.runs_on(node_id):
            told = reports.NodeDrained(run_id=state.run.id, node_id=node_id, message="drained")
            self._pipeline.post(told)
        await asyncio.sleep(STEP * self._chance.randint(1, 20))
        self._change(node_id, draining=False, drain_deadline=None)

    async def _urgent(self) -> None:
        """A job of a higher band that needs half a node."""
        run = new_run(
            name=f"urgent-{self._ids.new_id()}",
            user="bob",
            jobs=[PlannedJob(group="main", spec=URGENT)],
            now=self.clock.now(),
            new_id=self._ids.new_id,
            policy=RunPolicy(band=Band.PRODUCTION),
        )
        self._in_controller(self._pipeline.admit(run))

    async def _resize(self) -> None:
        most = self._chance.choice((None, 10, 60, 200))
        self._twice(reports.SweepResized(run_id=self.sweep.run.id, max_parallel=most, by="ann"))

    async def _retry(self) -> None:
        """`retry --failed`: all sets that failed so far."""
        state = self.store.runs[self.sweep.run.id]
        failed = [
            job.replica
            for job in state.ended.jobs
            if status_of(state.run, [job]) is SetStatus.FAILED
        ]
        if failed:
            self.tally.retried += 1
            sets = in_ranges(failed)
            self._twice(reports.SetsRetried(run_id=state.run.id, sets=sets, by="ann"))

    async def _stop(self) -> None:
        first = self._chance.randrange(self.tally.total)
        sets = ((first, min(self.tally.total - 1, first + 5)),)
        self._twice(reports.SetsStopped(run_id=self.sweep.run.id, sets=sets, by="ann"))

    def _twice(self, wish: reports.Report) -> None:
        """As from two terminals; a kill may lose it."""
        self._pipeline.post(wish)
        self._pipeline.post(wish)

    # -- the controller -----------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin a controller with what is committed, as the store gives it: no set is folded."""
        self._life = Life("controller")
        self._lives.append(self._life)
        self._pipeline = RunPipeline(
            cast(Store, self.store),
            self.clock,
            self._ids,
            JobSubmittedPipeline(self._ids.new_id),
        )
        self._effects = EffectRunner(
            self._pipeline, Reached(), cast(LogStore, NoLogs()), self._does, self.clock, self._ids
        )
        self._pipeline.listen(self._effects)
        lives = [
            RunState(
                run=state.run,
                jobs=tuple(state.all_jobs),
                allocations=state.allocations,
                sweep=state.sweep,
                ended=EndedSets(),
            )
            for state in self.store.runs.values()
            if state.run.status not in FINAL_RUN_STATUSES
        ]
        self._pipeline.restore(lives, self.store.nodes.values())
        for node_id in sorted(self.store.nodes):
            for state in self._pipeline.runs_on(node_id):
                up = reports.NodeDisconnected(
                    run_id=state.run.id, node_id=node_id, disconnected=False
                )
                self._pipeline.post(up)
        # A reboot whose report went with the last controller is seen at the next contact.
        lost = {
            attempt.node_id
            for state in lives
            for job in state.jobs
            for attempt in job.attempts
            if attempt.id in self.gone and attempt.node_id is not None
        }
        for node_id in sorted(lost):
            self._tell_of_reboot(node_id)
        self._in_controller(self._pipeline.run())

    def _in_controller(self, work: Coroutine[Any, Any, Any]) -> None:
        self.loop.spawn(self._life, work).add_done_callback(_noted)

    def _change(self, node_id: str, **changes: Any) -> None:
        self._pipeline.set_node(replace(self.store.nodes[node_id], **changes), node_id)

    def committed(self, after: RunState) -> None:
        if after.run.id == self.sweep.run.id:
            self.tally.committed(after)
        for job in after.jobs:
            for attempt in job.attempts:
                if attempt.status in FINAL_ATTEMPT_STATUSES:
                    self.gone.discard(attempt.id)
                    # As the comparison with a node does: nothing of an ended attempt stays there.
                    stray = self.tasks.pop(attempt.id, None)
                    if stray is not None:
                        stray.end(137)

    # -- the nodes ----------------------------------------------------------------------------

    @property
    def _does(self) -> dict[EffectKind, Performer]:
        return {
            EffectKind.SUBMIT_TASK: self._submit,
            EffectKind.START_JOB: self._start,
            EffectKind.FOLLOW_RUNNER: self._follow,
            EffectKind.COLLECT_LOGS: self._collect,
            EffectKind.INTERRUPT_JOB: self._ask_to_end,
            EffectKind.STOP_JOB: self._ask_to_end,
            EffectKind.TERMINATE_TASK: self._terminate,
            EffectKind.REMOVE_TASK: self._remove,
            EffectKind.RELEASE_ALLOCATION: self._release,
        }

    async def _answer(self, context: AttemptContext) -> Task | None:
        """Wait until the node answers; None: it has no such task."""
        await self._pause(context, 1)
        if context.attempt.id in self.gone:
            await asyncio.Event().wait()  # until the commit that ends the attempt
        return self.tasks.get(context.attempt.id)

    async def _pause(self, context: AttemptContext, most: int) -> None:
        await asyncio.sleep(STEP * Random(context.attempt.id).randint(1, most))

    async def _submit(self, context: AttemptContext, connection: NodeConnection) -> None:
        task = await self._answer(context)
        if task is None:
            task = self.tasks[context.attempt.id] = Task(context)
        self._pipeline.post(reports.TaskAccepted(run_id=task.run_id, attempt_id=task.attempt_id))
        self._pipeline.post(_seen(task))

    async def _start(self, context: AttemptContext, connection: NodeConnection) -> None:
        task = await self._answer(context)
        if task is None:
            return
        if not task.is_started:
            self._check_alone(task)
            task.is_started = True
            luck = Random(f"{task.attempt_id}/luck")
            code = 1 if luck.random() < self.tally.bad_luck else 0
            self.loop.call_later(STEP * luck.randint(1, 4), task.end, code)
        at = self.clock.now()
        self._pipeline.post(
            reports.RunnerStarted(run_id=task.run_id, attempt_id=task.attempt_id, at=at)
        )

    def _check_alone(self, task: Task) -> None:
        if task.run_id != self.sweep.run.id:
            return
        for other in self.tasks.values():
            if other.run_id != task.run_id or not other.is_started or other.ended.is_set():
                continue
            if other.set == task.set:
                self.tally.violated(f"set {task.set} runs twice at once")
        self.tally.started += 1

    async def _follow(self, context: AttemptContext, connection: NodeConnection) -> None:
        task = await self._answer(context)
        if task is None:
            return
        await task.ended.wait()
        reason = Reason.DONE_BY_RUNNER if not task.exit_code else Reason.CONTAINER_EXITED_WITH_ERROR
        if task.attempt_id not in self.gone:
            self._pipeline.post(
                reports.RunnerExited(
                    run_id=task.run_id,
                    attempt_id=task.attempt_id,
                    reason=reason,
                    exit_code=task.exit_code,
                )
            )

    async def _collect(self, context: AttemptContext, connection: NodeConnection) -> None:
        task = await self._answer(context)
        attempt = context.attempt
        if task is not None:
            await task.ended.wait()
            if task.attempt_id in self.gone:
                return
            self._pipeline.post(_seen(task, terminated=True))
        run_id = context.state.run.id
        self._pipeline.post(reports.LogsComplete(run_id=run_id, attempt_id=attempt.id))

    async def _ask_to_end(self, context: AttemptContext, connection: NodeConnection) -> None:
        task = await self._answer(context)
        if task is not None:
            task.end(143)

    async def _terminate(self, context: AttemptContext, connection: NodeConnection) -> None:
        task = await self._answer(context)
        if task is None:
            missing = reports.TaskMissing(
                run_id=context.state.run.id, attempt_id=context.attempt.id
            )
            self._pipeline.post(missing)
            return
        task.end(137)
        self._pipeline.post(_seen(task, terminated=True))

    async def _remove(self, context: AttemptContext, connection: NodeConnection) -> None:
        await self._answer(context)
        self.tasks.pop(context.attempt.id, None)
        kept = allocations.is_kept(context.state.run, context.attempt)
        self._pipeline.post(
            reports.TaskRemoved(
                run_id=context.state.run.id,
                attempt_id=context.attempt.id,
                allocation_released=not kept,
            )
        )

    async def _release(self, context: AttemptContext, connection: NodeConnection) -> None:
        await self._answer(context)
        if context.attempt.allocation_id is not None:
            self._pipeline.post(
                reports.AllocationReleased(
                    run_id=context.state.run.id, allocation_id=context.attempt.allocation_id
                )
            )

    # -- the end ------------------------------------------------------------------------------

    def _check_the_end(self) -> None:
        for state in self.store.runs.values():
            for place in state.allocations:
                if place.state is not AllocationState.RELEASED:
                    self.tally.violated(f"a place of {state.run.name} is {place.state} for ever")
        for task in self.tasks.values():
            self.tally.violated(f"a task of set {task.set} is left on {task.node_id}")
        self.tally.ended(self.store.runs[self.sweep.run.id])


class Reached:
    async def connection(self, node_id: str) -> NodeConnection:
        return cast(NodeConnection, None)


class NoLogs:
    def finish(self, attempt_id: str) -> None:
        """There are none."""


URGENT = JobSpec(image="i", resources=Resources(cpu=CPU / 2, memory=GIB))


def a_node(node_id: str) -> Node:
    return Node(
        id=node_id,
        name=node_id,
        address=NodeAddress(shim_socket=f"/run/{node_id}", local_socket=True),
        status=NodeStatus.CONNECTED,
        capacity=NodeCapacity(cpu=CPU, memory=512 * GIB, disk=512 * GIB),
        created_at=EPOCH,
    )


def _seen(task: Task, *, terminated: bool = False) -> reports.TaskSeen:
    return reports.TaskSeen(
        run_id=task.run_id,
        attempt_id=task.attempt_id,
        container_started=True,
        terminated=terminated,
        exit_code=task.exit_code if terminated else None,
        runner_socket="/run/runner.sock",
    )


def _noted(work: asyncio.Task[Any]) -> None:
    """A refused submission is the business of the one who made it."""
    if not work.cancelled():
        work.exception()


def play(seed: int, sets: int) -> Outcome:
    """Play one world to its end."""
    loop = VirtualLoop(Random(f"{seed}/threads"))
    try:
        world = LargeSweep(seed, sets, loop)
        loop.run_until_complete(world.live())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
    tally = world.tally
    return Outcome(
        seed=seed,
        violations=tuple(tally.violations),
        done=len(tally.done),
        failed=tally.failed,
        stopped=tally.stopped,
        attempts=tally.started,
        preempted=tally.preempted,
        kills=world.kills,
        commits=tally.commits,
    )
