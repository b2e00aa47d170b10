"""docs/rules.md 5: a gang is placed whole, within one placement value, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.lifecycle.model import (
    Band,
    Group,
    NodeCapacity,
    NodeStatus,
    RetryPolicy,
    RunPolicy,
    StartupOrder,
)
from controller.lifecycle.reports import (
    GangTooLarge,
    NodeGone,
    Placed,
    RunnerExited,
    TaskAccepted,
    TaskSeen,
    Tick,
)
from controller.scheduling.fitting.fit import MAX_STARTS
from fairlead.model.reasons import Reason, RetryEvent
from fairlead.model.service import ReplicaGroup, ServicePolicy
from fairlead.model.statuses import AttemptStatus
from tests.unit.scheduling.cluster import Cluster, attempts, gpu_node, in_rack, rack_fleet
from tests.unit.scheduling.parts import gang, node


def test_a_gang_is_placed_all_or_nothing() -> None:
    cluster = Cluster(gpu_node("n1"), gpu_node("n2"))
    small = cluster.submit("small", gang(2), whole_node=True, gpus=8)
    large = cluster.submit("large", gang(3), whole_node=True, gpus=8)
    cluster.settle()
    assert cluster.places(small) == {"main/0": "n1", "main/1": "n2"}
    assert cluster.places(large) == {}


def test_two_gangs_that_compete_never_hold_half_each() -> None:
    cluster = Cluster(*(gpu_node(f"n{n}") for n in range(3)))
    first = cluster.submit("first", gang(2), whole_node=True)
    second = cluster.submit("second", gang(2), whole_node=True)
    cluster.settle()
    assert [len(cluster.places(run)) for run in (first, second)] == [2, 0]


def test_all_reports_of_a_gang_come_together() -> None:
    cluster = Cluster(gpu_node("n1"), gpu_node("n2"))
    run = cluster.submit("a", gang(2), whole_node=True)
    told = cluster.turn()
    assert [type(report) for report in told[run]] == [Placed, Placed]


def test_a_gang_stays_within_one_placement_value_and_takes_the_smallest_that_holds_it() -> None:
    nodes = [in_rack(f"a{n}", "large") for n in range(3)]
    nodes += [in_rack(f"b{n}", "small") for n in range(2)]
    nodes += [in_rack("c0", "tiny")]
    cluster = Cluster(*nodes, fleets=(rack_fleet(),))
    run = cluster.submit("a", gang(2), whole_node=True)
    cluster.settle()
    assert set(cluster.places(run).values()) == {"b0", "b1"}
    assert {a.placement for a in cluster.states[run].allocations} == {"small"}


def test_a_gang_that_would_fit_only_across_values_waits_and_is_told_which_is_best() -> None:
    nodes = [in_rack("a0", "r1"), in_rack("b0", "r2"), in_rack("b1", "r2")]
    cluster = Cluster(*nodes, fleets=(rack_fleet(),))
    run = cluster.submit("a", gang(3), whole_node=True, gpus=8)
    cluster.settle()
    assert cluster.places(run) == {}
    assert cluster.waits(run) == ("needs 3 whole nodes with 8 GPU in one rack; best rack r2 has 2")


def test_a_node_without_the_attribute_that_its_fleet_names_takes_no_gang() -> None:
    cluster = Cluster(gpu_node("n1"), gpu_node("n2"), fleets=(rack_fleet(),))
    run = cluster.submit("a", gang(2), whole_node=True)
    solo = cluster.submit("b")
    cluster.settle()
    assert cluster.places(run) == {}
    assert cluster.places(solo) == {"main/0": "n1"}
    assert cluster.waits(run) == "no node has the placement attribute that its fleet names"


def test_reserved_jobs_are_placed_after_the_ranked_ones_each_on_its_own() -> None:
    cluster = Cluster(*(gpu_node(f"n{n}") for n in range(3)))
    run = cluster.submit("a", gang(4, size=2), whole_node=True)
    cluster.settle()
    assert set(cluster.places(run)) == {"main/0", "main/1", "main/2"}


def test_a_reserved_job_never_takes_the_place_that_a_rank_needs() -> None:
    cluster = Cluster(gpu_node("n1"))
    run = cluster.submit("a", gang(3, size=2), whole_node=True)
    cluster.settle()
    assert cluster.places(run) == {}


def test_a_gang_goes_where_the_most_of_its_reserved_jobs_find_room_beside_the_ranks() -> None:
    racks = {"r2": 2, "r3": 3, "r4": 4, "r5": 5}
    nodes = [in_rack(f"{rack}-{n}", rack) for rack, count in racks.items() for n in range(count)]
    cluster = Cluster(*nodes, fleets=(rack_fleet(),))
    runs = [cluster.submit(f"a{n}", gang(4, size=2), whole_node=True) for n in range(4)]
    cluster.settle()
    racks_of = [{name[:2] for name in cluster.places(run).values()} for run in runs]
    assert racks_of == [{"r4"}, {"r5"}, {"r3"}, {"r2"}]
    assert [len(cluster.places(run)) for run in runs] == [4, 4, 3, 2]


def test_a_reserved_job_is_told_that_it_waits_for_the_ranks() -> None:
    cluster = Cluster(gpu_node("n1"), gpu_node("n2"))
    cluster.submit("other", gpus=8)
    cluster.settle()
    run = cluster.submit("a", gang(3, size=2), whole_node=True)
    cluster.settle()
    assert cluster.places(run) == {}
    assert cluster.waits(run, 2) == "it is reserved: the gang's ranked jobs are placed first"


def test_a_reserved_job_takes_no_place_while_a_job_beside_the_gang_is_tried_again() -> None:
    """It would keep it forever, and the gang's ranks may wait for that job to begin."""
    cluster = Cluster(gpu_node("n1"), gpu_node("n2"))
    groups = gang(2, size=1), Group(name="beside", nodes=1)
    again = RunPolicy(retry=RetryPolicy(on_events=frozenset(RetryEvent)))
    run = cluster.submit("a", *groups, whole_node=True, policy=again)
    cluster.settle()
    assert set(cluster.places(run)) == {"main/0", "beside/0"}
    for _ in range(2):
        fail_a_rank(cluster, run, index=2)
        cluster.leave(run)
        cluster.settle()
    assert cluster.attempt(run, 2).status is AttemptStatus.FAILED
    assert set(cluster.places(run)) == {"main/0"}


