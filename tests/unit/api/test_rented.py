"""What a fleet may rent, over the API of a controller without providers."""

from __future__ import annotations

import time
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from controller.scheduling.index import CapacityIndex
from tests.unit.api.asking import shape_of
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN, Controller
from tests.unit.machines.parts import known_orphan, machine, rentals_of

GOOD = {"provider": "lab", "nodes": "0..2"}


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ({"machines": GOOD}, (400, "invalid", "machines.provider")),
        ({"machines": {}}, (400, "invalid_configuration", "machines.provider")),
        (
            {"machines": {**GOOD, "nodes": {"min": 3, "max": 2}}},
            (400, "invalid_configuration", "machines.nodes"),
        ),
        (
            {"machines": GOOD, "budget": {"per_hour": 0}},
            (400, "invalid_configuration", "budget.per_hour"),
        ),
        ({"machines": None, "budget": {"per_hour": 1}}, (400, "invalid", "budget")),
    ],
)
async def test_what_could_rent_nothing_is_refused_with_its_field(
    api: TestClient[Any, Any], body: dict[str, Any], shape: tuple[int, str, str]
) -> None:
    async with api.put("/v1/fleets/default/machines", json=body) as answer:
        status, code, field = await shape_of(answer)
    assert (status, code, field) == shape


async def test_a_fleet_with_an_unknown_provider_is_not_added(api: TestClient[Any, Any]) -> None:
    async with api.post("/v1/fleets", json={"name": "burst", "machines": GOOD}) as answer:
        assert await shape_of(answer) == (400, "invalid", "machines.provider")
    async with api.get("/v1/fleets") as answer:
        assert "burst" not in {one["name"] for one in (await answer.json())["fleets"]}


async def test_only_an_admin_lets_a_fleet_rent(api: TestClient[Any, Any]) -> None:
    headers = {"Authorization": f"Bearer {USER_TOKEN}"}
    path = "/v1/fleets/default/machines"
    async with api.put(path, json={"machines": GOOD}, headers=headers) as answer:
        assert answer.status == 403


async def test_a_controller_without_providers_has_no_machines(api: TestClient[Any, Any]) -> None:
    async with api.get("/v1/machines") as answer:
        assert (await answer.json())["machines"] == []
    async with api.get("/v1/machine-orphans") as answer:
        assert answer.status == 503
    ended = {"provider": "lab", "instance_ids": ["i-1"]}
    async with api.post("/v1/machine-orphans/end", json=ended) as answer:
        assert answer.status == 503
    gone = {"provider": "lab", "instance_id": "i-1"}
    async with api.post("/v1/machine-orphans/forget", json=gone) as answer:
        assert answer.status == 503
    async with api.post("/v1/providers/lab/check", json={}) as answer:
        assert answer.status == 503
    async with api.get("/v1/providers/lab/trial") as answer:
        assert answer.status == 503
    async with api.get("/v1/providers/lab/offers") as answer:
        assert answer.status == 503
    async with api.post("/v1/providers/lab/offers/refresh", json={}) as answer:
        assert answer.status == 503


async def test_machines_are_listed_in_the_order_of_their_orders_on_all_pages(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    began = time.time() - 3600.0
    rented = [machine(name, ordered_at=began + at) for at, name in enumerate(("f0", "0a", "7c"))]
    controller.pipeline.rentals = rentals_of(CapacityIndex(), *rented)
    names = list[str]()
    cursor: dict[str, Any] = {}
    for _ in rented:
        async with api.get("/v1/machines", params={"limit": "1", **cursor}) as answer:
            page = await answer.json()
        names += [one["name"] for one in page["machines"]]
        cursor = {"cursor": page["next_cursor"]}
    assert (names, cursor) == (["f0", "0a", "7c"], {"cursor": None})


async def test_a_machine_that_is_not_there_is_not_forgotten(api: TestClient[Any, Any]) -> None:
    async with api.delete("/v1/machines/burst-1") as answer:
        assert answer.status == 404
    headers = {"Authorization": f"Bearer {USER_TOKEN}"}
    async with api.delete("/v1/machines/burst-1", headers=headers) as answer:
        assert answer.status == 403


async def test_costs_are_summed_up_by_what_is_asked_for(api: TestClient[Any, Any]) -> None:
    async with api.get("/v1/costs", params={"by": "user,run", "seconds": "60"}) as answer:
        orphans = {"count": 0, "per_hour": 0.0, "without_price": 0}
        nothing = {"rows": [], "total": 0.0, "per_hour": 0.0, "budgets": [], "orphans": orphans}
        assert await answer.json() == nothing
    async with api.get("/v1/costs", params={"by": "user,team"}) as answer:
        assert await shape_of(answer) == (400, "invalid", "by")
    async with api.get("/v1/costs", params={"per": "day"}) as answer:
        assert await answer.json() == nothing
    async with api.get("/v1/costs", params={"per": "week"}) as answer:
        assert (await shape_of(answer))[2] == "per"


async def test_what_orphans_cost_is_for_admins(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    rentals = rentals_of(CapacityIndex(), orphans=[known_orphan(costs_since=time.time() - 3600.0)])
    controller.pipeline.rentals = rentals
    asked = {"by": "fleet,user", "seconds": "86400"}
    async with api.get("/v1/costs", params=asked) as answer:
        told = await answer.json()
        (row,) = told["rows"]
        assert (row["fleet"], row["user"]) == ("burst", None)
        assert told["total"] == pytest.approx(1.0, rel=0.01)
        assert told["per_hour"] == 1.0
        assert told["orphans"] == {"count": 1, "per_hour": 1.0, "without_price": 0}
    headers = {"Authorization": f"Bearer {USER_TOKEN}"}
    async with api.get("/v1/costs", params=asked, headers=headers) as answer:
        told = await answer.json()
        assert (told["rows"], told["per_hour"], told["orphans"]["count"]) == ([], 0.0, 0)


async def test_all_users_see_all_machines_and_for_whom_only_admins_do(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    began = time.time() - 3600.0
    rented = machine("m1", user="somebody", run_id="0123456789abcdef", ordered_at=began)
    controller.pipeline.rentals = rentals_of(CapacityIndex(), rented)
    for token in (ADMIN_TOKEN, USER_TOKEN):
        headers = {"Authorization": f"Bearer {token}"}
        async with api.get("/v1/machines", headers=headers) as answer:
            (seen,) = (await answer.json())["machines"]
            assert (seen["name"], seen["price"]) == ("m1", 1.0)
            assert seen["cost"] > 0
            told = await answer.text()
        assert "somebody" not in told
        assert "0123456789abcdef" not in told
    costs = {"by": "user,run", "seconds": "86400"}
    async with api.get("/v1/costs", params=costs) as answer:
        (row,) = (await answer.json())["rows"]
        assert (row["user"], row["run"]) == ("somebody", "0123456789abcdef")
    async with api.get("/v1/costs", params=costs, headers=headers) as answer:
        mine = await answer.json()
        assert (mine["rows"], mine["total"], mine["per_hour"]) == ([], 0.0, 0.0)
    async with api.get("/v1/machine-orphans", headers=headers) as answer:
        assert answer.status == 403
    ended = {"provider": "lab", "instance_ids": ["i-1"]}
    async with api.post("/v1/machine-orphans/end", json=ended, headers=headers) as answer:
        assert answer.status == 403
    gone = {"provider": "lab", "instance_id": "i-1"}
    async with api.post("/v1/machine-orphans/forget", json=gone, headers=headers) as answer:
        assert answer.status == 403
