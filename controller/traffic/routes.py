"""Routes: each live service with its replicas, as the last commit left them.

The proxy reads them. A replica is in `replicas` only while it is registered and its node connected,
so no request goes to one that is being stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import msgspec

from controller.lifecycle.model import Attempt, Job, Run, RunState
from controller.lifecycle.services.replicas import sleeps
from fairlead.model.dev_environment import browser_service
from fairlead.model.service import ServicePolicy
from fairlead.model.statuses import FINAL_RUN_STATUSES, AttemptStatus


class ReplicaRoute(msgspec.Struct, frozen=True, kw_only=True):
    """One replica: `port` is on the loopback of its job, which `runner_socket` of the node
    reaches."""

    attempt_id: str
    job_id: str
    group: str
    replica: int
    deployment: int
    node_id: str
    runner_socket: str
    port: int
    exposed_socket: str | None = None
    """The socket on the node at which a gateway reaches the port."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One live service, or a dev environment that opens in the browser."""

    run_id: str
    name: str
    user: str
    service: ServicePolicy
    replicas: tuple[ReplicaRoute, ...]
    """The replicas in traffic."""
    unreached: tuple[ReplicaRoute, ...] = ()
    """Registered replicas on nodes that are not connected: a gateway may still reach them."""
    draining: tuple[ReplicaRoute, ...]
    """The replicas that get no new requests and finish those that they have."""
    sleeping: bool
    """No replica is wanted; a request that is held wakes the service."""
    ending: bool
    """The run is ending: a request need not wait for a replica."""


class RouteTable:
    """The routes of all live services; RunPipeline tells it each commit (`TurnListener`)."""

    def __init__(self) -> None:
        self._by_run: dict[str, Route] = {}
        self._by_name: dict[str, str] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    def committed(self, touched: Sequence[RunState]) -> None:
        for state in touched:
            if offered(state.run) is not None:
                self._show(state)

    def _show(self, state: RunState) -> None:
        run = state.run
        before = self._by_run.get(run.id)
        if run.status in FINAL_RUN_STATUSES:
            self._by_run.pop(run.id, None)
            # An ended run may be touched again, when a newer run has its name already.
            if self._by_name.get(run.name) == run.id:
                del self._by_name[run.name]
        else:
            self._by_run[run.id] = route_of(state)
            self._by_name[run.name] = run.id
        if self._by_run.get(run.id) != before:
            for waiter in self._waiting.pop(run.id, ()):
                # A request that has given up cancelled it and has not run since.
                if not waiter.done():
                    waiter.set_result(None)

    def named(self, name: str) -> Route | None:
        """Return the live service with this name."""
        return self._by_run.get(self._by_name.get(name, ""))

    def get(self, run_id: str) -> Route | None:
        return self._by_run.get(run_id)

    def all(self) -> Iterable[Route]:
        return self._by_run.values()

    def serving(self, model: str) -> list[Route]:
        """Return the services that offer this model."""
        return [route for route in self._by_run.values() if route.service.model == model]

    async def changed(self, run_id: str) -> None:
        """Wait until the route of this run changes, or is gone."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, []).append(waiter)
        try:
            await waiter
        finally:
            # A client that hangs up cancels its wait, and the route may not change for days.
            left = [one for one in self._waiting.get(run_id, ()) if one is not waiter]
            if left:
                self._waiting[run_id] = left
            else:
                self._waiting.pop(run_id, None)


def route_of(state: RunState) -> Route:
    """Return the route of a live service or dev environment."""
    run = state.run
    service = offered(run)
    assert service is not None, "a route is of a service"
    lasts = [(job, job.attempts[-1]) for job in state.jobs if job.attempts and job.spec.serves]
    return Route(
        run_id=run.id,
        name=run.name,
        user=run.user,
        service=service,
        replicas=_routes(lasts, in_traffic),
        unreached=_routes(lasts, lambda one: is_registered(one) and one.disconnected),
        draining=_routes(lasts, lambda one: one.drains_until is not None),
        sleeping=sleeps(run),
        ending=run.reason is not None,
    )


def _routes(
    lasts: Iterable[tuple[Job, Attempt]], fits: Callable[[Attempt], bool]
) -> tuple[ReplicaRoute, ...]:
    return tuple(replica_route(job, attempt) for job, attempt in lasts if fits(attempt))


def offered(run: Run) -> ServicePolicy | None:
    """Return what the proxy offers of this run; None: nothing."""
    return run.service or browser_service(run.policy.dev_environment)


def in_traffic(attempt: Attempt) -> bool:
    return is_registered(attempt) and not attempt.disconnected


def is_registered(attempt: Attempt) -> bool:
    registered = attempt.serving.registered_at is not None and attempt.reason is None
    return registered and attempt.status is AttemptStatus.RUNNING


def replica_route(job: Job, attempt: Attempt) -> ReplicaRoute:
    """Return the route of a replica, whether it is registered or not."""
    assert job.spec.serves is not None, "a replica serves a port"
    return ReplicaRoute(
        attempt_id=attempt.id,
        job_id=job.id,
        group=job.group,
        replica=job.replica,
        deployment=attempt.deployment,
        node_id=attempt.node_id or "",
        runner_socket=attempt.task.runner_socket or "",
        port=job.spec.serves.port,
        exposed_socket=attempt.serving.exposed_socket,
    )
