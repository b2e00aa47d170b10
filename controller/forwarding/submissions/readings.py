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
    SubmitTogetherBody,
    SubmitYamlBody,
    submission_of,
    submission_of_yaml,
)
from controller.forwarding.submissions.messages import Given, Reading
from controller.replica.alone import NeedsLeader
from controller.replica.copy import Copy, Submitters
from controller.service.machines.gateways import with_gateway
from controller.service.runs.submission_stages import (
    Form,
    KnownPlans,
    Submission,
    Texts,
    plan_of,
)
from controller.service.runs.submissions import (
    numbered,
    require_allowed,
    require_new,
    require_number,
    require_time,
)
from controller.store.accounts import StoredToken
from controller.store.errors import StoreError
from controller.store.reading import StoreReader
from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.runs.plan import Defaults, Plan

T = TypeVar("T")
MAX_PLAN_BYTES = 256 << 10
"""A larger plan, as of a sweep of thousands of sets, is made at the leader."""
FORMS = {
    "/v1/runs": Form.ONE,
    "/v1/runs:yaml": Form.ONE,
    "/v1/runs:batch": Form.SEVERAL,
    "/v1/runs/together": Form.TOGETHER,
}
"""By the paths of the requests."""
_YAML = "/v1/runs:yaml"


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
    form: Form
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
        form, submissions = FORMS[path], await self._submissions(path, data)
        keys = [one.client_key for one in submissions if one.client_key is not None]
        # The leader compares what was written, which it does not get.
        if len(set(keys)) < len(keys):
            raise NeedsLeader
        planned = [
            await self._plan(number, one, token, form)
            async for number, one in in_stretches(list(enumerate(submissions)))
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
            form=form,
            # Names and keys are as long as their users like: a message that the leader does not
            # take would be refused to all.
            size=len(data) + size,
        )

    async def _submissions(self, path: str, data: bytes) -> list[Submission]:
        """Raises Invalid, Unavailable."""
        if path == _YAML:
            return [await submission_of_yaml(decode_body(data, SubmitYamlBody), self._texts)]
        if FORMS[path] is Form.ONE:
            return [submission_of(decode_body(data, SubmitBody))]
        if FORMS[path] is Form.SEVERAL:
            return [submission_of(one) for one in decode_body(data, SubmitManyBody).runs]
        submissions = [submission_of(one) for one in decode_body(data, SubmitTogetherBody).runs]
        require_number(submissions)
        return submissions

    async def _plan(
        self, number: int, submission: Submission, token: StoredToken, form: Form
    ) -> PlannedHere:
        """Raises what the leader would answer to the request, and NeedsLeader if only the leader
        can tell that."""
        # Of several runs, the leader may have found another fault before.
        is_first = form is Form.ONE or (form is Form.TOGETHER and number == 0)
        try:
            with numbered(number) if form is Form.TOGETHER else contextlib.nullcontext():
                if form is Form.TOGETHER:
                    require_new(submission)
                found = self._plans.of(submission)
        except (ServiceError, ConfigurationError):
            if not is_first:
                raise NeedsLeader from None
            # Of an act, the leader looks for keys after it has read a file.
            if submission.client_key is not None and form is Form.ONE:
                await self._require_new(token.user, submission.client_key)
            raise
        # Such a number has more bits than the message can have.
        except OverflowError:
            raise NeedsLeader from None
        # The first request with a key may be on its way to a commit, and was judged then.
        if is_first and submission.client_key is None:
            check = partial(_require_now, plan=found.plan, user=token.user, form=form)
            # What is not known here is for the leader to judge.
            with contextlib.suppress(NeedsLeader, StoreError):
                await self._confirmed(check)
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


def _require_now(known: Submitters, plan: Plan, user: str, form: Form) -> None:
    """Raises ServiceError, NeedsLeader."""
    found = known.gate.users.get(user)
    if found is None:
        raise NeedsLeader
    if form is Form.ONE:
        require_time(plan, known.clock.now())
    with numbered(0) if form is Form.TOGETHER else contextlib.nullcontext():
        require_allowed(plan, found, known.secrets)
        with_gateway(plan, known.gateways)
