"""The configuration and keys with which the user's own ssh reaches a job, with pinned host keys.

The node's key is the one that its admin pinned; the job's key is the one that its node published.
Nothing is trusted on first use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fairlead.documents.jobs import SshTarget
from fairlead.files.ssh_keys import VARIABLE

CIPHERS = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,aes128-ctr,aes256-ctr"
"""Every OpenSSH has these; its own default is half as fast with the embedded server."""
_ALGORITHMS = {
    "ssh-ed25519": "ssh-ed25519",
    "ecdsa-sha2-nistp256": "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384": "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521": "ecdsa-sha2-nistp521",
    "ssh-rsa": "rsa-sha2-512,rsa-sha2-256",
}
"""The algorithms by the type of a pinned key. A node reports its job's key; nothing else that it
sends may become configuration."""
_PINNED = (
    # A key that the system's file has for another host counts for no job.
    "GlobalKnownHostsFile /dev/null",
    "StrictHostKeyChecking yes",
    # Else a job's server could add further keys to the file (ssh_config(5), UpdateHostKeys).
    "UpdateHostKeys no",
    # Else ssh would keep keys by address too, and later jobs get the same addresses and ports.
    "CheckHostIP no",
)


def state_folder(environ: Mapping[str, str], home: Path) -> Path:
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else home / ".local" / "state") / "fairlead" / "ssh"


def host_blocks(target: SshTarget, user: str, folder: Path, identity: Path | None) -> str:
    """Return one block for the job under its run's name, and one for its node."""
    through = None if target.node_host is None else f"{target.run_name}.node"
    job = [
        f"HostName {target.host}",
        f"Port {target.port}",
        f"User {user}",
        *_trust(_job_alias(target), target.host_key, target, folder),
        *_identity(identity),
    ]
    if through is None:
        return _block(target.run_name, job)
    node = [
        f"HostName {target.node_host}",
        f"Port {target.node_port}",
        f"User {target.jump_user}",
        *_trust(_node_alias(target), target.node_host_key, target, folder),
        *_identity(identity),
    ]
    return _block(target.run_name, [*job, f"ProxyJump {through}"]) + _block(through, node)


def write_known_hosts(target: SshTarget, folder: Path) -> None:
    """Write the pinned keys. Raises OSError."""
    lines = [_known_host(_job_alias(target), target.host_key)]
    if target.node_host_key is not None:
        lines.append(_known_host(_node_alias(target), target.node_host_key))
    _replace(_known_hosts(target, folder), "".join(lines))


def _known_host(alias: str, key: str) -> str:
    """Return exactly one line, whatever the node sent."""
    return f"{alias} {' '.join(key.split()[:2])}\n"


def write_config(target: SshTarget, blocks: str, folder: Path) -> Path:
    """Write a file for `ssh -F` that includes the user's own configuration after it. Raises
    OSError."""
    # `Match all` ends the last Host, below which the Include would hold for that host alone.
    path = folder / f"{target.run_name}.config"
    _replace(path, f"{blocks}Match all\nInclude ~/.ssh/config\n")
    return path


def install(target: SshTarget, blocks: str, folder: Path, home: Path) -> None:
    """Keep the blocks in a file that the user's own configuration includes. Raises OSError.

    The `Include` stands before everything else there: below a `Host` it would hold for that alone.
    """
    _replace(folder / f"{target.run_name}{_ENTRY}", blocks)
    path = home / ".ssh" / "config"
    include = f'Include "{folder}/*{_ENTRY}"\n'
    try:
        before = path.read_text()
    except FileNotFoundError:
        before = ""
    if include not in before:
        # Many keep their dotfiles as links: a rename would put a plain file in the link's place.
        _replace(path.resolve(), f"{include}\n{before}" if before else include, mode=0o600)


_ENTRY = ".entry"


def _trust(alias: str, key: str | None, target: SshTarget, folder: Path) -> list[str]:
    """Return the options that accept only the pinned key.

    Only its algorithm is negotiated. So a server with several keys shows that one, whatever the
    user's own configuration prefers.
    """
    # Here and for IdentityFile: % begins a token (ssh_config(5), TOKENS).
    path = str(_known_hosts(target, folder)).replace("%", "%%")
    known = [f"HostKeyAlias {alias}", f'UserKnownHostsFile "{path}"']
    algorithms = _ALGORITHMS.get((key or "").partition(" ")[0])
    wanted = [f"HostKeyAlgorithms {algorithms}"] if algorithms else []
    return [*known, *_PINNED, *wanted, f"Ciphers {CIPHERS}"]


def _identity(identity: Path | None) -> list[str]:
    return [] if identity is None else [f'IdentityFile "{str(identity).replace("%", "%%")}"']


def _block(host: str, settings: list[str]) -> str:
    return f"Host {host}\n" + "".join(f"    {setting}\n" for setting in settings)


def _job_alias(target: SshTarget) -> str:
    """Return the alias of the job's host key: each attempt has its own."""
    return f"fairlead-{target.attempt_id}"


def _node_alias(target: SshTarget) -> str:
    return f"fairlead-node-{target.node_host}-{target.node_port}"


def _known_hosts(target: SshTarget, folder: Path) -> Path:
    return folder / f"{target.run_name}.known_hosts"


def _replace(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    # An ssh that starts now must not read half of it; rename(2) is atomic.
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.replace(path)


def identity(environ: Mapping[str, str]) -> Path | None:
    """Return the private key that the user named, if any."""
    named = environ.get(VARIABLE)
    return Path(named.removesuffix(".pub")).expanduser().absolute() if named else None
