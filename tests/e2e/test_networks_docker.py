"""The networks of many runs on one real dockerd, in a network namespace of its own."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shim.engines.base import ContainerSpec, NodeFault, NodeFull
from shim.engines.docker.engine import DockerEngine
from shim.settings import SubnetRange
from tests.support import images
from tests.support.daemons import DaemonFailed
from tests.support.docker_daemon import DockerDaemon
from tests.support.engine_contract import DEADLINE
from tests.support.engine_world import bridged, settings_in
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

MANY = 60


@pytest.fixture(scope="module")
def node_dockerd(testbed_folder: Path, namespace: str) -> Iterator[DockerDaemon]:
    """With the address pools that Docker has by itself."""
    folder = testbed_folder / "networks-docker"
    folder.mkdir()
    own_pools: dict[str, Any] = {"default-address-pools": []}
    daemon = DockerDaemon(folder, netns=namespace, **own_pools)
    daemon.start()
    daemon.import_image("busybox:latest", images.busybox_root(folder / "busybox"))
    yield daemon
    daemon.stop()


class NetworkWorld:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self._settings = settings_in(folder)

    @asynccontextmanager
    async def shim(self, *ranges: str) -> AsyncIterator[DockerEngine]:
        among = tuple(map(SubnetRange.parse, ranges))
        engine = DockerEngine(
            msgspec.structs.replace(self._settings, job_networks=among), "install-1"
        )
        self.engine = engine
        await engine.open()
        try:
            yield engine
        finally:
            await engine.close()

    async def again(self) -> DockerEngine:
        return self.engine

    def bridged(self, number: int, run_id: str, script: str, address: str | None) -> ContainerSpec:
        return bridged(self, f"t{number}", run_id, script, address)


@pytest.fixture
def world(node_dockerd: DockerDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[NetworkWorld]:
    monkeypatch.setenv("DOCKER_HOST", node_dockerd.url)
    folder = Path(tempfile.mkdtemp(prefix="fe-", dir="/tmp"))
    yield NetworkWorld(folder)
    node_dockerd.remove_containers()
    shutil.rmtree(folder)


async def _until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition)


async def _exit(engine: DockerEngine, container_id: str) -> int | None:
    async with asyncio.timeout(DEADLINE):
        return (await engine.wait(container_id)).exit_code


async def test_sixty_runs_at_once_have_a_network_each(
    world: NetworkWorld, node_dockerd: DockerDaemon
) -> None:
    async with world.shim() as engine:
        assert (engine.networks() or 0) > 900
        runs = [f"run-{number}" for number in range(MANY)]
        addresses = await asyncio.gather(*map(engine.ensure_network, runs))
        assert len(set(addresses)) == MANY
        there = node_dockerd.docker("network", "ls", "--filter", "name=fairlead-", "-q")
        assert len(there.split()) >= MANY
        last = world.bridged(1, runs[-1], "hostname -i > address", addresses[-1])
        container_id = await engine.create(last)
        await engine.start(container_id)
        assert await _exit(engine, container_id) == 0
        assert (Path(last.job_folder) / "address").read_text().strip() == addresses[-1]


def test_docker_itself_has_not_as_many(node_dockerd: DockerDaemon) -> None:
    """The reason for subnets of our own."""
    names = [f"pool-{number}" for number in range(MANY)]
    with pytest.raises(DaemonFailed, match="address pool"):
        _make_all(node_dockerd, names)
    made = node_dockerd.docker("network", "ls", "-q", "--filter", "name=pool-").split()
    node_dockerd.docker("network", "rm", *made)
    assert len(made) < MANY / 1.5


def _make_all(dockerd: DockerDaemon, names: list[str]) -> None:
    for name in names:
        dockerd.docker("network", "create", name)


async def test_a_full_range_is_told_without_a_fault_and_serves_the_next(
    world: NetworkWorld, node_dockerd: DockerDaemon
) -> None:
    async with world.shim("10.80.0.0/21:22") as engine:
        await asyncio.gather(*map(engine.ensure_network, ("one", "two")))
        with pytest.raises(NodeFull, match="all 2 networks for runs on this node are in use"):
            await engine.ensure_network("three")
        waiting = asyncio.create_task(engine.ensure_network("three"))
        await engine.remove_network("one")
        address = await waiting
        assert (address or "").startswith("10.80.")


async def test_networks_of_others_are_left_alone(
    world: NetworkWorld, node_dockerd: DockerDaemon
) -> None:
    node_dockerd.docker("network", "create", "--subnet", "10.80.4.0/24", "compose")
    try:
        async with world.shim("10.80.0.0/21:22") as engine:
            assert engine.networks() == 1
            assert await engine.ensure_network("run") == "10.80.0.2"
    finally:
        node_dockerd.docker("network", "rm", "compose")


async def test_the_tasks_of_a_run_reach_each_other_at_their_addresses(world: NetworkWorld) -> None:
    async with world.shim() as engine:
        first = await engine.ensure_network("run")
        second = await engine.ensure_network("run", {first or ""})
        # From a file: a listener whose text is still on its way ends at the caller's end of file.
        listen = "echo hello > note; nc -l -p 29500 < note"
        serve = world.bridged(1, "run", listen, first)
        serving = await engine.create(serve)
        await engine.start(serving)
        ask = f"until nc {first} 29500 </dev/null > answer; do sleep 0.1; done"
        asking = world.bridged(2, "run", ask, second)
        asker = await engine.create(asking)
        await engine.start(asker)
        assert await _exit(engine, asker) == 0
        assert (Path(asking.job_folder) / "answer").read_text() == "hello\n"


async def test_an_address_that_a_stranger_has_is_no_fault_of_the_node(
    world: NetworkWorld, node_dockerd: DockerDaemon
) -> None:
    """The next task of the run gets another one."""
    async with world.shim() as engine:
        address = await engine.ensure_network("run") or ""
        made = await engine.create(world.bridged(1, "run", "exit 0", address))
        network = node_dockerd.docker("inspect", "-f", "{{.HostConfig.NetworkMode}}", "fairlead-t1")
        node_dockerd.docker(
            *("run", "-d", "--name", "stranger", "--network", network, "--ip", address),
            *("busybox", "sleep", "600"),
        )
        with pytest.raises(NodeFull, match="its address in the run's network is in use"):
            await engine.start(made)
        assert await engine.ensure_network("run") != address
        with pytest.raises(NodeFull) as full:
            await engine.start(made)
        assert not isinstance(full.value, NodeFault)
