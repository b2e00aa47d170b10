"""Jobs that lost a spot machine: theirs is ordered while they still stop."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from controller.lifecycle.decide import decide
from controller.lifecycle.draft import DecisionContext
from controller.lifecycle.machines.model import MachineStatus
from controller.lifecycle.model import Band, Group, RetryPolicy, RunPolicy
from controller.lifecycle.reports import ScaleRequested, StopRequested, SuspendRequested
from fairlead.model.statuses import AttemptStatus
from tests.unit.machines.looking import look
from tests.unit.machines.parts import NOW, fleet, machine, offer, shop
from tests.unit.scheduling.cluster import Cluster
from tests.unit.scheduling.parts import new_id, node


def _recalled(
    groups: tuple[Group, ...] = (), cpu: float = 4.0, **retry: Any
) -> tuple[Cluster, str]:
    """Return a run on a spot machine that its provider has just begun to take back."""
    cluster = Cluster(node("m1", fleet="burst", attributes={"spot": "true"}), fleets=(fleet(),))
    policy = RunPolicy(retry=RetryPolicy(**retry))
    return cluster, _recall(cluster, cluster.submit("trained", *groups, policy=policy, cpu=cpu))


def _recall(cluster: Cluster, run_id: str) -> str:
    """Place the run on the spot machine, which its provider then takes back; return its id."""
    cluster.set_node(replace(cluster.node("m1"), draining=False, cordoned=False))
    cluster.settle()
    cluster.start_all()
    here = frozenset({"m1"})
    cluster.set_node(replace(cluster.node("m1"), draining=True, cordoned=True))
    recalled = {"m1": cluster.now + 120.0}
    around = DecisionContext(unusable_nodes=here, draining_nodes=here, recalled=recalled)
    state = decide(cluster.states[run_id], [], cluster.now, new_id, context=around).state
    cluster.states[run_id] = state
    cluster.pipeline.run_changed(run_id, state)
    assert cluster.attempt(run_id).status is AttemptStatus.TERMINATING
    return run_id


def _wait_for_retry(cluster: Cluster, run_id: str) -> None:
    """Let the attempt be over, and its job wait, as it does after lives that were short."""
    state = cluster.states[run_id]
    (job,) = state.jobs
    over = replace(job.attempts[-1], status=AttemptStatus.FAILED)
    ended = replace(state, jobs=(replace(job, attempts=(*job.attempts[:-1], over)),))
    cluster.states[run_id] = ended
    cluster.pipeline.run_changed(run_id, ended)


def test_the_machine_of_a_job_that_is_recalled_is_ordered_while_it_still_stops() -> None:
    cluster, run_id = _recalled()
    market = shop(offer("spot", spot=True, price=0.5), offer("steady"))
    found = look(cluster, market)
    # On demand first, since it has lost a spot machine.
    assert [(one.offer.instance_type, one.run_id) for one in found.orders] == [("steady", run_id)]
    again = look(cluster, market, machine("m2", offer=offer("steady")))
    assert again.orders == ()
    assert again.wanted == {"m2"}
    cluster.leave(run_id)
    assert cluster.attempt(run_id).status is AttemptStatus.SUBMITTED
    after = look(cluster, market, machine("m2", offer=offer("steady")))
    assert after.orders == ()
    assert after.wanted == {"m2"}


def test_a_job_that_comes_back_buys_nothing_where_a_node_has_room() -> None:
    cluster, _ = _recalled()
    cluster.set_node(node("own", fleet="burst"))
    assert look(cluster, shop(offer())).orders == ()


def test_what_the_budget_has_room_for_goes_to_the_first_in_the_queue() -> None:
    cluster, _ = _recalled(cpu=2.0)
    urgent = _recall(cluster, cluster.submit("urgent", band=Band.PRODUCTION, cpu=2.0))
    own = machine("m1", status=MachineStatus.JOINED, joined_at=NOW)
    cluster.pipeline.fleet_changed("burst", fleet(max=2))
    found = look(cluster, shop(offer(cpu=2.0)), own)
    assert [one.run_id for one in found.orders] == [urgent]


def test_a_later_job_orders_its_own_machine_and_not_that_of_a_recalled_one() -> None:
    cluster, run_id = _recalled()
    later = cluster.submit("later", cpu=4.0)
    coming = machine("m2", offer=offer("steady"))
    found = look(cluster, shop(offer("steady")), coming)
    assert [one.run_id for one in found.orders] == [later]
    assert found.wanted == {"m2"}
    # So a fleet with room for one machine more orders nothing for the later one.
    cluster.pipeline.fleet_changed("burst", fleet(max=2))
    there = machine("m1", status=MachineStatus.JOINED, joined_at=NOW)
    found = look(cluster, shop(offer("steady")), there)
    assert [one.run_id for one in found.orders] == [run_id]


def test_a_recalled_job_whose_next_machine_is_taken_by_one_before_it_gets_another_one() -> None:
    cluster, run_id = _recalled()
    urgent = cluster.submit("urgent", band=Band.PRODUCTION, cpu=4.0)
    coming = machine("m2", offer=offer("steady"))
    found = look(cluster, shop(offer("steady")), coming)
    assert [one.run_id for one in found.orders] == [run_id]
    # The same holds once it is there and the other job is on it.
    cluster.set_node(node("m2", fleet="burst"))
    cluster.settle()
    assert cluster.places(urgent) == {"main/0": "m2"}
    there = machine("m2", offer=offer("steady"), status=MachineStatus.JOINED, joined_at=NOW)
    found = look(cluster, shop(offer("steady")), there)
    assert [one.run_id for one in found.orders] == [run_id]


def test_a_recalled_job_whose_next_machine_is_taken_comes_first_again_once_it_waits() -> None:
    cluster, run_id = _recalled()
    taker = cluster.submit("taker", cpu=4.0)
    cluster.set_node(node("m2", fleet="burst"))
    cluster.settle()
    # It does not wait yet, so a job that does takes what is there.
    assert cluster.places(taker) == {"main/0": "m2"}
    for number in range(3):
        cluster.submit(f"later-{number}", cpu=4.0)
    cluster.leave(run_id)
    cluster.settle()
    cluster.set_node(node("m3", fleet="burst"))
    cluster.settle()
    assert cluster.places(run_id) == {"main/0": "m3"}


def test_a_job_that_waits_for_its_retry_leaves_what_is_on_order_to_those_that_wait() -> None:
    cluster, run_id = _recalled()
    _wait_for_retry(cluster, run_id)
    cluster.submit("later", cpu=4.0)
    found = look(cluster, shop(offer()), machine("m2"))
    assert (found.orders, found.wanted) == ((), frozenset({"m2"}))


def test_jobs_that_come_back_do_not_count_on_the_same_room_of_a_node() -> None:
    cluster, _ = _recalled((Group(name="main", nodes=2),), cpu=2.0)
    cluster.set_node(node("own", fleet="burst", capacity={"cpu": 2.0}))
    assert len(look(cluster, shop(offer())).orders) == 1
    cluster.set_node(node("own", fleet="burst", capacity={"cpu": 4.0}))
    assert look(cluster, shop(offer())).orders == ()


def test_a_machine_that_is_there_is_kept_for_a_job_that_comes_back() -> None:
    cluster, run_id = _recalled()
    cluster.set_node(node("m2", fleet="burst"))
    there = machine("m2", status=MachineStatus.JOINED, joined_at=NOW)
    assert look(cluster, shop(offer()), there).awaiting == {"m2"}
    _wait_for_retry(cluster, run_id)
    found = look(cluster, shop(offer()), there)
    assert found.orders == ()
    assert found.awaiting == {"m2"}


def test_nothing_is_ordered_for_a_job_that_waits_for_its_retry() -> None:
    cluster, run_id = _recalled()
    _wait_for_retry(cluster, run_id)
    assert look(cluster, shop(offer())).orders == ()
    assert look(cluster, shop(offer()), machine("m2")).wanted == {"m2"}


def test_two_jobs_that_come_back_do_not_count_on_the_same_room() -> None:
    cluster, _ = _recalled((Group(name="main", nodes=2),), cpu=2.0)
    cluster.set_node(node("m2", fleet="burst", capacity={"cpu": 2.0}))
    there = machine("m2", status=MachineStatus.JOINED, joined_at=NOW, offer=offer(cpu=2.0))
    found = look(cluster, shop(offer()), there)
    assert len(found.orders) == 1
    assert found.awaiting == {"m2"}


def test_a_job_that_is_recalled_and_not_tried_again_buys_nothing() -> None:
    cluster, _ = _recalled(on_events=())
    assert look(cluster, shop(offer())).orders == ()


def _scaled_away() -> tuple[Cluster, str]:
    """Return a run of two jobs that are recalled, of which its user then wants only one."""
    cluster, run_id = _recalled((Group(name="main", nodes=2),), cpu=2.0)
    cluster.tell(run_id, ScaleRequested(run_id=run_id, by="ada", group="main", nodes=1))
    return cluster, run_id


def test_a_job_that_was_scaled_away_buys_and_keeps_nothing() -> None:
    cluster, run_id = _scaled_away()
    assert len(look(cluster, shop(offer(cpu=2.0))).orders) == 1
    cluster, run_id = _scaled_away()
    cluster.set_node(node("m2", fleet="burst", capacity={"cpu": 2.0}))
    cluster.leave(run_id)
    cluster.settle()
    assert cluster.places(run_id) == {"main/0": "m2"}
    cluster.set_node(node("m3", fleet="burst", capacity={"cpu": 2.0}))
    there = machine("m3", status=MachineStatus.JOINED, joined_at=NOW, offer=offer(cpu=2.0))
    found = look(cluster, shop(offer()), there)
    # It has a slot, which may be wanted again, for as long as its run goes on.
    assert (found.orders, found.awaiting) == ((), frozenset())


def test_a_run_that_is_stopped_or_suspended_while_it_is_recalled_buys_nothing() -> None:
    cluster, run_id = _recalled()
    cluster.tell(run_id, StopRequested(run_id=run_id, by="ada", abort=False))
    assert look(cluster, shop(offer())).orders == ()
    cluster, run_id = _recalled()
    cluster.tell(run_id, SuspendRequested(run_id=run_id, by="ada", abort_running=False))
    assert look(cluster, shop(offer())).orders == ()


def test_nothing_is_kept_for_a_job_whose_occurrence_is_over() -> None:
    cluster, run_id = _recalled()
    _wait_for_retry(cluster, run_id)
    there = machine("m2", status=MachineStatus.JOINED, joined_at=NOW)
    cluster.set_node(node("m2", fleet="burst"))
    assert look(cluster, shop(offer()), there).awaiting == {"m2"}
    state = cluster.states[run_id]
    scheduled = replace(state.run.policy, schedule=("0 3 * * *",))
    over = replace(state, run=replace(state.run, policy=scheduled, triggered_at=None))
    cluster.pipeline.run_changed(run_id, over)
    assert look(cluster, shop(offer()), there).awaiting == frozenset()
