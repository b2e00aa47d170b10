"""`./dev sim --controllers`: three controllers on one database, and what may befall them.

After each commit, the checks of all worlds hold. Beyond them: one controller decides under each
token; what a user was told is stored; each client key has one run; somebody leads soon after
somebody can.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from controller import following
from controller.api.http.holding import HELD_SECONDS
from controller.assembly import Assembly
from controller.lifecycle.model import Run, RunState
from controller.pipelines.admissions import NameTaken
from controller.relay import Leader
from controller.service.runs.submissions import SAME_MOMENT_SECONDS
from controller.store.errors import LeaseLost, StoreUnavailable
from fairlead.model.statuses import FINAL_RUN_STATUSES
from tests.simulation.controller import Gone
from tests.simulation.controllers import Machine, Process, Surroundings
from tests.simulation.keyed import SHARED, KeyedUser, kinds
from tests.simulation.messages import Ask as KeyedAsk
from tests.simulation.messages import Messages
from tests.simulation.people import Ask, User
from tests.simulation.shared import SharedDatabase
from tests.simulation.virtual import VirtualLoop
from tests.simulation.world import Outcome, Scale, World, played

log = logging.getLogger(__name__)

CONTROLLERS = 3
FAULTS_UNTIL = 900.0
LEADS_WITHIN = 20.0
"""Seconds after which somebody leads if somebody could all the time: the lease's 5 s, the server's
patience with an idle transaction, and the longest load."""
SELDOM_SECONDS = 0.5
"""Between two looks of a controller that waits: each costs as much as a step of a job."""
_RETRY_SECONDS = 0.1


def simulate_controllers(seed: int, *, is_fenced: bool = True) -> Outcome:
    """`is_fenced`: False lets a controller write without its lease, which must be found."""
    usual, following.LOOK_SECONDS = following.LOOK_SECONDS, SELDOM_SECONDS
    try:
        return played(
            lambda loop, folder: Controllers(seed, loop, folder, is_fenced=is_fenced), seed
        ).outcome()
    finally:
        following.LOOK_SECONDS = usual


class Controllers(World):
    def __init__(
        self, seed: int, loop: VirtualLoop, folder: Path, *, is_fenced: bool = True
    ) -> None:
        super().__init__(seed, Scale(runs=8, faults_until=FAULTS_UNTIL), loop, folder)
        self.shared = self.database = SharedDatabase()
        self.around = Surroundings(self.shared, self.nodes, self.checks, loop, folder, self.chance)
        self.around.is_fenced, self.around.end = is_fenced, self.end
        self.machines = [Machine(f"c{number}", self.around) for number in range(CONTROLLERS)]
        self._dispatch = self.chance("which controller")
        self.touched_at = 0.0
        """When a controller was last harmed, or a harm ended."""
        self._keyed: list[KeyedUser] = []
        self.held = 0
        """Changes that came to a controller in doubt."""

    def outcome(self) -> Outcome:
        return replace(super().outcome(), controllers=self.around.led)

    async def story(self) -> None:
        chance = self.chance("story")
        self.make_nodes(chance)
        for machine in self.machines:
            self.spawn(machine.go_on())
        watching = self.spawn(self._watch())
        await self.admin.register_fleets()
        work = [self.spawn(self.join(node)) for node in self.nodes.values()]
        users = [
            User(self, f"run-{n}", self.chance(f"run-{n}"), self.chance(f"run-{n}/more"))
            for n in range(chance.randint(1, 6))
        ]
        messages = Messages(self)
        self._keyed = [
            KeyedUser(self, messages, f"keyed-{n}", self.chance(f"keyed-{n}"), kind)
            for n, kind in enumerate(kinds())
        ]
        lives = [one.live for one in users] + [one.live for one in self._keyed]
        work += [self.spawn(live(FAULTS_UNTIL)) for live in lives]
        faults = self.spawn(PeerFaults(self, self.chance("faults")).go_on())
        await asyncio.sleep(FAULTS_UNTIL)
        faults.cancel()
        await asyncio.gather(faults, return_exceptions=True)
        await self._heal()
        await asyncio.gather(*work)
        for user in users:
            await user.close()
        for keyed in self._keyed:
            await keyed.close(self)
        # Nobody can take over any more: their looks would take most of the time of the hours that
        # follow.
        for machine in self.machines:
            if machine.process is None or not machine.process.leads():
                machine.is_on = False
                machine.kill()
        await self.settle()
        watching.cancel()
        self._check_kept()

    # -- what people can do -------------------------------------------------------------------

    async def asked(self, ask: Ask) -> bool:
        async def work(process: Process) -> None:
            assert process.assembly is not None
            await ask(process.assembly.pipeline)

        return await self._carried(work)

    async def submit(self, ask: KeyedAsk) -> None:
        async def work(process: Process) -> None:
            assert process.submissions is not None
            await ask(process.submissions)

        await self._carried(work)

    async def _carried(self, work: Callable[[Process], Coroutine[Any, Any, None]]) -> bool:
        """Return whether a leader has done it. It goes to the next one if the first says that
        nothing was done."""
        machine, until = self._dispatch.choice(self.machines), self.loop.time() + HELD_SECONDS
        with contextlib.suppress(Gone, StoreUnavailable, LeaseLost, NameTaken):
            while self.loop.time() < until:
                leader = await self._leader_at(machine)
                if leader is None:
                    break
                if await leader.perform(self._changed(leader, work)):
                    return True
                await asyncio.sleep(_RETRY_SECONDS)
        await asyncio.sleep(_RETRY_SECONDS)
        return False

    async def _changed(
        self, leader: Process, work: Callable[[Process], Coroutine[Any, Any, None]]
    ) -> bool:
        """Hold a change as the API does, while it is in doubt whether its controller leads."""
        if not leader.leading.is_sure():
            self.held += 1
            if not await leader.leading.until_known(HELD_SECONDS):
                return False
        # Else it has ended meanwhile, and its last word was that it leads.
        if leader.assembly is None:
            return False
        await work(leader)
        return True

    async def _leader_at(self, machine: Machine) -> Process | None:
        """Return where a connection to this machine arrives; None: nowhere."""
        until = self.loop.time() + HELD_SECONDS
        while self.loop.time() < until:
            process = machine.process
            if process is None or process.gone.is_set():
                return None
            if process.assembly is not None:
                return process
            found = self._process_at(process.relay.leader)
            if found is not None and found.assembly is not None and not process.is_paused:
                return found
            await asyncio.sleep(_RETRY_SECONDS)
        return None

    def _process_at(self, leader: Leader | None) -> Process | None:
        url = None if leader is None else leader.url
        found = next((one.process for one in self.machines if one.url == url), None)
        return None if found is None or found.gone.is_set() else found

    # -- checks -------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Somebody leads soon after somebody can."""
        since = self.loop.time()
        while True:
            await asyncio.sleep(0.5)
            able = any(one.is_able() for one in self.machines)
            if not able or any(one.process and one.process.leads() for one in self.machines):
                since = self.loop.time()
            elif self.loop.time() - max(since, self.touched_at) > LEADS_WITHIN:
                self.checks.violated(f"nobody leads for {LEADS_WITHIN:g} s, and somebody could")

    def _check_kept(self) -> None:
        made: dict[str, list[RunState]] = {}
        for state in self.database.runs.values():
            if state.run.client_key is not None:
                made.setdefault(state.run.client_key, []).append(state)
        for user in self._keyed:
            for fault in user.faults(made):
                self.checks.violated(fault)
        self._check_names()

    def _check_names(self) -> None:
        """Nobody has a name before it is free."""
        lives: dict[str, list[Run]] = {}
        for run in (state.run for state in self.database.runs.values()):
            if run.name.startswith(SHARED):
                lives.setdefault(run.name, []).append(run)
        for name, runs in lives.items():
            runs.sort(key=lambda run: run.submitted_at)
            for before, after in pairwise(runs):
                ended = before.finished_at
                # Within a second before, it was checked and waited for its turn.
                is_late = ended is None or after.submitted_at < ended - SAME_MOMENT_SECONDS
                if is_late and not self.checks.clock_jumped:
                    self.checks.violated(f"{after.id} has the name {name} beside {before.id}")

    def _claimed_by_ended(self) -> Iterator[str]:
        for process in (one.process for one in self.machines):
            if process is not None and process.leads() and process.assembly is not None:
                yield from self._claims(process.assembly)

    def _claims(self, assembly: Assembly) -> Iterator[str]:
        for run in (state.run for state in self.database.runs.values()):
            over = run.status in FINAL_RUN_STATUSES
            if over and assembly.pipeline.live_run_named(run.name) == run.id:
                yield f"the name {run.name} is still claimed by {run.id}, which is over"

    async def _heal(self) -> None:
        for machine in self.machines:
            machine.heal()
        await super()._heal()

    async def _clear_away(self) -> None:
        for machine in self.machines:
            machine.is_on = False
        for machine in self.machines:
            machine.kill()
        for process in self.around.processes:
            process.kill()
            await self.loop.bury(process.life)
        await super()._clear_away()


