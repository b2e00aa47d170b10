"""The SSH login at one machine whose host key is pinned."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import asyncssh
import msgspec

from common.links.dialling import dial
from common.links.errors import HostKeyRefused, LinkError, why_unreachable
from common.links.host_keys import describe, describe_all, fetch, parse

KEEPALIVE_SECONDS = 11
"""A keepalive is sent only if no heartbeat of the shim, which comes every 10 s, came just
before."""
KEEPALIVE_COUNT = 3
# AES-GCM first: CPUs have instructions for it. asyncssh and OpenSSH prefer chacha20-poly1305.
_FAST_CIPHERS = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes128-ctr",
    "aes256-ctr",
)


class SshAddress(Protocol):
    """The way to one SSH server, as the addresses of nodes and gateways have it."""

    @property
    def host(self) -> str | None: ...
    @property
    def port(self) -> int: ...
    @property
    def user(self) -> str: ...
    @property
    def host_key(self) -> str | None:
        """The pinned key, as an OpenSSH public key line without comment."""


_READ_BYTES = 64 << 10
"""Bytes that asyncssh (2.24) gets at once. It cuts each packet of 32 KiB off what it holds and
copies the rest, twice: of the 256 KB that uvloop reads, each byte was copied eight times."""


class _Buffer(threading.local):
    """What a loop reads into: one for all connections, since each takes its bytes at once."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_READ_BYTES))


_buffer = _Buffer()


class _ShortReads(asyncio.BufferedProtocol):
    """Gives a protocol what comes on its transport, `_READ_BYTES` at once."""

    __slots__ = ("protocol",)

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.protocol.connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _buffer.view

    def buffer_updated(self, nbytes: int) -> None:
        self.protocol.data_received(bytes(_buffer.view[:nbytes]))

    def eof_received(self) -> bool | None:
        return self.protocol.eof_received()

    def pause_writing(self) -> None:
        self.protocol.pause_writing()

    def resume_writing(self) -> None:
        self.protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.protocol.connection_lost(exc)


class _Tcp:
    """How asyncssh connects: what it calls a tunnel is any object with this method."""

    async def create_connection(
        self, session_factory: Callable[[], Any], remote_host: str, remote_port: int
    ) -> tuple[asyncio.BaseTransport, Any]:
        connect = partial(
            asyncio.get_running_loop().create_connection,
            lambda: _ShortReads(session_factory()),
            port=remote_port,
        )
        transport, reads = await dial(remote_host, remote_port, connect)
        return transport, reads.protocol


async def _connect(
    address: SshAddress,
    pinned: Sequence[asyncssh.SSHKey],
    identity: asyncssh.SSHKey,
    client: asyncssh.SSHClient,
) -> asyncssh.SSHClientConnection:
    """Log in. `pinned`: the only host keys that are trusted without asking `client`.

    The connection rekeys after as many bytes as in OpenSSH, not after a time: connections made
    together would all rekey at the same moment. Raises OSError, asyncssh.Error.
    """
    return await asyncssh.connect(
        address.host,
        address.port,
        tunnel=_Tcp(),
        username=address.user,
        known_hosts=(list(pinned), [], [], [], [], [], []),
        client_keys=[identity],
        client_factory=lambda: client,
        # Else asyncssh asks the agent of $SSH_AUTH_SOCK, and reads ~/.ssh/config.
        agent_path=None,
        config=None,
        compression_algs=None,
        encryption_algs=_FAST_CIPHERS,
        preferred_auth="publickey",
        keepalive_interval=KEEPALIVE_SECONDS,
        keepalive_count_max=KEEPALIVE_COUNT,
        rekey_seconds=0,
        login_timeout=0,  # the caller has a limit for all of it, the TCP connection included
    )


CONNECT_SECONDS = 20.0
_PERHAPS_ANOTHER_KEY = (
    asyncssh.HostKeyNotVerifiable,
    asyncssh.KeyExchangeFailed,
    asyncssh.ConnectionLost,
)


class _PinnedClient(asyncssh.SSHClient):
    """Keeps the presented key when it is not the pinned one, so that the error can show both."""

    def __init__(self) -> None:
        self.presented: asyncssh.SSHKey | None = None

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        self.presented = key
        return False


class Advice(msgspec.Struct, frozen=True):
    """The advice about a refusal: of the other side's host key, and of our own key."""

    host_key: str = "pin one with `fairlead node set NODE --accept-host-key SHA256:…`"
    own_key: str = (
        "refused the controller's key: put the line that `fairlead node key` prints into that "
        "user's authorized_keys"
    )


class SshLogin:
    """The login at one address. `identity`: our private key, with which we log in as the address's
    user. `also`: a host key that is accepted as well as the address's."""

    def __init__(
        self,
        address: SshAddress,
        identity: asyncssh.SSHKey,
        advice: Advice | None = None,
        *,
        also: str | None = None,
    ) -> None:
        if address.host is None or address.host_key is None:
            raise ValueError("an SSH node needs a host and a pinned host key")
        self._address = address
        self._host, self._port = address.host, address.port
        self._pinned = parse(address.host_key)
        self._accepted = [self._pinned, *([] if also is None else [parse(also)])]
        self._identity = identity
        self._advice = advice or Advice()

    async def connect(self) -> asyncssh.SSHClientConnection:
        """Log in. Raises LinkError; HostKeyRefused when the host key is not the pinned one."""
        client = _PinnedClient()
        where = f"{self._address.user}@{self._host}:{self._port}"
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await _connect(self._address, self._accepted, self._identity, client)
        except TimeoutError as error:
            raise LinkError(f"{where} did not answer in {CONNECT_SECONDS:.0f} s") from error
        except (*_PERHAPS_ANOTHER_KEY, ConnectionError) as error:
            await self._refuse_other_key(where, client.presented)
            raise LinkError(f"cannot connect to {where}: {why_unreachable(error)}") from error
        except asyncssh.PermissionDenied as error:
            raise LinkError(f"{where} {self._advice.own_key} ({error.reason})") from error
        except (OSError, asyncssh.Error) as error:
            raise LinkError(f"cannot connect to {where}: {why_unreachable(error)}") from error

    async def _refuse_other_key(self, where: str, presented: asyncssh.SSHKey | None) -> None:
        """Raise HostKeyRefused if the server has only other keys.

        A server without a key of the pinned one's algorithm hangs up before it shows any key, which
        can look like a broken connection.
        """
        if presented is not None:
            raise HostKeyRefused(self._changed(where, presented))
        try:
            found = [parse(line) for line in await fetch(self._host, self._port)]
        # It shows no key at all now, so the first error says more than this one.
        except LinkError:
            return
        if any(key in found for key in self._accepted):
            return
        for key in found:
            if key.algorithm == self._pinned.algorithm:
                raise HostKeyRefused(self._changed(where, key))
        raise HostKeyRefused(
            f"{where} has no host key of the pinned type: pinned is "
            f"{describe(self._pinned)}, it has {describe_all(found)}; compare "
            f"these with the node's own, then {self._advice.host_key}"
        )

    def _changed(self, where: str, presented: asyncssh.SSHKey) -> str:
        return (
            f"{where} presented host key {describe(presented)}, but "
            f"{describe(self._pinned)} is pinned; if the node was installed again, "
            f"{self._advice.host_key}; else another machine answers at this address"
        )
