"""Scaling: how many replicas of a group a load needs, by target tracking.

`decide` is a pure function of the group's settings, its present size and a window of statistics. It
changes nothing while statistics are missing, before a delay has passed, or within `TOLERANCE` of
the target.
"""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.reports import ReplicasWanted, WakeRequested
from fairlead.model.service import GroupScale, ReplicaGroup, ScalingMetric

TOLERANCE = 0.1
"""The part of the target by which a load may miss it without a change."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The statistics of a group over one window. A field is None when nothing was measured."""

    covered: float
    """Seconds of the window for which statistics are there."""
    rps: float | None = None
    in_flight: float | None = None
    """Requests in flight, on average; those that wait for a replica count."""
    latency_p95: float | None = None


class ScaleDecision(msgspec.Struct, frozen=True, kw_only=True):
    wanted: int
    why: str
    look_again_at: float | None = None
    """When a delay ends that holds the number back."""


def decide(group: ReplicaGroup, scale: GroupScale, load: Load, now: float) -> ScaleDecision:
    """Return the number of replicas that the group shall have now, and why."""
    here = min(max(scale.wanted, group.least), group.most)
    if group.scaling is None:
        return ScaleDecision(wanted=group.least, why="its number is fixed")
    if load.covered < group.scaling.window:
        why = f"statistics cover {load.covered:.0f} s of {group.scaling.window:.0f} s"
        return ScaleDecision(wanted=here, why=why)
    needed, why = _needed(group, here, load)
    if needed < 1 and load.in_flight:
        # A request that waits for a slow start is no request per second yet, and an open stream is
        # none any more: neither may lose the replica.
        needed, why = 1, f"{load.in_flight:.3g} requests in flight or waiting"
    needed = min(max(needed, group.least), group.most)
    if needed == here:
        return ScaleDecision(wanted=here, why=why)
    delay = group.scaling.scale_up_delay if needed > here else group.scaling.scale_down_delay
    allowed_at = scale.at + delay
    if now < allowed_at:
        why = f"{why}; {needed} from {allowed_at - now:.0f} s on"
        return ScaleDecision(wanted=here, why=why, look_again_at=allowed_at)
    return ScaleDecision(wanted=needed, why=why)


def _needed(group: ReplicaGroup, here: int, load: Load) -> tuple[int, str]:
    assert group.scaling is not None
    target = group.scaling.target
    match group.scaling.metric:
        case ScalingMetric.RPS:
            return _tracked(load.rps, target, here, "requests per second")
        case ScalingMetric.CONCURRENCY:
            return _tracked(load.in_flight, target, here, "requests in flight")
        case ScalingMetric.LATENCY_P95 if load.latency_p95 is None:
            return _tracked(load.rps, math.inf, here, "requests per second, no latency")
        case ScalingMetric.LATENCY_P95:
            whole = load.latency_p95 * here
            return _tracked(whole, target, here, "seconds of p95 latency, over all replicas")


def _tracked(measured: float | None, target: float, here: int, unit: str) -> tuple[int, str]:
    if measured is None:
        return here, "no statistics"
    why = f"{measured:.3g} {unit}, target {target:g}"
    if measured <= 0:
        return 0, why
    # 3.0000000000000004 replicas are 3: a float's rounding starts no replica.
    needed = max(1, math.ceil(measured / target - 1e-9))
    if here and abs(measured / here - target) <= TOLERANCE * target:
        return here, why
    return needed, why


def scale(draft: Draft, request: ReplicasWanted) -> None:
    """Set the wanted number of a group, within its range."""
    service = draft.run.service
    group = None if service is None else service.group(request.group)
    if group is None:
        return
    _set(draft, group.name, min(max(request.wanted, group.least), group.most), request.why)


def wake(draft: Draft, request: WakeRequested) -> None:
    """Start one replica of a service that has none, for a request that waits."""
    service = draft.run.service
    if service is not None and not any(one.wanted for one in draft.run.scales):
        first = service.groups[0]
        _set(draft, first.name, max(1, first.least), "a request waits")


def _set(draft: Draft, group: str, wanted: int, why: str) -> None:
    before = next((one for one in draft.run.scales if one.group == group), None)
    if before is None or before.wanted == wanted:
        return
    made = replace(before, wanted=wanted, at=draft.now, why=why)
    scales = tuple(made if one is before else one for one in draft.run.scales)
    draft.change_run(scales=scales)
    draft.record(
        EventKind.SCALE,
        "scaling",
        from_status=str(before.wanted),
        to_status=str(wanted),
        message=f"group {group}: {why}",
    )
