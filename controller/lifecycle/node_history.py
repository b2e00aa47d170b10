"""The history of a node: what happened to it, as people read it. No decision reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from controller.lifecycle.inventory import Node, NodeEvent, NodeGpu, NodeImage
from fairlead.model.statuses import NodeStatus

MAX_EVENTS: Final = 32
"""A node keeps its latest events with itself, so they go with it."""


def with_history(before: Node | None, after: Node, at: float, by: str | None = None) -> Node:
    """Return the changed node with the events of this change, at the Unix time `at`. `by`: the user
    who asked for it; None: nobody did."""
    if before is None:
        history = (*after.history, NodeEvent(at=at, what="added", by=by))
        return replace(after, history=history[-MAX_EVENTS:])
    history = before.history
    for what, why in _changes(before, after):
        event = NodeEvent(at=at, what=what, why=why, by=by)
        if not history or (history[-1].what, history[-1].why) != (what, why):
            history = (*history, event)[-MAX_EVENTS:]
    return after if after.history == history else replace(after, history=history)


def broken_since(node: Node, uuid: str) -> float | None:
    """Return when this GPU of the node was found broken (Unix time); None: it is not known any
    more."""
    what = _broken(uuid)
    return next((event.at for event in reversed(node.history) if event.what == what), None)


def _broken(uuid: str) -> str:
    return f"GPU {uuid} is cordoned"


def _changes(before: Node, after: Node) -> Iterator[tuple[str, str | None]]:
    """Yield what changed, and why. A link that is being made is no event: how it ends is."""
    if after.status not in (before.status, NodeStatus.CONNECTING):
        yield after.status.value, after.message
    if after.boot_id and before.boot_id and after.boot_id != before.boot_id:
        yield "the machine was restarted", None
    if after.install_id and before.install_id and after.install_id != before.install_id:
        yield "the machine was installed anew", None
    if after.cordoned != before.cordoned:
        yield ("cordoned", after.cordon_reason) if after.cordoned else ("uncordoned", None)
    if after.draining != before.draining:
        yield ("draining", after.drain_reason) if after.draining else ("the drain ended", None)
    if after.unfit != before.unfit:
        yield ("the health check failed" if after.unfit else "the health check passed"), after.unfit
    if after.fleet != before.fleet:
        yield f"moved to fleet {after.fleet}", None
    if after.address.host_key != before.address.host_key:
        yield "another host key was pinned", None
    many = after.capacity.controllers
    if len(many) > 1 and many != before.capacity.controllers:
        yield f"{len(many)} controllers may log in", ", ".join(many)
    yield from _gpu_changes(before.capacity.gpus, after.capacity.gpus)
    yield from _image_changes(before.capacity.images or (), after.capacity.images or ())


def _gpu_changes(
    before: tuple[NodeGpu, ...], after: tuple[NodeGpu, ...]
) -> Iterator[tuple[str, str | None]]:
    known = {gpu.uuid: gpu for gpu in before}
    for gpu in after:
        was_healthy = known[gpu.uuid].healthy if gpu.uuid in known else True
        if was_healthy and not gpu.healthy:
            yield _broken(gpu.uuid), (gpu.message or "").removeprefix("cordoned: ")
        elif gpu.healthy and not was_healthy:
            yield f"GPU {gpu.uuid} is offered again", None


def _image_changes(
    before: tuple[NodeImage, ...], after: tuple[NodeImage, ...]
) -> Iterator[tuple[str, str | None]]:
    """Yield each failure to pull an image ahead once, although it is tried again and again."""
    known = {one.image: one.message for one in before}
    for one in after:
        if one.message is not None and one.message != known.get(one.image):
            yield f"image {one.image} could not be pulled ahead", one.message
        elif one.message is None and known.get(one.image) is not None:
            yield f"image {one.image} was pulled ahead after all", None
