"""A machine of GPUs: our own stand-in for the driver's library, below NVIDIA's real bindings."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from shim.gpus.nvidia.nvml import NvmlGpus
from shim.gpus.selection import Exclusion
from tests.support import nvml
from tests.support.nvml import StandIn


@pytest.fixture(scope="session")
def nvml_library() -> Iterator[Path]:
    """Loaded into this process; others find it by `LD_LIBRARY_PATH`."""
    if shutil.which("gcc") is None:
        pytest.fail("gcc is missing: apt-get install gcc libc6-dev", pytrace=False)
    folder = Path(tempfile.mkdtemp(prefix="fg-", dir="/tmp"))
    library = nvml.build(folder)
    nvml.load(library)
    yield library
    shutil.rmtree(folder)


@pytest.fixture
def machine(
    nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StandIn]:
    """Two GPUs; it answers every call before the test ends."""
    state = tmp_path / "nvml-state"
    monkeypatch.setenv(nvml.STATE, str(state))
    standin = StandIn(state)
    yield standin
    standin.tell()


class OpenGpus(Protocol):
    def __call__(self, *excluded: str) -> AbstractAsyncContextManager[NvmlGpus]: ...


@pytest.fixture
def open_gpus(machine: StandIn) -> OpenGpus:
    assert os.environ[nvml.STATE] == str(machine.state)

    @asynccontextmanager
    async def opened(*excluded: str) -> AsyncIterator[NvmlGpus]:
        gpus = NvmlGpus([Exclusion.parse(text) for text in excluded])
        await gpus.open()
        try:
            yield gpus
        finally:
            machine.tell()
            await gpus.close()

    return opened
