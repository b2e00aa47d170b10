"""Containers that the shim connects itself, on one real dockerd in a network namespace."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shim.engines.base import ContainerSpec, NetworkChoice
from shim.engines.docker.engine import DockerEngine
from shim.engines.docker.wired import WiredNetworks
from shim.settings import NetworkKind, SubnetRange
from shim.wires.rules import WIRES
from tests.support import images
from tests.support.daemons import DaemonFailed, run
from tests.support.docker_daemon import DockerDaemon
from tests.support.engine_contract import DEADLINE, EngineContract
from tests.support.engine_world import EngineWorld, bridged, settings_in
from tests.support.waiting import LONG, eventually, wait_until
from tests.support.wire_lab import OUTSIDE, WireNode

pytestmark = pytest.mark.e2e

_SERVE = "mkdir -p /w && echo {word} > /w/f && httpd -p 8080 -h /w; ready; wait_forever"
_GET = "printf 'GET /f HTTP/1.0\\r\\n\\r\\n'"
_ASK = _GET + " | nc -w {seconds} {address} 8080 | tail -n 1 | grep . || echo no"


@pytest.fixture(scope="module")
def node(numbers: Iterator[int]) -> Iterator[WireNode]:
    made = WireNode(f"fl-e2e-{os.getpid()}-{next(numbers)}")
    yield made
    made.delete()


@pytest.fixture(scope="module")
def outside(node: WireNode, testbed_folder: Path) -> Iterator[None]:
    """A server in the outside, which answers at every address of its own."""
    folder = testbed_folder / "outside"
    folder.mkdir()
    (folder / "f").write_text("outside\n")
    entered = ["nsenter", f"--net=/run/netns/{node.outside}"]
    server = subprocess.Popen([*entered, "busybox", "httpd", "-f", "-p", "8080", "-h", str(folder)])
    asks = _by_busybox(_ask(OUTSIDE))
    wait_until(lambda: "outside" in node.inside("sh", "-c", asks), what="the server")
    yield
    server.terminate()
    server.wait()


@pytest.fixture(scope="module")
def node_dockerd(testbed_folder: Path, node: WireNode) -> Iterator[DockerDaemon]:
    folder = testbed_folder / "wires-docker"
    folder.mkdir()
    daemon = DockerDaemon(folder, netns=node.name)
    daemon.start()
    daemon.import_image("busybox:latest", images.busybox_root(folder / "busybox"))
    yield daemon
    daemon.stop()


class WiredWorld(EngineWorld):
    def __init__(self, folder: Path) -> None:
        settings = msgspec.structs.replace(settings_in(folder), networks=NetworkKind.AGENT)
        super().__init__(folder, settings, DockerEngine)

    def choose(self, kind: NetworkKind) -> None:
        """For the next life; the first engine's settings are the world's."""
        self.settings = msgspec.structs.replace(self.settings, networks=kind)

    def use(self, engine: DockerEngine) -> None:
        self._engines.remove(engine)
        self._engines.insert(0, engine)

    async def again(self, install: str = "install-1") -> DockerEngine:
        """A crash also ends what the earlier one does by itself."""
        for engine in self._engines:
            for networks in engine._opened._both():
                if isinstance(networks, WiredNetworks):
                    await networks.stop_repairing()
        return await super().again(install)

    async def run(self, number: int, run_id: str, script: str, **fields: Any) -> Job:
        """Start a container; returns when its script has called `ready`, if it does."""
        taken = fields.pop("taken", ())
        address = await self.engine.ensure_network(run_id, taken)
        wanted = bridged(self, f"t{number}", run_id, script, address)
        wanted = msgspec.structs.replace(wanted, **fields)
        container_id = await self.engine.create(wanted)
        await self.engine.start(container_id)
        job = Job(self.engine, container_id, address or "", Path(wanted.job_folder), wanted)
        if "ready" in script:
            await eventually((job.folder / "ready").exists, timeout=DEADLINE)
        return job


class Job:
    def __init__(
        self,
        engine: DockerEngine,
        container_id: str,
        address: str,
        folder: Path,
        wanted: ContainerSpec,
    ) -> None:
        self.engine, self.container_id, self.address = engine, container_id, address
        self.folder, self.spec = folder, wanted

    async def output(self, name: str = "out") -> list[str]:
        """Return what the script has written, once it has ended."""
        async with asyncio.timeout(DEADLINE):
            await self.engine.wait(self.container_id)
        return (self.folder / name).read_text().split()


@asynccontextmanager
async def _world() -> AsyncIterator[WiredWorld]:
    folder = Path(tempfile.mkdtemp(prefix="fw-", dir="/tmp"))
    world = WiredWorld(folder)
    await world.again()
    try:
        yield world
    finally:
        await world.close()
        shutil.rmtree(folder)


@pytest.fixture
async def world(
    node_dockerd: DockerDaemon, outside: None, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[WiredWorld]:
    monkeypatch.setenv("DOCKER_HOST", node_dockerd.url)
    async with _world() as made:
        yield made
        node_dockerd.remove_containers()


class TestWiredDockerEngine(EngineContract):
    """Every promise of an engine holds for one whose containers are connected by the shim."""


def _ask(address: str) -> str:
    """Ask one that answers."""
    return _ASK.format(address=address, seconds=f"{LONG:g}")


def _try(address: str) -> str:
    """Ask one that may be silent: each silence lasts 2 s."""
    return _ASK.format(address=address, seconds="2")


def _script(*asking: str) -> str:
    lines = "\n".join(asking)
    return f"( until ip route | grep -q default; do sleep 0.02; done\n{lines} ) > out"


async def test_a_run_reaches_its_own_and_the_outside_and_no_other(
    world: WiredWorld, node: WireNode
) -> None:
    ours = await world.run(1, "ours", _SERVE.format(word="ours"))
    theirs = await world.run(2, "theirs", _SERVE.format(word="theirs"))
    asks = _script(_ask(ours.address), _try(theirs.address), _ask(OUTSIDE))
    asker = await world.run(3, "ours", asks, taken={ours.address})
    assert await asker.output() == ["ours", "no", "outside"]
    asks = _script(_try(ours.address), _ask(theirs.address), _ask(OUTSIDE))
    stranger = await world.run(4, "theirs", asks, taken={theirs.address})
    assert await stranger.output() == ["no", "theirs", "outside"]


async def test_wires_keep_clear_of_the_routes_of_the_engines_namespace(
    world: WiredWorld, node: WireNode
) -> None:
    """The shim's own namespace has no route to the first range."""
    assert "10.91.0.0/24" in node.inside("ip", "route")
    ranges = tuple(SubnetRange.parse(f"{base}:24") for base in ("10.91.0.0/24", "10.94.0.0/24"))
    world.settings = msgspec.structs.replace(world.settings, job_networks=ranges)
    world.use(await world.again("install-2"))
    address = await world.engine.ensure_network("run-1", ())
    assert str(address).startswith("10.94.0.")


