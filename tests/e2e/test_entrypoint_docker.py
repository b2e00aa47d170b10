"""The entrypoint as pid 1 of real containers, of images that have nothing of ours in them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from runner.client import RunnerClient
from tests.support.dialling import dial_to
from tests.support.docker_daemon import DockerDaemon
from tests.support.shells import at_term
from tests.support.waiting import eventually
from tests.unit.runner.harness import (
    DEADLINE,
    a_job,
    a_session,
    followed,
    payload,
    run_job,
    until_output,
)

pytestmark = pytest.mark.e2e


@contextlib.asynccontextmanager
async def a_container(
    dockerd: DockerDaemon, runtime: Path, folder: Path, image: str, *options: str
) -> AsyncIterator[tuple[str, RunnerClient]]:
    """Its name, and a client outside its pid namespace, which is what `--peers node` asks for. Its
    runner waits to be asked, however soon its job ends: until what it wrote is acknowledged."""
    for part in ("job", "run"):
        (folder / part).mkdir(parents=True)
    mounts = (
        f"type=bind,src={runtime},dst=/opt/fairlead/runtime,readonly",
        f"type=bind,src={folder / 'job'},dst=/opt/fairlead/task",
        f"type=bind,src={folder / 'run'},dst=/opt/fairlead/run",
    )
    arguments = [word for mount in mounts for word in ("--mount", mount)]
    program = "/opt/fairlead/runtime/bin/fairlead-entrypoint"
    paths = ("--task", "/opt/fairlead/task", "--socket", "/opt/fairlead/run/runner.sock")
    name = await asyncio.to_thread(
        dockerd.docker, "run", "-d", "--network", "none", *arguments, *options,
        "--entrypoint", program, image, *paths, "--peers", "node", "--linger", "3600",
    )  # fmt: skip
    socket = folder / "run" / "runner.sock"
    try:
        await eventually(socket.exists)
        async with a_session(socket) as session:
            yield (
                name.strip(),
                RunnerClient(
                    session,
                    dial=lambda: asyncio.open_unix_connection(socket),
                    dial_answer=dial_to(socket),
                ),
            )
    finally:
        await asyncio.to_thread(dockerd.docker, "rm", "-f", name.strip())


async def exit_code(dockerd: DockerDaemon, name: str) -> int:
    waiting = asyncio.to_thread(dockerd.docker, "wait", name)
    return int(await asyncio.wait_for(waiting, DEADLINE))


@pytest.fixture
def folder(testbed_folder: Path, numbers: Iterator[int]) -> Path:
    return testbed_folder / f"e{next(numbers)}"


async def test_commands_run_in_an_image_without_python(
    dockerd: DockerDaemon, runtime: Path, busybox_image: str, folder: Path
) -> None:
    async with a_container(dockerd, runtime, folder, busybox_image) as (name, client):
        await client.submit(a_job("echo $$; (sleep 1000 &)", "echo hello; exit 7"))
        await client.run()
        frames = await followed(client)
        await client.ack(frames[-1].end)
        assert await exit_code(dockerd, name) == 7
    output = payload(frames)
    assert output.endswith(b"hello\n")


async def test_an_image_without_a_shell_runs_its_entrypoint_and_refuses_commands(
    dockerd: DockerDaemon, runtime: Path, noshell_image: str, folder: Path
) -> None:
    async with a_container(dockerd, runtime, folder / "a", noshell_image) as (_, client):
        await client.submit(a_job(entrypoint=["/tool", "echo", "hi"]))
        await client.run()
        assert payload(await followed(client)) == b"hi\n"
    async with a_container(dockerd, runtime, folder / "b", noshell_image) as (_, client):
        record = await run_job(client, a_job("echo hi"))
    assert record.reason == "executor_error"
    assert "use `entrypoint: [program" in str(record.message)


async def test_the_environment_is_the_images(
    dockerd: DockerDaemon, runtime: Path, busybox_image: str, folder: Path
) -> None:
    image = ("-e", "PYTHONHOME=/nowhere", "-e", "LD_LIBRARY_PATH=/lib/x", "-e", "LANG=de_DE")
    async with a_container(dockerd, runtime, folder, busybox_image, *image) as (_, client):
        await client.submit(a_job("env"))
        await client.run()
        lines = payload(await followed(client)).decode().splitlines()
    assert {"PYTHONHOME=/nowhere", "LD_LIBRARY_PATH=/lib/x", "LANG=de_DE"} <= set(lines)
    assert not [line for line in lines if "MALLOC" in line or "FAIRLEAD_ORIG" in line]
    about_the_job = ("FAIRLEAD_WORKING_DIR=", "FAIRLEAD_REPO_DIR=", "FAIRLEAD_OUTPUT_DIR=")
    runtime_s = [line for line in lines if not line.startswith(about_the_job)]
    assert not [line for line in runtime_s if "/opt/fairlead" in line]


async def test_the_memory_limit_is_told_as_such(
    dockerd: DockerDaemon, runtime: Path, busybox_image: str, folder: Path
) -> None:
    limit = ("--memory", "96m", "--memory-swap", "96m")
    async with a_container(dockerd, runtime, folder, busybox_image, *limit) as (_, client):
        record = await run_job(client, a_job("tail /dev/zero"))
    assert record.reason == "out_of_memory"


async def test_docker_stop_ends_the_job_gracefully(
    dockerd: DockerDaemon, runtime: Path, busybox_image: str, folder: Path
) -> None:
    async with a_container(dockerd, runtime, folder, busybox_image) as (name, client):
        await client.submit(a_job(at_term("exit 9")))
        await client.run()
        await until_output(client, b"ready\n")
        await asyncio.to_thread(dockerd.docker, "stop", "-t", "30", name)
        assert await exit_code(dockerd, name) == 9
    record = json.loads(await asyncio.to_thread((folder / "job/exit.json").read_text))
    assert (record["exit_code"], record["reason"]) == (9, "container_exited_with_error")


async def test_the_job_cannot_speak_to_its_runner(
    dockerd: DockerDaemon, runtime: Path, busybox_image: str, folder: Path
) -> None:
    """The image has no client: the runtime's interpreter, which the job can execute, is one."""
    attempt = (
        "import socket; s = socket.socket(socket.AF_UNIX); "
        "s.connect('/opt/fairlead/run/runner.sock'); print(s.recv(100))"
    )
    python = f'/opt/fairlead/runtime/bin/python3.*[0-9] -I -S -c "{attempt}"'
    async with a_container(dockerd, runtime, folder, busybox_image) as (_, client):
        await client.submit(a_job(f"{python} 2>&1; echo tried"))
        await client.run()
        output = payload(await followed(client))
    assert output == b"b''\ntried\n"


