"""What the jobs of a multi-node run are told about each other: addresses, ranks, GPUs, a key.

Who belongs together: the ranked jobs of one incarnation, or, in a run without gangs that asked for
one place (`placement: cluster`), the jobs that hold one. Other jobs are independent, since nobody
knows where their siblings will be, or when.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Network, ip_address

from controller.lifecycle.model import Attempt, Job, Node, RunState
from controller.pipelines.clusterkey import cluster_key
from controller.pipelines.convert import View
from controller.pipelines.performing import TryAgain
from runner.schemas import ClusterInfo, ClusterKey
from shim.schemas import CLUSTER_SSH_PORT

_LOOPBACK = "127.0.0.1"


class Clusters:
    """`nodes` by id, as they are now. `secret`: what the runs' keys are derived from. `networks`,
    the preferred one first: which of a node's addresses its jobs are reached at."""

    def __init__(
        self, nodes: Mapping[str, Node], secret: bytes, networks: Sequence[IPv4Network] = ()
    ) -> None:
        self._nodes = nodes
        self._secret = secret
        self._networks = networks

    def info(self, view: View) -> ClusterInfo | None:
        """None for a job that stands alone. Raises TryAgain while a peer has no place yet."""
        if not is_clustered(view):
            return None
        peers = list(_peers(view))
        ips = tuple(self._address(attempt) for attempt in peers)
        gpus = tuple(_gpus(view.state, attempt) for attempt in peers)
        rank = next((n for n, one in enumerate(peers) if one.id == view.attempt.id), None)
        return ClusterInfo(
            ips=ips,
            master_ip=ips[0] if ips else _LOOPBACK,
            rank=rank,
            gpus_per_node=_gpus(view.state, view.attempt),
            gpus=gpus,
            ssh_port=CLUSTER_SSH_PORT,
        )

    def key(self, view: View) -> ClusterKey | None:
        """None for a job that cannot be reached from other nodes, or wants no SSH."""
        allocation = view.allocation
        shares = allocation is None or not allocation.resources.whole_node
        if shares or view.job.spec.ssh == "off" or not is_clustered(view):
            return None
        return cluster_key(self._secret, view.state.run.id)

    def _address(self, attempt: Attempt) -> str:
        node = self._nodes.get(attempt.node_id or "")
        return _LOOPBACK if node is None else address(node, self._networks)


def is_clustered(view: View) -> bool:
    """Whether it is told of other nodes, and they of it."""
    run = view.state.run
    together = view.attempt.incarnation is not None or run.policy.same_placement
    return together and len(view.state.jobs) > 1


def address(node: Node, networks: Sequence[IPv4Network] = ()) -> str:
    """Where jobs on other nodes reach those on this one: in the preferred network, else where we
    reach it ourselves if that is an address of its own, else its first."""
    own, host = node.capacity.addresses, node.address.host
    for network in networks:
        for one in own:
            if ip_address(one) in network:
                return one
    if host in own:
        return host
    return own[0] if own else host or _LOOPBACK


def _peers(view: View) -> Iterator[Attempt]:
    """In the order of their ranks over all groups, which is that of the groups."""
    for job in _in_order(view.state):
        attempt = _latest_with(job, view.attempt)
        if attempt is None:
            continue
        if view.attempt.incarnation is None:
            if attempt.node_id is not None:
                yield attempt
        elif attempt.rank is not None:
            if attempt.node_id is None and attempt.reason is not None:
                continue  # abandoned before it was placed: it is nowhere, and nobody waits for it
            if attempt.node_id is None:
                raise TryAgain(f"the gang of attempt {view.attempt.id} is not placed yet")
            yield attempt


def _in_order(state: RunState) -> list[Job]:
    order = {group.name: number for number, group in enumerate(state.run.groups)}
    return sorted(state.jobs, key=lambda job: (order.get(job.group, 0), _rank(job), job.index))


def _rank(job: Job) -> int:
    rank = job.attempts[-1].rank if job.attempts else None
    return job.index if rank is None else rank


def _latest_with(job: Job, attempt: Attempt) -> Attempt | None:
    """The job's latest attempt of the same occurrence and incarnation."""
    for one in reversed(job.attempts):
        if one.occurrence == attempt.occurrence and one.incarnation == attempt.incarnation:
            return one
    return None


def _gpus(state: RunState, attempt: Attempt) -> int:
    for allocation in state.allocations:
        if allocation.id == attempt.allocation_id:
            return len(allocation.gpus)
    return len(attempt.gpus)
