"""Offers that a provider refused, and when they are tried again."""

from __future__ import annotations

from typing import Any

import pytest

from controller.lifecycle.inventory import Spot
from controller.lifecycle.machines.market import Penalties
from controller.lifecycle.machines.model import MachineEnd, MachineStatus, Reach
from controller.lifecycle.renting_reasons import NoOffer
from tests.unit.machines.looking import look, sentences, shown, types, waiting
from tests.unit.machines.parts import NOW, fleet, machine, offer, shop

WRONG: dict[str, Any] = {"message": "regions.north.image: gone", "reach": Reach.REGION}


def test_a_refused_offer_is_tried_again_after_its_penalty() -> None:
    market = shop(offer("first", price=1.0), offer("second", price=2.0))
    first, second = market.offers["lab"]
    market.penalties.add(first, MachineEnd.NO_CAPACITY, NOW)
    assert types(look(waiting(1), market)) == ["second"]
    market.penalties.add(second, MachineEnd.NO_CAPACITY, NOW)
    found = look(waiting(1), market)
    assert found.orders == ()
    assert f"the next try is at {shown(NOW + 180)}" in sentences(found).pop()


def test_a_refusal_is_told_with_the_providers_words() -> None:
    market = shop(offer())
    (only,) = market.offers["lab"]
    market.penalties.add(only, MachineEnd.REFUSED, NOW, message="there is no such image")
    assert sentences(look(waiting(1), market)) == {
        "the provider of fleet burst has refused small in north-1 (on demand, 1.00 an hour): "
        "there is no such image (an admin's `fairlead provider check` tries what orders need); "
        f"the next try is at {shown(NOW + 600)}"
    }


def test_a_machine_that_did_not_boot_was_not_refused() -> None:
    full, silent = offer(), offer("silent", price=2.0)
    market = shop(full, silent)
    market.penalties.add(silent, MachineEnd.BOOT_FAILED, NOW, message="it was no node")
    (sentence,) = sentences(look(waiting(1, fleet(instance_types=("silent",))), market))
    assert sentence == (
        "the last machine of silent in north-1 (on demand, 2.00 an hour) failed: it was no node "
        "(an admin's `fairlead provider check --boot` tries one); the next try is at "
        f"{shown(NOW + 600)}"
    )
    market.penalties.add(full, MachineEnd.NO_CAPACITY, NOW)
    (sentence,) = sentences(look(waiting(1), market))
    assert sentence.startswith(
        "the provider of fleet burst has refused small in north-1 (on demand, 1.00 an hour), and "
        "the last machine of silent in north-1 (on demand, 2.00 an hour) failed: silent in "
    )


def test_a_quota_is_reached_in_all_zones_of_its_region() -> None:
    zones = [offer(zone=f"north-{number}") for number in range(3)]
    spot, south = offer(spot=True, price=3.0), offer(region="south", zone="south-1", price=4.0)
    market = shop(*zones, spot, south)
    market.penalties.add(zones[0], MachineEnd.QUOTA_REACHED, NOW, message="8 vCPUs in north")
    open_ = [one for one in market.offers["lab"] if market.penalties.until(one, NOW) is None]
    assert open_ == [spot, south]
    only = waiting(1, fleet(regions=("north",), spot=Spot.NEVER))
    assert sentences(look(only, market)) == {
        "the account of fleet burst at its provider has reached a quota: 8 vCPUs in north; the "
        f"next try is at {shown(NOW + 600)}"
    }
    # It was asked for in one zone.
    market.penalties.add(south, MachineEnd.NO_CAPACITY, NOW)
    (sentence,) = sentences(look(waiting(1, fleet(spot=Spot.NEVER)), market))
    assert sentence.count(" in north-") == 1
    market.penalties.came(machine(offer=zones[1], ordered_at=NOW + 1.0))
    assert market.penalties.until(zones[0], NOW) is None


def test_a_quota_takes_up_one_try_however_many_zones_it_holds_for() -> None:
    zones = [offer(zone=f"north-{number}") for number in range(30)]
    market = shop(*zones, offer("dear", price=9.0))
    market.penalties.add(zones[0], MachineEnd.QUOTA_REACHED, NOW, message="8 vCPUs in north")
    assert types(look(waiting(1), market)) == ["dear"]


