"""The simulated users' submissions: single jobs, replicas, groups, gangs, and mixtures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from controller.lifecycle.model import (
    Amount,
    Band,
    Constraint,
    GpuNeed,
    Group,
    JobSpec,
    Limits,
    OnParentEnd,
    Operator,
    Resources,
    RetryEvent,
    RetryPolicy,
    RunPolicy,
    RunState,
    StartupOrder,
    StopCriteria,
)
from controller.lifecycle.predecessors import Predecessor
from controller.lifecycle.runs.dependencies import facts
from controller.lifecycle.runs.first_state import PlannedJob, new_run
from fairlead.model.beginning import After, SameJob, When
from fairlead.model.spec import PlannedGroup
from fairlead.model.statuses import FINAL_RUN_STATUSES
from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.job import EndSignal
from fairlead.wire.shim import RegistryAuth
from tests.simulation.script import SPARED_EXIT_CODE, image_of, random_script, random_start

GIB = 1 << 30
USERS = ("ann", "bob", "cid")

RETRIES = (
    RetryPolicy(),
    RetryPolicy(max_preemptions=2),
    RetryPolicy(on_events=frozenset()),
    RetryPolicy(on_events=frozenset(RetryEvent), max_failures=2),
    RetryPolicy(on_events=frozenset({RetryEvent.ERROR}), max_failures=1, duration=900.0),
)
GANG_RETRIES = (
    RetryPolicy(on_events=frozenset({RetryEvent.ERROR, RetryEvent.INTERRUPTION}), max_failures=10),
    RetryPolicy(on_events=frozenset({RetryEvent.ERROR, RetryEvent.INTERRUPTION}), max_failures=1),
    RetryPolicy(),
)
UNHEARD = (None, 30.0, 120.0, 300.0, 600.0)
SPARE = "spare"
"""The second fleet: it names no placement attribute, and no job needs it."""
WAITING = 0.2
"""Share of the runs that wait for others."""
PRIVATE = 0.4
"""Share of the runs whose images are had with a password only."""
SIGNALLED = 0.25
"""Share of the runs whose jobs get a signal before they end."""
SCHEDULES = (("*/5 * * * *",), ("*/7 * * * *", "3 * * * *"))


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of the empty nodes that the runs must fit."""

    largest_place: int
    """Nodes under one value of the fleet's placement attribute."""
    named_places: bool = False
    """The first fleet names a placement attribute."""
    wide: bool = False
    """Runs ask for more than they did in older worlds. No `reincarnation_timeout` is shorter than a
    slow pull: such a gang would begin anew forever."""


def random_run(
    name: str,
    chance: Random,
    now: float,
    new_id: Callable[[], str],
    site: Site,
    more: Random,
    parents: Sequence[str] = (),
    known: Sequence[RunState] = (),
) -> RunState:
    make = chance.choices((_jobs, _independent, _gang), weights=(60, 15, 25))[0]
    jobs, groups, policy = make(chance, site)
    if site.wide:
        jobs, groups, policy = _widened(jobs, groups, policy, more, site)
        jobs, groups = _private(jobs, groups, Random(f"{name} at {now}"))
        jobs, groups = _demanding(jobs, groups, Random(f"{name} asks at {now}"), site)
        jobs, groups = _signalled(jobs, groups, Random(f"{name} is told at {now}"))
    wider = replace(
        policy,
        band=chance.choices(tuple(Band), weights=(15, 60, 25))[0],
        priority=chance.choice((0, 50, 50, 100)),
        on_parent_end=chance.choice(tuple(OnParentEnd)),
        schedule=chance.choice(SCHEDULES) if chance.random() < 0.05 else (),
    )
    after: tuple[Predecessor, ...] = ()
    if site.wide and known and not wider.schedule:
        after = _awaited(known, Random(f"{name} waits at {now}"))
        asked = tuple(After(run=one.name, when=one.when) for one in after)
        wider = replace(wider, after=asked)
    return new_run(
        after=after,
        name=name,
        user=chance.choice(USERS),
        jobs=jobs,
        groups=groups,
        now=now,
        new_id=new_id,
        policy=wider,
        parent_id=chance.choice(parents) if parents and chance.random() < 0.1 else None,
    )


def _awaited(known: Sequence[RunState], chance: Random) -> tuple[Predecessor, ...]:
    """Some runs wait for one or two others, live or ended."""
    if chance.random() >= WAITING:
        return ()
    chosen = chance.sample(known, min(len(known), chance.choice((1, 1, 2))))
    return tuple(predecessor_of(state, chance.choice(tuple(When))) for state in chosen)


