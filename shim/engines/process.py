"""Tasks as plain processes: for development on machines without Docker. There is no isolation.

Each task is the entrypoint in a session of its own with a private folder as its home. It outlives
the shim: a small state file names its pid and start time, so that the next shim finds it again and
never mistakes a reused pid for it. A mark in the environment finds what the state file cannot: a
process that was started a moment before the shim was killed, and descendants that left the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

import msgspec

from shim import durable, safe_files
from shim.engines import procfs
from shim.engines.base import (
    ContainerSpec,
    ContainerState,
    EngineError,
    Exit,
    Found,
    ImageInfo,
    Storage,
)
from shim.engines.private_memory import VARIABLE, PrivateMemory
from shim.schemas import EngineKind, PullProgress, RegistryAuth

_MARK = "FAIRLEAD_PROCESS_MARK"
_OURS = "FAIRLEAD_"
"""What was set for the shim (or for a controller beside it) is not the job's business."""
_KILL_ROUNDS = 20


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """One task's process. `pid` is None until it was started."""

    spec: ContainerSpec
    boot_id: str
    pid: int | None = None
    start_time: int = 0
    ended: bool = False
    exit_code: int | None = None


class ProcessEngine:
    kind = EngineKind.PROCESS
    isolation = False

    def __init__(
        self, data: Path, install_id: str, executor: Executor, command: tuple[str, ...] = ()
    ) -> None:
        self._folder = data / "processes"
        self._install_id = install_id
        self._executor = executor
        self._command = command or (sys.executable, "-m", "entrypoint.main")
        self._states: dict[str, ProcessState] = {}
        self._children: set[int] = set()
        self._memory = PrivateMemory(install_id)
        self._files = threading.Lock()
        """The end of a task may be noted while the task is being removed."""

    async def open(self) -> None:
        await self._in_thread(self._load)

    async def close(self) -> None:
        return None

    async def ready(self) -> None:
        return None

    async def version(self) -> str | None:
        return None

    async def images(self) -> tuple[str, ...]:
        return ()

    async def local_image(self, reference: str) -> ImageInfo | None:
        return ImageInfo(id=reference)

    async def pull(
        self,
        reference: str,
        auth: RegistryAuth | None,
        progress: Callable[[PullProgress], None],
    ) -> ImageInfo:
        return ImageInfo(id=reference)

    async def remove_image(self, reference: str) -> bool:
        return True

    async def storage(self) -> Storage | None:
        return None

    async def ensure_volume(self, name: str) -> str:
        raise EngineError("volumes need containers, which the process engine does not have")

    async def ensure_network(self, run_id: str) -> None:
        return None

    async def remove_network(self, run_id: str) -> None:
        return None

    async def create(self, spec: ContainerSpec) -> str:
        if spec.task_id not in self._states:
            await self._save(ProcessState(spec=spec, boot_id=procfs.boot_id()))
        return spec.task_id

    async def start(self, container_id: str) -> None:
        state = self._get(container_id)
        if state.pid is None:
            await self._in_thread(lambda: self._spawn(state))

    async def published_port(self, container_id: str, port: int) -> int | None:
        return None

    async def signal_stop(self, container_id: str) -> None:
        state = self._states.get(container_id)
        if state is not None and state.pid is not None:
            procfs.send_signal(state.pid, state.start_time, signal.SIGTERM)

    async def kill(self, container_id: str) -> None:
        state = self._states.get(container_id)
        if state is not None:
            await self._in_thread(lambda: self._kill_all(state))

    async def wait(self, container_id: str) -> Exit:
        state = self._states.get(container_id)
        if state is None:
            return Exit(exit_code=None, gone=True)
        if not state.ended and state.pid is not None:
            await procfs.wait_end(state.pid, state.start_time)
            await self._in_thread(lambda: self._finish(state))
        ended = self._states.get(container_id, state)
        return Exit(exit_code=ended.exit_code)

    async def remove(self, task_id: str) -> None:
        state = self._states.get(task_id)
        if state is not None:
            await self._in_thread(lambda: self._end(state))
        await self._in_thread(lambda: self._forget(task_id))

    async def list(self) -> tuple[Found, ...]:
        return tuple(
            Found(
                container_id=task_id,
                task_id=task_id,
                state=_container_state(state),
                record=state.spec.record,
                run_id=state.spec.run_id,
                allocation_id=state.spec.allocation_id,
            )
            for task_id, state in self._states.items()
        )

    def _load(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        decoder = msgspec.json.Decoder(ProcessState)
        for path in self._folder.glob("*/state.json"):
            with contextlib.suppress(durable.DamagedFile, msgspec.DecodeError, OSError):
                state = decoder.decode(durable.read_file(path))
                self._states[state.spec.task_id] = self._as_it_is(state)
        self._memory.remove_strays(self._states)

    def _as_it_is(self, state: ProcessState) -> ProcessState:
        """A crash between starting the process and noting its pid leaves only the mark."""
        if state.ended:
            return state
        if state.boot_id != procfs.boot_id():
            return msgspec.structs.replace(state, ended=True, pid=None)
        if state.pid is None:
            leaders = procfs.marked(self._mark(state), leaders_only=True)
            if not leaders:
                return state
            pid = leaders[0]
            return msgspec.structs.replace(state, pid=pid, start_time=procfs.start_time(pid) or 0)
        return state

    def _spawn(self, state: ProcessState) -> None:
        spec = state.spec
        home = self._folder / spec.task_id / "home"
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        argv = [
            *self._command,
            *("--task", spec.job_folder),
            *("--socket", f"{spec.run_folder}/runner.sock"),
            *("--peers", "any"),
        ]
        env = {key: value for key, value in os.environ.items() if not key.startswith(_OURS)}
        env |= {"HOME": str(home), _MARK: self._mark(state)}
        if (memory := self._memory.make(spec.task_id)) is not None:
            env[VARIABLE] = str(memory)
        if spec.gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(spec.gpus)
        pid = _spawn_session(argv, env, home, self._folder / spec.task_id / "output.log")
        self._children.add(pid)
        self._write(msgspec.structs.replace(state, pid=pid, start_time=procfs.start_time(pid) or 0))

    def _finish(self, state: ProcessState) -> None:
        self._kill_all(state)
        code = self._reap(state)
        if code is None:
            code = _claimed_exit_code(Path(state.spec.job_folder))
        self._memory.remove(state.spec.task_id)
        with self._files:
            current = self._states.get(state.spec.task_id)
            if current is not None and not current.ended:
                self._write(msgspec.structs.replace(current, ended=True, exit_code=code))

    def _forget(self, task_id: str) -> None:
        with self._files:
            self._states.pop(task_id, None)
            self._memory.remove(task_id)
            shutil.rmtree(self._folder / task_id, ignore_errors=True)

    def _end(self, state: ProcessState) -> None:
        self._kill_all(state)
        self._reap(state)

    def _kill_all(self, state: ProcessState) -> None:
        """What a container's end does for its processes has to be done by hand here."""
        mark = self._mark(state)
        for number in range(_KILL_ROUNDS):
            pids = self._left(state, mark, first_too=number > _KILL_ROUNDS // 2)
            if not pids:
                return
            for pid in dict.fromkeys(pids):
                procfs.kill_now(pid)

    @staticmethod
    def _left(state: ProcessState, mark: str, *, first_too: bool) -> tuple[int, ...]:
        """Without the first process while anything comes from it: it adopts what else would escape.
        A job that forks faster than it is killed does not keep it alive."""
        if state.pid is None or procfs.start_time(state.pid) != state.start_time:
            return procfs.marked(mark)
        below = procfs.descendants(state.pid)
        if below and not first_too:
            return below
        return (*below, *procfs.marked(mark), *procfs.session_members(state.pid))

    def _reap(self, state: ProcessState) -> int | None:
        pid = state.pid
        if pid is None or pid not in self._children:
            return None
        self._children.discard(pid)
        try:
            _, status = os.waitpid(pid, 0)
        except ChildProcessError:
            return None
        code = os.waitstatus_to_exitcode(status)
        return 128 - code if code < 0 else code

    def _get(self, task_id: str) -> ProcessState:
        try:
            return self._states[task_id]
        except KeyError:
            raise EngineError(f"task {task_id} has no process") from None

    def _mark(self, state: ProcessState) -> str:
        return f"{self._install_id}/{state.spec.task_id}"

    async def _save(self, state: ProcessState) -> None:
        await self._in_thread(lambda: self._write(state))

    def _write(self, state: ProcessState) -> None:
        folder = self._folder / state.spec.task_id
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        durable.write_file(folder / "state.json", msgspec.json.encode(state))
        self._states[state.spec.task_id] = state

    async def _in_thread(self, act: Callable[[], None]) -> None:
        future = asyncio.get_running_loop().run_in_executor(self._executor, act)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise
        except OSError as error:
            raise EngineError(f"the process engine failed: {error}") from error


def _spawn_session(argv: list[str], env: dict[str, str], folder: Path, output: Path) -> int:
    """Popen would remember, and warn about, a child that is meant to outlive us."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    return os.posix_spawn(
        "/bin/sh",
        ["/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(folder), *argv],
        env,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(output), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
    )


def _container_state(state: ProcessState) -> ContainerState:
    if state.ended:
        return ContainerState.EXITED
    return ContainerState.CREATED if state.pid is None else ContainerState.RUNNING


def _claimed_exit_code(job_folder: Path) -> int | None:
    """After a restart of the shim nobody can wait for the child; its exit record tells."""
    data = safe_files.read_small(job_folder, "exit.json", 1 << 16)
    try:
        code = msgspec.json.decode(data or b"{}", type=dict[str, object]).get("exit_code")
    except msgspec.DecodeError:
        return None
    return code if isinstance(code, int) else None
