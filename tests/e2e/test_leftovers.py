"""No process of a task outlives it, on real engines: whoever is killed, and whatever the job and
the node's own people have started in it. The processes are looked for from outside."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from common.processes.reaper import children_of
from fairlead.wire.shim import ContainerOptions, TaskInfo, TaskStatus, TerminateRequest
from shim.client import ShimClient
from shim.engines import procfs
from tests.e2e.shim_client import FENCE, RUN, begin_job, client_of, request, until
from tests.support.daemons import processes_of
from tests.support.docker_daemon import DockerDaemon
from tests.support.processes import ShimProcess
from tests.support.testbed import ShimFactory
from tests.support.waiting import eventually

pytestmark = pytest.mark.e2e

ORPHAN = "(setsid env -i /bin/sh -c 'sleep 600; :' &)"
TASK = f"t-{os.getpid()}"
"""Its processes are found by it, also on a machine on which other tests run."""
BUSY = f"{ORPHAN}; {ORPHAN}; setsid sleep 600 & echo ready; sleep 600"


KEEPER = "containerd-shim"
"""The parent of a container's first process, outside. It ends by itself some time after that."""


@pytest.fixture(params=["docker", "process"])
async def shim(request: pytest.FixtureRequest, shim_process: ShimFactory) -> ShimProcess:
    return await asyncio.to_thread(shim_process, request.param)


@asynccontextmanager
async def a_busy_task(
    shim: ShimProcess, image: str, *, init: bool = False
) -> AsyncIterator[tuple[ShimClient, TaskInfo]]:
    """Its job has left processes without parent, session and environment."""
    wanted = msgspec.structs.replace(request(image), container=ContainerOptions(init=init))
    async with client_of(shim) as client:
        await client.put_task(TASK, wanted, fence=FENCE)
        info = await until(client, TASK, TaskStatus.RUNNING)
        await eventually(Path(info.runner_socket).exists)
        await begin_job(info, BUSY)
        await eventually(lambda: commands_of(info).count("sleep 600 ") >= 4)
        yield client, info


def processes_of_task(info: TaskInfo) -> dict[int, str]:
    assert info.container_id is not None
    return processes_of(f"/{info.id}/", info.container_id)


def commands_of(info: TaskInfo) -> list[str]:
    return list(processes_of_task(info).values())


def left_of(info: TaskInfo) -> list[str]:
    return [one for one in commands_of(info) if KEEPER not in one]


async def first_process(info: TaskInfo) -> int:
    """Docker's child in the container, or the reaper."""
    found = await asyncio.to_thread(processes_of_task, info)
    mine = {pid for pid, command in found.items() if KEEPER not in command}
    table = procfs.processes()
    return next(pid for pid in mine if table[pid].parent not in mine)


async def kill(client: ShimClient) -> None:
    await client.terminate(TASK, TerminateRequest(grace=0), run_id=RUN, fence=FENCE)


async def test_a_killed_task_leaves_no_process(shim: ShimProcess, busybox_image: str) -> None:
    async with a_busy_task(shim, busybox_image) as (client, info):
        await kill(client)
        await until(client, TASK, TaskStatus.TERMINATED)
        assert left_of(info) == []


async def test_a_task_whose_first_process_is_killed_with_9_leaves_none(
    shim: ShimProcess, busybox_image: str
) -> None:
    async with a_busy_task(shim, busybox_image) as (client, info):
        os.kill(await first_process(info), signal.SIGKILL)
        await until(client, TASK, TaskStatus.TERMINATED)
        assert left_of(info) == []


async def test_a_task_whose_runner_is_killed_with_9_beside_its_first_process_leaves_none(
    shim: ShimProcess, busybox_image: str
) -> None:
    """Docker's own init is the first process there."""
    async with a_busy_task(shim, busybox_image, init=True) as (client, info):
        (runner, *_) = children_of(await first_process(info))
        os.kill(runner, signal.SIGKILL)
        ended = await until(client, TASK, TaskStatus.TERMINATED)
        assert left_of(info) == []
    assert ended.exit_code == 137


async def test_a_task_that_ends_while_its_shim_is_killed_leaves_no_process(
    shim: ShimProcess, busybox_image: str
) -> None:
    async with a_busy_task(shim, busybox_image) as (_, info):
        await asyncio.to_thread(shim.kill9)
        os.kill(await first_process(info), signal.SIGKILL)
        await asyncio.to_thread(shim.start)
    async with client_of(shim) as client:
        await until(client, TASK, TaskStatus.TERMINATED)
        assert left_of(info) == []


@pytest.mark.parametrize("init", [False, True], ids=["runner first", "init first"])
async def test_a_process_executed_in_a_container_from_outside_ends_with_it(
    shim_process: ShimFactory, dockerd: DockerDaemon, busybox_image: str, init: bool
) -> None:
    shim = await asyncio.to_thread(shim_process, "docker")
    sleeps = ("setsid", "env", "-i", "/bin/sh", "-c", "sleep 601; :")
    async with a_busy_task(shim, busybox_image, init=init) as (client, info):
        await asyncio.to_thread(dockerd.docker, "exec", "-d", f"fairlead-{TASK}", *sleeps)
        await eventually(lambda: "sleep 601 " in commands_of(info))
        await kill(client)
        await until(client, TASK, TaskStatus.TERMINATED)
        assert left_of(info) == []


async def test_a_container_whose_keeper_is_killed_with_9_is_not_told_to_have_ended_before_it_has(
    shim_process: ShimFactory, busybox_image: str
) -> None:
    """All that the engine knows of a container it knows from that process."""
    shim = await asyncio.to_thread(shim_process, "docker")
    async with a_busy_task(shim, busybox_image) as (client, info):
        found = await asyncio.to_thread(processes_of_task, info)
        (keeper,) = (pid for pid, command in found.items() if KEEPER in command)
        os.kill(keeper, signal.SIGKILL)
        await until(client, TASK, TaskStatus.TERMINATED)
        assert left_of(info) == []
