"""The engines and the GPU vendors that this shim knows.

No other module imports them, and each is imported when it is used: docker-py alone costs ten
megabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

import msgspec

from fairlead.wire.node import EngineKind, Finding
from shim.engines.base import Engine
from shim.examination import Asked, NodeSetup
from shim.gpus import Gpus
from shim.gpus.selection import Exclusion
from shim.settings import Settings


class EngineAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """An engine before it is opened.

    `make` gets the install's id. `find_install` (blocking) finds the install of a data folder in
    what the engine still runs. `images`: the folder of its images below the root, if it has any.
    `needs_runtime`: a task gets the runtime mounted. `has_networks`: a task may have a network of
    its own, behind a bridge that the node's firewall knows.
    """

    make: Callable[[Settings, Executor, str], Engine]
    find_install: Callable[[Path], str | None]
    examine: Callable[[NodeSetup, Asked], Iterator[Finding]]
    images: str | None
    needs_runtime: bool
    has_networks: bool


USUAL = EngineKind.DOCKER
"""The engine of a node that does not name one."""


def engine(kind: EngineKind) -> EngineAdapter:
    match kind:
        case EngineKind.DOCKER:
            return _docker()
        case EngineKind.PODMAN:
            return _podman()
        case EngineKind.PROCESS:
            return _process()


def gpus(excluded: list[Exclusion]) -> Gpus:
    """Return the GPUs of the vendor whose driver the node has; NVIDIA's, also of a driver that is
    loaded later, unless only AMD's is here."""
    if _has_amd(Path("/")):
        from shim.gpus.amd.smi import AmdGpus

        return AmdGpus(excluded)
    from shim.gpus.nvidia.nvml import NvmlGpus

    return NvmlGpus(excluded)


def examine_gpus(node: NodeSetup, asked: Asked) -> Iterator[Finding]:
    if _has_amd(node.root):
        from shim.gpus.amd import examination as of_amd

        return of_amd.examine(node, asked)
    from shim.gpus.nvidia import examination

    return examination.examine(node, asked)


def _has_amd(root: Path) -> bool:
    """Return whether AMD's driver serves compute here, and NVIDIA's is not loaded."""
    nvidia = (root / "proc/driver/nvidia/version").exists()
    return (root / "sys/module/amdgpu").is_dir() and (root / "dev/kfd").exists() and not nvidia


def _docker() -> EngineAdapter:
    from shim.engines.docker import examination
    from shim.engines.docker.api import find_install
    from shim.engines.docker.dialect import DOCKER
    from shim.engines.docker.engine import DockerEngine

    return EngineAdapter(
        make=lambda settings, threads, install: DockerEngine(settings, install),
        find_install=partial(find_install, DOCKER),
        examine=examination.examine,
        images=examination.IMAGES,
        needs_runtime=True,
        has_networks=True,
    )


def _podman() -> EngineAdapter:
    from shim.engines import podman

    return EngineAdapter(
        make=lambda settings, threads, install: podman.engine(settings, install),
        find_install=podman.find_install,
        examine=podman.examine,
        images=podman.IMAGES,
        needs_runtime=True,
        has_networks=True,
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
        has_networks=False,
    )