async def test_a_container_tells_what_its_job_uses_and_who_visits_it(
    dockerd: DockerDaemon, runtime: Path, busybox_image: str, folder: Path
) -> None:
    options = ("--memory", "512m")
    eats = "dd if=/dev/zero of=/dev/null bs=64M count=20 2> /dev/null"
    listens = "until cat /proc/net/tcp* | grep -q :2328; do sleep 0.05; done"
    serves = f"nc -l -p 9000 -e cat & {listens}; echo serving; wait"
    async with a_container(dockerd, runtime, folder, busybox_image, *options) as (_, client):
        before = await client.metrics()
        await client.submit(a_job(eats, serves))
        await client.run()
        await until_output(client, b"serving\n")
        stream = await client.connect_port(9000)
        stream.writer.write(b"hello")
        echoed = await stream.reader.read(5)
        during = await client.metrics()
        stream.writer.close()
    assert echoed == b"hello"
    assert (before.connections, during.connections) == (0, 1)
    assert (during.memory_limit, during.oom_kills) == (512 << 20, 0)
    assert before.cpu_seconds is not None
    assert during.cpu_seconds is not None
    assert during.cpu_seconds > before.cpu_seconds
    assert during.memory is not None
    assert during.memory_peak is not None
    assert during.memory_peak >= 64 << 20
    assert 512 << 20 > during.memory > 0
