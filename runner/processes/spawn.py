"""Starts processes, each in its own session, and records which child has an owner.

They are waited for through pidfds, without a thread or a child watcher. As pid 1 (or child
subreaper) this process also inherits every orphan of the container and must reap only those: if it
reaped the job's process by accident, the exit code would be lost. So a child is started inside
`Children.starting` and owned at once.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import msgspec

from common.threads import to_the_end
from runner.errors import CannotStart
from runner.processes import terminal
from runner.processes.launch import Launch
from runner.processes.leaf import Leaf


class Children:
    """The owned children. `reap_orphans` leaves them alone, and reaps nothing while one is being
    started, because its pid is not known yet."""

    def __init__(self) -> None:
        self._owned: set[int] = set()
        self._starting = 0
        self._listeners: list[Callable[[], None]] = []
        self.adopts_orphans = False

    def on_reaped(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after orphans were reaped; the result stops that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    @contextmanager
    def starting(self) -> Iterator[None]:
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1
            if self.adopts_orphans:
                self.reap_orphans()

    @property
    def owned(self) -> frozenset[int]:
        return frozenset(self._owned)

    def own(self, pid: int) -> None:
        self._owned.add(pid)

    def disown(self, pid: int) -> None:
        """Forget the child: its owner has waited for it."""
        self._owned.discard(pid)
        if self.adopts_orphans:
            self.reap_orphans()

    def reap_orphans(self) -> None:
        """Reap until none is left or an owned child comes first (its owner calls `disown`)."""
        # A process that is being started is not owned yet: its exit code would be lost here.
        if self._starting:
            return
        reaped = False
        while (pid := self._next_dead()) is not None and pid not in self._owned:
            os.waitpid(pid, 0)
            reaped = True
        if reaped:
            for listener in tuple(self._listeners):
                listener()

    def _next_dead(self) -> int | None:
        try:
            # WNOWAIT only looks: to reap an owned child here would lose its exit code.
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        return None if found is None else found.si_pid


class Ending(msgspec.Struct, frozen=True):
    """The end of a process. `code` is 128 + n when signal n ended it."""

    code: int
    signal: str | None = None


def signal_name(number: int) -> str:
    """Return the signal's name; Python names only the first and the last real-time signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


class Child:
    """A process that `children` owns. `wait` may be called by several tasks."""

    def __init__(self, pid: int, children: Children) -> None:
        self.pid = pid
        self._children = children
        self._pidfd = os.pidfd_open(pid)
        self.ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._pidfd, self._collect)

    async def wait(self) -> Ending:
        # Several tasks wait for it: one that is cancelled must not cancel it for the others.
        return await asyncio.shield(self.ended)

    def kill(self) -> None:
        """Send SIGKILL to it alone; does nothing when it has ended."""
        if not self.ended.done():
            # It has just ended, or a setuid program has made it another user's (kill(2)).
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def signal_group(self, number: int) -> None:
        """Signal its process group; does nothing when that is empty."""
        # The group is empty, or has only processes of other users (kill(2)).
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def group_is_alive(self) -> bool:
        try:
            # Signal 0 is sent to nobody: it asks whether the group has a process (kill(2)).
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            # The group has only processes of other users (kill(2)).
            return True
        return True

    def _collect(self) -> None:
        # Before the close: the number of a closed descriptor is soon that of another file.
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        result = os.waitid(os.P_PID, self.pid, os.WEXITED)
        assert result is not None
        if result.si_code == os.CLD_EXITED:
            ending = Ending(result.si_status)
        else:
            # As a shell does: 128 and the number of the signal (bash(1), EXIT STATUS).
            ending = Ending(128 + result.si_status, signal_name(result.si_status))
        self.ended.set_result(ending)
        self._children.disown(self.pid)


JOB_UMASK = 0o022
"""The usual umask; the runner's own lets the node's group read what it makes in the task's
folder."""


class Ends(NamedTuple):
    """The ends of the process's outputs: the runner's, and the process's."""

    stdout: int
    stderr: int
    their_stdout: int
    their_stderr: int


@contextmanager
def ends_for(launch: Launch) -> Iterator[Ends]:
    """Return the ends for the time of the start; the runner's stay open unless that fails."""
    stdout_read, stdout_write = terminal.open_for(launch.identity) if launch.tty else _pipe()
    stderr_read, stderr_write = _pipe()
    their_stderr = stdout_write if launch.tty else stderr_write
    try:
        yield Ends(stdout_read, stderr_read, stdout_write, their_stderr)
    except BaseException:
        os.close(stdout_read)
        os.close(stderr_read)
        raise
    finally:
        # Output ends when nobody has the other end open any more (pipe(7)): not we either.
        os.close(stdout_write)
        os.close(stderr_write)


