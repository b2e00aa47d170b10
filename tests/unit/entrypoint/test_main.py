"""The entrypoint as the process it is: its own interpreter, signals, orphans, exit codes."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from common.files.task_folder import StopOrder
from entrypoint.ssh.settings import SETTINGS_NAME, SshSettings
from fairlead.wire.frames import Decoder
from fairlead.wire.runner import ExitRecord, RunnerState
from runner.client import RunnerClient, RunnerUnavailable
from runner.processes.scratch import GIVEN
from shim.engines.procfs import descendants
from tests.support.dialling import dial_to
from tests.support.shells import at_term
from tests.support.ssh_daemon import CHECKOUT, free_port
from tests.support.waiting import eventually
from tests.unit.runner.harness import (
    DEADLINE,
    a_job,
    a_session,
    exit_of,
    followed,
    frames_of,
    payload,
    until_output,
)

Process = asyncio.subprocess.Process


def arguments(folder: Path, *more: str) -> tuple[str, ...]:
    paths = ("--task", str(folder / "task"), "--socket", str(folder / "runner.sock"))
    return (sys.executable, "-m", "entrypoint.main", *paths, "--peers", "any", *more)


@contextlib.asynccontextmanager
async def an_entrypoint(
    folder: Path, *more: str, env: dict[str, str] | None = None, wrapper: tuple[str, ...] = ()
) -> AsyncIterator[tuple[Process, RunnerClient]]:
    memory = tempfile.mkdtemp(dir="/dev/shm")
    process = await asyncio.create_subprocess_exec(
        *wrapper, *arguments(folder, *more), env={**os.environ, GIVEN: memory, **(env or {})}
    )
    try:
        socket = folder / "runner.sock"
        async with a_session(socket) as session:
            client = RunnerClient(session, dial_answer=dial_to(socket))
            await eventually((folder / "runner.sock").exists)
            await client.health()
            yield process, client
    finally:
        if process.returncode is None:
            kill_with_its_job(process)
        await process.wait()
        shutil.rmtree(memory)


def kill_with_its_job(process: Process) -> None:
    """As the end of its container would."""
    family = descendants(process.pid)
    process.kill()
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def start(client: RunnerClient, *commands: str) -> None:
    await client.start(a_job(*commands))


async def status_of(process: Process) -> int:
    return await asyncio.wait_for(process.wait(), DEADLINE)


def record_in(folder: Path) -> ExitRecord:
    return msgspec.json.decode((folder / "task/exit.json").read_bytes(), type=ExitRecord)


async def test_it_exits_with_the_code_of_the_job_once_its_log_was_read(tmp_path: Path) -> None:
    async with an_entrypoint(tmp_path, "--linger", "3600") as (process, client):
        await start(client, "echo hi; exit 7")
        record = await exit_of(client)
        await client.ack(record.log_end)
        assert await status_of(process) == 7
    assert not (tmp_path / "runner.sock").exists()


FROM_ONE_FILE = """
import sys
sys.path[:0] = {folders!r}
from entrypoint import module_file
assert module_file.use()
def note(what, module):
    with open({noted!r}, "a") as noted:
        noted.write(f"{{what}}: {{module.__name__}}\\n")
execute = module_file.ModuleFile._execute
def noting(self, module):
    if module.__name__ in module_file.LATER or module.__name__ in module_file.GIVEN:
        note("needed", module)
    execute(self, module)
module_file.ModuleFile._execute = noting
put_off = module_file.ModuleFile._put_off
def putting_off(self, module):
    note("put off", module)
    put_off(self, module)
