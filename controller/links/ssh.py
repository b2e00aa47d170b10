"""The SSH link to a node: one connection with a pinned host key; also how host keys are read and
shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial

import aiohttp
import asyncssh
import msgspec

from controller.lifecycle.model import NodeAddress
from controller.links.base import HostKeyRefused, LinkError, why_unreachable
from controller.links.clients import SocketClients
from controller.links.ssh_http import SshUnixConnector, open_stream
from runner.client import RunnerClient
from shim.client import ShimClient

FETCH_TIMEOUT_SECONDS = 15.0
_ALGORITHMS = (
    ("ssh-ed25519",),
    ("ecdsa-sha2-nistp256",),
    ("ecdsa-sha2-nistp384",),
    ("ecdsa-sha2-nistp521",),
    ("rsa-sha2-512", "rsa-sha2-256"),
)
"""The signature algorithms of OpenSSH, one entry for each key that a server may have."""
_TYPES = {
    "ssh-ed25519": "ED25519",
    "ecdsa-sha2-nistp256": "ECDSA",
    "ecdsa-sha2-nistp384": "ECDSA",
    "ecdsa-sha2-nistp521": "ECDSA",
    "ssh-rsa": "RSA",
}


class BadHostKey(ValueError):
    """The string is not an OpenSSH public key line."""


def parse(line: str) -> asyncssh.SSHKey:
    """Return the key of an OpenSSH public key line (`ssh-ed25519 AAAA...`), or of a known_hosts or
    ssh-keyscan line.

    Raises BadHostKey.
    """
    keys = [text for text in line.splitlines() if text.strip() and not text.startswith("#")]
    words = keys[0].split() if len(keys) == 1 else []
    for start in range(min(len(words), 2)):
        try:
            return asyncssh.import_public_key(" ".join(words[start : start + 2]))
        except (asyncssh.KeyImportError, ValueError):
            continue
    raise BadHostKey("not one OpenSSH public key line such as 'ssh-ed25519 AAAA…'")


def normalise(line: str) -> str:
    """Return algorithm and key, without comment or host. Raises BadHostKey."""
    return public_line(parse(line))


def public_line(key: asyncssh.SSHKey) -> str:
    words = key.export_public_key("openssh").decode().split()
    return " ".join(words[:2])


def fingerprint(line: str) -> str:
    """Return `SHA256:…` as `ssh-keygen -l` prints it. Raises BadHostKey."""
    return parse(line).get_fingerprint()


def describe(key: asyncssh.SSHKey) -> str:
    """Return fingerprint and key type, the two words of `ssh-keygen -l` that people compare."""
    return f"{key.get_fingerprint()} ({key_type(key)})"


def describe_all(keys: Iterable[asyncssh.SSHKey]) -> str:
    return ", ".join(map(describe, keys))


def key_type(key: asyncssh.SSHKey) -> str:
    """Return ED25519, ECDSA or RSA, as `ssh-keygen -l` prints it."""
    algorithm = key.algorithm.decode()
    return _TYPES.get(algorithm, algorithm)


def new_host_key() -> tuple[str, str]:
    """A fresh ED25519 pair for a node that does not exist yet: the private half as OpenSSH keeps it
    in a file, and the public line."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    return key.export_private_key("openssh").decode(), public_line(key)


async def fetch(host: str, port: int) -> tuple[str, ...]:
    """Return all host keys of a server as public key lines, the preferred first.

    An SSH server shows one key for each connection: that of the client's first algorithm that it
    has. So each algorithm gets its own connection. Raises LinkError when the server shows no key.
    """
    answers = await asyncio.gather(*(_ask(host, port, names) for names in _ALGORITHMS))
    found = tuple(answer for answer in answers if isinstance(answer, str))
    if not found:
        raise next(answer for answer in answers if isinstance(answer, LinkError))
    return found


async def _ask(host: str, port: int, algorithms: Sequence[str]) -> str | LinkError:
    """Return the server's key for these algorithms, or why there is none: a server without such a
    key hangs up."""
    try:
        async with asyncio.timeout(FETCH_TIMEOUT_SECONDS):
            key = await asyncssh.get_server_host_key(
                host, port, server_host_key_algs=algorithms, config=None
            )
    except TimeoutError:
        return LinkError(f"{host}:{port} did not answer in {FETCH_TIMEOUT_SECONDS:.0f} s")
    except (OSError, asyncssh.Error) as error:
        return LinkError(f"cannot reach sshd at {host}:{port}: {why_unreachable(error)}")
    if key is None:
        return LinkError(f"{host}:{port} presented no host key")
    return public_line(key)


