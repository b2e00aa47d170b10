"""The jobs of a multi-node run are told about each other (docs/rules.md 5)."""

from __future__ import annotations

import subprocess
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import asyncssh
import msgspec
import pytest

from controller.lifecycle.model import (
    Allocation,
    Group,
    Job,
    JobSpec,
    Node,
    NodeAddress,
    NodeCapacity,
    Resources,
    RunPolicy,
    RunState,
)
from controller.lifecycle.reports import TaskSeen
from controller.lifecycle.runs.first_state import new_run
from controller.pipelines import from_node, to_node
from controller.pipelines.performers import cluster
from controller.pipelines.performers.cluster import Clusters, cluster_key, secret_of
from controller.pipelines.to_node import AttemptContext, RetryLater
from fairlead.model.reasons import Reason
from fairlead.model.service import ReplicaGroup, Serves, ServicePolicy
from fairlead.model.spec import PlannedGroup
from fairlead.model.statuses import AllocationState, AttemptStatus
from fairlead.wire.job import ClusterInfo
from tests.doubles.clock import NOW
from tests.doubles.shim import node_info
from tests.support.attempts import attempt_with
from tests.unit.lifecycle.play import Play
from tests.unit.pipelines.parts import Ids, task_of

SECRET = b"of the controller"
WHOLE = Resources(whole_node=True)


def a_node(name: str, *addresses: str, host: str | None = None) -> Node:
    return Node(
        id=name,
        name=name,
        address=NodeAddress(shim_socket="/s", host=host),
        capacity=NodeCapacity(addresses=addresses),
        created_at=NOW,
    )


NODES = {f"n{n}": a_node(f"n{n}", f"10.0.0.{n}") for n in range(1, 10)}
CLUSTERS = Clusters(NODES, SECRET)


@pytest.mark.parametrize("forged", ["10.0.0.1\n ProxyCommand sh", "gpu-1", "", "fe80::1%a b"])
def test_a_forged_address_of_a_node_reaches_no_other_node(forged: str) -> None:
    said = msgspec.structs.replace(node_info(), addresses=(forged, "10.0.0.7", "fd00::7"))
    assert from_node.capacity(said).addresses == ("10.0.0.7", "fd00::7")


def submitted(*groups: Group, policy: RunPolicy | None = None, **spec: Any) -> RunState:
    job = JobSpec(image="i", resources=WHOLE, **spec)
    planned = [PlannedGroup(group=group, spec=job) for group in groups]
    ids = Ids()
    return new_run(name="r", user="u", groups=planned, now=NOW, new_id=ids, policy=policy)


def place(state: RunState, index: int, node: str, gpus: int = 0, whole: bool = True) -> RunState:
    job = state.jobs[index]
    allocation = Allocation(
        id=f"a{index}",
        run_id=state.run.id,
        job_id=job.id,
        node_id=node,
        state=AllocationState.HELD,
        resources=Resources(whole_node=whole),
        gpus=tuple(f"GPU-{n}" for n in range(gpus)),
        created_at=NOW,
    )
    attempt = msgspec.structs.replace(
        job.attempts[-1],
        status=AttemptStatus.PROVISIONING,
        allocation_id=allocation.id,
        node_id=node,
    )
    jobs = list(state.jobs)
    jobs[index] = msgspec.structs.replace(job, attempts=(*job.attempts[:-1], attempt))
    return msgspec.structs.replace(
        state, jobs=tuple(jobs), allocations=(*state.allocations, allocation)
    )


def placed(state: RunState, *nodes: str) -> RunState:
    """Its first jobs on these nodes, in their order."""
    for index, node in enumerate(nodes):
        state = place(state, index, node)
    return state


def context(state: RunState, index: int) -> AttemptContext:
    job = state.jobs[index]
    return AttemptContext(state, job, job.attempts[-1])


def told(state: RunState, index: int) -> ClusterInfo:
    info = CLUSTERS.info(context(state, index))
    assert info is not None
    return info


def a_gang(nodes: int = 3, size: int = 3) -> RunState:
    return submitted(Group(name="main", nodes=nodes, gang_size=size))


