"""A replica is exposed on its node and registered with its gateway."""

from __future__ import annotations

import msgspec
import pytest

from controller.lifecycle import reports
from controller.lifecycle.model import Deployment, RunState
from controller.pipelines.performers.service_replicas import (
    NotRegistered,
    ReplicaDrainer,
    ReplicaRegistrar,
)
from controller.pipelines.to_node import RetryLater
from controller.traffic.routes import ReplicaRoute
from controller.traffic.statistics import Traffic
from fairlead.model.service import ReplicaGroup, Serves, ServicePolicy
from fairlead.model.statuses import AttemptStatus
from fairlead.wire.shim import Fence
from tests.doubles.clock import NOW
from tests.doubles.node import FakeConnection
from tests.doubles.shim import node_info
from tests.unit.pipelines.parts import NotedPipeline, context_of, placed, task_of

FENCE = Fence(1, 7)


class NotedGateways:
    """Confirms each replica, unless there is a `refusal`."""

    def __init__(self) -> None:
        self.refusal: str | None = None
        self.registered: list[tuple[str, str, ReplicaRoute]] = []
        self.left_by: list[tuple[str, str, str]] = []

    def keys(self) -> tuple[str, ...]:
        return ("ssh-ed25519 AAAA",)

    async def register(self, run_id: str, gateway: str, replica: ReplicaRoute) -> None:
        if self.refusal is not None:
            raise NotRegistered(self.refusal)
        self.registered.append((run_id, gateway, replica))

    async def left(self, run_id: str, gateway: str, attempt_id: str) -> None:
        self.left_by.append((run_id, gateway, attempt_id))


def a_replica() -> RunState:
    state = placed(AttemptStatus.RUNNING, ready=True, registering_since=NOW)
    service = ServicePolicy(port=8000, groups=(ReplicaGroup(name="main"),), gateway="main")
    spec = msgspec.structs.replace(state.jobs[0].spec, serves=Serves(port=8000))
    deployment = Deployment(
        number=0,
        service=service,
        specs={},
        policy=state.run.policy,
        configuration={},
        by="ann",
        at=NOW,
        progress_at=NOW,
    )
    return msgspec.structs.replace(
        state,
        run=msgspec.structs.replace(state.run, deployments=(deployment,)),
        jobs=(msgspec.structs.replace(state.jobs[0], spec=spec),),
    )


@pytest.fixture
def gateways() -> NotedGateways:
    return NotedGateways()


async def test_a_ready_replica_is_exposed_and_then_confirmed_by_its_gateway(
    node: FakeConnection, gateways: NotedGateways
) -> None:
    state, pipeline = a_replica(), NotedPipeline()
    context = context_of(state)
    node.shim.listing[context.attempt.id] = task_of(state)
    await ReplicaRegistrar(pipeline, gateways, FENCE)(context, node)
    socket = f"/run/exposed/{context.attempt.id}-8000.sock"
    ((run_id, gateway, replica),) = gateways.registered
    assert (run_id, gateway, replica.exposed_socket) == (state.run.id, "main", socket)
    assert node.shim.gateway_keys == ("ssh-ed25519 AAAA",)
    assert pipeline.posted == [
        reports.ReplicaRegistered(run_id=state.run.id, attempt_id=context.attempt.id, socket=socket)
    ]


async def test_a_gateway_that_is_away_is_reported_and_asked_again(
    node: FakeConnection, gateways: NotedGateways
) -> None:
    state, pipeline = a_replica(), NotedPipeline()
    context = context_of(state)
    node.shim.listing[context.attempt.id] = task_of(state)
    gateways.refusal = "nothing answers there"
    with pytest.raises(RetryLater, match="nothing answers there"):
        await ReplicaRegistrar(pipeline, gateways, FENCE)(context, node)
    (report,) = pipeline.posted
    assert isinstance(report, reports.RegistrationFailed)
    assert report.why == "nothing answers there"


async def test_a_node_that_lends_gateways_nothing_is_reported(
    node: FakeConnection, gateways: NotedGateways
) -> None:
    state, pipeline = a_replica(), NotedPipeline()
    node.shim.info = node_info(gateways=False)
    with pytest.raises(RetryLater):
        await ReplicaRegistrar(pipeline, gateways, FENCE)(context_of(state), node)
    (report,) = pipeline.posted
    assert isinstance(report, reports.RegistrationFailed)
    assert report.why == "this node lends no sockets to gateways"


async def test_a_replica_is_drained_once_its_gateway_has_left_it_too(
    node: FakeConnection, gateways: NotedGateways
) -> None:
    state, pipeline = a_replica(), NotedPipeline()
    context = context_of(state)
    await ReplicaDrainer(pipeline, Traffic(lambda: NOW), gateways)(context, node)
    assert gateways.left_by == [(state.run.id, "main", context.attempt.id)]
    assert pipeline.posted == [
        reports.ReplicaDrained(run_id=state.run.id, attempt_id=context.attempt.id)
    ]
