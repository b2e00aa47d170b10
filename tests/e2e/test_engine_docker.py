"""The Docker engine against a real dockerd: the contract of all engines, and its own."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import docker
import msgspec
import pytest

from fairlead.wire.node import GpuInfo
from fairlead.wire.shim import ContainerOptions, NetworkMode, Ulimit, VolumeKind
from shim.engines.base import (
    ContainerSpec,
    Engine,
    EngineUnavailable,
    ImageError,
    MountSpec,
    NodeFault,
)
from shim.engines.docker import oci_runtime
from shim.engines.docker.engine import DockerEngine
from shim.errors import EngineError
from tests.support import images
from tests.support.daemons import Daemon, run
from tests.support.docker_daemon import DockerDaemon
from tests.support.engine_contract import DEADLINE, EngineContract, World, spec
from tests.support.engine_world import EngineWorld, settings_in
from tests.support.waiting import LONG, wait_until

pytestmark = pytest.mark.e2e


@asynccontextmanager
async def _world_of(
    dockerd: DockerDaemon, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[EngineWorld]:
    """A shim's part on an engine that has busybox:latest."""
    monkeypatch.setenv("DOCKER_HOST", dockerd.url)
    folder = Path(tempfile.mkdtemp(prefix="fe-", dir="/tmp"))
    world = EngineWorld(folder, settings_in(folder), DockerEngine)
    await world.again()
    yield world
    await world.close()
    await asyncio.to_thread(dockerd.remove_containers)
    shutil.rmtree(folder)


