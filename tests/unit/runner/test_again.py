"""A job that starts again in its container, for real, behind a real socket."""

from __future__ import annotations

import asyncio
import hashlib
import io
import subprocess
import tarfile
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from common.files.task_folder import OUTPUT_FOLDER_NAME
from fairlead.wire.frames import Stream
from fairlead.wire.job import SubmitRequest
from fairlead.wire.runner import AgainRequest, RunnerState
from runner.client import RunnerClient, RunnerError
from runner.job.outcome import process_table
from runner.processes.launch import Launch
from tests.support.shells import at_term
from tests.unit.runner.harness import (
    a_job,
    a_runner,
    exit_of,
    followed,
    payload,
    until,
    until_output,
)


def packed(**files: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content.encode()))
    return buffer.getvalue()


def with_files(folder: Path, code: bytes, *commands: str, **fields: Any) -> SubmitRequest:
    files = [{"path": str(folder / "code"), "archive": hashlib.sha256(code).hexdigest()}]
    place = {"working_dir": str(folder), "keeps_for": 60.0, "stop_duration": 5.0}
    return a_job(*commands, files=files, **{**place, **fields})


async def start(client: RunnerClient, job: SubmitRequest, code: bytes) -> None:
    await client.submit(job)
    await client.put_code(hashlib.sha256(code).hexdigest(), code)
    await client.run()
    await until(client, RunnerState.RUNNING)


async def again(client: RunnerClient, number: int, job: SubmitRequest, *code: bytes) -> None:
    request = AgainRequest(number=number, submission=job)
    known = {hashlib.sha256(one).hexdigest(): one for one in code}
    for digest in (await client.again(request)).missing:
        await client.put_code(digest, known[digest])
    assert (await client.again(request)).begun


async def test_changed_files_come_and_what_the_job_made_stays(tmp_path: Path) -> None:
    old, new = packed(a="one", gone="x"), packed(a="two", b="three")
    show = "touch made; ls code; cat code/a; echo; exit 3"
    async with a_runner(tmp_path) as (_, client):
        await start(client, with_files(tmp_path, old, show), old)
        await until_output(client, b"exit code 3; its container waits at most 1 min")
        show = show.replace("exit 3", "exit 4")
        await again(client, 1, with_files(tmp_path, new, f"ls; {show}"), new)
        output = await until_output(client, b"exit code 4")
        assert b"started again in the same container" in output
        assert b"\na\nb\ntwo" in output
        assert b"code\nmade\n" in output
        assert output.count(b"gone") == 1
        await client.stop(grace=1)
        assert (await exit_of(client)).exit_code == 4


async def test_a_job_that_runs_is_stopped_when_its_code_is_there(tmp_path: Path) -> None:
    old, new = packed(a="1"), packed(a="2")
    command = f"cat code/a; {at_term('echo saved; exit 9')}"
    async with a_runner(tmp_path) as (_, client):
        job = with_files(tmp_path, new, command)
        await start(client, with_files(tmp_path, old, command), old)
        missing = (await client.again(AgainRequest(number=1, submission=job))).missing
        assert missing == (hashlib.sha256(new).hexdigest(),)
        await until_output(client, b"1ready")
        await again(client, 1, job, new)
        output = await until_output(client, b"2")
        assert b"saved\n" in output
        assert b"stopped to start again (exit code 9)" in output
        # The same request again starts nothing.
        assert (await client.again(AgainRequest(number=1, submission=job))).begun
        await client.stop(grace=5)
        await exit_of(client)
        assert payload(await followed(client)).count(b"started again") == 1


async def test_a_process_that_a_start_left_does_not_live_on(tmp_path: Path) -> None:
    code = packed(a="1")
    async with a_runner(tmp_path) as (_, client):
        job = with_files(tmp_path, code, "sleep 1000 & echo $! > pid")
        await start(client, job, code)
        await until_output(client, b"exit code 0")
        left = int((tmp_path / "pid").read_text())
        await again(client, 1, with_files(tmp_path, code, "echo second; exit 1"))
        await until_output(client, b"exit code 1")
        assert left not in process_table()
        await client.stop(grace=0)


