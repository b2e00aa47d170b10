"""What HAProxy is told so that services have the fast path, decided without HAProxy."""

from __future__ import annotations

import msgspec
import pytest

from common.proxy.view import Replica
from gateway.fast_plan import (
    CloseServer,
    DrainServer,
    FastPlan,
    FastService,
    LimitServer,
    OpenServer,
    Server,
    ServerKey,
    SetWay,
    UnsetWay,
)
from gateway.haproxy import NEW_REQUESTS, SERVERS, SLOTS

WAY = "https|api.apps.test"
KEY: ServerKey = (SLOTS[0], SERVERS[0])


def replica(id: str) -> Replica:
    return Replica(id=id, group="main", node_id="n", socket=f"/{id}.sock", port=0)


def service(*ids: str, run_id: str = "r", way: str = WAY, guarded: bool = False) -> FastService:
    replicas = tuple(map(replica, ids))
    return FastService(run_id=run_id, ways=(way,), replicas=replicas, is_guarded=guarded)


def server(id: str, number: int = 0) -> Server:
    key = (SLOTS[0], SERVERS[number])
    return Server(replica=replica(id), run_id="r", key=key, is_local=True)


@pytest.fixture
def plan() -> FastPlan:
    """The service has two replicas, and its way is open."""
    made = FastPlan()
    made.wanted = {"r": service("a", "b")}
    assert made.open_ways() == []
    made.add(server("a"))
    made.add(server("b", 1))
    assert made.open_ways() == [SetWay(WAY, SLOTS[0], False)]
    return made


def test_a_plan_that_is_met_has_no_commands(plan: FastPlan) -> None:
    assert [plan.withdraw(), plan.limit_requests(), plan.open_ways()] == [[], [], []]


def test_a_way_closes_with_its_last_server_and_opens_with_the_first(plan: FastPlan) -> None:
    one, other = plan.servers
    one.is_open = False
    assert plan.close(one) == [CloseServer(one.key)]
    other.is_open = False
    assert plan.close(other) == [CloseServer(other.key), UnsetWay(WAY, False)]
    assert plan.open(one) == [OpenServer(one.key)]
    assert plan.open_ways() == [SetWay(WAY, SLOTS[0], False)]


def test_a_replica_without_a_raw_socket_takes_the_way_from_its_service(plan: FastPlan) -> None:
    plan.has_raw_socket(replica("b"), False)
    assert plan.open_ways() == [UnsetWay(WAY, False)]
    plan.has_raw_socket(replica("b"), True)
    assert plan.open_ways() == [SetWay(WAY, SLOTS[0], False)]


def test_a_service_that_asks_for_tokens_now_loses_its_open_way_first(plan: FastPlan) -> None:
    plan.wanted = {"r": service("a", "b", guarded=True)}
    assert plan.withdraw() == [UnsetWay(WAY, False)]
    assert plan.open_ways() == [SetWay(WAY, SLOTS[0], True)]


def test_a_replica_drains_while_it_is_not_wanted(plan: FastPlan) -> None:
    before = plan.wanted
    plan.wanted = {"r": service("b")}
    assert plan.withdraw() == [DrainServer(KEY)]
    assert plan.in_flight() == {"a": 1}
    plan.wanted = before
    assert plan.withdraw() == [OpenServer(KEY)]


@pytest.mark.parametrize(("in_flight", "ended"), [(2, False), (0, True)])
def test_a_drained_replica_is_empty_once_haproxy_says_so(in_flight: int, ended: bool) -> None:
    drained = msgspec.structs.replace(server("a"), is_drained=True, in_flight=2)
    assert drained.note(requests=5, errors=0, in_flight=in_flight) is ended
    assert drained.counted


@pytest.mark.parametrize("has", [NEW_REQUESTS, 2 * NEW_REQUESTS, 2 * NEW_REQUESTS + 1])
def test_a_replica_may_have_what_it_has_and_some_new_requests(plan: FastPlan, has: int) -> None:
    plan.servers[0].note(requests=has, errors=0, in_flight=has)
    assert plan.limit_requests() == [LimitServer(KEY, (has // NEW_REQUESTS + 1) * NEW_REQUESTS)]
    assert plan.needs_more
    assert plan.limit_requests() == []
    assert not plan.needs_more


def test_an_ejected_replica_gets_no_requests_until_it_is_back(plan: FastPlan) -> None:
    assert plan.eject(lambda replicas: {"a"}) == [CloseServer(KEY)]
    assert plan.eject(lambda replicas: {"a"}) == []
    assert plan.eject(lambda replicas: ()) == [OpenServer(KEY)]


def test_a_service_beyond_the_last_slot_has_no_fast_path(plan: FastPlan) -> None:
    many = {str(n): service("z", run_id=str(n), way=f"w{n}") for n in range(len(SLOTS))}
    plan.wanted = {**plan.wanted, **many}
    runs = {run_id for run_id, _ in plan.without_server()}
    assert runs == set(many) - {str(len(SLOTS) - 1)}


def test_a_server_is_given_to_one_replica(plan: FastPlan) -> None:
    plan.set_free([(SLOTS[0], SERVERS[2]), (SLOTS[1], SERVERS[0])])
    assert plan.take_free("r") == (SLOTS[0], SERVERS[2])
    assert plan.take_free("r") is None


def test_a_slot_is_free_again_when_its_run_is_gone(plan: FastPlan) -> None:
    plan.wanted = {}
    assert {one.id for one in plan.tidy(also=[replica("c")])} == {"a", "b", "c"}
    assert plan.slot_of("r") == SLOTS[0]
    for one in plan.servers:
        plan.drop(one)
    plan.tidy(also=[])
    assert plan.slot_of("r") is None
