"""The real command in a process of its own, against the real API; the node's part is played."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec
import pytest
from aiohttp.test_utils import TestServer

from controller.lifecycle.model import Allocation, Attempt, Resources, RunState
from controller.lifecycle.reports import (
    LogsComplete,
    Placed,
    RunnerExited,
    RunnerStarted,
    TaskAccepted,
    TaskRemoved,
    TaskSeen,
)
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AllocationState
from fairlead.wire.frames import Frame, Stream, encode
from tests.support.warm_commands import WarmCommand, WarmCommands
from tests.unit.api.conftest import ADMIN_TOKEN, Controller, controller, server

__all__ = ["controller", "server"]

ON_TERMINAL = (
    "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "from fairlead.cli.main import main; main()"
)
PROGRAM = "from fairlead.cli.main import main; main()"
DEADLINE_SECONDS = 180.0


class Result(msgspec.Struct, frozen=True):
    status: int
    out: bytes
    err: str


class PipeReader:
    """A pipe of ours: `write_end` is for a child, and ours to close once the child has it."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        self.stream = asyncio.StreamReader()
        self._transport: asyncio.ReadTransport | None = None

    async def open(self) -> None:
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self.stream), os.fdopen(self._read_end, "rb")
        )

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


class Command:
    """One `fairlead` that runs."""

    def __init__(self, process: WarmCommand, output: PipeReader, errors: PipeReader) -> None:
        self._process = process
        self._output = output
        self._errors = errors
        self.said = ""

    async def hears(self, text: str) -> None:
        """Wait until stderr has said this."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while text not in self.said:
                line = await self._errors.stream.readline()
                assert line, f"it ended without saying {text!r}: {self.said}"
                self.said += line.decode()

    async def reads(self, size: int) -> bytes:
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await self._output.stream.readexactly(size)

    async def prints(self, text: bytes) -> None:
        """Wait until stdout has this."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            await self._output.stream.readuntil(text)

    async def line(self) -> bytes:
        """The next line of stdout."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await self._output.stream.readline()

    def close_output(self) -> None:
        """As `head` does when it has read enough."""
        self._output.close()

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    async def ended(self) -> Result:
        async with asyncio.timeout(DEADLINE_SECONDS):
            status, err, out = await asyncio.gather(
                self._process.wait(), self._errors.stream.read(), self._output.stream.read()
            )
        self.said += err.decode()
        assert "Traceback" not in self.said
        return Result(status, out, self.said)


class Fairlead(Protocol):
    async def __call__(self, *arguments: str, **env: str) -> Command: ...


@pytest.fixture
def environment(server: TestServer) -> dict[str, str]:
    base = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    url = str(server.make_url("")).rstrip("/")
    return base | {"FAIRLEAD_URL": url, "FAIRLEAD_TOKEN": ADMIN_TOKEN}


@pytest.fixture(scope="session")
def warm_commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmCommands]:
    commands = WarmCommands(tmp_path_factory.mktemp("w"))
    yield commands
    commands.close()


@pytest.fixture
async def start(
    environment: dict[str, str], warm_commands: WarmCommands
) -> AsyncIterator[Fairlead]:
    """Starts commands as the admin; `env` adds to the environment, an empty value takes away."""
    processes: list[WarmCommand] = []
    pipes: list[PipeReader] = []

    async def piped() -> PipeReader:
        pipes.append(pipe := PipeReader())
        await pipe.open()
        return pipe

    async def started(*arguments: str, **env: str) -> Command:
        output, errors = await piped(), await piped()
        given = {name: value for name, value in (environment | env).items() if value}
        ends = (output.write_end, errors.write_end)
        processes.append(process := warm_commands.start(arguments, given, *ends))
        for end in ends:
            os.close(end)
        return Command(process, output, errors)

    yield started
    for process in processes:
        process.close()
    for pipe in pipes:
        pipe.close()


class Terminal:
    """One `fairlead` whose stdin, stdout and stderr are a terminal."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self._process = process
        self._master = master
        self._shown = b""
        self._more = asyncio.Event()
        os.set_blocking(master, False)
        asyncio.get_running_loop().add_reader(master, self._read)

    def _read(self) -> None:
        try:
            self._shown += os.read(self._master, 65536)
        except OSError:
            asyncio.get_running_loop().remove_reader(self._master)
        self._more.set()

    async def shows(self, text: bytes) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while text not in self._shown:
                self._more.clear()
                await self._more.wait()

    def types(self, keys: bytes) -> None:
        os.write(self._master, keys)

    async def ended(self) -> int:
        async with asyncio.timeout(DEADLINE_SECONDS):
            status = await self._process.wait()
        assert b"Traceback" not in self._shown
        return status

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


