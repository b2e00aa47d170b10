"""Local unix sockets that lead to sockets on nodes, held by OpenSSH's own client.

One client runs for each node; the agent uses asyncssh for what it reads itself. A client outlives
an agent that is killed, so that what it carries goes on; the next agent ends it (`end_leftovers`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import signal
from collections.abc import Callable
from pathlib import Path

from fairlead.wire.gateway import GatewayNode

START_SECONDS = 20.0
ORDER_SECONDS = 10.0
_CONTROL, _KNOWN = ".ctl", ".known"
_HOST = "node"
"""The alias by which the pinned key is found."""
_OPTIONS = (
    "BatchMode=yes",
    "IdentitiesOnly=yes",
    "IdentityAgent=none",
    "PasswordAuthentication=no",
    "StrictHostKeyChecking=yes",
    "GlobalKnownHostsFile=none",
    # Before ssh's own choice, chacha20: CPUs have instructions for it, and a MiB takes both ends
    # 1.7 ms of CPU instead of 2.7.
    "Ciphers=^aes128-gcm@openssh.com,aes256-gcm@openssh.com",
    "UpdateHostKeys=no",  # else ssh trusts further keys that the server names (ssh_config(5))
    f"HostKeyAlias={_HOST}",
    "ControlMaster=yes",
    "ControlPersist=no",  # else ssh leaves for the background, and its end is not seen
    "StreamLocalBindMask=0177",
    "StreamLocalBindUnlink=yes",  # a client that was killed left its sockets, and bind(2) fails
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "LogLevel=ERROR",
)


class ForwardFailed(Exception):
    """The message is what ssh said."""


class SshForwards:
    """The forwards of a gateway. `folder` is short and its own; `key` is the file of the key by
    which it logs in. `lost` is called with the id of a node whose client ended by itself."""

    def __init__(self, folder: Path, key: Path, lost: Callable[[str], None]) -> None:
        self._folder = folder
        self._life = secrets.token_hex(3)
        self._leftovers = tuple(folder.glob(f"*{_CONTROL}"))
        self._key = key
        self._lost = lost
        self._clients: dict[str, _Client] = {}
        self._opening: dict[str, asyncio.Lock] = {}

    async def open(self, node: GatewayNode, remote: str, local: Path) -> None:
        """Let `local` lead to the socket `remote` of the node. Raises ForwardFailed."""
        async with self._opening.setdefault(node.id, asyncio.Lock()):
            client = self._clients.get(node.id)
            if client is None or client.node != node or client.has_ended:
                if client is not None:
                    await client.close()
                client = await self._start(node)
        await client.order("forward", "-L", f"{local}:{remote}")

    async def close_one(self, node_id: str, remote: str, local: Path) -> None:
        """Close a forward. Connections through it stay until they end."""
        client = self._clients.get(node_id)
        if client is not None and not client.has_ended:
            # The client may end meanwhile, and its forwards with it.
            with contextlib.suppress(ForwardFailed):
                await client.order("cancel", "-L", f"{local}:{remote}")
        await asyncio.to_thread(local.unlink, missing_ok=True)

    async def end_leftovers(self) -> None:
        """End the clients of an agent that was killed, and all connections through them."""
        for control in self._leftovers:
            with contextlib.suppress(ForwardFailed):
                # A client that was killed too left its socket, on which nothing listens.
                await _order(control, "exit")
            for file in (control, control.with_suffix(_KNOWN)):
                await asyncio.to_thread(file.unlink, missing_ok=True)
        self._leftovers = ()

    async def keep_nodes(self, node_ids: set[str]) -> None:
        """End the clients of other nodes, and all connections through them."""
        ended = [self._clients.pop(id) for id in tuple(self._clients) if id not in node_ids]
        await asyncio.gather(*(client.close() for client in ended))

    async def close(self) -> None:
        await self.keep_nodes(set())

    async def _start(self, node: GatewayNode) -> _Client:
        """Raises ForwardFailed."""
        # Short: a path has 107 bytes (unix(7)), and OpenSSH binds one that is 17 longer. A killed
        # agent's client may still have the name without the life.
        name = f"{self._life}-{hashlib.sha256(node.id.encode()).hexdigest()[:12]}"
        known = self._folder / f"{name}{_KNOWN}"
        await asyncio.to_thread(known.write_text, f"{_HOST} {node.host_key}\n")
        control = known.with_suffix(_CONTROL)
        options = [part for option in _OPTIONS for part in ("-o", option)]
        options += ["-o", f"UserKnownHostsFile={known}", "-i", str(self._key), "-S", str(control)]
        where = ("-l", node.user, "-p", str(node.port), "--", node.host)
        try:
            process = await asyncio.create_subprocess_exec(
                # `-F none`: this machine's own ssh_config must not change how it connects (ssh(1)).
                *("ssh", "-N", "-F", "none", *options, *where),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise ForwardFailed(f"ssh: {error.strerror}") from error
        client = _Client(node, process, control, self._ended)
        self._clients[node.id] = client
        await client.wait_ready()
        return client

    def _ended(self, client: _Client) -> None:
        if self._clients.get(client.node.id) is client:
            del self._clients[client.node.id]
            self._lost(client.node.id)


class _Client:
    """One `ssh` that holds the forwards of a node."""

    def __init__(
        self,
        node: GatewayNode,
        process: asyncio.subprocess.Process,
        control: Path,
        ended: Callable[[_Client], None],
    ) -> None:
        self.node = node
        self._process = process
        self._control = control
        self._ended = ended
        self._output = ""
        self._watching = asyncio.create_task(self._watch(), name=f"ssh to {node.id}")

    @property
    def has_ended(self) -> bool:
        return self._watching.done()

    async def wait_ready(self) -> None:
        """Return once it takes orders. Raises ForwardFailed."""
        try:
            async with asyncio.timeout(START_SECONDS):
                while not self.has_ended:
                    # OpenSSH makes the control socket after the login, and says nothing of it.
                    if self._control.exists():
                        return
                    await asyncio.wait((self._watching,), timeout=0.02)
        except TimeoutError:
            await self.close()
        raise ForwardFailed(self._output or "ssh did not connect in time")

    async def order(self, *order: str) -> None:
        """Give the client an order. Raises ForwardFailed."""
        await _order(self._control, *order)

    async def close(self) -> None:
        # asyncio raises it for a process whose end it has seen.
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        await asyncio.gather(self._watching, return_exceptions=True)

    async def _watch(self) -> None:
        _, output = await self._process.communicate()
        self._output = output.decode(errors="replace").strip()[-500:]
        # A killed ssh leaves its control socket, and `wait_ready` takes one for a login.
        self._control.unlink(missing_ok=True)
        self._ended(self)


async def _order(control: Path, *order: str) -> None:
    """Give the client of this control socket an order. Raises ForwardFailed."""
    try:
        ordering = await asyncio.create_subprocess_exec(
            *("ssh", "-F", "none", "-S", str(control), "-O", *order, _HOST),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise ForwardFailed(f"ssh: {error.strerror}") from error
    try:
        async with asyncio.timeout(ORDER_SECONDS):
            _, output = await ordering.communicate()
    except BaseException as error:
        # Also when it is cancelled: an order to a client that hangs would wait for ever.
        with contextlib.suppress(ProcessLookupError):
            ordering.kill()
        await ordering.wait()
        if isinstance(error, TimeoutError):
            raise ForwardFailed("ssh took no order in time") from None
        raise
    if ordering.returncode != 0:
        raise ForwardFailed(output.decode(errors="replace").strip() or "ssh took no order")
