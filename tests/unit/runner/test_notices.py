"""Lines from outside of the job: in its log, once, at offsets that all readers agree on."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.wire.frames import Stream
from fairlead.wire.runner import RunnerState
from runner.client import RunnerError
from tests.unit.runner.harness import a_job, a_runner, exit_of, frames_of, payload, until_output

LINE = "[gpu-health] GPU 0 (NVIDIA H100, GPU-0): the GPU is lost; no new job gets this GPU"


async def test_a_notice_is_one_line_of_the_log_however_often_it_is_told(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await client.submit(a_job("echo before; sleep 60"))
        await client.run()
        await until_output(client, b"before\n")
        for _ in range(3):
            await client.notice("GPU-0:lost", LINE)
        frames = frames_of((await client.logs(0)).frames)
        assert [f.payload for f in frames if f.stream is Stream.SYSTEM] == [f"{LINE}\n".encode()]
        assert payload(frames) == f"before\n{LINE}\n".encode()
        assert [f.offset for f in frames] == [0, 7]


async def test_a_notice_begins_a_line_of_its_own(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await client.submit(a_job("printf 40%%; sleep 60"))
        await client.run()
        await until_output(client, b"40%")
        await client.notice("1", "two\nlines \x1b[31m")
        log = payload(frames_of((await client.logs(0)).frames))
        assert log == b"40%\ntwo lines  [31m\n"


async def test_after_the_jobs_end_a_notice_is_refused_and_the_log_stays(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await client.submit(a_job("echo done"))
        await client.run()
        record = await exit_of(client)
        with pytest.raises(RunnerError) as refused:
            await client.notice("1", LINE)
        assert (refused.value.status, refused.value.code) == (409, "ended")
        assert (await client.health()).log_end == record.log_end


async def test_a_notice_waits_in_the_log_for_a_job_that_has_not_begun(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (runner, client):
        await client.notice("1", LINE)
        assert runner.state is RunnerState.WAITING_FOR_JOB
        assert payload(frames_of((await client.logs(0)).frames)) == f"{LINE}\n".encode()
