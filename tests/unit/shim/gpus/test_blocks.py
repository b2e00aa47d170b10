"""A node in equal shares: whole ones, as many as the greatest need."""

from __future__ import annotations

import pytest

from fairlead.wire.errors import Refused
from fairlead.wire.shim import GpuRequest, TaskResources
from shim.errors import StartError
from shim.node.ledger import AUTO, Blocks, Capacity, Ledger, check, parse, resolve
from tests.unit.shim.gpus.parts import in_pairs, linked
from tests.unit.shim.parts import request

GIB = 1 << 30
BLOCKS = Blocks(4, cpu=32.0, memory=64 * GIB, gpus=8)
CAPACITY = Capacity(cpu=32.0, memory=64 * GIB, disk=0)


def need(cpu: float = 1.0, memory: int = GIB, gpus: int = 0) -> TaskResources:
    return TaskResources(cpu=cpu, memory=memory, gpu=GpuRequest(count=gpus))


@pytest.mark.parametrize(
    ("asked", "blocks"),
    [
        (need(), 1),
        (need(gpus=2), 1),
        (need(gpus=3), 2),
        (need(cpu=8.0), 1),
        (need(cpu=8.1), 2),
        (need(memory=33 * GIB), 3),
        (need(gpus=8), 4),
    ],
)
def test_the_greatest_need_says_how_many_blocks(asked: TaskResources, blocks: int) -> None:
    got = BLOCKS.round_up(asked)
    assert (got.cpu, got.memory, got.gpu.count) == (8.0 * blocks, 16 * GIB * blocks, 2 * blocks)
    assert got.whole_node is (blocks == 4)


def test_the_whole_node_is_all_blocks() -> None:
    got = BLOCKS.round_up(TaskResources(cpu=1.0, memory=GIB, whole_node=True))
    assert (got.cpu, got.gpu.count, got.whole_node) == (32.0, 8, True)


def test_a_rounded_amount_stays() -> None:
    once = BLOCKS.round_up(need(gpus=3))
    assert BLOCKS.round_up(once) == once


def test_a_split_node_takes_as_many_small_jobs_as_it_has_blocks() -> None:
    ledger = Ledger(CAPACITY, linked(8, in_pairs), blocks=4)
    for number in range(4):
        place = f"place-{number}"
        ledger.hold(ledger.plan("t", request(allocation_id=place, resources=need(gpus=1))))
    assert [len(held.gpus) for held in ledger.held] == [2, 2, 2, 2]
    assert len({uuid for held in ledger.held for uuid in held.gpus}) == 8
    with pytest.raises(Refused, match="cpu: 8 cores asked, 0 cores free"):
        ledger.plan("t", request(allocation_id="place-5", resources=need()))


def test_named_gpus_are_filled_up_to_whole_blocks() -> None:
    ledger = Ledger(CAPACITY, linked(8, in_pairs), blocks=4)
    wanted = TaskResources(cpu=1.0, memory=GIB, gpu=GpuRequest(uuids=("GPU-3",)))
    assert ledger.plan("t", request(resources=wanted)).gpus == ("GPU-3", "GPU-2")


def test_one_share_per_gpu_is_that_too_when_the_driver_comes_late() -> None:
    ledger = Ledger(CAPACITY, (), blocks=AUTO)
    assert ledger.blocks == 1
    ledger.set_gpus(linked(8, in_pairs))
    assert ledger.blocks == 8
    held = ledger.plan("t", request(resources=need(gpus=1)))
    assert (held.cpu, len(held.gpus), held.whole_node) == (4.0, 1, False)


def test_a_need_beyond_the_node_is_refused_as_it_was_asked() -> None:
    ledger = Ledger(CAPACITY, linked(8, in_pairs), blocks=4)
    with pytest.raises(Refused, match="cpu: 33 cores asked, 32 cores free of 32"):
        ledger.plan("t", request(resources=need(cpu=33.0)))


def test_gpus_that_cannot_be_shared_equally_are_refused_at_the_start() -> None:
    with pytest.raises(StartError, match="8 GPUs cannot be split in 3 equal shares"):
        check(3, gpus=8)
    check(4, gpus=8)
    check(AUTO, gpus=7)
    assert (resolve(AUTO, gpus=8), resolve(None, gpus=8), resolve(2, gpus=0)) == (8, None, 2)


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "²"])
def test_a_number_of_blocks_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(StartError, match="expected a number"):
        parse(text)


def test_blocks_are_a_number_or_auto() -> None:
    assert (parse("4"), parse("auto")) == (4, AUTO)
