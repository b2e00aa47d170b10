"""Tasks as Docker containers.

docker-py blocks, so it lives in its own threads. Exits are not waited for one thread each: one
follower reads the engine's events, and an event is only a hint to inspect. When the stream of
events ends, the engine is taken for lost; once it answers again, everything that is waited for is
inspected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import docker
import docker.errors
import requests.exceptions
import urllib3.exceptions

from common.engine_abilities import EngineAbility
from shim.engines.base import (
    ContainerSpec,
    ContainerState,
    EngineUnavailable,
    Exit,
    Found,
    ImageInfo,
    NodeFault,
    NodeFull,
    PortsTaken,
    Storage,
)
from shim.engines.docker import events, faults, request
from shim.engines.docker.api import Conflict, DockerRefused, NotFound, ensure_volume, unreachable
from shim.engines.docker.events import EventFollower
from shim.engines.docker.handover import hand_over, means_of
from shim.engines.docker.images import DockerImages
from shim.engines.docker.networks import RunNetworks
from shim.engines.docker.subnets import Subnets, ranges_of
from shim.errors import EngineError
from shim.schemas import EngineKind, NetworkMode, PullProgress, RegistryAuth
from shim.settings import Settings

log = logging.getLogger(__name__)
T = TypeVar("T")
_Ports = dict[int, int]
"""Port of the container → port of the node."""
_INSTALL = "fairlead.install"
_TASK = "fairlead.task"
_RUN = "fairlead.run"
_ALLOCATION = "fairlead.allocation"
_NETWORK = "fairlead.network"
_GPUS = "fairlead.gpus"
_RECORD = "fairlead.record"
_CALL_SECONDS = 60
_START_TRIES = 5
_THREADS = 16
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 5.0
_LOST = (
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    requests.exceptions.ChunkedEncodingError,
    urllib3.exceptions.HTTPError,
)


class DockerEngine:
    kind = EngineKind.DOCKER
    isolation = True
    has_networks = True
    abilities = frozenset(EngineAbility)

    def __init__(self, settings: Settings, install_id: str, api: Any = None) -> None:
        """`api`: a client of the engine to use instead of one that `open` connects."""
        self._settings = settings
        self._install_id = install_id
        self._url = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="shim-docker")
        self._api = api
        self._cores = 0.0
        self._info: dict[str, Any] = {}
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._stopped: set[str] = set()
        """Containers with a waiter that got a signal to end."""
        self._seen: set[str] = set()
        """Containers with a waiter whose end was reported as it happened."""
        self._hints = 0
        self._running: dict[str, _Ports] = {}
        """Containers that ran at the last listing and had no event since. With many containers, a
        new life of the shim need not ask for each."""
        self._never_started: set[str] = set()
        """Containers that were made here and not started yet."""
        self._follower: EventFollower | None = None
        self._images = DockerImages(self._call, self._in_our_words)
        self._networks = RunNetworks(self._call, f"{_INSTALL}={install_id}")

    def cgroups(self, container_id: str) -> tuple[str, ...]:
        """Return the places of both of Docker's cgroup drivers, and ours for containers in the
        node's network."""
        scope = f"docker-{container_id}.scope"
        in_network = (f"docker/{container_id}", f"system.slice/{scope}")
        return (*in_network, f"fairlead/{container_id}", f"fairlead.slice/{scope}")

    async def open(self) -> None:
        """Connect. Raises EngineUnavailable when no engine answers at DOCKER_HOST."""
        try:
            self._api = await self._in_thread(self._connect)
        except docker.errors.DockerException as error:
            raise unreachable(self._url, error) from None
        info = await self._call(lambda: self._api.info())
        self._info = info
        self._cores = float(info.get("NCPU", 0))
        self._images.open(self._api, str(info.get("DockerRootDir", "")), self._connect_to_pull)
        self._follower = EventFollower(
            lambda: self._api.events(
                decode=True,
                filters={
                    "type": "container",
                    "event": ["die", "destroy", "kill"],
                    "label": f"{_INSTALL}={self._install_id}",
                },
            ),
            self.hint,
            self.note_stop,
            _LOST,
        )
        await self._follower.open()
        among = Subnets(ranges_of(self._settings.job_networks, info))
        await self._networks.open(self._api, await self._networks_in_use(), among)

    async def close(self) -> None:
        await self._networks.close()
        if self._follower is not None:
            await self._follower.close()
        if self._api is not None:
            await self._in_thread(self._api.close)
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
                pause = min(pause * 2, _LONGEST_PAUSE)

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

    async def ask_registry(
        self, reference: str, digest: str | None, auth: RegistryAuth | None
    ) -> None:
        await self._images.ask(reference, digest, auth)

    async def remove_image(self, reference: str) -> bool:
        return await self._images.remove(reference)

    async def storage(self) -> Storage | None:
        return await self._images.storage()

    async def ensure_volume(self, name: str) -> str:
        return await ensure_volume(self._call, self._api, name)

    def networks(self) -> int | None:
        return self._networks.capacity

    async def ensure_network(
        self, run_id: str, taken: Collection[str] = (), wanted: str | None = None
    ) -> str | None:
        return await self._networks.ensure(run_id, taken, wanted)

    async def remove_network(self, run_id: str) -> None:
        await self._networks.remove(run_id)

    async def create(self, spec: ContainerSpec) -> str:
        name = _container(spec.task_id)
        try:
            made = await self._call(lambda: self._api.create_container(**self._request(spec)))
        except Conflict as conflict:
            found = await self._call(lambda: self._api.inspect_container(name))
            labels = found["Config"].get("Labels") or {}
            if labels.get(_INSTALL) != self._install_id or labels.get(_TASK) != spec.task_id:
                raise NodeFault(
                    f"a container named {name} exists that this shim did not make"
                ) from conflict
            return str(found["Id"])
        except EngineError as error:
            raise faults.of_create(error) from None
        container_id = str(made["Id"])
        self._never_started.add(container_id)
        return container_id

    async def start(self, container_id: str) -> None:
        """Start a container that was not started before.

        The engine itself would run an ended container again, and the answer to an earlier start may
        have been lost.
        """
        if container_id in self._never_started or await self._is_as_created(container_id):
            self._never_started.discard(container_id)
            await self._start_created(container_id)

    async def _start_created(self, container_id: str) -> None:
        """Start a created container. The engine tries a few ports in a row and gives up when they
        are all taken; then it is asked again."""
        for left in reversed(range(_START_TRIES)):
            try:
                await self._call(lambda: self._api.start(container_id))
            except EngineUnavailable:
                raise
            except EngineError as error:
                if faults.is_of_its_address(error):
                    raise NodeFull(f"its address in the run's network is in use: {error}") from None
                if "address already in use" not in str(error):
                    self._networks.distrust(str(error))
                    raise faults.of_start(error) from None
                if not left:
                    raise PortsTaken(str(error)) from None
            else:
                return

    async def _is_as_created(self, container_id: str) -> bool:
        found = await self._call(lambda: self._api.inspect_container(container_id))
        return _state(found["State"]["Status"]) is ContainerState.CREATED

    async def published_port(self, container_id: str, port: int) -> int | None:
        listed = self._running.get(container_id)
        if listed is not None:
            return listed.get(port)
        found = await self._call(lambda: self._api.inspect_container(container_id))
        bound = (found["NetworkSettings"].get("Ports") or {}).get(f"{port}/tcp") or ()
        return next((int(one["HostPort"]) for one in bound), None)

    async def signal_stop(self, container_id: str) -> None:
        await self._signal(container_id, "SIGTERM")

    async def kill(self, container_id: str) -> None:
        await self._signal(container_id, "SIGKILL")

    async def wait(self, container_id: str) -> Exit:
        hint = asyncio.Event()
        self._waiting.setdefault(container_id, set()).add(hint)
        ended: Exit | None = None
        try:
            while ended is None:
                hint.clear()
                ended = await self._exit_of(container_id)
                if ended is None:
                    await hint.wait()
            return ended
        finally:
            self._waiting[container_id].discard(hint)
            if not self._waiting[container_id]:
                del self._waiting[container_id]
                if ended is not None:
                    self._forget(container_id)

    def _forget(self, container_id: str) -> None:
        """Forget the container. What was heard is kept until it was reported: the engine may fall
        silent in between."""
        self._stopped.discard(container_id)
        self._seen.discard(container_id)

    async def remove(self, task_id: str) -> None:
        name = _container(task_id)
        try:
            found = await self._call(lambda: self._api.inspect_container(name))
        except NotFound:
            return
        if (found["Config"].get("Labels") or {}).get(_INSTALL) != self._install_id:
            return
        container_id = found["Id"]
        self._never_started.discard(container_id)
        self._forget(container_id)
        with contextlib.suppress(NotFound):
            await self._call(lambda: self._api.remove_container(container_id, v=True, force=True))

    async def list(self) -> tuple[Found, ...]:
        hints = self._hints
        containers = await self._containers()
        if hints == self._hints:
            self._running = {
                one["Id"]: _ports_of(one) for one in containers if one["State"] == "running"
            }
        return tuple(
            Found(
                container_id=one["Id"],
                task_id=one["Labels"].get(_TASK, one["Id"]),
                state=_state(one["State"]),
                record=one["Labels"].get(_RECORD),
                run_id=one["Labels"].get(_RUN, ""),
                allocation_id=one["Labels"].get(_ALLOCATION, ""),
                gpus=tuple(filter(None, one["Labels"].get(_GPUS, "").split(","))),
            )
            for one in containers
        )

    async def _networks_in_use(self) -> set[tuple[str, str]]:
        labels = [one["Labels"] for one in await self._containers()]
        return {(one[_RUN], one[_NETWORK]) for one in labels if one.get(_NETWORK)}

    async def _containers(self) -> tuple[dict[str, Any], ...]:
        filters = {"label": f"{_INSTALL}={self._install_id}"}
        return tuple(await self._call(lambda: self._api.containers(all=True, filters=filters)))

    def _connect(self) -> Any:
        """Return a client of docker-py, made in a thread, because the constructor asks the engine
        for its version.

        The pool has room for every thread's connection. urllib3 fails when a pool is full and
        closed at the same moment, and docker-py closes pools of paths that it has not used for
        long.
        """
        return docker.APIClient(
            base_url=self._url, version="auto", timeout=_CALL_SECONDS, max_pool_size=_THREADS + 1
        )

    def _connect_to_pull(self) -> Any:
        return docker.APIClient(
            base_url=self._url, version=self._api._version, timeout=_CALL_SECONDS
        )

    def _request(self, spec: ContainerSpec) -> dict[str, Any]:
        bridge = spec.network_mode is NetworkMode.BRIDGE
        network = self._networks.name_of(spec.run_id) if bridge else "host"
        node = request.NodeValues(
            api_version=self._api._version,
            cores=self._cores,
            runtime=request.runtime_path(self._settings.runtime),
            gid=self._settings.gid,
            proxy_variables=self._settings.proxy_variables,
            cgroup_parent=request.cgroup_parent(self._info),
        )
        asked = request.container(spec, node, _container(spec.task_id), network)
        if bridge and spec.address is not None:
            asked["networking_config"] = request.at_address(network, spec.address)
        if spec.publish is not None:
            asked["ports"] = [spec.publish]
            on_loopback = {"HostIp": "127.0.0.1", "HostPort": ""}
            asked["host_config"]["PortBindings"] = {f"{spec.publish}/tcp": [on_loopback]}
        info = self._api.info() if spec.gpus else self._info
        means = means_of(info, spec.gpu_delivery)
        handover = hand_over(spec.gpus, spec.gpu_units, spec.infiniband, means)
        asked["host_config"] |= handover.host_config
        asked["environment"] |= handover.environment
        asked["labels"] = {
            _INSTALL: self._install_id,
            _TASK: spec.task_id,
            _RUN: spec.run_id,
            _ALLOCATION: spec.allocation_id,
            _NETWORK: network if bridge else "",
            _GPUS: ",".join(spec.gpus),
            _RECORD: spec.record,
        }
        return asked

    async def _exit_of(self, container_id: str) -> Exit | None:
        if container_id in self._running:
            return None
        try:
            found = await self._call(lambda: self._api.inspect_container(container_id))
        except NotFound:
            return Exit(exit_code=None, gone=True)
        state = found["State"]
        if _state(state["Status"]) is not ContainerState.EXITED:
            return None
        stopped, unseen = container_id in self._stopped, False
        if not stopped and container_id not in self._seen:
            past = await events.past_of(self._call, self._api, container_id)
            stopped, unseen = past.stopped, past.unseen
        return Exit(
            exit_code=int(state["ExitCode"]),
            oom_killed=bool(state.get("OOMKilled")),
            stopped=stopped,
            unseen=unseen,
        )

    def waits_for(self, container_id: str) -> bool:
        """Return whether a caller waits for the container's end."""
        return container_id in self._waiting

    def hint(self, container_id: str | None) -> None:
        """Handle an event's hint; None: the stream began again, and anything may have happened
        meanwhile."""
        self._hints += 1
        if container_id is None:
            self._running.clear()
        else:
            self._running.pop(container_id, None)
            if container_id in self._waiting:
                self._seen.add(container_id)
        keys = list(self._waiting) if container_id is None else [container_id]
        for key in keys:
            for event in self._waiting.get(key, ()):
                event.set()

    def note_stop(self, container_id: str) -> None:
        if container_id in self._waiting:
            self._stopped.add(container_id)

    async def _signal(self, container_id: str, name: str) -> None:
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
            if status == 409:
                raise Conflict(_text(error)) from None
            raise DockerRefused(_text(error), status) from None
        except _LOST as error:
            raise unreachable(self._url, error) from None
        except docker.errors.DockerException as error:
            raise EngineError(str(error)) from None

    async def _in_thread(self, act: Callable[[], T]) -> T:
        """Run the act in a thread. A thread cannot be cancelled, so its end is awaited and no side
        effect comes late."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, act)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            if not future.cancelled():
                future.exception()
            raise


def _ports_of(listed: dict[str, Any]) -> _Ports:
    ports = listed.get("Ports") or ()
    return {one["PrivatePort"]: one["PublicPort"] for one in ports if "PublicPort" in one}


def _container(task_id: str) -> str:
    return f"fairlead-{task_id}"


def _text(error: docker.errors.APIError) -> str:
    return str(error.explanation or error)


def _state(text: str) -> ContainerState:
    if text == "created":
        return ContainerState.CREATED
    ended = text in ("exited", "dead", "removing")
    return ContainerState.EXITED if ended else ContainerState.RUNNING
