"""Jobs that run for real, in this machine's shell, behind a real socket."""

import asyncio
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.wire.frames import Stream
from fairlead.wire.job import ClusterInfo, SubmitRequest
from fairlead.wire.runner import ExitRecord, RunnerState
from runner.client import RunnerClient, RunnerError
from runner.options import Settings
from tests.support.shells import at_term
from tests.unit.runner.harness import (
    DEADLINE,
    a_job,
    a_runner,
    a_session,
    exit_of,
    followed,
    payload,
    run_job,
    until,
    until_output,
)


async def outcome(folder: Path, *commands: str, **fields: Any) -> tuple[ExitRecord, bytes]:
    async with a_runner(folder) as (_, client):
        record = await run_job(client, a_job(*commands, **fields))
        return record, payload(await followed(client))


async def test_output_and_success_arrive(tmp_path: Path) -> None:
    record, output = await outcome(tmp_path, "echo out; echo err >&2")
    assert sorted(output.splitlines()) == [b"err", b"out"]
    assert (record.reason, record.exit_code, record.log_end) == ("done_by_runner", 0, 8)


async def test_an_exit_code_arrives_with_the_last_line_of_stderr(tmp_path: Path) -> None:
    record, _ = await outcome(tmp_path, "echo fine", "echo broken >&2; exit 7")
    assert (record.reason, record.exit_code) == ("container_exited_with_error", 7)
    assert record.message == "exited with code 7: broken"


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
async def test_setup_runs_first_and_in_the_same_shell(tmp_path: Path, shell: str) -> None:
    setup = ["cd /tmp", "set -eC; export WORD=carried"]
    commands = ['echo "$WORD in $PWD"', "exit 3"]
    record, output = await outcome(tmp_path, *commands, setup=setup, shell=shell)
    assert output == b"carried in /tmp\n"
    assert record.message == "exited with code 3"


@pytest.mark.parametrize("ends", ["exit 4", "(exit 4)", "set -e; (exit 4)"])
async def test_a_setup_that_fails_is_named_and_no_command_runs(tmp_path: Path, ends: str) -> None:
    setup = ["echo no wheel >&2", ends]
    record, output = await outcome(tmp_path, "echo ran", setup=setup)
    assert (record.exit_code, output) == (4, b"no wheel\n")
    assert record.message == "setup failed: exited with code 4: no wheel"


async def test_a_signal_is_told_by_name(tmp_path: Path) -> None:
    record, _ = await outcome(tmp_path, "kill -SEGV $$")
    assert (record.exit_code, record.signal) == (139, "SIGSEGV")


async def test_a_signal_without_a_name_of_its_own_is_told_by_its_number(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE):
        record, _ = await outcome(tmp_path, "kill -40 $$")
    assert (record.exit_code, record.signal) == (168, f"SIGRTMIN+{40 - signal.SIGRTMIN}")


