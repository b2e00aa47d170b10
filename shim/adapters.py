"""The engines and the GPU vendors that this shim knows.

No other module imports them, and each is imported when it is used: docker-py alone costs ten
megabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path

import msgspec

from shim.engines.base import Engine
from shim.examination import Asked, NodeSetup
from shim.gpus import Gpus
from shim.gpus.selection import Exclusion
from shim.schemas import EngineKind, Finding
from shim.settings import Settings


class EngineAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """An engine before it is opened.

    `make` gets the install's id. `find_install` (blocking) finds the install of a data folder in
    what the engine still runs. `images`: the folder of its images below the root, if it has any.
    `needs_runtime`: a task gets the runtime mounted.
    """

    make: Callable[[Settings, Executor, str], Engine]
    find_install: Callable[[Path], str | None]
    examine: Callable[[NodeSetup, Asked], Iterator[Finding]]
    images: str | None
    needs_runtime: bool


def engine(kind: EngineKind) -> EngineAdapter:
    match kind:
        case EngineKind.DOCKER:
            return _docker()
        case EngineKind.PROCESS:
            return _process()


def gpus(excluded: list[Exclusion]) -> Gpus:
    from shim.gpus.nvidia.nvml import NvmlGpus

    return NvmlGpus(excluded)


def examine_gpus(node: NodeSetup, asked: Asked) -> Iterator[Finding]:
    from shim.gpus.nvidia import examination

    return examination.examine(node, asked)


def _docker() -> EngineAdapter:
    from shim.engines.docker import examination
    from shim.engines.docker.api import find_install
    from shim.engines.docker.engine import DockerEngine

    return EngineAdapter(
        make=lambda settings, threads, install: DockerEngine(settings, install),
        find_install=find_install,
        examine=examination.examine,
        images=examination.IMAGES,
        needs_runtime=True,
    )


def _process() -> EngineAdapter:
    from shim.engines import process

    return EngineAdapter(
        make=lambda settings, threads, install: process.ProcessEngine(
            settings.data, install, threads
        ),
        find_install=lambda data: None,
        examine=process.examine,
        images=None,
        needs_runtime=False,
    )
