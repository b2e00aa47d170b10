"""Reads the operator's `~/.ssh/config`, so that a host has the login here that it has in ssh."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import cast

import asyncssh
from asyncssh.config import SSHClientConfig

from controller.commands.hosts.connection import HostError, Jump, Target

_SSH_PORT = 22


def target_of(
    alias: str,
    *,
    port: int | None = None,
    user: str | None = None,
    identity: Path | None = None,
    jump: str | None = None,
) -> Target:
    """Return the target; what is not given comes from `~/.ssh/config`, else port 22 and root.

    Blocking. Raises HostError.
    """
    found = _read(alias, port, user)
    through = _jump(found, alias) if jump is None else jump
    return Target(
        host=_text(found, "Hostname") or alias,
        port=_port(found),
        user=_text(found, "User") or "root",
        identity=identity or _identity(found),
        jump=None if through is None else _resolved(through, identity),
    )


def _resolved(jump: str, identity: Path | None) -> Jump:
    """The jump host, which may be an alias, too. Raises HostError."""
    user, _, where = jump.rpartition("@")
    host, _, number = where.partition(":")
    if "," in jump or not host or (number and not number.isdecimal()):
        raise HostError(f"jump host {jump!r}: give one host as USER@HOST[:PORT]")
    found = _read(host, int(number) if number else None, user or None)
    return Jump(
        host=_text(found, "Hostname") or host,
        port=_port(found),
        user=_text(found, "User"),
        identity=_identity(found) or identity,
    )


def _read(alias: str, port: int | None, user: str | None) -> SSHClientConfig:
    file = Path(os.environ.get("HOME", "/")) / ".ssh/config"
    files = [file] if file.is_file() else []
    given = (getpass.getuser(), user or (), alias, port or ())
    try:
        found = SSHClientConfig.load(None, files, False, False, False, *given)
    except (OSError, UnicodeDecodeError, asyncssh.ConfigParseError) as error:
        raise HostError(f"{file} cannot be read: {error}") from None
    return cast(SSHClientConfig, found)


def _text(found: SSHClientConfig, name: str) -> str | None:
    return cast("str | None", found.get(name))


def _port(found: SSHClientConfig) -> int:
    return cast(int, found.get("Port", _SSH_PORT))


def _jump(found: SSHClientConfig, alias: str) -> str | None:
    jump = _text(found, "ProxyJump")
    if jump is None and _text(found, "ProxyCommand") not in (None, "none"):
        raise HostError(
            f"~/.ssh/config reaches {alias} by ProxyCommand, which this command does not run: "
            f"give --jump USER@HOST, or use ProxyJump there"
        )
    # `none` ends a ProxyJump of a wider Host (ssh_config(5)).
    return None if jump == "none" else jump


def _identity(found: SSHClientConfig) -> Path | None:
    """The first key file that can be used as it is; one with a passphrase is left to ssh-agent."""
    for name in cast("list[str]", found.get("IdentityFile", [])):
        file = Path(name).expanduser()
        try:
            asyncssh.read_private_key(file)
        # ssh, too, goes on to the next IdentityFile (ssh_config(5)); a key with a passphrase needs
        # an agent.
        except (OSError, asyncssh.KeyImportError):
            continue
        return file
    return None
