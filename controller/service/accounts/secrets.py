"""Stored secrets: who may set, list and delete them, and which a submission may name.

A value goes in and never comes out again: only jobs get it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable

from common.refusals import Invalid, NotFound, Unavailable, Unprocessable
from controller.clock import Clock
from controller.lifecycle.model import JobSpec
from controller.service.accounts.rights import require_admin
from controller.service.accounts.users import Gate
from controller.store.accounts import StoredSecret, User
from controller.store.base import Changes, Store
from controller.vault import KeyUnusable, SecretMissing, Vault
from fairlead.configuration.text.stored_secrets import NAME_ALLOWED, is_secret_name, names_of
from fairlead.wire.job import MIN_SECRET

MAX_BYTES = 64 << 10
"""The limit of one value: as a variable of a job it must fit into one argument of Linux."""
MAX_SECRETS = 1000
"""The limit of one user's secrets."""


class SecretService:
    """The requests about secrets; every change is committed."""

    def __init__(self, *, store: Store, vault: Vault, gate: Gate, clock: Clock) -> None:
        self._store = store
        self._vault = vault
        self._gate = gate
        self._clock = clock
        self._changing = asyncio.Lock()

    def all(self, *, by: User) -> list[StoredSecret]:
        """Return the user's own secrets and the shared ones, by name."""
        own = [one for one in self._vault.all() if one.user in (None, by.name)]
        return sorted(own, key=lambda secret: (secret.name, secret.user is not None))

    async def set(self, name: str, value: str, *, shared: bool, by: User) -> StoredSecret:
        """Store a secret, or a new value of it. Raises Forbidden, Invalid, Unauthenticated (the
        user is being removed), StoreUnavailable."""
        owner = _owner(by, "set a shared secret", shared=shared)
        _check(name, value)
        async with self._changing:
            self._gate.require_present(by)
            old, now = self._vault.find(owner, name), self._clock.now()
            if old is None and sum(one.user == owner for one in self._vault.all()) >= MAX_SECRETS:
                raise Invalid(f"there are {MAX_SECRETS} secrets already; delete some first")
            secret = StoredSecret(
                id=secrets.token_hex(8) if old is None else old.id,
                user=owner,
                name=name,
                sealed=self._vault.sealed(owner, name, value),
                created_at=now if old is None else old.created_at,
                updated_at=now,
            )
            await self._commit(Changes(secrets=(secret,)))
        return secret

    async def delete(self, name: str, *, shared: bool, by: User) -> StoredSecret:
        """Delete a secret. Raises Forbidden, NotFound, StoreUnavailable."""
        owner = _owner(by, "delete a shared secret", shared=shared)
        async with self._changing:
            secret = self._vault.find(owner, name)
            if secret is None:
                raise NotFound(
                    f"there is no {'shared ' if shared else ''}secret {name!r:.80}; "
                    f"`fairlead secret list` shows them",
                    field="secret",
                )
            await self._commit(Changes(removed_secrets=(secret.id,)))
        return secret

    async def rotate(self, *, by: User) -> int:
        """Seal all secrets with a new key, forget the old one, and return how many there are.

        If it is cut off, the same request completes it. Raises Forbidden, Unavailable,
        StoreUnavailable.
        """
        require_admin(by, "rotate the key of the stored secrets")
        async with self._changing:
            try:
                await asyncio.to_thread(self._vault.keys.begin_rotation)
                found = (self._vault.resealed(secret) for secret in self._vault.all())
                changed = tuple(secret for secret in found if secret is not None)
                await self._commit(Changes(secrets=changed))
                # The old key goes last: a crash before this leaves both, and all secrets open.
                await asyncio.to_thread(self._vault.keys.end_rotation)
            except KeyUnusable as error:
                raise Unavailable(str(error)) from error
        return len(changed)

    def require(self, specs: Iterable[JobSpec], user: User) -> None:
        """Raise Unprocessable for the first secret that these jobs name and cannot get."""
        for spec in specs:
            for name, field in names_of(spec).items():
                try:
                    self._vault.value(user.name, name)
                except SecretMissing as error:
                    raise Unprocessable(str(error), code="secret_missing", field=field) from None

    async def _commit(self, changes: Changes) -> None:
        await self._store.commit(changes)
        self._vault.apply(changes)


def _owner(by: User, action: str, *, shared: bool) -> str | None:
    if shared:
        require_admin(by, action)
        return None
    return by.name


def _check(name: str, value: str) -> None:
    if not is_secret_name(name):
        raise Invalid(f"{name!r:.80} is not a secret's name: {NAME_ALLOWED}", field="secret")
    if not value:
        raise Invalid(
            "the value is empty; `fairlead secret delete` removes a secret", field="value"
        )
    if "\0" in value:
        raise Invalid("the value contains a NUL character, which no variable can", field="value")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise Invalid("the value contains half of a character", field="value") from None
    if size < MIN_SECRET or not value.strip():
        raise Invalid(
            f"the value has less than {MIN_SECRET} bytes, which logs cannot hide: use env",
            field="value",
        )
    if size > MAX_BYTES:
        raise Invalid(
            f"the value has more than {MAX_BYTES >> 10} KiB: put it into a file on a volume",
            field="value",
        )
