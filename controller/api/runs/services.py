"""Services as REST: replicas with their load, deployments, and going back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from controller.api.http.routes import Call, Route
from controller.api.views import derived, iso_or_none, job_view
from controller.lifecycle.model import Job, RunState
from controller.service.runs.deployments import Change, GroupNow
from controller.service.runs.submission_stages import Submission
from fairlead.documents.services import (
    ChangeView,
    DeploymentView,
    DeployView,
    ReplicaView,
    ServiceGroupView,
    ServiceView,
)


class DeployBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`configuration`: the YAML's content. `only_ask`: show what would change, and change
    nothing."""

    configuration: dict[str, Any]
    ssh_keys: tuple[str, ...] = ()
    only_ask: bool = False


class RollbackBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`to`: the number of a deployment; null: the latest other one that was rolled out."""

    to: int | None = None


async def get_service(call: Call) -> ServiceView:
    return _view(call, await call.service.runs.deployments.get(call.path("run")))


async def deploy_service(call: Call) -> DeployView:
    body: DeployBody = call.body
    submission = Submission(configuration=body.configuration, ssh_keys=body.ssh_keys)
    deployments = call.service.runs.deployments
    act = deployments.changes if body.only_ask else deployments.deploy
    state, changes = await act(call.path("run"), submission, user=call.caller)
    return DeployView(service=_view(call, state), changes=tuple(_change(one) for one in changes))


async def roll_back_service(call: Call) -> ServiceView:
    body: RollbackBody = call.body
    deployments = call.service.runs.deployments
    return _view(call, await deployments.roll_back(call.path("run"), to=body.to, user=call.caller))


def _change(change: Change) -> ChangeView:
    return derived(ChangeView, change)


def _view(call: Call, state: RunState) -> ServiceView:
    run, names = state.run, call.service.machines.nodes.names()
    service = run.service
    assert service is not None, "the run is a service"
    return ServiceView(
        id=run.id,
        name=run.name,
        user=run.user,
        status=run.status,
        path=f"/services/{run.name}/",
        model=service.model,
        auth=service.auth,
        deployment=run.deployment,
        groups=tuple(_group(one) for one in call.service.runs.deployments.groups(run)),
        replicas=tuple(
            _replica(state, jobs, names, call.service.runs.deployments.ejected_until)
            for jobs in _present(state)
        ),
        deployments=tuple(derived(DeploymentView, one) for one in run.deployments),
        gateway=service.gateway,
        url=call.service.gateways.url(run),
    )


def _present(state: RunState) -> Iterator[list[Job]]:
    """Yield the jobs of each replica that is wanted, or still ends."""
    replicas: dict[tuple[str, int], list[Job]] = {}
    for job in state.jobs:
        if not job.scaled_down or (job.attempts and job.attempts[-1].finished_at is None):
            replicas.setdefault((job.group, job.replica), []).append(job)
    for jobs in replicas.values():
        yield sorted(jobs, key=lambda job: job.rank or 0)


def _replica(
    state: RunState,
    jobs: Sequence[Job],
    names: Mapping[str, str],
    ejected_until: Callable[[str], float | None],
) -> ReplicaView:
    job, views = jobs[0], [job_view(state, job, names) for job in jobs]
    view = views[0]
    last = view.attempts[-1] if view.attempts else None
    nodes = (one.attempts[-1].node for one in views if one.attempts)
    return ReplicaView(
        group=job.group,
        replica=job.replica,
        deployment=job.deployment,
        status=view.status,
        node=None if last is None else last.node,
        registered_at=None if last is None else last.registered_at,
        not_ready=view.not_ready,
        nodes=tuple(node for node in nodes if node is not None),
        ejected_until=None if last is None else iso_or_none(ejected_until(last.id)),
    )


def _group(now: GroupNow) -> ServiceGroupView:
    counts = now.statistics
    return ServiceGroupView(
        name=now.group.name,
        least=now.group.least,
        most=now.group.most,
        wanted=now.scale.wanted,
        why=now.scale.why,
        rps=counts.rps,
        errors=counts.errors,
        in_flight=now.in_flight,
        latency_p50=counts.latency_p50,
        latency_p95=counts.latency_p95,
        next=now.next.wanted,
        next_why=now.next.why,
        next_at=iso_or_none(now.next.look_again_at),
        nodes=now.group.nodes,
    )


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/services/{run}",
        summary="A service: its replicas, its load and its deployments",
        handler=get_service,
        answer=ServiceView,
    ),
    Route(
        method="POST",
        path="/v1/services/{run}/deployments",
        summary="Change a live service in place: the new version is rolled out",
        handler=deploy_service,
        body=DeployBody,
        answer=DeployView,
    ),
    Route(
        method="POST",
        path="/v1/services/{run}/rollback",
        summary="Bring an earlier deployment of a service back",
        handler=roll_back_service,
        body=RollbackBody,
        answer=ServiceView,
    ),
)
