"""The promises of every vendor's GPUs.

A test module gives the fixtures `gpus`, a machine with two whole GPUs, and `none`, a machine
without a driver, both opened; it inherits the tests.
"""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from fairlead.wire.node import GpuInfo
from shim.gpus.base import GpuError, Gpus, Vitals


class GpusContract:
    async def test_whole_gpus_are_told_apart_by_index_and_uuid(self, gpus: Gpus) -> None:
        found = await gpus.list()
        assert [gpu.index for gpu in found] == [0, 1]
        assert len({gpu.uuid for gpu in found}) == 2
        assert all(gpu.uuid.startswith("GPU-") and gpu.parent is None for gpu in found)

    async def test_a_gpu_has_what_a_choice_needs(self, gpus: Gpus) -> None:
        for gpu in await gpus.list():
            assert gpu.name
            assert gpu.memory > 0

    async def test_two_listings_at_once_are_equal(self, gpus: Gpus) -> None:
        one, other = await asyncio.gather(gpus.list(), gpus.list())
        assert one == other

    async def test_boards_are_the_whole_gpus_of_the_last_listing(self, gpus: Gpus) -> None:
        found = await gpus.list()
        assert gpus.boards() == {gpu.uuid for gpu in found}

    async def test_only_a_gpu_that_is_not_listed_is_missing(self, gpus: Gpus) -> None:
        found = await gpus.list()
        gone = replace(found[0], uuid="GPU-gone", index=2, pci="0000:ff:00.0")
        assert gpus.missing([*found, gone]) == {gone.uuid}

    async def test_each_listed_gpu_has_a_reading_and_no_other(self, gpus: Gpus) -> None:
        for gpu in await gpus.list():
            assert isinstance(await gpus.vitals(gpu.uuid), Vitals)
        with pytest.raises(GpuError):
            await gpus.vitals("GPU-gone")

    async def test_a_machine_without_a_driver_has_no_gpus_and_misses_none(self, none: Gpus) -> None:
        before = GpuInfo(index=0, uuid="GPU-gone", name="A GPU", memory=80 << 30)
        assert (await none.list(), none.driver, none.boards()) == ((), None, frozenset())
        assert none.missing([before]) == frozenset()
