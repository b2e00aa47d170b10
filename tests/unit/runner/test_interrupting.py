"""Jobs that are asked to end so that they can come back, and jobs that a limit ends."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fairlead.wire.frames import Stream
from fairlead.wire.runner import RunnerState
from runner.client import RunnerError
from tests.support.shells import at_term
from tests.support.waiting import eventually
from tests.unit.runner.harness import (
    DEADLINE,
    a_job,
    a_runner,
    exit_of,
    followed,
    payload,
    run_job,
    until,
    until_output,
)

SAVES = at_term("echo saved; exit 75")


async def interrupted(folder: Path, command: str, grace: float) -> tuple[str, int | None]:
    async with a_runner(folder) as (_, client):
        await client.submit(a_job(command, restart_exit_code=75))
        await client.run()
        await until_output(client, b"ready\n")
        await client.stop(grace=grace, interrupt=True)
        record = await exit_of(client)
    return record.reason, record.exit_code


async def test_the_restart_exit_code_means_interrupted(tmp_path: Path) -> None:
    assert await interrupted(tmp_path, SAVES, DEADLINE) == ("interrupted", 75)


async def test_a_job_that_is_done_is_done_although_interrupted(tmp_path: Path) -> None:
    command = SAVES.replace("75", "0")
    assert await interrupted(tmp_path, command, DEADLINE) == ("done_by_runner", 0)


async def test_another_exit_code_is_an_error(tmp_path: Path) -> None:
    command = SAVES.replace("75", "3")
    assert await interrupted(tmp_path, command, DEADLINE) == ("container_exited_with_error", 3)


async def test_no_end_within_the_grace_is_an_interruption(tmp_path: Path) -> None:
    command = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    assert await interrupted(tmp_path, command, 0.1) == ("interrupted", 137)


async def test_an_end_within_the_grace_counts_though_its_children_are_killed(
    tmp_path: Path,
) -> None:
    command = f"(trap '' TERM; while :; do sleep 0.05; done) & {SAVES}"
    async with a_runner(tmp_path) as (_, client):
        await client.submit(a_job(command, restart_exit_code=75))
        await client.run()
        await until_output(client, b"ready\n")
        main = Path(f"/proc/{(await until(client, RunnerState.RUNNING)).pid}")
        await client.stop(grace=3600, interrupt=True)
        await eventually(lambda: not main.exists())
        await client.stop(grace=0)
        record = await exit_of(client)
    assert (record.reason, record.exit_code) == ("interrupted", 75)


async def test_the_restart_exit_code_alone_is_no_interruption(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        record = await run_job(client, a_job("exit 75", restart_exit_code=75))
    assert record.reason == "container_exited_with_error"


async def test_the_log_quota_of_a_job_is_kept_and_the_job_goes_on(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (runner, client):
        record = await run_job(client, a_job("seq 1 600000", log_quota=1 << 20))
        frames = await followed(client)
        kept = sum(path.stat().st_size for path in (tmp_path / "task/logs").iterdir())
    assert record.reason == "done_by_runner"
    assert frames[0].stream is Stream.MARKER
    assert frames[0].end == frames[0].dropped == runner.log.start
    assert payload(frames[1:]).endswith(b"599999\n600000\n")
    assert kept <= (1 << 20) + 4096


async def test_a_job_ends_at_its_log_quota_only_if_it_asked_for_that(tmp_path: Path) -> None:
    job = a_job("yes", log_quota=1 << 20, fail_on_log_quota=True)
    async with a_runner(tmp_path) as (_, client), asyncio.timeout(DEADLINE):
        record = await run_job(client, job)
    assert (record.reason, record.signal) == ("log_quota_exceeded", "SIGTERM")
    assert record.message == "stopped when its log had more than log_quota (1048576 bytes)"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"log_quota": 1000}, "job.log_quota"),
        ({"restart_exit_code": 0}, "job.restart_exit_code"),
        ({"restart_exit_code": 256}, "job.restart_exit_code"),
    ],
)
async def test_impossible_values_are_refused(
    tmp_path: Path, fields: dict[str, Any], field: str
) -> None:
    async with a_runner(tmp_path) as (_, client):
        with pytest.raises(RunnerError) as caught:
            await client.submit(a_job("true", **fields))
    assert caught.value.field == field
