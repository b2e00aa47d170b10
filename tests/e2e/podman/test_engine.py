"""The engine over a real Podman: the contract of all engines, and Podman's own ways."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from fairlead.wire.node import GpuInfo
from fairlead.wire.shim import RegistryAuth, VolumeKind
from shim.engines import podman as module
from shim.engines.base import (
    ContainerSpec,
    ImageError,
    ImageProblem,
    MountSpec,
    NodeFault,
    NodeFull,
)
from shim.engines.docker.engine import DockerEngine
from shim.errors import EngineError
from tests.e2e.podman.conftest import BUSYBOX
from tests.support.docker_registry import DockerRegistry
from tests.support.engine_contract import DEADLINE, EngineContract, World, spec
from tests.support.engine_world import EngineWorld, bridged, settings_in
from tests.support.podman_daemon import PodmanDaemon
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture
async def bed(podman: PodmanDaemon, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EngineWorld]:
    monkeypatch.setenv("CONTAINER_HOST", podman.url)
    folder = Path(tempfile.mkdtemp(prefix="fe-", dir="/tmp"))
    world = EngineWorld(folder, settings_in(folder), module.engine)
    await world.again()
    yield world
    await world.close()
    await asyncio.to_thread(podman.remove_containers)
    shutil.rmtree(folder)


class TestPodmanEngine(EngineContract):
    @pytest.fixture
    def world(self, bed: EngineWorld) -> World:
        return bed


async def exit_of(engine: DockerEngine, container_id: str) -> int | None:
    async with asyncio.timeout(DEADLINE):
        return (await engine.wait(container_id)).exit_code


async def started(engine: DockerEngine, wanted: ContainerSpec) -> str:
    container_id = await engine.create(wanted)
    await engine.start(container_id)
    return container_id


async def test_a_run_has_a_network_that_the_next_shim_knows_and_that_goes_with_it(
    bed: EngineWorld, podman: PodmanDaemon
) -> None:
    address = await bed.engine.ensure_network("run-1") or ""
    container_id = await started(
        bed.engine, bridged(bed, "t1", "run-1", "hostname -i > here", address)
    )
    assert await exit_of(bed.engine, container_id) == 0
    assert (bed.folder / "t1/job/here").read_text().strip() == address
    network = await network_of(podman, "t1")
    other = await bed.again()
    second = await other.ensure_network("run-1", {address}) or ""
    await other.create(bridged(bed, "t2", "run-1", "exit 0", second))
    assert await network_of(podman, "t2") == network
    for task_id in ("t1", "t2"):
        await other.remove(task_id)
    await other.remove_network("run-1")
    await asyncio.to_thread(wait_until, lambda: network not in podman.networks())


async def test_the_tasks_of_a_run_reach_each_other_and_those_of_another_run_do_not(
    bed: EngineWorld,
) -> None:
    first = await bed.engine.ensure_network("one") or ""
    # From a file: a listener whose text is still on its way ends at the caller's end of file.
    listen = "echo hello > note; while :; do nc -l -p 29500 < note; done"
    await started(bed.engine, bridged(bed, "t1", "one", listen, first))
    second = await bed.engine.ensure_network("one", {first}) or ""
    ask = f"until nc {first} 29500 </dev/null > answer; do sleep 0.1; done"
    friend = await started(bed.engine, bridged(bed, "t2", "one", ask, second))
    assert await exit_of(bed.engine, friend) == 0
    assert (bed.folder / "t2/job/answer").read_text() == "hello\n"
    foreign = await bed.engine.ensure_network("two") or ""
    try_it = f"nc -w 2 {first} 29500 </dev/null > answer"
    stranger = await started(bed.engine, bridged(bed, "t3", "two", try_it, foreign))
    await exit_of(bed.engine, stranger)
    assert (bed.folder / "t3/job/answer").read_text() == ""


async def test_an_address_that_another_container_has_is_no_fault_of_the_node(
    bed: EngineWorld,
) -> None:
    address = await bed.engine.ensure_network("run-1") or ""
    await started(bed.engine, bridged(bed, "t1", "run-1", "ready; wait_forever", address))
    late = await bed.engine.create(bridged(bed, "t2", "run-1", "exit 0", address))
    with pytest.raises(NodeFull, match="its address in the run's network is in use") as full:
        await bed.engine.start(late)
    assert not isinstance(full.value, NodeFault)


async def test_a_port_is_published_on_the_loopback_alone(
    bed: EngineWorld, podman: PodmanDaemon
) -> None:
    address = await bed.engine.ensure_network("run-1") or ""
    wanted = bridged(bed, "t1", "run-1", "wait_forever", address)
    container_id = await started(bed.engine, msgspec.structs.replace(wanted, publish=22))
    port = await bed.engine.published_port(container_id, 22)
    bound = await asyncio.to_thread(podman.podman, "port", "fairlead-t1")
    assert bound == f"22/tcp -> 127.0.0.1:{port}"


async def test_a_container_that_is_killed_by_hand_was_stopped_by_others(
    bed: EngineWorld, podman: PodmanDaemon
) -> None:
    container_id = await started(bed.engine, spec(bed, "t1", "wait_forever"))
    waiter = asyncio.create_task(bed.engine.wait(container_id))
    await asyncio.to_thread(podman.podman, "kill", "fairlead-t1")
    async with asyncio.timeout(DEADLINE):
        ended = await waiter
    assert (ended.exit_code, ended.stopped) == (137, True)


async def test_a_container_outlives_its_service_and_its_end_is_told_afterwards(
    bed: EngineWorld, podman: PodmanDaemon
) -> None:
    wait = "while [ ! -e go ]; do sleep 0.05; done; exit 4"
    container_id = await started(bed.engine, spec(bed, "t1", wait))
    await asyncio.to_thread(podman.kill9)
    (bed.folder / "t1" / "job" / "go").touch()
    await asyncio.to_thread(podman.start)
    await bed.engine.ready()
    async with asyncio.timeout(DEADLINE):
        ended = await bed.engine.wait(container_id)
    assert (ended.exit_code, ended.stopped, ended.gone) == (4, False, False)


async def test_a_named_volume_keeps_its_content_for_the_next_task(bed: EngineWorld) -> None:
    source = await bed.engine.ensure_volume("data")
    mount = MountSpec(kind=VolumeKind.NAMED, source=source, target="/data")
    for task_id, script in (("t1", "echo kept > /data/x"), ("t2", "cp /data/x x")):
        wanted = msgspec.structs.replace(spec(bed, task_id, script), mounts=(mount,))
        assert await exit_of(bed.engine, await started(bed.engine, wanted)) == 0
    assert (bed.folder / "t2/job/x").read_text() == "kept\n"


RIGHT = RegistryAuth(username="anna", password="s3cret")
WRONG = RegistryAuth(username="anna", password="hunter2")


def digests_of(podman: PodmanDaemon, reference: str) -> list[str]:
    listed = podman.podman("image", "inspect", "--format", "{{json .RepoDigests}}", reference)
    repository = reference.rpartition(":")[0]
    names = [name.partition("@") for name in json.loads(listed)]
    return [digest for name, _, digest in names if name == repository]


async def test_a_registry_is_asked_with_the_credentials_that_are_given_and_no_others(
    bed: EngineWorld, podman: PodmanDaemon, private: DockerRegistry
) -> None:
    reference = f"{private.address}/team/tool:1"
    login = ("--creds", "anna:s3cret", "--tls-verify=false")
    await asyncio.to_thread(podman.podman, "push", *login, BUSYBOX, reference)
    image = await bed.engine.pull(reference, RIGHT, lambda progress: None)
    digests = digests_of(podman, reference)
    assert len(digests) == 2, "of the import and of the push"
    for digest in digests:  # Podman does not tell which of them the registry knows
        await bed.engine.ask_registry(reference, digest, RIGHT)
    for auth in (None, WRONG):
        with pytest.raises(ImageError, match=f"{private.address}/team/tool") as caught:
            await bed.engine.ask_registry(reference, image.digest, auth)
        assert (caught.value.problem, "hunter2" in str(caught.value)) == (
            ImageProblem.REFUSED,
            False,
        )
    assert await bed.engine.local_image(reference) == image
    assert await bed.engine.remove_image(reference)


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("Not A Name", ImageProblem.BAD_NAME),
        ("127.0.0.1:9/none:1", ImageProblem.UNREACHABLE),
    ],
)
async def test_a_pull_that_cannot_work_says_why(
    bed: EngineWorld, reference: str, problem: ImageProblem
) -> None:
    with pytest.raises(ImageError) as caught:
        await bed.engine.pull(reference, None, lambda progress: None)
    assert caught.value.problem is problem


Wish = Callable[[ContainerSpec], ContainerSpec]


def _no_image(wanted: ContainerSpec) -> ContainerSpec:
    return msgspec.structs.replace(wanted, image=f"sha256:{'0' * 64}")


def _no_task_folder(wanted: ContainerSpec) -> ContainerSpec:
    return msgspec.structs.replace(wanted, job_folder="/nonexistent/job")


def _no_gpu(wanted: ContainerSpec) -> ContainerSpec:
    gone = GpuInfo(uuid="GPU-1", index=0, name="H100", memory=1, devices=("/dev/nvidia77",))
    return msgspec.structs.replace(wanted, gpus=("GPU-1",), gpu_units=(gone,))


def _folder_over_file(wanted: ContainerSpec) -> ContainerSpec:
    mount = MountSpec(kind=VolumeKind.HOST, source="/tmp", target="/bin/busybox")
    return msgspec.structs.replace(wanted, mounts=(mount,))


def _no_such_user(wanted: ContainerSpec) -> ContainerSpec:
    return msgspec.structs.replace(wanted, user="nemo")


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        (_no_image, "instance_unreachable"),
        (_no_task_folder, "instance_unreachable"),
        (_no_gpu, "instance_unreachable"),
        (_folder_over_file, "creating_container_error"),
        (_no_such_user, "creating_container_error"),
    ],
)
async def test_the_fault_of_a_container_that_cannot_run_is_the_nodes_or_the_jobs(
    bed: EngineWorld, wish: Wish, reason: str
) -> None:
    wanted = wish(spec(bed, "t1", "exit 0"))
    with pytest.raises(EngineError) as caught:
        await bed.engine.start(await bed.engine.create(wanted))
    assert caught.value.reason == reason
    assert "nonexistent" not in os.listdir("/")


async def network_of(podman: PodmanDaemon, task_id: str) -> str:
    look = ("inspect", "-f", "{{range $name, $_ := .NetworkSettings.Networks}}{{$name}}{{end}}")
    return await asyncio.to_thread(podman.podman, *look, f"fairlead-{task_id}")
