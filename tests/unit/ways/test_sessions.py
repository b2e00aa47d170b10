"""Sessions between a leader and its followers: what is told, what is counted, when a drain ends."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from controller.lifecycle.model import Group, JobSpec, RunState, RunType
from controller.lifecycle.runs.first_state import new_run
from controller.traffic.routes import Route
from controller.ways import follower as follower_end
from controller.ways import leader as leader_end
from fairlead.model.spec import PlannedGroup
from fairlead.wire.gateway import NODE_USER, GatewayNode, GroupCounts
from tests.support.waiting import eventually
from tests.unit.proxy.test_registered import POLICY
from tests.unit.ways.sessions import EXPOSED, SessionBed, route

ANOTHER = replace(EXPOSED, attempt_id="b", exposed_socket="/exposed/b.sock")
UNEXPOSED = replace(EXPOSED, exposed_socket=None)


async def test_a_follower_is_told_of_replicas_in_traffic_and_of_their_nodes(
    bed: SessionBed,
) -> None:
    leader = await bed.leads(route(EXPOSED))
    await bed.knows("/exposed/a.sock")
    assert [(one.id, one.host, one.user) for one in bed.nodes] == [("node1", "10.0.0.1", NODE_USER)]
    leader.has(route(EXPOSED, ANOTHER))
    await bed.knows("/exposed/a.sock", "/exposed/b.sock")
    leader.has()
    await bed.knows()


def committed(made: Route) -> RunState:
    """Return the run of a route, as a turn leaves it."""
    spec = JobSpec(image="busybox")
    main = PlannedGroup(group=Group(name="main", nodes=1), spec=spec)
    state = new_run(
        name=made.name,
        user=made.user,
        groups=[main],
        now=0.0,
        new_id=lambda: made.run_id,
        type=RunType.SERVICE,
        service=made.service,
    )
    assert state.run.id == made.run_id
    return state


async def test_one_message_tells_of_all_services_of_a_turn_and_few_gather_all_nodes(
    bed: SessionBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A look at all is made after some seconds, however long this test takes.
    monkeypatch.setattr(leader_end, "LOOK_SECONDS", float("inf"))
    leader = await bed.leads(route(EXPOSED))
    await bed.knows("/exposed/a.sock")
    (session,) = leader.ways._sessions
    gather, gathered = session._used_nodes, list[int]()

    def noted() -> tuple[GatewayNode, ...]:
        gathered.append(1)
        return gather()

    monkeypatch.setattr(session, "_used_nodes", noted)
    asleep = [route(name=f"web-{number}") for number in range(3)]
    leader.routes.planted = {one.name: one for one in (route(EXPOSED), *asleep)}
    version = session._version
    for one in asleep:
        # A turn tells of each run by itself.
        leader.ways.committed((committed(one),))
    await eventually(lambda: "run of web-2" in bed.services._by_run)
    assert (session._version, gathered) == (version + 1, [])
    leader.routes.planted["web-0"] = route(ANOTHER, name="web-0")
    leader.ways.committed((committed(asleep[0]),))
    await eventually(lambda: bed.sockets("web-0") == ["/exposed/b.sock"])
    assert (session._version, gathered) == (version + 2, [1])


async def test_a_replica_whose_port_is_not_exposed_keeps_its_service_at_the_leader(
    bed: SessionBed,
) -> None:
    leader = await bed.leads(route(EXPOSED, replace(ANOTHER, exposed_socket=None)))
    await eventually(lambda: bed.nodes != ())
    assert bed.sockets() == []
    leader.has(route(EXPOSED, ANOTHER))
    await bed.knows("/exposed/a.sock", "/exposed/b.sock")


async def test_a_service_with_rate_limits_is_the_leaders(bed: SessionBed) -> None:
    leader = await bed.leads(route(EXPOSED, policy=POLICY))
    await eventually(lambda: bed.nodes != ())
    assert bed.sockets() == []
    leader.has(route(EXPOSED))
    await bed.knows("/exposed/a.sock")


async def test_a_follower_knows_sockets_that_the_next_leader_has_yet_to_learn(
    bed: SessionBed,
) -> None:
    first = await bed.leads(route(EXPOSED))
    await bed.knows("/exposed/a.sock")
    await bed.dies(first)
    assert bed.sockets() == ["/exposed/a.sock"]
    # Its nodes have yet to connect.
    away = replace(route(), unreached=(UNEXPOSED,))
    second = await bed.leads(away, route(ANOTHER, name="web"))
    await eventually(lambda: bed.sockets("web") == ["/exposed/b.sock"])
    assert bed.sockets() == ["/exposed/a.sock"]
    second.has()
    await bed.knows()


async def test_what_was_told_holds_for_a_minute_after_the_session(bed: SessionBed) -> None:
    leader = await bed.leads(route(EXPOSED))
    await bed.knows("/exposed/a.sock")
    await bed.dies(leader)
    bed.now = follower_end.KEPT_SECONDS - 0.1
    assert bed.sockets() == ["/exposed/a.sock"]
    bed.now = follower_end.KEPT_SECONDS
    assert bed.sockets() == []


async def test_a_leader_of_an_earlier_version_carries_all(bed: SessionBed) -> None:
    leader = await bed.leads(route(EXPOSED))
    await bed.knows("/exposed/a.sock")
    await bed.dies(leader)
    await bed.leads(route(EXPOSED), has_ways=False)
    await bed.knows()
    assert bed.sockets() == []


async def test_the_counts_of_a_follower_are_the_leaders(bed: SessionBed) -> None:
    leader = await bed.leads(route(EXPOSED))
    await bed.knows("/exposed/a.sock")
    group = leader.traffic.group("run of api", "main")
    counted = GroupCounts(run_id="run of api", group="main", requests=3, in_flight=2)
    bed.carried.groups = (counted,)
    await eventually(lambda: group.in_flight == 2)
    assert group.in_flight == 2
    await bed.dies(leader)
    await eventually(lambda: group.in_flight == 0)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No follower of before the leader's start is waited for."""
    monkeypatch.setattr(leader_end, "AWAY_SECONDS", 0.0)


