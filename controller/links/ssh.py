"""One asyncssh connection to a node, its host key pinned; every request is a channel in it."""

from __future__ import annotations

import asyncio
from functools import partial

import asyncssh

from controller.lifecycle.model import NodeAddress
from controller.links import hostkeys
from controller.links.base import HostKeyRefused, LinkError, why_unreachable
from controller.links.channel import SshUnixConnector
from controller.links.clients import SocketClients
from controller.links.login import login_of
from controller.links.streams import open_stream
from runner.client import RunnerClient
from shim.client import ShimClient

CONNECT_SECONDS = 20.0
_PIN_ANEW = "pin one with `fairlead node set NODE --accept-host-key SHA256:…`"
_PERHAPS_ANOTHER_KEY = (
    asyncssh.HostKeyNotVerifiable,
    asyncssh.KeyExchangeFailed,
    asyncssh.ConnectionLost,
)


class _PinnedClient(asyncssh.SSHClient):
    """Keeps the key that was presented when it is not the pinned one, to show both."""

    def __init__(self) -> None:
        self.presented: asyncssh.SSHKey | None = None

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        self.presented = key
        return False


class SshConnection:
    def __init__(self, ssh: asyncssh.SSHClientConnection, shim_socket: str) -> None:
        self._ssh = ssh
        self._heard_at = float("-inf")
        self._clients = SocketClients(
            shim_socket,
            lambda path: SshUnixConnector(ssh, path, self._heard),
            partial(open_stream, ssh, heard=self._heard),
        )

    @property
    def shim(self) -> ShimClient:
        return self._clients.shim

    def runner(self, socket_path: str) -> RunnerClient:
        return self._clients.runner(socket_path)

    async def forget_runner(self, socket_path: str) -> None:
        await self._clients.forget_runner(socket_path)

    def heard_at(self) -> float:
        return self._heard_at

    def _heard(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()

    async def wait_closed(self) -> None:
        await self._ssh.wait_closed()

    async def close(self) -> None:
        """First the connection: on one that was cut no channel's end is ever answered."""
        self._ssh.abort()
        await self._clients.close()
        await self._ssh.wait_closed()


class SshLink:
    """`identity`: the controller's private key, with which it logs in as the tunnel user."""

    def __init__(self, address: NodeAddress, identity: asyncssh.SSHKey) -> None:
        if address.host is None or address.host_key is None:
            raise ValueError("an SSH node needs a host and a pinned host key")
        self._address = address
        self._host, self._port = address.host, address.port
        self._pinned = hostkeys.parse(address.host_key)
        self._login = login_of(identity)

    async def connect(self) -> SshConnection:
        client = _PinnedClient()
        where = f"{self._address.user}@{self._host}:{self._port}"
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                ssh = await self._login.connect(
                    self._host, self._port, self._address.user, self._pinned, client
                )
        except TimeoutError as error:
            raise LinkError(f"{where} did not answer in {CONNECT_SECONDS:.0f} s") from error
        except (*_PERHAPS_ANOTHER_KEY, ConnectionError) as error:
            await self._refuse_other_key(where, client.presented)
            raise LinkError(f"cannot connect to {where}: {why_unreachable(error)}") from error
        except asyncssh.PermissionDenied as error:
            raise LinkError(
                f"{where} refused the controller's key: put the line that `fairlead node key` "
                f"prints into that user's authorized_keys ({error.reason})"
            ) from error
        except (OSError, asyncssh.Error) as error:
            raise LinkError(f"cannot connect to {where}: {why_unreachable(error)}") from error
        return SshConnection(ssh, self._address.shim_socket)

    async def _refuse_other_key(self, where: str, presented: asyncssh.SSHKey | None) -> None:
        """A server without a key of the pinned one's algorithm hangs up before it shows any, which
        can look like a broken connection. Raises HostKeyRefused when that is what happened."""
        if presented is not None:
            raise HostKeyRefused(self._changed(where, presented))
        try:
            found = [hostkeys.parse(line) for line in await hostkeys.fetch(self._host, self._port)]
        except LinkError:
            return
        if self._pinned in found:
            return
        for key in found:
            if key.algorithm == self._pinned.algorithm:
                raise HostKeyRefused(self._changed(where, key))
        raise HostKeyRefused(
            f"{where} has no host key of the pinned type: pinned is "
            f"{hostkeys.describe(self._pinned)}, it has {hostkeys.describe_all(found)}; compare "
            f"these with the node's own, then {_PIN_ANEW}"
        )

    def _changed(self, where: str, presented: asyncssh.SSHKey) -> str:
        return (
            f"{where} presented host key {hostkeys.describe(presented)}, but "
            f"{hostkeys.describe(self._pinned)} is pinned; if the node was installed anew, "
            f"{_PIN_ANEW}; else another machine answers at this address"
        )