def test_a_reserved_job_goes_only_where_the_ranks_are_that_it_may_take_over() -> None:
    nodes = [in_rack("a0", "r1"), in_rack("a1", "r1"), *(in_rack(f"b{n}", "r2") for n in range(2))]
    cluster = Cluster(*nodes, fleets=(rack_fleet(),))
    run = cluster.submit("a", gang(3, size=2), whole_node=True)
    cluster.settle()
    assert set(cluster.places(run).values()) == {"a0", "a1"}
    assert (cluster.waits(run, 2) or "").startswith("must be in rack r1, where its gang is: ")


def fail_a_rank(cluster: Cluster, run: str, index: int = 0) -> None:
    cluster.start_all()
    ids = {"run_id": run, "attempt_id": cluster.attempt(run, index).id}
    cluster.tell(run, RunnerExited(reason=Reason.CONTAINER_EXITED_WITH_ERROR, exit_code=1, **ids))


def lose(cluster: Cluster, run: str, name: str) -> None:
    cluster.set_node(replace(cluster.node(name), cordoned=True))
    report = NodeGone(
        run_id=run,
        node_id=name,
        reason=Reason.INSTANCE_UNREACHABLE,
        message="gone",
        cleanup_confirmed=True,
    )
    cluster.tell(run, report)


def test_a_replacement_goes_to_the_value_of_the_survivors_and_before_the_queue() -> None:
    nodes = [*(in_rack(f"a{n}", "r1") for n in range(3)), in_rack("b0", "r2")]
    cluster = Cluster(*nodes, fleets=(rack_fleet(),))
    blocker = cluster.submit("blocker", gpus=8)
    cluster.settle()
    assert cluster.places(blocker) == {"main/0": "a0"}
    run = cluster.submit("gang", gang(2), whole_node=True)
    cluster.settle()
    cluster.start_all()
    lose(cluster, run, "a2")
    cluster.leave(run)
    important = cluster.submit("important", gpus=8, policy=RunPolicy(priority=100))
    second = cluster.submit("second", gpus=8, policy=RunPolicy(priority=100))
    cluster.settle()
    assert cluster.places(important) == {"main/0": "b0"}
    assert cluster.places(second) == {}
    assert cluster.places(run) == {"main/0": "a1"}
    cluster.set_node(replace(cluster.node("a2"), cordoned=False))
    cluster.settle()
    assert cluster.places(run) == {"main/0": "a1", "main/1": "a2"}


