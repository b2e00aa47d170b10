"""The fork server of a shim's process engine: has everything loaded, and forks a task's first
processes.

It is one thread without an event loop, so nothing but its memory is copied. Its shim talks to it on
standard input; the end of that is its own end, and the tasks live on. Files, session, working
directory, environment, command line and signals of a forked process are those of one that the shim
starts itself, and Python seeds its random numbers again. Only the secret of Python's string hashes
is shared by the tasks of one shim.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from contextlib import suppress

import msgspec

from common.processes import reaper
from common.processes.fork_server import (
    MAX_MESSAGE,
    Ended,
    Forked,
    ForkRequest,
    NotForked,
    ServerMessage,
)
from entrypoint import main as entrypoint
from entrypoint.process_memory import ProcessMemory

_SHIM = 0
"""The descriptor of the socket to the shim."""


def main() -> None:
    # A forked process inherits the mask (sigprocmask(2)): nothing that comes early is lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, reaper.HANDLED)
    gc.disable()
    entrypoint.leave_out()
    _load()
    memory = ProcessMemory()
    memory.become(sys.orig_argv[:-1], {})
    # Objects that no collector visits stay in pages that all tasks share.
    gc.freeze()
    with socket.socket(fileno=_SHIM) as shim:
        _ForkServer(shim, memory).serve()


def _load() -> None:
    """Load what each forked process needs, also what would be made when it is first used: for a
    tiny job that is a fourth of its processes' CPU."""
    from concurrent.futures import thread  # noqa: F401 (the first call in a thread imports it)

    from entrypoint import life  # noqa: F401
    from fairlead.wire.job import SubmitRequest
    from fairlead.wire.runner import AckRequest, StopRequest

    for kind in (AckRequest, StopRequest, SubmitRequest):
        # msgspec evaluates the annotations of a type once and keeps the result with it.
        msgspec.json.Decoder(kind)


class _ForkServer:
    def __init__(self, shim: socket.socket, memory: ProcessMemory) -> None:
        self._shim = shim
        self._memory = memory
        self._reapers: dict[int, int] = {}
        """Their pids by pidfd."""
        self._poll = select.poll()
        self._poll.register(shim, select.POLLIN)

    def serve(self) -> None:
        while True:
            for fd, _ in self._poll.poll():
                if fd != self._shim.fileno():
                    self._reap(fd)
                elif message := self._shim.recv(MAX_MESSAGE):
                    self._tell(self._forked(msgspec.json.decode(message, type=ForkRequest)))
                else:
                    return

    def _forked(self, request: ForkRequest) -> ServerMessage:
        if not self._memory.fits(request.env):
            return NotForked("the environment is too large")
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            # EAGAIN: the processes of the user or cgroup are at their limit (fork(2)).
            return NotForked(str(error))
        if pid == 0:
            self._become_reaper(request, server)
        # poll(2) sees the end of a child by this alone (pidfd_open(2)).
        pidfd = os.pidfd_open(pid)
        self._reapers[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        return Forked(pid)

    def _reap(self, pidfd: int) -> None:
        # Before the close: its number may be another file's next, which poll would then watch.
        self._poll.unregister(pidfd)
        os.close(pidfd)
        # It does not block: a pidfd is readable once its process has ended (pidfd_open(2)).
        pid, status = os.waitpid(self._reapers.pop(pidfd), 0)
        code = os.waitstatus_to_exitcode(status)
        # As a shell does: 128 and the number of the signal (bash(1), EXIT STATUS).
        self._tell(Ended(pid, 128 - code if code < 0 else code))

    def _tell(self, message: ServerMessage) -> None:
        try:
            self._shim.send(msgspec.json.encode(message))
        except OSError:
            sys.exit()  # without a shim, nobody asks any more

    # -- in the forked processes -----------------------------------------------------------------

    def _become_reaper(self, request: ForkRequest, server: int) -> None:
        code = reaper.NOT_STARTED
        try:
            os.setsid()
            self._memory.become(request.reaper, request.env)
            # From here on the mark in the environment is found. If shim or server ended before, the
            # task was given up without it, and may be started again.
            if os.getppid() != server or self._shim_has_gone():
                return
            _own_files(request.output)
            os.chdir(request.folder)
            reaper.adopt_orphans()
            reaper.give_up_protection()
            program = os.fork()
            if program == 0:
                self._become_entrypoint(request)
            code = reaper.Reaper(program).run()
        except OSError as error:
            sys.stderr.write(f"the task cannot be started: {error}\n")
        finally:
            sys.stderr.flush()
            # Not sys.exit: the frames above are the server's, copied by fork(2).
            os._exit(code)

    def _become_entrypoint(self, request: ForkRequest) -> None:
        code = reaper.NOT_STARTED
        try:
            os.setpgid(0, 0)
            env = {name: value for name, value in request.env.items() if name != reaper.VARIABLE}
            self._memory.become(request.entrypoint, env)
            # SIGTERM stays blocked: `entrypoint.main` lets it through once it is handled.
            signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGTERM})
            entrypoint.main(request.options)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _shim_has_gone(self) -> bool:
        poll = select.poll()
        poll.register(self._shim, 0)  # POLLHUP is always told
        return bool(poll.poll(0))


def _own_files(output: str) -> None:
    """Give this process the files of a new one, and none of the server's."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    printed = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    for fd in os.listdir("/proc/self/fd"):
        if int(fd) > 2:
            # The descriptor of the list itself is closed already.
            with suppress(OSError):
                os.close(int(fd))


if __name__ == "__main__":
    main()
