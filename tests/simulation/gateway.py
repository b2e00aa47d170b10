"""A simulated gateway: its agent is away now and then, hesitates, reaches no further replica, and
has requests at those that it reached.

A replica whose container is asked to stop by the controller's own plan has no request left there,
unless the gateway was away: then the drain ends by its time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from msgspec.structs import replace

from controller.lifecycle.model import RunState
from fairlead.model.reasons import Reason
from tests.doubles.gateway import FakeGateway
from tests.simulation.checks import Checks
from tests.simulation.services import Owner

NAME = "main"
_MAX_REQUEST = 20.0
_PAUSE = 3.0


class OwnerAtGateway(Owner):
    """A service that is reached at the gateway."""

    def _new_run(self, parents: Sequence[str]) -> RunState:
        made = super()._new_run(parents)
        deployments = tuple(
            replace(one, service=replace(one.service, gateway=NAME)) for one in made.run.deployments
        )
        return replace(made, run=replace(made.run, deployments=deployments))


class GatewayLife:
    """What happens to the agent, and at it."""

    def __init__(
        self,
        agent: FakeGateway,
        checks: Checks,
        chance: Random,
        spawn: Callable[..., asyncio.Task[None]],
    ) -> None:
        self._agent = agent
        self._checks = checks
        self._chance = chance
        self._spawn = spawn
        self._outages = 0

    async def go_on(self) -> None:
        """Outages and hesitations, until cancelled; then the agent is well."""
        visits = self._spawn(self._come())
        try:
            while True:
                await asyncio.sleep(self._chance.expovariate(1 / 150.0))
                await self._trouble()
        finally:
            visits.cancel()
            self._agent.is_away = self._agent.hesitates = self._agent.is_blind = False
            self._agent.apply_newest()

    async def _trouble(self) -> None:
        agent, chance = self._agent, self._chance
        self._outages += 1
        kind = chance.random()
        if kind < 0.2:
            agent.is_blind = True
            await asyncio.sleep(chance.choice((5.0, 60.0, chance.uniform(0.0, 700.0))))
            agent.is_blind = False
            agent.tell_reached()
        elif kind < 0.7:
            agent.is_away = True
            agent.hang_up()
            await asyncio.sleep(chance.choice((1.0, 30.0, chance.uniform(0.0, 700.0))))
            agent.is_away = False
        else:
            agent.hesitates = True
            await asyncio.sleep(chance.uniform(0.0, 30.0))
            agent.hesitates = False
            agent.apply_newest()

    async def _come(self) -> None:
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / _PAUSE))
            self._check_registered()
            served = [one for one in self._agent.confirmed if one in self._agent.reached]
            if served and not self._agent.is_away:
                self._spawn(self._visit(self._chance.choice(served)))

    def _check_registered(self) -> None:
        for state in self._checks.runs.values():
            service = state.run.service
            if service is None or service.gateway is None:
                continue
            for job in state.jobs:
                for one in job.attempts:
                    if one.serving.registered_at is not None and one.id not in self._agent.reached:
                        self._checks.violated(f"{one.id} is registered, and was never reached")

    async def _visit(self, replica: str) -> None:
        container = self._checks.containers.get(replica)
        asked = 0 if container is None else len(container.stops)
        outages = self._outages
        self._agent.in_flight[replica] = self._agent.in_flight.get(replica, 0) + 1
        await asyncio.sleep(self._chance.uniform(0.0, _MAX_REQUEST))
        is_stopped = container is not None and len(container.stops) > asked
        if is_stopped and outages == self._outages and self._was_planned(replica):
            self._checks.violated(f"{replica} was asked to stop while its gateway had a request")
        self._agent.in_flight[replica] -= 1
        if not self._agent.in_flight[replica]:
            del self._agent.in_flight[replica]
            self._agent.tell_in_flight()

    def _was_planned(self, replica: str) -> bool:
        """Return whether nothing but the controller's own plans ended this replica."""
        attempts = (
            one
            for state in self._checks.runs.values()
            for job in state.jobs
            for one in job.attempts
            if one.id == replica
        )
        return any(one.reason is Reason.SCALED_DOWN for one in attempts)