def test_the_replacement_of_one_job_is_said_to_wait_for_one_node() -> None:
    cluster = Cluster(gpu_node("n1"), gpu_node("n2"), gpu_node("n3"))
    cluster.submit("blocker", gpus=8)
    cluster.settle()
    run = cluster.submit("gang", gang(2), whole_node=True)
    cluster.settle()
    cluster.start_all()
    lose(cluster, run, "n3")
    cluster.leave(run)
    cluster.settle()
    assert cluster.places(run) == {"main/0": "n2"}
    waits = cluster.waits(run, 1)
    assert waits is not None
    assert waits.startswith("needs 1 whole node in one fleet; best fleet default has 0 ")


def test_a_value_that_can_never_hold_the_gang_again_is_named() -> None:
    nodes = [in_rack(f"a{n}", "r1") for n in range(2)]
    cluster = Cluster(*nodes, fleets=(rack_fleet(),))
    run = cluster.submit("gang", gang(2), whole_node=True)
    cluster.settle()
    cluster.start_all()
    lose(cluster, run, "a1")
    cluster.leave(run)
    told = cluster.turn()
    (large,) = (one for one in told[run] if isinstance(one, GangTooLarge))
    assert (
        large.message == "the rack of its other jobs (r1 of default) can never hold all 2 of them"
    )


def test_a_cordoned_node_on_which_the_gang_goes_on_counts_to_what_can_hold_it() -> None:
    cluster = Cluster(*(in_rack(f"a{n}", "r1") for n in range(3)), fleets=(rack_fleet(),))
    blocker = cluster.submit("blocker", gpus=8)
    cluster.settle()
    run = cluster.submit("gang", gang(2), whole_node=True)
    cluster.settle()
    cluster.start_all()
    lose(cluster, run, "a2")
    cluster.leave(run)
    cluster.set_node(replace(cluster.node("a1"), cordoned=True))
    told = cluster.turn()
    assert not any(isinstance(one, GangTooLarge) for one in told[run])
    assert cluster.places(run) == {"main/0": "a1"}
    assert cluster.places(blocker) == {"main/0": "a0"}


def test_a_plain_job_that_finds_no_room_beside_its_whole_gang_waits() -> None:
    nodes = [in_rack(f"a{n}", "r1") for n in range(3)]
    cluster = Cluster(*nodes, fleets=(rack_fleet(),))
    run = cluster.submit("gang", gang(2), Group(name="data", nodes=1), whole_node=True)
    cluster.settle()
    cluster.start_all()
    lose(cluster, run, cluster.places(run)["data/0"])
    told = cluster.turn()
    assert not any(isinstance(one, GangTooLarge) for one in told[run])
    waits = cluster.waits(run, 2)
    assert waits is not None
    assert waits.startswith("needs 1 whole node in one rack; best rack r1 has 0 ")


@pytest.mark.parametrize("named", [True, False])
def test_placement_cluster_asks_the_same_of_independent_jobs_where_a_fleet_names_an_attribute(
    named: bool,
) -> None:
    nodes = [in_rack("a0", "r1"), *(in_rack(f"b{n}", "r2") for n in range(2))]
    cluster = Cluster(*nodes, fleets=(rack_fleet(),) if named else ())
    policy = RunPolicy(same_placement=True)
    run = cluster.submit("a", Group(name="main", nodes=2), gpus=8, policy=policy)
    cluster.settle()
    assert sorted(cluster.places(run).values()) == (["b0", "b1"] if named else [])
    if not named:
        assert cluster.waits(run) == (
            "needs a fleet that names a placement attribute; no fleet with a usable node does"
        )


IN_TURN = RunPolicy(same_placement=True, startup_order=StartupOrder.MASTER_FIRST)


