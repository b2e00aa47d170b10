"""What the proxy reads of the committed routes, and counts in their statistics."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from controller.proxy.registered import CountedTraffic, RegisteredServices, service_of
from controller.traffic.routes import ReplicaRoute, Route, RouteTable
from controller.traffic.statistics import Traffic
from fairlead.model.service import RateLimit, RateLimitKey, ReplicaGroup, ServicePolicy
from tests.unit.pipelines.parts import NotedPipeline

POLICY = ServicePolicy(
    port=8000,
    groups=(ReplicaGroup(name="main", least=0, most=2),),
    rate_limits=(RateLimit(key=RateLimitKey.HEADER, header="X-Key", rps=2.0, burst=3),),
    model="llama",
)
AT = ReplicaRoute(
    attempt_id="a",
    job_id="j",
    group="main",
    replica=0,
    deployment=0,
    node_id="n",
    runner_socket="/s",
    port=8000,
)
ROUTE = Route(
    run_id="r",
    name="api",
    user="ada",
    service=POLICY,
    replicas=(AT,),
    draining=(),
    sleeping=False,
    ending=False,
)


class PlantedRoutes(RouteTable):
    """The routes of these services alone."""

    def __init__(self, *routes: Route) -> None:
        super().__init__()
        self.planted = {route.name: route for route in routes}

    def named(self, name: str) -> Route | None:
        return self.planted.get(name)

    def get(self, run_id: str) -> Route | None:
        return next((route for route in self.all() if route.run_id == run_id), None)

    def all(self) -> Iterable[Route]:
        return self.planted.values()


def test_a_service_is_made_once_for_each_route() -> None:
    routes = PlantedRoutes(ROUTE)
    services = RegisteredServices(routes, NotedPipeline())
    first = services.find("api")
    assert first is not None
    assert services.find("api") is first
    routes.planted["api"] = msgspec.structs.replace(ROUTE, replicas=())
    changed = services.find("api")
    assert changed is not None
    assert changed.replicas == ()


def test_the_first_service_of_a_model_comes_first_until_it_is_ending() -> None:
    later = msgspec.structs.replace(ROUTE, run_id="later", name="later")
    routes = PlantedRoutes(ROUTE, later)
    services = RegisteredServices(routes, NotedPipeline())
    assert [service.name for service in services.all()] == ["api", "later"]
    routes.planted["api"] = msgspec.structs.replace(ROUTE, ending=True)
    assert [service.name for service in services.all()] == ["later", "api"]


def test_nothing_is_kept_of_a_service_that_has_ended() -> None:
    other = msgspec.structs.replace(ROUTE, run_id="r2", name="web")
    routes = PlantedRoutes(ROUTE, other)
    services = RegisteredServices(routes, NotedPipeline())
    first = services.find("api")
    del routes.planted["api"]
    assert services.find("api") is None
    services.find("web")
    routes.planted["api"] = ROUTE
    again = services.find("api")
    assert again == first
    assert again is not first, "it was made anew"


def test_a_route_becomes_a_service_with_its_replicas_and_limits() -> None:
    service = service_of(ROUTE)
    (replica,) = service.replicas
    assert (replica.id, replica.node_id, replica.socket, replica.port) == ("a", "n", "/s", 8000)
    (limit,) = service.rate_limits
    assert (limit.header, limit.rps, limit.burst) == ("X-Key", 2.0, 4)
    assert (service.owner, service.model) == ("ada", "llama")


@pytest.mark.parametrize(
    ("least", "ending", "held"), [(0, False, True), (1, False, False), (0, True, False)]
)
def test_requests_are_held_only_where_no_replica_may_be_enough(
    least: int, ending: bool, held: bool
) -> None:
    policy = msgspec.structs.replace(
        POLICY, groups=(ReplicaGroup(name="main", least=least, most=2),)
    )
    route = msgspec.structs.replace(ROUTE, service=policy, ending=ending, replicas=())
    assert service_of(route).is_held is held


@pytest.mark.parametrize("ending", [False, True])
def test_requests_wait_for_replicas_on_nodes_that_are_not_connected(ending: bool) -> None:
    route = msgspec.structs.replace(ROUTE, replicas=(), unreached=ROUTE.replicas, ending=ending)
    assert service_of(route).reconnects is not ending
    assert service_of(ROUTE).reconnects is False


def test_requests_count_at_their_replica_and_held_ones_for_the_group() -> None:
    traffic = Traffic(lambda: 100.5)
    counting = CountedTraffic(traffic)
    service = service_of(ROUTE)
    held = counting.begin(service, None)
    asked = counting.begin(service, service.replicas[0])
    assert (traffic.in_flight("a"), traffic.group("r", "main").in_flight) == (1, 2)
    held.end()
    asked.end(failed=True)
    assert (traffic.in_flight("a"), traffic.group("r", "main").in_flight) == (0, 0)
