"""Host keys: fetched once to be shown, compared by fingerprint, pinned from then on."""

from __future__ import annotations

import asyncio

import asyncssh

from controller.links.base import LinkError, why_unreachable

FETCH_TIMEOUT_SECONDS = 15.0


class BadHostKey(ValueError):
    """The text is no OpenSSH public key line."""


def parse(line: str) -> asyncssh.SSHKey:
    """`line`: an OpenSSH public key (`ssh-ed25519 AAAA...`), or a known_hosts or ssh-keyscan line.

    Raises BadHostKey."""
    keys = [text for text in line.splitlines() if text.strip() and not text.startswith("#")]
    words = keys[0].split() if len(keys) == 1 else []
    for start in range(min(len(words), 2)):
        try:
            return asyncssh.import_public_key(" ".join(words[start : start + 2]))
        except (asyncssh.KeyImportError, ValueError):
            continue
    raise BadHostKey("not one OpenSSH public key line such as 'ssh-ed25519 AAAA…'")


def normalise(line: str) -> str:
    """Algorithm and key, without comment or host. Raises BadHostKey."""
    return public_line(parse(line))


def public_line(key: asyncssh.SSHKey) -> str:
    words = key.export_public_key("openssh").decode().split()
    return " ".join(words[:2])


def fingerprint(line: str) -> str:
    """`SHA256:…` as ssh-keygen -l prints it. Raises BadHostKey."""
    return parse(line).get_fingerprint()


async def fetch(host: str, port: int, *, like: asyncssh.SSHKey | None = None) -> str:
    """The key that the server presents now, as a public key line; one of the algorithm of `like`,
    where the server has several. Raises LinkError."""
    algorithms = () if like is None else [name.decode() for name in like.sig_algorithms]
    try:
        async with asyncio.timeout(FETCH_TIMEOUT_SECONDS):
            key = await asyncssh.get_server_host_key(
                host, port, server_host_key_algs=algorithms, config=None
            )
    except TimeoutError as error:
        raise LinkError(f"{host}:{port} did not answer in {FETCH_TIMEOUT_SECONDS:.0f} s") from error
    except (OSError, asyncssh.Error) as error:
        raise LinkError(f"cannot reach sshd at {host}:{port}: {why_unreachable(error)}") from error
    if key is None:
        raise LinkError(f"{host}:{port} presented no host key")
    return public_line(key)