def replace_last(state: RunState, index: int, **changes: Any) -> RunState:
    def changed(job: Job) -> Job:
        last = attempt_with(job.attempts[-1], **changes)
        return msgspec.structs.replace(job, attempts=(*job.attempts[:-1], last))

    jobs = tuple(changed(job) if job.index == index else job for job in state.jobs)
    return msgspec.structs.replace(state, jobs=jobs)


# -- addresses and ranks --------------------------------------------------------------------


def test_each_rank_is_told_all_addresses_in_the_order_of_ranks_and_its_own_rank() -> None:
    state = placed(a_gang(), "n3", "n1", "n2")
    assert [told(state, n).rank for n in range(3)] == [0, 1, 2]
    assert {told(state, n).ips for n in range(3)} == {("10.0.0.3", "10.0.0.1", "10.0.0.2")}
    assert told(state, 1).master_ip == "10.0.0.3"


def test_the_order_is_that_of_ranks_when_a_reserved_job_has_taken_one() -> None:
    state = placed(a_gang(nodes=3, size=2), "n1", "n2", "n3")
    state = replace_last(replace_last(state, 0, rank=None), 2, rank=0)
    assert told(state, 2).ips == ("10.0.0.3", "10.0.0.2")
    assert [told(state, n).rank for n in range(3)] == [None, 1, 0]


def test_a_reserved_job_knows_the_ranked_ones_and_has_no_rank() -> None:
    state = placed(a_gang(nodes=3, size=2), "n1", "n2", "n3")
    reserved = told(state, 2)
    assert (reserved.rank, reserved.ips) == (None, ("10.0.0.1", "10.0.0.2"))


def test_ranks_count_over_all_groups_in_the_order_of_the_configuration() -> None:
    groups = (Group(name="z", nodes=1, gang_size=1), Group(name="a", nodes=2, gang_size=2))
    state = placed(submitted(*groups), "n1", "n2", "n3")
    assert [told(state, n).rank for n in range(3)] == [0, 1, 2]
    assert told(state, 2).master_ip == "10.0.0.1"


def test_a_job_waits_until_all_ranks_of_its_incarnation_hold_places() -> None:
    state = placed(a_gang(), "n1", "n2")
    with pytest.raises(RetryLater, match="not placed yet"):
        CLUSTERS.info(context(state, 0))


def test_a_job_does_not_wait_for_a_rank_that_was_abandoned_before_it_had_a_place() -> None:
    state = placed(a_gang(), "n1", "n2")
    state = replace_last(state, 2, status=AttemptStatus.TERMINATED, reason=Reason.ABANDONED)
    assert told(state, 1).ips == ("10.0.0.1", "10.0.0.2")


def test_a_job_does_not_wait_for_reserved_ones() -> None:
    state = placed(a_gang(nodes=3, size=2), "n1", "n2")
    assert told(state, 0).ips == ("10.0.0.1", "10.0.0.2")


def test_attempts_of_an_older_incarnation_are_nobodys_peers() -> None:
    state = placed(a_gang(), "n1", "n2", "n3")
    older = state.jobs[2].attempts[-1].incarnation
    assert older is not None
    newer = msgspec.structs.replace(older, number=2, id="new")
    for index in (0, 1):
        state = replace_last(state, index, incarnation=newer)
    assert told(state, 0).ips == ("10.0.0.1", "10.0.0.2")


def test_independent_jobs_are_told_nothing_of_each_other() -> None:
    state = placed(submitted(Group(name="main", nodes=2)), "n1", "n2")
    assert CLUSTERS.info(context(state, 0)) is None
    assert CLUSTERS.key(context(state, 0)) is None


def test_independent_jobs_in_one_placement_know_who_holds_a_place_and_wait_for_nobody() -> None:
    policy = RunPolicy(same_placement=True)
    state = placed(submitted(Group(name="main", nodes=3), policy=policy), "n1", "n2")
    assert (told(state, 1).ips, told(state, 1).rank) == (("10.0.0.1", "10.0.0.2"), 1)


def test_gpus_are_counted_for_each_node() -> None:
    state = a_gang(nodes=2, size=2)
    state = place(place(state, 0, "n1", gpus=4), 1, "n2", gpus=2)
    info = told(state, 1)
    assert (info.gpus, info.gpus_per_node) == ((4, 2), 2)


# -- which address ---------------------------------------------------------------------------


