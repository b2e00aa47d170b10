"""The process engine runs tasks as plain processes, for machines without Docker. It isolates
nothing.

Each task is the entrypoint in its own session with a private home folder. A reaper watches it and
ends when no process of the task lives. Both are forked by a fork server, or started as programs
where that does not work. The reaper outlives the shim: a small state file holds its pid and start
time, so the next shim finds it and never mistakes a reused pid for it. A mark in the environment
finds what the state file misses. Secrets and keys are in a folder in memory, which the
engine removes however the task ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import stat
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Executor
from pathlib import Path

import msgspec

from common.files.task_folder import EXIT_RECORD_NAME, RUNNER_SOCKET_NAME
from common.processes import reaper
from common.processes.fork_server import ForkRequest
from common.threads import to_the_end
from fairlead.wire.decoders import decoder_of
from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.node import EngineKind, Finding
from fairlead.wire.shim import PullProgress, RegistryAuth
from shim.engines import procfs, sweep
from shim.engines.base import (
    ContainerSpec,
    ContainerState,
    Exit,
    Found,
    ImageInfo,
    NodeFault,
    Storage,
)
from shim.engines.fork_server import ForkServer, ForkServerLost
from shim.errors import EngineError
from shim.examination import Asked, NodeSetup, warn
from shim.files import safe_files
from shim.node import machine
from shim.state import records

log = logging.getLogger(__name__)
VARIABLE = "FAIRLEAD_MEMORY_FOLDER"
"""Tells the folder to the runner, which uses it if it really is in memory."""
_MEMORY = Path("/dev/shm")
_PASSED_THROUGH = 0o711
"""A job that runs as another user can pass through the folder to its own files."""


class PrivateMemory:
    """Folders in memory for secrets. Blocking; every method may be repeated."""

    def __init__(self, install_id: str, root: Path = _MEMORY) -> None:
        self._prefix = f"fairlead-{install_id}-"
        self._root = root

    def make(self, task_id: str) -> Path | None:
        """Make the folder; None if that is impossible: then the runner finds a place itself."""
        folder = self._folder(task_id)
        try:
            folder.mkdir(exist_ok=True)
            about = folder.lstat()
            # Everybody may write to /dev/shm: another user can have made this folder first.
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
                raise FileExistsError(f"{folder} belongs to another user")
            folder.chmod(_PASSED_THROUGH)
        except OSError as error:
            log.warning("task %s has no private folder in memory: %s", task_id, error)
            return None
        return folder

    def remove(self, task_id: str) -> None:
        shutil.rmtree(self._folder(task_id), ignore_errors=True)

    def remove_strays(self, known: Iterable[str]) -> None:
        wanted = {self._folder(task_id) for task_id in known}
        for folder in self._root.glob(f"{self._prefix}*"):
            if folder not in wanted:
                log.warning("%s belongs to no task: removed", folder)
                shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, task_id: str) -> Path:
        return self._root / f"{self._prefix}{task_id}"


_MARK = "FAIRLEAD_PROCESS_MARK"
"""Names the task in the environment of all its processes: the runner passes it on."""
_OURS = "FAIRLEAD_"
"""Variables of the shim, or of a controller next to it, are not passed to the job."""
PATIENCE = 5.0
"""Seconds within which a killed process should be gone."""
_FIRST_PAUSE = 0.1
_MAX_PAUSE = 5.0


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """One task's process. `pid` is None until it is started."""

    spec: ContainerSpec
    boot_id: str
    pid: int | None = None
    start_time: int = 0
    ended: bool = False
    exit_code: int | None = None


