"""Health decides whether a node may take work, and how long it may be silent; all functions are
pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from controller.lifecycle.inventory import NodeFailure
from controller.lifecycle.model import Node, NodeCapacity, NodeGpu, NodeStatus
from controller.pipelines import from_node
from shim.schemas import Health, NodeInfo, TaskInfo, TaskReason, TaskStatus

SHIM_API = "v1"
LEAST_DISK = 1 << 30
"""Bytes that must be free where the shim keeps records and logs."""
MOST_SKEW_SECONDS = 60.0
MOST_FAILED_STARTS = 3
"""Jobs in a row that a node fails to start before it takes no more work."""
MISSING = "the node no longer reports it"


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A report of a node's shim. `asked_at` and `answered_at` are Unix seconds around the answer,
    to judge the node's clock."""

    health: Health
    info: NodeInfo
    asked_at: float = float("-inf")
    answered_at: float = float("inf")

    @property
    def skew(self) -> float:
        """Seconds by which the node's clock is certainly off; positive: it is ahead."""
        at = self.health.at
        if at is None or self.asked_at <= at <= self.answered_at:
            return 0.0
        return at - (self.answered_at if at > self.answered_at else self.asked_at)


def after_health_check(node: Node, reading: Reading) -> Node:
    """Return the node after this reading: its capacity, and `unfit` when a check fails."""
    capacity = _with_missing(reading.info, node.capacity.gpus)
    failures = "; ".join(_failures(node.name, reading, capacity.gpus))
    if node.unfit is not None and not failures:
        node = with_another_chance(node)
    return msgspec.structs.replace(node, capacity=capacity, unfit=failures or None)


def after_task(node: Node, info: TaskInfo) -> Node:
    """Return the node after this state of a task on it, which may be reported repeatedly.

    Containers that a node fails to create, by its own fault, cordon it: each of them costs a job an
    interruption while another node may be well. A container that runs ends the row.
    """
    if info.times.running_at is not None:
        return msgspec.structs.replace(node, failed_starts=()) if node.failed_starts else node
    failed = info.status is TaskStatus.TERMINATED and info.reason == TaskReason.INSTANCE_UNREACHABLE
    if not failed or info.id in node.failed_starts or node.cordoned:
        return node
    failures = (*node.failed_starts, info.id)
    changed = msgspec.structs.replace(node, failed_starts=failures)
    if len(failures) < MOST_FAILED_STARTS:
        return changed
    last = f"; the last one: {info.message}" if info.message else ""
    return msgspec.structs.replace(
        changed,
        cordoned=True,
        cordon_reason=f"{len(failures)} jobs in a row could not be started here, by a fault of the"
        f" node{last} (`fairlead node doctor {node.name}` looks for it and, when nothing is wrong,"
        f" allows placements again, as `fairlead node uncordon {node.name}` does)",
    )


def with_another_chance(node: Node) -> Node:
    """Return the node without the failed starts, and uncordoned if it was cordoned for those.

    A check that succeeds after one that failed, a reboot and a new shim give a node another chance.
    """
    if len(node.failed_starts) < MOST_FAILED_STARTS:
        return msgspec.structs.replace(node, failed_starts=()) if node.failed_starts else node
    return msgspec.structs.replace(node, failed_starts=(), cordoned=False, cordon_reason=None)


def without_gpu(node: Node, uuid: str) -> Node:
    """Return the node without this GPU and all other parts of the same card: no job waits for them
    any more."""
    boards = {gpu.board for gpu in node.capacity.gpus if gpu.uuid == uuid} | {uuid}
    gpus = tuple(gpu for gpu in node.capacity.gpus if gpu.board not in boards)
    capacity = msgspec.structs.replace(node.capacity, gpus=gpus)
    return msgspec.structs.replace(node, capacity=capacity)


