"""One asyncssh connection to a node, its host key pinned; every request is a channel in it."""

from __future__ import annotations

import asyncio
import contextlib
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


class _PinnedClient(asyncssh.SSHClient):
    """Keeps the key that was presented when it is not the pinned one, to show both."""

    def __init__(self) -> None:
        self.presented: str | None = None

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        self.presented = key.get_fingerprint()
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
        self._host = address.host
        self._pinned = hostkeys.parse(address.host_key)
        self._login = login_of(identity)

    async def connect(self) -> SshConnection:
        client = _PinnedClient()
        where = f"{self._address.user}@{self._host}:{self._address.port}"
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                ssh = await self._login.connect(
                    self._host, self._address.port, self._address.user, self._pinned, client
                )
        except TimeoutError as error:
            raise LinkError(f"{where} did not answer in {CONNECT_SECONDS:.0f} s") from error
        except asyncssh.HostKeyNotVerifiable as error:
            raise self._refused(where, client.presented or "of another kind") from error
        except (asyncssh.KeyExchangeFailed, asyncssh.ConnectionLost, ConnectionError) as error:
            await self._refuse_other_key(where)
            raise LinkError(f"cannot connect to {where}: {why_unreachable(error)}") from error
        except asyncssh.PermissionDenied as error:
            raise LinkError(
                f"{where} refused the controller's key: put the line that `fairlead node key` "
                f"prints into that user's authorized_keys ({error.reason})"
            ) from error
        except (OSError, asyncssh.Error) as error:
            raise LinkError(f"cannot connect to {where}: {why_unreachable(error)}") from error
        return SshConnection(ssh, self._address.shim_socket)

    async def _refuse_other_key(self, where: str) -> None:
        """A server without a key of the pinned one's algorithm hangs up before it shows any, which
        can look like a broken connection. Raises HostKeyRefused when that is what happened."""
        try:
            presented = await hostkeys.fetch(self._host, self._address.port)
        except LinkError:
            return
        same = presented
        with contextlib.suppress(LinkError):
            same = await hostkeys.fetch(self._host, self._address.port, like=self._pinned)
        if hostkeys.parse(same) != self._pinned:
            raise self._refused(where, hostkeys.fingerprint(presented))

    def _refused(self, where: str, presented: str) -> HostKeyRefused:
        return HostKeyRefused(
            f"{where} presented host key {presented}, but {self._pinned.get_fingerprint()} is "
            f"pinned; if the node was installed anew, remove it and add it with its new key"
        )
