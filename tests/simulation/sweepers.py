"""Simulated sweeps, and what their owners do about them. What must hold of each commit is in
`sweeps`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from msgspec.structs import replace

from controller.lifecycle import reports
from controller.lifecycle.model import Amount, Group, JobSpec, Resources, RunPolicy, RunState
from controller.lifecycle.predecessors import Predecessor
from controller.lifecycle.ranges import in_ranges
from controller.lifecycle.reports import Report
from controller.lifecycle.runs.first_state import new_run
from fairlead.model.beginning import After, Moment, SameJob, When
from fairlead.model.spec import Band, PlannedGroup
from fairlead.model.sweep import ParameterSets, SweepPlan
from fairlead.wire.job import EndSignal
from tests.simulation.people import User
from tests.simulation.script import Start, image_of, random_script
from tests.simulation.virtual import seeded_chance
from tests.simulation.workload import (
    GIB,
    RETRIES,
    SIGNALLED,
    USERS,
    Site,
    predecessor_of,
    with_signal,
)

WAITING = 1 / 2


def random_sweep(
    name: str,
    chance: Random,
    now: float,
    new_id: Callable[[], str],
    site: Site,
    known: Sequence[RunState] = (),
) -> RunState:
    """A set of one node fits every node; one of several fits the nodes of a place. `known`: runs
    that it may wait for."""
    sets = chance.choice((1, 2, 5, 12, 40))
    held = Random(f"{name} waits at {now}")
    after, sets = _awaited(known, sets, held)
    nodes = chance.choice((1, 1, 1, min(2, site.largest_place)))
    script = replace(random_script(chance), seconds=chance.uniform(0.0, 60.0))
    spec = JobSpec(
        image=image_of(chance.choice((Start.FINE, Start.FINE, Start.FINE, Start.SLOW_PULL))),
        env=script.env(),
        resources=Resources(cpu=0.5, memory=GIB, unset=tuple(Amount)),
    )
    told = Random(f"{name} is told at {now}")
    if told.random() < SIGNALLED:
        before = told.choice((5.0, 60.0, 600.0))
        spec = with_signal(spec, EndSignal(name="SIGUSR1", before=before))
    return new_run(
        name=name,
        user=chance.choice(USERS),
        groups=[PlannedGroup(group=Group(name="main", nodes=nodes), spec=spec)],
        now=now,
        new_id=new_id,
        policy=RunPolicy(
            retry=chance.choice(RETRIES),
            stop_duration=chance.choice((0.0, 3.0, 60.0)),
            max_duration=chance.choices((None, 200.0), weights=(85, 15))[0],
            scheduling_timeout=chance.choices((None, 300.0), weights=(90, 10))[0],
            band=chance.choices(tuple(Band), weights=(15, 60, 25))[0],
            after=tuple(After(run=one.name, when=one.when, job=one.job) for one in after),
            begin=Moment(within=30.0) if held.random() < 0.05 else None,
            start_before=Moment(within=600.0) if held.random() < 0.05 else None,
        ),
        after=after,
        sweep=SweepPlan(
            sets=ParameterSets.of(["seed"], [[number] for number in range(sets)]),
            max_parallel=chance.choice((None, 1, 2, 3)),
            stop_after_failures=chance.choices((None, 1, 3), weights=(60, 15, 25))[0],
            reuse_container=nodes == 1 and Random(f"{name} reuses at {now}").random() < 0.5,
        ),
    )


def _awaited(
    known: Sequence[RunState], sets: int, chance: Random
) -> tuple[tuple[Predecessor, ...], int]:
    """Half of the sweeps wait for one or two others: as a whole, or set for set, which needs as
    many sets. Returns the number of its sets too."""
    if not known or chance.random() >= WAITING:
        return (), sets
    totals = [one.run.sweep.total for one in known if one.run.sweep is not None]
    job, among = SameJob.ALL, list(known)
    if totals and chance.random() < 0.8:
        sets, job = chance.choice(totals), SameJob.SAME
        among = [one for one in known if one.run.sweep and one.run.sweep.total == sets]
    chosen = chance.sample(among, min(len(among), chance.choice((1, 1, 2))))
    whens = (When.DONE, When.ENDED, When.ENDED, When.FAILED, When.RUNNING)
    return tuple(predecessor_of(one, chance.choice(whens), job) for one in chosen), sets


class Sweeper(User):
    def _new_run(self, parents: Sequence[str]) -> RunState:
        chance, office = self._chance, self._office
        now, new_id = office.clock.now(), seeded_chance(chance).new_id
        known = [office.database.runs[run_id] for run_id in sorted(office.database.runs)]
        return random_sweep(self._name, chance, now, new_id, office.site, known)

    def _changes(self) -> list[Report]:
        """A request for sets may come twice at once, as from two terminals."""
        wishes = []
        for _ in range(self._chance.randint(1, 6)):
            wish = self._change()
            wishes += [wish] * self._chance.choice((1, 2))
        return wishes

    def _change(self) -> Report:
        assert self._state is not None
        chance, run = self._chance, self._state.run
        assert run.sweep is not None
        if self._state.jobs and chance.random() < 0.4:
            return super()._change()
        total = run.sweep.total
        some = [number for number in range(total) if chance.random() < chance.choice((0.1, 0.9))]
        sets = in_ranges(some or [chance.randrange(total)])
        wishes: list[Report] = [
            reports.SetsStopped(run_id=run.id, sets=sets, by=run.user),
            reports.SetsRetried(run_id=run.id, sets=sets, by=run.user),
            reports.SetsRetried(run_id=run.id, sets=((0, total - 1),), by=run.user),
            reports.SweepResized(
                run_id=run.id, max_parallel=chance.choice((None, 1, 2, 5)), by=run.user
            ),
        ]
        return chance.choice(wishes)