class ProcessEngine:
    kind = EngineKind.PROCESS
    isolation = False
    has_networks = False
    network_choice = None
    abilities = frozenset({EngineAbility.SIGNAL})

    def __init__(
        self, data: Path, install_id: str, executor: Executor, command: tuple[str, ...] = ()
    ) -> None:
        self._folder = data / "processes"
        self._install_id = install_id
        self._executor = executor
        self._command = command or (sys.executable, "-m", "entrypoint.main")
        self.fork_server: ForkServer | None = None
        if not command:
            self.fork_server = ForkServer(_own_environment(), self._folder / "fork-server.log")
        self._states: dict[str, ProcessState] = {}
        self._children: set[int] = set()
        self._codes: dict[str, int] = {}
        """The exit codes of the tasks whose reapers were waited for."""
        self._memory = PrivateMemory(install_id)
        self._files = threading.Lock()
        """The end of a task may be recorded while the task is being removed."""

    def cgroups(self, container_id: str) -> tuple[str, ...]:
        return ()

    def first_process(self, container_id: str) -> int | None:
        state = self._states.get(container_id)
        if state is None or state.pid is None or state.ended:
            return None
        # After its end the pid may be another's.
        return state.pid if procfs.start_time(state.pid) == state.start_time else None

    def routes_to(self, run_id: str) -> bool:
        return False

    async def open(self) -> None:
        await self._in_thread(self._load)

    async def close(self) -> None:
        if self.fork_server is not None:
            await self._in_thread(self.fork_server.close)

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

    def expect(self, image: ImageInfo) -> None:
        """Do nothing: there are no images."""

    async def ask_registry(
        self, reference: str, digest: str | None, auth: RegistryAuth | None
    ) -> None:
        return None

    async def prove_content(
        self, reference: str, image: ImageInfo, auth: RegistryAuth | None
    ) -> None:
        return None

    async def remove_image(self, reference: str) -> bool:
        return True

    async def storage(self) -> Storage | None:
        return None

    async def ensure_volume(self, name: str) -> str:
        raise EngineError("volumes need containers, which the process engine does not have")

    def networks(self) -> int | None:
        return None

    async def ensure_network(
        self, run_id: str, taken: Collection[str] = (), wanted: str | None = None
    ) -> str | None:
        return None

    async def remove_network(self, run_id: str) -> None:
        return None

    async def create(self, spec: ContainerSpec) -> str:
        if spec.task_id not in self._states:
            await self._save(ProcessState(spec=spec, boot_id=machine.boot_id()))
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
            await self._finish_until_ended(state)
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

    async def _finish_until_ended(self, state: ProcessState) -> None:
        """Repeat until no process of the task is left: the task runs as long as one does."""
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self._in_thread(lambda: self._finish(state))
            # A process in uninterruptible sleep does not die of SIGKILL before it wakes up.
            except EngineError as error:
                log.warning("task %s: %s", state.spec.task_id, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE)

    def _load(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        decoder = decoder_of(ProcessState)
        for path in self._folder.glob("*/state.json"):
            # Written without fsync: what damages it is a power cut, which no process has outlived.
            with contextlib.suppress(records.DamagedFile, msgspec.DecodeError, OSError):
                state = decoder.decode(records.read_file(path))
                self._states[state.spec.task_id] = self._as_it_is(state)
        self._memory.remove_strays(self._states)
        if self.fork_server is not None:
            self.fork_server.start()

    def _as_it_is(self, state: ProcessState) -> ProcessState:
        """Return the state as it is now. A crash between the start and the note of its pid leaves
        only the mark."""
        if state.ended:
            return state
        # After a reboot the pid is that of some other process.
        if state.boot_id != machine.boot_id():
            return msgspec.structs.replace(state, ended=True, pid=None)
        if state.pid is None:
            first = self._first_process(state)
            if first is not None:
                return msgspec.structs.replace(state, pid=first.pid, start_time=first.started)
        return state

    def _first_process(self, state: ProcessState) -> procfs.Process | None:
        """Return the task's reaper, or the oldest process that is left of it."""
        everyone, mark = procfs.processes().values(), self._mark(state)
        found = [one for one in everyone if procfs.has_variable(one, _MARK, mark)]
        reapers = [one for one in found if procfs.has_variable(one, reaper.VARIABLE, mark)]
        return min(reapers or found, key=lambda process: process.started, default=None)

    def _spawn(self, state: ProcessState) -> None:
        spec = state.spec
        home = self._folder / spec.task_id / "home"
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        options = (
            *("--task", spec.job_folder),
            *("--socket", f"{spec.run_folder}/{RUNNER_SOCKET_NAME}"),
            *("--peers", "any"),
        )
        env = _own_environment()
        env |= {"HOME": str(home), _MARK: self._mark(state), reaper.VARIABLE: self._mark(state)}
        if (memory := self._memory.make(spec.task_id)) is not None:
            env[VARIABLE] = str(memory)
        if spec.gpus and spec.gpu_delivery.visible is not None:
            env[spec.gpu_delivery.visible] = ",".join(spec.gpus)
        entrypoint = (*self._command, *options)
        request = ForkRequest(
            reaper=tuple(reaper.command(entrypoint, str(home))),
            entrypoint=entrypoint,
            options=options,
            env=env,
            folder=str(home),
            output=str(self._folder / spec.task_id / "output.log"),
        )
        pid = self._fork(state, request) or self._spawn_session(request)
        started = procfs.start_time(pid) or 0
        # Without fsync: after a power cut no process is left, and until then the mark finds it.
        self._write(msgspec.structs.replace(state, pid=pid, start_time=started), durably=False)

    def _fork(self, state: ProcessState, request: ForkRequest) -> int | None:
        """Return the pid of the reaper; None when no fork server has started one."""
        if self.fork_server is None:
            return None
        try:
            return self.fork_server.fork(request)
        except ForkServerLost:
            # A reaper ends by itself if the server died before it had its mark.
            first = self._first_process(state)
            return None if first is None else first.pid

    def _spawn_session(self, request: ForkRequest) -> int:
        pid = _spawn_session(list(request.reaper), request.env, Path(request.output))
        self._children.add(pid)
        return pid

    def _finish(self, state: ProcessState) -> None:
        code = self._reap(state)
        if not _has_left_nothing(code):
            self._kill_all(state)
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
            self._codes.pop(task_id, None)
            self._memory.remove(task_id)
            shutil.rmtree(self._folder / task_id, ignore_errors=True)

    def _end(self, state: ProcessState) -> None:
        # Noted as ended: no process of it was left.
        if not state.ended:
            self._kill_all(state)
            self._reap(state)

    def _kill_all(self, state: ProcessState) -> None:
        """Kill all processes, as a container's end does. Raises EngineError when one survives."""
        left: tuple[int, ...] = ()
        if (first := self._reaper(state)) is not None:
            # SIGCONT, because a reaper that was stopped takes up no other signal.
            procfs.send_signal(first.pid, first.started, reaper.END_ALL, signal.SIGCONT)
            if not procfs.ends_within(first.pid, first.started, PATIENCE):
                left = procfs.descendants(first.pid)
        left = left or sweep.end_marked(_MARK, self._mark(state), PATIENCE)
        if left:
            names = ", ".join(procfs.command(pid) for pid in sorted(left))
            raise EngineError(
                f"these processes did not end when they were killed: {names}; the task ends when "
                "they do, so end them by hand"
            )

    def _reaper(self, state: ProcessState) -> procfs.Process | None:
        """Return the reaper; None if it was killed, or an older shim started none."""
        first = None if state.pid is None else procfs.find(state.pid)
        if first is None or first.started != state.start_time:
            return None
        return first if procfs.has_variable(first, reaper.VARIABLE, self._mark(state)) else None

    def _reap(self, state: ProcessState) -> int | None:
        """Return the exit code of the task's reaper, which has ended; None: nobody knows it."""
        task_id = state.spec.task_id
        if task_id not in self._codes and (code := self._waited_for(state)) is not None:
            self._codes[task_id] = code
        return self._codes.get(task_id)

    def _waited_for(self, state: ProcessState) -> int | None:
        pid = state.pid
        if pid is None:
            return None
        if pid not in self._children:
            return None if self.fork_server is None else self.fork_server.exit_code(pid)
        self._children.discard(pid)
        try:
            _, status = os.waitpid(pid, 0)
        except ChildProcessError:
            # ECHILD: it was reaped before (waitpid(2)).
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

    def _write(self, state: ProcessState, *, durably: bool = True) -> None:
        folder = self._folder / state.spec.task_id
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write = records.write_file if durably else records.write_note
        write(folder / "state.json", msgspec.json.encode(state))
        self._states[state.spec.task_id] = state

    async def _in_thread(self, act: Callable[[], None]) -> None:
        try:
            await to_the_end(asyncio.get_running_loop().run_in_executor(self._executor, act))
        except OSError as error:
            raise NodeFault(f"the process engine failed: {error}") from error


def _has_left_nothing(code: int | None) -> bool:
    """Return whether a reaper's exit code says that no process of its task lives: with such a code
    it ends only then, and a killed one has another. To look at all processes of the node would cost
    as much as the rest of a tiny task's end."""
    return code is not None and code < reaper.NOT_STARTED


def _own_environment() -> dict[str, str]:
    """Return the environment of all tasks: the shim's, without what concerns the shim itself."""
    return {key: value for key, value in os.environ.items() if not key.startswith(_OURS)}


def _spawn_session(argv: list[str], env: dict[str, str], output: Path) -> int:
    """Start the program in a new session. Popen would remember, and warn about, a child that
    outlives the shim."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    return os.posix_spawn(
        argv[0],
        argv,
        env,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(output), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=reaper.HANDLED,
        # Python ignores these two, and execve(2) hands that on; programs expect the defaults.
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
    )


def _container_state(state: ProcessState) -> ContainerState:
    if state.ended:
        return ContainerState.EXITED
    return ContainerState.CREATED if state.pid is None else ContainerState.RUNNING


def _claimed_exit_code(job_folder: Path) -> int | None:
    """Return the exit code of the exit record: after a restart the shim cannot wait for the
    child."""
    data = safe_files.read_small(job_folder, EXIT_RECORD_NAME, 1 << 16)
    try:
        code = decoder_of(dict[str, object]).decode(data or b"{}").get("exit_code")
    except msgspec.DecodeError:
        return None
    return code if isinstance(code, int) else None


def examine(node: NodeSetup, asked: Asked) -> Iterator[Finding]:
    """Say what this engine lacks."""
    yield warn(
        "jobs are plain processes of this node: nothing isolates them",
        "install Docker, then /opt/fairlead/current/install --docker use",
    )
