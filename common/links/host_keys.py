"""Host keys of SSH servers: how they are read, compared by people, and fetched."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import asyncssh

from common.links.errors import LinkError, why_unreachable

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
    # A line of known_hosts begins with the host, one of a .pub file with the algorithm.
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
