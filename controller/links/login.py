"""Logging in to nodes by SSH, thousands of times with one identity.

`asyncssh.connect` prepares its options anew for each connection, in a thread; and a connection
keeps them, both sides' offers and all that was learnt of the server for as long as it lives: a
third of its memory and of what it costs the controller. So the options are made once and lent to
each connection while it is made, and what only a login needs is let go of after it. That is not
public in asyncssh: tests/unit/links/test_login.py keeps it honest.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any

import asyncssh
from asyncssh.constants import MSG_IGNORE
from asyncssh.packet import SSHPacketLogger

from controller.flags import make_small

KEEPALIVE_SECONDS = 11
"""Only where a shim's heartbeat, which comes every 10 s, did not say as much just before."""
KEEPALIVE_COUNT = 3

_FAST_CIPHERS = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes128-ctr",
    "aes256-ctr",
)
_NOTHING: Any = frozenset()


class _Connection(asyncssh.SSHClientConnection):
    """asyncssh sends an empty packet before each one, against an attack on ciphers in CBC mode,
    which ours are not: without it half as many are encrypted and sent."""

    def send_packet(
        self, pkttype: int, *args: bytes, handler: SSHPacketLogger | None = None
    ) -> None:
        if pkttype != MSG_IGNORE:
            super().send_packet(pkttype, *args, handler=handler)


class Login:
    """Of one identity. A connection rekeys after as many bytes as OpenSSH says, not after a time:
    those that were made together would all do so in the same moment."""

    def __init__(self, identity: asyncssh.SSHKey) -> None:
        self._identity = identity
        self._options = asyncssh.SSHClientConnectionOptions(
            client_keys=[identity],
            config=None,
            compression_algs=None,
            encryption_algs=_FAST_CIPHERS,
            preferred_auth="publickey",
            keepalive_interval=KEEPALIVE_SECONDS,
            keepalive_count_max=KEEPALIVE_COUNT,
            rekey_seconds=0,
            login_timeout=0,
        )
        self._options.agent_path = None

    async def connect(
        self, host: str, port: int, user: str, pinned: asyncssh.SSHKey, client: asyncssh.SSHClient
    ) -> asyncssh.SSHClientConnection:
        """`pinned`: the only host key that is trusted without asking `client`. Raises OSError,
        asyncssh.Error."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()

        def begin() -> asyncssh.SSHClientConnection:
            options = self._options
            options.host, options.port, options.username = host, port, user
            options.known_hosts = ([pinned], [], [], [], [], [], [])
            options.client_keys = asyncssh.load_keypairs([self._identity])
            options.protocol_factory = lambda: client
            options.waiter = ready
            return _Connection(loop, options, wait="auth")

        _, ssh = await loop.create_connection(begin, host, port)
        try:
            await ready
        except BaseException:
            ssh.abort()
            await ssh.wait_closed()
            raise
        _let_go_of_login(ssh)
        return ssh


@lru_cache(maxsize=4)
def login_of(identity: asyncssh.SSHKey) -> Login:
    return Login(identity)


def _let_go_of_login(ssh: asyncssh.SSHClientConnection) -> None:
    """What a new exchange of keys needs, it makes anew; the pinned key stays, and is compared."""
    ssh._client_kexinit = ssh._server_kexinit = b""
    ssh._server_sig_algs = ssh._trusted_ca_keys = ssh._revoked_host_keys = _NOTHING
    ssh._extra.clear()
    make_small(ssh._close_event)
    ssh._waiter = None
