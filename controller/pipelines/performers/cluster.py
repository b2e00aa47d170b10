"""The cluster of a run is what its jobs on several nodes learn of each other: the addresses, ranks
and GPUs of their peers, and the key with which they log in to each other.
"""

from __future__ import annotations

import base64
import struct
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Network, ip_address

import asyncssh
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from controller.lifecycle.membership import members
from controller.lifecycle.model import Attempt, Job, Node, RunState
from controller.pipelines.to_node import AttemptContext, RetryLater
from fairlead.wire.job import ClusterInfo, ClusterKey
from fairlead.wire.shim import CLUSTER_SSH_PORT

_TYPE = b"ssh-ed25519"
_MAGIC = b"openssh-key-v1\0"
_NO_CIPHER = b"none"
_BLOCK = 8
# OpenSSH wants one number twice in the key, random there; here it is derived, so that the same key
# comes out after a restart.
_SEED_BYTES, _CHECK_BYTES = 32, 4
_LINE = 70


def secret_of(identity: asyncssh.SSHKey) -> bytes:
    """Return the secret from which the keys of runs are derived: the controller's own key."""
    return identity.export_private_key("pkcs8-der")


def cluster_key(secret: bytes, run_id: str) -> ClusterKey:
    """Return the run's Ed25519 key pair. Without `secret`, neither `run_id` nor the keys of other
    runs tell anything about it."""
    return _derived(secret, b"fairlead: SSH between the nodes of the run " + run_id.encode())


def terminal_key(secret: bytes, run_id: str) -> ClusterKey:
    """Return the key pair with which the controller opens terminals in the run's jobs. The private
    half never leaves the controller."""
    return _derived(secret, b"fairlead: terminals in the run " + run_id.encode())


def ways_key(secret: bytes) -> ClusterKey:
    """Return the key pair with which followers reach exposed ports on nodes. It opens nothing else
    there, unlike the controller's own key, from which it is made."""
    return _derived(secret, b"fairlead: ways of followers to exposed ports")


def _derived(secret: bytes, purpose: bytes) -> ClusterKey:
    length = _SEED_BYTES + _CHECK_BYTES
    derived = HKDF(algorithm=hashes.SHA256(), length=length, salt=None, info=purpose).derive(secret)
    seed, check = derived[:_SEED_BYTES], derived[_SEED_BYTES:]
    point = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    public = _string(_TYPE) + _string(point)
    return ClusterKey(
        private=_openssh(seed, check, point, public),
        public=f"{_TYPE.decode()} {base64.b64encode(public).decode()}",
    )


def _openssh(seed: bytes, check: bytes, point: bytes, public: bytes) -> str:
    """Encode the key in OpenSSH's format (PROTOCOL.key), without a cipher and without a comment."""
    inner = check * 2 + _string(_TYPE) + _string(point) + _string(seed + point) + _string(b"")
    # OpenSSH pads with 1, 2, 3 … up to the cipher's block, also without a cipher (PROTOCOL.key).
    inner += bytes(range(1, _BLOCK - len(inner) % _BLOCK + 1)) if len(inner) % _BLOCK else b""
    head = _MAGIC + _string(_NO_CIPHER) * 2 + _string(b"") + struct.pack(">I", 1)
    text = base64.b64encode(head + _string(public) + _string(inner)).decode()
    lines = "\n".join(textwrap.wrap(text, _LINE))
    return f"-----BEGIN OPENSSH PRIVATE KEY-----\n{lines}\n-----END OPENSSH PRIVATE KEY-----\n"


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


_LOOPBACK = "127.0.0.1"


class Clusters:
    """Knows what multi-node jobs must learn about their peers.

    `nodes` by id, as they are now. `secret`: what the runs' keys are derived from. `networks`:
    preferred networks for the jobs' addresses, the best first.
    """

    def __init__(
        self, nodes: Mapping[str, Node], secret: bytes, networks: Sequence[IPv4Network] = ()
    ) -> None:
        self._nodes = nodes
        self._secret = secret
        self._networks = networks

    def info(self, context: AttemptContext) -> ClusterInfo | None:
        """Return what the job learns of its peers; None for a job without peers. Raises RetryLater
        while a peer has no allocation yet, or no address in the network that the two share."""
        if not is_clustered(context):
            return None
        peers = list(_peers(context))
        ips = tuple(self._address(context, attempt) for attempt in peers)
        gpus = tuple(_gpus(context.state, attempt) for attempt in peers)
        rank = next((n for n, one in enumerate(peers) if one.id == context.attempt.id), None)
        return ClusterInfo(
            ips=ips,
            master_ip=ips[0] if ips else _LOOPBACK,
            rank=rank,
            gpus_per_node=_gpus(context.state, context.attempt),
            gpus=gpus,
            ssh_port=CLUSTER_SSH_PORT,
        )

    def key(self, context: AttemptContext) -> ClusterKey | None:
        """Return the run's key; None for a job that other nodes cannot reach, or that wants no
        SSH."""
        allocation = context.allocation
        shares = allocation is None or not allocation.resources.whole_node
        if shares or context.job.spec.ssh == "off" or not is_clustered(context):
            return None
        return cluster_key(self._secret, context.state.run.id)

    def terminal_key(self, context: AttemptContext) -> str:
        """Return the public key with which the controller opens terminals in the job."""
        return terminal_key(self._secret, context.state.run.id).public

    def _address(self, context: AttemptContext, peer: Attempt) -> str:
        """Return where the job reaches its peer: in their run's network if both share a node, else
        at the peer's node."""
        node = self._nodes.get(peer.node_id or "")
        if node is None:
            return _LOOPBACK
        shares = peer.node_id == context.attempt.node_id
        if shares and _is_in_own_network(context.state, peer, node):
            if peer.task.address is not None:
                return peer.task.address
            if _waits_for_peers(context) and _gets_an_address(peer):
                raise RetryLater(f"the peer {peer.id} has no address yet")
        return address(node, self._networks)


