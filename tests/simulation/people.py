"""The users of a simulated world, and its admin: they submit, look away and change their minds.

A user repeats each request until a controller has acknowledged it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Protocol

import msgspec

from controller.lifecycle import reports
from controller.lifecycle.model import Fleet, Node, NodeAddress, NodeStatus, RunState
from controller.lifecycle.reports import Report
from controller.nodes.sync import report_gone
from controller.pipelines.admissions import ParentGone, PredecessorGone
from controller.pipelines.run_pipeline import RunPipeline
from fairlead.model.statuses import FINAL_RUN_STATUSES, RunStatus
from tests.doubles.memory_store import MemoryDatabase
from tests.simulation.checks import Checks
from tests.simulation.node import SimulatedNode
from tests.simulation.virtual import VirtualClock, seeded_chance
from tests.simulation.workload import Site, random_run

Ask = Callable[[RunPipeline], Awaitable[Any]]
REPLACING = 0.08
"""Share of the users who take the name of a live run."""


class Office(Protocol):
    """Where people reach the controller that works now."""

    checks: Checks
    clock: VirtualClock
    database: MemoryDatabase
    nodes: dict[str, SimulatedNode]
    site: Site
    fleets: list[Fleet]

    @property
    def restores(self) -> int:
        """How often a backup was put in the database's place."""

    async def asked(self, ask: Ask) -> bool:
        """Whether the controller has acknowledged it."""


async def until_answered(office: Office, ask: Ask) -> None:
    while not await office.asked(ask):
        pass


class User:
    """One run and what its owner does about it. `more`: for what narrow worlds do without."""

    def __init__(self, office: Office, name: str, chance: Random, more: Random) -> None:
        self._office = office
        self._name = name
        self._chance = chance
        self._more = more
        self._state: RunState | None = None

    async def live(self, latest: float) -> None:
        chance, office = self._chance, self._office
        await asyncio.sleep(chance.uniform(0.0, latest))
        parents = sorted(office.database.runs)[:3]
        if office.site.wide and self._more.random() < REPLACING:
            await self._replace()
        self._state = self._new_run(parents)
        if not await self._submit(self._state):
            self._state = None
            return
        for wish in chance.choices((self._nothing, self._stops, self._changes), (55, 20, 25))[0]():
            await asyncio.sleep(chance.choice((0.1, 5.0, 60.0, 300.0)) * chance.random())
            self.note(wish)
            await self._wish(wish)

    def _new_run(self, parents: Sequence[str]) -> RunState:
        office, chance = self._office, self._chance
        now, new_id = office.clock.now(), seeded_chance(chance).new_id
        known = [office.database.runs[run_id] for run_id in sorted(office.database.runs)]
        return random_run(self._name, chance, now, new_id, office.site, self._more, parents, known)

    async def _replace(self) -> None:
        """As `--if-exists replace` does: whoever has the name is told to end, and the name is free
        once it has."""
        lives = [
            state.run
            for state in self._office.database.runs.values()
            if state.run.status not in FINAL_RUN_STATUSES
        ]
        if lives:
            replaced = self._more.choice(lives)
            self._name = replaced.name
            wish = reports.StopRequested(run_id=replaced.id, abort=False, by=replaced.user)
            self.note(wish)
            await self._wish(wish)

    async def close(self) -> None:
        """Endless runs are ended, suspended runs go on."""
        if self._state is None:
            return
        state = self._office.database.runs.get(self._state.run.id)
        if state is None or state.run.status in FINAL_RUN_STATUSES:
            return
        run_id = state.run.id
        await self._wish(reports.ResumeRequested(run_id=run_id, by=state.run.user))
        wish = self._end(state)
        if wish is not None:
            self.note(wish)
            await self._wish(wish)

    def _end(self, state: RunState) -> Report | None:
        """What ends it, if it does not end by itself."""
        if state.run.policy.schedule or state.run.policy.restart_completed_jobs:
            return reports.CompleteRequested(run_id=state.run.id, by=state.run.user)
        return None

    def note(self, wish: Report) -> None:
        """So that the checks know what was asked for."""
        about = getattr(wish, "job_id", wish.run_id)
        self._office.checks.asked.setdefault(type(wish), set()).add(about)

    async def _submit(self, state: RunState) -> bool:
        """False when its parent has ended meanwhile, or somebody else was faster to have its name:
        then it never begins."""
        office, run_id = self._office, state.run.id
        while True:
            restores = office.restores
            try:
                acknowledged = await office.asked(lambda pipeline: pipeline.admit(state))
            except (ParentGone, PredecessorGone):
                return False
            if run_id in office.database.runs or restores != office.restores:
                return True
            if acknowledged:
                office.checks.violated(f"run {state.run.name} was acknowledged and is not stored")
            if self._is_taken(state.run.name):
                return False

    def _is_taken(self, name: str) -> bool:
        """By a run that nobody has told to end."""
        over = {*FINAL_RUN_STATUSES, RunStatus.TERMINATING}
        runs = (state.run for state in self._office.database.runs.values())
        return any(run.name == name and run.status not in over for run in runs)

    async def _wish(self, wish: Report) -> None:
        await until_answered(self._office, lambda pipeline: pipeline.report(wish))

    # -- what they may wish -------------------------------------------------------------------

    def _nothing(self) -> list[Report]:
        return []

    def _stops(self) -> list[Report]:
        assert self._state is not None
        run = self._state.run
        aborts = self._chance.choices(((False,), (True,), (False, True)), (60, 20, 20))[0]
        return [reports.StopRequested(run_id=run.id, abort=abort, by=run.user) for abort in aborts]

    def _changes(self) -> list[Report]:
        return [self._change() for _ in range(self._chance.randint(1, 4))]

    def _change(self) -> Report:
        assert self._state is not None
        chance, run = self._chance, self._state.run
        job_id = chance.choice(self._state.jobs).id
        by = run.user
        plain = [group.name for group in run.groups if run.incarnation is None]
        wishes: list[Report] = [
            reports.SuspendRequested(run_id=run.id, abort_running=chance.random() < 0.5, by=by),
            reports.ResumeRequested(run_id=run.id, by=by),
            reports.ResumeRequested(run_id=run.id, by=by),
            reports.JobAbortRequested(run_id=run.id, job_id=job_id, by=by),
            reports.JobAbandonRequested(run_id=run.id, job_id=job_id, by=by),
            reports.JobInterruptRequested(run_id=run.id, job_id=job_id, by=by),
            reports.CompleteRequested(run_id=run.id, by=by),
        ]
        if plain:
            wishes.append(
                reports.ScaleRequested(
                    run_id=run.id, group=chance.choice(plain), nodes=chance.randint(1, 4), by=by
                )
            )
        return chance.choice(wishes)