async def test_a_container_that_nobody_starts_again_ends_as_its_last_start(tmp_path: Path) -> None:
    code = packed(a="1")
    async with a_runner(tmp_path) as (_, client):
        await start(client, with_files(tmp_path, code, "exit 4", keeps_for=0.1), code)
        assert (await exit_of(client)).exit_code == 4
        with pytest.raises(RunnerError, match="has ended"):
            await again(client, 1, with_files(tmp_path, code, "exit 5"))


async def test_what_cannot_change_in_place_is_refused_and_the_job_goes_on(tmp_path: Path) -> None:
    code = packed(a="1")
    async with a_runner(tmp_path) as (_, client):
        job = with_files(tmp_path, code, "sleep 1000")
        await start(client, job, code)
        other = msgspec.structs.replace(job, job=msgspec.structs.replace(job.job, files=()))
        with pytest.raises(RunnerError, match="other folders"):
            await again(client, 1, other)
        assert (await client.health()).state is RunnerState.RUNNING
        await client.stop(grace=0)


async def test_a_job_without_keeps_for_does_not_start_again(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await client.submit(a_job("sleep 1000"))
        await client.run()
        await until(client, RunnerState.RUNNING)
        with pytest.raises(RunnerError, match="does not start again"):
            await again(client, 1, a_job("true"))


async def test_a_folder_that_the_job_has_replaced_is_not_written_to(tmp_path: Path) -> None:
    old, new = packed(a="1"), packed(a="2")
    (tmp_path / "other").mkdir()
    async with a_runner(tmp_path) as (_, client):
        await start(client, with_files(tmp_path, old, "mv code c; ln -s other code"), old)
        await until_output(client, b"exit code 0")
        job = with_files(tmp_path, new, "true")
        request = AgainRequest(number=1, submission=job)
        await client.again(request)
        await client.put_code(hashlib.sha256(new).hexdigest(), new)
        with pytest.raises(RunnerError, match="has ended"):
            await client.again(request)
        record = await exit_of(client)
        assert record.reason == "executor_error"
        assert "another folder in the place" in (record.message or "")
        assert not list((tmp_path / "other").iterdir())


async def test_what_the_job_left_is_kept_though_its_next_start_cannot_be_prepared(
    tmp_path: Path,
) -> None:
    old, new = packed(a="1"), packed(a="2")
    (tmp_path / "other").mkdir()
    command = "echo found > result; mv code c; ln -s other code; exit 6"
    async with a_runner(tmp_path) as (_, client):
        await start(client, with_files(tmp_path, old, command, outputs=["result"]), old)
        await until_output(client, b"exit code 6")
        request = AgainRequest(
            number=1, submission=with_files(tmp_path, new, "true", outputs=["result"])
        )
        await client.again(request)
        await client.put_code(hashlib.sha256(new).hexdigest(), new)
        with pytest.raises(RunnerError, match="has ended"):
            await client.again(request)
        record = await exit_of(client)
    assert (record.reason, record.exit_code) == ("executor_error", 6)
    assert (tmp_path / "task" / OUTPUT_FOLDER_NAME / "result").read_text() == "found\n"


async def test_a_folder_that_was_there_before_the_job_stays_as_it_is(tmp_path: Path) -> None:
    """`if_exists: skip`, as on a volume."""
    old, new = packed(a="1"), packed(a="2")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a").write_text("of the volume")

    def job(code: bytes) -> SubmitRequest:
        digest = hashlib.sha256(code).hexdigest()
        repos = [{"path": str(tmp_path / "code"), "archive": digest, "if_exists": "skip"}]
        return a_job("cat code/a; exit 3", repos=repos, working_dir=str(tmp_path), keeps_for=60.0)

    async with a_runner(tmp_path) as (_, client):
        await start(client, job(old), old)
        await until_output(client, b"exit code 3")
        await again(client, 1, job(new), new)
        assert (tmp_path / "code" / "a").read_text() == "of the volume"
        await client.stop(grace=0)


async def test_what_came_for_a_start_that_never_happens_is_removed(tmp_path: Path) -> None:
    old, second, third = packed(a="1"), packed(a="2"), packed(a="3")
    digests = [hashlib.sha256(one).hexdigest() for one in (second, third)]
    folder = tmp_path / "task"

    def job(*codes: bytes) -> SubmitRequest:
        names = [hashlib.sha256(one).hexdigest() for one in codes]
        files = [{"path": str(tmp_path / "code"), "archive": one} for one in names]
        return a_job("exit 3", files=files, working_dir=str(tmp_path), keeps_for=60.0)

    async with a_runner(tmp_path) as (_, client):
        await start(client, job(old), old)
        await until_output(client, b"exit code 3")
        offered = await client.again(AgainRequest(number=1, submission=job(second, third)))
        assert list(offered.missing) == digests
        await client.put_code(digests[0], second)
        assert (folder / "code-1").exists()
        await again(client, 2, job(third), third)
        assert not list(folder.glob("code-*"))
        await client.again(AgainRequest(number=3, submission=job(second, third)))
        await client.put_code(digests[0], second)
        assert (folder / "code-3").exists()
        await client.stop(grace=0)
        await exit_of(client)
        assert not list(folder.glob("code-*"))


async def test_an_interrupt_while_a_start_is_prepared_is_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = packed(a="1")
    preparing = asyncio.Event()

    async def prepare(*_: object) -> Launch:
        preparing.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with a_runner(tmp_path) as (runner, client):
        monkeypatch.setattr(runner._preparation, "launch_again", prepare)
        await start(client, with_files(tmp_path, code, "exit 3"), code)
        await until_output(client, b"exit code 3")
        request = AgainRequest(number=1, submission=with_files(tmp_path, code, "exit 4"))
        asking = asyncio.create_task(client.again(request))
        await preparing.wait()
        await client.stop(grace=1, interrupt=True)
        record = await exit_of(client)
        assert (record.reason, record.exit_code) == ("interrupted", 3)
        with pytest.raises(RunnerError, match="has ended"):
            await asking


async def test_nothing_is_prepared_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop comes between two starts, while nothing runs and nothing is prepared."""
    code, looking, goes_on = packed(a="1"), threading.Event(), threading.Event()
    prepared: list[object] = []

    def look(_: int) -> bool:
        looking.set()
        goes_on.wait()
        return False

    async def prepare(*given: object) -> Launch:
        prepared.append(given)
        raise AssertionError

    async with a_runner(tmp_path) as (runner, client):
        await start(client, with_files(tmp_path, code, "exit 3"), code)
        await until_output(client, b"exit code 3")
        monkeypatch.setattr(runner._sparing, "is_left", look)
        monkeypatch.setattr(runner._preparation, "launch_again", prepare)
        request = AgainRequest(number=1, submission=with_files(tmp_path, code, "exit 4"))
        asking = asyncio.create_task(client.again(request))
        await asyncio.to_thread(looking.wait)
        await client.stop(grace=0)
        goes_on.set()
        assert (await exit_of(client)).exit_code == 3
        with pytest.raises(RunnerError, match="has ended"):
            await asking
    assert not prepared


async def test_a_log_that_is_full_between_two_starts_ends_the_attempt(tmp_path: Path) -> None:
    code = packed(a="1")
    limits = {"log_quota": 1 << 20, "fail_on_log_quota": True}
    async with a_runner(tmp_path) as (runner, client):
        await start(client, with_files(tmp_path, code, "exit 3", **limits), code)
        await until_output(client, b"exit code 3")
        for _ in range(32):
            runner.log.append(Stream.STDOUT, b"x" * (1 << 16))
        assert (await exit_of(client)).exit_code == 3


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True)


async def test_an_image_without_git_refuses_before_the_job_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_text("one\n")
    git(source, "init", "-q")
    git(source, "add", "a")
    git(source, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a")
    diff = b"--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one\n+two\n"

    def job(*changes: bytes) -> SubmitRequest:
        repo = {"path": str(tmp_path / "code"), "url": f"file://{source}"}
        for one in changes:
            repo["diff"] = hashlib.sha256(one).hexdigest()
        place = str(tmp_path)
        return a_job("cat code/a; sleep 1000", repos=[repo], working_dir=place, keeps_for=60.0)

    async with a_runner(tmp_path) as (_, client):
        await client.submit(job(diff))
        await client.put_code(hashlib.sha256(diff).hexdigest(), diff)
        await client.run()
        await until_output(client, b"two")
        monkeypatch.setattr("runner.job.setup.find", lambda *_: None)
        with pytest.raises(RunnerError, match="has no git") as refused:
            await client.again(AgainRequest(number=1, submission=job()))
        assert refused.value.code == "not_in_place"
        assert (await client.health()).state is RunnerState.RUNNING
        await client.stop(grace=0)
        await exit_of(client)
        assert b"started again" not in payload(await followed(client))