def is_clustered(context: AttemptContext) -> bool:
    """Return whether the job and jobs on other nodes learn of each other."""
    run = context.state.run
    if members.is_member(run, context.job):
        return True
    together = context.attempt.incarnation is not None or run.policy.same_placement
    return together and len(context.state.jobs) > 1


def address(node: Node, networks: Sequence[IPv4Network] = ()) -> str:
    """Return the address at which jobs on other nodes reach jobs on this one.

    It is the node's address in the preferred network, else the one that the controller uses if it
    is the node's own, else its first.
    """
    own, host = node.capacity.addresses, node.address.host
    for network in networks:
        for one in own:
            if ip_address(one) in network:
                return one
    if host in own:
        return host
    return own[0] if own else host or _LOOPBACK


def _waits_for_peers(context: AttemptContext) -> bool:
    """Return whether the jobs are placed together; others wait for nobody."""
    if context.attempt.incarnation is not None:
        return True
    return members.is_member(context.state.run, context.job)


def _is_in_own_network(state: RunState, attempt: Attempt, node: Node) -> bool:
    """Return whether the attempt is in a network of its run's own. A shim that counts no networks
    tells no addresses in them."""
    if node.capacity.networks is None:
        return False
    for allocation in state.allocations:
        if allocation.id == attempt.allocation_id:
            return not (allocation.resources.whole_node and node.capacity.host_network)
    return False


def _gets_an_address(attempt: Attempt) -> bool:
    """Return whether the shim will tell its address. It is known before the container is made; in
    the network of a run that an earlier version of the shim began, it never is."""
    return attempt.reason is None and not attempt.pull.creating_seen


def _peers(context: AttemptContext) -> Iterator[Attempt]:
    """Yield the latest attempts in the order of their ranks over all groups, which is the order of
    the groups. The peers in a service are the jobs of the same replica."""
    if members.is_member(context.state.run, context.job):
        yield from _members(context)
        return
    for job in _in_order(context.state):
        attempt = _latest_with(job, context.attempt)
        if attempt is None:
            continue
        if context.attempt.incarnation is None:
            if attempt.node_id is not None:
                yield attempt
        elif attempt.rank is not None:
            if attempt.node_id is None and attempt.reason is not None:
                continue  # abandoned before it was placed: no job waits for it
            if attempt.node_id is None:
                raise RetryLater(f"the gang of attempt {context.attempt.id} is not placed yet")
            yield attempt


def _members(context: AttemptContext) -> Iterator[Attempt]:
    for job in members.members_of(context.state.jobs, context.job):
        attempt = job.attempts[-1] if job.attempts else None
        if attempt is None or attempt.node_id is None:
            raise RetryLater(f"the replica of attempt {context.attempt.id} is not placed yet")
        yield attempt


def _in_order(state: RunState) -> list[Job]:
    order = {group.name: number for number, group in enumerate(state.run.groups)}
    return sorted(state.jobs, key=lambda job: (order.get(job.group, 0), _rank(job), job.index))


def _rank(job: Job) -> int:
    rank = job.attempts[-1].rank if job.attempts else None
    return job.index if rank is None else rank


def _latest_with(job: Job, attempt: Attempt) -> Attempt | None:
    """Return the job's latest attempt of the same occurrence and incarnation."""
    for one in reversed(job.attempts):
        if one.occurrence == attempt.occurrence and one.incarnation == attempt.incarnation:
            return one
    return None


def _gpus(state: RunState, attempt: Attempt) -> int:
    for allocation in state.allocations:
        if allocation.id == attempt.allocation_id:
            return len(allocation.gpus)
    return len(attempt.task.gpus)