def test_the_first_of_a_cluster_goes_where_the_others_whose_turn_comes_later_find_room() -> None:
    nodes = [in_rack("a0", "r1"), *(in_rack(f"b{n}", "r2") for n in range(3))]
    cluster = Cluster(*nodes, fleets=(rack_fleet(),))
    run = cluster.submit("a", Group(name="main", nodes=3), gpus=8, policy=IN_TURN)
    cluster.settle()
    assert len(cluster.places(run)) == 1
    assert cluster.places(run)["main/0"].startswith("b")
    cluster.start_all()
    cluster.settle()
    assert sorted(cluster.places(run).values()) == ["b0", "b1", "b2"]


def test_the_first_of_a_cluster_waits_while_there_is_no_room_for_all_of_it() -> None:
    cluster = Cluster(*(in_rack(f"b{n}", "r2") for n in range(3)), fleets=(rack_fleet(),))
    cluster.submit("other", gpus=8)
    cluster.settle()
    run = cluster.submit("a", Group(name="main", nodes=3), gpus=8, policy=IN_TURN)
    cluster.settle()
    assert cluster.places(run) == {}
    waits = cluster.waits(run)
    assert waits is not None
    assert waits.startswith("needs 3 places with 8 GPU in one rack; best rack r2 has 2")


def test_victims_for_the_first_of_a_cluster_make_room_for_all_of_it() -> None:
    nodes = [in_rack("a0", "r1"), *(in_rack(f"b{n}", "r2") for n in range(2))]
    cluster = Cluster(*nodes, fleets=(rack_fleet(),))
    batch = [cluster.submit(f"x{n}", gpus=8, band=Band.BATCH) for n in range(3)]
    cluster.settle()
    cluster.start_all()
    run = cluster.submit("a", Group(name="main", nodes=2), gpus=8, policy=IN_TURN)
    cluster.settle()
    (nominated,) = cluster.nominated(run)
    assert nominated.node_id.startswith("b")
    ended = [one for one in batch if cluster.attempt(one).reason is not None]
    assert sorted(cluster.attempt(one).node_id or "" for one in ended) == ["b0", "b1"]


def test_a_first_job_that_is_tried_again_does_not_wait_for_room_for_others() -> None:
    """A place of the run's is held: where the others go is no question any more."""
    cluster = Cluster(*(in_rack(f"b{n}", "r2") for n in range(3)), fleets=(rack_fleet(),))
    events = frozenset({RetryEvent.ERROR, RetryEvent.INTERRUPTION})
    policy = replace(IN_TURN, retry=RetryPolicy(on_events=events))
    run = cluster.submit("a", Group(name="main", nodes=3), gpus=8, policy=policy)
    for _ in range(2):
        cluster.settle()
        cluster.start_all()
    before = cluster.places(run)
    fail_a_rank(cluster, run)
    lose(cluster, run, before["main/2"])
    cluster.leave(run)
    cluster.now += 60.0
    cluster.tell(run)
    cluster.settle()
    assert cluster.places(run) == {name: before[name] for name in ("main/0", "main/1")}


def test_a_gang_of_more_ranks_than_a_node_starts_at_a_time_is_placed_on_one_node() -> None:
    cluster = Cluster(node("n0", capacity={"cpu": 12.0}))
    run = cluster.submit("a", gang(9))
    cluster.settle()
    assert set(cluster.places(run).values()) == {"n0"}
    assert len(cluster.places(run)) == 9


def test_independent_jobs_of_a_cluster_are_placed_on_one_node_however_many_they_are() -> None:
    cluster = Cluster(in_rack("n0", "r1"), fleets=(rack_fleet(),))
    group = Group(name="main", nodes=9, share_nodes=True)
    run = cluster.submit("a", group, policy=RunPolicy(same_placement=True))
    cluster.settle()
    assert len(cluster.places(run)) == 9


def test_starts_of_others_on_a_node_delay_a_gang_and_no_more() -> None:
    cluster = Cluster(node("n0", capacity={"cpu": 64.0, "memory": 1 << 40}))
    for n in range(MAX_STARTS):
        cluster.submit(f"other{n}")
    cluster.settle()
    run = cluster.submit("a", gang(9))
    cluster.settle()
    assert cluster.places(run) == {}
    assert cluster.waits(run) == (
        "needs 9 places with 1 CPU, 1 GiB memory in one fleet; best fleet default has 0 "
        "(needs a free start slot; best node n0 has 8 starting already)"
    )
    cluster.start_all()
    cluster.settle()
    assert len(cluster.places(run)) == 9


