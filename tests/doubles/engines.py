"""An engine in the place of Docker: its containers are entries of a dictionary.

`MemoryHost` is the machine (it survives a "crash" of the shim), `MemoryEngine` the way to it.
Engines that misbehave are in `failing_engines`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection

from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.node import EngineKind
from fairlead.wire.shim import PullProgress, RegistryAuth
from shim.engines.base import (
    ContainerSpec,
    ContainerState,
    Exit,
    Found,
    ImageError,
    ImageInfo,
    ImageProblem,
    Storage,
)
from shim.errors import EngineError


class MemoryContainer:
    def __init__(self, spec: ContainerSpec) -> None:
        self.spec = spec
        self.state = ContainerState.CREATED
        self.exit = Exit(exit_code=None, gone=True)
        self.ended = asyncio.Event()
        self.starts = 0
        self.stop_code: int | None = 143
        """How it ends on a stop signal; None: it does not care."""

    def end(self, exit_code: int, **how: bool) -> None:
        """`how`: fields of Exit."""
        self.state = ContainerState.EXITED
        self.exit = Exit(exit_code=exit_code, **how)
        self.ended.set()


class MemoryHost:
    """`registry` maps a reference to its image and, when it is private, the password."""

    def __init__(self) -> None:
        self.containers: dict[str, MemoryContainer] = {}
        self.networks: set[str] = set()
        self.most_networks: int | None = None
        self.volumes: set[str] = set()
        self.image_bytes = 0
        """Of each local image, on a disk of 100 bytes."""
        self.local: dict[str, ImageInfo] = {"busybox": ImageInfo(id="sha256:busybox")}
        self.registry: dict[str, tuple[ImageInfo, str | None]] = {}
        self.liars: set[str] = set()
        """References whose registry names an image that it does not have."""
        self.ignores_stop = False
        self.on_start: Callable[[MemoryContainer], None] = lambda container: None
        self.pull_gate = asyncio.Event()
        self.pull_gate.set()
        self.log: list[str] = []
        self.expected: list[str] = []
        """The images of which a container may start soon, by their ids."""


class MemoryEngine:
    kind = EngineKind.DOCKER
    isolation = False
    has_networks = True
    network_choice = None
    abilities = frozenset(EngineAbility)

    def __init__(self, host: MemoryHost | None = None) -> None:
        self.host = host or MemoryHost()

    def cgroups(self, container_id: str) -> tuple[str, ...]:
        return (f"memory/{container_id}",)

    def first_process(self, container_id: str) -> int | None:
        return None

    def routes_to(self, run_id: str) -> bool:
        return False

    async def open(self) -> None:
        return None

    async def close(self) -> None:
        return None

    async def ready(self) -> None:
        return None

    async def version(self) -> str | None:
        return "memory"

    async def images(self) -> tuple[str, ...]:
        return tuple(self.host.local)

    async def local_image(self, reference: str) -> ImageInfo | None:
        return self.host.local.get(reference)

    async def pull(
        self,
        reference: str,
        auth: RegistryAuth | None,
        progress: Callable[[PullProgress], None],
    ) -> ImageInfo:
        self.host.log.append(f"pull {reference}")
        progress(PullProgress(downloaded=0, total=100))
        await self.host.pull_gate.wait()
        if "@" in reference and reference in self.host.local:  # as dockerd: nobody is asked
            return self.host.local[reference]
        image = self._check_access(reference, auth)
        progress(PullProgress(downloaded=100, total=100))
        self.host.local[reference] = image
        return image

    def expect(self, image: ImageInfo) -> None:
        self.host.expected.append(image.id)

    async def ask_registry(
        self, reference: str, digest: str | None, auth: RegistryAuth | None
    ) -> None:
        self.host.log.append(f"ask {reference}")
        self._check_access(reference, auth)

    async def prove_content(
        self, reference: str, image: ImageInfo, auth: RegistryAuth | None
    ) -> None:
        self.host.log.append(f"prove {reference}")
        self._check_access(reference, auth)
        if reference in self.host.liars:
            raise ImageError("it serves nothing of the image", ImageProblem.REFUSED)

    async def remove_image(self, reference: str) -> bool:
        image = self.host.local.get(reference)
        if image and any(c.spec.image == image.id for c in self.host.containers.values()):
            return False
        self.host.log.append(f"remove {reference}")
        self.host.local.pop(reference, None)
        return True

    async def storage(self) -> Storage | None:
        return Storage(used=self.host.image_bytes * len(self.host.local), total=100)

    async def ensure_volume(self, name: str) -> str:
        self.host.volumes.add(name)
        return name

    def networks(self) -> int | None:
        return self.host.most_networks

    async def ensure_network(
        self, run_id: str, taken: Collection[str] = (), wanted: str | None = None
    ) -> str | None:
        self.host.networks.add(run_id)
        if wanted is not None and wanted not in taken:
            return wanted
        return next(one for n in range(2, 255) if (one := f"10.0.0.{n}") not in taken)

    async def remove_network(self, run_id: str) -> None:
        self.host.networks.discard(run_id)

    async def create(self, spec: ContainerSpec) -> str:
        container_id = f"c-{spec.task_id}"
        self.host.containers.setdefault(container_id, MemoryContainer(spec))
        return container_id

    async def start(self, container_id: str) -> None:
        container = self._get(container_id)
        if container.state is ContainerState.CREATED:
            container.state = ContainerState.RUNNING
            container.starts += 1
            self.host.on_start(container)

    async def published_port(self, container_id: str, port: int) -> int | None:
        spec = self._get(container_id).spec
        return None if spec.publish is None else 40000 + len(self.host.containers)

    async def signal_stop(self, container_id: str) -> None:
        self.host.log.append(f"stop {container_id}")
        container = self.host.containers.get(container_id)
        if container is None or container.state is not ContainerState.RUNNING:
            return
        if container.stop_code is not None and not self.host.ignores_stop:
            container.end(container.stop_code)

    async def kill(self, container_id: str) -> None:
        self.host.log.append(f"kill {container_id}")
        container = self.host.containers.get(container_id)
        if container is not None and container.state is ContainerState.RUNNING:
            container.end(137)

    async def wait(self, container_id: str) -> Exit:
        container = self.host.containers.get(container_id)
        if container is None:
            return Exit(exit_code=None, gone=True)
        await container.ended.wait()
        return container.exit

    async def remove(self, task_id: str) -> None:
        container = self.host.containers.pop(f"c-{task_id}", None)
        if container is not None:
            container.ended.set()

    async def list(self) -> tuple[Found, ...]:
        return tuple(
            Found(
                container_id=key,
                task_id=container.spec.task_id,
                state=container.state,
                record=container.spec.record,
                run_id=container.spec.run_id,
                allocation_id=container.spec.allocation_id,
                gpus=container.spec.gpus,
            )
            for key, container in self.host.containers.items()
        )

    def _check_access(self, reference: str, auth: RegistryAuth | None) -> ImageInfo:
        if reference not in self.host.registry:
            raise ImageError(f"image {reference} does not exist", ImageProblem.MISSING)
        image, password = self.host.registry[reference]
        if password is not None and (auth is None or auth.password != password):
            raise ImageError(
                f"the registry refused the credentials for {reference}", ImageProblem.REFUSED
            )
        return image

    def _get(self, container_id: str) -> MemoryContainer:
        try:
            return self.host.containers[container_id]
        except KeyError:
            raise EngineError(f"no container {container_id}") from None


class PlainEngine(MemoryEngine):
    """One whose containers have no cgroup of their own: each is this process."""

    def cgroups(self, container_id: str) -> tuple[str, ...]:
        return ()

    def first_process(self, container_id: str) -> int | None:
        return os.getpid()
