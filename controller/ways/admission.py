"""Admits to services by the database, as the leader does by its memory.

Each request is decided by a read that began after it came; requests that come during a read share
the next one. If the database is away, whoever was let in within the last minute is let in still.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import msgspec

from common.proxy.access import bearer, hidden_headers, secret_of
from common.proxy.view import Admission, Service
from common.refusals import ServiceError, Unavailable
from common.tokens import BROWSER_PREFIX, KEY_PREFIX, digest
from controller.clock import Clock
from controller.proxy.registered import GateAccess
from controller.proxy.sealed import SealedSessions
from controller.service.accounts.users import Gate
from controller.store.errors import StoreError
from controller.store.reading import Moment, StoreReader

LOOK_SECONDS = 5.0
"""Between two looks at the rights of open requests."""
KNOWN_SECONDS = 60.0
"""So long a right holds about which the database tells nothing."""
MAX_KNOWN = 10_000


class _Held(msgspec.Struct, frozen=True):
    """What admitted a request. It names the service, because a key opens one alone."""

    service: Service
    authorization: str

    def __repr__(self) -> str:
        return f"_Held(service={self.service.name!r})"

    @property
    def right(self) -> tuple[str, str]:
        return self.service.run_id, digest(bearer(self.authorization))


class _Open(msgspec.Struct):
    held: _Held
    known_at: float
    ends: list[Callable[[], object]]


class StoredAccess:
    """`now`: seconds that only grow. `sealed`: opens sessions of browsers."""

    def __init__(
        self,
        store: StoreReader,
        clock: Clock,
        now: Callable[[], float],
        sealed: SealedSessions | None = None,
    ) -> None:
        self._store = store
        self._sealed = sealed
        self._clock = clock
        self._now = now
        self._waiting: dict[str, asyncio.Future[Gate]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._known: dict[tuple[str, str], float] = {}
        """When each right was asked for that was there, the latest last."""
        self._open: dict[tuple[str, str], _Open] = {}
        self._looking: asyncio.Task[None] | None = None

    async def close(self) -> None:
        tasks = [task for task in (self._reading, self._looking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def admit(self, service: Service, authorization: str) -> Admission:
        """Raises Unauthenticated, Forbidden, Unavailable."""
        hidden = hidden_headers(service, authorization)
        if secret_of(service, authorization) is None:
            return Admission(secret_headers=hidden)
        held = _Held(service, authorization)
        await self._require(held)
        return Admission(secret_headers=hidden, credential=held)

    @contextlib.contextmanager
    def while_admitted(self, admission: Admission, end: Callable[[], object]) -> Iterator[None]:
        held = admission.credential
        if not isinstance(held, _Held):
            yield
            return
        right = held.right
        opened = self._open.get(right)
        if opened is None:
            opened = self._open[right] = _Open(held, self._known.get(right, self._now()), [])
        opened.ends.append(end)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_on(), name="rights of open requests")
        try:
            yield
        finally:
            opened.ends.remove(end)
            if not opened.ends and self._open.get(right) is opened:
                del self._open[right]

    async def _require(self, held: _Held) -> None:
        """Raises Unauthenticated, Forbidden, Unavailable."""
        right, asked_at = held.right, self._now()
        try:
            gate = await self._gate(self._wanted(held))
        except StoreError as error:
            known_at = self._known.get(right)
            if known_at is not None and asked_at - known_at < KNOWN_SECONDS:
                return
            raise Unavailable("the database can't be read at the moment; try again soon") from error
        self._known.pop(right, None)
        await GateAccess(gate, self._sealed).admit(held.service, held.authorization)
        self._known[right] = asked_at
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    # -- the rights of open requests ------------------------------------------------------------

    async def _look_on(self) -> None:
        """Look until nothing is open."""
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                if not self._open:
                    return
                await asyncio.gather(*map(self._look_at, tuple(self._open.values())))
        finally:
            self._looking = None

    async def _look_at(self, opened: _Open) -> None:
        asked_at = self._now()
        try:
            await self._require(opened.held)
        except Unavailable:
            if asked_at - opened.known_at < KNOWN_SECONDS:
                return
        except ServiceError:
            pass
        else:
            opened.known_at = max(opened.known_at, self._known.get(opened.held.right, 0.0))
            return
        for end in tuple(opened.ends):
            end()

    # -- the database ---------------------------------------------------------------------------

    def _wanted(self, held: _Held) -> str:
        """Return what the database is asked for: a key, a token, or the token of a login."""
        secret = bearer(held.authorization)
        if self._sealed is not None and secret.startswith(BROWSER_PREFIX):
            session = self._sealed.granted(secret, held.service.run_id)
            return f"login {'' if session is None else session.token_id}"
        return f"{'key' if secret.startswith(KEY_PREFIX) else 'token'} {digest(secret)}"

    async def _gate(self, wanted: str) -> Gate:
        """Return what the database has of this. Raises StoreError."""
        found = self._waiting.get(wanted)
        if found is None:
            found = self._waiting[wanted] = asyncio.get_running_loop().create_future()
            # All who wait for it may be gone.
            found.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_on(), name="rights at services")
        return await asyncio.shield(found)

    async def _read_on(self) -> None:
        """Read until nobody waits."""
        try:
            while self._waiting:
                asked, self._waiting = self._waiting, {}
                try:
                    async with self._store.moment() as moment:
                        for wanted, found in asked.items():
                            found.set_result(await self._read(moment, wanted))
                except StoreError as error:
                    for found in asked.values():
                        # The read of a later one failed: those before it have their answers.
                        if not found.done():
                            found.set_exception(error)
                except BaseException:
                    for found in asked.values():
                        found.cancel()
                    raise
        finally:
            self._reading = None
            for found in self._waiting.values():
                found.cancel()

    async def _read(self, moment: Moment, wanted: str) -> Gate:
        kind, _, proof = wanted.partition(" ")
        if kind == "key":
            return Gate((), (), self._clock, await moment.service_keys(proof))
        by_login = kind == "login"
        account = await (moment.account_of(proof) if by_login else moment.account(proof))
        users, tokens = ((), ()) if account is None else ((account[0],), (account[1],))
        return Gate(users, tokens, self._clock)