def test_a_node_is_reached_where_the_controller_reaches_it() -> None:
    node = a_node("n", "192.168.7.7", "10.0.0.5", host="10.0.0.5")
    assert cluster.address(node) == "10.0.0.5"


def test_a_name_is_no_address_so_the_first_own_one_counts() -> None:
    assert cluster.address(a_node("n", "192.168.7.7", host="gpu-1.example")) == "192.168.7.7"


def test_the_preferred_network_wins() -> None:
    node = a_node("n", "192.168.7.7", "10.0.0.5", "10.9.0.5", host="10.0.0.5")
    networks = [IPv4Network("172.16.0.0/12"), IPv4Network("10.9.0.0/16")]
    assert cluster.address(node, networks) == "10.9.0.5"


def test_a_node_outside_of_the_preferred_networks_is_still_reached() -> None:
    node = a_node("n", "10.0.0.5", host="10.0.0.5")
    assert cluster.address(node, [IPv4Network("172.16.0.0/12")]) == "10.0.0.5"


# -- jobs that share a node ------------------------------------------------------------------


def sharing(*nodes: str) -> RunState:
    state = a_gang(nodes=len(nodes), size=len(nodes))
    for index, node in enumerate(nodes):
        state = place(state, index, node, whole=False)
    return state


def with_networks(networks: int | None = 64) -> Clusters:
    nodes = {
        node.id: msgspec.structs.replace(
            node, capacity=msgspec.structs.replace(node.capacity, networks=networks)
        )
        for node in NODES.values()
    }
    return Clusters(nodes, SECRET)


def test_ranks_on_one_node_are_told_their_addresses_in_the_runs_network() -> None:
    state = sharing("n1", "n1")
    for index in (0, 1):
        state = replace_last(state, index, address=f"172.30.252.{index + 2}")
    for index in (0, 1):
        info = with_networks().info(context(state, index))
        assert info is not None
        assert (info.master_ip, info.ips) == ("172.30.252.2", ("172.30.252.2", "172.30.252.3"))


def test_a_rank_on_another_node_is_told_at_its_nodes_address() -> None:
    """Its network is another one, with the same addresses perhaps."""
    state = sharing("n1", "n1", "n2")
    for index in range(3):
        state = replace_last(state, index, address=f"172.30.252.{index + 2}")
    seen = [with_networks().info(context(state, index)) for index in (0, 2)]
    assert [info.ips for info in seen if info] == [
        ("172.30.252.2", "172.30.252.3", "10.0.0.2"),
        ("10.0.0.1", "10.0.0.1", "172.30.252.4"),
    ]


def test_a_job_waits_until_the_ranks_on_its_node_have_addresses() -> None:
    state = replace_last(sharing("n1", "n1"), 0, address="172.30.252.2")
    with pytest.raises(RetryLater, match="has no address yet"):
        with_networks().info(context(state, 0))


@pytest.mark.parametrize(
    "peer", [{"creating_seen": True}, {"reason": Reason.IMAGE_PULL_FAILED}], ids=str
)
def test_it_does_not_wait_for_an_address_that_never_comes(peer: dict[str, Any]) -> None:
    state = replace_last(sharing("n1", "n1"), 0, address="172.30.252.2")
    info = with_networks().info(context(replace_last(state, 1, **peer), 0))
    assert info is not None
    assert info.ips == ("172.30.252.2", "10.0.0.1")


def test_tasks_of_a_shim_without_networks_are_told_their_nodes_address() -> None:
    info = with_networks(None).info(context(sharing("n1", "n1"), 1))
    assert info is not None
    assert info.ips == ("10.0.0.1", "10.0.0.1")


def test_jobs_with_their_nodes_network_are_told_its_address() -> None:
    info = with_networks().info(context(placed(a_gang(), "n3", "n1", "n2"), 1))
    assert info is not None
    assert info.ips == ("10.0.0.3", "10.0.0.1", "10.0.0.2")


@pytest.mark.parametrize("forged", ["10.0.0.1\n ProxyCommand sh", "gpu-1", "", None])
def test_a_forged_address_of_a_task_reaches_no_other_task(forged: str | None) -> None:
    seen = task_of(sharing("n1"))
    told = [
        report.address
        for address in (forged, "172.30.252.2")
        for report in from_node.task_reports(msgspec.structs.replace(seen, address=address))
        if isinstance(report, TaskSeen)
    ]
    assert told == [None, "172.30.252.2"]


