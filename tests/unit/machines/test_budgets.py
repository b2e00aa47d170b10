"""What may be spent on machines, by a fleet, a user and the installation."""

from __future__ import annotations

import pytest

from controller.lifecycle.inventory import Budget, Spending
from controller.lifecycle.machines.model import MachineStatus
from controller.lifecycle.model import Group
from tests.unit.machines.looking import look, sentences, types, waiting
from tests.unit.machines.parts import NOW, fleet, machine, offer, shop
from tests.unit.scheduling.cluster import Cluster


def test_a_fleet_has_at_most_its_maximum() -> None:
    found = look(waiting(12, fleet(max=2), cpu=4.0), shop(offer()))
    assert len(found.orders) == 2
    assert "fleet burst has its most machines (2)" in sentences(found)


def test_a_gang_beyond_the_maximum_is_told_how_many_there_may_be() -> None:
    cluster = Cluster(fleets=(fleet(max=2),))
    cluster.submit("gang", Group(name="main", nodes=2, gang_size=2), cpu=4.0)
    there = machine(status=MachineStatus.TERMINATING)
    said = "fleet burst may have 2 machines (`machines.nodes.max`); it has {}, and what is needed"
    assert said.format(1) + " would add 2" in sentences(look(cluster, shop(offer()), there))
    cluster = Cluster(fleets=(fleet(max=1),))
    cluster.submit("gang", Group(name="main", nodes=2, gang_size=2), cpu=4.0)
    alone = said.replace("2 machines", "1 machine").format(0)
    assert alone + " would add 2" in sentences(look(cluster, shop(offer())))


def test_the_budget_of_an_hour_holds_for_what_is_live_and_ordered() -> None:
    cluster = waiting(5, fleet(budget=Budget(per_hour=2.5)), cpu=4.0)
    found = look(cluster, shop(offer()), machine(status=MachineStatus.TERMINATING))
    assert len(found.orders) == 1
    assert any("may cost 2.50 an hour" in one for one in sentences(found))


@pytest.mark.parametrize("limit", ["per_hour", "per_month"])
def test_a_budget_is_used_to_its_last_hundredth(limit: str) -> None:
    thrifty = fleet(budget=Budget(**{limit: 0.3}))
    found = look(waiting(4, thrifty, cpu=4.0), shop(offer(price=0.1)))
    assert types(found) == ["small"] * 3


def test_the_budget_of_a_month_counts_what_has_ended() -> None:
    ended = machine(status=MachineStatus.TERMINATED, ordered_at=NOW - 36_000, terminated_at=NOW - 1)
    cluster = waiting(1, fleet(budget=Budget(per_month=10.0)))
    found = look(cluster, shop(offer()), ended)
    assert found.orders == ()
    assert "fleet burst may cost 10.00 a month; its machines cost 10.00" in sentences(found).pop()


def test_a_dearer_offer_is_left_where_a_cheaper_one_fits_the_budget() -> None:
    market = shop(offer("spot", price=5.0, spot=True), offer("steady", price=1.0))
    found = look(waiting(1, fleet(budget=Budget(per_hour=2.0))), market)
    assert types(found) == ["steady"]


@pytest.mark.parametrize(
    ("spending", "bought", "why"),
    [
        (Spending(), 3, None),
        (Spending(together=Budget(per_hour=2.0)), 2, "this installation may cost 2.00 an hour"),
        (Spending(each_user=Budget(per_hour=1.0)), 1, "user ada may cost 1.00 an hour"),
        (Spending(each_user=Budget(per_hour=1.0), users={"ada": Budget()}), 3, None),
        (Spending(users={"ada": Budget(per_month=1.0)}), 1, "user ada may cost 1.00 a month"),
    ],
    ids=str,
)
def test_users_and_the_installation_have_budgets(
    spending: Spending, bought: int, why: str | None
) -> None:
    found = look(waiting(3, cpu=4.0), shop(offer(), spending=spending))
    assert len(found.orders) == bought
    assert {(one.user, one.run_id is not None) for one in found.orders} == {("ada", True)}
    told = [one for one in sentences(found) if "may cost" in one]
    assert (why is None) is (told == [])
    assert why is None or told[0].startswith(why)


def test_two_fleets_bring_a_user_not_above_his_budget() -> None:
    cluster = Cluster(fleets=(fleet("one"), fleet("two")))
    for name in ("one", "two"):
        cluster.submit(name, fleets=(name,), cpu=4.0)
    found = look(cluster, shop(offer(), spending=Spending(each_user=Budget(per_hour=1.5))))
    assert [(one.fleet, one.user) for one in found.orders] == [("one", "ada")]
    assert len(look(cluster, shop(offer())).orders) == 2


def test_a_user_without_budget_keeps_no_other_from_renting_the_same() -> None:
    cluster = Cluster(fleets=(fleet(),))
    for user in ("ada", "bob"):
        cluster.submit(user, user=user, cpu=4.0)
    spending = Spending(users={"ada": Budget(per_hour=0.5)})
    found = look(cluster, shop(offer(), spending=spending))
    assert [one.user for one in found.orders] == ["bob"]
    assert len([one for one in sentences(found) if one.startswith("user ada may cost")]) == 1


def test_what_was_bought_for_a_user_counts_from_its_order() -> None:
    spending = Spending(each_user=Budget(per_hour=1.5))
    found = look(
        waiting(1, cpu=4.0),
        shop(offer(), spending=spending),
        machine("m1", user="ada", status=MachineStatus.TERMINATING),
        machine("m2", user="bob"),
    )
    assert found.orders == ()


def test_what_a_fleet_keeps_is_no_users() -> None:
    found = look(Cluster(fleets=(fleet(min=1),)), shop(offer()))
    assert [(one.user, one.run_id) for one in found.orders] == [(None, None)]