def predecessor_of(state: RunState, when: When, job: SameJob = SameJob.ALL) -> Predecessor:
    """As the service makes it at a submission."""
    return Predecessor(
        run_id=state.run.id,
        name=state.run.name,
        when=When.RUNNING if state.run.policy.schedule else when,
        job=job,
        ended=facts(state) if state.run.status in FINAL_RUN_STATUSES else None,
    )


Work = tuple[list[PlannedJob], list[PlannedGroup], RunPolicy]


def _jobs(chance: Random, site: Site) -> Work:
    count = chance.choices((1, 2, 4), weights=(75, 15, 10))[0]
    together = chance.random() < 0.5
    jobs = [
        PlannedJob(cookie=cookie, replica=0 if together else cookie, spec=_spec(chance))
        for cookie in range(count)
    ]
    return jobs, [], _policy(chance)


def _independent(chance: Random, site: Site) -> Work:
    groups = [
        PlannedGroup(
            group=Group(name=f"group{number}", nodes=chance.randint(1, 3)), spec=_spec(chance)
        )
        for number in range(chance.choice((1, 2)))
    ]
    return [], groups, _policy(chance)


def _gang(chance: Random, site: Site) -> Work:
    """One gang group, at times a second one or a plain one beside it. Its ranked jobs always fit:
    on a node each where they take whole nodes, else anywhere."""
    whole = chance.random() < 0.4
    most = site.largest_place if whole else 4
    size = chance.randint(1, max(1, min(4, most)))
    reserved = chance.choices((0, 1, 2), weights=(50, 35, 15))[0]
    spec = _small_spec(chance, whole_node=whole)
    groups = [
        PlannedGroup(group=Group(name="gang", nodes=size + reserved, gang_size=size), spec=spec)
    ]
    if size < most and chance.random() < 0.3:
        beside = None if chance.random() < 0.6 else 1
        groups.append(
            PlannedGroup(
                group=Group(name="beside", nodes=1, gang_size=beside),
                spec=_small_spec(chance, whole_node=whole),
            )
        )
    policy = replace(
        _policy(chance),
        retry=chance.choice(GANG_RETRIES),
        max_failed_jobs=0,
        restart_completed_jobs=False,
        fail_on_job_restart=False,
        startup_order=chance.choices(tuple(StartupOrder), weights=(70, 15, 15))[0],
    )
    return [], groups, policy


def _widened(
    jobs: list[PlannedJob],
    groups: list[PlannedGroup],
    policy: RunPolicy,
    more: Random,
    site: Site,
) -> Work:
    is_gang = any(planned.group.gang_size is not None for planned in groups)
    together = site.named_places and more.random() < (0.4 if len(jobs) + len(groups) > 1 else 0.2)
    order = policy.startup_order
    if not is_gang and more.random() < 0.25:
        order = more.choice(tuple(StartupOrder))
    limits = Limits(
        reincarnation_timeout=more.choice((600.0, 600.0, 450.0)),
        short_life=more.choices((60.0, 5.0), weights=(80, 20))[0],
    )
    changes: dict[str, Any] = {
        "stop_when_unheard": more.choices(UNHEARD, weights=(80, 6, 6, 4, 4))[0],
        "fleets": more.choices(((), ("fleet",), ("fleet", SPARE)), weights=(70, 15, 15))[0],
    }
    if together and not is_gang:
        size = 1 if groups else 2  # groups may be scaled, and the first node holds them all
        changes["resources"] = Resources(cpu=0.5 * size, memory=GIB * size)
        changes["constraints"] = ()
    by_rank = more.random() < 0.4
    return (
        [replace(one, spec=replace(one.spec, **changes)) for one in jobs],
        [
            replace(
                one,
                group=replace(one.group, monitoring_by_rank=by_rank and is_gang),
                spec=replace(one.spec, **changes),
            )
            for one in groups
        ],
        replace(policy, startup_order=order, same_placement=together, limits=limits),
    )


def _private(
    jobs: list[PlannedJob], groups: list[PlannedGroup], chance: Random
) -> tuple[list[PlannedJob], list[PlannedGroup]]:
    """Some images are had with a password only."""
    if chance.random() >= PRIVATE:
        return jobs, groups
    login = RegistryAuth(username="ann", password="s3cret")
    return (
        [replace(one, spec=replace(one.spec, registry_auth=login)) for one in jobs],
        [replace(one, spec=replace(one.spec, registry_auth=login)) for one in groups],
    )


