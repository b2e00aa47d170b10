"""The health gate: what a node says of itself, and whether it may take work with that.

Asked when a node was connected and whenever it says that something has changed. A node that does
not pass keeps its jobs and is given no new ones; it is taken back as soon as it passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from controller.lifecycle.model import Node, NodeCapacity, NodeGpu
from controller.pipelines import convert
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


def passed(node: Node, reading: Reading) -> Node:
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
    said = convert.capacity(info)
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
