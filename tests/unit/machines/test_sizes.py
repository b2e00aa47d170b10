"""What machines turned out to have, next to what their offers promise."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from controller.lifecycle.inventory import NodeCapacity, NodeGpu
from controller.lifecycle.machines.model import Machine, Offer
from controller.lifecycle.machines.sizes import KNOWN_SECONDS, Sizes, size_of
from tests.unit.machines.parts import GIB, NOW, gpu_offer, machine, offer


def joined(
    promised: Offer, name: str = "m1", gpus: int = 0, at: float = NOW, **had: Any
) -> Machine:
    """A machine of the offer, which had this much at that time."""
    cards = tuple(
        NodeGpu(uuid=f"GPU-{number}", name="NVIDIA H100", memory=80 * GIB, healthy=False)
        for number in range(gpus)
    )
    fields: dict[str, Any] = {"cpu": 64.0, "memory": 512 * GIB, "disk": 100 * GIB, "gpus": cards}
    size = size_of(NodeCapacity(**(fields | had)))
    return machine(name, offer=promised, size=size, joined_at=at)


def test_an_offer_counts_with_what_its_latest_machine_had_for_an_hour() -> None:
    sizes, promised = Sizes(), offer(cpu=8.0)
    assert sizes.of(promised, NOW) is promised
    sizes.joined(joined(promised, cpu=2.0, memory=4 * GIB))
    less = replace(promised, cpu=2.0, memory=4 * GIB)
    assert sizes.of(promised, NOW + KNOWN_SECONDS - 1) == less
    assert sizes.smaller(promised, NOW) == "m1"
    assert sizes.of(offer("other", cpu=8.0), NOW).cpu == 8.0
    assert sizes.of(promised, NOW + KNOWN_SECONDS) is promised
    sizes.joined(joined(less, "m2", at=NOW + 1))
    assert sizes.of(promised, NOW + 2) is promised
    assert sizes.smaller(promised, NOW + 2) is None


def test_a_machine_without_its_gpus_is_no_machine_with_gpus() -> None:
    sizes, promised = Sizes(), gpu_offer()
    sizes.joined(joined(promised, gpus=0))
    assert sizes.of(promised, NOW).gpus == ()
    sizes.joined(joined(promised, gpus=3))
    assert [one.count for one in sizes.of(promised, NOW).gpus] == [3]
    # All of these are broken: that is a fault of this machine alone.
    sizes.joined(joined(promised, gpus=8))
    assert sizes.of(promised, NOW) is promised


def test_a_check_without_a_fault_makes_the_promise_count_again() -> None:
    sizes, promised = Sizes(), offer(cpu=8.0)
    sizes.joined(joined(promised, cpu=2.0))
    sizes.forget("other")
    assert sizes.of(promised, NOW).cpu == 2.0
    sizes.forget("lab")
    assert sizes.of(promised, NOW).cpu == 8.0


def test_a_controller_that_begins_knows_what_the_latest_machines_had() -> None:
    promised = offer(cpu=8.0)
    small = joined(promised, "m1", cpu=2.0)
    large = joined(promised, "m2", at=NOW + 1)
    of_an_earlier_version = replace(small, id="m3", size=None, joined_at=NOW + 2)
    expected = machine("m4", offer=promised)
    assert Sizes([expected, of_an_earlier_version, small]).of(promised, NOW + 3).cpu == 2.0
    assert Sizes([large, small]).of(promised, NOW + 3) is promised
    assert Sizes([small]).of(promised, NOW + KNOWN_SECONDS) is promised


def test_a_file_that_says_something_else_of_a_provider_makes_its_promises_count_again() -> None:
    promised = offer(cpu=8.0)
    small = replace(joined(promised, cpu=2.0), setup="first")
    cpus = [Sizes([small], {"lab": setup}).of(promised, NOW).cpu for setup in ("first", "second")]
    assert cpus == [2.0, 8.0]
