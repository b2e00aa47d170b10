"""A gang that loses a rented machine without notice: the next one is ordered at once, and once, and
the gang waits for it in what is left for as long as it boots."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.clouds.base import NoCapacity
from controller.lifecycle.attempts.allocations import is_kept
from controller.lifecycle.inventory import Budget
from controller.lifecycle.machines.model import MachineEnd, MachineStatus
from controller.lifecycle.membership.ranks import is_held
from controller.lifecycle.model import (
    JobSpec,
    NodeStatus,
    Resources,
    RetryPolicy,
    RunPolicy,
    RunState,
)
from controller.lifecycle.reports import RunnerExited, RunnerStarted, TaskAccepted, TaskRemoved
from controller.lifecycle.runs.first_state import new_run
from controller.service.runs.explanations import why_not_whole
from fairlead.model.reasons import Reason, RetryEvent, SwitchReason
from fairlead.model.spec import PlannedGroup
from fairlead.model.statuses import AttemptStatus
from tests.doubles.clouds import MemoryCloud
from tests.unit.machines.parts import fleet, offer
from tests.unit.machines.renting import Renting, quick, renting
from tests.unit.scheduling import parts

__all__ = ["quick"]


class GangBed:
    """A gang that runs on rented machines, one rank on each."""

    def __init__(self, lab: Renting, run: RunState) -> None:
        self.lab = lab
        self.run_id = run.run.id
        self.first, *self.others, self.second = lab.rentals.committed
        self.silent: str | None = None
        """The machine whose shim confirms nothing."""

    @property
    def state(self) -> RunState:
        return self.lab.pipeline.known[self.run_id]

    def lasts(self) -> list[AttemptStatus]:
        return [job.attempts[-1].status for job in self.state.jobs]

    def switches(self) -> list[str]:
        return [one.reason for one in self.state.run.switches]

    async def lose(self, machine_id: str) -> None:
        """The machine is gone, and its node answers no more."""
        node = self.lab.pipeline.nodes[machine_id]
        silent = replace(node, status=NodeStatus.UNREACHABLE)
        await self.lab.pipeline.save_node(silent, machine_id)
        del self.lab.cloud.instances[self.lab.rentals.committed[machine_id].instance_id or ""]

    async def accepted(self, *, runs: bool = False) -> None:
        """The shims have the tasks of all that is placed."""
        for job in self.state.jobs:
            last = job.attempts[-1]
            if last.status is AttemptStatus.PROVISIONING:
                ids = {"run_id": self.run_id, "attempt_id": last.id}
                await self.lab.pipeline.report(TaskAccepted(**ids))
                if runs:
                    await self.lab.pipeline.report(RunnerStarted(at=self.lab.clock.now(), **ids))

    def allocation(self, machine_id: str) -> str:
        """The id of what the gang holds on the machine."""
        here = (one for one in self.state.allocations if one.node_id == machine_id)
        (held,) = (one for one in here if is_held(one))
        return held.id

    async def fail(self, machine_id: str) -> None:
        """The rank there ends by itself, with an error."""
        (attempt,) = (
            job.attempts[-1] for job in self.state.jobs if job.attempts[-1].node_id == machine_id
        )
        ids = {"run_id": self.run_id, "attempt_id": attempt.id}
        failed = RunnerExited(reason=Reason.CONTAINER_EXITED_WITH_ERROR, exit_code=1, **ids)
        await self.lab.pipeline.report(failed)

    def stopped(self) -> bool:
        """The shims confirm the end of all that ends; True once the gang has begun again."""
        state = self.state
        for job in state.jobs:
            last = job.attempts[-1]
            is_silent = last.node_id == self.silent
            if last.status is AttemptStatus.TERMINATING and not is_silent:
                gone = not is_kept(state.run, last)
                ids = {"run_id": self.run_id, "attempt_id": last.id}
                self.lab.pipeline.post(TaskRemoved(allocation_released=gone, **ids))
        now = state.run.incarnation
        begun = all(job.attempts[-1].incarnation == now for job in state.jobs)
        return begun and bool(self.switches())

    async def comes_whole(self, kept: str) -> None:
        """The machine that was ordered last boots, and the gang is whole in what it kept."""
        last = list(self.lab.rentals.committed)[-1]
        await self.lab.until(lambda: bool(self.lab.rentals.committed[last].instance_id))
        await self.lab.connect(last)
        await self.lab.until(lambda: bool(self.lab.pipeline.runs_on(last)))
        assert self.allocation(self.first) == kept
        assert len(self.switches()) == 1


async def gang_on(lab: Renting, ranks: int = 2) -> GangBed:
    spec = JobSpec(image="busybox", resources=Resources(whole_node=True))
    run = new_run(
        name="gang",
        user="ada",
        groups=[PlannedGroup(group=parts.gang(ranks), spec=spec)],
        policy=RunPolicy(retry=RetryPolicy(on_events=frozenset(RetryEvent))),
        now=0.0,
        new_id=parts.new_id,
    )
    await lab.pipeline.admit(run)
    await lab.connect_all(ranks)
    await lab.until(lambda: all(lab.pipeline.runs_on(one) for one in lab.rentals.committed))
    bed = GangBed(lab, run)
    await bed.accepted(runs=True)
    # A machine that is lost sooner has its offer left out (12.6).
    await lab.after(700.0)
    return bed


@pytest.mark.parametrize("spot", [False, True])
async def test_the_next_machine_is_ordered_while_the_gang_stops_and_waited_for(spot: bool) -> None:
    cloud = MemoryCloud(offer(spot=spot))
    async with renting(cloud, fleet(idle_duration=0.0)) as lab:
        bed = await gang_on(lab)
        await bed.lose(bed.second)
        await lab.until(lambda: len(lab.rentals.committed) == 3)
        # The other rank has not stopped yet.
        assert AttemptStatus.TERMINATING in bed.lasts()
        (third,) = lab.rentals.committed.keys() - {bed.first, bed.second}
        await lab.until(bed.stopped)
        await lab.until(lambda: AttemptStatus.PROVISIONING in bed.lasts())
        await bed.accepted()
        # Longer than `reincarnation_timeout`, and less than the machine may take to boot.
        await lab.after(900.0)
        waits = "1 of 2 ranks are there: main/1 waits for a machine that is on order"
        assert waits.partition(": ")[2] in (why_not_whole(bed.state, lab.clock.now()) or "")
        assert bed.lasts() == [AttemptStatus.PULLING, AttemptStatus.SUBMITTED]
        await lab.connect(third)
        await lab.until(lambda: bool(lab.pipeline.runs_on(third)))
        assert bed.switches() == [SwitchReason.JOB_ABORTED]
        assert lab.rentals.committed.keys() == {bed.first, bed.second, third}
        assert lab.rentals.committed[bed.first].status is MachineStatus.JOINED


async def test_a_gang_whose_peer_fails_first_waits_for_the_machine_that_is_ordered_next() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud, fleet(idle_duration=0.0)) as lab:
        bed = await gang_on(lab, ranks=3)
        kept, bed.silent = bed.allocation(bed.first), bed.second
        await bed.lose(bed.second)
        # Another rank's collective call breaks before the loss is known.
        await bed.fail(*bed.others)
        await lab.until(bed.stopped, step=0.05)
        await lab.until(lambda: len(lab.rentals.committed) > 3)
        assert bed.switches() == [SwitchReason.JOB_FAILED]
        await bed.comes_whole(kept)


@pytest.mark.parametrize("step", [0.05, 0.6])
async def test_a_gang_waits_for_the_next_offer_when_the_first_is_refused(step: float) -> None:
    cloud = MemoryCloud(offer(), offer("dear", price=2.0))
    async with renting(cloud, fleet(idle_duration=0.0)) as lab:
        bed = await gang_on(lab)
        kept = bed.allocation(bed.first)
        cloud.fails["create"] = [NoCapacity("none left")]
        await bed.lose(bed.second)
        await lab.until(bed.stopped, step)
        await lab.until(lambda: len(lab.rentals.committed) > 3, step)
        assert bed.switches() == [SwitchReason.JOB_ABORTED]
        await bed.comes_whole(kept)


async def test_a_gang_waits_for_the_next_offer_when_the_first_does_not_boot() -> None:
    cloud = MemoryCloud(offer(), offer("dear", price=2.0))
    async with renting(cloud, fleet(idle_duration=0.0)) as lab:
        bed = await gang_on(lab)
        kept = bed.allocation(bed.first)
        await bed.lose(bed.second)
        await lab.until(bed.stopped)
        await lab.until(lambda: AttemptStatus.PROVISIONING in bed.lasts())
        await bed.accepted(runs=True)
        await lab.until(lambda: len(lab.rentals.committed) > 3, 6.0)
        (third, _) = list(lab.rentals.committed)[2:]
        assert lab.rentals.committed[third].end is MachineEnd.BOOT_FAILED
        assert bed.switches() == [SwitchReason.JOB_ABORTED]
        await bed.comes_whole(kept)


async def test_a_gang_gives_up_once_its_next_machine_never_comes() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud, fleet(boot_limit=500.0)) as lab:
        bed = await gang_on(lab)
        await bed.lose(bed.second)
        await lab.until(lambda: len(lab.rentals.committed) == 3)
        (third,) = lab.rentals.committed.keys() - {bed.first, bed.second}
        await lab.until(bed.stopped)
        await lab.until(lambda: AttemptStatus.PROVISIONING in bed.lasts())
        await bed.accepted(runs=True)
        await lab.until(lambda: lab.rentals.committed[third].end is MachineEnd.BOOT_FAILED, 6.0)
        # Its offer is left out, and there is no other one.
        await lab.until(lambda: len(bed.switches()) == 2)
        assert bed.switches()[1] == SwitchReason.PLACEMENT_TOO_SMALL


async def test_a_gang_orders_nothing_for_a_lost_machine_that_no_budget_allows() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud, fleet(budget=Budget(per_hour=2.0))) as lab:
        bed = await gang_on(lab)
        lab.cloud.fails["terminate"] = [RuntimeError("away")] * 1000
        await bed.lose(bed.second)
        await lab.until(lambda: AttemptStatus.TERMINATING in bed.lasts())
        # The machine that is ending counts until it is gone.
        await lab.after(60.0)
        assert len(lab.rentals.committed) == 2


async def test_machines_that_do_not_boot_one_after_the_other_hold_a_gang_for_one_boot_limit() -> (
    None
):
    cloud = MemoryCloud(*(offer(f"kind-{price}", price=price) for price in (1.0, 2.0, 3.0, 4.0)))
    async with renting(cloud, fleet(boot_limit=500.0)) as lab:
        bed = await gang_on(lab)
        await bed.lose(bed.second)
        await lab.until(bed.stopped)
        await lab.until(lambda: AttemptStatus.PROVISIONING in bed.lasts())
        await bed.accepted(runs=True)
        await lab.until(lambda: len(bed.switches()) == 2, 6.0)
        ends = [one.end for one in list(lab.rentals.committed.values())[2:]]
        # The third order was made within the limits of 600 s and 500 s, and boots.
        assert ends == [MachineEnd.BOOT_FAILED, MachineEnd.BOOT_FAILED, None]
        last = bed.state.run.switches[-1]
        assert last.reason == SwitchReason.REINCARNATION_TIMEOUT
        assert (last.message or "").startswith("not whole, and no progress for 1100 s: ")