class PeerFaults:
    """What befalls the controllers, and a little of what befalls nodes."""

    def __init__(self, world: Controllers, chance: Random) -> None:
        self._world = world
        self._chance = chance
        self._kinds: dict[Callable[[Machine], Awaitable[None]], int] = {
            self.killed: 10,
            self.killed_between_two_steps: 12,
            self.paused: 8,
            self.paused_between_two_steps: 10,
            self.vanishes: 6,
            self.stopped: 8,
            self.cut_from_database: 8,
            self.cut_from_database_between_two_steps: 8,
            self.cut_from_nodes: 6,
            self.answers_are_lost: 6,
            self.database_restarts: 3,
            self.link_of_a_node_is_cut: 6,
        }
        # They make the checks forgive more, so they happen in some worlds only.
        if chance.random() < 0.3:
            self._kinds[self.clock_is_wrong] = 10

    async def go_on(self) -> None:
        """Until cancelled; faults overlap."""
        kinds, weights = list(self._kinds), list(self._kinds.values())
        mean_pause = self._chance.choice((5.0, 15.0, 60.0))
        async with asyncio.TaskGroup() as going:
            while True:
                await asyncio.sleep(self._chance.expovariate(1.0 / mean_pause))
                (kind,) = self._chance.choices(kinds, weights)
                machine = self._target()
                log.info("fault: %s %s", kind.__name__, machine.name)
                going.create_task(self._do(kind, machine))

    def _target(self) -> Machine:
        """Mostly the leader."""
        machines = self._world.machines
        leaders = [one for one in machines if one.process and one.process.leads()]
        if leaders and self._chance.random() < 0.7:
            return leaders[0]
        return self._chance.choice(machines)

    async def _do(self, kind: Callable[[Machine], Awaitable[None]], machine: Machine) -> None:
        """Nobody can be blamed for what was not heard meanwhile."""
        with self._world.checks.disturbed(list(self._world.nodes)):
            self._touch()
            try:
                await kind(machine)
            finally:
                self._touch()
            await asyncio.sleep(LEADS_WITHIN)

    def _touch(self) -> None:
        self._world.touched_at = self._world.loop.time()

    def _steps(self) -> int:
        chance = self._chance
        return chance.choice((1, chance.randint(1, 30), chance.randint(1, 300)))

    async def _between_two_steps(self, machine: Machine, harm: Callable[[], None]) -> None:
        """Do it when the controller is about to take its next step but N."""
        process = machine.process
        if process is None or process.gone.is_set():
            return
        done = asyncio.Event()

        def act() -> None:
            self._touch()
            harm()
            done.set()

        self._world.loop.after_steps(process.life, self._steps(), act)
        waits = [asyncio.ensure_future(done.wait()), asyncio.ensure_future(process.gone.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Also when the faults end: none may come after that.
            self._world.loop.forget_steps(process.life)
            for one in waits:
                one.cancel()

    async def killed(self, machine: Machine) -> None:
        machine.kill()

    async def killed_between_two_steps(self, machine: Machine) -> None:
        await self._between_two_steps(machine, machine.kill)

    async def stopped(self, machine: Machine) -> None:
        if machine.process is not None and not machine.process.gone.is_set():
            machine.process.terminate()

    async def paused(self, machine: Machine) -> None:
        process = machine.process
        if process is not None and not process.is_paused:
            process.pause()
            await self._later(process.go_on, 1.0, 60.0)

    async def paused_between_two_steps(self, machine: Machine) -> None:
        process = machine.process
        if process is not None and not process.is_paused:
            await self._between_two_steps(machine, process.pause)
            await self._later(process.go_on, 1.0, 60.0)

    async def vanishes(self, machine: Machine) -> None:
        """The machine itself: nobody is told."""
        machine.is_on = False
        machine.cut_from_database()
        machine.kill()
        await self._later(machine.heal, 1.0, 200.0)

    async def cut_from_database(self, machine: Machine) -> None:
        machine.cut_from_database()
        await self._later(machine.mend, 0.5, 90.0)

    async def cut_from_database_between_two_steps(self, machine: Machine) -> None:
        await self._between_two_steps(machine, machine.cut_from_database)
        await self._later(machine.mend, 0.5, 90.0)

    async def cut_from_nodes(self, machine: Machine) -> None:
        machine.cut_from_nodes()
        await self._later(machine.mend, 1.0, 90.0)

    async def answers_are_lost(self, machine: Machine) -> None:
        process = machine.process
        if process is not None:
            process.way.failing, process.way.slowest = 0.3, 1.0
            await self._later(process.way.clear_up, 5.0, 60.0)

    async def database_restarts(self, _: Machine) -> None:
        for machine in self._world.machines:
            machine.cut_from_database()
        # Longer than it takes to notice: all sessions end.
        await self._later(self._mend_all, 4.0, 30.0)

    def _mend_all(self) -> None:
        for machine in self._world.machines:
            machine.mend()

    async def clock_is_wrong(self, machine: Machine) -> None:
        self._world.checks.clock_jumped = True
        machine.clock.jumped = self._chance.choice((-3600.0, -60.0, -1.0, 1.0, 60.0, 3600.0))

        def set_right() -> None:
            machine.clock.jumped = 0.0

        await self._later(set_right, 1.0, 200.0)

    async def link_of_a_node_is_cut(self, _: Machine) -> None:
        self._chance.choice(list(self._world.nodes.values())).cut()

    async def _later(self, undo: Callable[[], None], least: float, most: float) -> None:
        try:
            await asyncio.sleep(self._chance.uniform(least, most))
        finally:
            # Also if this is cancelled as the faults end.
            undo()