module_file.ModuleFile._put_off = putting_off
from entrypoint.main import main
main(sys.argv[sys.argv.index("--task"):])
"""
WRITE_THE_FILE = """
import sys
sys.path[:0] = {folders!r}
from entrypoint.runtime.write_module_file import write
write("/", "")
"""


async def test_a_job_needs_no_code_that_is_put_off(tmp_path: Path) -> None:
    in_file, noted = tmp_path / "in one file", tmp_path / "noted"
    in_file.mkdir()
    folders = [str(in_file), sysconfig.get_path("purelib"), str(CHECKOUT)]
    python = (sys.executable, "-I", "-S", "-X", "utf8=1", "-c")
    writing = WRITE_THE_FILE.format(folders=folders)
    await asyncio.to_thread(subprocess.run, [*python, writing], check=True)
    program = (*python, FROM_ONE_FILE.format(folders=folders, noted=str(noted)))
    async with an_entrypoint(tmp_path, "--linger", "3600", wrapper=program) as (process, client):
        await start(client, "echo hi; (exit 3 &); exit 7")
        assert payload(await followed(client)) == b"hi\n"
        await client.metrics()
        await client.ack((await exit_of(client)).log_end)
        assert await status_of(process) == 7
    found = noted.read_text().splitlines()
    assert [line for line in found if line.startswith("needed")] == []
    assert {"put off: inspect", "put off: urllib.parse"} <= set(found)


async def test_it_exits_by_itself_when_nobody_reads(tmp_path: Path) -> None:
    async with an_entrypoint(tmp_path, "--linger", "0.1") as (process, client):
        await start(client, "echo hi; exit 3")
        assert await status_of(process) == 3
    assert record_in(tmp_path).exit_code == 3


async def test_sigterm_stops_the_job_gracefully(tmp_path: Path) -> None:
    async with an_entrypoint(tmp_path, "--linger", "3600") as (process, client):
        await start(client, at_term("echo bye; exit 9"))
        await until_output(client, b"ready\n")
        process.send_signal(signal.SIGTERM)
        assert await status_of(process) == 9
    assert record_in(tmp_path).exit_code == 9


async def test_a_follower_gets_the_last_words_of_a_job_stopped_by_sigterm(tmp_path: Path) -> None:
    async with an_entrypoint(tmp_path, "--linger", "3600") as (process, client):
        await start(client, at_term("seq 1 200000; exit 0"))
        await until_output(client, b"ready\n")
        begun, pieces = asyncio.Event(), []

        async def follow() -> None:
            async for piece in client.follow_logs(0):
                pieces.append(piece)
                begun.set()

        following = asyncio.create_task(follow())
        # Else the entrypoint may be gone before it is asked.
        await begun.wait()
        process.send_signal(signal.SIGTERM)
        await following
        output = payload(frames_of(b"".join(pieces)))
        assert await status_of(process) == 0
    assert output.endswith(b"199999\n200000\n")


LEAVES_A_STUBBORN_CHILD = (
    "trap 'exit 3' TERM; (trap '' TERM; echo ready; while :; do sleep 0.05; done) & wait"
)


async def test_a_stopped_job_keeps_its_record_whatever_it_leaves_behind(tmp_path: Path) -> None:
    """`docker stop` says no grace: it kills all of the container when its own is over. A shell's
    child that was not yet executed when the signal came is enough to be still there then."""
    async with an_entrypoint(tmp_path, "--linger", "3600") as (process, client):
        await start(client, LEAVES_A_STUBBORN_CHILD)
        await until_output(client, b"ready\n")
        process.send_signal(signal.SIGTERM)
        await eventually((tmp_path / "task/exit.json").exists)
        assert (await client.health()).state is RunnerState.RUNNING
    record = record_in(tmp_path)
    assert (record.exit_code, record.reason) == (3, "container_exited_with_error")


TERMINATED_AT_ITS_END = """
import asyncio, os, signal, sys
close = asyncio.Runner.close
def closing(self):
    os.kill(os.getpid(), signal.SIGTERM)
    close(self)
asyncio.Runner.close = closing
from entrypoint.main import main
main(sys.argv[sys.argv.index("--task"):])
"""


async def test_a_sigterm_after_its_life_changes_no_code(tmp_path: Path) -> None:
    """asyncio.run still waits for threads then."""
    program = (sys.executable, "-c", TERMINATED_AT_ITS_END)
    async with an_entrypoint(tmp_path, "--linger", "3600", wrapper=program) as (process, client):
        await start(client, "exit 7")
        await client.ack((await exit_of(client)).log_end)
        assert await status_of(process) == 7


async def test_a_told_grace_ends_what_is_left_of_the_job(tmp_path: Path) -> None:
    async with an_entrypoint(tmp_path, "--linger", "3600") as (process, client):
        await start(client, LEAVES_A_STUBBORN_CHILD)
        await until_output(client, b"ready\n")
        process.send_signal(signal.SIGTERM)
        await eventually((tmp_path / "task/exit.json").exists)
        # Told after the shell's own end: no grace is too short for that on a busy machine.
        order = StopOrder(kill_at=time.time() + 0.1)
        (tmp_path / "task/stop.json").write_bytes(msgspec.json.encode(order))
        process.send_signal(signal.SIGTERM)
        assert await status_of(process) == 3
    assert record_in(tmp_path).exit_code == 3


async def test_a_job_that_ignores_its_stop_is_killed_in_time_for_its_record(tmp_path: Path) -> None:
    async with an_entrypoint(tmp_path, "--linger", "3600") as (process, client):
        await start(client, "trap '' TERM; echo ready; while :; do sleep 0.05; done")
        await until_output(client, b"ready\n")
        order = StopOrder(kill_at=time.time() + 0.1)
        (tmp_path / "task/stop.json").write_bytes(msgspec.json.encode(order))
        process.send_signal(signal.SIGTERM)
        assert await status_of(process) == 137
    record = record_in(tmp_path)
    assert (record.exit_code, record.signal) == (137, "SIGKILL")


async def test_sigterm_without_a_job_ends_it_with_a_record(tmp_path: Path) -> None:
    async with an_entrypoint(tmp_path, "--linger", "3600") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert await status_of(process) == 125
    assert record_in(tmp_path).message == "stopped before it started"


async def test_orphans_are_reaped_and_the_job_keeps_its_code(tmp_path: Path) -> None:
    orphans = "for i in $(seq 50); do (sh -c 'sleep 0.05 &') ; done; sleep 0.3; echo done"
    async with an_entrypoint(tmp_path) as (process, client):
        await start(client, orphans, "echo ready; exec sleep 3600")
        await until_output(client, b"ready\n")
        await eventually(lambda: children_of(process.pid) == 1)
        await client.stop()
        assert (await exit_of(client)).signal == "SIGTERM"


def children_of(pid: int) -> int:
    """Zombies too; a child hangs on the thread that has started it."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return sum(len(children.read_text().split()) for children in lists)


