"""Simulated dev environments: their users come by SSH and in the browser, and leave them alone.

What must hold of each commit is in `idle`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from random import Random

from msgspec.structs import replace

from controller.lifecycle import reports
from controller.lifecycle.attempts.inactivity import limit_of
from controller.lifecycle.model import (
    Amount,
    JobSpec,
    Resources,
    RetryEvent,
    RetryPolicy,
    RunPolicy,
    RunState,
    RunType,
)
from controller.lifecycle.reports import Report
from controller.lifecycle.runs.first_state import PlannedJob, new_run
from fairlead.model.dev_environment import BROWSER_PORTS, GROUP, DevEnvironment, Ide
from fairlead.model.service import Serves
from fairlead.model.statuses import AttemptStatus
from tests.simulation.checks import Checks
from tests.simulation.container import Container
from tests.simulation.controller import ControllerLife
from tests.simulation.idle import Use
from tests.simulation.people import User
from tests.simulation.script import Start, image_of, random_script
from tests.simulation.virtual import seeded_chance
from tests.simulation.workload import GIB, USERS

_DURATIONS = (60.0, 120.0, 120.0, 240.0, None)
_RETRIES = (
    RetryPolicy(),
    RetryPolicy(on_events=frozenset({RetryEvent.INTERRUPTION, RetryEvent.ERROR})),
)
_LOOK_SECONDS = 20.0
_STAYS = (3.0, 30.0, 150.0, 500.0)


def random_desk(name: str, chance: Random, now: float, new_id: Callable[[], str]) -> RunState:
    """Every node can hold it."""
    ide = chance.choice((None, Ide.VSCODE, Ide.JUPYTER, Ide.CODE_SERVER))
    port = None if ide is None else BROWSER_PORTS.get(ide)
    script = replace(random_script(chance), seconds=chance.uniform(300.0, 6000.0))
    spec = JobSpec(
        image=image_of(chance.choice((Start.FINE, Start.FINE, Start.SLOW_PULL))),
        env=script.env(),
        resources=Resources(cpu=0.5, memory=GIB, unset=tuple(Amount)),
        serves=None if port is None else Serves(port=port),
    )
    return new_run(
        name=name,
        user=chance.choice(USERS),
        jobs=[PlannedJob(group=GROUP, spec=spec)],
        now=now,
        new_id=new_id,
        type=RunType.DEV_ENVIRONMENT,
        policy=RunPolicy(
            retry=chance.choice(_RETRIES),
            stop_duration=chance.choice((0.0, 60.0)),
            dev_environment=DevEnvironment(
                ide=ide, folder="/workflow", inactivity_duration=chance.choice(_DURATIONS)
            ),
        ),
    )


class Resident(User):
    """A dev environment and what its owner does about it. At the end it is stopped, or left alone
    until it is stopped for that."""

    def _new_run(self, parents: Sequence[str]) -> RunState:
        chance = self._chance
        return random_desk(
            self._name, chance, self._office.clock.now(), seeded_chance(chance).new_id
        )

    def _end(self, state: RunState) -> Report | None:
        if limit_of(state.run) is not None and self._chance.random() < 0.7:
            return None
        return reports.StopRequested(run_id=state.run.id, abort=False, by=state.run.user)


class Guests:
    """The sessions in all dev environments, and the requests to their IDEs."""

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
        chance = self._chance
        while True:
            await asyncio.sleep(_LOOK_SECONDS * chance.uniform(0.5, 1.5))
            for run_id, container in list(self._open()):
                if chance.random() < 0.9:
                    continue
                seconds = chance.choice(_STAYS) * chance.random()
                if chance.random() < 0.5:
                    self._spawn(self._log_in(container, seconds))
                else:
                    self._spawn(self._browse(run_id, seconds))

    def _open(self) -> Iterator[tuple[str, Container]]:
        for run_id, state in self._checks.runs.items():
            if state.run.policy.dev_environment is None:
                continue
            for attempt in state.jobs[0].attempts[-1:]:
                container = self._checks.containers.get(attempt.id)
                if container is not None and attempt.status is AttemptStatus.RUNNING:
                    yield run_id, container

    def _use(self, attempt_id: str, *, is_request: bool = False) -> Use:
        made = Use(began=asyncio.get_running_loop().time(), is_request=is_request)
        self._checks.uses.setdefault(attempt_id, []).append(made)
        return made

    async def _log_in(self, container: Container, seconds: float) -> None:
        if container.ended.is_set():
            return
        use = self._use(container.task_id)
        container.connections += 1
        await asyncio.sleep(seconds)
        container.connections -= 1
        use.ended = asyncio.get_running_loop().time()

    async def _browse(self, run_id: str, seconds: float) -> None:
        """Through the controller that works now; with it the request ends."""
        life = self._newest()
        if life.assembly is None or life.gone.is_set():
            return
        route = life.assembly.routes.get(run_id)
        if route is None or not route.replicas:
            return
        (replica,) = route.replicas
        counted = life.assembly.traffic.begin(run_id, replica.group, replica.attempt_id)
        use = self._use(replica.attempt_id, is_request=True)
        while seconds > 0 and not (life.gone.is_set() or life.superseded):
            await asyncio.sleep(min(1.0, seconds))
            seconds -= 1.0
        use.ended = asyncio.get_running_loop().time()
        counted.end()
