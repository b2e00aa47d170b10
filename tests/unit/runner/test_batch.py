"""Jobs that run one after another in the container of the first, behind a real socket."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.wire.runner import (
    BatchAnswer,
    BatchRequest,
    CarriedJob,
    CarriedStop,
    RunnerState,
    SubmitRequest,
)
from runner.client import RunnerClient
from runner.job import batch
from tests.unit.runner.harness import (
    DEADLINE,
    a_job,
    a_runner,
    exit_of,
    frames_of,
    payload,
    run_job,
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loaded machine a tiny job may take longer than a runner waits for one."""
    monkeypatch.setattr(batch, "PATIENCE", DEADLINE)


def carried(attempt_id: str, *commands: str, **fields: Any) -> SubmitRequest:
    request = a_job(*commands, **fields)
    job = msgspec.structs.replace(request.job, attempt_id=attempt_id)
    return msgspec.structs.replace(request, job=job)


async def opened(client: RunnerClient, folder: Path, *commands: str) -> bool:
    """Run the first job; return whether its container may carry others."""
    (folder / "work").mkdir()
    first = a_job(*(commands or ("true",)), reuse_container=True, working_dir=str(folder / "work"))
    return (await run_job(client, first)).clean


async def all_over(client: RunnerClient, *jobs: SubmitRequest) -> BatchAnswer:
    """Exchange until each job has ended or was given back, with its whole log."""
    answer = BatchAnswer()
    logs = {job.job.attempt_id: b"" for job in jobs}
    async with asyncio.timeout(DEADLINE):
        while True:
            offsets = {name: len(payload(frames_of(log))) for name, log in logs.items()}
            request = BatchRequest(jobs=jobs, offsets=offsets, wait=0.5)
            answer = await client.batch(request)
            for one in answer.jobs:
                logs[one.attempt_id] = logs.get(one.attempt_id, b"") + one.log
            if all(one.log_complete for one in answer.jobs):
                whole = [
                    msgspec.structs.replace(one, log=logs[one.attempt_id]) for one in answer.jobs
                ]
                return msgspec.structs.replace(answer, jobs=tuple(whole))


def code_of(job: CarriedJob) -> int | None:
    assert job.exit is not None, "it has ended"
    return job.exit.exit_code


def text_of(job: CarriedJob) -> bytes:
    return payload(frames_of(job.log))


async def test_each_job_has_its_own_end_log_and_environment(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        assert await opened(client, tmp_path)
        where = str(tmp_path / "work")
        one = carried("a2", "echo one $MINE", working_dir=where, env={"MINE": "1"})
        two = carried("a3", "echo two $MINE; exit 7", working_dir=where)
        answer = await all_over(client, one, two)
    first, second = answer.jobs
    assert (text_of(first), text_of(second)) == (b"one 1\n", b"two\n")
    assert (code_of(first), code_of(second)) == (0, 7)
    assert answer.dirty is None


async def test_a_job_that_was_sent_twice_runs_once(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await opened(client, tmp_path)
        job = carried("a2", f"echo ran >> {tmp_path}/count", working_dir=str(tmp_path / "work"))
        await all_over(client, job)
        await all_over(client, job)
        assert (tmp_path / "count").read_text() == "ran\n"


async def test_what_is_stored_is_forgotten_with_its_files(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await opened(client, tmp_path)
        await all_over(client, carried("a2", "true", working_dir=str(tmp_path / "work")))
        assert (tmp_path / "task/jobs/a2").exists()
        answer = await client.batch(BatchRequest(stored=("a2",)))
        assert answer.jobs == ()
        assert not (tmp_path / "task/jobs/a2").exists()


async def test_a_job_that_leaves_a_file_ends_the_batch(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await opened(client, tmp_path)
        where = str(tmp_path / "work")
        dirty = carried("a2", "touch left", working_dir=where)
        answer = await all_over(client, dirty, carried("a3", "true", working_dir=where))
    first, second = answer.jobs
    assert code_of(first) == 0
    assert (second.returned, second.began_at) == (True, None)
    assert answer.dirty == f"{where} changed"


async def test_a_job_that_leaves_a_process_ends_the_batch(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await opened(client, tmp_path)
        where = str(tmp_path / "work")
        command = "sleep 600 >/dev/null 2>&1 & echo started"
        answer = await all_over(
            client,
            carried("a2", command, working_dir=where),
            carried("a3", "true", working_dir=where),
        )
    assert answer.dirty == "a process was left"
    assert answer.jobs[1].returned


async def test_a_dirty_first_job_lets_no_other_run(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        assert not await opened(client, tmp_path, "touch left")
        answer = await client.batch(BatchRequest(jobs=(carried("a2", "true"),)))
        assert answer.jobs[0].returned


async def test_a_job_that_has_not_begun_is_taken_back(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await opened(client, tmp_path)
        where = str(tmp_path / "work")
        long = carried("a2", "sleep 600", working_dir=where)
        waits = carried("a3", "true", working_dir=where)
        await client.batch(BatchRequest(jobs=(long, waits)))
        answer = await client.batch(BatchRequest(stop=(CarriedStop(attempt_id="a3"),)))
        assert [one.returned for one in answer.jobs] == [False, True]
        stop = CarriedStop(attempt_id="a2", signal="SIGKILL", grace=0.0)
        await client.batch(BatchRequest(stop=(stop,)))
        answer = await all_over(client, long)
    assert answer.jobs[0].exit is not None or answer.jobs[0].returned


async def test_a_damaged_log_costs_no_other_its_own(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await opened(client, tmp_path)
        where, logs = str(tmp_path / "work"), tmp_path / "task/jobs/a2/logs"
        damage = f"echo mine; sleep 0.2; for f in {logs}/*; do printf XXXXXXXXXXXXXXXX > $f; done"
        answer = await all_over(
            client,
            carried("a2", damage, working_dir=where),
            carried("a3", "echo whole", working_dir=where),
        )
    first, second = answer.jobs
    assert (code_of(first), first.log_complete) == (0, True)
    assert text_of(second) == b"whole\n"


async def test_a_first_job_that_others_follow_reports_as_any(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (runner, client):
        assert await opened(client, tmp_path, "echo first")
        record = await exit_of(client)
        assert (record.reason, record.log_end) == ("done_by_runner", 6)
        assert runner.state is RunnerState.SERVING_LOGS