async def test_many_short_jobs_with_orphans_all_keep_their_codes(tmp_path: Path) -> None:
    for code in range(3):
        folder = tmp_path / str(code)
        folder.mkdir()
        async with an_entrypoint(folder) as (process, client):
            await start(client, f"for i in 1 2 3; do (true &) ; done; exit {code}")
            record = await exit_of(client)
            await client.ack(record.log_end)
            assert await status_of(process) == code


async def test_daemons_that_left_the_session_die_with_the_job(tmp_path: Path) -> None:
    async with an_entrypoint(tmp_path, "--linger", "0") as (process, client):
        leave = "setsid sleep 3600 >/dev/null 2>&1 & echo $!; echo ready"
        await start(client, f"{leave}; until [ -e {tmp_path}/go ]; do sleep 0.02; done; exit 4")
        output = await until_output(client, b"ready\n")
        (tmp_path / "go").touch()
        assert await status_of(process) == 4
    # A killed orphan is there until the first process has reaped it.
    await eventually(lambda: not Path(f"/proc/{int(output.split()[0])}").exists())


async def test_killed_it_leaves_segments_that_can_be_read(tmp_path: Path) -> None:
    async with an_entrypoint(tmp_path) as (process, client):
        await start(client, "seq 1 1000; echo ready; exec sleep 3600")
        output = await until_output(client, b"ready\n")
        pieces = client.follow_logs(0)
        await anext(pieces)
        job = (await client.status_events(3).__anext__()).pid
        process.kill()
        with pytest.raises(RunnerUnavailable):
            await asyncio.wait_for(anext(pieces), DEADLINE)
        assert job is not None
        os.kill(job, signal.SIGKILL)
    files = sorted((tmp_path / "task/logs").glob("*.seg"))
    frames = Decoder().feed(b"".join(file.read_bytes() for file in files))
    assert payload(frames) == output


async def test_the_environment_of_the_job_is_the_images(tmp_path: Path) -> None:
    env = {
        "FAIRLEAD_ORIG_LD_LIBRARY_PATH": "/image/lib",
        "FAIRLEAD_TOKEN": "secret",
        "MALLOC_ARENA_MAX": "1",
        "FROM_IMAGE": "yes",
    }
    async with an_entrypoint(tmp_path, env=env) as (_, client):
        await client.submit(a_job(entrypoint=["env"], env={"MINE": "1"}))
        await client.run()
        lines = payload(await followed(client)).decode().splitlines()
    assert {"LD_LIBRARY_PATH=/image/lib", "FROM_IMAGE=yes", "MINE=1"} <= set(lines)
    assert not [line for line in lines if "ORIG" in line or "secret" in line or "MALLOC" in line]


async def test_as_pid_1_it_reaps_kills_the_rest_and_keeps_the_code(tmp_path: Path) -> None:
    wrapper = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    command = "(setsid sleep 3600 &); (true &); echo $$; echo ready; exit 6"
    async with an_entrypoint(tmp_path, "--linger", "0", wrapper=wrapper) as (process, client):
        await start(client, command)
        assert await status_of(process) == 6
    assert record_in(tmp_path).exit_code == 6


LOADS_LATER = """
import sys
from entrypoint import main

class Gate:
    def find_spec(self, name, *_):
        if name == "entrypoint.life":
            open({gate!r}).read()

sys.meta_path.insert(0, Gate())
main.main()
"""


