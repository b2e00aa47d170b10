"""Health decides whether a node may take work, from what its shim reports, in pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from controller.clock import iso
from controller.lifecycle.model import Node, NodeCapacity, NodeGpu
from controller.pipelines import from_node
from fairlead.wire.node import NodeInfo, Recall
from fairlead.wire.shim import Health, TaskInfo, TaskReason, TaskStatus

SHIM_API = "v1"
MIN_DISK = 1 << 30
"""Bytes that must be free where the shim keeps records and logs."""
MAX_SKEW_SECONDS = 60.0
MAX_FAILED_STARTS = 3
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
        # The shim read its clock at some moment in between: a slow link must accuse no right clock.
        if at is None or self.asked_at <= at <= self.answered_at:
            return 0.0
        return at - (self.answered_at if at > self.answered_at else self.asked_at)


def after_health_check(node: Node, reading: Reading) -> Node:
    """Return the node after this reading: its capacity, and `unfit` when a check fails."""
    capacity = _with_missing(reading.info, node.capacity.gpus)
    failures = "; ".join(_failures(node.name, reading, capacity.gpus))
    if node.unfit is not None and not failures:
        node = with_another_chance(node)
    since = _unfit_since(node, reading) if failures else None
    return msgspec.structs.replace(
        node, capacity=capacity, unfit=failures or None, unfit_since=since
    )


def _unfit_since(node: Node, reading: Reading) -> float | None:
    """Return since when the node, which fails this check, has failed; None: it is not known."""
    if node.unfit is not None and node.unfit_since is not None:
        return node.unfit_since
    return reading.answered_at if math.isfinite(reading.answered_at) else None


def after_recall(node: Node, recall: Recall | None) -> Node:
    """Return the node after what its provider announced: it is drained, and stays so until an admin
    ends that. Another announcement, as for a machine that was started again, drains it again."""
    if recall is None or recall.at in (node.recalled_at, node.ended_recall):
        return node
    return msgspec.structs.replace(
        node,
        recalled_at=recall.at,
        draining=True,
        drain_deadline=None,
        drain_reason=f"{recall.why} at {iso(recall.at)}",
    )


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
    if len(failures) < MAX_FAILED_STARTS:
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
    # With fewer failures it was an admin who cordoned the node, and only an admin ends that.
    if len(node.failed_starts) < MAX_FAILED_STARTS:
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
    capacity = from_node.capacity(info)
    there = {gpu.board for gpu in capacity.gpus} | set(info.gpu_boards)
    missing = tuple(
        msgspec.structs.replace(gpu, healthy=False, missing=True, message=MISSING)
        for gpu in known
        if gpu.board not in there
    )
    return msgspec.structs.replace(capacity, gpus=(*capacity.gpus, *missing))


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
    if info.disk_free is not None and info.disk_free < MIN_DISK:
        yield (
            f"only {info.disk_free >> 20} MiB are free on its disk, at least "
            f"{MIN_DISK >> 20} are needed: free some"
        )
    for gpu in gpus:
        if gpu.missing:
            yield (
                f"GPU {gpu.uuid} ({gpu.name}) is missing; if it was taken out, say so "
                f"(`fairlead node clear-gpu {name} {gpu.uuid}`)"
            )
    if abs(reading.skew) > MAX_SKEW_SECONDS:
        word = "ahead" if reading.skew > 0 else "behind"
        yield f"its clock is {abs(reading.skew):.0f} s {word}: synchronise it (NTP)"