def test_a_rank_is_replaced_beside_the_other_ranks_that_wait_for_it_to_start() -> None:
    cluster = Cluster(node("n0", capacity={"cpu": 12.0}))
    again = RunPolicy(retry=RetryPolicy(on_events=frozenset(RetryEvent)))
    run = cluster.submit("a", gang(9), policy=again)
    cluster.settle()
    fail_a_rank(cluster, run)
    cluster.leave(run)
    cluster.settle()
    assert [cluster.attempt(run, n).number for n in range(9)] == [1] * 9
    assert len(cluster.places(run)) == 9


def test_a_job_that_has_its_container_no_longer_counts_as_a_start() -> None:
    """Ranks that wait for another one would keep what that one needs from starting beside them."""
    cluster = Cluster(node("n0", capacity={"cpu": 64.0, "memory": 1 << 40}))
    run = cluster.submit("a", gang(MAX_STARTS))
    cluster.settle()
    for attempt in attempts(cluster.states[run]):
        cluster.tell(run, accepted(run, attempt.id), container_runs(run, attempt.id))
    other = cluster.submit("b")
    cluster.settle()
    assert cluster.places(other) == {"main/0": "n0"}


def accepted(run_id: str, attempt_id: str) -> TaskAccepted:
    return TaskAccepted(run_id=run_id, attempt_id=attempt_id)


def container_runs(run_id: str, attempt_id: str) -> TaskSeen:
    return TaskSeen(
        run_id=run_id,
        attempt_id=attempt_id,
        container_started=True,
        terminated=False,
        runner_socket="/run/r",
    )


def running_gang(cluster: Cluster, nodes: int, **more: Any) -> str:
    again = RunPolicy(retry=RetryPolicy(on_events=frozenset(RetryEvent)), priority=90)
    run = cluster.submit("gang", gang(nodes), policy=again, **more)
    cluster.settle()
    cluster.start_all()
    return run


def reboot(cluster: Cluster, run: str, name: str) -> None:
    lose(cluster, run, name)
    silent = replace(cluster.node(name), cordoned=False, status=NodeStatus.UNREACHABLE)
    cluster.set_node(silent)


def test_the_place_of_the_rank_that_ended_goes_to_nobody_while_the_others_are_stopped() -> None:
    cluster = Cluster(gpu_node("n0"), gpu_node("n1"))
    run = running_gang(cluster, 2, whole_node=True)
    others = [cluster.submit(f"other{n}", gpus=8, policy=RunPolicy(priority=1)) for n in (0, 1)]
    fail_ranks(cluster, run, 0)
    cluster.leave(run, at_most=1)
    cluster.settle()
    assert [cluster.places(other) for other in others] == [{}, {}]
    cluster.leave(run)
    cluster.settle()
    assert cluster.places(run) == {"main/0": "n0", "main/1": "n1"}
    assert cluster.attempt(run, 0).number == 1
    cluster.start_all()
    assert cluster.nominated(run) == []


def test_freed_places_stay_kept_while_they_are_too_few_for_the_gang() -> None:
    """The rest would do for others."""
    cluster = Cluster(*(gpu_node(f"n{n}") for n in range(3)))
    run = running_gang(cluster, 3, whole_node=True)
    other = cluster.submit("other", gpus=8)
    fail_ranks(cluster, run, 0)
    reboot(cluster, run, "n1")
    cluster.leave(run)
    cluster.settle()
    assert cluster.places(run) == {"main/2": "n2"}
    assert cluster.places(other) == {}
    cluster.set_node(gpu_node("n1"))
    cluster.settle()
    assert cluster.places(run) == {"main/0": "n0", "main/1": "n1", "main/2": "n2"}
    assert cluster.nominated(run) == []


def test_a_freed_place_stays_the_run_s_until_every_rank_is_there() -> None:
    """The job that had it goes elsewhere; others get its room when the gang is whole."""
    cluster = Cluster(gpu_node("n0"), gpu_node("n1"), gpu_node("n2"))
    run = running_gang(cluster, 2, whole_node=True)
    before = cluster.places(run)
    fail_ranks(cluster, run, 0)
    cluster.leave(run, at_most=1)
    cluster.set_node(replace(cluster.node(before["main/0"]), status=NodeStatus.UNREACHABLE))
    cluster.leave(run)
    cluster.settle()
    assert cluster.places(run) == {"main/0": "n2", "main/1": before["main/1"]}
    other = cluster.submit("other", gpus=8)
    cluster.set_node(replace(cluster.node(before["main/0"]), status=NodeStatus.CONNECTED))
    cluster.settle()
    assert cluster.places(other) == {}
    cluster.start_all()
    cluster.settle()
    assert cluster.places(other) == {"main/0": before["main/0"]}


