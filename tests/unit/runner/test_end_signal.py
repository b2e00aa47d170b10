"""A real job gets its signal before its end, with a file that says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairlead.wire.frames import Stream
from fairlead.wire.runner import SignalRequest
from runner.client import RunnerClient, RunnerError
from tests.unit.runner.harness import (
    a_job,
    a_runner,
    exit_of,
    followed,
    payload,
    until_output,
)

USR1 = {"name": "SIGUSR1", "before": 600.0}
END = SignalRequest(id="node_drained 0", cause="node_drained", ends_in=600.0)
SHOW = 'trap \'cat "$FAIRLEAD_SIGNAL_FILE"; echo saved\' USR1; trap "echo asked; exit 0" TERM'
RUN = "echo ready; while :; do sleep 0.05; done"


async def begun(client: RunnerClient, *commands: str, **fields: Any) -> None:
    await client.submit(a_job(*commands, signal=USR1, **fields))
    await client.run()
    await until_output(client, b"ready\n")


async def test_the_job_gets_it_once_and_reads_why_and_when(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await begun(client, SHOW, RUN)
        for _ in range(2):
            await client.signal(END)
        await until_output(client, b"saved\n")
        await client.signal(END)
        await client.stop(grace=3600)
        record = await exit_of(client)
        frames = await followed(client)
    ready, said, *rest = payload(frames, Stream.STDOUT).splitlines()
    assert (ready, rest, record.exit_code) == (b"ready", [b"saved", b"asked"], 0)
    read = json.loads(said)
    assert (read["signal"], read["cause"]) == ("SIGUSR1", "node_drained")
    assert read["ends_at"] - read["sent_at"] == pytest.approx(600.0)
    assert b"SIGUSR1 was sent: the job ends in " in payload(frames, Stream.SYSTEM)


async def test_another_end_is_another_signal(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await begun(client, SHOW, RUN)
        await client.signal(END)
        await until_output(client, b"saved\n")
        await client.signal(SignalRequest(id="preempted 0", cause="preempted", ends_in=1.0))
        await until_output(client, b'"cause":"preempted"')


async def test_a_process_that_does_not_catch_it_lives_on(tmp_path: Path) -> None:
    """The shell is the job's main process, and would die of it; its child has another session."""
    worker = "trap 'echo saved; exit 0' USR1; echo ready; while :; do sleep 0.05; done"
    async with a_runner(tmp_path) as (_, client):
        await begun(client, f'setsid /bin/sh -c "{worker}" & sleep 3600 & wait $!; echo never')
        await client.signal(END)
        await until_output(client, b"saved\n")
        await client.stop(grace=0)
        assert (await exit_of(client)).signal in ("SIGTERM", "SIGKILL")


async def test_it_waits_until_a_process_catches_it(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        late = f"echo ready; until [ -e {tmp_path}/go ]; do sleep 0.05; done"
        await begun(client, late, "trap 'echo saved; exit 0' USR1", RUN)
        await client.signal(END)
        (tmp_path / "go").touch()
        await until_output(client, b"saved\n")
        assert (await exit_of(client)).exit_code == 0


async def test_a_program_that_blocks_it_to_read_it_gets_it(tmp_path: Path) -> None:
    program = (
        "import signal, time\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {10}); print('ready', flush=True)\n"
        "while not signal.sigpending(): time.sleep(0.05)\n"
        "print('got', int(*signal.sigpending()), flush=True)"
    )
    async with a_runner(tmp_path) as (_, client):
        await begun(client, entrypoint=["python3", "-c", program])
        await client.signal(END)
        await until_output(client, b"got 10\n")


async def test_a_job_that_ends_meanwhile_is_not_kept(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await begun(client, "echo ready; read x; true")
        await client.signal(END)
        await exit_of(client)
        await client.signal(SignalRequest(id="late", cause="preempted", ends_in=1.0))
        output = payload(await followed(client))
    assert b"was sent" not in output


async def test_a_stop_signal_that_waits_comes_after_its_time(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await begun(client, "trap 'echo asked; exit 0' TERM", RUN)
        await client.stop(grace=3600, delay=0.2)
        await until_output(client, b"asked\n")
        assert (await exit_of(client)).exit_code == 0


async def test_a_later_stop_brings_a_waiting_signal_forward_and_none_back(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await begun(client, "trap 'echo asked; exit 0' TERM", RUN)
        await client.stop(grace=3600, delay=3600)
        await client.stop(grace=3600)
        await client.stop(grace=3600, delay=3600)
        await until_output(client, b"asked\n")
        assert (await exit_of(client)).exit_code == 0


async def test_what_the_main_process_leaves_is_asked_once_it_has_ended(tmp_path: Path) -> None:
    child = "(trap 'echo asked; exit' TERM; while :; do sleep 0.05; done) &"
    async with a_runner(tmp_path) as (_, client):
        await begun(client, child, "trap 'exit 0' USR1", RUN)
        await client.stop(grace=3600, delay=3600)
        await client.signal(END)
        assert (await exit_of(client)).exit_code == 0
        assert b"asked\n" in payload(await followed(client))


async def test_a_kill_does_not_wait(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await begun(client, RUN)
        await client.stop(grace=0.1, delay=3600)
        assert (await exit_of(client)).signal == "SIGKILL"


async def test_a_job_without_one_is_sent_none_and_has_no_file(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await client.submit(a_job('echo "ready${FAIRLEAD_SIGNAL_FILE+ and a file}"; sleep 3600'))
        await client.run()
        await until_output(client, b"ready\n")
        with pytest.raises(RunnerError) as caught:
            await client.signal(END)
    assert (caught.value.status, caught.value.code) == (409, "no_signal")


async def test_a_signal_that_there_is_not_is_refused(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        with pytest.raises(RunnerError) as caught:
            await client.submit(a_job("true", signal={"name": "SIGNOPE", "before": 1.0}))
    assert caught.value.field == "job.signal.name"