def _demanding(
    jobs: list[PlannedJob], groups: list[PlannedGroup], chance: Random, site: Site
) -> tuple[list[PlannedJob], list[PlannedGroup]]:
    """Some ask for volumes, which not every node has, and some gangs take whole nodes of which one
    of their jobs needs the first. The first node has all."""
    if any(one.spec.resources.whole_node for one in groups):
        if len(groups) > 1 and not site.named_places and chance.random() < 0.5:
            groups = [groups[0], *(replace(one, spec=_on_first(one.spec)) for one in groups[1:])]
    elif chance.random() < 0.25:
        jobs = [replace(one, spec=_with_volumes(one.spec)) for one in jobs]
        groups = [replace(one, spec=_with_volumes(one.spec)) for one in groups]
    return jobs, groups


def _signalled(
    jobs: list[PlannedJob], groups: list[PlannedGroup], chance: Random
) -> tuple[list[PlannedJob], list[PlannedGroup]]:
    """Some are told before they end."""
    if chance.random() >= SIGNALLED:
        return jobs, groups
    signal = EndSignal(name="SIGUSR1", before=chance.choice((5.0, 60.0, 600.0)))
    return (
        [replace(one, spec=with_signal(one.spec, signal)) for one in jobs],
        [replace(one, spec=with_signal(one.spec, signal)) for one in groups],
    )


def with_signal(spec: JobSpec, signal: EndSignal) -> JobSpec:
    engine = (*spec.resources.engine, EngineAbility.SIGNAL)
    return replace(spec, signal=signal, resources=replace(spec.resources, engine=engine))


def _with_volumes(spec: JobSpec) -> JobSpec:
    return replace(spec, resources=replace(spec.resources, engine=(EngineAbility.VOLUMES,)))


def _on_first(spec: JobSpec) -> JobSpec:
    first = Constraint(attribute="number", operator=Operator.LT, values=("1",))
    return replace(spec, constraints=(*spec.constraints, first))


def _spec(chance: Random) -> JobSpec:
    start, script = random_start(chance), random_script(chance)
    return JobSpec(
        image=image_of(start),
        env=script.env(),
        resources=_resources(chance),
        constraints=_constraints(chance),
        restart_exit_code=chance.choice((None, SPARED_EXIT_CODE)),
    )


def _small_spec(chance: Random, *, whole_node: bool) -> JobSpec:
    """Fits every node."""
    spec = _spec(chance)
    small = Resources(cpu=0.5, memory=GIB, whole_node=whole_node, unset=tuple(Amount))
    preferred = tuple(one for one in spec.constraints if not one.required)
    return replace(spec, resources=small, constraints=preferred)


def _constraints(chance: Random) -> tuple[Constraint, ...]:
    """The first node satisfies those that are required; it can hold any job."""
    if chance.random() < 0.8:
        return ()
    return (
        chance.choice(
            (
                Constraint(attribute="number", operator=Operator.LT, values=("2",)),
                Constraint(attribute="rack", operator=Operator.EQ, values=("r0",)),
                Constraint(attribute="number", operator=Operator.GE, values=("1",), required=False),
                Constraint(attribute="cooled", operator=Operator.NOT_EXISTS),
            )
        ),
    )


def _resources(chance: Random) -> Resources:
    """The first node can hold any of them, once it is empty."""
    return Resources(
        cpu=chance.choice((0.5, 1.0, 2.0, 4.0)),
        memory=chance.choice((1, 2, 8)) * GIB,
        gpu=GpuNeed(count=chance.choices((0, 1, 2), weights=(80, 15, 5))[0]),
        unset=tuple(Amount),
    )


def _policy(chance: Random) -> RunPolicy:
    return RunPolicy(
        retry=chance.choice(RETRIES),
        stop_duration=chance.choice((0.0, 3.0, 60.0, 300.0)),
        max_duration=chance.choices((None, 30.0, 200.0), weights=(80, 10, 10))[0],
        scheduling_timeout=chance.choices((None, 0.0, 300.0), weights=(85, 5, 10))[0],
        stop_criteria=chance.choices(tuple(StopCriteria), weights=(90, 10))[0],
        max_failed_jobs=chance.choices((0, 1), weights=(80, 20))[0],
        max_failed_attempts=chance.choices((None, 2), weights=(90, 10))[0],
        fail_on_job_restart=chance.random() < 0.05,
        restart_completed_jobs=chance.random() < 0.03,
    )