@pytest.fixture
async def docker_world(
    dockerd: DockerDaemon, busybox_image: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[EngineWorld]:
    await asyncio.to_thread(dockerd.docker, "tag", busybox_image, "busybox:latest")
    async with _world_of(dockerd, monkeypatch) as world:
        yield world


class TestDockerEngine(EngineContract):
    @pytest.fixture
    def world(self, docker_world: EngineWorld) -> World:
        return docker_world


async def test_two_shims_on_one_engine_do_not_see_each_others_tasks(
    docker_world: EngineWorld,
) -> None:
    await docker_world.engine.create(spec(docker_world, "t1", "exit 0"))
    other = await docker_world.again("install-2")
    await other.remove("t1")
    assert (await other.list(), len(await docker_world.engine.list())) == ((), 1)


async def test_a_container_gets_its_limits_its_group_and_a_read_only_runtime(
    docker_world: EngineWorld, dockerd: DockerDaemon
) -> None:
    await docker_world.engine.create(spec(docker_world, "t1", "exit 0"))
    (found,) = msgspec.json.decode(
        await asyncio.to_thread(dockerd.docker, "inspect", "fairlead-t1")
    )
    host: dict[str, Any] = found["HostConfig"]
    writable = {mount["Destination"]: mount["RW"] for mount in found["Mounts"]}
    assert (host["NanoCpus"], host["Memory"], host["Privileged"]) == (500_000_000, 64 << 20, False)
    assert (host["GroupAdd"], host["RestartPolicy"]["Name"]) == (["0"], "no")
    assert writable == {
        "/opt/fairlead/runtime": False,
        "/opt/fairlead/task": True,
        "/opt/fairlead/run": True,
    }


async def test_a_task_that_uses_too_much_memory_is_said_to_be_out_of_memory(
    docker_world: EngineWorld,
) -> None:
    wanted = spec(docker_world, "t1", "a=x; while :; do a=$a$a$a$a; done")
    container_id = await docker_world.engine.create(wanted)
    await docker_world.engine.start(container_id)
    async with asyncio.timeout(DEADLINE):
        ended = await docker_world.engine.wait(container_id)
    assert (ended.exit_code, ended.oom_killed) == (137, True)


_OWN_LIFE = """\
FROM busybox:latest
HEALTHCHECK --interval=1ms CMD true
STOPSIGNAL SIGKILL
"""


async def test_an_image_decides_nothing_about_its_containers_life(
    docker_world: EngineWorld, dockerd: DockerDaemon
) -> None:
    """Its check would run each millisecond, outside of the job's limits."""
    image = await asyncio.to_thread(_built, dockerd, _OWN_LIFE)
    script = "trap 'echo heard > out; exit 3' TERM; ready; wait_forever"
    wanted = msgspec.structs.replace(spec(docker_world, "t1", script), image=image)
    container_id = await docker_world.engine.create(wanted)
    await docker_world.engine.start(container_id)
    await _until((Path(wanted.job_folder) / "ready").exists)
    look = ("inspect", "-f", "{{.State.Health}}", container_id)
    assert await asyncio.to_thread(dockerd.docker, *look) == "<nil>"
    await asyncio.to_thread(dockerd.docker, "stop", "-t", f"{LONG:g}", container_id)
    ended = await docker_world.engine.wait(container_id)
    assert (ended.exit_code, ended.stopped) == (3, True)


def _built(dockerd: DockerDaemon, dockerfile: str) -> str:
    """By the engine itself: its command may want a plugin for that."""
    api = docker.APIClient(base_url=dockerd.url, version="auto")
    with contextlib.closing(api):
        lines = list(api.build(fileobj=io.BytesIO(dockerfile.encode()), rm=True, decode=True))
    found = [line["aux"]["ID"] for line in lines if "aux" in line]
    assert found, lines
    return str(found[-1])


async def test_a_run_has_one_network_that_the_next_shim_knows_and_that_goes_with_it(
    docker_world: EngineWorld, dockerd: DockerDaemon
) -> None:
    engine = docker_world.engine
    await engine.ensure_network("run-1")
    container_id = await engine.create(_bridged(docker_world, "t1", "run-1"))
    await engine.start(container_id)
    assert (await engine.wait(container_id)).exit_code == 0
    network = await _network_of(dockerd, "t1")
    other = await docker_world.again()
    await other.ensure_network("run-1")
    await other.create(_bridged(docker_world, "t2", "run-1"))
    assert await _network_of(dockerd, "t2") == network
    for task_id in ("t1", "t2"):
        await other.remove(task_id)
    await other.remove_network("run-1")
    await other.remove_network("run-1")
    await _until(lambda: network not in _networks(dockerd))


async def test_two_runs_never_share_a_network(
    docker_world: EngineWorld, dockerd: DockerDaemon
) -> None:
    for number in (1, 2):
        await docker_world.engine.ensure_network(f"run-{number}")
        wanted = _bridged(docker_world, f"t{number}", f"run-{number}")
        await docker_world.engine.create(wanted)
    assert await _network_of(dockerd, "t1") != await _network_of(dockerd, "t2")


async def test_a_spare_network_that_was_pruned_is_made_again(
    docker_world: EngineWorld, dockerd: DockerDaemon
) -> None:
    engine = docker_world.engine
    await _until(lambda: "fairlead-" in _networks(dockerd))
    await asyncio.to_thread(dockerd.docker, "network", "prune", "-f")
    await engine.ensure_network("run-1")
    container_id = await engine.create(_bridged(docker_world, "t1", "run-1"))
    await engine.start(container_id)
    assert (await engine.wait(container_id)).exit_code == 0


@pytest.mark.parametrize("lost", ["network", "bridge"])
async def test_a_run_whose_network_is_lost_is_not_blamed_and_gets_another(
    docker_world: EngineWorld, dockerd: DockerDaemon, lost: str
) -> None:
    """Lost between the making of its container and its start, as with a killed engine."""
    engine = docker_world.engine
    await engine.ensure_network("run-1")
    container_id = await engine.create(_bridged(docker_world, "t1", "run-1"))
    network = await _network_of(dockerd, "t1")
    if lost == "network":
        await asyncio.to_thread(dockerd.docker, "network", "rm", network)
    else:
        bridge = f"fl-{network.removeprefix('fairlead-')}"
        await asyncio.to_thread(run, ["ip", "link", "delete", bridge])
    with pytest.raises(NodeFault, match=network):
        await engine.start(container_id)
    await engine.remove("t1")
    await engine.ensure_network("run-1")
    again = await engine.create(_bridged(docker_world, "t2", "run-1"))
    await engine.start(again)
    assert (await engine.wait(again)).exit_code == 0


Wish = Callable[[ContainerSpec], ContainerSpec]


def _no_image(wanted: ContainerSpec) -> ContainerSpec:
    return msgspec.structs.replace(wanted, image=f"sha256:{'0' * 64}")


def _no_task_folder(wanted: ContainerSpec) -> ContainerSpec:
    return msgspec.structs.replace(wanted, job_folder="/nonexistent/job")


def _no_gpu(wanted: ContainerSpec) -> ContainerSpec:
    gone = GpuInfo(uuid="GPU-1", index=0, name="H100", memory=1, devices=("/dev/nvidia77",))
    return msgspec.structs.replace(wanted, gpus=("GPU-1",), gpu_units=(gone,))


def _mount_in_proc(wanted: ContainerSpec) -> ContainerSpec:
    mount = MountSpec(kind=VolumeKind.HOST, source="/tmp", target="/proc/x")
    return msgspec.structs.replace(wanted, mounts=(mount,))


def _folder_over_file(wanted: ContainerSpec) -> ContainerSpec:
    mount = MountSpec(kind=VolumeKind.HOST, source="/tmp", target="/bin/busybox")
    return msgspec.structs.replace(wanted, mounts=(mount,))


def _no_such_user(wanted: ContainerSpec) -> ContainerSpec:
    return msgspec.structs.replace(wanted, user="nemo")


def _too_high_limit(wanted: ContainerSpec) -> ContainerSpec:
    limits = (Ulimit(name="nofile", soft=1 << 31, hard=1 << 31),)
    return msgspec.structs.replace(wanted, options=ContainerOptions(ulimits=limits))


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        (_no_image, "instance_unreachable"),
        (_no_task_folder, "instance_unreachable"),
        (_no_gpu, "instance_unreachable"),
        (_mount_in_proc, "creating_container_error"),
        (_folder_over_file, "creating_container_error"),
        (_no_such_user, "creating_container_error"),
        (_too_high_limit, "creating_container_error"),
    ],
)
async def test_the_fault_of_a_container_that_cannot_run_is_the_nodes_or_the_jobs(
    docker_world: EngineWorld, wish: Wish, reason: str
) -> None:
    wanted = wish(spec(docker_world, "t1", "exit 0"))
    with pytest.raises(EngineError) as caught:
        await docker_world.engine.start(await docker_world.engine.create(wanted))
    assert caught.value.reason == reason


