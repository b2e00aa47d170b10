"""Reads submissions at a follower: who submits, and what. It refuses what the leader would refuse.

A copy of the leader's state may lack the last seconds. What it allows is the leader's to allow once
more; what it refuses is refused only if the database says so, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

import msgspec
from aiohttp import web

from common.refusals import ServiceError
from controller.aio import in_stretches
from controller.api.app import token_of
from controller.api.http.routes import decode_body
from controller.api.runs.runs import (
    SubmitBody,
    SubmitManyBody,
    SubmitYamlBody,
    submission_of,
    submission_of_yaml,
)
from controller.forwarding.submissions.messages import Given, Reading
from controller.replica.alone import NeedsLeader
from controller.replica.copy import Copy, Submitters
from controller.service.runs.submission_stages import (
    KnownPlans,
    Submission,
    Texts,
    plan_of,
    waits_for_more,
)
from controller.service.runs.submissions import require_allowed, require_time
from controller.store.accounts import StoredToken
from controller.store.errors import StoreError
from controller.store.reading import StoreReader
from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.runs.plan import Defaults, Plan

T = TypeVar("T")
MAX_PLAN_BYTES = 256 << 10
"""A larger plan, as of a sweep of thousands of sets, is made at the leader."""
ONE, YAML, SEVERAL = "/v1/runs", "/v1/runs:yaml", "/v1/runs:batch"


class Copies(Protocol):
    """The copy of the leader's state."""

    @property
    def submitters(self) -> Submitters | None:
        """Those that were read last; None: none have been yet."""

    async def now(self) -> Copy:
        """Return it with all that was committed before this call. Raises StoreError."""


class PlannedHere(msgspec.Struct, frozen=True):
    plan: Plan
    data: bytes


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """A request that the leader may be given. `plans`: those of its submissions, in their order.
    `size`: the bytes that it takes of a message, at most: of its body and its plans."""

    token: str
    submissions: tuple[Given, ...]
    plans: tuple[bytes, ...]
    is_batch: bool
    size: int

    @property
    def is_keyed(self) -> bool:
        """Whether it may be done twice."""
        return all(one.client_key is not None for one in self.submissions)


class Readings:
    """`store`: tells which client keys made runs before."""

    def __init__(self, copies: Copies, store: StoreReader, reading: Reading) -> None:
        self.reading = reading
        self._copies = copies
        self._store = store
        self._texts = Texts()
        self._plans = KnownPlans(partial(_planned, defaults=reading.defaults))

    async def read(self, request: web.Request, data: bytes) -> Read:
        """Return what the request asks for. Raises what the leader would answer (ServiceError,
        ConfigurationError); NeedsLeader, StoreError: it is the leader's to read."""
        given = token_of(request)
        token = await self._confirmed(lambda found: found.gate.token_of(given))
        try:
            return await self._read(request.path, data, token)
        except (ServiceError, ConfigurationError):
            # It may have been revoked since the copy was read: then its file is nobody's.
            (await self._copies.now()).submitters.gate.token_of(given)
            raise

    async def _read(self, path: str, data: bytes, token: StoredToken) -> Read:
        submissions = await self._submissions(path, data)
        is_batch = path == SEVERAL
        planned = [
            await self._plan(one, token, is_alone=not is_batch)
            async for one in in_stretches(submissions)
        ]
        numbers: dict[bytes, int] = {}
        asked = tuple(
            Given(
                plan=numbers.setdefault(one.data, len(numbers)),
                name=submission.name,
                client_key=submission.client_key,
                if_exists=submission.if_exists,
                parent=submission.parent,
            )
            for submission, one in zip(submissions, planned, strict=True)
        )
        size = sum(map(len, numbers))
        if size > MAX_PLAN_BYTES:
            raise NeedsLeader
        return Read(
            token=token.id,
            submissions=asked,
            plans=tuple(numbers),
            is_batch=is_batch,
            # Names and keys are as long as their users like: a message that the leader does not
            # take would be refused to all.
            size=len(data) + size,
        )

    async def _submissions(self, path: str, data: bytes) -> list[Submission]:
        """Raises Invalid, Unavailable."""
        if path == ONE:
            return [submission_of(decode_body(data, SubmitBody))]
        if path == YAML:
            return [await submission_of_yaml(decode_body(data, SubmitYamlBody), self._texts)]
        return [submission_of(one) for one in decode_body(data, SubmitManyBody).runs]

    async def _plan(
        self, submission: Submission, token: StoredToken, *, is_alone: bool
    ) -> PlannedHere:
        """`is_alone`: whether a refusal is the answer to the whole request."""
        try:
            found = self._plans.of(submission)
        except (ServiceError, ConfigurationError):
            if not is_alone:
                raise NeedsLeader from None
            if submission.client_key is not None:
                await self._require_new(token.user, submission.client_key)
            raise
        # Such a number has more bits than the message can have.
        except OverflowError:
            raise NeedsLeader from None
        if waits_for_more(submission, found.plan):
            raise NeedsLeader
        # The first request with a key may be on its way to a commit, and was judged then.
        if is_alone and submission.client_key is None:
            # What is not known here is for the leader to judge.
            with contextlib.suppress(NeedsLeader, StoreError):
                await self._confirmed(partial(_require_now, plan=found.plan, user=token.user))
        return found

    async def _require_new(self, user: str, client_key: str) -> None:
        """Raises NeedsLeader if this key has made a run: the leader answers with that. Raises
        StoreError."""
        async with self._store.moment() as moment:
            if await moment.has_submission(user, client_key):
                raise NeedsLeader

    async def _confirmed(self, check: Callable[[Submitters], T]) -> T:
        """Return what the check returns, or raises, of which the database knows nothing newer.
        Raises StoreError, NeedsLeader."""
        known = self._copies.submitters
        if known is None:
            raise NeedsLeader
        try:
            return check(known)
        except ServiceError:
            return check((await self._copies.now()).submitters)


def _planned(submission: Submission, defaults: Defaults) -> PlannedHere:
    plan = plan_of(submission, defaults)
    return PlannedHere(plan, msgspec.msgpack.encode(plan))


def _require_now(known: Submitters, plan: Plan, user: str) -> None:
    """Raises ServiceError, NeedsLeader."""
    found = known.gate.users.get(user)
    if found is None:
        raise NeedsLeader
    require_time(plan, known.clock.now())
    require_allowed(plan, found, known.secrets)
