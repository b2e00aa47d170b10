"""The sockets of the fast path: those of HAProxy's servers, which lead to replicas, and the one of
its log."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path

from common.links.node_links import raw_socket
from common.proxy.view import Replica
from fairlead.wire.gateway import GatewayNode
from gateway.fast_plan import ServerKey
from gateway.ssh_forwards import SshForwards

_LINES = 500
"""Lines of HAProxy's log that are read before other work has its turn."""
_LINE_BYTES = 512


class Sockets:
    """The sockets of HAProxy's servers, which lead to replicas. `socket_path` returns where one
    is."""

    def __init__(self, forwards: SshForwards, socket_path: Callable[[str, str], Path]) -> None:
        self.busy: set[ServerKey] = set()
        """The servers whose sockets are being made or taken away."""
        self._forwards = forwards
        self._socket_path = socket_path
        self._tasks: set[asyncio.Task[None]] = set()

    async def make(self, key: ServerKey, replica: Replica, node: GatewayNode) -> None:
        """Let the server's socket lead to the replica; the server stays busy. Raises ForwardFailed,
        OSError."""
        self.busy.add(key)
        path, target = self._socket_path(*key), raw_socket(replica.socket)
        try:
            if node.local:
                await asyncio.to_thread(_lead, path, target)
            else:
                await self._forwards.open(node, target, path)
        # Also when it is cancelled: the key would stay busy for ever.
        except BaseException:
            self.busy.discard(key)
            raise

    def take_away(self, key: ServerKey, replica: Replica, *, is_local: bool) -> None:
        """Take the server's socket away, in the background; it is busy until that is done."""
        self.busy.add(key)
        self.in_background(self._take_away(key, replica, is_local=is_local))

    async def _take_away(self, key: ServerKey, replica: Replica, *, is_local: bool) -> None:
        path = self._socket_path(*key)
        if is_local:
            await asyncio.to_thread(path.unlink, missing_ok=True)
        else:
            await self._forwards.close_one(replica.node_id, raw_socket(replica.socket), path)
        self.busy.discard(key)

    async def is_there(self, key: ServerKey) -> bool:
        try:
            _, writer = await asyncio.open_unix_connection(self._socket_path(*key))
        except OSError:
            # A forward that ended may leave its socket, on which connect(2) is ECONNREFUSED.
            return False
        writer.close()
        return True

    async def keep_nodes(self, node_ids: set[str]) -> None:
        await self._forwards.keep_nodes(node_ids)

    def end_leftovers(self) -> None:
        self.in_background(self._forwards.end_leftovers())

    def in_background(self, doing: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(doing, name="clear away")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._forwards.close()


def _lead(path: Path, target: str) -> None:
    # An earlier link may be there, and symlink(2) replaces nothing.
    path.unlink(missing_ok=True)
    path.symlink_to(target)


class LogSocket:
    """The socket at which HAProxy says a line for each request. Raises OSError when it is made."""

    def __init__(self, path: Path, heard: Callable[[Iterable[bytes]], None]) -> None:
        # A killed agent leaves its socket, and bind(2) refuses a path that exists.
        path.unlink(missing_ok=True)
        self._heard = heard
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(path))
        # bind(2) leaves the mode to the umask.
        path.chmod(0o600)
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def _read(self) -> None:
        lines = []
        with contextlib.suppress(BlockingIOError):
            # A busy HAProxy may send lines as fast as they are read.
            for _ in range(_LINES):
                lines.append(self._socket.recv(_LINE_BYTES))
        self._heard(lines)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
