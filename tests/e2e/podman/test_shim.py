"""`fairlead-shim --engine podman`: a task's life, and what it keeps from others."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fairlead.wire.node import EngineKind, FindingLevel
from fairlead.wire.runner import ExitRecord
from fairlead.wire.shim import TaskStatus, TerminateRequest
from shim.engines import podman as module
from shim.examination import NodeSetup, ask
from tests.e2e.podman.conftest import BUSYBOX
from tests.e2e.shim_client import FENCE, RUN, begin_job, client_of, request, until
from tests.support.podman_daemon import PodmanDaemon
from tests.support.processes import ShimProcess
from tests.support.waiting import eventually

pytestmark = pytest.mark.e2e


@pytest.fixture
def shim(
    podman: PodmanDaemon, runtime: Path, testbed_folder: Path, numbers: Iterator[int]
) -> Iterator[ShimProcess]:
    folder = testbed_folder / f"n{next(numbers)}"
    made = ShimProcess(folder, "podman", "--runtime", runtime, env=podman.env)
    made.start()
    yield made
    made.close()
    podman.remove_containers()


async def test_a_job_runs_and_its_log_exit_code_and_secrets_are_as_with_docker(
    shim: ShimProcess, podman: PodmanDaemon
) -> None:
    async with client_of(shim) as client:
        await client.put_task("t1", request(BUSYBOX), fence=FENCE)
        info = await until(client, "t1", TaskStatus.RUNNING)
        await eventually(Path(info.runner_socket).exists)
        await begin_job(info, "echo said; exit 7", secrets={"TOKEN": "hush-hush"})
        ended = await until(client, "t1", TaskStatus.TERMINATED)
        async with client.logs("t1") as log:
            said = b"".join([piece async for piece in log.pieces()])
        seen = await asyncio.to_thread(podman.podman, "inspect", "fairlead-t1")
        node = await client.node()
    record = msgspec.json.decode(ended.exit_record or "{}", type=ExitRecord)
    assert (record.exit_code, ended.reason) == (7, None)
    assert b"said" in said
    assert "hush-hush" not in seen
    assert (node.engine, node.isolation, node.engine_lacks) == (EngineKind.PODMAN, True, ())


async def test_a_task_outlives_its_shim_and_its_service(
    shim: ShimProcess, podman: PodmanDaemon
) -> None:
    async with client_of(shim) as client:
        await client.put_task("t1", request(BUSYBOX), fence=FENCE)
        before = await until(client, "t1", TaskStatus.RUNNING)
        await eventually(Path(before.runner_socket).exists)
    await asyncio.to_thread(shim.kill9)
    await asyncio.to_thread(podman.kill9)
    await asyncio.to_thread(podman.start)
    await asyncio.to_thread(shim.start)
    async with client_of(shim) as client:
        after = await client.task("t1")
        assert (after.status, after.container_id) == (TaskStatus.RUNNING, before.container_id)
        await begin_job(after, "trap '' TERM; echo ready; while :; do sleep 0.1; done")
        await client.terminate("t1", TerminateRequest(grace=0.5), run_id=RUN, fence=FENCE)
        ended = await until(client, "t1", TaskStatus.TERMINATED)
        await client.remove_task("t1", run_id=RUN, fence=FENCE)
        await client.release_allocation("place-1", run_id=RUN, fence=FENCE)
        node = await client.node()
    record = msgspec.json.decode(ended.exit_record or "{}", type=ExitRecord)
    assert (record.signal, record.exit_code) == ("SIGKILL", 137)
    assert (node.cpu_allocated, node.unlabelled) == (0.0, ())
    assert os.listdir(shim.socket.parent / "tasks") == []


def test_the_doctor_starts_a_real_container(
    podman: PodmanDaemon, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTAINER_HOST", podman.url)
    node = NodeSetup(runtime=runtime, engine=EngineKind.PODMAN)
    messages = {each.message: each.level for each in module.examine(node, ask)}
    assert messages["a container with the runtime starts"] is FindingLevel.OK