@pytest.mark.usefixtures("soon")
async def test_a_drain_waits_for_the_requests_at_a_follower(bed: SessionBed) -> None:
    leader = await bed.leads(route(EXPOSED))
    await bed.knows("/exposed/a.sock")
    bed.carried.requests = {"a": 1}
    leader.routes.planted = {"api": replace(route(ANOTHER), draining=(EXPOSED,))}
    draining = asyncio.create_task(leader.ways.left("a"))
    await bed.knows("/exposed/b.sock")
    # It has told that one is in flight.
    bed.carried.groups = (GroupCounts(run_id="run of api", group="main", in_flight=1),)
    await eventually(lambda: leader.traffic.group("run of api", "main").in_flight == 1)
    assert not draining.done()
    bed.carried.requests = {}
    bed.session.emptied("a")
    await draining


async def test_a_drain_waits_for_a_follower_that_may_come_back(
    bed: SessionBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await bed.leads(route(EXPOSED))
    await bed.knows("/exposed/a.sock")
    bed.links.lead_to(None)
    await eventually(lambda: leader.ways._away != {})
    draining = asyncio.create_task(leader.ways.left("a"))
    await asyncio.wait({draining}, timeout=0.05)
    assert not draining.done()
    monkeypatch.setattr(leader_end, "AWAY_SECONDS", 0.0)
    leader.ways._tell()
    await draining


async def test_a_port_is_exposed_only_where_the_shim_can(bed: SessionBed) -> None:
    leader = await bed.leads(route(UNEXPOSED))
    await eventually(lambda: bed.nodes != ())
    assert leader.asked == []
    node = leader.pipeline.nodes["node1"]
    able = replace(node, capacity=replace(node.capacity, gateways=True))
    leader.pipeline.nodes["node1"] = able
    leader.has(route(UNEXPOSED))
    await eventually(lambda: leader.asked == ["node1"])
