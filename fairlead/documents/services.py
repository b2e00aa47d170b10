"""Services: their replicas, deployments and keys."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.documents.base import View
from fairlead.model.service import DeploymentState
from fairlead.model.statuses import RunStatus


class ProbeView(View, frozen=True):
    """The latest result of one probe of a replica; `since`: when it changed to that."""

    passes: bool
    in_a_row: int
    since: str
    message: str | None


class ScaleView(View, frozen=True):
    """How many replicas a group of a service shall have; `at`: when that changed."""

    group: str
    wanted: int
    at: str
    why: str


class DeploymentView(View, frozen=True):
    """One version of a service. `of`: the deployment that a rollback brought back."""

    number: int
    state: DeploymentState
    by: str
    at: str
    ended_at: str | None
    message: str | None
    of: int | None


class ServiceGroupView(View, frozen=True):
    """One replica group. The statistics are of the last minute; null: there are none yet. `next` is
    what the autoscaler wants now, and `next_at` when a delay lets it."""

    name: str
    least: int
    most: int
    wanted: int
    why: str
    rps: float | None
    errors: int
    in_flight: int
    latency_p50: float | None
    latency_p95: float | None
    next: int
    next_why: str
    next_at: str | None
    nodes: int = 1


class ReplicaView(View, frozen=True):
    """One replica; `not_ready` null: it gets requests. `node` is that of the job that gets them,
    `nodes` are those of all its jobs, in the order of their ranks."""

    group: str
    replica: int
    deployment: int
    status: str
    node: str | None
    registered_at: str | None
    not_ready: str | None
    nodes: tuple[str, ...] = ()
    ejected_until: str | None = None
    """It is ready and gets no requests until then, because it answered with errors alone."""


class ServiceView(View, frozen=True):
    """A service with its replicas, its load and its versions, the latest last."""

    id: str
    name: str
    user: str
    status: RunStatus
    path: str
    model: str | None
    auth: bool
    deployment: int
    groups: tuple[ServiceGroupView, ...]
    replicas: tuple[ReplicaView, ...]
    deployments: tuple[DeploymentView, ...]
    gateway: str | None
    url: str | None
    """Its address at a host name of its own."""


class ChangeView(View, frozen=True):
    field: str
    before: Any
    after: Any


class DeployView(View, frozen=True):
    """The changes of a deployment; none was made when nothing changes, or when only asked."""

    service: ServiceView
    changes: tuple[ChangeView, ...]


class ServiceKeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key that opens one service; `user` is the service's owner."""

    id: str
    service: str
    user: str
    label: str
    created_at: str


class NewServiceKeyView(ServiceKeyView, frozen=True, kw_only=True):
    """`secret` is the key itself; no other answer has it. `live`: whether the owner has a service
    of this name now; a key that is made earlier opens the next one."""

    secret: str
    live: bool = True
