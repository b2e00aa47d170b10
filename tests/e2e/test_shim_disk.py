"""A whole shim on a disk that breaks below it: nothing acknowledged is lost, all else is refused
with the reason, and all goes on once the disk does."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from fairlead.wire.shim import DrainRequest, TaskRequest, TaskStatus, TerminateRequest
from shim.client import ShimClient, ShimError
from tests.e2e.shim_client import FENCE, RUN, client_of, request, until
from tests.support.disk import FailingDisk
from tests.support.processes import ShimProcess
from tests.support.waiting import eventually

pytestmark = pytest.mark.e2e

STOP = TerminateRequest(grace=5, reason="terminated_by_user")
BROKEN = [(errno.EIO, ""), (errno.EROFS, ""), (errno.ENOSPC, "write"), (errno.EIO, "fsync")]
BROKEN += [(errno.EIO, "rename")]


@pytest.fixture
def folder(testbed_folder: Path, numbers: Iterator[int]) -> Path:
    return testbed_folder / f"disk{next(numbers)}"


@pytest.fixture
def disk(folder: Path) -> FailingDisk:
    if shutil.which("gcc") is None:
        pytest.fail("gcc is missing: apt-get install gcc libc6-dev", pytrace=False)
    return FailingDisk(folder / "disk", folder / "node" / "data" / "records")


@pytest.fixture
def shim(folder: Path, disk: FailingDisk) -> Iterator[ShimProcess]:
    made = ShimProcess(folder / "node", "process", env=disk.env)
    made.start()
    yield made
    made.close()


async def refused(client: ShimClient, *, wholly: bool) -> list[ShimError]:
    """All that a controller may ask for and that has to be kept; or, where only something of the
    disk is broken, what would need just that."""
    asked: list[Callable[[], Awaitable[object]]] = [
        lambda: client.put_task("t2", _placed("place-2"), fence=FENCE),
        lambda: client.terminate("t1", STOP, run_id=RUN, fence=FENCE),
        lambda: client.drain(DrainRequest(draining=True, reason="rest")),
    ]
    if wholly:
        asked.append(lambda: client.release_allocation("place-0", run_id=RUN, fence=FENCE))
        asked.append(lambda: client.remove_task("t0", run_id=RUN, fence=FENCE))
    errors = []
    for ask in asked:
        with pytest.raises(ShimError) as caught:
            await ask()
        errors.append(caught.value)
    return errors


@pytest.mark.parametrize(("number", "only"), BROKEN)
async def test_a_task_that_a_broken_disk_cannot_keep_is_refused_and_the_others_go_on(
    shim: ShimProcess, disk: FailingDisk, number: int, only: str
) -> None:
    async with client_of(shim) as client:
        await _with_an_old_task(client)
        await client.put_task("t1", _placed("place-1"), fence=FENCE)
        await until(client, "t1", TaskStatus.RUNNING)
        with disk.broken(number, only) as words:
            errors = await refused(client, wholly=not only)
            assert {error.code for error in errors} == {"storage"}
            assert all(words in error.message for error in errors)
            ended = await until(client, "t1", TaskStatus.TERMINATED)
            assert ended.reason == "terminated_by_user", "it was stopped all the same"
            assert sorted(info.id for info in await client.tasks()) == ["t0", "t1"]
            assert [a.id for a in await client.allocations()] == ["place-0", "place-1"]
            assert not (await client.node()).draining
        kept = shim.data / "records" / "tasks" / "t1.json"
        await eventually(lambda: b'"terminated"' in kept.read_bytes(), what="the end to be kept")
    await asyncio.to_thread(shim.restart)
    async with client_of(shim) as client:
        after = await client.task("t1")
        assert (after.status, after.reason) == (TaskStatus.TERMINATED, "terminated_by_user")
        assert sorted(info.id for info in await client.tasks()) == ["t0", "t1"]
        for task, place in (("t0", "place-0"), ("t1", "place-1")):
            await client.remove_task(task, run_id=RUN, fence=FENCE)
            await client.release_allocation(place, run_id=RUN, fence=FENCE)
        node = await client.node()
        assert (node.cpu_allocated, node.draining, node.unlabelled) == (0.0, False, ())


async def test_a_shim_that_cannot_keep_that_it_lives_says_so_and_does_not_start(
    shim: ShimProcess, disk: FailingDisk
) -> None:
    async with client_of(shim) as client:
        await client.put_task("t1", _placed("place-1"), fence=FENCE)
        before = await until(client, "t1", TaskStatus.RUNNING)
    await asyncio.to_thread(shim.kill9)
    with disk.broken(errno.EIO) as words:
        failed = await asyncio.create_subprocess_exec(
            *shim.daemon.argv, env=shim.daemon.env, stderr=asyncio.subprocess.PIPE
        )
        _, said = await failed.communicate()
    assert failed.returncode == 1
    assert said.decode().splitlines()[-1].endswith(words)
    assert "Traceback" not in said.decode()
    await asyncio.to_thread(shim.start)
    async with client_of(shim) as client:
        after = await client.task("t1")
    assert (after.status, after.container_id) == (TaskStatus.RUNNING, before.container_id)


async def _with_an_old_task(client: ShimClient) -> None:
    """One that has ended and still has its place."""
    await client.put_task("t0", _placed("place-0"), fence=FENCE)
    await until(client, "t0", TaskStatus.RUNNING)
    await client.terminate("t0", STOP, run_id=RUN, fence=FENCE)
    await until(client, "t0", TaskStatus.TERMINATED)


def _placed(place: str) -> TaskRequest:
    return msgspec.structs.replace(request("none"), allocation_id=place)
