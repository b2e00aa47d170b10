"""Starts the embedded server: our interpreter once more, the listening socket handed over."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from runner.job.process import Children, start_in_thread


class EmbeddedServer:
    """`notice` is shown to everybody who logs in."""

    def __init__(self, task: Path, children: Children, notice: str | None = None) -> None:
        self._task = task
        self._children = children
        self._notice = notice

    async def answer(self, listener: socket.socket) -> None:
        """Returns when the server has ended, which it does when nobody has been there for long."""
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
    """The command line of this very interpreter, as isolated from the image as we are."""
    argv = [sys.executable]
    argv += ["-I"] if sys.flags.isolated else []
    argv += ["-S"] if sys.flags.no_site else []
    return [*argv, "-X", "utf8=1"]


def _environment() -> dict[bytes, bytes]:
    """Ours as it came: what the launcher has hidden stays hidden, and nothing is coerced."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    pairs = (entry.partition(b"=") for entry in entries)
    return {name: value for name, equals, value in pairs if name and equals}
