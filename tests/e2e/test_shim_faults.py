"""Faults around a shim: it is killed, dockerd restarts, an answer is lost, a disk is full.

The containers run a script in the place of the runner, since only the shim is looked at.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from fairlead.wire.shim import TaskInfo, TaskRequest, TaskStatus, TerminateRequest
from shim.client import ShimError
from tests.e2e.shim_client import client_of, until
from tests.support import images
from tests.support.daemons import run
from tests.support.docker_daemon import DockerDaemon
from tests.support.docker_proxy import LossyDocker
from tests.support.kill_lab import FENCE, KillLab, path_with
from tests.support.waiting import eventually

pytestmark = pytest.mark.e2e

KILLS = 6
READY = ': > "$2/ready"'
STOP = TerminateRequest(grace=60, reason="terminated_by_user")


@pytest.fixture
def folder(testbed_folder: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix="k", dir=testbed_folder))


@pytest.fixture
def docker(folder: Path, request: pytest.FixtureRequest) -> Iterator[DockerDaemon]:
    """A dockerd of the test's own, with the stand-in of NVIDIA's hook; it may be restarted."""
    (folder / "docker").mkdir()
    (folder / "bin").mkdir()
    with path_with(folder / "bin"):
        daemon = DockerDaemon(folder / "docker", **getattr(request, "param", {}))
        daemon.start()
        daemon.import_image("busybox:faults", images.busybox_root(folder / "busybox"))
        yield daemon
        daemon.stop()


@pytest.fixture
def lab(folder: Path, docker: DockerDaemon) -> Iterator[KillLab]:
    (folder / "lab").mkdir()
    lab = KillLab(folder / "lab", docker, "busybox:faults", seed=7)
    yield lab
    lab.close()


async def started(lab: KillLab) -> tuple[TaskRequest, TaskInfo]:
    """And its script is where it waits for signals."""
    wanted = lab.request(0, device=False)
    async with client_of(lab.shim) as client:
        await client.put_task("t0", wanted, fence=FENCE)
        running = await until(client, "t0", TaskStatus.RUNNING)
    await eventually((job_folder(lab) / "ready").exists)
    return wanted, running


def job_folder(lab: KillLab) -> Path:
    return lab.shim.data / "tasks/t0/job"


def starts(lab: KillLab) -> list[str]:
    return (job_folder(lab) / "starts").read_text().splitlines()


async def test_kill_nine_at_any_step_loses_nothing_and_leaves_nothing(lab: KillLab) -> None:
    await asyncio.to_thread(lab.start, armed=True)
    number = 0
    while lab.found.kills < KILLS:
        await lab.live_once(number)
        number += 1
    await asyncio.to_thread(lab.finish)
    await asyncio.to_thread(lab.check_leaks)
    assert lab.found.violations == []


async def test_a_task_that_ends_while_dockerd_is_away_is_found_ended(
    lab: KillLab, docker: DockerDaemon
) -> None:
    await asyncio.to_thread(lab.shim.start)
    _, before = await started(lab)
    top = await asyncio.to_thread(docker.docker, "inspect", "-f", "{{.State.Pid}}", "fairlead-t0")
    await asyncio.to_thread(docker.kill9)
    await asyncio.to_thread(run, ["kill", "-KILL", top])
    await asyncio.to_thread(docker.start)
    async with client_of(lab.shim) as client:
        ended = await until(client, "t0", TaskStatus.TERMINATED)
    assert (ended.container_id, ended.reason) == (
        before.container_id,
        "container_exited_with_error",
    )


async def test_a_task_goes_on_while_dockerd_restarts_under_it(
    lab: KillLab, docker: DockerDaemon
) -> None:
    await asyncio.to_thread(lab.shim.start)
    wanted, before = await started(lab)
    await asyncio.to_thread(docker.kill9)
    await asyncio.to_thread(docker.start)
    async with client_of(lab.shim) as client:
        assert (await client.task("t0")).status is TaskStatus.RUNNING
        await client.terminate("t0", STOP, run_id=wanted.run_id, fence=FENCE)
        ended = await until(client, "t0", TaskStatus.TERMINATED)
    assert (ended.container_id, ended.reason, ended.exit_code) == (
        before.container_id,
        "terminated_by_user",
        0,
    )
    assert starts(lab) == ["start"]


@pytest.mark.parametrize("docker", [{"live-restore": False}], indirect=True, ids=["no restore"])
async def test_a_dockerd_that_ends_its_containers_ends_the_task_once_and_keeps_its_place(
    lab: KillLab, docker: DockerDaemon
) -> None:
    await asyncio.to_thread(lab.shim.start)
    wanted, _ = await started(lab)
    await asyncio.to_thread(docker.restart)
    async with client_of(lab.shim) as client:
        ended = await until(client, "t0", TaskStatus.TERMINATED)
        held = await client.allocations()
        again = lab.request(0, device=False)
        await client.put_task("t1", again, fence=FENCE)
        await until(client, "t1", TaskStatus.RUNNING)
    assert [a.id for a in held] == [wanted.allocation_id]
    assert ended.reason == "instance_unreachable"
    assert (starts(lab), ended.times.terminated_at is not None) == (["start"], True)


@pytest.mark.parametrize("docker", [{"live-restore": False}], indirect=True, ids=["no restore"])
@pytest.mark.parametrize("abruptly", [False, True], ids=["in order", "kill -9"])
async def test_a_dockerd_that_ends_its_containers_while_the_shim_is_down_charges_no_job(
    lab: KillLab, docker: DockerDaemon, *, abruptly: bool
) -> None:
    lab.be(f'echo start >> "$2/starts"; trap "exit 143" TERM; sleep 100000 & {READY}; wait')
    await asyncio.to_thread(lab.shim.start)
    await started(lab)
    await asyncio.to_thread(lab.shim.kill9)
    if abruptly:
        await asyncio.to_thread(docker.kill9)
        await asyncio.to_thread(docker.start)
    else:
        await asyncio.to_thread(docker.restart)
    await asyncio.to_thread(lab.shim.start)
    async with client_of(lab.shim) as client:
        ended = await until(client, "t0", TaskStatus.TERMINATED)
    assert (ended.reason, starts(lab)) == ("instance_unreachable", ["start"])


@pytest.mark.parametrize("docker", [{"live-restore": False}], indirect=True, ids=["no restore"])
@pytest.mark.parametrize(
    ("how", "reason"),
    [(("kill", "-KILL"), "container_exited_with_error"), ((), "instance_unreachable")],
    ids=["its own end", "docker stop"],
)
async def test_an_end_while_the_shim_is_down_is_told_by_what_dockerd_remembers(
    lab: KillLab, docker: DockerDaemon, how: tuple[str, ...], reason: str
) -> None:
    lab.be(f"{READY}; exec sleep 100000")
    await asyncio.to_thread(lab.shim.start)
    await started(lab)
    await asyncio.to_thread(lab.shim.kill9)
    if how:
        top = ("inspect", "-f", "{{.State.Pid}}", "fairlead-t0")
        await asyncio.to_thread(run, [*how, await asyncio.to_thread(docker.docker, *top)])
        await asyncio.to_thread(docker.docker, "wait", "fairlead-t0")
    else:
        await asyncio.to_thread(docker.docker, "stop", "--time", "1", "fairlead-t0")
    await asyncio.to_thread(lab.shim.start)
    async with client_of(lab.shim) as client:
        ended = await until(client, "t0", TaskStatus.TERMINATED)
    assert ended.reason == reason


@pytest.mark.parametrize("act", ["/containers/create", "/start"])
async def test_an_act_whose_answer_is_lost_is_done_once(
    folder: Path, docker: DockerDaemon, lab: KillLab, act: str
) -> None:
    lossy = LossyDocker(folder / "lossy.sock", docker.socket)
    with ExitStack() as stack:
        stack.callback(lossy.close)
        lab.shim.daemon.env["DOCKER_HOST"] = lossy.url
        await asyncio.to_thread(lab.shim.start)
        lossy.lose(act)
        _, info = await started(lab)
        containers = await asyncio.to_thread(docker.docker, "ps", "-aq", "--no-trunc")
        await asyncio.to_thread(lab.shim.kill9)
    assert (containers, len(lossy.lost)) == (info.container_id, 1)
    assert starts(lab) == ["start"]


async def test_a_task_is_stopped_and_its_end_kept_although_the_disk_was_full(lab: KillLab) -> None:
    records = lab.shim.data / "records"
    await asyncio.to_thread(_mount_small, records)
    try:
        await asyncio.to_thread(lab.shim.start)
        wanted, _ = await started(lab)
        await asyncio.to_thread(_fill, records)
        async with client_of(lab.shim) as client:
            with pytest.raises(ShimError, match="No space left") as refused:
                await client.put_task("t1", lab.request(1, device=False), fence=FENCE)
            with pytest.raises(ShimError, match="No space left"):
                await client.terminate("t0", STOP, run_id=wanted.run_id, fence=FENCE)
            ended = await until(client, "t0", TaskStatus.TERMINATED)
            (records / "filler").unlink()
            await eventually(lambda: b'"terminated"' in (records / "tasks/t0.json").read_bytes())
        await asyncio.to_thread(lab.shim.restart)
        async with client_of(lab.shim) as client:
            assert [info.id for info in await client.tasks()] == ["t0"]
            after = await client.task("t0")
        await asyncio.to_thread(lab.shim.kill9)
    finally:
        await asyncio.to_thread(run, ["umount", "--lazy", records])
    assert refused.value.code == "storage"
    assert (ended.reason, after.status, after.reason) == (
        "terminated_by_user",
        TaskStatus.TERMINATED,
        "terminated_by_user",
    )


def _mount_small(folder: Path) -> None:
    folder.mkdir(parents=True)
    run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder])


def _fill(folder: Path) -> None:
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            continue


async def test_a_shim_that_lost_all_its_records_knows_its_containers_by_their_labels(
    lab: KillLab,
) -> None:
    await asyncio.to_thread(lab.shim.start)
    wanted, before = await started(lab)
    async with client_of(lab.shim) as client:
        install = (await client.health()).install_id
    await asyncio.to_thread(lab.shim.kill9)
    await asyncio.to_thread(shutil.rmtree, lab.shim.data / "records")
    await asyncio.to_thread(lab.shim.start)
    async with client_of(lab.shim) as client:
        after = await client.task("t0")
        held = await client.allocations()
        assert (await client.health()).install_id == install
    assert (after.status, after.container_id) == (TaskStatus.RUNNING, before.container_id)
    assert after.version > before.version
    assert [(a.id, a.gpus) for a in held] == [(wanted.allocation_id, wanted.resources.gpu.uuids)]
    assert starts(lab) == ["start"]


async def test_the_use_of_a_real_container_is_measured(lab: KillLab) -> None:
    await asyncio.to_thread(lab.shim.start)
    await started(lab)
    async with client_of(lab.shim) as client:
        metrics = await client.node_metrics()
    (task,) = metrics.tasks
    assert task.memory is not None
    assert 0 < task.memory < task.memory_limit
    assert task.cpu_seconds is not None
    assert task.cpu_seconds > 0
    assert sorted(gpu.allocation_id or "" for gpu in metrics.gpus) == ["", "place-0"]