async def test_an_engines_bridge_stays_closed_whatever_its_name(
    world: WiredWorld, node: WireNode, node_dockerd: DockerDaemon
) -> None:
    """Also with the default route, which leads to a container there."""
    named = ("-o", "com.docker.network.bridge.name=uplink0", "--subnet", "10.97.0.0/24")
    docker = node_dockerd.docker
    await asyncio.to_thread(docker, "network", "create", *named, "theirs")
    serve = ("httpd", "-f", "-p", "8080", "-h", "/bin")
    vpn = await asyncio.to_thread(
        lambda: docker("run", "-d", "--network", "theirs", "busybox:latest", *serve)
    )
    address = docker("inspect", "-f", "{{.NetworkSettings.Networks.theirs.IPAddress}}", vpn)
    route = ("ip", "route", "add", "default", "via", address, "metric", "1")
    node.inside(*route)
    try:
        world.use(await world.again())
        asks = _script(f"nc -w 2 {address} 8080 < /dev/null && echo yes || echo no")
        job = await world.run(1, "run", asks)
        assert await job.output() == ["no"]
    finally:
        node.inside(*("del" if one == "add" else one for one in route))
        await asyncio.to_thread(docker, "rm", "-f", vpn)
        await asyncio.to_thread(docker, "network", "rm", "theirs")


