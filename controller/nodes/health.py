"""Health decides whether a node may get work, and how long its silence may last. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from controller.lifecycle.inventory import NodeFailure
from controller.lifecycle.model import Node, NodeCapacity, NodeGpu, NodeStatus
from controller.pipelines import from_node
from shim.schemas import Health, NodeInfo

SHIM_API = "v1"
LEAST_DISK = 1 << 30
"""Bytes free where the shim keeps records and logs."""
MOST_SKEW_SECONDS = 60.0
MISSING = "the node does not name it any more"


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a node's shim said. `asked_at`, `answered_at`: Unix seconds around the health's answer,
    where its clock is to be judged."""

    health: Health
    info: NodeInfo
    asked_at: float = float("-inf")
    answered_at: float = float("inf")

    @property
    def skew(self) -> float:
        """Seconds by which the node's clock is surely off: ahead when positive."""
        at = self.health.at
        if at is None or self.asked_at <= at <= self.answered_at:
            return 0.0
        return at - (self.answered_at if at > self.answered_at else self.asked_at)


def after_health_check(node: Node, reading: Reading) -> Node:
    """The node as it is by this reading: its capacity, and `unfit` when a check fails."""
    capacity = _with_missing(reading.info, node.capacity.gpus)
    failures = "; ".join(_failures(node.name, reading, capacity.gpus))
    return msgspec.structs.replace(node, capacity=capacity, unfit=failures or None)


def without_gpu(node: Node, uuid: str) -> Node:
    """No job waits for this GPU any more, nor for what else its card was split in, should the node
    not name them."""
    boards = {gpu.board for gpu in node.capacity.gpus if gpu.uuid == uuid} | {uuid}
    gpus = tuple(gpu for gpu in node.capacity.gpus if gpu.board not in boards)
    capacity = msgspec.structs.replace(node.capacity, gpus=gpus)
    return msgspec.structs.replace(node, capacity=capacity)


def _with_missing(info: NodeInfo, known: Sequence[NodeGpu]) -> NodeCapacity:
    """A GPU that was seen once stays listed, so that its loss is not forgotten by a restart. A card
    that was split anew lost nothing."""
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
        yield f"its clock is {abs(reading.skew):.0f} s {word}: let it synchronise"


UNREACHABLE_AFTER_PROBES = 3
_ON_ITS_WAY = 0.1
"""A shim sends a heartbeat every 10 s; by this share later it is not missed yet."""


class Silence:
    """`before`: seconds that the node had been silent already when this controller began to listen.

    They count to LOST, but never in place of probes of its own: a controller that was away has to
    look for itself before it gives a node up."""

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
        """The part of it that this controller has listened to."""
        return self._monotonic() - self._heard_at

    @property
    def left(self) -> float:
        """Seconds until a probe is due; not more than 0 when it is."""
        return self._failure.probe_every * (1 + _ON_ITS_WAY) - self.listened

    def heard(self, at: float | None = None) -> None:
        """A byte came (at this time of the same clock). One that is known already is no news."""
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
        """What the node is while there is no connection to it. `refused`: it was there, and is not
        the one that was pinned."""
        overdue = self.seconds - self._failure.probe_every
        if self.too_long and overdue >= self._failure.lost_after:
            return NodeStatus.LOST
        if now in (NodeStatus.LOST, NodeStatus.UNREACHABLE):
            return now
        return NodeStatus.UNREACHABLE if refused or self.too_long else NodeStatus.CONNECTING


def silent_before(node: Node, now: float) -> float:
    """Seconds that a stored node had been silent when its controller started. One that was heard
    until the former controller ended begins anew: nobody has listened since."""
    if node.status is NodeStatus.CONNECTED or node.last_seen_at is None:
        return 0.0
    return max(0.0, now - node.last_seen_at)