def _with_missing(info: NodeInfo, known: Sequence[NodeGpu]) -> NodeCapacity:
    """Return the capacity with the GPUs that the node no longer reports.

    A GPU that was seen once stays listed, so that a restart does not hide its loss. A card that was
    split again lost nothing.
    """
    said = from_node.capacity(info)
    there = {gpu.board for gpu in said.gpus} | set(info.gpu_boards)
    missing = tuple(
        msgspec.structs.replace(gpu, healthy=False, missing=True, message=MISSING)
        for gpu in known
        if gpu.board not in there
    )
    return msgspec.structs.replace(said, gpus=(*said.gpus, *missing))


def _failures(name: str, reading: Reading, gpus: Sequence[NodeGpu]) -> Iterator[str]:
    health, info = reading.health, reading.info
    if SHIM_API not in health.api_versions:
        speaks = ", ".join(health.api_versions) or "none"
        yield (
            f"its shim {health.version} speaks API {speaks}, this controller {SHIM_API}: install "
            f"versions that fit together"
        )
    if info.engine_error is not None:
        yield f"its engine does not answer: {info.engine_error}"
    if info.disk_free is not None and info.disk_free < LEAST_DISK:
        yield (
            f"only {info.disk_free >> 20} MiB are free on its disk, at least "
            f"{LEAST_DISK >> 20} are needed: free some"
        )
    for gpu in gpus:
        if gpu.missing:
            yield (
                f"GPU {gpu.uuid} ({gpu.name}) is missing; if it was taken out, say so "
                f"(`fairlead node clear-gpu {name} {gpu.uuid}`)"
            )
    if abs(reading.skew) > MOST_SKEW_SECONDS:
        word = "ahead" if reading.skew > 0 else "behind"
        yield f"its clock is {abs(reading.skew):.0f} s {word}: synchronise it (NTP)"


UNREACHABLE_AFTER_PROBES = 3
_ON_ITS_WAY = 0.1
"""A shim sends a heartbeat every 10 s; one that is late by this share is not missed yet."""


class Silence:
    """The time for which a node has been silent.

    `before`: seconds of silence before this controller began to listen. They count towards LOST,
    but they do not replace failed probes: a controller that was away must probe the node before it
    gives it up.
    """

    def __init__(self, monotonic: Callable[[], float], failure: NodeFailure, before: float) -> None:
        self._monotonic = monotonic
        self._failure = failure
        self._before = before
        self._heard_at = monotonic()
        self._failed_probes = 0

    @property
    def seconds(self) -> float:
        return self._before + self.listened

    @property
    def listened(self) -> float:
        """The seconds of silence during which this controller listened."""
        return self._monotonic() - self._heard_at

    @property
    def left(self) -> float:
        """Seconds until a probe is due; 0 or less when it is due."""
        return self._failure.probe_every * (1 + _ON_ITS_WAY) - self.listened

    def heard(self, at: float | None = None) -> None:
        """Note that a byte came, at this time of the same clock. An older time changes nothing."""
        if at is not None and at <= self._heard_at:
            return
        self._heard_at = self._monotonic() if at is None else at
        self._before = 0.0
        self._failed_probes = 0

    def probe_failed(self) -> None:
        self._failed_probes += 1

    @property
    def too_long(self) -> bool:
        return (
            self.listened >= self._failure.unreachable_after
            and self._failed_probes >= UNREACHABLE_AFTER_PROBES
        )

    def verdict(self, now: NodeStatus, *, refused: bool = False) -> NodeStatus:
        """Return the node's status while it has no connection. `refused`: the host key is not the
        pinned one."""
        overdue = self.seconds - self._failure.probe_every
        if self.too_long and overdue >= self._failure.lost_after:
            return NodeStatus.LOST
        if now in (NodeStatus.LOST, NodeStatus.UNREACHABLE):
            return now
        return NodeStatus.UNREACHABLE if refused or self.too_long else NodeStatus.CONNECTING


def silent_before(node: Node, now: float) -> float:
    """Return the seconds for which a stored node had been silent when this controller started.

    A node that was connected until the former controller ended counts from 0: nobody has listened
    since.
    """
    if node.status is NodeStatus.CONNECTED or node.last_seen_at is None:
        return 0.0
    return max(0.0, now - node.last_seen_at)
