"""Users' public keys, checked and given to the jump user for exactly one port each.

Users reach a task's SSH port through the node's own sshd, as a jump user whose keys are in a file
that the shim writes. The file is never edited: it is written again from the live tasks and replaced
at once, so the first write removes whatever a crash left. sshd uses the first line with a visitor's
key, so a key of several tasks is one line with several ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import Executor
from pathlib import Path

import msgspec

from common.files.durable import sync_folder, write_beside
from fairlead.wire.public_keys import public_key
from fairlead.wire.shim import Event, SshRequest
from shim.errors import invalid
from shim.state.events import EventLog

log = logging.getLogger(__name__)
_MAX_KEYS = 64
_PAUSE_AFTER_FAILURE = 5.0


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """One task's SSH port, where the node reaches it, and the users who may."""

    host: str = "127.0.0.1"
    port: int
    keys: tuple[str, ...]


def check_keys(request: SshRequest) -> None:
    """Raise Refused (400) unless every line is a public key and nothing else."""
    field = "ssh.authorized_keys"
    if len(request.authorized_keys) > _MAX_KEYS:
        raise invalid(f"at most {_MAX_KEYS} public keys", field)
    for number, line in enumerate(request.authorized_keys):
        if public_key(line) is None:
            raise invalid(
                "must be an OpenSSH public key on one line, without options: "
                "ssh-ed25519 AAAA… comment",
                f"{field}[{number}]",
            )
    for name in ("cluster_key", "terminal_key"):
        line = getattr(request, name)
        if line is not None and public_key(line) is None:
            raise invalid("must be an OpenSSH public key on one line", f"ssh.{name}")


def render(visits: Iterable[Visit]) -> str:
    """Return the jump user's authorized_keys. Each key may open its tasks' ports and do nothing
    else."""
    ports: dict[str, set[tuple[str, int]]] = {}
    for visit in visits:
        for line in visit.keys:
            key = public_key(line)
            if key is not None:
                ports.setdefault(key, set()).add((visit.host, visit.port))
    return "".join(
        f"restrict,port-forwarding,{_permits(ports[key])} {key} fairlead\n" for key in sorted(ports)
    )


def _permits(ports: set[tuple[str, int]]) -> str:
    return ",".join(f'permitopen="{host}:{port}"' for host, port in sorted(ports))


class JumpKeys:
    """Keeps `path` equal to `visits()`: once at `open`, then after each change of a task."""

    def __init__(
        self, path: Path, visits: Callable[[], Iterable[Visit]], executor: Executor
    ) -> None:
        self._path = path
        self._visits = visits
        self._executor = executor
        self._written: str | None = None
        self._following: asyncio.Task[None] | None = None

    async def open(self, events: EventLog) -> None:
        """Write the file and follow changes. Raises OSError when the file cannot be replaced."""
        stream = events.follow(None)
        # A generator begins at its first `anext`: from here on no change is missed.
        await anext(stream)
        await self._write()
        self._following = asyncio.create_task(self._follow(stream), name="jump keys")

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                # Awaiting a cancelled task raises its CancelledError here; ours is not meant.
                await self._following
            self._following = None

    async def _follow(self, changes: AsyncGenerator[Event, None]) -> None:
        async for _ in changes:
            # No further event comes for this change, so a write that failed is tried again.
            while True:
                try:
                    await self._write()
                    break
                except OSError as error:
                    log.error("cannot write %s: %s", self._path, error.strerror)
                    await asyncio.sleep(_PAUSE_AFTER_FAILURE)

    async def _write(self) -> None:
        text = render(self._visits())
        if text != self._written:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, _replace, self._path, text)
            self._written = text


def _replace(path: Path, text: str) -> None:
    """Replace the file. sshd reads it as the jump user, so all may read it; only its owner may
    write."""
    fresh = write_beside(path, text.encode(), 0o644)
    fresh.chmod(0o644)  # whatever the umask took away
    fresh.rename(path)
    sync_folder(path.parent)
