"""The world of an engine's tests on a real container engine: folders, settings, and its lives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from fairlead.wire.shim import NetworkMode
from shim.engines.base import ContainerSpec
from shim.engines.docker.engine import DockerEngine
from shim.settings import NetworkKind, Settings
from tests.support.engine_contract import World, spec

_ENTRYPOINT = '#!/bin/sh\nexec /bin/sh "$2/script"\n'
"""It takes the runtime's place, and runs the task's script."""


def settings_in(folder: Path) -> Settings:
    """Return settings whose runtime only runs the task's script, with the engine's networks."""
    runtime = folder / "runtime"
    (runtime / "bin").mkdir(parents=True)
    entrypoint = runtime / "bin" / "fairlead-entrypoint"
    entrypoint.write_text(_ENTRYPOINT)
    entrypoint.chmod(0o755)
    return Settings(
        data=folder / "data",
        socket=folder / "shim.sock",
        gid=0,
        runtime=runtime,
        networks=NetworkKind.DOCKER,
    )


def bridged(
    world: World, task_id: str, run_id: str, script: str, address: str | None
) -> ContainerSpec:
    """Return a container in its run's network."""
    return msgspec.structs.replace(
        spec(world, task_id, script),
        run_id=run_id,
        network_mode=NetworkMode.BRIDGE,
        hostname="fair-wind",
        address=address,
    )


class EngineWorld:
    """`make` makes an engine of these settings for an install; the first one is `engine`."""

    def __init__(
        self, folder: Path, settings: Settings, make: Callable[[Settings, str], DockerEngine]
    ) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self.settings = settings
        self._make = make
        self._engines: list[DockerEngine] = []

    @property
    def engine(self) -> DockerEngine:
        return self._engines[0]

    async def again(self, install: str = "install-1") -> DockerEngine:
        """As after a crash: the earlier one is not closed."""
        engine = self._make(self.settings, install)
        self._engines.append(engine)
        await engine.open()
        return engine

    async def close(self) -> None:
        for engine in self._engines:
            await engine.close()
