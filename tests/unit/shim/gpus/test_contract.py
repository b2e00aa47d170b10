"""The contract of GPUs for the double, and for AMD's over a stand-in for amdsmi; NVIDIA's passes it
in `tests/e2e/gpus`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead.wire.node import GpuInfo
from shim.gpus.amd.smi import AmdGpus
from shim.gpus.base import Gpus
from tests.doubles.amdsmi import Card, StandInSmi
from tests.doubles.gpus import MemoryGpus, NoGpus
from tests.support.gpus_contract import GpusContract


class TestMemoryGpus(GpusContract):
    @pytest.fixture
    def gpus(self) -> Gpus:
        return MemoryGpus(
            *(GpuInfo(index=n, uuid=f"GPU-{n}", name="H100", memory=80 << 30) for n in (0, 1))
        )

    @pytest.fixture
    def none(self) -> Gpus:
        return NoGpus()


class TestAmdGpus(GpusContract):
    @pytest.fixture
    async def gpus(self) -> AsyncIterator[Gpus]:
        gpus = AmdGpus(load=lambda: StandInSmi(Card(0), Card(1)))
        await gpus.open()
        yield gpus
        await gpus.close()

    @pytest.fixture
    async def none(self) -> AsyncIterator[Gpus]:
        def absent() -> Any:
            raise ImportError("amdsmi")

        gpus = AmdGpus(load=absent)
        await gpus.open()
        yield gpus
        await gpus.close()
