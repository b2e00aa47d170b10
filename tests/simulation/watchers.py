"""Simulated users of `apply --watch`. What must hold of each commit is in `watched`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from msgspec.structs import replace

from controller.lifecycle import reports
from controller.lifecycle.model import (
    Amount,
    Band,
    JobSpec,
    OnParentEnd,
    Resources,
    RunPolicy,
    RunState,
)
from controller.lifecycle.reports import Report
from controller.lifecycle.runs.first_state import PlannedJob, new_run
from fairlead.model.starts import LEASE_SECONDS
from fairlead.model.statuses import FINAL_RUN_STATUSES
from tests.simulation.people import User
from tests.simulation.script import SPARED_EXIT_CODE, Start, image_of, random_script
from tests.simulation.virtual import seeded_chance
from tests.simulation.workload import GIB, RETRIES, USERS


def random_watched(
    name: str,
    chance: Random,
    now: float,
    new_id: Callable[[], str],
    parents: Sequence[str],
) -> RunState:
    script = replace(random_script(chance), seconds=chance.uniform(0.0, 90.0))
    fine = (Start.FINE, Start.FINE, Start.FINE, Start.SLOW_PULL)
    return new_run(
        name=name,
        user=chance.choice(USERS),
        jobs=[
            PlannedJob(
                cookie=0,
                replica=0,
                spec=JobSpec(
                    image=image_of(chance.choice(fine)),
                    env=script.env(),
                    resources=Resources(
                        cpu=chance.choice((0.5, 1.0)), memory=GIB, unset=tuple(Amount)
                    ),
                    restart_exit_code=chance.choice((None, SPARED_EXIT_CODE)),
                ),
            )
        ],
        groups=[],
        now=now,
        new_id=new_id,
        policy=RunPolicy(
            keeps_for=chance.choice((600.0, 600.0, 150.0, 20.0)),
            retry=chance.choice(RETRIES),
            stop_duration=chance.choice((0.0, 3.0, 60.0)),
            max_duration=chance.choices((None, 200.0), weights=(80, 20))[0],
            band=chance.choices(tuple(Band), weights=(15, 60, 25))[0],
            on_parent_end=chance.choice(tuple(OnParentEnd)),
        ),
        parent_id=chance.choice(parents) if parents and chance.random() < 0.3 else None,
    )


class Watcher(User):
    """Whoever iterates on a job: a client or two come and go, and ask for starts."""

    async def live(self, latest: float) -> None:
        async with asyncio.TaskGroup() as going:
            living = going.create_task(super().live(latest))
            for number in range(self._more.choice((0, 1, 1, 2))):
                chance = Random(f"{self._name} {number} {self._more.random()}")
                going.create_task(self._watch(f"w{number}", chance, living))

    def _new_run(self, parents: Sequence[str]) -> RunState:
        chance, office = self._chance, self._office
        new_id = seeded_chance(chance).new_id
        return random_watched(self._name, chance, office.clock.now(), new_id, parents)

    async def _watch(self, name: str, chance: Random, living: asyncio.Task[None]) -> None:
        while (state := self._stored()) is None:
            if living.done():
                return
            await asyncio.sleep(5.0)
        leases = self._office.checks.leases.setdefault(state.run.id, {})
        await asyncio.sleep(chance.choice((0.0, chance.uniform(0.0, 120.0))))
        for _ in range(chance.choice((1, 3, 12, 40))):
            if not self._is_live():
                return
            now = self._office.clock.now()
            until = now + LEASE_SECONDS
            seen = reports.WatcherSeen(run_id=state.run.id, watcher=name, until=until, at=now)
            await self._wish(seen)
            leases[name] = until
            await asyncio.sleep(chance.choices((20.0, 90.0), weights=(95, 5))[0])
            if chance.random() < 0.3:
                await self._ask(chance)
        if self._is_live() and chance.random() < 0.5:
            leases[name] = now = self._office.clock.now()
            await self._wish(
                reports.WatcherSeen(run_id=state.run.id, watcher=name, until=now, at=now)
            )

    async def _ask(self, chance: Random) -> None:
        """As the service does; two clients may ask at once."""
        async with asyncio.TaskGroup() as asking:
            for _ in range(chance.choice((1, 1, 1, 2))):
                state = self._stored()
                if state is None or not self._is_live() or not state.jobs[0].attempts:
                    return
                job = state.jobs[0]
                script = replace(random_script(chance), seconds=chance.uniform(0.0, 60.0))
                wish: Report = reports.StartAgainRequested(
                    run_id=state.run.id,
                    attempt_id=job.attempts[-1].id,
                    spec=replace(job.spec, env=script.env()),
                    configuration={"seconds": script.seconds},
                    by=state.run.user,
                    at=self._office.clock.now(),
                )
                asking.create_task(self._wish(wish))

    def _stored(self) -> RunState | None:
        return None if self._state is None else self._office.database.runs.get(self._state.run.id)

    def _is_live(self) -> bool:
        state = self._stored()
        return state is not None and state.run.status not in FINAL_RUN_STATUSES
