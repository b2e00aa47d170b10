"""The controller's SSH key and the admin's token, which it makes once, on its first start."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

import asyncssh

from common.files.durable import write_beside, write_durably
from common.tokens import digest, new_token
from controller.lifecycle.model import Role
from controller.store.accounts import StoredToken, User
from controller.store.base import Changes, Snapshot, Store

IDENTITY_NAME = "id_ed25519"
ADMIN_TOKEN_NAME = "admin-token"
INSTALLATION_NAME = "installation"
"""The file with the id of the installation to which a data folder belongs."""
ADMIN = "admin"
_PRIVATE = 0o600


class IdentityUnusable(Exception):
    """The key or token file cannot be used; the message names the file and what to do."""


def ssh_identity(data: Path, let_in_by: Sequence[str] = ()) -> asyncssh.SSHKey:
    """Return the key with which the controller logs in to nodes; the first call makes it (file mode
    0600).

    `let_in_by`: names of nodes that already let in a key. With a new key all of them would be
    unreachable and their jobs lost, so that is refused. Blocking. Raises IdentityUnusable.
    """
    path = data / IDENTITY_NAME
    try:
        if not path.exists():
            if let_in_by:
                raise _missing(path, let_in_by)
            key = asyncssh.generate_private_key("ssh-ed25519", comment="fairlead-controller")
            write_private(path, key.export_private_key())
        return asyncssh.read_private_key(path)
    except OSError as error:
        raise IdentityUnusable(f"cannot use {path}: {error.strerror}") from error
    except asyncssh.KeyImportError as error:
        raise IdentityUnusable(
            f"{path} is not a private key: restore it, or make a new one ({_how_to_make(path)})"
        ) from error


def _missing(path: Path, nodes: Sequence[str]) -> IdentityUnusable:
    named = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
    return IdentityUnusable(
        f"{path} is not there, and {named} accept only that key: copy it from the "
        f"former controller's data folder or from a backup, or make a new one "
        f"({_how_to_make(path)})"
    )


def _how_to_make(path: Path) -> str:
    return (
        f"`ssh-keygen -t ed25519 -N '' -f {path}`, and its line in {path}.pub into the "
        f"authorized_keys of each node"
    )


def installation_of(data: Path) -> str | None:
    """Return the id of the installation to which the folder belongs; None: it is new, or of an
    earlier version. Blocking. Raises IdentityUnusable."""
    path = data / INSTALLATION_NAME
    try:
        return path.read_text().strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise IdentityUnusable(f"cannot use {path}: {error}") from error


def tie(data: Path, installation_id: str) -> None:
    """Let the folder belong to this installation. Blocking. Raises IdentityUnusable."""
    path = data / INSTALLATION_NAME
    if installation_of(data) != installation_id:
        try:
            write_private(path, f"{installation_id}\n".encode())
        except OSError as error:
            raise IdentityUnusable(f"cannot write {path}: {error.strerror}") from error


def fingerprint(data: Path, secrets_key: Path) -> str | None:
    """Return what tells the key files of one controller from another's; None: they are not all
    there. Blocking. Raises IdentityUnusable."""
    found = hashlib.sha256(b"fairlead controller keys")
    for path in (data / IDENTITY_NAME, secrets_key):
        try:
            found.update(hashlib.sha256(path.read_bytes()).digest())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise IdentityUnusable(f"cannot use {path}: {error.strerror}") from error
    return found.hexdigest()[:16]


def open_to_others(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Return the files that others than their owner may read or write. Blocking."""

    def is_open(path: Path) -> bool:
        try:
            return bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))
        except OSError:
            return False

    return tuple(filter(is_open, paths))


def public_line(identity: asyncssh.SSHKey) -> str:
    """Return the line for the tunnel user's authorized_keys."""
    return identity.export_public_key().decode().strip()


async def ensure_admin(store: Store, snapshot: Snapshot, data: Path, now: float) -> Snapshot:
    """Make an admin and its token in `admin-token` on the first start.

    If the file is lost, make a new token for that admin, or for the first one. Raises
    IdentityUnusable, StoreUnavailable.
    """
    path = data / ADMIN_TOKEN_NAME
    if snapshot.users and path.exists():
        return snapshot
    token = new_token(secrets.token_bytes)
    try:
        written = await asyncio.to_thread(write_beside, path, f"{token}\n".encode(), _PRIVATE)
    except OSError as error:
        raise IdentityUnusable(f"cannot write {path}: {error.strerror}") from error
    admins = sorted(user.name for user in snapshot.users if user.role is Role.ADMIN)
    stored = StoredToken(
        id=secrets.token_hex(8),
        user=ADMIN if ADMIN in admins or not admins else admins[0],
        digest=digest(token),
        created_at=now,
        label="made on first start",
    )
    users = () if snapshot.users else (User(name=ADMIN, role=Role.ADMIN, created_at=now),)
    await store.commit(Changes(users=users, tokens=(stored,)))
    # Not before: a file whose token no user knows would keep the next start from making another.
    await asyncio.to_thread(written.rename, path)
    return await store.load()


def write_private(path: Path, content: bytes) -> None:
    """Write the file completely or not at all, readable only by its owner. Raises OSError."""
    write_durably(path, content, _PRIVATE)
