"""A turn loop, the calls and a provider in memory: from a waiting job to a machine and back."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest
from msgspec.structs import replace

from common.refusals import Conflict
from controller.api.views import job_view, run_summary
from controller.clock import month_began
from controller.clouds.base import CloudAway
from controller.lifecycle.attempts.allocations import is_kept
from controller.lifecycle.events import NO_RUN
from controller.lifecycle.inventory import Budget
from controller.lifecycle.machines.life import Place
from controller.lifecycle.machines.model import MachineEnd, MachineStatus
from controller.lifecycle.model import NodeStatus, RunState
from controller.lifecycle.reports import (
    RunnerStarted,
    StopRequested,
    TaskAccepted,
    TaskRemoved,
    Tick,
)
from controller.machines import calls
from controller.service.machines.fleets import FleetService
from controller.service.runs.explanations import under_way
from controller.store.base import Changes
from controller.store.errors import StoreUnavailable
from fairlead.model.reasons import SwitchReason
from fairlead.model.statuses import AttemptStatus
from tests.doubles.clouds import MemoryCloud, MemoryInstance
from tests.doubles.memory_store import MemoryDatabase
from tests.unit.machines.parts import fleet, offer
from tests.unit.machines.renting import ADMIN, Renting, quick, renting
from tests.unit.scheduling import parts

__all__ = ["quick"]


async def test_a_waiting_job_gets_a_machine_and_the_machine_ends() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud) as lab:
        await lab.pipeline.admit(parts.run("hello"))
        await lab.until_status(MachineStatus.PROVISIONING)
        (instance,) = await _made(lab)
        assert instance.order is not None
        assert instance.order.user_data == lab.only().name
        assert lab.pipeline.nodes[lab.only().id].status is NodeStatus.EXPECTED
        await lab.join()
        await lab.until(lambda: bool(lab.pipeline.runs_on(lab.only().id)))
        assert lab.only().idle_since is None


async def test_a_machine_whose_node_takes_no_work_yet_is_not_bought_twice() -> None:
    cloud, slow = MemoryCloud(offer()), "its engine does not answer: timed out"
    async with renting(cloud, fleet(boot_limit=300.0)) as lab:
        await lab.pipeline.admit(parts.run("hello"))
        await lab.until(lambda: any(one.instance_id for one in lab.rentals.committed.values()))
        machine = lab.only()
        await lab.connect(machine.id, unfit=slow)
        await lab.after(200.0)
        assert list(lab.rentals.committed) == [machine.id]
        (state,) = lab.pipeline.known.values()
        assert f"booting ({slow}), ordered at" in lab.waits_for(state)
        # One that never does is a failed boot: its offer is left out, and not bought for ever.
        await lab.after(200.0)
        assert lab.rentals.committed[machine.id].end is MachineEnd.BOOT_FAILED
        assert list(lab.rentals.committed) == [machine.id]
        refused = "machine of small in north-1 (on demand, 1.00 an hour) failed: its node took no"
        waits = lab.waits_for(state)
        assert refused in waits
        assert slow in waits


async def test_a_machine_that_boots_may_join_as_long_as_its_fleet_lets_it_boot() -> None:
    async with renting(MemoryCloud(offer()), fleet(boot_limit=300.0)) as lab:
        await lab.pipeline.admit(parts.run("hello"))
        await lab.until(lambda: any(one.instance_id for one in lab.rentals.committed.values()))
        machine = lab.only()

        def may_join_for(limit: float) -> bool:
            registration = lab.pipeline.nodes[machine.id].registration
            return registration is not None and registration.expires_at == (
                machine.ordered_at + limit
            )

        assert may_join_for(300.0)
        for limit in (900.0, 600.0):
            await lab.pipeline.save_fleet(fleet(boot_limit=limit), "burst")
            await lab.until(partial(may_join_for, limit))
        await lab.after(400.0)
        assert lab.only().status is MachineStatus.PROVISIONING


async def test_an_orphan_is_told_once_and_so_is_its_end() -> None:
    cloud, database = MemoryCloud(offer()), MemoryDatabase()

    def told() -> list[str | None]:
        return [one.event.to_status for one in database.events if one.event.run_id == NO_RUN]

    async with renting(cloud, database=database) as lab:
        here, old = lab.manager.installation, lab.clock.now() - 60.0
        cloud.plant("aa", installation=here, created_at=old)
        await lab.until(lambda: bool(told()))
    async with renting(cloud, database=database) as lab:
        await lab.until(lambda: cloud.calls.count("list") > 4)
        assert told() == ["found"]
        lab.clock.time += 600.0
        await lab.until(lambda: len(told()) > 1)
        assert told() == ["found", "gone"]
        assert "terminate" in cloud.calls


async def test_an_orphan_ends_although_controllers_are_restarted_within_its_grace() -> None:
    cloud, database = MemoryCloud(offer()), MemoryDatabase()
    for step in range(3):
        async with renting(cloud, database=database) as lab:
            lab.clock.time += 350.0 * step
            if step == 0:
                here, old = lab.manager.installation, lab.clock.now() - 60.0
                cloud.plant("aa", installation=here, created_at=old)
            await lab.until(lambda: bool(lab.manager.orphans) or "terminate" in cloud.calls)
            await lab.until(lambda: bool(database.events))
    assert "terminate" in cloud.calls


async def test_the_machine_of_a_check_is_not_told_as_an_orphan() -> None:
    cloud, database = MemoryCloud(offer()), MemoryDatabase()
    async with renting(cloud, database=database) as lab:
        trial = lab.manager.try_one("lab", offer(), "aa")
        await _made(lab)
        lab.clock.time += 60.0
        listed = cloud.calls.count("list")
        await lab.until(lambda: cloud.calls.count("list") > listed + 2)
        assert not trial.is_over
        assert (lab.manager.orphans, database.events) == ([], [])


async def test_the_event_of_an_orphan_outlasts_a_commit_that_fails() -> None:
    cloud, database = MemoryCloud(offer()), MemoryDatabase()
    async with renting(cloud, database=database) as lab:
        commit, fails = lab.store.commit, [StoreUnavailable("the disk is full")]

        async def refusing(changes: Changes) -> None:
            if changes.events and fails:
                raise fails.pop()
            await commit(changes)

        lab.store.commit = refusing  # type: ignore[method-assign]
        old = lab.clock.now() - 60.0
        cloud.plant("aa", installation=lab.manager.installation, created_at=old)
        await lab.until(lambda: bool(database.events))
        assert not fails
        assert [one.event.to_status for one in database.events] == ["found"]


async def test_users_read_which_machine_their_job_waits_for() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud) as lab:
        run = parts.run("hello")
        await lab.pipeline.admit(run)

        def shown() -> str:
            state = lab.pipeline.known[run.run.id]
            summary = run_summary(state, {}).pending_reason
            assert summary == job_view(state, state.jobs[0], {}).pending_reason
            return summary or ""

        await lab.until(lambda: "booting" in shown())
        assert "fleet burst rents a machine for it: small in north-1" in shown()
        await lab.join()
        await lab.until(lambda: not shown())


async def test_a_job_that_gets_no_machine_says_so_at_once() -> None:
    async with renting(MemoryCloud(offer()), fleet(max_price=0.5)) as lab:
        await lab.until(lambda: bool(lab.rentals.offers_of("lab")))
        # So the turn that admits the run looks at it; else no look follows for a minute.
        lab.clock.time += 5.0
        run = parts.run("hello")
        await lab.pipeline.admit(run)
        await lab.pipeline.settled()
        (job,) = lab.pipeline.known[run.run.id].jobs
        assert "burst rents no machine for it" in (job.attempts[-1].waits_for or "")
        assert job.attempts[-1].unrentable is not None


async def _made(lab: Renting) -> list[MemoryInstance]:
    await lab.until(lambda: bool(lab.cloud.instances))
    return list(lab.cloud.instances.values())


async def test_a_provider_that_tells_the_address_is_enough() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud) as lab:
        await lab.pipeline.admit(parts.run("hello"))
        await _made(lab)
        next(iter(cloud.instances.values())).place = Place(host="10.0.0.5", port=2222)
        node_id = lab.only().id
        await lab.until(lambda: lab.pipeline.nodes[node_id].status is NodeStatus.CONNECTING)
        address = lab.pipeline.nodes[node_id].address
        assert (address.host, address.port, address.host_key) == (
            "10.0.0.5",
            2222,
            f"key {node_id}",
        )


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_controller_that_was_killed_finds_what_it_had_made(idempotent: bool) -> None:
    cloud = MemoryCloud(offer(), idempotent=idempotent)
    cloud.loses = ["create"]
    cloud.fails["create"] = [CloudAway("connection reset")] * 1000
    cloud.fails["list"] = [CloudAway("connection reset")] * 1000
    database = MemoryDatabase()
    async with renting(cloud, database=database) as lab:
        await lab.pipeline.admit(parts.run("hello"))
        await _made(lab)
    database.held = False
    cloud.fails.clear()
    async with renting(cloud, database=database) as lab:
        await lab.until(lambda: any(one.instance_id for one in lab.rentals.committed.values()))
        assert len(cloud.instances) == 1


async def test_an_idle_machine_is_given_back_only_when_its_shim_agrees() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud, fleet(min=1, idle_duration=60.0)) as lab:
        await lab.join()
        lab.empty = False
        await lab.pipeline.save_fleet(fleet(idle_duration=60.0), "burst")
        await lab.until(lambda: lab.asked > 0, 1.0)
        await lab.until(lambda: not lab.only().closing, 0.1)
        assert lab.only().status is MachineStatus.JOINED
        assert not lab.pipeline.nodes[lab.only().id].cordoned
        lab.empty = True
        await lab.until_status(MachineStatus.TERMINATED)
        assert cloud.instances == {}
        assert lab.pipeline.nodes == {}


async def test_a_machine_whose_node_comes_and_goes_is_given_back() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud, fleet(min=1, idle_duration=60.0)) as lab:
        await lab.join()
        lab.empty = None
        await lab.pipeline.save_fleet(fleet(idle_duration=60.0), "burst")
        await lab.until(lambda: lab.asked > 0, 1.0)
        start = lab.clock.time
        limit = calls.RELEASE_LIMIT_SECONDS
        await lab.until(lambda: lab.clock.time > start + limit - 120.0, 60.0)
        assert lab.only().closing
        await lab.until(lambda: not lab.only().is_live, 60.0)
        assert lab.only().message == "nothing used it, and its shim did not answer for 30 min"
        assert cloud.instances == {}


async def test_a_machine_without_a_record_ends_and_a_foreign_one_does_not() -> None:
    cloud = MemoryCloud(offer())
    orphan = cloud.plant("gone", installation="installation", created_at=0.0)
    foreign = cloud.plant("gone", installation="another", created_at=0.0)
    async with renting(cloud) as lab:
        await lab.until(lambda: bool(lab.manager.orphans))
        assert [one.instance_id for one in lab.manager.orphans] == [orphan]
        await lab.until(lambda: orphan not in cloud.instances, 60.0)
        assert foreign in cloud.instances


async def test_a_machine_whose_node_was_removed_is_given_back() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud, fleet(min=1)) as lab:
        await lab.join()
        first = lab.only()
        await lab.pipeline.save_node(None, first.id)
        await lab.until(lambda: not lab.rentals.committed[first.id].is_live)
        assert lab.rentals.committed[first.id].end is MachineEnd.ASKED


async def test_a_fleet_with_rented_nodes_is_not_removed_and_says_how_they_end() -> None:
    async with renting(MemoryCloud(offer()), fleet(min=1)) as lab:
        await lab.join()
        fleets = FleetService(lab.pipeline, lab.clock, cast(Any, None))
        with pytest.raises(Conflict) as caught:
            await fleets.remove("burst", user=ADMIN)
        assert caught.value.field == "fleet"
        assert str(caught.value) == (
            f"fleet burst still has nodes: {lab.only().name}; move them (`fairlead node set NODE "
            f"--fleet OTHER`) or remove them; rented ones end with `machines: off` in its file"
        )


async def test_machines_that_end_right_after_their_order_are_not_bought_for_ever() -> None:
    cloud = MemoryCloud(offer("first"), offer("second", price=2.0))
    async with renting(cloud, fleet(min=1)) as lab:
        for _ in range(2):
            await lab.until(lambda: bool(cloud.instances))
            await lab.until(lambda: all(one.instance_id for one in lab.rentals.committed.values()))
            cloud.instances.clear()
            await lab.after(60.0)
        await lab.after(400.0)
        ended = lab.rentals.committed.values()
        assert [(one.offer.instance_type, one.end) for one in ended] == [
            ("first", MachineEnd.BOOT_FAILED),
            ("second", MachineEnd.BOOT_FAILED),
        ]
        assert cloud.calls.count("create") == 2


async def test_machines_that_join_and_are_lost_soon_are_not_bought_for_ever() -> None:
    cloud = MemoryCloud(offer("first"), offer("second", price=2.0))
    async with renting(cloud, fleet(min=1)) as lab:
        for number in range(1, 3):
            await lab.until(lambda: bool(cloud.instances))
            (live,) = (one for one in lab.rentals.committed.values() if one.end is None)
            await lab.connect(live.id)
            await lab.until_status(MachineStatus.JOINED)
            node = lab.pipeline.nodes[live.id]
            await lab.pipeline.save_node(replace(node, status=NodeStatus.UNREACHABLE), node.id)
            cloud.instances.clear()
            await lab.until(lambda: all(one.end for one in lab.rentals.committed.values()))
            assert len(lab.rentals.committed) == number
            await lab.after(30.0)
        await lab.after(60.0)
        ended = lab.rentals.committed.values()
        assert [(one.offer.instance_type, one.end) for one in ended] == [
            ("first", MachineEnd.LOST),
            ("second", MachineEnd.LOST),
        ]
        assert cloud.calls.count("create") == 2
        # The first one may be tried again.
        await lab.until(lambda: cloud.calls.count("create") == 3, step=6.0)


async def test_machines_that_have_less_than_promised_are_not_bought_for_ever() -> None:
    cloud = MemoryCloud(offer(cpu=8.0))
    async with renting(cloud, fleet(idle_duration=60.0)) as lab:
        state = parts.run("large", cpu=8.0)
        await lab.pipeline.admit(state)
        await lab.join()
        first = lab.only()
        await lab.after(600.0)
        assert lab.only().end is MachineEnd.IDLE
        assert (
            "it needs 8 CPU, and the nearest offer, small, has 4 free of 4 "
            f"(machine {first.name} had less than the offer small says)"
        ) in lab.waits_for(state)
        # What such a machine does hold is bought.
        await lab.pipeline.admit(parts.run("fits", cpu=4.0))
        await lab.until(lambda: len(lab.rentals.committed) == 2)
        lab.manager.found_faultless("lab")
        await lab.until(lambda: len(lab.rentals.committed) == 3)


async def test_a_restarted_controller_buys_no_machine_that_has_less_than_promised() -> None:
    cloud, database = MemoryCloud(offer(cpu=8.0)), MemoryDatabase()
    async with renting(cloud, fleet(idle_duration=60.0), database) as lab:
        state = parts.run("large", cpu=8.0)
        await lab.pipeline.admit(state)
        await lab.join()
        name = lab.only().name
    async with renting(cloud, database=database) as lab:
        await lab.until(lambda: f"machine {name} had less" in lab.waits_for(state))
        assert lab.only().name == name


async def test_an_order_of_a_run_that_was_stopped_ends_unless_another_run_wants_it() -> None:
    async with renting(MemoryCloud(offer()), fleet(idle_duration=60.0)) as lab:
        run = parts.run("stopped")
        await lab.pipeline.admit(run)
        await lab.until_status(MachineStatus.PROVISIONING)
        await lab.after(30.0)
        assert lab.only().idle_since is None
        await lab.pipeline.report(StopRequested(run_id=run.run.id, abort=True, by="ada"))
        await lab.until(lambda: lab.only().idle_since is not None)
        await lab.after(30.0)
        await lab.pipeline.admit(parts.run("next"))
        await lab.until(lambda: lab.only().idle_since is None)
        await lab.after(120.0)
        assert lab.only().status is MachineStatus.PROVISIONING


async def test_an_order_of_a_run_that_was_stopped_is_no_node_when_it_ends() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud, fleet(idle_duration=60.0)) as lab:
        run = parts.run("stopped")
        await lab.pipeline.admit(run)
        await lab.until_status(MachineStatus.PROVISIONING)
        await lab.pipeline.report(StopRequested(run_id=run.run.id, abort=True, by="ada"))
        stopped_at = lab.clock.now()
        await lab.until_status(MachineStatus.TERMINATED)
        ended = lab.only()
        assert (ended.end, ended.joined_at) == (MachineEnd.IDLE, None)
        assert 60.0 <= (ended.terminating_at or 0.0) - stopped_at <= 70.0
        assert cloud.instances == {}


async def test_the_next_machine_of_a_recalled_job_is_kept_although_idle_ones_end_at_once() -> None:
    cloud = MemoryCloud(offer(spot=True), offer("steady", price=2.0))
    async with renting(cloud, fleet(idle_duration=0.0)) as lab:
        run = parts.run("recalled")
        await lab.pipeline.admit(run)
        await lab.join()
        first = lab.only().id
        await lab.until(lambda: bool(lab.pipeline.runs_on(first)))
        (job,) = lab.pipeline.known[run.run.id].jobs
        ids = {"run_id": run.run.id, "attempt_id": job.attempts[-1].id}
        await lab.pipeline.report(TaskAccepted(**ids))
        await lab.pipeline.report(RunnerStarted(at=lab.clock.now(), **ids))
        recalled = {"draining": True, "recalled_at": lab.clock.now() + 120.0}
        await lab.pipeline.save_node(replace(lab.pipeline.nodes[first], **recalled), first)
        await lab.pipeline.report(Tick(run_id=run.run.id))
        await lab.until(lambda: len(lab.rentals.committed) == 2)
        (second,) = lab.rentals.committed.keys() - {first}
        await lab.until(lambda: lab.rentals.committed[second].instance_id is not None)
        # Its user reads what replaces the machine, wherever they look.
        name = lab.rentals.committed[second].name
        boots = f"its provider takes the node back; a replacement is ordered (machine {name}: "
        await lab.until(lambda: "booting, ordered at" in lab.waits_for(run))
        assert lab.waits_for(run).startswith(f"{boots}steady in north-1")
        state = lab.pipeline.known[run.run.id]
        assert run_summary(state, {}).pending_reason == lab.waits_for(run)
        assert job_view(state, state.jobs[0], {}).pending_reason == lab.waits_for(run)
        (under_way_,) = under_way(state)
        assert under_way_.what.startswith("ends; waits for ")
        assert under_way_.what.endswith(f"; {lab.waits_for(run)}")
        await lab.connect(second)
        await lab.until(lambda: lab.rentals.committed[second].joined_at is not None)
        await lab.after(60.0)
        assert len(lab.rentals.committed) == 2
        assert lab.rentals.committed[second].status is MachineStatus.JOINED
        # Nobody waits for it any more.
        await lab.pipeline.report(StopRequested(run_id=run.run.id, abort=True, by="ada"))
        await lab.until(lambda: lab.rentals.committed[second].end is MachineEnd.IDLE)


async def test_a_gang_that_is_recalled_gets_its_next_machine_while_it_stops_and_no_other() -> None:
    cloud = MemoryCloud(offer(spot=True), offer("steady", price=2.0))
    async with renting(cloud, fleet(idle_duration=0.0)) as lab:
        run = parts.gang_run(2, whole_node=True)
        await lab.pipeline.admit(run)
        await lab.connect_all(2)
        await lab.until(lambda: all(lab.pipeline.runs_on(one) for one in lab.rentals.committed))
        first, second = lab.rentals.committed
        for job in lab.pipeline.known[run.run.id].jobs:
            ids = {"run_id": run.run.id, "attempt_id": job.attempts[-1].id}
            await lab.pipeline.report(TaskAccepted(**ids))
            await lab.pipeline.report(RunnerStarted(at=lab.clock.now(), **ids))
        recalled = {"draining": True, "recalled_at": lab.clock.now() + 120.0}
        await lab.pipeline.save_node(replace(lab.pipeline.nodes[second], **recalled), second)
        await lab.pipeline.report(Tick(run_id=run.run.id))
        await lab.until(lambda: len(lab.rentals.committed) == 3)
        lasts = [job.attempts[-1] for job in lab.pipeline.known[run.run.id].jobs]
        assert {one.status for one in lasts} == {AttemptStatus.TERMINATING}
        (third,) = lab.rentals.committed.keys() - {first, second}
        name = lab.rentals.committed[third].name
        await lab.until(lambda: any(name in (text or "") for text in lab.all_wait_for(run)))
        # The gang begins again where it was, while the other machine boots.
        await lab.until(lambda: _confirm_ends(lab, run.run.id) and _has_begun_again(lab, run))
        await lab.after(60.0)
        await lab.connect_all(3)
        await lab.until(lambda: bool(lab.pipeline.runs_on(third)))
        assert lab.pipeline.runs_on(first) == lab.pipeline.runs_on(third)
        switches = lab.pipeline.known[run.run.id].run.switches
        assert [one.reason for one in switches] == [SwitchReason.JOB_ABORTED]
        assert lab.rentals.committed.keys() == {first, second, third}
        offers = [lab.rentals.committed[one].offer.spot for one in (first, second, third)]
        assert offers == [True, True, False]


def _has_begun_again(lab: Renting, run: RunState) -> bool:
    state = lab.pipeline.known[run.run.id]
    return all(job.attempts[-1].incarnation == state.run.incarnation for job in state.jobs)


def _confirm_ends(lab: Renting, run_id: str) -> bool:
    """Have the shims confirm the end of all attempts of the run that end; True."""
    state = lab.pipeline.known[run_id]
    for job in state.jobs:
        last = job.attempts[-1]
        if last.status is AttemptStatus.TERMINATING and last.node_id is not None:
            gone = not is_kept(state.run, last)
            ids = {"run_id": run_id, "attempt_id": last.id}
            lab.pipeline.post(TaskRemoved(allocation_released=gone, **ids))
    return True


async def test_a_month_that_begins_has_a_budget_of_its_own() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud, fleet(budget=Budget(per_month=2.1))) as lab:
        midnight = month_began(lab.clock.now() + 40 * 86400.0)
        lab.clock.time = midnight - 5400.0
        await lab.pipeline.admit(parts.run("first", cpu=4.0))
        await lab.join()
        lab.clock.time = midnight - 600.0
        second = parts.run("second", cpu=4.0)
        await lab.pipeline.admit(second)
        await lab.until(lambda: "fleet burst may cost 2.10 a month" in lab.waits_for(second))
        await lab.until(lambda: lab.clock.now() > midnight - 10.0, step=6.0)
        assert len(lab.rentals.committed) == 1
        await lab.until(lambda: len(lab.rentals.committed) == 2, step=6.0)
        newest = max(one.ordered_at for one in lab.rentals.committed.values())
        assert midnight <= newest <= midnight + 7.0
