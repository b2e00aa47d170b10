"""The vault keeps users' stored secrets: sealed in the database, their key in a file beside it.

Neither the database nor the file tells a secret alone. The file has one Fernet key on each line:
the first one seals, all of them open. A second key is there only while a rotation is not complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from controller.identity import write_private
from controller.store.accounts import StoredSecret
from controller.store.base import Changes
from fairlead.wire.decoders import decoder_of

SECRETS_KEY_NAME = "secrets.key"


class KeyUnusable(Exception):
    """The key file cannot be used; the message says what the operator must change."""


class SecretMissing(Exception):
    """A run names a secret that cannot be had; the message says which, why, and what to do."""


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    """The sealed content: the value, and the owner and name for which alone it may be used."""

    user: str | None
    name: str
    value: str


class KeyFile:
    """The keys in their file. Every method blocks, and may raise KeyUnusable."""

    def __init__(self, path: Path, keys: Iterable[bytes]) -> None:
        self._path = path
        self._keys = list(keys)
        self._fernet = MultiFernet([Fernet(key) for key in self._keys])

    @classmethod
    def open(cls, path: Path, *, sealed: int = 0) -> KeyFile:
        """Read the file, or make it with a new key.

        `sealed`: the number of secrets that need it. If there are any, a missing file is not
        replaced, because its key may be somewhere else; an empty file is.
        """
        try:
            keys = path.read_bytes().split() if path.exists() else None
            if keys is None and sealed:
                raise KeyUnusable(
                    f"{path} is not there, and {sealed} stored secrets need its key: put the file "
                    f"back; if it is lost, make an empty one (`touch {path}`), and have the users "
                    f"set their secrets again"
                )
            if not keys:
                keys = [Fernet.generate_key()]
                _write(path, keys)
            return cls(path, keys)
        except OSError as error:
            raise KeyUnusable(f"cannot use {path}: {error.strerror}") from error
        except ValueError as error:
            raise KeyUnusable(
                f"{path} is no key of stored secrets: it holds lines of 44 characters in base64; "
                f"put the right file there"
            ) from error

    def seal(self, data: bytes) -> str:
        return self._fernet.encrypt(data).decode()

    def unseal(self, sealed: str) -> bytes | None:
        """Return the data; None when no key opens it."""
        try:
            return self._fernet.decrypt(sealed)
        # Sealed with a key that is no longer in the file, or changed since.
        except InvalidToken:
            return None

    def begin_rotation(self) -> None:
        """Put a new key first, and keep the old ones. A rotation that was cut off goes on."""
        if len(self._keys) == 1:
            self._keep([Fernet.generate_key(), *self._keys])

    def end_rotation(self) -> None:
        """Forget all keys but the first, once nothing is sealed with them."""
        self._keep(self._keys[:1])

    def _keep(self, keys: list[bytes]) -> None:
        try:
            # On disk first: what a key that is in memory alone had sealed would be lost in a crash.
            _write(self._path, keys)
        except OSError as error:
            raise KeyUnusable(f"cannot write {self._path}: {error.strerror}") from error
        self._keys = keys
        self._fernet = MultiFernet([Fernet(key) for key in keys])


def _write(path: Path, keys: Iterable[bytes]) -> None:
    write_private(path, b"".join(key + b"\n" for key in keys))


class Vault:
    """The stored secrets as they are committed, and the key file that opens them."""

    def __init__(self, keys: KeyFile, stored: Iterable[StoredSecret] = ()) -> None:
        self.keys = keys
        self._stored = {(secret.user, secret.name): secret for secret in stored}

    def all(self) -> tuple[StoredSecret, ...]:
        return tuple(self._stored.values())

    def unopened(self) -> int:
        """Return the number of secrets that no key opens."""
        return sum(self.keys.unseal(secret.sealed) is None for secret in self._stored.values())

    def find(self, user: str | None, name: str) -> StoredSecret | None:
        """Return this user's own secret; `user` None: the one that all users share."""
        return self._stored.get((user, name))

    def meant(self, user: str | None, name: str) -> StoredSecret:
        """Return the secret that `value` opens. Raises SecretMissing if there is none."""
        secret = self.find(user, name) or self.find(None, name)
        if secret is None and user is None:
            raise SecretMissing(
                f"there is no secret {name} of all users: store it with "
                f"`fairlead secret set --shared {name}`"
            )
        if secret is None:
            raise SecretMissing(
                f"there is no secret {name} of {user}: store it with `fairlead secret set {name}`"
            )
        return secret

    def apply(self, changes: Changes) -> None:
        """Take over what was committed."""
        removed, users = set(changes.removed_secrets), set(changes.removed_users)
        kept = {
            key: secret
            for key, secret in self._stored.items()
            if secret.id not in removed and secret.user not in users
        }
        changed = {(secret.user, secret.name): secret for secret in changes.secrets}
        self._stored = kept | changed

    def sealed(self, user: str | None, name: str, value: str) -> str:
        content = _Content(user=user, name=name, value=value)
        return self.keys.seal(msgspec.json.encode(content))

    def resealed(self, secret: StoredSecret) -> StoredSecret | None:
        """Return the secret sealed with the first key; None when no key opens it."""
        data = self.keys.unseal(secret.sealed)
        return (
            None if data is None else msgspec.structs.replace(secret, sealed=self.keys.seal(data))
        )

    def value(self, user: str | None, name: str) -> str:
        """Return what `${{ secrets.NAME }}` stands for in a run of this user: the user's own secret
        of that name, else the shared one. None: only the shared one. Raises SecretMissing."""
        secret = self.meant(user, name)
        data = self.keys.unseal(secret.sealed)
        content = None if data is None else decoder_of(_Content).decode(data)
        # A writer of the database alone could put another user's sealed value into this row.
        if content is None or (content.user, content.name) != (secret.user, name):
            raise SecretMissing(
                f"the secret {name} cannot be opened with the controller's present key: store it "
                f"again with `fairlead secret set {name}`"
            )
        return content.value
