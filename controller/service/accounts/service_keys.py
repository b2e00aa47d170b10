"""Keys that open one service alone, for programs that must not have a user's token."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Iterable

import msgspec

from common.refusals import Invalid, NotFound
from common.tokens import KEY_PREFIX, digest, new_token
from controller.clock import Clock
from controller.lifecycle.model import RunState
from controller.service.accounts.rights import sees_all
from controller.service.accounts.users import MAX_LABEL, Gate
from controller.store.accounts import ServiceKey, User
from controller.store.base import Changes, Store

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)


class NewServiceKey(msgspec.Struct, frozen=True, kw_only=True):
    """A new key. `secret` is shown only this once; it cannot be computed from what is stored.

    `live`: whether its owner has a service of this name now.
    """

    key: ServiceKey
    secret: str
    live: bool

    def __repr__(self) -> str:
        return f"NewServiceKey(key={self.key!r})"


class ServiceKeys:
    """Makes and revokes keys; every change is committed before it applies.

    A key belongs to a service's name and owner, so it holds for the next run of that name too, and
    never for another user's. `live_runs`: the runs whose names are taken.
    """

    def __init__(
        self,
        *,
        store: Store,
        gate: Gate,
        clock: Clock,
        live_runs: Callable[[], Iterable[RunState]],
    ) -> None:
        self._store = store
        self._gate = gate
        self._clock = clock
        self._live_runs = live_runs
        self._changing = asyncio.Lock()

    def keys(self, service: str | None, *, by: User) -> list[ServiceKey]:
        """Return the keys of the caller's services, or of all for an admin; `service`: only of this
        one."""
        found = [
            key
            for key in self._gate.service_keys
            if service in (None, key.service) and (sees_all(by) or key.user == by.name)
        ]
        return sorted(found, key=lambda key: (key.service, key.user, key.created_at, key.id))

    async def add(self, service: str, *, label: str, by: User) -> NewServiceKey:
        """Make a key for the live service of this name, else for one of the caller's to come.

        Raises Invalid, Unauthenticated (the caller is being removed), StoreUnavailable.
        """
        if not _NAME.fullmatch(service):
            raise Invalid(
                f"{service!r} is not the name of a service: lowercase letters, digits and -",
                field="service",
            )
        if len(label) > MAX_LABEL or not label.isprintable():
            raise Invalid(
                f"a key's label has at most {MAX_LABEL} printable characters", field="label"
            )
        async with self._changing:
            self._gate.require_present(by)
            owner = self._owner(service, by)
            secret = new_token(secrets.token_bytes, KEY_PREFIX)
            key = ServiceKey(
                id=secrets.token_hex(8),
                service=service,
                user=owner,
                digest=digest(secret),
                created_at=self._clock.now(),
                label=label,
            )
            await self._commit(Changes(service_keys=(key,)))
            return NewServiceKey(key=key, secret=secret, live=self._is_live(service, owner))

    async def revoke(self, key_id: str, *, by: User) -> ServiceKey:
        """Revoke a key; its open requests end. Raises NotFound, StoreUnavailable."""
        async with self._changing:
            key = next((one for one in self.keys(None, by=by) if one.id == key_id), None)
            if key is None:
                raise NotFound(
                    f"there is no key {key_id!r}; `fairlead service key list` shows yours",
                    field="key",
                )
            await self._commit(Changes(removed_service_keys=(key_id,)))
        return key

    def _owner(self, service: str, by: User) -> str:
        """Return the user whose service the key opens. A user's key of a name that is another's
        opens nothing, and the answer does not tell that there is such a service."""
        owners = [state.run.user for state in self._live_runs() if state.run.name == service]
        if not owners or by.name in owners or not sees_all(by):
            return by.name
        return owners[0]

    def _is_live(self, service: str, owner: str) -> bool:
        return any(
            run.name == service and run.user == owner and run.service is not None
            for run in (state.run for state in self._live_runs())
        )

    async def _commit(self, changes: Changes) -> None:
        await self._store.commit(changes)
        self._gate.apply(changes)