KEEPALIVE_SECONDS = 11
"""A keepalive is sent only if no heartbeat of the shim, which comes every 10 s, came just
before."""
KEEPALIVE_COUNT = 3
_FAST_CIPHERS = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes128-ctr",
    "aes256-ctr",
)


async def _connect(
    address: NodeAddress,
    pinned: asyncssh.SSHKey,
    identity: asyncssh.SSHKey,
    client: asyncssh.SSHClient,
) -> asyncssh.SSHClientConnection:
    """Log in. `pinned` is the only host key that is trusted without asking `client`.

    The connection rekeys after as many bytes as in OpenSSH, not after a time: connections made
    together would all rekey at the same moment. Raises OSError, asyncssh.Error.
    """
    return await asyncssh.connect(
        address.host,
        address.port,
        username=address.user,
        known_hosts=([pinned], [], [], [], [], [], []),
        client_keys=[identity],
        client_factory=lambda: client,
        agent_path=None,
        config=None,
        compression_algs=None,
        encryption_algs=_FAST_CIPHERS,
        preferred_auth="publickey",
        keepalive_interval=KEEPALIVE_SECONDS,
        keepalive_count_max=KEEPALIVE_COUNT,
        rekey_seconds=0,
        login_timeout=0,
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


class SshConnection:
    """One SSH connection to a node."""

    def __init__(self, ssh: asyncssh.SSHClientConnection, shim_socket: str) -> None:
        self.ssh = ssh
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

    def http(self, socket_path: str) -> aiohttp.ClientSession:
        """Return a session for requests to this socket; it is closed with the connection."""
        return self._clients.http(socket_path)

    def heard_at(self) -> float:
        return self._heard_at

    def _heard(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()

    async def wait_closed(self) -> None:
        await self.ssh.wait_closed()

    async def close(self) -> None:
        """Close the connection first: if it was cut, no end of a channel is ever answered."""
        self.ssh.abort()
        await self._clients.close()
        await self.ssh.wait_closed()


class Advice(msgspec.Struct, frozen=True):
    """The advice about a refusal: of the other side's host key, and of our own key."""

    host_key: str = "pin one with `fairlead node set NODE --accept-host-key SHA256:…`"
    own_key: str = (
        "refused the controller's key: put the line that `fairlead node key` prints into that "
        "user's authorized_keys"
    )


class SshLink:
    """The SSH link. `identity`: our private key, with which we log in as the address's user."""

    def __init__(
        self, address: NodeAddress, identity: asyncssh.SSHKey, advice: Advice | None = None
    ) -> None:
        if address.host is None or address.host_key is None:
            raise ValueError("an SSH node needs a host and a pinned host key")
        self._address = address
        self._host, self._port = address.host, address.port
        self._pinned = parse(address.host_key)
        self._identity = identity
        self._advice = advice or Advice()

    async def connect(self) -> SshConnection:
        client = _PinnedClient()
        where = f"{self._address.user}@{self._host}:{self._port}"
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                ssh = await _connect(self._address, self._pinned, self._identity, client)
        except TimeoutError as error:
            raise LinkError(f"{where} did not answer in {CONNECT_SECONDS:.0f} s") from error
        except (*_PERHAPS_ANOTHER_KEY, ConnectionError) as error:
            await self._refuse_other_key(where, client.presented)
            raise LinkError(f"cannot connect to {where}: {why_unreachable(error)}") from error
        except asyncssh.PermissionDenied as error:
            raise LinkError(f"{where} {self._advice.own_key} ({error.reason})") from error
        except (OSError, asyncssh.Error) as error:
            raise LinkError(f"cannot connect to {where}: {why_unreachable(error)}") from error
        return SshConnection(ssh, self._address.shim_socket)

    async def _refuse_other_key(self, where: str, presented: asyncssh.SSHKey | None) -> None:
        """Raise HostKeyRefused if the server has only other keys.

        A server without a key of the pinned one's algorithm hangs up before it shows any key, which
        can look like a broken connection.
        """
        if presented is not None:
            raise HostKeyRefused(self._changed(where, presented))
        try:
            found = [parse(line) for line in await fetch(self._host, self._port)]
        except LinkError:
            return
        if self._pinned in found:
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
