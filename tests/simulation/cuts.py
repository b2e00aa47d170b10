"""`./dev sim --cuts N`: a node's link is cut while healthy jobs run there, N times.

A cut of 30 s or 2 min costs no job anything. One of 10 min is longer than `node_failure.after`:
its node is given up then, and not a moment earlier.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random

import msgspec

from controller.lifecycle.model import Group, JobSpec, Limits, Resources, RunPolicy, RunState
from controller.lifecycle.runs.first_state import PlannedJob, new_run
from fairlead.model.reasons import Reason
from fairlead.model.spec import PlannedGroup
from fairlead.model.statuses import AttemptStatus
from tests.simulation.people import id_of, until_answered
from tests.simulation.script import Script, Start, image_of
from tests.simulation.virtual import EPOCH, VirtualLoop, seeded_chance
from tests.simulation.workload import GIB
from tests.simulation.world import Scale, World, played

CUTS_SECONDS = (30.0, 120.0, 600.0)
GIVES_UP_AFTER = Limits().node_lost_after
NOTICED_WITHIN = 60.0
"""Seconds after that by which a node is given up."""
JOB_SECONDS = 900.0


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """One cut and what it did."""

    seed: int
    seconds: float
    jobs: int
    """That ran on the node when its link was cut."""
    restarted: int
    """Of these, before the node could be given up, or at all where it was not away for so long."""
    given_up_after: tuple[float, ...]
    """Seconds from the cut to each end of an attempt for want of its node."""
    wrong: tuple[str, ...]


def cut(seed: int) -> Cut:
    seconds = CUTS_SECONDS[seed % len(CUTS_SECONDS)]
    return played(lambda loop, folder: _Cuts(seed, seconds, loop, folder), seed).judged()


class _Cuts(World):
    """Healthy jobs on a few nodes, one of which loses its link once."""

    def __init__(self, seed: int, seconds: float, loop: VirtualLoop, folder: Path) -> None:
        super().__init__(seed, Scale(nodes=4), loop, folder)
        self._seconds = seconds
        self._cut_at = 0.0
        self._hit: dict[str, str] = {}

    async def story(self) -> None:
        chance = self.chance("cut")
        self.store_weather.clear_up()
        self.make_nodes(chance)
        await self.rivals.start()
        await self.admin.register_fleets()
        await asyncio.gather(*(self.admin.register(node) for node in self.nodes.values()))
        runs = [self._run(f"run-{number}", chance) for number in range(4)]
        for state in runs:
            await until_answered(self, lambda pipeline, state=state: pipeline.admit(state))  # type: ignore[misc]
        await asyncio.sleep(chance.uniform(60.0, 200.0))
        await self._cut_one(chance)
        await self.settle()

    async def _cut_one(self, chance: Random) -> None:
        busy = [node for node in self.nodes.values() if node.containers()]
        node = chance.choice(busy)
        self._hit = {info.id: id_of(node) for info, _ in node.containers()}
        self._cut_at = self.loop.time()
        if self._seconds > GIVES_UP_AFTER:
            self.call_unreliable(node)
        if chance.random() < 0.5:
            node.cut()
        node.weather.go_silent()
        await asyncio.sleep(self._seconds)
        node.weather.be_heard()

    def _run(self, name: str, chance: Random) -> RunState:
        script = Script(seconds=JOB_SECONDS, lines=30, line_bytes=100)
        spec = JobSpec(
            image=image_of(Start.FINE),
            env=script.env(),
            resources=Resources(cpu=0.25, memory=GIB // 4),
        )
        gang = chance.random() < 0.3
        group = Group(name="gang", nodes=2, gang_size=2)
        return new_run(
            name=name,
            user="ann",
            jobs=[] if gang else [PlannedJob(spec=spec)],
            groups=[PlannedGroup(group=group, spec=spec)] if gang else [],
            now=self.clock.now(),
            new_id=seeded_chance(chance).new_id,
            policy=RunPolicy(),
        )

    def judged(self) -> Cut:
        """A job was restarted when its attempt ended otherwise than done before it may have."""
        ended = [
            (attempt.reason, (attempt.terminating_at or 0.0) - EPOCH - self._cut_at, attempt)
            for state in self.database.runs.values()
            for job in state.jobs
            for attempt in job.attempts
            if attempt.status is not AttemptStatus.DONE
        ]
        early = [
            f"{attempt.id} ended {after:.0f} s after the cut: {reason}"
            for reason, after, attempt in ended
            if self._seconds < GIVES_UP_AFTER or after < GIVES_UP_AFTER
        ]
        late = [
            f"{attempt.id} was given up {after:.0f} s after the cut"
            for reason, after, attempt in ended
            if reason is Reason.INSTANCE_UNREACHABLE and after > GIVES_UP_AFTER + NOTICED_WITHIN
        ]
        given_up = tuple(
            after for reason, after, _ in ended if reason is Reason.INSTANCE_UNREACHABLE
        )
        found = [violation.text for violation in self.checks.violations]
        return Cut(
            seed=self.seed,
            seconds=self._seconds,
            jobs=len(self._hit),
            restarted=len(early),
            given_up_after=given_up,
            wrong=(*early, *late, *found),
        )


def told(cuts: Iterable[Cut]) -> str:
    """A line for each length of a cut."""
    lines = []
    for seconds in CUTS_SECONDS:
        ones = [one for one in cuts if one.seconds == seconds]
        count = Counter(
            jobs=sum(one.jobs for one in ones), restarted=sum(one.restarted for one in ones)
        )
        gone = [after for one in ones for after in one.given_up_after]
        when = f", between {min(gone):.0f} and {max(gone):.0f} s after the cut" if gone else ""
        lines.append(
            f"{len(ones)} cuts of {seconds:g} s under {count['jobs']} running jobs: "
            f"{count['restarted']} restarted within {GIVES_UP_AFTER:g} s; "
            f"{len(gone)} given up{when}"
        )
    return "\n".join(lines)