def fork_exec(launch: Launch, ends: Ends, stdin: int = subprocess.DEVNULL) -> int:
    """Start the process and return its pid. Raises CannotStart."""
    identity = launch.identity
    try:
        return execute(
            launch.argv,
            stdin=stdin,
            stdout=ends.their_stdout,
            stderr=ends.their_stderr,
            env=launch.env,
            cwd=launch.working_dir,
            # Then its pid is that of its process group, and one signal reaches the job (setsid(2)).
            start_new_session=True,
            umask=JOB_UMASK,
            preexec_fn=_first_steps(launch),
            user=None if identity is None else identity.uid,
            group=None if identity is None else identity.gid,
            extra_groups=None if identity is None else identity.groups,
        )
    # ValueError: a NUL in an argument or a variable; SubprocessError: `preexec_fn` failed.
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise CannotStart(_why_not(launch, error)) from error


def _fork_within(leaf: Leaf | None, launch: Launch, ends: Ends, stdin: int) -> int:
    if leaf is None or not leaf.enter():
        return fork_exec(launch, ends, stdin)
    try:
        return fork_exec(launch, ends, stdin)
    finally:
        leaf.leave()


def _first_steps(launch: Launch) -> Callable[[], None] | None:
    """Return what the process does before it becomes the program; None: nothing."""
    # Only where it is needed: Python code between fork and exec is unsafe with threads.
    if not launch.tty and launch.core_limit is None:
        return None

    def run() -> None:
        if launch.tty:
            terminal.take()
        if launch.core_limit is not None:
            allow_core_dumps(launch.core_limit)

    return run


def allow_core_dumps(limit: int) -> None:
    """Let this process, and those that it starts, write core dumps of up to `limit` bytes (-1: any
    size), but no more than its hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    unlimited = resource.RLIM_INFINITY
    soft = hard if limit == unlimited else limit if hard == unlimited else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def execute(argv: Sequence[str], **options: Any) -> int:
    """Start `subprocess.Popen` and return the pid, for which the caller waits."""
    process = subprocess.Popen(argv, **options)
    process.returncode = 0  # Popen must neither wait for it nor complain about that
    return process.pid


class JobProcess(Child):
    """The job's process. `pid` is also its session and process group. Its outputs are read without
    blocking."""

    def __init__(self, pid: int, children: Children, stdout: int, stderr: int) -> None:
        super().__init__(pid, children)
        self.stdout = stdout
        self.stderr = stderr


async def spawn(
    launch: Launch,
    children: Children,
    stdin: int = subprocess.DEVNULL,
    leaf: Leaf | None = None,
) -> JobProcess:
    """Start the process, in `leaf` if it can be entered. Raises CannotStart when the program cannot
    be executed.

    With `launch.tty` both outputs are one terminal, read from `stdout`, and `stderr` ends at once.
    """
    with ends_for(launch) as ends, children.starting():
        pid = await _owned(asyncio.to_thread(_fork_within, leaf, launch, ends, stdin), children)
    return JobProcess(pid, children, ends.stdout, ends.stderr)


def start(argv: Sequence[str], children: Children, **options: Any) -> Child:
    """Start a child as `subprocess.Popen` does: blocks until the program is executed. Raises
    OSError and subprocess.SubprocessError."""
    with children.starting():
        children.own(pid := execute(argv, umask=JOB_UMASK, **options))
    return Child(pid, children)


async def start_in_thread(argv: Sequence[str], children: Children, **options: Any) -> Child:
    """Start a child as `start` does, for a loop that must not wait."""
    with children.starting():
        start = asyncio.to_thread(execute, argv, umask=JOB_UMASK, **options)
        pid = await _owned(start, children)
    return Child(pid, children)


async def _owned(start: Coroutine[Any, Any, int], children: Children) -> int:
    """Wait for a start in a thread; return the pid. If cancelled, the process is killed."""
    starting = asyncio.ensure_future(start)
    try:
        pid = await to_the_end(starting)
    except asyncio.CancelledError:
        # The program may run before this loop hears of it, and nobody else would end it.
        if not starting.cancelled() and starting.exception() is None:
            children.own(starting.result())
            child = Child(starting.result(), children)
            child.signal_group(signal.SIGKILL)
            child.kill()
            await child.wait()
        raise
    children.own(pid)
    return pid


def _pipe() -> tuple[int, int]:
    read, write = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(read, False)
    return read, write


def _why_not(launch: Launch, error: Exception) -> str:
    if isinstance(error, PermissionError):
        return (
            f"user {launch.identity.name if launch.identity else os.getuid()} may not execute"
            f" {launch.argv[0]!r} in {launch.working_dir!r}"
        )
    if isinstance(error, OSError):
        return f"{launch.argv[0]!r} cannot be executed: {error.strerror}"
    return f"{launch.argv[0]!r} cannot be executed: {error}"