def test_a_quota_behind_offers_without_capacity_is_named() -> None:
    spot, dear = offer("small", spot=True), offer("dear", price=2.0)
    market = shop(spot, dear)
    market.penalties.add(spot, MachineEnd.NO_CAPACITY, NOW, message="none left")
    market.penalties.add(dear, MachineEnd.QUOTA_REACHED, NOW, message="8 vCPUs in north")
    (sentence,) = sentences(look(waiting(1), market))
    assert ": dear in north-1 (on demand, 2.00 an hour): 8 vCPUs in north (an admin's" in sentence


def test_what_the_file_names_wrong_for_a_region_is_refused_once() -> None:
    south = offer("dear", region="south", zone="south-1", price=9.0)
    cheap = [offer(f"small{number}", price=1.0 + number / 100) for number in range(30)]
    market = shop(*cheap, south)
    market.penalties.add(cheap[0], MachineEnd.REFUSED, NOW, **WRONG)
    # Thirty offers that nobody tries leave the tries to the other region.
    assert types(look(waiting(1), market)) == ["dear"]
    only = waiting(1, fleet(regions=("north",)))
    found = look(only, market)
    assert found.orders == ()
    assert sentences(found) == {
        "fleet burst rents nothing in region north of provider lab, since each order there would "
        "be refused: regions.north.image: gone; once an admin has corrected that, `fairlead "
        "provider check` has it tried at once, else the next try is at "
        f"{shown(NOW + 600)}"
    }
    assert len(found.answers) == 1
    market.penalties.forget_refused("lab")
    assert types(look(only, market)) == ["small0"]


def test_a_region_that_is_left_out_is_named_with_what_else_was_refused() -> None:
    south = offer("dear", region="south", zone="south-1", price=9.0)
    market = shop(offer(), south)
    market.penalties.add(offer(), MachineEnd.REFUSED, NOW, **WRONG)
    market.penalties.add(south, MachineEnd.NO_CAPACITY, NOW)
    (sentence,) = sentences(look(waiting(1), market))
    assert sentence.startswith(
        "the provider of fleet burst has refused dear in south-1 (on demand, 9.00 an hour): each "
        "order in region north of provider lab would be refused: regions.north.image: gone ("
    )


@pytest.mark.parametrize(
    ("reach", "out"),
    [
        (Reach.OFFER, {"a"}),
        (Reach.ZONE, {"a", "same zone"}),
        (Reach.REGION, {"a", "same zone", "same region"}),
        (Reach.PROVIDER, {"a", "same zone", "same region", "same provider"}),
    ],
)
def test_a_refusal_holds_as_far_as_its_cause_reaches(reach: Reach, out: set[str]) -> None:
    every = (
        offer("a"),
        offer("same zone"),
        offer("same region", zone="north-2"),
        offer("same provider", region="south", zone="south-1"),
        offer("other", provider="far"),
    )
    penalties = Penalties()
    penalties.add(every[0], MachineEnd.REFUSED, NOW, reach=reach)
    assert {one.instance_type for one in every if penalties.until(one, NOW) is not None} == out
    penalties.came(machine(offer=every[0], ordered_at=NOW + 1.0))
    assert all(penalties.until(one, NOW) is None for one in every)


def test_a_file_that_says_something_else_of_a_provider_ends_its_refusals() -> None:
    gone = {"status": MachineStatus.TERMINATED, "terminated_at": NOW, "setup": "first"}
    refused = machine("m1", end=MachineEnd.REFUSED, reach=Reach.REGION, **gone)
    scarce = machine("m2", end=MachineEnd.NO_CAPACITY, offer=offer("scarce"), **gone)
    for setups, is_out in (({}, True), ({"lab": "first"}, True), ({"lab": "second"}, False)):
        penalties = Penalties([refused, scarce], setups)
        assert (penalties.until(offer("other"), NOW) is not None) is is_out
        assert penalties.until(offer("scarce"), NOW) is not None


def test_a_quota_is_named_with_the_providers_words() -> None:
    market = shop(offer())
    (only,) = market.offers["lab"]
    market.penalties.add(only, MachineEnd.QUOTA_REACHED, NOW, message="vCPU limit in north")
    assert sentences(look(waiting(1), market)) == {
        "the account of fleet burst at its provider has reached a quota: vCPU limit in north; "
        f"the next try is at {shown(NOW + 600)}"
    }


