"""The first process of a task without a container: no process of the task outlives it.

It does what the end of a PID namespace does for a container, without special rights. It is a child
subreaper: a process of the task that loses its parent becomes its child, whatever its session and
environment. So "it has no child" means "no process of the task lives". Only then does it exit, with
the status of the task's program.

When the program ends, or at END_ALL, it kills its children. Their children become its own and are
killed next, so a fork in between changes nothing. It signals only children that it has not waited
for, and their process groups: the kernel gives their numbers to no other process. It runs as a
script with the standard library alone, which keeps it small, or in a process that a fork server
has forked (`entrypoint/fork_server.py`).
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

VARIABLE = "FAIRLEAD_PROCESS_REAPER"
"""Names the task in the environment of its reaper, and of no other process."""
END_ALL = signal.SIGQUIT
"""The signal that orders it to kill the whole task."""
_PASSED_ON = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
HANDLED = _PASSED_ON | {END_ALL, signal.SIGCHLD}
"""The process that starts a reaper blocks these signals, so that none can come too early."""

_PR_SET_CHILD_SUBREAPER = 36
NOT_STARTED = 127
_FIRST_PAUSE = 0.001
_MAX_PAUSE = 0.5


def command(program: Sequence[str], folder: str) -> list[str]:
    """Return the command line with which a reaper runs `program` in `folder`."""
    return [sys.executable, "-I", "-S", __file__, folder, *program]


def children_of(pid: int, proc: str = "/proc") -> list[int]:
    """Return the children of a process with one thread, zombies included.

    A kernel without lists of children is asked for every process; one that changes parents
    meanwhile may be missing.
    """
    with suppress(FileNotFoundError), open(f"{proc}/{pid}/task/{pid}/children") as file:
        # CONFIG_PROC_CHILDREN may be off, and then the file is missing (proc_pid_children(5)).
        return [int(child) for child in file.read().split()]
    every = (name for name in os.listdir(proc) if name.isdecimal())
    return [int(name) for name in every if _parent(f"{proc}/{name}") == pid]


def _parent(process: str) -> int | None:
    try:
        with open(f"{process}/stat", errors="replace") as file:
            # The name in parentheses may hold blanks and parentheses of its own (proc_pid_stat(5)).
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        # It ended since /proc was listed; a read amid its end is ESRCH.
        return None


class Reaper:
    """Waits for the task of which `program` is the first process. Its process adopts orphans."""

    def __init__(self, program: int) -> None:
        self._program = program
        self._code: int | None = None
        self._ending = False

    def run(self) -> int:
        """Return the program's status, 128 + n for signal n, once no process of the task lives."""
        pause = _FIRST_PAUSE
        while self._reap():
            if self._ending:
                _kill(children_of(os.getpid()))
            if self._is_called(pause if self._ending else None):
                pause = _FIRST_PAUSE
            else:
                pause = min(pause * 2, _MAX_PAUSE)
        assert self._code is not None
        return self._code

    def _reap(self) -> bool:
        """Wait for ended children; return whether there are children left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                # ECHILD: it has no child any more (waitpid(2)).
                return False
            if pid == 0:
                return True
            if pid == self._program:
                code = os.waitstatus_to_exitcode(status)
                self._code = 128 - code if code < 0 else code
                self._ending = True

    def _is_called(self, seconds: float | None) -> bool:
        """Return whether a signal came within these seconds."""
        if seconds is None:
            came = signal.sigwaitinfo(HANDLED)
        elif (within := signal.sigtimedwait(HANDLED, seconds)) is not None:
            came = within
        else:
            return False
        if came.si_signo == END_ALL:
            self._ending = True
        # After the program's end its pid may belong to another process.
        elif came.si_signo in _PASSED_ON and self._code is None:
            os.kill(self._program, came.si_signo)
        return True


def _kill(children: Sequence[int]) -> None:
    """Kill the children with their process groups; the kernel signals a group as a whole, also
    while a member forks.

    A child that may not be signalled, because it has other rights, is waited for.
    """
    for pid in children:
        # It may end between the two calls, and an empty group is no group (ESRCH, kill(2)).
        with suppress(OSError):
            # A signal to our own group would end this process, too.
            if (group := os.getpgid(pid)) != os.getpgrp():
                os.killpg(group, signal.SIGKILL)
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become a child subreaper. Raises OSError."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    # Orphans become children of this process, not of the machine's init (prctl(2)).
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def give_up_protection(score: str = "/proc/self/oom_score_adj") -> None:
    """The node must rather kill a job that eats its memory than what has the shim's protection."""
    # Anybody may raise a score; only lowering one needs a privilege (proc_pid_oom_score_adj(5)).
    with suppress(OSError, ValueError), open(score, "r+") as file:
        if int(file.read()) < 0:
            file.seek(0)
            file.write("0")


def _start(program: list[str]) -> int:
    return os.posix_spawnp(
        program[0],
        program,
        {name: value for name, value in os.environ.items() if name != VARIABLE},
        setpgroup=0,
        setsigmask=[],
        # Python ignores these two, and execve(2) hands that on; programs expect the defaults.
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
    )


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, children would not be waited for
    folder, *program = sys.argv[1:]
    try:
        adopt_orphans()
        give_up_protection()
        os.chdir(folder)
        child = _start(program)
    except OSError as error:
        sys.stderr.write(f"{program[0]} cannot be started: {error.strerror}\n")
        sys.exit(NOT_STARTED)
    status = NOT_STARTED
    try:
        status = Reaper(child).run()
    finally:
        # Python's own status for an error is 1, and the shim reads that no process is left.
        if status == NOT_STARTED:
            sys.stderr.write("the reaper failed\n")
            os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