@pytest.mark.parametrize("forged", ["10.0.0.1\n ProxyCommand sh", "gpu-1", ""])
def test_a_forged_host_of_ssh_reaches_no_users_configuration(forged: str) -> None:
    seen = task_of(sharing("n1"))
    told = [
        report.ssh_host
        for host in (forged, "172.30.252.2")
        for report in from_node.task_reports(msgspec.structs.replace(seen, ssh_host=host))
        if isinstance(report, TaskSeen)
    ]
    assert told == [None, "172.30.252.2"]


# -- what the runner is told -----------------------------------------------------------------


def gang_of(state: RunState, index: int) -> dict[str, Any]:
    gang = to_node.submit_request(context(state, index)).job.gang
    assert gang is not None
    return {name: getattr(gang, name) for name in ("size", "group_size", "rank")}


def test_gang_sizes_are_of_all_gang_groups_and_of_ones_own() -> None:
    groups = (Group(name="a", nodes=2, gang_size=2), Group(name="b", nodes=4, gang_size=3))
    state = submitted(*groups)
    assert gang_of(state, 0) == {"size": 5, "group_size": 2, "rank": 0}
    assert gang_of(state, 2) == {"size": 5, "group_size": 3, "rank": 0}
    assert gang_of(state, 5) == {"size": 5, "group_size": 3, "rank": None}


def test_a_job_of_a_plain_group_beside_a_gang_is_told_the_rank_that_is_shown() -> None:
    state = submitted(Group(name="a", nodes=2, gang_size=2), Group(name="plain", nodes=2))
    for index, rank in ((2, 0), (3, 1)):
        assert state.jobs[index].attempts[-1].rank == rank
        assert gang_of(state, index) == {"size": 2, "group_size": None, "rank": rank}
    assert told(placed(state, "n1", "n2", "n3", "n4"), 2).rank == 2


def test_a_job_is_told_the_monitoring_descriptor_of_its_place() -> None:
    play = Play().to_provisioning()
    descriptor = play.allocation().monitoring_descriptor
    job = to_node.submit_request(context(play.state, 0)).job
    assert descriptor is not None
    assert job.monitoring_descriptor == descriptor


def test_a_job_is_told_how_many_gpus_it_has() -> None:
    state = place(submitted(Group(name="main", nodes=1)), 0, "n1", gpus=4)
    assert to_node.submit_request(context(state, 0)).job.gpus == 4


def test_a_job_is_told_how_often_it_was_started_before() -> None:
    state = place(submitted(Group(name="main", nodes=1)), 0, "n1")
    job = state.jobs[0]
    first = job.attempts[-1]

    def told_with(**fields: int) -> int:
        again = msgspec.structs.replace(first, id="again", **fields)
        both = msgspec.structs.replace(job, attempts=(first, again))
        now = msgspec.structs.replace(state, jobs=(both,))
        return to_node.submit_request(context(now, 0)).job.restarts

    assert told_with(number=1) == 1
    assert told_with(number=1, occurrence=2) == 0, "of a schedule, each occurrence is new"


def test_the_incarnation_is_the_attempts() -> None:
    state = a_gang()
    gang = to_node.submit_request(context(state, 0)).job.gang
    assert state.run.incarnation is not None
    assert gang is not None
    assert (gang.incarnation, gang.incarnation_number) == (state.run.incarnation.id, 1)


def test_jobs_that_were_scaled_down_are_not_counted() -> None:
    state = submitted(Group(name="main", nodes=3))
    gone = msgspec.structs.replace(state.jobs[2], scaled_down=True)
    state = msgspec.structs.replace(state, jobs=(*state.jobs[:2], gone))
    job = to_node.submit_request(context(state, 0)).job
    assert (job.job_count, job.group_job_count) == (2, 2)


# -- the run's key ---------------------------------------------------------------------------


def test_the_key_is_the_same_on_all_nodes_of_a_run_and_after_a_restart() -> None:
    state = placed(a_gang(), "n1", "n2", "n3")
    keys = {CLUSTERS.key(context(state, n)) for n in range(3)}
    keys.add(Clusters(NODES, SECRET).key(context(state, 0)))
    assert len(keys) == 1


