"""Tasks as Docker containers.

docker-py blocks, so it lives in its own threads. Exits are not waited for one thread each: one
follower reads the engine's events for all of them (`exits`). When the stream of events ends, the
engine is taken for lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import docker.errors
import msgspec
import requests.exceptions
import urllib3.exceptions

from common.threads import to_the_end, together
from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.node import EngineKind
from fairlead.wire.shim import NetworkMode, PullProgress, RegistryAuth
from shim.engines.base import (
    ContainerSpec,
    ContainerState,
    EngineUnavailable,
    Exit,
    Found,
    ImageInfo,
    NetworkChoice,
    NodeFault,
    NodeFull,
    PortsTaken,
    Storage,
)
from shim.engines.docker import containers, faults, request
from shim.engines.docker.api import Client, Conflict, DockerRefused, NotFound, ensure_volume
from shim.engines.docker.choice import ChosenNetworks, NetworkChooser
from shim.engines.docker.dialect import DOCKER, Dialect
from shim.engines.docker.events import EventFollower
from shim.engines.docker.exits import Exits
from shim.engines.docker.handover import Way, hand_over, means_of
from shim.engines.docker.images import DockerImages, UserFiles, folder_of
from shim.engines.docker.oci_runtime import OciRuntime, StartWatch
from shim.errors import EngineError, StartError
from shim.settings import AUTO_RUNTIME, Settings, check_runtime

log = logging.getLogger(__name__)
T = TypeVar("T")
_CALL_SECONDS = 60
_START_TRIES = 5
_THREADS = 16
_FIRST_PAUSE = 0.05
_WAITED_FOR_A_FIFO = (
    "/etc/passwd or /etc/group of a volume became a FIFO, for which its start waited"
)
_HIDES_RUNTIME = (
    "the image hides /opt/fairlead/runtime: it has a VOLUME below it, or its user may not "
    "enter /opt"
)
_MAX_PAUSE = 5.0
_LOST = (
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    requests.exceptions.ChunkedEncodingError,
    # docker-py reads streams past requests, which would wrap urllib3's own errors.
    urllib3.exceptions.HTTPError,
)


class DockerEngine:
    isolation = True
    has_networks = True
    abilities = frozenset(EngineAbility)

    def __init__(
        self,
        settings: Settings,
        install_id: str,
        api: Any = None,
        dialect: Dialect = DOCKER,
    ) -> None:
        """`api`: a client of the engine to use instead of one that `open` connects."""
        self._dialect = dialect
        self._settings = settings
        self._install_id = install_id
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="shim-docker")
        self._api = api
        self._cores = 0.0
        self._info: dict[str, Any] = {}
        self._never_started: set[str] = set()
        """Containers that were made here and not started yet."""
        self._follower: EventFollower | None = None
        self.exits = Exits(self._call, lambda: self._api, dialect)
        self._images = DockerImages(self._call, self._in_our_words, dialect)
        self._oci_runtime = OciRuntime(settings, install_id, dialect.kind, self._in_our_words)
        self._user_files = UserFiles(self._call, f"fairlead-look-{install_id}", api)
        self._networks: ChosenNetworks | None = None
        """None until the engine is open."""

    @property
    def kind(self) -> EngineKind:
        return self._dialect.kind

    def cgroups(self, container_id: str) -> tuple[str, ...]:
        return self._dialect.cgroups(container_id)

    def first_process(self, container_id: str) -> int | None:
        return None

    async def open(self) -> None:
        """Connect. Raises EngineUnavailable when no engine answers."""
        try:
            self._api = await self._in_thread(self._connect)
        except docker.errors.DockerException as error:
            raise self._dialect.unreachable(error) from None
        info = await self._call(lambda: self._api.info())
        self._info = info
        request.require_oci_runtime(self._settings.oci_runtime, info)
        self._cores = float(info.get("NCPU", 0))
        self._images.open(self._api, folder_of(info), self._connect_to_pull)
        self._user_files.open(self._api)
        self._follower = EventFollower(
            lambda: self._api.events(
                decode=True,
                filters={
                    "type": "container",
                    "event": list(self._dialect.end_events),
                    **containers.filters(self._install_id),
                },
            ),
            self.hint,
            self.exits.note_stop,
            _LOST,
            self._dialect,
        )
        # Before anything is listed: an end between a listing and the first event would be missed.
        await self._follower.open()
        self._oci_runtime.open(self._api, info)
        chooser = NetworkChooser(
            self._call,
            self._api,
            self._dialect,
            self._install_id,
            self._settings,
            info,
            await self._containers(),
        )
        self._networks = await chooser.open()

    async def close(self) -> None:
        await self._user_files.close()
        await self._oci_runtime.close()
        if self._networks is not None:
            await self._networks.close()
        if self._follower is not None:
            await self._follower.close()
        if self._api is not None:
            await self._in_thread(self._api.close)
        # It waits for the calls that are still in their threads, each for up to a minute.
        await asyncio.to_thread(self._threads.shutdown)

    async def ready(self) -> None:
        """Return once the engine answers. The stream of events alone proves nothing: it can work
        while other calls fail."""
        assert self._follower is not None
        pause = _FIRST_PAUSE
        while True:
            await self._follower.connected()
            try:
                await self._call(lambda: self._api.ping())
                return
            except EngineError:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _MAX_PAUSE)

    async def version(self) -> str | None:
        found = await self._call(lambda: self._api.version())
        return str(found.get("Version") or "") or None

    async def images(self) -> tuple[str, ...]:
        return await self._images.tags()

    async def local_image(self, reference: str) -> ImageInfo | None:
        return await self._images.local(reference)

    async def pull(
        self,
        reference: str,
        auth: RegistryAuth | None,
        progress: Callable[[PullProgress], None],
    ) -> ImageInfo:
        return await self._images.pull(reference, auth, progress)

    def expect(self, image: ImageInfo) -> None:
        self._user_files.expect(image.id)

    async def ask_registry(
        self, reference: str, digest: str | None, auth: RegistryAuth | None
    ) -> None:
        await self._images.ask(reference, digest, auth)

    async def prove_content(
        self, reference: str, image: ImageInfo, auth: RegistryAuth | None
    ) -> None:
        await self._images.prove(reference, image, auth)

    async def remove_image(self, reference: str) -> bool:
        return await self._images.remove(reference)

    async def storage(self) -> Storage | None:
        return await self._images.storage()

    async def ensure_volume(self, name: str) -> str:
        return await ensure_volume(self._call, self._api, name)

    @property
    def network_choice(self) -> NetworkChoice | None:
        return None if self._networks is None else self._networks.choice

    def routes_to(self, run_id: str) -> bool:
        return self._opened.routes_to(run_id)

    def networks(self) -> int | None:
        return 0 if self._networks is None else self._networks.capacity

    @property
    def _opened(self) -> ChosenNetworks:
        assert self._networks is not None, "the engine is not open"
        return self._networks

    async def ensure_network(
        self, run_id: str, taken: Collection[str] = (), wanted: str | None = None
    ) -> str | None:
        return await self._opened.ensure(run_id, taken, wanted)

    async def remove_network(self, run_id: str) -> None:
        await self._opened.remove(run_id)

    async def create(self, spec: ContainerSpec) -> str:
        if self._dialect.makes_missing_sources:
            await self._in_thread(lambda: containers.check_sources(spec, self._settings.runtime))
        made = asyncio.ensure_future(self._made(spec))
        # To make a container opens nothing of its image. Both have ended when this returns.
        await together(self._check_users(spec), made)
        return made.result()

    async def _check_users(self, spec: ContainerSpec) -> None:
        try:
            await self._user_files.check(spec)
        except EngineError as error:
            raise faults.of_create(error) from None

    async def _made(self, spec: ContainerSpec) -> str:
        name = containers.name_of(spec.task_id)
        try:
            made = await self._created(spec, await self._oci_runtime.name())
        except Conflict as conflict:
            found = await self._call(lambda: self._api.inspect_container(name))
            # An earlier create whose answer was lost may have made it; a name alone proves nothing.
            if not containers.is_own(found, self._install_id, spec.task_id):
                raise NodeFault(
                    f"a container named {name} exists that this shim did not make"
                ) from conflict
            return str(found["Id"])
        except EngineError as error:
            raise faults.of_create(error) from None
        container_id = str(made["Id"])
        self._never_started.add(container_id)
        if spec.network_mode is NetworkMode.BRIDGE:
            await self._opened.made(spec, container_id)
        return container_id

    async def _created(self, spec: ContainerSpec, oci_runtime: str | None) -> dict[str, Any]:
        try:
            return await self._call(
                lambda: self._api.create_container(**self._request(spec, oci_runtime))
            )
        except EngineError as error:
            if oci_runtime is None or not self._oci_runtime.is_gone(error):
                raise
            return await self._created(spec, None)

    async def start(self, container_id: str) -> None:
        """Start a container that was not started before.

        The engine itself would run an ended container again, and the answer to an earlier start may
        have been lost.
        """
        if container_id in self._never_started or await self._is_as_created(container_id):
            self._never_started.discard(container_id)
            works = [self._start_created(container_id)]
            if self._networks is not None:
                works.append(self._networks.starting(container_id))
            await together(*works)
        hints = self.exits.hints
        if self._networks is not None and await self._networks.started(container_id):
            self.exits.started(container_id, hints)

    async def _start_created(self, container_id: str) -> None:
        """Start a created container. The engine tries a few ports in a row and gives up when they
        are all taken; then it is asked again."""
        for left in reversed(range(_START_TRIES)):
            watch = StartWatch(container_id)
            try:
                async with watch:
                    await self._call(lambda: self._api.start(container_id))
            # Before its base EngineError: the driver waits for the engine and repeats the step.
            except EngineUnavailable:
                raise
            except EngineError as error:
                if watch.has_ended_it:
                    raise EngineError(_WAITED_FOR_A_FIFO) from None
                if faults.is_of_its_address(error):
                    raise NodeFull(f"its address in the run's network is in use: {error}") from None
                if "address already in use" not in str(error).lower():
                    if self._networks is not None:
                        self._networks.distrust(str(error))
                    fault = faults.of_start(error)
                    if faults.is_of_the_first_process(error) and self._has_runtime():
                        made = await self._call(partial(self._api.inspect_container, container_id))
                        if faults.hides_the_runtime(made, error):
                            fault = EngineError(f"{_HIDES_RUNTIME} ({error})")
                    if isinstance(fault, NodeFault):
                        self._oci_runtime.again()
                    raise fault from None
                if not left:
                    raise PortsTaken(str(error)) from None
            else:
                return

    def _has_runtime(self) -> bool:
        with contextlib.suppress(StartError, OSError):
            check_runtime(self._settings.runtime)
            return os.access(self._settings.launcher, os.X_OK)
        return False

    async def _is_as_created(self, container_id: str) -> bool:
        found = await self._call(lambda: self._api.inspect_container(container_id))
        return containers.state_of(found["State"]["Status"]) is ContainerState.CREATED

    async def published_port(self, container_id: str, port: int) -> int | None:
        known = self.exits.ports(container_id)
        if known is not None:
            return known.get(port)
        found = await self._call(lambda: self._api.inspect_container(container_id))
        # The engine lists a port that an image only exposes too, with null.
        bound = (found["NetworkSettings"].get("Ports") or {}).get(f"{port}/tcp") or ()
        return next((int(one["HostPort"]) for one in bound), None)

    async def signal_stop(self, container_id: str) -> None:
        await self._signal(container_id, "SIGTERM")

    async def kill(self, container_id: str) -> None:
        await self._signal(container_id, "SIGKILL")

    async def wait(self, container_id: str) -> Exit:
        return await self.exits.wait(container_id)

    async def remove(self, task_id: str) -> None:
        found = await self._container_of(task_id)
        if found is not None and containers.is_own(found, self._install_id):
            removal = self._remove_container(found["Id"])
            # If the engine failed, a job that runs would go on without its network.
            has_ended = not found["State"]["Running"]
            await (together(self._opened.ended(task_id), removal) if has_ended else removal)
        # Also after a removal by hand, which the engine answers with "not found" here.
        await self._opened.removed(task_id)

    async def _container_of(self, task_id: str) -> dict[str, Any] | None:
        """Return the task's container; None: it was removed, perhaps by an earlier call whose
        answer was lost."""
        name = containers.name_of(task_id)
        with contextlib.suppress(NotFound):
            return await self._call(lambda: self._api.inspect_container(name))
        # `docker rename` by hand: what it holds is not free while it is there.
        filters = containers.filters(self._install_id, task_id)
        for one in await self._call(lambda: self._api.containers(all=True, filters=filters)):
            with contextlib.suppress(NotFound):
                return await self._call(partial(self._api.inspect_container, one["Id"]))
        return None

    async def _remove_container(self, container_id: str) -> None:
        self._never_started.discard(container_id)
        self.exits.forget(container_id)
        with contextlib.suppress(NotFound):
            # `v`: else the anonymous volumes of an image's VOLUME stay on the disk.
            await self._call(lambda: self._api.remove_container(container_id, v=True, force=True))

    async def list(self) -> tuple[Found, ...]:
        hints = self.exits.hints
        listed = await self._containers()
        running = (one for one in listed if one["State"] == "running")
        self.exits.listed({one["Id"]: containers.ports_of(one) for one in running}, hints)
        return tuple(map(containers.found, listed))

    async def _containers(self) -> tuple[dict[str, Any], ...]:
        filters = containers.filters(self._install_id)
        return tuple(await self._call(lambda: self._api.containers(all=True, filters=filters)))

    def _connect(self) -> Any:
        """Return a client of docker-py, made in a thread, because the constructor asks the engine
        for its version.

        The pool has room for every thread's connection, and those of events and a trial. urllib3
        fails when a pool is full and closed at the same moment, and docker-py closes pools of paths
        that it has not used for long.
        """
        return Client(
            base_url=self._dialect.url,
            version="auto",
            timeout=_CALL_SECONDS,
            max_pool_size=_THREADS + 2,
        )

    def _connect_to_pull(self) -> Any:
        return Client(
            # With "auto", docker-py would ask the engine for its version before each pull.
            base_url=self._dialect.url,
            version=self._api.api_version,
            timeout=_CALL_SECONDS,
        )

    def _request(self, spec: ContainerSpec, oci_runtime: str | None) -> dict[str, Any]:
        bridge = spec.network_mode is NetworkMode.BRIDGE
        node = request.NodeValues(
            api_version=self._api.api_version,
            cores=self._cores,
            runtime=request.runtime_path(self._settings.runtime),
            gid=self._settings.gid,
            proxy_variables=self._settings.proxy_variables,
            oci_runtime=oci_runtime,
            cgroup_parent=request.cgroup_parent(self._info),
        )
        network = "default" if bridge else "host"
        asked = request.container(spec, node, containers.name_of(spec.task_id), network)
        # A driver that was loaded later adds its runtime and CDI folders to a reloaded engine.
        info = self._api.info() if spec.gpus else self._info
        means = means_of(info, spec.gpu_delivery)
        if not self._dialect.gives_named_devices:
            means = msgspec.structs.replace(means, cdi=frozenset(), hook=False)
        devices = asked["host_config"].get("Devices") or ()
        handover = hand_over(spec.gpus, spec.gpu_units, spec.infiniband, means, devices)
        if handover.way is Way.HOOK and self._settings.oci_runtime == AUTO_RUNTIME:
            # crun keeps what the hook says to itself, such as that the image needs a newer driver:
            # only with these words it is the job's fault.
            asked["host_config"].pop("Runtime", None)
        asked["host_config"] |= handover.host_config
        asked["host_config"]["GroupAdd"] += [str(gid) for gid in handover.groups]
        asked["environment"] |= handover.environment
        asked["labels"] = containers.labels_of(spec, self._install_id)
        if bridge:
            self._opened.join(asked, spec)
        return asked

    def hint(self, container_id: str | None) -> None:
        """Handle an event's hint; None: the stream began again, and anything may have happened
        meanwhile."""
        if container_id is None:
            self._oci_runtime.again()
        self.exits.hint(container_id)

    async def _signal(self, container_id: str, name: str) -> None:
        # It ends by itself meanwhile: Docker says 409 of one that does not run, 404 when it is
        # gone.
        with contextlib.suppress(NotFound, Conflict):
            await self._call(lambda: self._api.kill(container_id, name))

    async def _call(self, act: Callable[[], T]) -> T:
        """Run one act of docker-py, with its errors translated."""
        with self._in_our_words():
            return await self._in_thread(act)

    @contextlib.contextmanager
    def _in_our_words(self) -> Iterator[None]:
        try:
            yield
        except docker.errors.NotFound as error:
            raise NotFound(_text(error)) from None
        except docker.errors.APIError as error:
            status = error.response.status_code if error.response is not None else 0
            if self._dialect.is_missing(_text(error)):
                raise NotFound(_text(error)) from None
            if status == 409 or self._dialect.is_conflict(_text(error)):
                raise Conflict(_text(error)) from None
            raise DockerRefused(_text(error), status) from None
        except _LOST as error:
            raise self._dialect.unreachable(error) from None
        except docker.errors.DockerException as error:
            raise EngineError(str(error)) from None

    async def _in_thread(self, act: Callable[[], T]) -> T:
        return await to_the_end(asyncio.get_running_loop().run_in_executor(self._threads, act))


def _text(error: docker.errors.APIError) -> str:
    return str(error.explanation or error)