async def test_nobody_comes_in_from_outside(world: WiredWorld, node: WireNode) -> None:
    """The node itself does: so its sshd leads users to the job."""
    job = await world.run(1, "run", _SERVE.format(word="inside"))
    assert "inside" in node.inside("sh", "-c", _by_busybox(_ask(job.address)))
    route = ["ip", "-n", node.outside, "route", "replace", f"{job.address}/32", "via", "10.91.0.1"]
    run(route)
    asked = _by_busybox(_try(job.address))
    answer = run(["nsenter", f"--net=/run/netns/{node.outside}", "sh", "-c", asked])
    assert "inside" not in answer


async def test_a_forged_source_gets_nowhere(world: WiredWorld) -> None:
    """Even with the capability to change addresses, a job cannot speak for another run."""
    theirs = await world.run(1, "theirs", _SERVE.format(word="theirs"))
    other = await world.run(2, "ours", _SERVE.format(word="ours"))
    script = (
        "until ip route | grep -q default; do sleep 0.02; done\n"
        f"( {_ask(other.address)}\n"
        f"ip address add {theirs.address}/32 dev eth0\n"
        "ip route change default via 169.254.1.1 dev eth0 onlink "
        f"src {theirs.address}\n"
        f"{_try(other.address)}\n"
        f"{_try(theirs.address)}\n"
        f"{_try(OUTSIDE)} ) > out"
    )
    options = msgspec.structs.replace(theirs.spec.options, cap_add=("NET_ADMIN",))
    forger = await world.run(3, "ours", script, taken={other.address}, options=options)
    assert await forger.output() == ["ours", "no", "no", "no"]


async def test_a_container_knows_its_name_and_the_mtu_of_the_uplink(world: WiredWorld) -> None:
    script = (
        "until ip route | grep -q default; do sleep 0.02; done\n"
        "( hostname; hostname -i; cat /sys/class/net/eth0/mtu; ip -6 address show dev eth0 | wc -l"
        " ) > out"
    )
    job = await world.run(1, "run", script)
    assert await job.output() == ["fair-wind", job.address, "1400", "0"]


async def test_the_end_of_a_container_leaves_nothing(world: WiredWorld, node: WireNode) -> None:
    job = await world.run(1, "run", _SERVE.format(word="mine"))
    assert len(node.wires()) == 1
    await world.engine.remove("t1")
    await world.engine.remove_network("run")
    assert node.wires() == set()
    assert job.address not in node.inside("ip", "route")
    assert "jump" not in node.inside("nft", "list", "map", "inet", _table(node), "runs")


async def test_another_life_of_the_shim_keeps_the_wires(world: WiredWorld, node: WireNode) -> None:
    job = await world.run(1, "run", _SERVE.format(word="mine"))
    before = _indexes(node)
    other = await world.again()
    assert _indexes(node) == before
    await other.start(job.container_id)
    assert _indexes(node) == before


async def test_a_wire_that_a_crash_cut_short_is_completed(
    world: WiredWorld, node: WireNode
) -> None:
    job = await world.run(1, "run", _SERVE.format(word="mine"))
    (name,) = node.wires()
    node.inside("ip", "route", "delete", f"{job.address}/32", "dev", name)
    node.inside("ip", "link", "delete", name)
    await world.again()
    assert "mine" in node.inside("sh", "-c", _by_busybox(_ask(job.address)))


def _by_busybox(asking: str) -> str:
    return asking.replace(" nc ", " busybox nc ", 1)


async def test_a_wire_of_no_container_is_removed(world: WiredWorld, node: WireNode) -> None:
    job = await world.run(1, "run", _SERVE.format(word="mine"))
    (name,) = node.wires()
    stray = f"{name[:-8]}00000000"
    node.inside("ip", "link", "add", stray, "type", "veth", "peer", "name", "stray")
    await world.again()
    assert node.wires() == {name}
    assert job.address in node.inside("ip", "route")


