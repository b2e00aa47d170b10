"""The process engine's fork server: tasks that it forks are as those that are started without it,
and whoever is killed, no task is lost or runs twice."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.processes import reaper
from common.processes.fork_server import ForkRequest
from fairlead.wire.runner import RunnerState
from runner.client import RunnerClient
from shim.daemon import disk_threads
from shim.engines import fork_server, procfs, sweep
from shim.engines.fork_server import MAX_FAILURES, ForkServer
from shim.engines.process import ProcessEngine
from tests.support.dialling import dial_to
from tests.support.engine_contract import DEADLINE, spec
from tests.support.waiting import eventually
from tests.unit.runner.harness import a_job, a_session, exit_of, followed, payload, until_output


class World:
    """A machine with real entrypoints; `again` is the next life of its shim."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._threads = disk_threads()
        self._install_id = uuid.uuid4().hex
        self._engines: list[ProcessEngine] = []

    @property
    def engine(self) -> ProcessEngine:
        return self._engines[-1]

    @property
    def server(self) -> ForkServer:
        assert self.engine.fork_server is not None
        return self.engine.fork_server

    async def again(self) -> ProcessEngine:
        engine = ProcessEngine(self.folder / "data", self._install_id, self._threads)
        await engine.open()
        self._engines.append(engine)
        return engine

    async def start(self, task_id: str) -> int:
        """Start the task, until its runner answers; return its reaper's pid."""
        await self.engine.create(spec(self, task_id, ""))
        await self.engine.start(task_id)
        await eventually(self.socket(task_id).exists)
        async with a_session(self.socket(task_id)) as session:
            await RunnerClient(session).health()
        return self.reaper(task_id)

    def reaper(self, task_id: str) -> int:
        state = self.engine._states[task_id]
        assert state.pid is not None
        return state.pid

    async def reapers(self, task_id: str) -> list[int]:
        """The pids of the task's reapers; tests beside this one have tasks of the same id."""
        # Any process of the machine may just execute a program, which is waited for.
        return await asyncio.to_thread(self._reapers, f"{self._install_id}/{task_id}")

    def _reapers(self, mark: str) -> list[int]:
        everyone = procfs.processes().items()
        return [pid for pid, one in everyone if procfs.has_variable(one, reaper.VARIABLE, mark)]

    def socket(self, task_id: str) -> Path:
        return self.folder / task_id / "run" / "runner.sock"

    async def run(self, task_id: str, *commands: str) -> str:
        """Run a job to its end; return its output."""
        async with a_session(self.socket(task_id)) as session:
            client = RunnerClient(session, dial_answer=dial_to(self.socket(task_id)))
            await client.start(a_job(*commands))
            record = await exit_of(client)
            output = payload(await followed(client)).decode()
            await client.ack(record.log_end)
        return output

    async def close(self) -> None:
        for found in await self.engine.list():
            await self.engine.remove(found.task_id)
        for engine in self._engines:
            await engine.close()
        self._threads.shutdown()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    await world.again()
    yield world
    await world.close()


def variables(pid: int) -> dict[str, str]:
    raw = Path(f"/proc/{pid}/environ").read_bytes()
    return dict(entry.split("=", 1) for entry in raw.decode().split("\0") if entry)


def shape_of(pid: int) -> dict[str, object]:
    """What one may see of a process from outside, without numbers of its own."""
    proc = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines())
    env = {name: value.replace("t2", "t1") for name, value in variables(pid).items()}
    files = {fd: os.readlink(proc / "fd" / fd).partition(":")[0] for fd in ("0", "1", "2")}
    return {
        "command": (proc / "cmdline").read_bytes().rstrip(b"\0").replace(b"/t2/", b"/t1/"),
        "environment": env,
        "files": {fd: path.replace("/t2/", "/t1/") for fd, path in files.items()},
        "cwd": os.readlink(proc / "cwd").replace("/t2/", "/t1/"),
        "umask": status["Umask"],
        "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
        "oom": (proc / "oom_score_adj").read_text(),
        "limits": (proc / "limits").read_text(),
    }


