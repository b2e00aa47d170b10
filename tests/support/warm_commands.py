"""Commands in processes of their own, without the time that importing their modules takes.

One process imports what commands import, and forks for each of them: 0.04 s of the processor's time
instead of 0.19 s. `tests/unit/installed` and the e2e tests start commands as their users do.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import os
import pkgutil
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

from tests.support.daemons import Daemon

_GIVEN = 3
"""The first descriptor that systemd gives, and `Daemon` too (sd_listen_fds(3))."""
_LARGEST = 1 << 20
_SLOW_MODULES = (
    *("fairlead.cli.main", "rich.markdown", "rich.console", "cyclopts.help", "ssl"),
    *("controller.commands.serve", "uvloop"),
)


class WarmCommands:
    """The process that forks. `folder` is for its socket."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "commands.sock")
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(self._path)
        self._listening.listen(64)
        argv = [sys.executable, "-m", __name__]
        log = folder / "commands.log"
        self._daemon = Daemon(argv, log, outlasts_tests=True, listening=self._listening)
        self._daemon.spawn()

    def start(
        self, arguments: Sequence[str], env: Mapping[str, str], stdout: int, stderr: int
    ) -> WarmCommand:
        """Start `fairlead ARGUMENTS` without standard input. Both outputs stay the caller's."""
        message = json.dumps([list(arguments), dict(env), os.getcwd()]).encode()
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            made.connect(self._path)
            socket.send_fds(made, [message], [stdout, stderr])
        except OSError:
            made.close()
            raise
        return WarmCommand(made)

    def close(self) -> None:
        self._daemon.kill9()
        self._listening.close()


class WarmCommand:
    """One command that runs."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection

    async def wait(self) -> int:
        """Wait for the end; return the status as subprocess.Popen has it."""
        answer = await asyncio.get_running_loop().sock_recv(self._connection, 64)
        assert answer, "the process that starts commands has ended"
        return int(answer)

    def send_signal(self, number: signal.Signals) -> None:
        with suppress(ConnectionError):  # it has ended
            self._connection.send(b"%d" % number)

    def close(self) -> None:
        """Kill it if it has not ended."""
        self._connection.close()


class _Forking:
    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._selector = selectors.PollSelector()  # it has no descriptor that a child would inherit
        self._selector.register(listening, selectors.EVENT_READ, self._accept)

    def serve(self) -> Callable[[], None]:
        """Return in a child only: what it shall do."""
        while True:
            # One at a time: what comes next may be about what this one has closed.
            key, _ = self._selector.select()[0]
            if (child := key.data()) is not None:
                return child  # type: ignore[no-any-return]

    def _accept(self) -> Callable[[], None] | None:
        connection, _ = self._listening.accept()
        message, fds, _, _ = socket.recv_fds(connection, _LARGEST, 2)
        if not message:
            connection.close()
            return None
        if (pid := os.fork()) == 0:
            self._leave(connection)
            return partial(_run, json.loads(message), fds)
        for fd in fds:
            os.close(fd)
        pidfd = os.pidfd_open(pid)
        self._selector.register(
            connection, selectors.EVENT_READ, lambda: self._obey(connection, pidfd)
        )
        self._selector.register(
            pidfd, selectors.EVENT_READ, lambda: self._tell_end(connection, pid, pidfd)
        )
        return None

    def _obey(self, connection: socket.socket, pidfd: int) -> None:
        message = connection.recv(64)
        # Nobody waits for it any more: the connection was closed.
        signal.pidfd_send_signal(pidfd, int(message or signal.SIGKILL))
        if not message:
            self._selector.unregister(connection)

    def _tell_end(self, connection: socket.socket, pid: int, pidfd: int) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        with suppress(KeyError):
            self._selector.unregister(connection)
        _, status = os.waitpid(pid, 0)
        with suppress(OSError):
            connection.send(b"%d" % os.waitstatus_to_exitcode(status))
        connection.close()

    def _leave(self, connection: socket.socket) -> None:
        """In a child: close what is the parent's alone."""
        for key in self._selector.get_map().values():
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            else:
                os.close(key.fd)
        connection.close()


def _run(request: tuple[list[str], dict[str, str], str], fds: list[int]) -> None:
    arguments, env, folder = request
    for fd, place in zip(fds, (1, 2), strict=True):
        os.dup2(fd, place)
        os.close(fd)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["-c", *arguments]
    # As a Python that starts opens them where they are no terminals.
    encoding, _, errors = env.get("PYTHONIOENCODING", "utf-8").partition(":")
    sys.stdout = open(1, "w", -1, encoding, errors or "strict", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding, "backslashreplace", closefd=False)  # noqa: SIM115
    from fairlead.cli.main import main

    try:
        main()
    except SystemExit as exit:
        _end_at_once(exit.code)
        raise


def _end_at_once(code: object) -> None:
    """End as Python does, but without taking its modules apart, which would copy all memory that
    the process shares: 0.01 s instead of 0.08 s of the processor's time for `ps`. Return where that
    is not so simple, such as with an output that nobody reads."""
    if not isinstance(code, int | None) or threading.active_count() > 1:
        return
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
        atexit._run_exitfuncs()
        os._exit(code or 0)


def _serve() -> None:
    import fairlead.cli.commands

    for name in _SLOW_MODULES:
        import_module(name)
    for module in pkgutil.walk_packages(fairlead.cli.commands.__path__, "fairlead.cli.commands."):
        import_module(module.name)
    # Else each child goes through all modules before it ends: 0.15 s instead of 0.04 s.
    gc.collect()
    gc.freeze()
    _Forking(socket.socket(fileno=_GIVEN)).serve()()


if __name__ == "__main__":
    _serve()