async def test_secrets_are_not_in_the_exit_record_nor_the_runners_repr(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        job = a_job("echo 'no access with hunter2' >&2; exit 1", secrets={"TOKEN": "hunter2"})
        await run_job(client, job)
        await client.ack(len("no access with ***\n"))
    text = (tmp_path / "task/exit.json").read_text()
    assert "no access with ***" in text
    assert "hunter2" not in text + repr(job)


async def test_stdout_and_stderr_are_told_apart(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await run_job(client, a_job("echo out; echo err >&2"))
        frames = await followed(client)
    assert payload(frames, Stream.STDOUT) == b"out\n"
    assert payload(frames, Stream.STDERR) == b"err\n"


async def test_the_life_is_linear_and_replayable(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        record = await run_job(client, a_job("true"))
        await client.ack(record.log_end)
        async with asyncio.timeout(DEADLINE):
            await until(client, RunnerState.SERVING_LOGS)
    async with a_runner(tmp_path) as (runner, _):
        assert runner.status.latest.exit == record


async def test_all_states_are_told_in_order(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (runner, client):
        await run_job(client, a_job("true"))
        runner.status.close()
        events = [event async for event in client.status_events()]
        later = [event async for event in client.status_events(after=3)]
    assert [event.state.value for event in events] == [
        "waiting_for_job",
        "ready",
        "preparing",
        "running",
        "serving_logs",
    ]
    assert [event.seq for event in events] == [1, 2, 3, 4, 5]
    assert later == events[3:]


async def test_the_exit_record_is_on_disk_when_the_end_is_told(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        told = await run_job(client, a_job("exit 3"))
        raw = (tmp_path / "task/exit.json").read_bytes()
    assert msgspec.json.decode(raw, type=ExitRecord) == told


async def test_a_hundred_thousand_lines_arrive_whole_and_in_order(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await client.submit(a_job("seq 1 100000"))
        await client.run()
        frames = await followed(client)
    expected = b"".join(b"%d\n" % n for n in range(1, 100_001))
    assert payload(frames) == expected


async def test_a_follower_resumes_at_its_offset(tmp_path: Path) -> None:
    async with a_runner(tmp_path, Settings(segment_size=1 << 16)) as (_, client):
        await client.submit(a_job("seq 1 100000"))
        await client.run()
        begun = b""
        async with asyncio.timeout(DEADLINE):
            pieces = client.follow_logs(0)
            begun += await anext(pieces)
            await pieces.aclose()
        await exit_of(client)
        whole = payload(await followed(client))
        middle = 123_457
        rest = payload(await followed(client, middle))
    assert begun
    assert rest == whole[middle:]


async def test_a_page_says_whether_it_is_the_last(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        early = await client.logs(0)
        record = await run_job(client, a_job("echo hi"))
        page = await client.logs(0)
        after = await client.logs(record.log_end)
    assert (early.complete, early.frames) == (False, b"")
    assert page.complete
    assert (after.complete, after.frames) == (True, b"")


async def test_a_user_without_privileges_has_none_of_ours(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.fail("the tests of the runner need root")
    record, output = await outcome(
        tmp_path, "id -u; id -g; id -G; umask; echo $HOME $USER", user="4321:8765", working_dir="/"
    )
    assert record.exit_code == 0
    assert output.decode().splitlines() == ["4321", "8765", "8765", "0022", "/ 4321"]


async def test_an_unknown_user_is_named(tmp_path: Path) -> None:
    record, _ = await outcome(tmp_path, "true", user="nosuchuser")
    assert (record.reason, record.exit_code) == ("executor_error", None)
    assert record.message == "user 'nosuchuser' is not in the image's /etc/passwd"


async def test_a_program_the_kernel_refuses_is_an_executor_error(tmp_path: Path) -> None:
    program = tmp_path / "broken"
    program.write_bytes(b"\x7fELFnot really")
    program.chmod(0o755)
    record, _ = await outcome(tmp_path, entrypoint=[str(program)])
    assert record.reason == "executor_error"
    assert record.message == f"'{program}' cannot be executed: Exec format error"


async def test_the_job_has_no_files_and_no_input_of_ours(tmp_path: Path) -> None:
    look = (
        "for fd in $(seq 0 60); do [ -e /proc/$$/fd/$fd ] && echo $fd; done; readlink /proc/$$/fd/0"
    )
    _, output = await outcome(tmp_path, look)
    assert output == b"0\n1\n2\n/dev/null\n"


async def test_the_job_leads_a_session_of_its_own(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await run_job(client, a_job("cut -d' ' -f1,5,6 /proc/$$/stat; true"))
        pid = (await until(client, RunnerState.RUNNING)).pid
        assert pid is not None
        output = payload(await followed(client))
    assert output == b"%d %d %d\n" % (pid, pid, pid)


async def test_a_submission_may_be_repeated_but_not_changed(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        first = await client.submit(a_job("true"))
        assert await client.submit(a_job("true")) == first
        with pytest.raises(RunnerError) as caught:
            await client.submit(a_job("false"))
    assert (caught.value.status, caught.value.code) == (409, "conflict")


async def test_a_group_that_was_scaled_meanwhile_makes_it_no_other_job(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        first = await client.submit(a_job("true", job_count=2, group_job_count=2))
        again = await client.submit(a_job("true", job_count=4, group_job_count=3))
    assert again == first


async def test_a_job_runs_once_however_often_it_is_asked_for(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await client.submit(a_job("echo once"))
        await asyncio.gather(client.run(), client.run(), client.run())
        await exit_of(client)
        await client.run()
        assert payload(await followed(client)) == b"once\n"


async def test_running_before_submitting_is_refused(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        with pytest.raises(RunnerError, match="submit a job first"):
            await client.run()


async def test_code_is_taken_only_if_the_job_has_some(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        with pytest.raises(RunnerError) as before:
            await client.put_code(hashlib.sha256(b"x").hexdigest(), b"x")
    assert (before.value.status, before.value.code) == (409, "no_code_expected")


async def test_a_job_with_code_waits_for_all_of_it(tmp_path: Path) -> None:
    blobs = {hashlib.sha256(blob).hexdigest(): blob for blob in (b"one", b"two")}
    files = [{"path": "/nowhere", "archive": digest} for digest in blobs]
    async with a_runner(tmp_path) as (_, client):
        states = [(await client.submit(a_job("true", files=files))).state]
        with pytest.raises(RunnerError, match="code has not arrived"):
            await client.run()
        for digest, blob in (*blobs.items(), *blobs.items()):
            states.append((await client.put_code(digest, blob)).state)
    assert states == ["waiting_for_code", "waiting_for_code", "ready", "ready", "ready"]


async def test_code_that_is_not_what_it_should_be_is_refused(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"right").hexdigest()
    async with a_runner(tmp_path) as (_, client):
        await client.submit(a_job("true", files=[{"path": "/nowhere", "archive": digest}]))
        with pytest.raises(RunnerError, match="does not match its digest"):
            await client.put_code(digest, b"wrong")
        assert (await client.put_code(digest, b"right")).state == "ready"
    assert not list((tmp_path / "task" / "code").glob(".*"))


async def test_a_second_runner_in_the_folder_runs_nothing_again(tmp_path: Path) -> None:
    await outcome(tmp_path, "echo once")
    async with a_runner(tmp_path) as (_, client):
        record = await exit_of(client)
        with pytest.raises(RunnerError) as caught:
            await client.submit(a_job("echo twice"))
        assert payload(await followed(client)) == b"once\n"
    assert (record.reason, caught.value.code) == ("done_by_runner", "ended")


async def test_a_damaged_exit_record_does_not_stop_the_runner(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "task/exit.json").write_text("{")
    record, _ = await outcome(tmp_path, "true")
    assert json.loads((tmp_path / "task/exit.json").read_text())["exit_code"] == 0
    assert record.exit_code == 0


class TestEnding:
    async def test_the_end_acknowledged_lets_it_go(self, tmp_path: Path) -> None:
        async with a_runner(tmp_path, Settings(linger=3600)) as (runner, client):
            record = await run_job(client, a_job("echo hi"))
            await client.ack(1)
            waiting = asyncio.create_task(runner.until_over())
            await client.ack(record.log_end)
            assert await asyncio.wait_for(waiting, DEADLINE) == record

    async def test_no_output_is_acknowledged_too(self, tmp_path: Path) -> None:
        async with a_runner(tmp_path, Settings(linger=3600)) as (runner, client):
            await run_job(client, a_job("true"))
            await client.ack(0)
            assert (await asyncio.wait_for(runner.until_over(), DEADLINE)).log_end == 0

    async def test_nobody_reading_is_waited_for_only_so_long(self, tmp_path: Path) -> None:
        async with a_runner(tmp_path, Settings(linger=0.05)) as (runner, client):
            record = await run_job(client, a_job("echo hi"))
            assert await asyncio.wait_for(runner.until_over(), DEADLINE) == record

    async def test_bytes_that_never_were_cannot_be_acknowledged(self, tmp_path: Path) -> None:
        async with a_runner(tmp_path) as (_, client):
            with pytest.raises(RunnerError) as caught:
                await client.ack(1)
        assert (caught.value.status, caught.value.field) == (400, "offset")


async def started(client: RunnerClient, *commands: str, **fields: Any) -> None:
    """Submit and run; until the job has said `ready`."""
    await client.submit(a_job(*commands, **fields))
    await client.run()
    await until_output(client, b"ready\n")


class TestStopping:
    async def test_the_group_gets_the_signal(self, tmp_path: Path) -> None:
        async with a_runner(tmp_path) as (_, client):
            await started(client, "echo ready; sleep 3600 & wait; true")
            await client.stop(grace=DEADLINE)
            record = await exit_of(client)
        assert (record.exit_code, record.signal) == (143, "SIGTERM")
        assert not record.container_stopped

    async def test_the_end_of_a_job_whose_container_is_stopped_says_so(
        self, tmp_path: Path
    ) -> None:
        async with a_runner(tmp_path) as (runner, client):
            await started(client, "echo ready; sleep 3600 & wait; true")
            runner.shut_down()
            record = await exit_of(client)
        assert (record.exit_code, record.container_stopped) == (143, True)

    async def test_a_job_may_clean_up_within_its_grace(self, tmp_path: Path) -> None:
        async with a_runner(tmp_path) as (_, client):
            await started(client, at_term("echo saved; exit 0"))
            await client.stop(grace=DEADLINE)
            record = await exit_of(client)
            output = payload(await followed(client))
        assert (record.exit_code, output) == (0, b"ready\nsaved\n")

    async def test_children_may_clean_up_after_their_shell_has_died(self, tmp_path: Path) -> None:
        child = f"({at_term('sleep 1.5; echo saved; exit')}) & wait"
        async with a_runner(tmp_path) as (_, client):
            await started(client, child)
            await client.stop(grace=DEADLINE)
            record = await exit_of(client)
            output = payload(await followed(client))
        assert (record.signal, output) == ("SIGTERM", b"ready\nsaved\n")

    async def test_after_the_grace_it_is_killed(self, tmp_path: Path) -> None:
        async with a_runner(tmp_path) as (_, client):
            await started(client, "trap '' TERM; echo ready; while :; do sleep 0.05; done")
            await client.stop(grace=0.1)
            record = await exit_of(client)
        assert (record.exit_code, record.signal) == (137, "SIGKILL")

    async def test_an_abort_after_a_stop_brings_the_kill_forward(self, tmp_path: Path) -> None:
        async with a_runner(tmp_path) as (_, client):
            await started(client, "trap '' TERM; echo ready; while :; do sleep 0.05; done")
            await client.stop(grace=3600)
            await client.stop(grace=0)
            assert (await exit_of(client)).signal == "SIGKILL"

    async def test_the_signal_of_the_job_or_of_the_request_is_used(self, tmp_path: Path) -> None:
        handlers = "trap 'echo usr1' USR1; trap 'echo int; exit 0' INT; echo ready"
        async with a_runner(tmp_path) as (_, client):
            await started(client, handlers, "while :; do sleep 0.05; done", stop_signal="SIGUSR1")
            await client.stop(grace=3600)
            await until_output(client, b"usr1\n")
            await client.stop(signal="INT", grace=3600)
            assert (await exit_of(client)).exit_code == 0

    @pytest.mark.parametrize("by", ["its controller", "its container's end"])
    async def test_a_repeated_stop_sends_no_second_signal(self, by: str, tmp_path: Path) -> None:
        handlers = "trap 'echo saving' TERM; trap 'exit 0' INT; echo ready"
        async with a_runner(tmp_path) as (runner, client):
            await started(client, handlers, "while :; do sleep 0.05; done")
            await client.stop(signal="TERM", grace=3600)
            await until_output(client, b"saving\n")
            if by == "its controller":
                await client.stop(signal="TERM", grace=3600)
            else:
                runner.shut_down()
            await client.stop(signal="INT", grace=3600)
            await exit_of(client)
            output = payload(await followed(client))
        assert output.count(b"saving\n") == 1

    async def test_stopped_before_it_ran_it_never_starts(self, tmp_path: Path) -> None:
        async with a_runner(tmp_path) as (_, client):
            await client.submit(a_job("echo never"))
            await client.stop()
            await client.stop()
            record = await exit_of(client)
            await client.run()
            assert await followed(client) == []
        assert (record.reason, record.message) == ("executor_error", "stopped before it started")
        assert record.exit_code is None

    async def test_stopping_what_has_ended_changes_nothing(self, tmp_path: Path) -> None:
        async with a_runner(tmp_path) as (_, client):
            record = await run_job(client, a_job("exit 5"))
            event = await client.stop()
        assert event.exit == record

    async def test_an_unknown_signal_is_refused(self, tmp_path: Path) -> None:
        async with a_runner(tmp_path) as (_, client):
            with pytest.raises(RunnerError, match="'SIGNOPE' is not the name") as caught:
                await client.stop(signal="SIGNOPE")
        assert caught.value.field == "signal"

    async def test_the_runner_is_the_backstop_of_max_duration(self, tmp_path: Path) -> None:
        async with a_runner(tmp_path, Settings(backstop=0.0)) as (_, client):
            record = await run_job(client, a_job("sleep 3600", max_duration=0.1))
        assert record.reason == "max_duration_exceeded"
        assert record.message == "stopped after max_duration (0.1 s)"

    async def test_the_runner_leaves_the_end_at_max_duration_to_the_controller(
        self, tmp_path: Path
    ) -> None:
        async with a_runner(tmp_path, Settings(backstop=3600.0)) as (_, client):
            record = await run_job(client, a_job("sleep 0.5", max_duration=0.1))
        assert record.reason == "done_by_runner"

    async def test_the_backstop_gives_the_job_its_stop_duration(self, tmp_path: Path) -> None:
        """A job that names none gets 300 s, for which nobody waits here."""
        stubborn = a_job(
            "trap '' TERM; while :; do sleep 0.05; done", max_duration=0.1, stop_duration=0.1
        )
        async with a_runner(tmp_path, Settings(backstop=0.0)) as (_, client):
            record = await run_job(client, stubborn)
        assert record.signal == "SIGKILL"

    async def test_max_duration_stands_still_while_its_run_is_suspended(
        self, tmp_path: Path
    ) -> None:
        async with a_runner(tmp_path, Settings(backstop=0.0)) as (_, client):
            await client.submit(a_job("sleep 0.5", max_duration=0.1))
            await client.suspend(True)
            await client.run()
            record = await exit_of(client)
        assert record.reason == "done_by_runner"

    async def test_a_job_whose_run_goes_on_again_has_what_was_left_of_its_max_duration(
        self, tmp_path: Path
    ) -> None:
        async with a_runner(tmp_path, Settings(backstop=0.0)) as (_, client):
            await client.submit(a_job("echo begun; sleep 3600", max_duration=0.1))
            await client.suspend(True)
            await client.run()
            await until_output(client, b"begun")
            await client.suspend(False)
            record = await exit_of(client)
        assert record.reason == "max_duration_exceeded"


async def test_a_process_that_the_job_leaves_behind_is_heard_and_then_killed(
    tmp_path: Path,
) -> None:
    async with a_runner(tmp_path) as (_, client):
        await client.submit(a_job("(echo late; exec sleep 3600) & echo $!"))
        await client.run()
        await exit_of(client)
        output = payload(await followed(client)).split()
    left = next(int(word) for word in output if word.isdigit())
    assert b"late" in output
    assert not await asyncio.to_thread(is_alive, left)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


async def test_a_full_disk_of_log_keeps_the_newest_output(tmp_path: Path) -> None:
    settings = Settings(log_quota=1 << 20, segment_size=1 << 17)
    async with a_runner(tmp_path, settings) as (runner, client):
        await run_job(client, a_job("seq 1 500000"))
        frames = await followed(client)
    assert frames[0].stream is Stream.MARKER
    assert frames[0].end == runner.log.start > 0
    assert payload(frames[1:]).endswith(b"499999\n500000\n")


async def test_a_repeated_submission_may_know_more_addresses(tmp_path: Path) -> None:
    job = a_job("true", job_count=2)
    first = ClusterInfo(ips=("10.0.0.1", "10.0.0.2"), master_ip="10.0.0.1", rank=0)
    async with a_runner(tmp_path) as (_, client):
        await client.submit(msgspec.structs.replace(job, cluster=first))
        moved = msgspec.structs.replace(first, ips=("10.9.0.1", "10.0.0.2"))
        again = await client.submit(msgspec.structs.replace(job, cluster=moved))
        assert again.state is RunnerState.READY


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"gpus": (1,)}, "gpus"),
        ({"rank": 2}, "rank"),
        ({"rank": -1}, "rank"),
        ({"ips": ("10.0.0.1", "10.0.0.2\n    ProxyCommand sh")}, "ips"),
        ({"ips": ("10.0.0.1", "")}, "ips"),
        ({"master_ip": "-oProxyCommand=sh"}, "master_ip"),
        ({"ssh_port": 0}, "ssh_port"),
        ({"master_port": 70_000}, "master_port"),
    ],
)
async def test_a_cluster_that_cannot_be_is_refused_naming_its_field(
    tmp_path: Path, fields: dict[str, Any], field: str
) -> None:
    known = ClusterInfo(ips=("10.0.0.1", "10.0.0.2"), master_ip="10.0.0.1", rank=0)
    cluster = msgspec.structs.replace(known, **fields)
    async with a_runner(tmp_path) as (_, client):
        with pytest.raises(RunnerError) as caught:
            await client.submit(msgspec.structs.replace(a_job("true"), cluster=cluster))
    assert (caught.value.status, caught.value.field) == (400, f"cluster.{field}")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (a_job("true", user="a\0b"), "job.user"),
        (a_job("true", shell="/bin/\0sh"), "job.shell"),
        (msgspec.structs.replace(a_job("true"), secrets={"TOKEN": "abcd\0"}), "secrets"),
    ],
)
async def test_a_text_that_no_process_can_be_given_is_refused(
    tmp_path: Path, wrong: SubmitRequest, field: str
) -> None:
    async with a_runner(tmp_path) as (_, client):
        with pytest.raises(RunnerError) as caught:
            await client.submit(wrong)
    assert (caught.value.status, caught.value.field) == (400, field)


@pytest.mark.parametrize("body", [b'{"x":' + b"[" * 50_000, b'{"job":"\xff"}', b"{"])
async def test_a_body_that_cannot_be_decoded_is_refused(tmp_path: Path, body: bytes) -> None:
    async with (
        a_runner(tmp_path),
        a_session(tmp_path / "runner.sock") as session,
        session.post("/v1/submit", data=body) as response,
    ):
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (400, "invalid")


async def test_an_offset_beyond_all_bounds_is_refused(tmp_path: Path) -> None:
    async with (
        a_runner(tmp_path),
        a_session(tmp_path / "runner.sock") as session,
        session.get("/v1/logs", params={"offset": "9" * 5000}) as response,
    ):
        answer = await response.json()
    assert (response.status, answer["error"]["field"]) == (400, "offset")
