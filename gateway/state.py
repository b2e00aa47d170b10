"""The agent's state on disk: its SSH key, and the newest snapshot."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import asyncssh
import msgspec

from common.files.durable import write_durably
from fairlead.wire.decoders import decoder_of
from fairlead.wire.gateway import Snapshot

KEY_NAME = "id_ed25519"
SNAPSHOT_NAME = "snapshot.json"


class StateUnusable(Exception):
    """The agent's folder cannot be used; the message names the file and what to do."""


class AgentState:
    """The folder of an agent. All methods block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def key(self) -> Path:
        """The file of the agent's SSH key."""
        return self._folder / KEY_NAME

    def identity(self) -> asyncssh.SSHKey:
        """Return the key by which the agent logs in at nodes; the first call makes it. Raises
        StateUnusable."""
        path = self.key
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                key = asyncssh.generate_private_key("ssh-ed25519", comment="fairlead-gateway")
                write_durably(path, key.export_private_key(), 0o600)
            return asyncssh.read_private_key(str(path))
        except OSError as error:
            raise StateUnusable(f"{path}: {error.strerror}") from error
        except asyncssh.KeyImportError as error:
            raise StateUnusable(
                f"{path}: {error}; remove the file and start again: a new key is made"
            ) from error

    def snapshot(self) -> Snapshot | None:
        """Return the newest snapshot; None: there is none. Raises StateUnusable."""
        path = self._folder / SNAPSHOT_NAME
        try:
            return decoder_of(Snapshot).decode(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateUnusable(f"{path}: {error.strerror}") from error
        except msgspec.DecodeError:
            # Without it the agent starts and waits for the controller, which sends all of it again.
            with contextlib.suppress(OSError):
                os.replace(path, path.with_suffix(".damaged"))
            return None

    def keep(self, snapshot: Snapshot) -> None:
        """Raises OSError."""
        write_durably(self._folder / SNAPSHOT_NAME, msgspec.json.encode(snapshot), 0o600)