def test_a_gang_that_gives_up_gives_back_what_its_switch_had_freed() -> None:
    cluster = Cluster(*(gpu_node(f"n{n}") for n in range(3)))
    run = running_gang(cluster, 3, whole_node=True)
    other = cluster.submit("other", gpus=8)
    fail_ranks(cluster, run, 0)
    reboot(cluster, run, "n1")
    cluster.leave(run)
    cluster.settle()
    assert cluster.places(other) == {}
    cluster.tell(run, accepted(run, cluster.attempt(run, 2).id))
    cluster.now += 600.0
    cluster.tell(run)
    assert cluster.states[run].run.switches[-1].whole
    cluster.settle()
    assert cluster.places(other) == {"main/0": "n0"}


def test_where_no_place_survived_none_is_kept() -> None:
    """Then the gang queues whole, among all others."""
    cluster = Cluster(gpu_node("n0"), gpu_node("n1"))
    run = running_gang(cluster, 2, whole_node=True)
    other = cluster.submit("other", gpus=8, policy=RunPolicy(priority=100))
    fail_ranks(cluster, run, 0, 1)
    cluster.leave(run, at_most=1)
    cluster.settle()
    assert cluster.places(other) == {"main/0": "n0"}
    cluster.leave(run)
    cluster.settle()
    assert cluster.places(run) == {}


@pytest.mark.parametrize("change", [{"draining": True}, {"cordoned": True}, {"unfit": "no disk"}])
def test_a_freed_place_is_lost_with_its_node_and_the_others_stay(change: dict[str, Any]) -> None:
    cluster = Cluster(*(gpu_node(f"n{n}") for n in range(5)))
    blocker = cluster.submit("blocker", gpus=8)
    run = running_gang(cluster, 4, whole_node=True)
    other = cluster.submit("other", gpus=8)
    assert cluster.places(blocker) == {"main/0": "n4"}
    fail_ranks(cluster, run, 0, 1)
    reboot(cluster, run, "n2")
    cluster.leave(run)
    cluster.settle()
    assert {place.node_id for place in cluster.nominated(run)} == {"n0", "n1", "n2"}
    cluster.set_node(gpu_node("n0", **change))
    cluster.settle()
    assert {place.node_id for place in cluster.nominated(run)} == {"n1", "n2"}
    assert cluster.places(run) == {"main/3": "n3"}
    assert cluster.places(other) == {}


def test_a_freed_place_waits_for_its_node_to_be_connected_again() -> None:
    cluster = Cluster(gpu_node("n0"), gpu_node("n1"))
    run = running_gang(cluster, 2, whole_node=True)
    other = cluster.submit("other", gpus=8)
    fail_ranks(cluster, run, 0)
    cluster.leave(run)
    cluster.set_node(gpu_node("n0", status=NodeStatus.UNREACHABLE))
    cluster.settle()
    assert cluster.places(run) == {"main/1": "n1"}
    cluster.set_node(gpu_node("n0"))
    cluster.settle()
    assert cluster.places(run) == {"main/0": "n0", "main/1": "n1"}
    assert cluster.places(other) == {}


def test_a_place_on_which_a_nomination_lies_goes_to_its_preemptor() -> None:
    cluster = Cluster(gpu_node("n0"), gpu_node("n1"))
    run = cluster.submit("gang", gang(3, size=2), gpus=4, band=Band.BATCH)
    cluster.settle()
    cluster.start_all()
    strong = cluster.submit("strong", gang(2), whole_node=True, band=Band.PRODUCTION)
    cluster.settle()
    cluster.leave(run)
    cluster.settle()
    assert set(cluster.places(strong).values()) == {"n0", "n1"}
    assert cluster.nominated(run) == []


