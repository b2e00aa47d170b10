"""Admission by the controller's answers, which are remembered for a while.

A token never leaves the gateway: the controller is asked by its digest. While the controller is
away, who was let in before is let in still, for an hour; who is not known is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec

from common.proxy.access import hidden_headers, secret_of
from common.proxy.view import Admission, Service
from common.refusals import Forbidden, NotFound, Unauthenticated, Unavailable
from common.tokens import KEY_PREFIX, digest
from fairlead.wire.gateway import Answer

REMEMBERED_SECONDS = 60.0
AWAY_SECONDS = 3600.0
MAX_KNOWN = 10_000


class ControllerAway(Exception):
    """No controller is connected, or it did not answer."""


class Ask(Protocol):
    async def __call__(self, run_id: str, digest: str, *, is_key: bool) -> Answer:
        """Return the controller's answer, within seconds. Raises ControllerAway."""


class _Known(msgspec.Struct):
    answer: Answer
    at: float


class AskingAccess:
    """Admits as the controller says (`common.proxy.view.Access`). `now`: seconds that only
    grow. `admitted` is called with the run and the digest of one that was let in, once a minute."""

    def __init__(
        self, ask: Ask, now: Callable[[], float], admitted: Callable[[str, str], None]
    ) -> None:
        self._ask = ask
        self._now = now
        self._admitted = admitted
        self._revoked: dict[str, object] = {}
        """For each digest that was revoked, a mark of its last revocation."""
        self._known: dict[tuple[str, str], _Known] = {}
        self._ends: dict[str, set[Callable[[], object]]] = {}

    async def admit(self, service: Service, authorization: str) -> Admission:
        secret, hidden = secret_of(service, authorization), hidden_headers(service, authorization)
        if secret is None:
            return Admission(secret_headers=hidden)
        proof = digest(secret)
        answer = await self._answer(service, proof, is_key=secret.startswith(KEY_PREFIX))
        if answer.allowed:
            return Admission(secret_headers=hidden, credential=proof)
        kinds = {403: Forbidden, 404: NotFound}
        raise kinds.get(answer.status, Unauthenticated)(answer.message)

    @contextmanager
    def while_admitted(self, admission: Admission, end: Callable[[], object]) -> Iterator[None]:
        proof = admission.credential
        if not isinstance(proof, str):
            yield
            return
        self._ends.setdefault(proof, set()).add(end)
        try:
            yield
        finally:
            self._ends[proof].discard(end)
            if not self._ends[proof]:
                del self._ends[proof]

    def revoke(self, proof: str) -> None:
        """Forget a token or key, and end its streams."""
        for key in [key for key in self._known if key[1] == proof]:
            del self._known[key]
        # It moves to the dictionary's end, so that the oldest revocation is forgotten first.
        self._revoked.pop(proof, None)
        self._revoked[proof] = object()
        if len(self._revoked) > MAX_KNOWN:
            del self._revoked[next(iter(self._revoked))]
        for end in tuple(self._ends.get(proof, ())):
            end()

    async def _answer(self, service: Service, proof: str, *, is_key: bool) -> Answer:
        key, now = (service.run_id, proof), self._now()
        known = self._known.get(key)
        if known is not None and now - known.at < REMEMBERED_SECONDS:
            return known.answer
        revoked = self._revoked.get(proof)
        try:
            answer = await self._ask(service.run_id, proof, is_key=is_key)
        except ControllerAway:
            is_fresh = known is not None and now - known.at < AWAY_SECONDS
            is_revoked = self._revoked.get(proof) is not revoked
            if known is not None and known.answer.allowed and is_fresh and not is_revoked:
                self._admitted(service.run_id, proof)
                return known.answer
            raise Unavailable(
                "the controller does not answer, and this gateway does not know the token; try "
                "again soon",
                code="controller_away",
            ) from None
        if self._revoked.get(proof) is not revoked:  # maybe after this answer
            return await self._answer(service, proof, is_key=is_key)
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[key] = _Known(answer, now)
        if answer.allowed:
            self._admitted(service.run_id, proof)
        return answer
