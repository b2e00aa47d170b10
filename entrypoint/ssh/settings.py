"""What whoever made the container wants of SSH: `ssh.json` and the host key in the task's folder.

Only public keys are in that file; the host key lies beside it and is this task's alone.
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
    """openssh-server is installed by the image's package manager."""


class SshSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`authorized_keys` are public key lines without options."""

    address: str
    port: int
    authorized_keys: tuple[str, ...]
    mode: Mode = Mode.AUTO


class SettingsUnusable(Exception):
    """The file is there but says nothing that can be followed."""


def read_settings(task: Path) -> SshSettings | None:
    """None when nobody asked for SSH. Raises SettingsUnusable."""
    try:
        raw = (task / SETTINGS_NAME).read_bytes()
        return msgspec.json.decode(raw, type=SshSettings)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise SettingsUnusable(f"{SETTINGS_NAME} cannot be used: {error}") from error