def test_a_restarted_controller_remembers_what_was_refused() -> None:
    gone = {"status": MachineStatus.TERMINATED, "terminated_at": NOW}
    refused = machine("m1", end=MachineEnd.NO_CAPACITY, message="none left", **gone)
    again = machine("m2", end=MachineEnd.NO_CAPACITY, **{**gone, "ordered_at": NOW + 181.0})
    assert Penalties([refused]).until(offer(), NOW + 179.0) == NOW + 180.0
    assert Penalties([again, refused]).until(offer(), NOW + 182.0) == NOW + 181.0 + 360.0
    joined = {"status": MachineStatus.JOINED, "joined_at": NOW + 190.0}
    came = machine("m3", ordered_at=NOW + 182.0, **joined)
    assert Penalties([again, refused, came]).until(offer(), NOW + 182.0) is None
    idle = machine("m4", end=MachineEnd.IDLE, joined_at=NOW - 9.0, **gone)
    assert Penalties([idle]).until(offer(), NOW) is None
    silent = machine("m5", end=MachineEnd.BOOT_FAILED, terminating_at=NOW + 400.0, **gone)
    assert Penalties([silent]).until(offer(), NOW + 401.0) == NOW + 1000.0


@pytest.mark.parametrize("end", [MachineEnd.QUOTA_REACHED, MachineEnd.NO_CAPACITY])
def test_a_machine_that_was_ordered_before_a_refusal_does_not_end_it(end: MachineEnd) -> None:
    """The last machine that a quota allows boots after the next one was refused."""
    gone = {"status": MachineStatus.TERMINATED, "terminated_at": NOW, "ordered_at": NOW}
    refused = machine("m2", end=end, **gone)
    joined = {"status": MachineStatus.JOINED, "joined_at": NOW + 60.0}
    for ordered_at in (NOW - 10.0, NOW):
        came = machine("m1", ordered_at=ordered_at, **joined)
        assert Penalties([came, refused]).until(offer(), NOW + 61.0) is not None
    # That of a boot is another matter: this one booted after it.
    silent = machine("m3", end=MachineEnd.BOOT_FAILED, terminating_at=NOW + 50.0, **gone)
    came = machine("m1", ordered_at=NOW, **joined)
    assert Penalties([came, silent]).until(offer(), NOW + 61.0) is None


def test_a_failed_boot_in_a_row_is_counted_from_its_order() -> None:
    # Each fails 1200 s after its order, when its offer may be tried again.
    ends = [NOW + 1200.0, NOW + 1200.0 + 600.0 + 1200.0]
    silent = [
        machine(f"m{at}", end=MachineEnd.BOOT_FAILED, ordered_at=at - 1200.0, terminating_at=at)
        for at in ends
    ]
    assert Penalties(silent).until(offer(), ends[-1]) == ends[-1] + 1200.0


def test_machines_that_are_lost_soon_are_left_out_for_longer_and_longer() -> None:
    until, lost = NOW, []
    for wait in (180.0, 360.0, 720.0, 1440.0, 2880.0, 3600.0):
        at = until + 300.0
        times = {"ordered_at": until + 9.0, "joined_at": until + 99.0, "terminating_at": at}
        lost.append(machine(f"m{at}", end=MachineEnd.LOST, short_lived=True, **times))
        until = at + wait
        assert Penalties(lost).until(offer(), at) == until
    # Another machine that joins tells nothing of how long it lives.
    came = machine("m9", status=MachineStatus.JOINED, ordered_at=NOW, joined_at=until - 9.0)
    assert Penalties([*lost, came]).until(offer(), until - 8.0) == until
    long_lived = machine("m8", end=MachineEnd.LOST, joined_at=NOW, terminating_at=NOW + 9000.0)
    assert Penalties([long_lived]).until(offer(), NOW + 9001.0) is None


def test_a_provider_that_the_file_no_longer_names_is_no_offer() -> None:
    found = look(waiting(1), shop(providers=frozenset({"here", "there"})))
    assert found.orders == ()
    (reason,) = found.reasons.values()
    assert isinstance(reason, NoOffer)
    named = fleet().machines
    assert named is not None
    assert reason.lacks == (
        f"the controller's file names no provider {named.provider} (it has here, there): put it "
        "back there, or apply the fleet with another one or with `machines: off`"
    )
    assert look(waiting(1), shop(offer(), providers=frozenset({named.provider}))).orders != ()
