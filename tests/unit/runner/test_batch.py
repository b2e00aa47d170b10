"""Jobs that run one after another in the container of the first, behind a real socket."""

import asyncio
import io
import tarfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.wire.job import Repo, SubmitRequest
from fairlead.wire.runner import (
    BatchAnswer,
    BatchRequest,
    CarriedJob,
    CarriedSignal,
    CarriedStop,
    RunnerState,
    SignalRequest,
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


def is_whole(job: CarriedJob, outputs: dict[str, bytes]) -> bool:
    lost = job.outputs is None or job.outputs_lost
    return lost or len(outputs[job.attempt_id]) == (job.outputs and job.outputs.length)


async def all_over(
    client: RunnerClient, *jobs: SubmitRequest, limit: int | None = 1 << 20
) -> BatchAnswer:
    """Exchange until each job has ended or was given back, with its whole log and outputs."""
    answer = BatchAnswer()
    outputs = defaultdict[str, bytes](bytes)
    logs = {job.job.attempt_id: b"" for job in jobs}
    async with asyncio.timeout(DEADLINE):
        while True:
            offsets = {name: len(payload(frames_of(log))) for name, log in logs.items()}
            request = BatchRequest(
                jobs=jobs,
                offsets=offsets,
                outputs={name: len(tar) for name, tar in outputs.items()},
                outputs_limit=limit,
                wait=0.5,
            )
            answer = await client.batch(request)
            for one in answer.jobs:
                logs[one.attempt_id] = logs.get(one.attempt_id, b"") + one.log
                outputs[one.attempt_id] += one.outputs_piece
            if all(one.log_complete and is_whole(one, outputs) for one in answer.jobs):
                whole = [
                    msgspec.structs.replace(
                        one, log=logs[one.attempt_id], outputs_piece=outputs[one.attempt_id]
                    )
                    for one in answer.jobs
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


async def test_the_job_that_runs_gets_its_signal_with_a_file_of_its_own(tmp_path: Path) -> None:
    show = "trap 'cat \"$FAIRLEAD_SIGNAL_FILE\"; exit 0' USR1"
    loop = "echo ready; while :; do sleep 0.05; done"
    request = SignalRequest(id="preempted 0", cause="preempted", ends_in=600.0)
    async with a_runner(tmp_path) as (_, client):
        await opened(client, tmp_path)
        where, usr1 = str(tmp_path / "work"), {"name": "SIGUSR1", "before": 600.0}
        job = carried("a2", show, loop, working_dir=where, signal=usr1)
        behind = carried("a3", show, "true", working_dir=where, signal=usr1)
        signals = tuple(CarriedSignal(attempt_id=one, request=request) for one in ("a2", "a3"))
        answer = await client.batch(BatchRequest(jobs=(job, behind), wait=0.5))
        async with asyncio.timeout(DEADLINE):
            while b"ready" not in text_of(answer.jobs[0]):
                answer = await client.batch(BatchRequest(wait=0.5))
        await client.batch(BatchRequest(signals=signals))
        first, second = (await all_over(client, job, behind)).jobs
    assert (code_of(first), code_of(second)) == (0, 0)
    assert b'"cause":"preempted"' in text_of(first)
    assert text_of(second) == b"", "what has not begun is not signalled"


async def test_a_first_job_that_others_follow_reports_as_any(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (runner, client):
        assert await opened(client, tmp_path, "echo first")
        record = await exit_of(client)
        assert (record.reason, record.log_end) == ("done_by_runner", 6)
        assert runner.state is RunnerState.SERVING_LOGS


def unpacked(job: CarriedJob) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(job.outputs_piece), mode="r:") as archive:
        found = {one.name: archive.extractfile(one) for one in archive if one.isreg()}
        return {name: file.read() for name, file in found.items() if file is not None}


async def test_the_outputs_of_each_job_come_with_its_end_and_no_other_finds_them(
    tmp_path: Path,
) -> None:
    async with a_runner(tmp_path) as (_, client):
        await opened(client, tmp_path)
        where = str(tmp_path / "work")
        seen = f"ls {tmp_path}/task/jobs/*/output"
        one = carried("a2", 'echo 0.5 > "$FAIRLEAD_OUTPUT_DIR/loss"', working_dir=where)
        two = carried("a3", seen, working_dir=where)
        three = carried("a4", f"ls {tmp_path}/task/jobs/a2", working_dir=where)
        answer = await all_over(client, one, two, three)
    first, second, third = answer.jobs
    assert unpacked(first) == {"loss": b"0.5\n"}
    assert unpacked(second) == {}
    assert text_of(second) == b""
    assert b"output\n" not in text_of(third)
    assert answer.dirty is None


async def test_large_outputs_come_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "MAX_OUTPUTS", 4096)
    async with a_runner(tmp_path) as (_, client):
        await opened(client, tmp_path)
        where = str(tmp_path / "work")
        fill = 'head -c 20000 /dev/zero > "$FAIRLEAD_OUTPUT_DIR/zeros"'
        jobs = (carried("a2", fill, working_dir=where), carried("a3", fill, working_dir=where))
        answer = await all_over(client, *jobs)
    assert [unpacked(one) for one in answer.jobs] == [{"zeros": bytes(20000)}] * 2


async def test_what_is_beyond_the_limit_or_leads_out_is_left_out_and_counted(
    tmp_path: Path,
) -> None:
    (tmp_path / "secret").write_text("secret")
    command = (
        'cd "$FAIRLEAD_OUTPUT_DIR"; head -c 500 /dev/zero > fits; head -c 1000 /dev/zero > large;'
        f" ln -s {tmp_path}/secret out; ln -s {tmp_path} folder; mkfifo pipe"
    )
    async with a_runner(tmp_path) as (_, client):
        await opened(client, tmp_path)
        where = str(tmp_path / "work")
        answer = await all_over(client, carried("a2", command, working_dir=where), limit=1000)
    job = answer.jobs[0]
    assert unpacked(job) == {"fits": bytes(500)}
    assert job.outputs is not None
    assert (job.outputs.files, job.outputs.left_out, job.outputs.left_out_size) == (1, 4, 1000)


async def test_what_outputs_name_is_copied_before_the_next_job(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    async with a_runner(tmp_path) as (_, client):
        await opened(client, tmp_path)
        where = str(tmp_path / "work")
        write = f"echo $MINE > {tmp_path}/results/value"
        jobs = [
            carried(
                name,
                write,
                working_dir=where,
                env={"MINE": name},
                outputs=(f"{tmp_path}/results/value",),
            )
            for name in ("a2", "a3")
        ]
        answer = await all_over(client, *jobs)
    whole = f"{tmp_path}/results/value".lstrip("/")
    assert [unpacked(one) for one in answer.jobs] == [{whole: b"a2\n"}, {whole: b"a3\n"}]


async def test_a_controller_that_stores_no_outputs_is_told_what_it_loses(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await opened(client, tmp_path)
        write = 'echo 0.5 > "$FAIRLEAD_OUTPUT_DIR/loss"'
        job = carried("a2", write, working_dir=str(tmp_path / "work"))
        answer = await all_over(client, job, limit=None)
    assert answer.jobs[0].outputs is None
    assert b"1 entries of the output folder are not stored" in text_of(answer.jobs[0])


async def test_outputs_that_another_job_removed_are_lost_and_hold_up_nothing(
    tmp_path: Path,
) -> None:
    async with a_runner(tmp_path) as (_, client):
        await opened(client, tmp_path)
        where = str(tmp_path / "work")
        write = 'echo 0.5 > "$FAIRLEAD_OUTPUT_DIR/loss"'
        remove = f"rm {tmp_path}/task/jobs/a2/outputs.tar"
        jobs = (carried("a2", write, working_dir=where), carried("a3", remove, working_dir=where))
        first = BatchRequest(jobs=jobs, outputs_limit=1 << 20)
        async with asyncio.timeout(DEADLINE):
            answer = await client.batch(first)
            while answer.jobs[1].exit is None:
                sent = {"a2": 1 << 30}
                answer = await client.batch(BatchRequest(outputs=sent, outputs_limit=1, wait=0.5))
        answer = await client.batch(BatchRequest(outputs_limit=1))
    assert answer.jobs[0].outputs_lost


async def test_the_code_that_the_first_job_brought_is_there_and_is_not_asked_for_again(
    tmp_path: Path,
) -> None:
    code = tmp_path / "work/code"
    async with a_runner(tmp_path) as (_, client):
        await opened(client, tmp_path)
        (code / "deep").mkdir(parents=True)
        (code / "deep/main.py").write_text("print('ran')")
        where, repos = str(tmp_path / "work"), (Repo(path="code", archive="0" * 64),)
        one = carried(
            "a2",
            "mkdir -p code/deep/__pycache__; cat $FAIRLEAD_REPO_DIR/deep/main.py",
            working_dir=where,
            repos=repos,
        )
        two = carried("a3", "echo >> code/deep/main.py", working_dir=where, repos=repos)
        answer = await all_over(client, one, two)
    first, second = answer.jobs
    assert text_of(first) == b"print('ran')"
    assert (code_of(first), code_of(second)) == (0, 0)
    assert answer.dirty == f"{code} changed"