@contextlib.asynccontextmanager
async def a_half_loaded_pid_1(folder: Path) -> AsyncIterator[Process]:
    """It listens, and loads the larger part of itself once `gate` is written."""
    gate = folder / "gate"
    os.mkfifo(gate)
    program, _, _, *rest = arguments(folder, "--linger", "3600")
    unshare = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    process = await asyncio.create_subprocess_exec(
        *unshare, program, "-c", LOADS_LATER.format(gate=str(gate)), *rest
    )
    try:
        await eventually((folder / "runner.sock").exists)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def go_on_loading(folder: Path) -> None:
    await asyncio.wait_for(asyncio.to_thread((folder / "gate").write_text, ""), DEADLINE)


async def test_as_pid_1_it_answers_a_request_that_came_while_it_loaded(tmp_path: Path) -> None:
    body = msgspec.json.encode(a_job("exit 6"))
    head = f"POST /v1/start HTTP/1.1\r\nHost: runner\r\nContent-Length: {len(body)}\r\n\r\n"
    async with a_half_loaded_pid_1(tmp_path) as process:
        reader, writer = await asyncio.open_unix_connection(tmp_path / "runner.sock")
        writer.write(head.encode() + body)
        await go_on_loading(tmp_path)
        assert await asyncio.wait_for(reader.readline(), DEADLINE) == b"HTTP/1.1 200 OK\r\n"
        writer.close()
        async with a_session(tmp_path / "runner.sock") as session:
            client = RunnerClient(session, dial_answer=dial_to(tmp_path / "runner.sock"))
            await client.ack((await exit_of(client)).log_end)
        assert await status_of(process) == 6


async def test_as_pid_1_it_keeps_a_sigterm_that_came_while_it_loaded(tmp_path: Path) -> None:
    async with a_half_loaded_pid_1(tmp_path) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        os.kill(int(await asyncio.to_thread(children.read_text)), signal.SIGTERM)
        await go_on_loading(tmp_path)
        assert await status_of(process) == 125
    assert record_in(tmp_path).message == "stopped before it started"


async def test_a_job_that_runs_is_open_to_visitors(tmp_path: Path) -> None:
    settings = SshSettings(address="127.0.0.1", port=free_port(), authorized_keys=())
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / SETTINGS_NAME).write_bytes(msgspec.json.encode(settings))
    async with an_entrypoint(tmp_path) as (_, client):
        await start(client, "exec sleep 3600")
        _, writer = await asyncio.open_connection(settings.address, settings.port)
        writer.close()
        await client.stop(grace=0)
        assert (await exit_of(client)).reason == "executor_error"


async def test_a_job_gets_sigterm_although_its_runner_blocked_it_at_first(tmp_path: Path) -> None:
    async with an_entrypoint(tmp_path) as (_, client):
        await start(client, "grep SigBlk /proc/self/status")
        assert payload(await followed(client)).split() == [b"SigBlk:", b"0" * 16]


async def test_it_loads_no_tls(tmp_path: Path) -> None:
    async with an_entrypoint(tmp_path) as (process, _):
        maps = await asyncio.to_thread(Path(f"/proc/{process.pid}/maps").read_text)
    assert "httptools" in maps
    assert "libcrypto" not in maps
    assert "libssl" not in maps


async def test_it_idles_within_its_memory(tmp_path: Path) -> None:
    async with an_entrypoint(tmp_path) as (process, client):
        await start(client, "echo ready; exec sleep 3600")
        await until_output(client, b"ready\n")
        status = await asyncio.to_thread(Path(f"/proc/{process.pid}/status").read_text)
        await client.stop(grace=0)
        await exit_of(client)
    rss = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    assert int(rss) <= 26 * 1024


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--peers", "everybody"), "--peers"),
        (("--linger", "-1"), "--linger"),
        (("--log-quota", "5"), "--log-quota"),
    ],
)
async def test_wrong_arguments_are_named(tmp_path: Path, more: tuple[str, ...], words: str) -> None:
    status, said = await failed(arguments(tmp_path, *more))
    assert status == 2
    assert words in said
    assert "Traceback" not in said


async def test_folders_that_cannot_be_used_are_named_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "task").write_text("a file")
    task = await failed(arguments(tmp_path))
    (tmp_path / "task").unlink()
    (tmp_path / "runner.sock").write_text("a file")
    socket = await failed(arguments(tmp_path))
    assert [status for status, _ in (task, socket)] == [2, 2]
    assert "--task" in task[1]
    assert "--socket" in socket[1]
    assert "Traceback" not in task[1] + socket[1]


async def failed(command: tuple[str, ...]) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, said = await asyncio.wait_for(process.communicate(), DEADLINE)
    assert process.returncode is not None
    return process.returncode, said.decode()
