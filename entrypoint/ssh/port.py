"""Owns the SSH port in the container's first process, and starts a server when a connection comes.

An interpreter with an SSH server is larger than the whole runner, and most jobs are never visited.
So the port is bound here, and the first connection starts a server. Connections that wait in the
backlog meanwhile, or while a server ends, are not lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from entrypoint.ssh import install, openssh
from entrypoint.ssh.settings import (
    INSTALL_LOG_NAME,
    Mode,
    SettingsUnusable,
    SshSettings,
    read_settings,
)
from runner.processes.spawn import Children, start_in_thread

_BACKLOG = 64
_PAUSE_AFTER_FAILURE = 1.0
_log = logging.getLogger(__name__)


class Server(Protocol):
    async def answer(self, listener: socket.socket) -> None:
        """Answer a waiting connection; return when the port may look for the next one. Raises
        OSError."""


class SshPort:
    """The SSH port. Call `open` once, and `close` any number of times.

    If it cannot be opened, the runner's log says so and the job goes on.
    """

    def __init__(self, task: Path, children: Children) -> None:
        self._task = task
        self._children = children
        self._listener: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None

    def open(self) -> None:
        try:
            settings = read_settings(self._task)
            if settings is None:
                return
            self._listener = _listen(settings)
        except (SettingsUnusable, OSError) as error:
            _log.error("no SSH: %s", error)
            return
        serving = self._serve(settings, self._listener)
        self._serving = asyncio.create_task(serving, name="ssh port")

    async def close(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            # Not `await` itself: its CancelledError would look like one of ours.
            await asyncio.wait({self._serving})
            self._serving = None
        if self._listener is not None:
            self._listener.close()

    async def _serve(self, settings: SshSettings, listener: socket.socket) -> None:
        notice = await self._install(settings)
        server: Server | None = None
        while True:
            await _readable(listener)
            try:
                server = server or await self._choose(settings, notice)
                await server.answer(listener)
            except OSError as error:
                _log.warning("SSH: %s", error.strerror or error)
                server = None
                # The caller still waits in the backlog, so the listener stays readable: without a
                # pause this loop would spin.
                await asyncio.sleep(_PAUSE_AFTER_FAILURE)
            except Exception:
                _log.exception("SSH: the server cannot be started")
                server = None
                await asyncio.sleep(_PAUSE_AFTER_FAILURE)

    async def _install(self, settings: SshSettings) -> str | None:
        """Install sshd; return a notice for visitors if that failed."""
        if settings.mode is not Mode.INSTALL or openssh.find() is not None:
            return None
        try:
            await install.install(self._task / INSTALL_LOG_NAME, self._children)
        except install.InstallFailed as error:
            _log.error("SSH: %s", error)
            return f"{error}; Fairlead's embedded SSH server answers instead"
        return None

    async def _choose(self, settings: SshSettings, notice: str | None) -> Server:
        if settings.mode is not Mode.EMBEDDED and notice is None:
            try:
                return await openssh.prepare(self._task, settings, self._children)
            except openssh.NotUsable as error:
                _log.info("SSH: the embedded server answers: %s", error)
        return EmbeddedServer(self._task, self._children, notice)


async def _readable(listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    knocked = asyncio.Event()
    loop.add_reader(listener, knocked.set)
    try:
        await knocked.wait()
    finally:
        # `close` may have closed the listener: its descriptor is -1 then.
        with contextlib.suppress(ValueError):
            loop.remove_reader(listener)


def _listen(settings: SshSettings) -> socket.socket:
    address, port = settings.address, settings.port
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # In the node's network, connections to the port of an earlier task may be in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {address}:{port}: {error.strerror}") from None
    return listener


class EmbeddedServer:
    """The embedded server: the same interpreter again, with the listening socket. Every user who
    logs in sees `notice`."""

    def __init__(self, task: Path, children: Children, notice: str | None = None) -> None:
        self._task = task
        self._children = children
        self._notice = notice

    async def answer(self, listener: socket.socket) -> None:
        """Start the server; return when it has ended, which it does after a while without
        connections."""
        argv = [*interpreter(), "-m", "entrypoint.ssh.server", "--task", str(self._task)]
        argv += ["--listener", str(listener.fileno())]
        if self._notice is not None:
            argv += ["--notice", self._notice]
        with (self._task / "ssh.log").open("ab") as log:
            child = await start_in_thread(
                argv,
                self._children,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
                pass_fds=(listener.fileno(),),
                start_new_session=True,
            )
        try:
            status = (await child.wait()).code
        finally:
            if not child.ended.done():
                child.kill()
                await child.ended
        if status != 0:
            raise OSError(0, f"the embedded SSH server ended with status {status} (see ssh.log)")


def interpreter() -> list[str]:
    """Return the command line of this interpreter, with the same isolation from the image."""
    argv = [sys.executable]
    argv += ["-I"] if sys.flags.isolated else []
    argv += ["-S"] if sys.flags.no_site else []
    return [*argv, "-X", "utf8=1"]


def _environment() -> dict[bytes, bytes]:
    """Return the environment as this process got it: what the launcher hid stays hidden."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    pairs = (entry.partition(b"=") for entry in entries)
    return {name: value for name, equals, value in pairs if name and equals}
