"""The node's own SSH host key, which it makes once its controller has logged in (docs/rules.md
12.23).

A rented machine boots with a host key from its user-data, which others may have read. The shim
makes another one, whose private half never leaves the node, and later puts it in the place of the
first. Each step may be repeated, and a power cut leaves one whole key.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from common.files.durable import sync_folder, write_durably
from fairlead.wire.node import HostKey
from shim.errors import conflict

log = logging.getLogger(__name__)
_SECONDS = 30.0
_UNITS = ("ssh.service", "sshd.service")
"""The names of sshd's unit: of Debian and Ubuntu, and of all others."""


def reload_sshd() -> None:
    """Have sshd read its keys again; connections stay. Raises OSError, SubprocessError."""
    for unit in _UNITS[:-1]:
        try:
            _run("systemctl", "reload", unit)
        # systemctl fails where the unit has the other name.
        except subprocess.CalledProcessError:
            continue
        return
    _run("systemctl", "reload", _UNITS[-1])


class NodeHostKey:
    """The host key in sshd's file `path`. `reload` makes sshd read it again."""

    def __init__(self, path: Path, reload: Callable[[], None] = reload_sshd) -> None:
        self._path = path
        self._public = path.with_name(f"{path.name}.pub")
        self._next = path.with_name("fairlead_next_host_key")
        self._reload = reload
        self._lock = asyncio.Lock()

    async def prepare(self) -> HostKey:
        """Make the next key, which sshd does not use yet; asked again, it is the same key.

        Raises Refused.
        """
        return HostKey(key=await self._in_thread(self._prepare))

    async def use(self, wanted: str) -> None:
        """Put the next key, if it is this one, in the place of sshd's key, and have sshd use it.

        Raises Refused.
        """
        await self._in_thread(lambda: self._use(wanted))

    async def _in_thread(self, work: Callable[[], str]) -> str:
        async with self._lock:
            try:
                return await asyncio.to_thread(work)
            except (OSError, subprocess.SubprocessError) as error:
                log.error("the host key of this node: %s", _why(error))
                raise conflict(f"the node's host key could not be changed: {_why(error)}") from None

    def _prepare(self) -> str:
        if not self._next.exists():
            with TemporaryDirectory(dir=self._path.parent) as folder:
                made = Path(folder) / "key"
                _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(made))
                # In the folder of sshd's keys: only there can it take their place in one step.
                write_durably(self._next, made.read_bytes(), 0o600)
        return _public_of(self._next)

    def _use(self, wanted: str) -> str:
        if self._next.exists() and _public_of(self._next) == wanted:
            # sshd derives a public half that is missing, and refuses one that does not fit.
            self._public.unlink(missing_ok=True)
            os.replace(self._next, self._path)
            sync_folder(self._path.parent)
        elif _public_of(self._path) != wanted:
            raise conflict("this is neither the node's host key nor its next one", "key")
        write_durably(self._public, f"{wanted}\n".encode(), 0o644)
        self._reload()
        return wanted


def _public_of(private: Path) -> str:
    """Return algorithm and key, without comment."""
    return " ".join(_run("ssh-keygen", "-y", "-f", str(private)).split()[:2])


def _run(*command: str) -> str:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=True,
    )
    return done.stdout


def _why(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        command: Sequence[str] = error.cmd
        return f"{' '.join(command[:2])} failed: {str(error.stderr).strip()}"
    return str(error)
