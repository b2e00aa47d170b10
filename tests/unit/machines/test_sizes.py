"""What machines turned out to have, next to what their offers promise."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from controller.lifecycle.inventory import NodeCapacity, NodeGpu
from controller.lifecycle.machines.sizes import KNOWN_SECONDS, Sizes
from tests.unit.machines.parts import GIB, NOW, gpu_offer, machine, offer


def had(gpus: int = 0, **more: Any) -> NodeCapacity:
    cards = tuple(
        NodeGpu(uuid=f"GPU-{number}", name="NVIDIA H100", memory=80 * GIB, healthy=False)
        for number in range(gpus)
    )
    fields: dict[str, Any] = {"cpu": 64.0, "memory": 512 * GIB, "disk": 100 * GIB, "gpus": cards}
    return NodeCapacity(**(fields | more))


def test_an_offer_counts_with_what_its_latest_machine_had_for_an_hour() -> None:
    sizes, promised = Sizes(), offer(cpu=8.0)
    assert sizes.of(promised, NOW) is promised
    sizes.joined(machine("m1", offer=promised), had(cpu=2.0, memory=4 * GIB), NOW)
    less = replace(promised, cpu=2.0, memory=4 * GIB)
    assert sizes.of(promised, NOW + KNOWN_SECONDS - 1) == less
    seen = sizes.smaller(promised, NOW)
    assert seen is not None
    assert seen.name == "m1"
    assert sizes.of(offer("other", cpu=8.0), NOW).cpu == 8.0
    assert sizes.of(promised, NOW + KNOWN_SECONDS) is promised
    sizes.joined(machine("m2", offer=less), had(), NOW + 1)
    assert sizes.of(promised, NOW + 2) is promised
    assert sizes.smaller(promised, NOW + 2) is None


def test_a_machine_without_its_gpus_is_no_machine_with_gpus() -> None:
    sizes, promised = Sizes(), gpu_offer()
    sizes.joined(machine(offer=promised), had(gpus=0), NOW)
    assert sizes.of(promised, NOW).gpus == ()
    sizes.joined(machine(offer=promised), had(gpus=3), NOW)
    assert [one.count for one in sizes.of(promised, NOW).gpus] == [3]
    # All of these are broken: that is a fault of this machine alone.
    sizes.joined(machine(offer=promised), had(gpus=8), NOW)
    assert sizes.of(promised, NOW) is promised


def test_a_check_without_a_fault_makes_the_promise_count_again() -> None:
    sizes, promised = Sizes(), offer(cpu=8.0)
    sizes.joined(machine(offer=promised), had(cpu=2.0), NOW)
    sizes.forget("other")
    assert sizes.of(promised, NOW).cpu == 2.0
    sizes.forget("lab")
    assert sizes.of(promised, NOW).cpu == 8.0