Odd = Callable[[Path], Sequence[str]]
_USERS = "nobody:x:7:7::/:/bin/sh\n"


def _runs_in_a_file(root: Path) -> Sequence[str]:
    (root / "file").touch()
    return ("WORKDIR /file",)


def _runs_in_a_circle(root: Path) -> Sequence[str]:
    (root / "circle").symlink_to("circle")
    return ("WORKDIR /circle/x",)


def _runs_in_a_long_name(root: Path) -> Sequence[str]:
    return (f"WORKDIR /{'x' * 300}",)


def _has_a_volume_on_a_file(root: Path) -> Sequence[str]:
    (root / "file").touch()
    return ("VOLUME /file",)


def _has_a_volume_in_the_runtime(root: Path) -> Sequence[str]:
    return ("VOLUME /opt/fairlead/runtime/bin",)


def _has_a_user_beyond_all(root: Path) -> Sequence[str]:
    return ("USER 4294967295",)


def _has_folders_of_users_and_groups(root: Path) -> Sequence[str]:
    for name in ("passwd", "group"):
        (root / "etc" / name).mkdir(parents=True)
    return ()


def _waits_for_its_users(root: Path) -> Sequence[str]:
    (root / "etc").mkdir()
    os.mkfifo(root / "etc/passwd")
    return ()


