"""Simulated services: their owners roll versions out and back, and visitors send requests.

A replica's port refuses now and then. What must hold of each commit is in `replicas`; here, that a
replica whose container is asked to stop has no request left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from msgspec.structs import replace

from controller.lifecycle import reports
from controller.lifecycle.model import (
    Amount,
    Group,
    JobSpec,
    Resources,
    RetryEvent,
    RetryPolicy,
    RunPolicy,
    RunState,
    RunType,
)
from controller.lifecycle.reports import Report
from controller.lifecycle.runs.first_state import new_run
from controller.traffic.routes import ReplicaRoute, Route
from fairlead.model.reasons import Reason
from fairlead.model.service import (
    Probe,
    ReplicaGroup,
    Scaling,
    ScalingMetric,
    Serves,
    ServicePolicy,
)
from fairlead.model.spec import PlannedGroup
from tests.simulation.checks import Checks
from tests.simulation.controller import ControllerLife
from tests.simulation.people import User
from tests.simulation.script import image_of, random_script, random_start
from tests.simulation.virtual import seeded_chance
from tests.simulation.workload import GIB, USERS

_RETRIES = (
    RetryPolicy(on_events=frozenset(RetryEvent)),
    RetryPolicy(on_events=frozenset({RetryEvent.INTERRUPTION})),
)
_MAX_REQUEST = 20.0
"""Seconds: shorter than a drain may take."""


def random_service(name: str, chance: Random, now: float, new_id: Callable[[], str]) -> RunState:
    """Every node can hold a replica."""
    groups = tuple(_group(f"group{number}", chance) for number in range(chance.choice((1, 1, 2))))
    service = ServicePolicy(
        port=80,
        groups=groups,
        surge=chance.choice((1, 1, 2)),
        rollout_timeout=chance.choice((60.0, 300.0, 600.0)),
        unhealthy_after=chance.choice((None, None, 90.0)),
    )
    return new_run(
        name=name,
        user=chance.choice(USERS),
        groups=[
            PlannedGroup(
                group=Group(name=group.name, nodes=group.least * group.nodes), spec=_spec(chance)
            )
            for group in groups
        ],
        now=now,
        new_id=new_id,
        type=RunType.SERVICE,
        policy=RunPolicy(retry=chance.choice(_RETRIES), stop_duration=chance.choice((0.0, 60.0))),
        service=service,
    )


def _group(name: str, chance: Random) -> ReplicaGroup:
    least = chance.choice((0, 1, 1, 2, 3))
    most = least + chance.choice((0, 1, 2)) or 1
    scaling = Scaling(
        metric=chance.choice(tuple(ScalingMetric)),
        target=chance.choice((0.05, 0.5)),
        scale_up_delay=chance.choice((5.0, 60.0)),
        scale_down_delay=chance.choice((5.0, 120.0)),
    )
    return ReplicaGroup(
        name=name,
        least=least,
        most=most,
        scaling=scaling if least < most else None,
        nodes=chance.choice((1, 1, 2)),
    )


def _spec(chance: Random) -> JobSpec:
    probe = Probe(interval=chance.choice((5.0, 15.0)), ready_after=chance.choice((1, 1, 3)))
    return JobSpec(
        image=image_of(random_start(chance)),
        env=replace(random_script(chance), seconds=chance.uniform(60.0, 3000.0)).env(),
        resources=Resources(cpu=0.5, memory=GIB, unset=tuple(Amount)),
        serves=Serves(port=80, probes=(probe,)),
    )


class Owner(User):
    """A service and what its owner does about it; it is stopped at the end."""

    def _new_run(self, parents: Sequence[str]) -> RunState:
        chance = self._chance
        made = random_service(
            self._name, chance, self._office.clock.now(), seeded_chance(chance).new_id
        )
        wish = reports.ScaleRequested(run_id=made.run.id, group="", nodes=0, by=made.run.user)
        self.note(wish)  # a service scales by itself
        return made

    def _end(self, state: RunState) -> Report | None:
        return reports.StopRequested(run_id=state.run.id, abort=False, by=state.run.user)

    def _change(self) -> Report:
        assert self._state is not None
        chance = self._chance
        state = self._office.database.runs.get(self._state.run.id, self._state)
        run = state.run
        if chance.random() < 0.2 or not run.deployments:
            return super()._change()
        if chance.random() < 0.25:
            to = chance.choice(run.deployments).number
            return reports.RollbackRequested(run_id=run.id, to=to, by=run.user)
        now = run.deployments[-1]
        changed = {name: _changed(spec, chance) for name, spec in now.specs.items()}
        made = replace(now, specs=changed, by=run.user, at=self._office.clock.now(), of=None)
        return reports.DeployRequested(run_id=run.id, deployment=replace(made, message=None))


def _changed(spec: JobSpec, chance: Random) -> JobSpec:
    return spec if chance.random() < 0.3 else replace(_spec(chance), serves=spec.serves)


class Visitors:
    """Clients of all services, through the routes of the controller that works now."""

    def __init__(
        self,
        newest: Callable[[], ControllerLife],
        checks: Checks,
        chance: Random,
        spawn: Callable[..., asyncio.Task[None]],
    ) -> None:
        self._newest = newest
        self._checks = checks
        self._chance = chance
        self._spawn = spawn

    async def come(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / 4.0))
            life = self._newest()
            if life.assembly is None or life.gone.is_set():
                continue
            for route in list(life.assembly.routes.all()):
                if self._is_dev_environment(route):
                    continue
                if route.sleeping and self._chance.random() < 0.3:
                    life.assembly.pipeline.post(reports.WakeRequested(run_id=route.run_id))
                elif route.replicas and self._chance.random() < 0.5:
                    replica = self._chance.choice(route.replicas)
                    self._spawn(self._visit(life, route, replica))

    def _is_dev_environment(self, route: Route) -> bool:
        state = self._checks.runs.get(route.run_id)
        return state is not None and state.run.policy.dev_environment is not None

    async def _visit(self, life: ControllerLife, route: Route, replica: ReplicaRoute) -> None:
        assert life.assembly is not None
        attempt_id = replica.attempt_id
        container = self._checks.containers.get(attempt_id)
        asked = 0 if container is None else len(container.stops)
        counted = life.assembly.traffic.begin(route.run_id, replica.group, attempt_id)
        await asyncio.sleep(self._chance.uniform(0.0, _MAX_REQUEST))
        counted.end()
        if container is None or life.gone.is_set() or life is not self._newest():
            return
        if len(container.stops) > asked and self._was_free_to_drain(route, attempt_id):
            self._checks.violated(f"{attempt_id} was asked to stop while it had a request")

    def _was_free_to_drain(self, route: Route, attempt_id: str) -> bool:
        """Return whether nothing but the controller's own plans ended this replica."""
        state = self._checks.runs.get(route.run_id)
        if state is None:
            return False
        attempts = (one for job in state.jobs for one in job.attempts if one.id == attempt_id)
        return any(one.reason is Reason.SCALED_DOWN for one in attempts)
