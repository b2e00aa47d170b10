"""A task that is root in its container and fills the folders that it shares with the shim.

Its script has the place of the runner, as a job would that took the runner over.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fairlead.wire.shim import TaskInfo, TaskStatus, TerminateRequest
from shim.client import ShimClient
from tests.e2e.shim_client import client_of, until
from tests.support import images
from tests.support.docker_daemon import DockerDaemon
from tests.support.kill_lab import FENCE, KillLab, path_with
from tests.support.waiting import LONG, eventually

pytestmark = pytest.mark.e2e

CANARY = "the-nodes-own-secret"
MAX_READ = 64 << 20
MAX_MEMORY = 32 << 20
KILL = TerminateRequest(grace=0, reason="terminated_by_user")

LINKS = """
ln -s {secret} $2/logs/00000000000000000000.seg
ln -s {secret} $2/exit.json
ln -s {folder} $2/logs/deeper
"""
PIPES = """
mkfifo $2/logs/00000000000000000000.seg $2/exit.json
"""
HUGE = """
truncate -s 8796093022208 $2/logs/00000000000000000000.seg
truncate -s 8796093022208 $2/exit.json
"""
MANY = """
cd $2/logs; i=0; while [ $i -lt 4000 ]; do : > $i.seg; i=$((i+1)); done
cd $2; i=0; while [ $i -lt 1200 ]; do mkdir d; cd d; i=$((i+1)); done
"""
FOLDER_GONE = """
rm -rf $2/logs; ln -s {folder} $2/logs
"""


@pytest.fixture
def lab(testbed_folder: Path) -> Iterator[KillLab]:
    folder = Path(tempfile.mkdtemp(prefix="h", dir=testbed_folder))
    for name in ("docker", "bin", "lab"):
        (folder / name).mkdir()
    with path_with(folder / "bin"):
        docker = DockerDaemon(folder / "docker")
        docker.start()
        docker.import_image("busybox:faults", images.busybox_root(folder / "busybox"))
        lab = KillLab(folder / "lab", docker, "busybox:faults", seed=7)
        yield lab
        lab.close()
        docker.stop()


@pytest.fixture
def secret(testbed_folder: Path) -> Path:
    file = Path(tempfile.mkdtemp(prefix="s", dir=testbed_folder)) / "secret"
    file.write_text(CANARY)
    return file


async def running(lab: KillLab, script: str, number: int = 0) -> TaskInfo:
    """A task whose container has carried out the script."""
    await asyncio.to_thread(lab.be, f"mkdir -p $2/logs\n{script}\n: > $2/done\nsleep 100000 & wait")
    task_id = f"t{number}"
    async with client_of(lab.shim) as client:
        await client.put_task(task_id, lab.request(number, device=False), fence=FENCE)
        info = await until(client, task_id, TaskStatus.RUNNING)
    await eventually((lab.shim.data / "tasks" / task_id / "job" / "done").exists)
    return info


async def read_log(client: ShimClient) -> bytearray:
    """Its beginning; a log without an end is left."""
    data = bytearray()
    async with client.logs("t0", 0) as stream:
        async for piece in stream.pieces():
            data += piece
            if len(data) > MAX_READ:
                break
    return data


@pytest.mark.parametrize(
    "harm",
    [LINKS, PIPES, HUGE, MANY, FOLDER_GONE],
    ids=["links", "pipes", "huge", "many", "no folder"],
)
async def test_the_shim_reads_nothing_outside_does_not_hang_and_stays_small(
    lab: KillLab, secret: Path, harm: str
) -> None:
    await asyncio.to_thread(lab.shim.start)
    await running(lab, harm.format(secret=secret, folder=secret.parent))
    before = psutil.Process(lab.shim.pid).memory_info().rss
    async with client_of(lab.shim) as client, asyncio.timeout(LONG):
        log = await read_log(client)
        await client.terminate("t0", KILL, run_id="run-0", fence=FENCE)
        ended = await until(client, "t0", TaskStatus.TERMINATED)
        await client.health()
        after = psutil.Process(lab.shim.pid).memory_info().rss
        await client.remove_task("t0", run_id="run-0", fence=FENCE)
        folders = await asyncio.to_thread(os.listdir, lab.shim.data / "tasks")
    assert CANARY.encode() not in log
    assert (ended.exit_record, folders) == (None, [])
    assert after - before < MAX_MEMORY


async def test_a_socket_that_the_task_bends_to_anothers_leads_nobody_there(
    lab: KillLab, secret: Path
) -> None:
    path = secret.with_name("other.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        other.listen()
        await asyncio.to_thread(lab.shim.start)
        info = await running(lab, f"ln -s {path} /opt/fairlead/run/runner.sock")
        log = lab.shim.daemon.log
        await eventually(lambda: "cannot be reached" in log.read_text())
        await asyncio.to_thread(lab.shim.restart)
        async with client_of(lab.shim) as client:
            assert (await client.task("t0")).status is TaskStatus.RUNNING
        with pytest.raises(FileNotFoundError):
            await asyncio.open_unix_connection(info.runner_socket)