class Admin:
    """Registers nodes, drains and cordons them, and clears up after a restored backup."""

    def __init__(self, office: Office) -> None:
        self._office = office

    async def register_fleets(self) -> None:
        for fleet in self._office.fleets:
            await until_answered(self._office, partial(_save_fleet, fleet))

    async def register(self, node: SimulatedNode) -> None:
        office = self._office
        fresh = Node(
            id=id_of(node),
            name=node.name,
            fleet=node.fleet,
            address=NodeAddress(shim_socket=f"/run/{node.name}", local_socket=True),
            attributes=node.attributes,
            created_at=office.clock.now(),
        )
        office.checks.node_ids[node.name] = fresh.id
        office.checks.names[fresh.id] = node.name
        restores = office.restores
        while fresh.id not in office.database.nodes and restores == office.restores:
            await office.asked(lambda pipeline: pipeline.save_node(fresh, fresh.id))

    async def drain(self, node: SimulatedNode, seconds: float, deadline: float | None) -> None:
        """`deadline`: after so many seconds nothing may run there any more."""
        now = self._office.clock.now()
        wanted = [now, float("inf")]
        self._office.checks.drains.setdefault(id_of(node), []).append(wanted)
        ends_at = None if deadline is None else now + deadline
        await self.change(node, draining=True, drain_deadline=ends_at)
        await asyncio.sleep(seconds)
        await self.change(node, draining=False, drain_deadline=None)
        wanted[1] = self._office.clock.now()

    async def remove_lost(self, node: SimulatedNode) -> None:
        """As `node remove --lost` does; what comes back is another node. A node that is connected
        is not lost."""
        node_id = id_of(node)
        if node_id not in self._office.database.nodes:
            return

        async def remove(pipeline: RunPipeline) -> None:
            known = pipeline.nodes.get(node_id)
            if known is not None and known.status is not NodeStatus.CONNECTED:
                report_gone(pipeline, node_id, "removed as lost", lambda _: True, removed=True)
                pipeline.set_node(None, node_id)
            await pipeline.settled()

        await until_answered(self._office, remove)
        if node_id not in self._office.database.nodes:
            node.wipe()
            node.generation += 1
            await self.register(node)

    async def settle(self) -> None:
        """Each request is committed, also that of a user who has gone since."""
        await until_answered(self._office, lambda pipeline: pipeline.settled())

    async def remove_stale(self) -> None:
        """The nodes of a restored database whose machines were replaced since."""
        office = self._office
        present = {id_of(node) for node in office.nodes.values()}
        for node_id in [one for one in office.database.nodes if one not in present]:

            async def remove(pipeline: RunPipeline, node_id: str = node_id) -> None:
                report_gone(pipeline, node_id, "replaced", lambda _: True, removed=True)
                await pipeline.save_node(None, node_id)

            await until_answered(office, remove)

    async def cordon(self, node: SimulatedNode, seconds: float) -> None:
        await self.change(node, cordoned=True)
        await asyncio.sleep(seconds)
        await self.change(node, cordoned=False)

    async def change(self, node: SimulatedNode, **changes: object) -> None:
        async def save(pipeline: RunPipeline) -> None:
            known = pipeline.nodes.get(id_of(node))
            if known is not None:
                changed = msgspec.structs.replace(known, **changes)
                await pipeline.save_node(changed, changed.id)

        await until_answered(self._office, save)

    def clear_unknown(self, node: SimulatedNode) -> None:
        """By hand, on the node itself: what the database does not know, or no longer."""
        known = {
            attempt.id
            for state in self._office.database.runs.values()
            for job in state.jobs
            for attempt in job.attempts
        }
        for task_id in [one for one in node.tasks if one not in known]:
            node.lose(task_id)


async def _save_fleet(fleet: Fleet, pipeline: RunPipeline) -> None:
    await pipeline.save_fleet(fleet, fleet.name)


def id_of(node: SimulatedNode) -> str:
    return f"id-of-{node.name}-{node.generation}"
