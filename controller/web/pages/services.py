"""The page of services: replicas by version, the load, and how many are wanted."""

from __future__ import annotations

from collections import Counter

import msgspec

from controller.api.runs.services import get_service
from controller.lifecycle.model import RunType
from controller.web.page import Page, PageRoute, Visit
from fairlead.documents.services import ReplicaView, ServiceGroupView, ServiceView


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    wanted: str
    why: str
    load: str
    latency: str


class ServiceRow(msgspec.Struct, frozen=True, kw_only=True):
    """`address`: where it answers programs. `versions`: the deployments with replicas, and how many
    of them get requests."""

    id: str
    name: str
    user: str
    status: str
    address: str
    deployment: int
    versions: tuple[str, ...]
    groups: tuple[GroupRow, ...]
    not_ready: tuple[str, ...]


def group_row(group: ServiceGroupView) -> GroupRow:
    rps = "no requests yet" if group.rps is None else f"{group.rps:.3g} requests/s"
    errors = f", {group.errors} errors" if group.errors else ""
    latency = (
        f"p50 {1000 * group.latency_p50:.0f} ms, p95 {1000 * group.latency_p95:.0f} ms"
        if group.latency_p50 is not None and group.latency_p95 is not None
        else ""
    )
    each = f", {group.nodes} nodes each" if group.nodes > 1 else ""
    return GroupRow(
        name=group.name,
        wanted=f"{group.wanted} of {group.least}..{group.most}{each}",
        why=group.why,
        load=f"{rps}, {group.in_flight} in flight{errors}",
        latency=latency,
    )


def without_requests(replica: ReplicaView) -> str | None:
    """Return why the replica gets no requests; None: it does."""
    if replica.not_ready is not None or replica.ejected_until is None:
        return replica.not_ready
    return f"ejected until {replica.ejected_until}: it answered with errors alone"


def service_row(service: ServiceView) -> ServiceRow:
    every = Counter(one.deployment for one in service.replicas)
    ready = Counter(
        one.deployment
        for one in service.replicas
        if one.not_ready is None and one.registered_at is not None
    )
    return ServiceRow(
        id=service.id,
        name=service.name,
        user=service.user,
        status=service.status.lower(),
        address=service.url or service.path,
        deployment=service.deployment,
        versions=tuple(
            f"version {number}: {ready[number]} of {count} ready"
            for number, count in sorted(every.items(), reverse=True)
        ),
        groups=tuple(group_row(group) for group in service.groups),
        not_ready=tuple(
            f"{one.group}/{one.replica}: {why}"
            for one in service.replicas
            if (why := without_requests(one)) is not None
        ),
    )


async def list_services(visit: Visit) -> Page:
    rows = [
        service_row(await get_service(visit.as_call(run=state.run.id)))
        for state in visit.service.runs.lookup.live_of(RunType.SERVICE, visit.user)
    ]
    return Page(
        template="services.html", title="Services", section="Services", context={"services": rows}
    )


PAGES: tuple[PageRoute, ...] = (PageRoute(path="/services", handler=list_services),)
