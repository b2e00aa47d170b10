"""The process engine: no process of a task outlives it, however it was started and whoever killed
what. A test knows of all of them by a pipe that they hold open: the kernel closes it with the last.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator

import pytest

from common.processes import reaper
from shim.engines import process
from shim.errors import EngineError
from tests.support.engine_contract import DEADLINE, spec
from tests.support.waiting import eventually
from tests.unit.shim.process_world import ProcessWorld

HOLD = "exec 9> life"
DETACHED = "env -i /usr/bin/setsid"
"""A command that begins so has a session of its own, and no environment that tells of its task."""
PYTHON = f"exec {sys.executable} -I -S program.py"

ORPHAN = f"({DETACHED} /bin/sleep 600 > /dev/null &)"

HOPPING = """
if [ ! -e landed ]; then env -i /usr/bin/setsid /bin/sh hop & fi
"""
"""One process at a time, which never lives for long and is never its parent's child for long."""

REPLACING = """
import os

def start():
    if os.fork() == 0:
        os.setsid()
        os.execve("/bin/sleep", ["sleep", "600"], {})

for _ in range(200):
    start()
open("ready", "w").close()
while True:
    os.wait()
    start()
"""
"""It has a new child before the last one is killed."""

HEIR = """
import ctypes, os, signal

def inherit(*_):
    if os.fork() == 0:
        os.setsid()
        os.execve("/bin/sh", ["sh", "-c", ": > inherited; exec /bin/sleep 600"], {})
    os._exit(0)

if os.fork() == 0:
    signal.signal(signal.SIGUSR1, inherit)
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGUSR1)
    open("ready", "w").close()
while True:
    signal.pause()
"""
"""It has a child that starts another process when, and only when, its parent was killed."""


class Task:
    """A script as a task, and what tells whether a process of it lives."""

    def __init__(self, processes: ProcessWorld) -> None:
        self._processes = processes
        self.folder = processes.folder / "t1" / "job"
        self.folder.mkdir(parents=True)
        os.mkfifo(self.folder / "life")
        self._life = os.open(self.folder / "life", os.O_RDONLY | os.O_NONBLOCK)

    async def start(self, script: str) -> None:
        """Returns once it has said that it is ready."""
        engine = self._processes.engine
        await engine.create(spec(self._processes, "t1", f"{HOLD}; {script}"))
        await engine.start("t1")
        await eventually((self.folder / "ready").exists, timeout=DEADLINE)

    def pid(self, name: str) -> int:
        """As the script wrote it into that file; never the test's own."""
        pid = int((self.folder / name).read_text())
        assert pid not in (1, os.getpid())
        return pid

    async def kill(self) -> None:
        await self._processes.engine.kill("t1")

    async def end(self) -> None:
        async with asyncio.timeout(DEADLINE):
            await self._processes.engine.wait("t1")

    def lives(self) -> bool:
        """Whether anything holds the pipe."""
        try:
            return os.read(self._life, 1) != b""
        except BlockingIOError:
            return True

    def close(self) -> None:
        """A failed test's leftovers are told to go."""
        (self.folder / "landed").touch()
        os.close(self._life)


@pytest.fixture
async def task(processes: ProcessWorld) -> AsyncIterator[Task]:
    made = Task(processes)
    yield made
    made.close()


async def test_an_orphan_without_session_and_environment_ends_with_its_task(task: Task) -> None:
    await task.start(f"{ORPHAN}; ready; wait_forever")
    await task.kill()
    await task.end()
    assert not task.lives()


async def test_processes_that_a_task_leaves_behind_end_before_its_own_end_is_told(
    task: Task,
) -> None:
    await task.start(f"{ORPHAN}; ready; exit 3")
    await task.end()
    assert not task.lives()


async def test_a_task_whose_first_program_is_killed_with_9_takes_all_its_processes_along(
    task: Task,
) -> None:
    await task.start(f"{ORPHAN}; echo $$ > first; ready; wait_forever")
    os.kill(task.pid("first"), signal.SIGKILL)
    await task.end()
    assert not task.lives()


async def test_a_process_that_forks_all_the_time_does_not_escape(task: Task) -> None:
    (task.folder / "hop").write_text(HOPPING)
    await task.start("/bin/sh hop; ready; wait_forever")
    await task.kill()
    await task.end()
    assert not task.lives()


async def test_a_process_started_while_others_are_killed_does_not_escape(task: Task) -> None:
    (task.folder / "program.py").write_text(REPLACING)
    await task.start(f": ready; {PYTHON}")
    await task.kill()
    await task.end()
    assert not task.lives()


async def test_a_process_started_because_its_parent_was_killed_does_not_escape(task: Task) -> None:
    """The reaper is held until that has happened, and whoever held it is no excuse."""
    (task.folder / "program.py").write_text(HEIR)
    await task.start(f"echo $PPID > reaper; echo $$ > first; {PYTHON}")
    os.kill(task.pid("reaper"), signal.SIGSTOP)
    os.kill(task.pid("first"), signal.SIGKILL)
    await eventually((task.folder / "inherited").exists, timeout=DEADLINE)
    await task.kill()
    await task.end()
    assert not task.lives()


TREE = f"{DETACHED} /bin/sleep 600 & {DETACHED} /bin/sh -c '{DETACHED} /bin/sleep 600 & wait' &"


async def test_a_task_whose_reaper_is_killed_too_ends_with_all_its_processes(task: Task) -> None:
    await task.start(f"{TREE} echo $PPID > reaper; ready; wait_forever")
    os.kill(task.pid("reaper"), signal.SIGKILL)
    await task.end()
    assert not task.lives()


async def test_when_reaper_and_first_program_are_killed_the_rest_is_known_by_its_mark(
    task: Task,
) -> None:
    rest = f"(/usr/bin/setsid /bin/sh -c '{DETACHED} /bin/sleep 600 & wait' &)"
    await task.start(f"{rest}; echo $PPID > reaper; echo $$ > first; ready; wait_forever")
    os.kill(task.pid("reaper"), signal.SIGSTOP)
    for name in ("first", "reaper"):
        os.kill(task.pid(name), signal.SIGKILL)
    await task.end()
    assert not task.lives()


async def test_processes_left_by_a_killed_shim_and_reaper_are_ended_by_the_next_shim(
    processes: ProcessWorld, task: Task
) -> None:
    await task.start(f"{TREE} echo $PPID > reaper; ready; wait_forever")
    os.kill(task.pid("reaper"), signal.SIGKILL)
    other = await processes.again()
    await other.remove("t1")
    assert not task.lives()


async def test_a_task_is_not_told_to_have_ended_while_a_process_of_it_lives(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that waits for a disk, or has other rights than the shim."""
    deaf = "trap '' QUIT; \"$@\"; exit"
    monkeypatch.setattr(reaper, "command", lambda argv, folder: ["/bin/sh", "-c", deaf, "x", *argv])
    await task.start("echo $$ > first; ready; wait_forever")
    with monkeypatch.context() as short:
        short.setattr(process, "PATIENCE", 0.05)
        with pytest.raises(EngineError, match=rf"when they were killed: .*\({task.pid('first')}\)"):
            await task.kill()
    assert task.lives()
    os.kill(task.pid("first"), signal.SIGKILL)
    await task.kill()
    await task.end()
    assert not task.lives()
