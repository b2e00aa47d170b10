"""NVIDIA's GPUs, over a stand-in for the driver's library, pass the contract of GPUs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shim.gpus.base import Gpus
from tests.e2e.gpus.conftest import OpenGpus
from tests.support.gpus_contract import GpusContract
from tests.support.nvml import StandIn

pytestmark = pytest.mark.e2e


class TestNvmlGpus(GpusContract):
    @pytest.fixture
    async def gpus(self, open_gpus: OpenGpus) -> AsyncIterator[Gpus]:
        async with open_gpus() as gpus:
            yield gpus

    @pytest.fixture
    async def none(self, open_gpus: OpenGpus, machine: StandIn) -> AsyncIterator[Gpus]:
        machine.state.unlink()
        async with open_gpus() as gpus:
            yield gpus