def family(pid: int) -> list[int]:
    return [pid, *sorted(procfs.descendants(pid))]


async def test_a_forked_task_looks_as_one_that_was_started_without(world: World) -> None:
    forked = await world.start("t1")
    assert world.server.pid is not None
    world.server._failures = MAX_FAILURES
    await asyncio.to_thread(world.server.close)
    started = await world.start("t2")
    for one, other in zip(family(forked), family(started), strict=True):
        assert shape_of(one) == shape_of(other)
        assert open_files(one) <= open_files(other)
    assert open_files(forked) == 3
    assert os.getsid(forked) == forked


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def test_a_forked_task_runs_its_job(world: World) -> None:
    pid = await world.start("t1")
    output = await world.run("t1", "env | grep -c FAIRLEAD_ROOM; echo $HOME; exit 3")
    assert output.split() == ["0", str(world.folder / "data/processes/t1/home")]
    async with asyncio.timeout(DEADLINE):
        assert (await world.engine.wait("t1")).exit_code == 3
    assert not procfs.find(pid)


async def test_the_end_of_a_task_looks_at_no_other_process_of_the_node(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start("t1")
    looks: list[str] = []

    def noted(name: str, mark: str, patience: float) -> tuple[int, ...]:
        looks.append(mark)
        return ()

    monkeypatch.setattr(sweep, "end_marked", noted)
    await world.run("t1", "exit 3")
    async with asyncio.timeout(DEADLINE):
        assert (await world.engine.wait("t1")).exit_code == 3
    await world.engine.remove("t1")
    assert (looks, await world.engine.list()) == ([], ())


async def test_what_a_killed_reaper_leaves_is_looked_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = await world.start("t1")
    looks: list[str] = []
    real = sweep.end_marked

    def noted(name: str, mark: str, patience: float) -> tuple[int, ...]:
        looks.append(mark)
        return real(name, mark, patience)

    monkeypatch.setattr(sweep, "end_marked", noted)
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(DEADLINE):
        assert (await world.engine.wait("t1")).exit_code == 137
    assert len(looks) == 1


LOADS_ALL = """
import sys
import msgspec
from entrypoint import fork_server, main
main.leave_out()
fork_server._load()
from fairlead.wire.runner import AckRequest, StopRequest, SubmitRequest

def again(kind):
    raise AssertionError(f"{kind} is evaluated in each forked process")

msgspec._utils.get_class_annotations = again
msgspec.json.Decoder(SubmitRequest), msgspec.json.Decoder(AckRequest)
before = set(sys.modules)
import asyncio
asyncio.run(asyncio.to_thread(int))
print(sorted(set(sys.modules) - before))
"""


def test_a_forked_process_finds_all_that_is_made_at_a_first_use() -> None:
    done = subprocess.run([sys.executable, "-c", LOADS_ALL], capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"[]\n", b"")


async def test_the_code_of_a_killed_entrypoint_is_known(world: World) -> None:
    pid = await world.start("t1")
    (entrypoint,) = procfs.descendants(pid)
    os.kill(entrypoint, signal.SIGKILL)
    async with asyncio.timeout(DEADLINE):
        assert (await world.engine.wait("t1")).exit_code == 137


async def test_a_killed_server_takes_no_task_with_it_and_is_replaced(world: World) -> None:
    first = await world.start("t1")
    killed = world.server.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    second = await world.start("t2")
    third = await world.start("t3")
    assert world.server.pid not in (None, killed)
    assert parent_of(third) == world.server.pid
    for number, pid in enumerate((first, second, third), start=1):
        assert procfs.find(pid)
        assert await world.run(f"t{number}", "echo hi") == "hi\n"


async def test_nobody_waits_for_the_code_of_a_task_whose_server_was_killed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is held meanwhile, so no other task would start."""
    first = await world.start("t1")
    assert world.server.pid is not None
    os.kill(world.server.pid, signal.SIGKILL)
    await world.start("t2")
    await world.start("t3")
    monkeypatch.setattr(fork_server, "ANSWER_SECONDS", math.inf)  # no socket waits so long
    assert await asyncio.to_thread(world.server.exit_code, first) is None


def parent_of(pid: int) -> int:
    process = procfs.find(pid)
    assert process is not None
    return process.parent


async def test_a_server_that_does_not_answer_is_not_waited_for_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start("t1")
    stopped = world.server.pid
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    monkeypatch.setattr(fork_server, "ANSWER_SECONDS", 0.05)
    pid = await world.start("t2")
    assert not procfs.find(stopped)
    assert len(await world.reapers("t2")) == 1
    assert parent_of(pid) == os.getpid()
    assert await world.run("t2", "echo hi") == "hi\n"


async def test_a_server_that_cannot_run_is_not_tried_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(world.server.close)
    monkeypatch.setattr("shim.engines.fork_server.sys.executable", "/bin/false")
    world.server._failures = 0
    spawned = []
    spawn = ForkServer._spawn

    def counted(server: ForkServer, theirs: object) -> int:
        spawned.append(spawn(server, theirs))  # type: ignore[arg-type]
        return spawned[-1]

    monkeypatch.setattr(ForkServer, "_spawn", counted)
    for _ in range(5):
        request = ForkRequest(
            reaper=(), entrypoint=(), options=(), env={}, folder="/", output="/dev/null"
        )
        try:
            assert await asyncio.to_thread(world.server.fork, request) is None
        except fork_server.ForkServerLost:
            continue
    assert len(spawned) == MAX_FAILURES


async def test_a_task_outlives_shim_and_server_and_the_next_shim_knows_it(world: World) -> None:
    pid = await world.start("t1")
    async with a_session(world.socket("t1")) as session:
        client = RunnerClient(session)
        await client.start(a_job("echo ready; exec sleep 600"))
        await until_output(client, b"ready\n")
    before = world.server
    await asyncio.to_thread(before.close)
    await world.again()
    assert world.reaper("t1") == pid
    async with a_session(world.socket("t1")) as session:
        assert (await RunnerClient(session).health()).state is RunnerState.RUNNING
    async with asyncio.timeout(DEADLINE):
        await world.engine.kill("t1")
        await world.engine.wait("t1")
    assert not procfs.find(pid)


async def test_a_reaper_that_was_forked_but_never_noted_is_found_by_its_mark(world: World) -> None:
    pid = await world.start("t1")
    state = world.engine._states["t1"]
    forgotten = type(state)(spec=state.spec, boot_id=state.boot_id)
    await asyncio.to_thread(world.engine._write, forgotten)
    await world.again()
    assert world.reaper("t1") == pid


async def test_the_server_ends_with_its_shim(world: World) -> None:
    server = world.server
    pid = server.pid
    assert pid is not None
    await world.start("t1")
    await asyncio.to_thread(server.close)
    assert not procfs.find(pid)


async def test_tasks_that_are_started_at_once_are_all_forked(world: World) -> None:
    names = [f"t{number}" for number in range(12)]
    await asyncio.gather(*(world.start(name) for name in names))
    assert {parent_of(world.reaper(name)) for name in names} == {world.server.pid}
    outputs = await asyncio.gather(*(world.run(name, f"echo {name}") for name in names))
    assert outputs == [f"{name}\n" for name in names]


async def test_an_environment_that_is_too_large_is_no_obstacle(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LARGE", "x" * (100 << 10))
    pid = await world.start("t1")
    assert parent_of(pid) == os.getpid()
    assert await world.run("t1", "echo ${#LARGE}") == f"{100 << 10}\n"
