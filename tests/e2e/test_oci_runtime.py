"""crun starts containers where the engine knows it and it works: the engines' contract, and the
choice."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from fairlead.wire.shim import ContainerOptions
from shim.engines.base import NodeFault
from shim.engines.docker.engine import DockerEngine
from shim.errors import EngineError
from shim.settings import AUTO_RUNTIME, Settings
from tests.support import images
from tests.support.docker_daemon import ONE_CGROUP_VERSION, DockerDaemon
from tests.support.docker_packages import crun
from tests.support.engine_contract import EngineContract, spec
from tests.support.engine_world import EngineWorld, settings_in
from tests.support.waiting import eventually

pytestmark = pytest.mark.e2e
_REFUSES = "#!/bin/sh\necho 'drop all controllers from cgroupv2' >&2\nexit 1\n"
Start = Callable[[str], DockerDaemon]


@pytest.fixture(scope="module")
def started() -> Iterator[list[DockerDaemon]]:
    daemons: list[DockerDaemon] = []
    yield daemons
    for daemon in daemons:
        daemon.stop()


@pytest.fixture(autouse=True)
def emptied(started: list[DockerDaemon]) -> Iterator[None]:
    yield
    for daemon in started:
        daemon.remove_containers()


@pytest.fixture(scope="module")
def start_with(
    started: list[DockerDaemon], tmp_path_factory: pytest.TempPathFactory, testbed_folder: Path
) -> Start:
    """Starts an engine that has busybox:latest and knows this program as crun."""

    def start(program: str) -> DockerDaemon:
        folder = testbed_folder / f"crun-{len(started)}"
        folder.mkdir()
        runtimes = {"crun": {"path": program}}
        daemon = DockerDaemon(folder, within=ONE_CGROUP_VERSION, runtimes=runtimes)
        started.append(daemon)
        daemon.start()
        root = images.busybox_root(tmp_path_factory.mktemp("busybox") / "root")
        daemon.import_image("busybox:latest", root)
        return daemon

    return start


@pytest.fixture(scope="module")
def with_crun(start_with: Start) -> DockerDaemon:
    return start_with(str(crun()))


@pytest.fixture(scope="module")
def with_one_that_refuses(
    start_with: Start, tmp_path_factory: pytest.TempPathFactory
) -> DockerDaemon:
    program = tmp_path_factory.mktemp("oci") / "crun"
    program.write_text(_REFUSES)
    program.chmod(0o755)
    return start_with(str(program))


@asynccontextmanager
async def world_on(
    daemon: DockerDaemon, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[EngineWorld]:
    """Give the world of an engine that talks to this daemon."""
    monkeypatch.setenv("DOCKER_HOST", daemon.url)
    world = EngineWorld(settings.data.parent, settings, DockerEngine)
    await world.again()
    try:
        yield world
    finally:
        await world.close()


@pytest.fixture
async def world(
    with_crun: DockerDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[EngineWorld]:
    """Its containers are crun's."""
    settings = msgspec.structs.replace(settings_in(tmp_path), oci_runtime="crun")
    async with world_on(with_crun, settings, monkeypatch) as world:
        yield world


class TestDockerEngineWithCrun(EngineContract):
    """It takes the world above."""


@asynccontextmanager
async def choosing(
    daemon: DockerDaemon, folder: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[EngineWorld, Callable[[str], Awaitable[tuple[str, str]]]]]:
    """Give the world of an engine that chooses, and what makes a container of a task: it returns
    the container and its OCI runtime."""
    settings = msgspec.structs.replace(
        settings_in(folder), oci_runtime=AUTO_RUNTIME, runtime=runtime
    )
    async with world_on(daemon, settings, monkeypatch) as world:

        async def made(task_id: str) -> tuple[str, str]:
            container = await world.engine.create(spec(world, task_id, "exit 0"))
            asked = ("inspect", "--format", "{{.HostConfig.Runtime}}", container)
            return container, await asyncio.to_thread(daemon.docker, *asked)

        yield world, made


async def _chosen_on(
    daemon: DockerDaemon, folder: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Return the OCI runtime of a container of a shim that chooses; its trial leaves nothing."""
    async with choosing(daemon, folder, runtime, monkeypatch) as (_, made):
        _, chosen = await made("t1")
    trials = ("ps", "-aq", "--filter", "name=fairlead-trial")
    assert await asyncio.to_thread(daemon.docker, *trials) == ""
    assert await asyncio.to_thread(daemon.docker, "images", "-q", "fairlead-trial-install-1") == ""
    return chosen


async def test_crun_starts_containers_where_it_works(
    with_crun: DockerDaemon, tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await _chosen_on(with_crun, tmp_path, runtime, monkeypatch) == "crun"


async def test_runc_starts_containers_where_crun_refuses_the_node(
    with_one_that_refuses: DockerDaemon,
    tmp_path: Path,
    runtime: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await _chosen_on(with_one_that_refuses, tmp_path, runtime, monkeypatch) == "runc"


async def test_what_the_kernel_refuses_a_job_is_no_fault_of_the_node(world: EngineWorld) -> None:
    options = ContainerOptions(pids_limit=10**12)
    asked = msgspec.structs.replace(spec(world, "t1", "exit 0"), options=options)
    made = await world.engine.create(asked)
    with pytest.raises(EngineError, match="Invalid argument") as caught:
        await world.engine.start(made)
    assert not isinstance(caught.value, NodeFault)


async def test_a_runtime_that_is_gone_is_a_fault_of_the_node(world: EngineWorld) -> None:
    (world.settings.runtime / "bin/fairlead-entrypoint").unlink()
    made = await world.engine.create(spec(world, "t1", "exit 0"))
    with pytest.raises(NodeFault, match="fairlead-entrypoint"):
        await world.engine.start(made)


async def test_runc_starts_containers_once_crun_is_gone(
    start_with: Start, tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Path(shutil.copy(crun(), tmp_path / "crun"))
    daemon = await asyncio.to_thread(start_with, str(program))
    async with choosing(daemon, tmp_path, runtime, monkeypatch) as (world, made):
        first, oci_runtime = await made("t1")
        assert oci_runtime == "crun"
        await asyncio.to_thread(program.unlink)
        with pytest.raises(NodeFault, match="OCI runtime"):
            await world.engine.start(first)
        second, oci_runtime = await made("t2")
        assert oci_runtime == "runc"
        await world.engine.start(second)


async def test_an_engine_that_restarts_is_tried_again(
    start_with: Start, tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "crun"
    await asyncio.to_thread(program.write_text, _REFUSES)
    await asyncio.to_thread(program.chmod, 0o755)
    daemon = await asyncio.to_thread(start_with, str(program))
    async with choosing(daemon, tmp_path, runtime, monkeypatch) as (world, made):
        assert (await made("t1"))[1] == "runc"
        await asyncio.to_thread(shutil.copy, crun(), program)
        await asyncio.to_thread(daemon.kill9)
        await asyncio.to_thread(daemon.start)
        await world.engine.ready()
        # The stream of events begins again within seconds.
        numbers = itertools.count(2)

        async def is_crun() -> bool:
            return (await made(f"t{next(numbers)}"))[1] == "crun"

        tried: bool = await eventually(is_crun)
        assert tried