async def test_runs_stay_apart_when_the_firewall_is_flushed_and_it_comes_back(
    world: WiredWorld, node: WireNode
) -> None:
    """With Docker's policy of dropping what nobody accepts."""
    node.inside("iptables", "-P", "FORWARD", "DROP")
    ours = await world.run(1, "ours", _SERVE.format(word="ours"))
    theirs = await world.run(2, "theirs", _SERVE.format(word="theirs"))
    asking = f"{_try(ours.address)}\n{_try(theirs.address)}"
    script = f"ready; until [ -e flushed ]; do sleep 0.02; done; ( {asking} ) > out\n"
    script += f"until {_try(ours.address)} | grep -q ours; do :; done"
    asker = await world.run(3, "ours", script, taken={ours.address})
    node.inside("nft", "delete", "table", "inet", _table(node))
    (asker.folder / "flushed").touch()
    # It may be back already, for the kernel tells of it.
    assert (await asker.output())[1:] == ["no"]


async def test_a_run_keeps_its_kind_when_the_choice_changes(
    world: WiredWorld, node: WireNode, node_dockerd: DockerDaemon
) -> None:
    """Its jobs go on, and still reach each other and no other run."""
    world.choose(NetworkKind.DOCKER)
    world.use(await world.again())
    old = await world.run(1, "old", _SERVE.format(word="old"))
    world.choose(NetworkKind.AUTO)
    engine = await world.again()
    world.use(engine)
    assert engine.network_choice == NetworkChoice(kind=NetworkKind.AGENT)
    assert not engine.routes_to("old")
    new = await world.run(2, "new", _SERVE.format(word="new"))
    asks = _script(_ask(old.address), _try(new.address))
    again = await world.run(3, "old", asks, taken={old.address})
    asks = _script(_try(old.address), _ask(new.address))
    fresh = await world.run(4, "new", asks, taken={new.address})
    assert await again.output() == ["old", "no"]
    assert await fresh.output() == ["no", "new"]
    for number in (1, 3):
        await engine.remove(f"t{number}")
    await engine.remove_network("old")
    left = "label=fairlead.install"
    await eventually(lambda: not node_dockerd.docker("network", "ls", "-q", "--filter", left))
    last = await world.run(5, "old", _script(_try(new.address), _ask(OUTSIDE)))
    assert engine.routes_to("old")
    assert await last.output() == ["no", "outside"]


async def test_a_wire_outlives_its_engine(
    world: WiredWorld, node: WireNode, node_dockerd: DockerDaemon
) -> None:
    """The engine writes its own rules again, which must not close ours."""
    job = await world.run(1, "run", _SERVE.format(word="mine"))
    before = _indexes(node)
    await asyncio.to_thread(node_dockerd.kill9)
    await asyncio.to_thread(node_dockerd.start)
    await world.engine.ready()
    assert _indexes(node) == before
    asks = _script(_ask(job.address), _ask(OUTSIDE))
    asker = await world.run(2, "run", asks, taken={job.address})
    assert await asker.output() == ["mine", "outside"]


async def test_a_container_that_is_restarted_by_hand_is_connected_again(
    world: WiredWorld, node: WireNode, node_dockerd: DockerDaemon
) -> None:
    """Its task has ended with its first process; nobody is left without a network unnoticed."""
    job = await world.run(1, "run", "ready; wait_forever")
    (wire,) = node.wires()
    await asyncio.to_thread(node_dockerd.docker, "restart", "-t", "0", job.container_id)
    await world.engine.start(job.container_id)
    assert node.wires() == {wire}
    assert await asyncio.to_thread(node.reaches, job.address)


async def test_a_container_that_is_renamed_by_hand_goes_with_its_task(
    world: WiredWorld, node: WireNode, node_dockerd: DockerDaemon
) -> None:
    job = await world.run(1, "run", "ready; wait_forever")
    await asyncio.to_thread(node_dockerd.docker, "rename", job.container_id, "by-hand")
    await world.engine.remove("t1")
    assert await world.engine.list() == ()
    assert node.wires() == set()


def _table(node: WireNode) -> str:
    (table,) = (
        line.split()[2]
        for line in node.inside("nft", "list", "tables").splitlines()
        if "fairlead_" in line and not line.endswith("_guard")
    )
    return table


def _indexes(node: WireNode) -> dict[str, int]:
    links = json.loads(node.inside("ip", "-j", "link", "show", "type", "veth"))
    return {one["ifname"]: one["ifindex"] for one in links}


def test_the_bed_can_tell_that_a_wire_is_missing(node: WireNode) -> None:
    with pytest.raises(DaemonFailed):
        node.inside("ip", "link", "show", f"{WIRES}none")