def _waits_for_its_groups(root: Path) -> Sequence[str]:
    (root / "etc").mkdir()
    os.mkfifo(root / "fifo")
    (root / "etc/group").symlink_to("../fifo")
    return ()


def _has_a_device_of_users(root: Path) -> Sequence[str]:
    (root / "etc").mkdir()
    os.mknod(root / "etc/passwd", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    return ()


@pytest.mark.parametrize(
    "odd",
    [
        _runs_in_a_file,
        _runs_in_a_circle,
        _runs_in_a_long_name,
        _has_a_volume_on_a_file,
        _has_a_volume_in_the_runtime,
        _has_a_user_beyond_all,
        _has_folders_of_users_and_groups,
        _waits_for_its_users,
        _waits_for_its_groups,
        _has_a_device_of_users,
    ],
)
async def test_an_odd_image_is_no_fault_of_the_node_and_holds_up_nobody(
    docker_world: EngineWorld, dockerd: DockerDaemon, odd: Odd
) -> None:
    """Three faults of a node in a row cordon it, and the same job goes to the next node."""
    image = await asyncio.to_thread(_imported, dockerd, docker_world.folder / "image", odd)
    wanted = spec(docker_world, "t1", "exit 0")
    wanted = msgspec.structs.replace(wanted, image=image, user=None)
    with pytest.raises(EngineError) as caught:
        await docker_world.engine.start(await docker_world.engine.create(wanted))
    assert caught.value.reason == "creating_container_error"
    await docker_world.engine.remove("t1")
    assert await docker_world.engine.list() == ()


async def test_a_volume_may_hold_up_nobody_either(
    docker_world: EngineWorld, dockerd: DockerDaemon
) -> None:
    """Also in an image that is known, and which has a link to where the volume is."""

    def links(root: Path) -> Sequence[str]:
        (root / "etc").mkdir()
        (root / "lists").mkdir()
        (root / "lists/users").write_text(_USERS)
        (root / "etc/passwd").symlink_to("/lists/users")
        return ()

    image = await asyncio.to_thread(_imported, dockerd, docker_world.folder / "image", links)
    volume = docker_world.folder / "volume"
    volume.mkdir()
    (volume / "users").write_text(_USERS)
    mount = MountSpec(kind=VolumeKind.HOST, source=str(volume), target="/lists")
    for number, mounts in enumerate(((), (mount,))):
        wanted = spec(docker_world, f"t{number}", "exit 0")
        wanted = msgspec.structs.replace(wanted, image=image, mounts=mounts)
        await docker_world.engine.start(await docker_world.engine.create(wanted))
    (volume / "users").unlink()
    os.mkfifo(volume / "users")
    wanted = msgspec.structs.replace(spec(docker_world, "t2", "exit 0"), image=image)
    with pytest.raises(EngineError, match="/etc/passwd of the image or of a volume is no file"):
        await docker_world.engine.create(msgspec.structs.replace(wanted, mounts=(mount,)))


async def test_a_list_of_users_that_becomes_a_fifo_after_the_look_holds_up_nobody(
    docker_world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job that shares the volume may do it at any time."""
    monkeypatch.setattr(oci_runtime, "LOOK_SECONDS", 0.1)
    volume = docker_world.folder / "etc"
    volume.mkdir()
    (volume / "passwd").write_text(_USERS)
    mount = MountSpec(kind=VolumeKind.HOST, source=str(volume), target="/etc")
    wanted = msgspec.structs.replace(spec(docker_world, "t1", "exit 0"), mounts=(mount,))
    container_id = await docker_world.engine.create(wanted)
    (volume / "passwd").unlink()
    os.mkfifo(volume / "passwd")
    async with asyncio.timeout(DEADLINE):
        with pytest.raises(EngineError, match="became a FIFO, for which its start waited") as told:
            await docker_world.engine.start(container_id)
        assert not isinstance(told.value, NodeFault)
        await docker_world.engine.remove("t1")
    assert await docker_world.engine.list() == ()


async def test_a_volume_on_the_way_of_an_images_link_may_hold_up_nobody(
    docker_world: EngineWorld, dockerd: DockerDaemon
) -> None:
    """What a link leads to in the image is not where it leads to in the container."""

    def links(root: Path) -> Sequence[str]:
        for folder in ("etc", "lists", "far"):
            (root / folder).mkdir()
        (root / "far/passwd").write_text(_USERS)
        (root / "lists/etc").symlink_to("/far")
        (root / "etc/passwd").symlink_to("/lists/etc/passwd")
        return ()

    image = await asyncio.to_thread(_imported, dockerd, docker_world.folder / "image", links)
    volume = docker_world.folder / "volume"
    (volume / "etc").mkdir(parents=True)
    (volume / "etc/passwd").write_text(_USERS)
    mount = MountSpec(kind=VolumeKind.HOST, source=str(volume), target="/lists")
    wanted = msgspec.structs.replace(spec(docker_world, "t1", "exit 0"), image=image)
    wanted = msgspec.structs.replace(wanted, mounts=(mount,))
    await docker_world.engine.start(await docker_world.engine.create(wanted))
    (volume / "etc/passwd").unlink()
    os.mkfifo(volume / "etc/passwd")
    with pytest.raises(EngineError, match="/etc/passwd of the image or of a volume is no file"):
        await docker_world.engine.create(msgspec.structs.replace(wanted, task_id="t2"))


async def test_a_volume_hides_no_odd_image(
    docker_world: EngineWorld, dockerd: DockerDaemon
) -> None:
    """The engine reads what is below it."""
    folder = docker_world.folder / "image"
    image = await asyncio.to_thread(_imported, dockerd, folder, _waits_for_its_users)
    # A look that a crash has cut short is in nobody's way.
    left = ("create", "--name", "fairlead-look-install-1", "busybox:latest", "true")
    await asyncio.to_thread(dockerd.docker, *left)
    users = docker_world.folder / "users"
    users.write_text(_USERS)
    mount = MountSpec(kind=VolumeKind.HOST, source=str(users), target="/etc/passwd")
    wanted = msgspec.structs.replace(spec(docker_world, "t1", "exit 0"), image=image)
    with pytest.raises(EngineError, match="/etc/passwd of the image"):
        await docker_world.engine.create(msgspec.structs.replace(wanted, mounts=(mount,)))
    await docker_world.engine.remove("t1")
    assert await asyncio.to_thread(dockerd.docker, "ps", "-aq") == ""


def _imported(dockerd: DockerDaemon, folder: Path, odd: Odd) -> str:
    """Return the image of a root folder with busybox that is changed so, by its id."""
    root = images.busybox_root(folder)
    options = [word for change in odd(root) for word in ("--change", change)]
    # tar of Python leaves out what is no file, folder or link.
    archive = folder.with_suffix(".tar")
    run(["tar", "-C", root, "-cf", archive, "."])
    return dockerd.docker("import", *options, archive)


async def test_a_runtime_that_is_missing_is_the_nodes_fault(docker_world: EngineWorld) -> None:
    container_id = await docker_world.engine.create(spec(docker_world, "t1", "exit 0"))
    (docker_world.settings.runtime / "bin/fairlead-entrypoint").unlink()
    with pytest.raises(NodeFault, match="fairlead-entrypoint"):
        await docker_world.engine.start(container_id)
    shutil.rmtree(docker_world.settings.runtime)
    with pytest.raises(NodeFault, match="bind source path does not exist"):
        await docker_world.engine.create(spec(docker_world, "t2", "exit 0"))


def _bridged(world: EngineWorld, task_id: str, run_id: str) -> ContainerSpec:
    return msgspec.structs.replace(
        spec(world, task_id, "exit 0"),
        run_id=run_id,
        network_mode=NetworkMode.BRIDGE,
        hostname="fair-wind",
    )


async def _until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition)


def _networks(dockerd: DockerDaemon) -> str:
    return dockerd.docker("network", "ls")


async def _network_of(dockerd: DockerDaemon, task_id: str) -> str:
    look = ("inspect", "-f", "{{.HostConfig.NetworkMode}}", f"fairlead-{task_id}")
    return await asyncio.to_thread(dockerd.docker, *look)


@pytest.mark.parametrize(
    ("reference", "advice"),
    [
        ("Not A Name", "not a valid image name"),
        ("127.0.0.1:9/none:1", "cannot be reached from this node"),
    ],
)
async def test_a_pull_that_cannot_work_says_why(
    docker_world: EngineWorld, reference: str, advice: str
) -> None:
    with pytest.raises(ImageError, match=advice):
        await docker_world.engine.pull(reference, None, lambda progress: None)


async def test_exits_are_told_also_after_the_engine_was_killed_and_came_back(
    docker_world: EngineWorld, dockerd: DockerDaemon
) -> None:
    """With its own containerd, which ends with it. Of an end in between, containerd 1 remembers
    the code and containerd 2 does not; dockerd says 255 then, which is not the container's."""
    assert await _exit_while_away(docker_world, dockerd) != 255


@pytest.fixture
def containerd(testbed_folder: Path) -> Iterator[Path]:
    """The socket of a containerd that is no child of dockerd's, as where systemd runs both."""
    folder = testbed_folder / "containerd"
    folder.mkdir()
    socket, config = folder / "containerd.sock", folder / "config.toml"
    # The part for Kubernetes wants plugins that this machine may lack.
    config.write_text('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n')
    places = ("--config", config, "--address", socket)
    kept = ("--root", folder / "root", "--state", folder / "state")
    daemon = Daemon(["containerd", *places, *kept], folder / "containerd.log")
    daemon.spawn()
    daemon.wait_ready(socket.exists)
    yield socket
    daemon.stop()


async def test_an_exit_code_outlives_dockerd_where_containerd_does(
    containerd: Path, testbed_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = testbed_folder / "beside-containerd"
    folder.mkdir()
    other = DockerDaemon(folder, containerd=str(containerd))
    await asyncio.to_thread(other.start)
    try:
        root = images.busybox_root(folder / "busybox")
        await asyncio.to_thread(other.import_image, "busybox:latest", root)
        async with _world_of(other, monkeypatch) as world:
            assert await _exit_while_away(world, other) == 4
    finally:
        await asyncio.to_thread(other.stop)


async def _exit_while_away(world: EngineWorld, dockerd: DockerDaemon) -> int | None:
    """Return the exit code that is told of a container that ends with 4 while dockerd is killed."""
    engine: Engine = world.engine
    wanted = spec(world, "t1", "while [ ! -e go ]; do sleep 0.05; done; exit 4")
    container_id = await engine.create(wanted)
    await engine.start(container_id)
    look = ("inspect", "-f", "{{.State.Pid}}", container_id)
    process = Path("/proc", await asyncio.to_thread(dockerd.docker, *look))
    waiter = asyncio.create_task(_wait_through_restarts(engine, container_id))
    with ThreadPoolExecutor(1) as threads:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(threads, dockerd.kill9)
        (world.folder / "t1" / "job" / "go").touch()
        await _until(lambda: not process.exists())
        await loop.run_in_executor(threads, dockerd.start)
    async with asyncio.timeout(LONG):
        return await waiter


async def _wait_through_restarts(engine: Engine, container_id: str) -> int | None:
    while True:
        try:
            return (await engine.wait(container_id)).exit_code
        except EngineUnavailable:
            await engine.ready()
