"""`fairlead-shim` with real engines: a job goes on, whatever becomes of the shim."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fairlead.wire.node import EngineKind, FindingLevel
from fairlead.wire.runner import ExitRecord
from fairlead.wire.shim import TaskStatus, TerminateRequest
from runner.server import EXIT_NOT_STARTED
from shim.examination import NodeSetup, ask
from shim.monitoring import doctor
from tests.e2e.shim_client import FENCE, RUN, begin_job, client_of, request, until
from tests.support.docker_daemon import DockerDaemon
from tests.support.processes import ShimProcess
from tests.support.testbed import ShimFactory
from tests.support.waiting import LONG, eventually, wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(params=["docker", "process"])
async def shim(request: pytest.FixtureRequest, shim_process: ShimFactory) -> ShimProcess:
    return await asyncio.to_thread(shim_process, request.param)


async def test_a_task_outlives_kill_nine_of_its_shim(shim: ShimProcess, busybox_image: str) -> None:
    async with client_of(shim) as client:
        await client.put_task("t1", request(busybox_image), fence=FENCE)
        before = await until(client, "t1", TaskStatus.RUNNING)
        runner = Path(before.runner_socket)
        await eventually(runner.exists)
    created = os.stat(runner).st_ctime_ns
    await asyncio.to_thread(shim.restart)
    async with client_of(shim) as client:
        after = await client.task("t1")
        assert (after.status, after.container_id) == (TaskStatus.RUNNING, before.container_id)
        assert after.times == before.times
        assert os.stat(runner).st_ctime_ns == created
        await client.terminate("t1", TerminateRequest(grace=3600), run_id=RUN, fence=FENCE)
        ended = await until(client, "t1", TaskStatus.TERMINATED)
        await client.remove_task("t1", run_id=RUN, fence=FENCE)
        await client.release_allocation("place-1", run_id=RUN, fence=FENCE)
        node = await client.node()
    assert ended.exit_record is not None
    assert (node.cpu_allocated, node.unlabelled) == (0.0, ())
    folders = (runner.parent, shim.socket.parent / "tasks")
    assert [os.listdir(folder) for folder in folders] == [[], []]


async def test_a_job_that_the_shim_alone_stops_leaves_its_exit_record(
    shim: ShimProcess, busybox_image: str
) -> None:
    async with client_of(shim) as client:
        await client.put_task("t1", request(busybox_image), fence=FENCE)
        info = await until(client, "t1", TaskStatus.RUNNING)
        await eventually(Path(info.runner_socket).exists)
        await begin_job(info, "trap '' TERM; echo ready; while :; do sleep 0.1; done")
        await client.terminate("t1", TerminateRequest(grace=0.5), run_id=RUN, fence=FENCE)
        ended = await until(client, "t1", TaskStatus.TERMINATED)
    record = msgspec.json.decode(ended.exit_record or "{}", type=ExitRecord)
    assert (record.signal, record.exit_code, ended.exit_code) == ("SIGKILL", 137, 137)


async def test_a_task_that_is_stopped_as_soon_as_it_runs_does_not_wait_for_the_end_of_its_grace(
    shim_process: ShimFactory, busybox_image: str
) -> None:
    shim = await asyncio.to_thread(shim_process, "docker")
    async with client_of(shim) as client:
        await client.put_task("t1", request(busybox_image), fence=FENCE)
        await until(client, "t1", TaskStatus.RUNNING)
        await client.terminate("t1", TerminateRequest(grace=3600), run_id=RUN, fence=FENCE)
        ended = await until(client, "t1", TaskStatus.TERMINATED)
    assert ended.exit_code == EXIT_NOT_STARTED


async def test_secrets_of_a_job_that_was_killed_leave_the_nodes_memory(
    shim_process: ShimFactory,
) -> None:
    shim = await asyncio.to_thread(shim_process, "process")
    async with client_of(shim) as client:
        await client.put_task("t1", request("none"), fence=FENCE)
        info = await until(client, "t1", TaskStatus.RUNNING)
        await eventually(Path(info.runner_socket).exists)
        await begin_job(info, "echo ready; sleep 1000", secrets={"TOKEN": "hush-hush"})
        memory = Path(f"/dev/shm/fairlead-{(await client.health()).install_id}-t1")
        kept = await asyncio.to_thread(lambda: [path.name for path in memory.rglob("TOKEN")])
        await client.terminate("t1", TerminateRequest(grace=0), run_id=RUN, fence=FENCE)
        await until(client, "t1", TaskStatus.TERMINATED)
    assert (kept, await asyncio.to_thread(memory.exists)) == (["TOKEN"], False)


async def test_sigterm_of_the_shim_leaves_the_task_running(
    shim: ShimProcess, busybox_image: str
) -> None:
    async with client_of(shim) as client:
        await client.put_task("t1", request(busybox_image), fence=FENCE)
        before = await until(client, "t1", TaskStatus.RUNNING)
    assert await asyncio.to_thread(shim.stop) == 0
    await asyncio.to_thread(shim.start)
    async with client_of(shim) as client:
        after = await client.task("t1")
    assert (after.status, after.container_id) == (TaskStatus.RUNNING, before.container_id)


async def test_a_container_with_the_hosts_network_cannot_reach_the_shim(
    shim_process: ShimFactory, dockerd: DockerDaemon, busybox_image: str
) -> None:
    shim = await asyncio.to_thread(shim_process, "docker")
    async with client_of(shim) as client:
        await client.put_task("t1", request(busybox_image, whole_node=True), fence=FENCE)
        await until(client, "t1", TaskStatus.RUNNING)
    look = f"ls /opt/fairlead/run /run {shim.socket.parent} 2>&1; true"

    def seen_with_runner() -> str:
        seen = dockerd.docker("exec", "fairlead-t1", "sh", "-c", look)
        return seen if "runner.sock" in seen else ""

    seen = await asyncio.to_thread(wait_until, seen_with_runner)
    assert "shim.sock" not in seen
    mode = await asyncio.to_thread(
        dockerd.docker, "inspect", "-f", "{{.HostConfig.NetworkMode}}", "fairlead-t1"
    )
    assert mode == "host"


async def test_the_shared_folders_belong_to_the_group_alone(
    shim: ShimProcess, busybox_image: str
) -> None:
    async with client_of(shim) as client:
        await client.put_task("t1", request(busybox_image), fence=FENCE)
        info = await until(client, "t1", TaskStatus.RUNNING)
    folders = (shim.socket.parent / "tasks" / info.id, shim.data / "tasks" / "t1" / "job")
    assert [oct(os.stat(folder).st_mode & 0o7777) for folder in folders] == ["0o2770"] * 2


def test_a_wrong_runtime_is_refused_at_the_start(
    dockerd: DockerDaemon, testbed_folder: Path
) -> None:
    folder = testbed_folder / "no-runtime"
    folder.mkdir()
    command = [str(Path(sys.executable).with_name("fairlead-shim")), "--engine", "docker"]
    paths = ["--data", folder / "data", "--socket", folder / "s.sock", "--runtime", folder]
    refused = subprocess.run(
        [*command, *map(str, paths)],
        env={**os.environ, **dockerd.env},
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert refused.returncode == 1
    assert f"--runtime {folder}: there is no bin/fairlead-entrypoint" in refused.stderr


def test_the_doctor_starts_a_real_container(
    dockerd: DockerDaemon, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", dockerd.env["DOCKER_HOST"])
    before = _images_and_containers(dockerd)
    found = list(doctor.engine(NodeSetup(runtime=runtime, engine=EngineKind.DOCKER), ask))
    messages = {each.message: each.level for each in found}
    assert messages["a container with the runtime starts"] is FindingLevel.OK
    assert _images_and_containers(dockerd) == before


def _images_and_containers(dockerd: DockerDaemon) -> tuple[set[str], set[str]]:
    images, containers = dockerd.docker("images", "-aq"), dockerd.docker("ps", "-aq")
    return set(images.split()), set(containers.split())