@pytest.fixture
async def start_on_terminal(
    environment: dict[str, str],
) -> AsyncIterator[Callable[..., Awaitable[Terminal]]]:
    terminals: list[Terminal] = []

    async def started(*arguments: str) -> Terminal:
        master, slave = os.openpty()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            ON_TERMINAL,
            *arguments,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, "TERM": "xterm"},
            start_new_session=True,
        )
        os.close(slave)
        terminals.append(Terminal(process, master))
        return terminals[-1]

    yield started
    for terminal in terminals:
        await terminal.close()


class PlayedNode:
    """Reports what a node's daemons would, for the current attempt of a run's job (by index)."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def _state(self, name: str) -> RunState:
        return await self._controller.service.runs.lookup.get(name)

    async def _current(self, name: str, job: int) -> tuple[str, Attempt]:
        state = await self._state(name)
        return state.run.id, state.jobs[job].attempts[-1]

    async def runs(self, name: str, job: int = 0, gpus: tuple[str, ...] = ()) -> str:
        """Place the attempt and start its commands; its id."""
        run_id, attempt = await self._current(name, job)
        ids = {"run_id": run_id, "attempt_id": attempt.id}
        allocation = Allocation(
            id=f"allocation-of-{attempt.id}",
            run_id=run_id,
            job_id=attempt.job_id,
            node_id="n1",
            state=AllocationState.HELD,
            resources=Resources(),
            created_at=0.0,
        )
        pipeline = self._controller.pipeline
        placed = Placed(run_id=run_id, attempt_id=attempt.id, allocation=allocation)
        await pipeline.report(placed)
        await pipeline.report(TaskAccepted(**ids))
        await pipeline.report(self._seen(run_id, attempt.id, terminated=False, gpus=gpus))
        await pipeline.report(RunnerStarted(at=1.0, **ids))
        return attempt.id

    async def prints(
        self, name: str, data: bytes, stream: Stream = Stream.STDOUT, job: int = 0
    ) -> None:
        _, attempt = await self._current(name, job)
        writer = await self._controller.logs.writer(attempt.id)
        await writer.append(encode(Frame(writer.end, 1, stream, data)))
        await writer.close()

    async def ends(self, name: str, exit_code: int, job: int = 0) -> None:
        run_id, attempt = await self._current(name, job)
        ids = {"run_id": run_id, "attempt_id": attempt.id}
        reason = Reason.CONTAINER_EXITED_WITH_ERROR if exit_code else Reason.DONE_BY_RUNNER
        pipeline = self._controller.pipeline
        exited = RunnerExited(reason=reason, message=None, exit_code=exit_code, **ids)
        await pipeline.report(exited)
        await pipeline.report(self._seen(run_id, attempt.id, terminated=True))
        await self._controller.logs.complete(attempt.id)
        await pipeline.report(LogsComplete(**ids))
        await pipeline.report(TaskRemoved(run_id=run_id, attempt_id=attempt.id))

    @staticmethod
    def _seen(
        run_id: str, attempt_id: str, *, terminated: bool, gpus: tuple[str, ...] = ()
    ) -> TaskSeen:
        return TaskSeen(
            run_id=run_id,
            attempt_id=attempt_id,
            container_started=True,
            terminated=terminated,
            runner_socket="/run/fairlead/runner.sock",
            gpus=gpus,
        )


@pytest.fixture
def node(controller: Controller) -> PlayedNode:
    return PlayedNode(controller)


@pytest.fixture
def task(tmp_path: Path) -> str:
    path = tmp_path / "task.yml"
    path.write_text("type: task\nname: hello\ncommands: [echo hello]\n")
    return str(path)