def test_another_run_or_controller_has_another_key() -> None:
    texts = [cluster_key(*pair).private for pair in ((SECRET, "r1"), (SECRET, "r2"), (b"x", "r1"))]
    assert len(set(texts)) == 3


@pytest.mark.parametrize("run_id", [f"run-{n}" for n in range(4)])
def test_openssh_and_asyncssh_read_the_key(tmp_path: Path, run_id: str) -> None:
    key = cluster_key(SECRET, run_id)
    file = tmp_path / "key"
    file.touch(mode=0o600)
    file.write_text(key.private)
    argv = ["ssh-keygen", "-y", "-f", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.split() == key.public.split()
    assert asyncssh.import_private_key(key.private).export_public_key().split() == [
        part.encode() for part in key.public.split()
    ]


def test_the_controllers_key_gives_a_steady_secret() -> None:
    identity = asyncssh.generate_private_key("ssh-ed25519", comment="one")
    again = asyncssh.import_private_key(identity.export_private_key())
    assert secret_of(identity) == secret_of(again)


def test_the_task_lets_the_runs_key_in_even_if_no_user_may_come() -> None:
    request = to_node.task_request(
        context(placed(a_gang(), "n1", "n2", "n3"), 0), "ssh-ed25519 AAAA"
    )
    assert request.ssh is not None
    assert (request.ssh.authorized_keys, request.ssh.cluster_key) == ((), "ssh-ed25519 AAAA")


@pytest.mark.parametrize(("ssh", "starts"), [("auto", False), ("embedded", True), ("off", False)])
def test_a_job_without_a_users_key_has_ssh_for_terminals_if_it_asked_for_it(
    ssh: str, starts: bool
) -> None:
    state = placed(submitted(Group(name="main", nodes=1), ssh=ssh), "n1")
    request = to_node.task_request(context(state, 0), None, "ssh-ed25519 TTTT")
    assert (request.ssh is not None) is starts


@pytest.mark.parametrize("ssh", ["auto", "embedded", "install", "off"])
@pytest.mark.parametrize("keys", [(), ("ssh-ed25519 UUUU",)])
@pytest.mark.parametrize("clusters", [None, "ssh-ed25519 AAAA"])
def test_a_key_for_terminals_is_made_for_the_jobs_alone_that_get_it(
    ssh: str, keys: tuple[str, ...], clusters: str | None
) -> None:
    state = placed(submitted(Group(name="main", nodes=1), ssh=ssh, ssh_keys=keys), "n1")
    one = context(state, 0)
    request = to_node.task_request(one, clusters, "ssh-ed25519 TTTT")
    assert to_node.may_have_ssh(one, clusters) is (request.ssh is not None)


def test_no_key_where_ssh_is_off() -> None:
    state = placed(submitted(Group(name="main", nodes=2, gang_size=2), ssh="off"), "n1", "n2")
    assert CLUSTERS.key(context(state, 0)) is None


def test_no_key_where_nodes_are_shared_since_other_nodes_cannot_come_in() -> None:
    state = place(place(a_gang(2, 2), 0, "n1", whole=False), 1, "n2", whole=False)
    assert CLUSTERS.key(context(state, 0)) is None
    assert told(state, 0).ips == ("10.0.0.1", "10.0.0.2")


def test_the_jobs_of_a_replica_learn_of_the_nodes_of_their_replica_alone() -> None:
    service = ServicePolicy(port=80, groups=(ReplicaGroup(name="main", least=2, most=2, nodes=2),))
    spec = JobSpec(image="i", resources=WHOLE, serves=Serves(port=80))
    state = new_run(
        name="r",
        user="u",
        groups=[PlannedGroup(group=Group(name="main", nodes=4), spec=spec)],
        now=NOW,
        new_id=Ids(),
        service=service,
    )
    with pytest.raises(RetryLater, match="is not placed yet"):
        CLUSTERS.info(context(place(state, 2, "n3"), 2))

    state = placed(state, "n1", "n2", "n3", "n4")
    assert told(state, 1).ips == ("10.0.0.1", "10.0.0.2")
    assert [told(state, n).master_ip for n in range(4)] == ["10.0.0.1"] * 2 + ["10.0.0.3"] * 2
    assert [told(state, n).rank for n in range(4)] == [0, 1, 0, 1]
