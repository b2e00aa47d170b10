"""The SSH settings of the container's maker: `ssh.json` and the host key in the task's folder.

That file holds only public keys; the host key next to it belongs to this task alone.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

SETTINGS_NAME = "ssh.json"
HOST_KEY_NAME = "ssh_host_ed25519_key"
INSTALL_LOG_NAME = "ssh-install.log"


class Mode(StrEnum):
    AUTO = "auto"
    """The image's own sshd if it has a usable one, else the embedded server."""
    EMBEDDED = "embedded"
    INSTALL = "install"
    """The image's package manager installs openssh-server."""


class SshSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings. `authorized_keys` are public key lines without options."""

    address: str
    port: int
    authorized_keys: tuple[str, ...]
    mode: Mode = Mode.AUTO


class SettingsUnusable(Exception):
    """The settings file exists but cannot be used."""


def read_settings(task: Path) -> SshSettings | None:
    """Return the settings; None when SSH was not requested. Raises SettingsUnusable."""
    try:
        raw = (task / SETTINGS_NAME).read_bytes()
        return msgspec.json.decode(raw, type=SshSettings)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise SettingsUnusable(f"{SETTINGS_NAME} cannot be used: {error}") from error
