"""Starts the embedded server: the same interpreter again, with the listening socket."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from runner.processes.spawn import Children, start_in_thread


class EmbeddedServer:
    """The embedded server. Every user who logs in sees `notice`."""

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