def test_on_a_shared_node_a_replacement_uses_up_one_freed_place_and_no_more() -> None:
    cluster = Cluster(gpu_node("n0"), gpu_node("n1"))
    run = running_gang(cluster, 4, gpus=4)
    fail_ranks(cluster, run, 0, 1)
    cluster.leave(run)
    cluster.settle()
    assert sorted(cluster.places(run).values()) == ["n0", "n0", "n1", "n1"]
    assert cluster.nominated(run) == []


def test_explain_counts_what_is_kept_for_the_run_as_free_for_it() -> None:
    cluster = Cluster(*(gpu_node(f"n{n}") for n in range(3)))
    run = running_gang(cluster, 3, whole_node=True)
    other = cluster.submit("other", gpus=8)
    fail_ranks(cluster, run, 0)
    reboot(cluster, run, "n1")
    cluster.leave(run)
    cluster.settle()
    (waiting,) = cluster.pipeline.explain(run, cluster.now, lambda one: one.name)
    assert waiting.why.startswith("needs 2 whole nodes in one fleet; best fleet default has 1")
    answers = {answer.node: answer.why for answer in waiting.nodes}
    assert answers["n0"] == ()
    assert "needs the whole node, it has other jobs on it" in answers["n2"]
    (waits,) = cluster.pipeline.explain(other, cluster.now, lambda one: one.name)
    assert {answer.node: answer.why for answer in waits.nodes}["n0"] == (
        "needs 1 CPU, it has 0 free of 64",
        "needs 1 GiB memory, it has 0 B free of 1 TiB",
        "needs 8 GPU, it has 0 such GPU free of 8",
        "an allocation there is kept for gang, whose gang starts again",
    )


def test_explain_counts_nothing_on_a_node_that_has_never_told_what_it_has() -> None:
    new = replace(gpu_node("n0"), status=NodeStatus.CONNECTING, capacity=NodeCapacity())
    cluster = Cluster(new)
    run = cluster.submit("waits")
    (waiting,) = cluster.pipeline.explain(run, cluster.now, lambda one: one.name)
    assert [answer.why for answer in waiting.nodes] == [("it is connecting",)]


def fail_ranks(cluster: Cluster, run: str, *indices: int) -> None:
    """All in one turn."""
    cluster.tell(
        run,
        *(
            RunnerExited(
                run_id=run,
                attempt_id=cluster.attempt(run, index).id,
                reason=Reason.CONTAINER_EXITED_WITH_ERROR,
                exit_code=1,
            )
            for index in indices
        ),
    )


def test_a_replica_of_several_nodes_is_placed_whole_and_waits_for_no_other() -> None:
    nodes = [in_rack("a1", "r1"), in_rack("a2", "r1"), in_rack("b1", "r2")]
    cluster = Cluster(*nodes, fleets=(rack_fleet(),))
    run = cluster.submit(
        "web",
        Group(name="main", nodes=4),
        whole_node=True,
        service=ServicePolicy(
            port=80, groups=(ReplicaGroup(name="main", least=2, most=2, nodes=2),)
        ),
    )
    cluster.settle()
    assert cluster.places(run) == {"main/0": "a1", "main/1": "a2"}

    cluster.set_node(in_rack("b2", "r2"))
    cluster.settle()
    assert {cluster.places(run)[f"main/{n}"] for n in (2, 3)} == {"b1", "b2"}


def test_a_replica_that_loses_a_job_to_a_higher_band_waits_as_a_whole() -> None:
    cluster = Cluster(gpu_node("n1"), gpu_node("n2"))
    pair = ServicePolicy(port=80, groups=(ReplicaGroup(name="main", nodes=2),))
    group = Group(name="main", nodes=2)
    service = cluster.submit("web", group, whole_node=True, service=pair, band=Band.BATCH)
    cluster.settle()
    cluster.start_all()
    solo = cluster.submit("solo", whole_node=True, band=Band.PRODUCTION)
    cluster.settle()
    ended = [job.attempts[-1].reason for job in cluster.states[service].jobs]
    assert sorted(ended, key=str) == [Reason.PREEMPTED, Reason.SIBLING_FAILED]

    cluster.leave(service)
    cluster.now += 60.0
    cluster.tell(service, Tick(run_id=service))
    cluster.settle()
    assert len(cluster.places(solo)) == 1
    assert cluster.places(service) == {}
    assert {job.attempts[-1].number for job in cluster.states[service].jobs} == {1}
