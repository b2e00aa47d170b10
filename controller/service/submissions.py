"""Submissions: how a run is made, how its uploads arrive, and how a name is taken over.

A run is checked completely before anything live changes, then made durable. A name belongs to one
live run at a time. A user that replaces a run does not keep a request open: the client submits
again once the old run has ended. Until then, and for a while after, the name is reserved for that
client.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterable, Collection, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Protocol, TypeAlias
from weakref import WeakValueDictionary

import msgspec

from controller.blobs import BlobDamaged, BlobStore, BlobTooLarge, Part, PartsMissing, TooManyBlobs
from controller.clock import Chance, Clock
from controller.configuration.names import generate_name, is_run_name
from controller.configuration.parse import parse
from controller.configuration.plan import Defaults, Plan, public, to_run
from controller.lifecycle.model import Run, RunPolicy, RunState, RunType
from controller.lifecycle.reports import StopRequested
from controller.lifecycle.services.policy import ServicePolicy
from controller.lifecycle.statuses import FINAL_RUN_STATUSES
from controller.lifecycle.submission import new_run
from controller.pipelines.live_state import ParentGone
from controller.pipelines.run_pipeline import NameTaken, RunPipeline
from controller.service.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Unavailable,
    Unprocessable,
)
from controller.service.job_access import Runs
from controller.service.secrets import SecretService
from controller.service.ssh_keys import user_keys
from controller.service.users import require_band, require_control, sees_all
from controller.store.base import Store, User

KEPT_SECONDS = 30.0
"""Seconds after the end of the old run in which the second request must come."""
Owner: TypeAlias = tuple[str, str | None]
"""A user, and the client key of the submission."""


class _Takeover(msgspec.Struct):
    owner: Owner
    run_id: str
    free_at: float | None = None
    """Set when the old run is seen to have ended."""


class Takeovers:
    """The reserved names. They are in memory only: after a restart of the controller the name is
    free, or taken by the first that asks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_name: dict[str, _Takeover] = {}

    def begin(self, name: str, owner: Owner, run_id: str) -> None:
        """Reserve the name for this owner; `run_id`: the run that has the name now."""
        self._by_name[name] = _Takeover(owner=owner, run_id=run_id)

    def end(self, name: str, owner: Owner) -> None:
        known = self._by_name.get(name)
        if known is not None and known.owner == owner:
            del self._by_name[name]

    def is_anothers(self, name: str, owner: Owner, live_id: str | None) -> bool:
        """Return whether the name is reserved for another owner; `live_id`: the run that has the
        name now, if any."""
        known = self._by_name.get(name)
        if known is None or known.owner == owner:
            return False
        now = self._clock.now()
        if known.free_at is None and known.run_id != live_id:
            known.free_at = now + KEPT_SECONDS
        if known.free_at is not None and now >= known.free_at:
            del self._by_name[name]
            return False
        return True


_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class BlobService:
    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    async def put(self, digest: str, pieces: AsyncIterable[bytes], *, user: User) -> int:
        """Store an upload and return its size. Raises Invalid, Unprocessable, Unavailable."""
        _check(digest)
        with _refusals():
            return await self._blobs.put(digest, pieces, user=user.name)

    async def missing(self, digest: str, parts: Sequence[Part], *, user: User) -> list[str]:
        """Return the parts of a new upload that no upload of this user has. Raises Invalid."""
        _check(digest)
        return await self._blobs.missing(parts, user=user.name)

    async def put_parts(
        self,
        digest: str,
        parts: Sequence[Part],
        sent: Collection[str],
        pieces: AsyncIterable[bytes],
        *,
        user: User,
    ) -> int:
        """Store an upload of which only the parts in `sent` come; return its size.

        Raises Invalid, Conflict, Unprocessable, Unavailable.
        """
        _check(digest)
        with _refusals():
            return await self._blobs.put_parts(digest, parts, sent, pieces, user=user.name)

    async def size(self, digest: str, *, user: User) -> int:
        """Return the bytes of an upload of this user. Raises Invalid, NotFound."""
        _check(digest)
        size = await self._blobs.size_for(digest, user.name)
        if size is None:
            raise NotFound(f"you have no upload {digest}")
        return size


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except BlobTooLarge as error:
        raise Unprocessable(str(error), code="too_large") from None
    except TooManyBlobs as error:
        raise Unprocessable(str(error), code="too_many_uploads") from None
    except BlobDamaged as error:
        raise Invalid(str(error), code="damaged") from None
    except PartsMissing as error:
        raise Conflict(str(error), code="parts_missing") from None
    except OSError as error:
        raise Unavailable(f"the upload cannot be stored: {error.strerror}") from error


def _check(digest: str) -> None:
    if not _DIGEST.fullmatch(digest):
        raise Invalid("an upload is named by its sha256: 64 hexadecimal digits", field="blob")


class IfExists(StrEnum):
    """The reaction to a live run that already has the name."""

    ERROR = "error"
    KEEP = "keep"
    REPLACE = "replace"


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A user's submission. `configuration` is the YAML's content; `parent` is the id or name of a
    run."""

    configuration: object
    name: str | None = None
    client_key: str | None = None
    ssh_keys: tuple[str, ...] = ()
    if_exists: IfExists = IfExists.ERROR
    parent: str | None = None


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """The result. `kept`: another submission made this run, which lives and keeps its name.
    `ending`: this run is being stopped; the same submission makes the new run once it has ended."""

    state: RunState
    kept: bool = False
    ending: bool = False


class _Order(msgspec.Struct, frozen=True, kw_only=True):
    plan: Plan
    user: User
    submission: Submission
    parent: RunState | None


class Gateways(Protocol):
    """The gateways, as a submission needs them."""

    def chosen(self, plan: Plan, present: Run | None = None) -> Plan:
        """Return the plan with its gateway's name. Raises Unprocessable."""

    async def claim(self, service: ServicePolicy | None, name: str) -> None:
        """Reserve the host name of a service. Raises Unavailable, Conflict."""


class SubmissionService:
    def __init__(
        self,
        *,
        turns: RunPipeline,
        store: Store,
        clock: Clock,
        chance: Chance,
        defaults: Defaults,
        blobs: BlobStore,
        runs: Runs,
        secrets: SecretService,
        gateways: Gateways,
    ) -> None:
        self._turns = turns
        self._store = store
        self._clock = clock
        self._chance = chance
        self._defaults = defaults
        self._blobs = blobs
        self._runs = runs
        self._secrets = secrets
        self._gateways = gateways
        self._submitting: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._takeovers = Takeovers(clock)

    async def submit(self, submission: Submission, *, user: User) -> Submitted:
        """Return the run that this submission made, or that the same `client_key` made before.

        With REPLACE it may be the old run, which is still ending. Raises ConfigurationError,
        Conflict (a live run has the name, or the parent has ended), Forbidden, NotFound (the
        parent), Unprocessable (no node could ever hold it), StoreUnavailable.
        """
        written = _mapping(submission.configuration)
        client_key = submission.client_key
        if client_key is None:
            return await self._admit(submission, written, user)
        lock = self._submitting.setdefault((user.name, client_key), asyncio.Lock())
        async with lock:
            earlier = await self._submitted(written, user, client_key)
            if earlier is not None:
                return Submitted(state=earlier)
            return await self._admit(submission, written, user)

    def would_make(self, submission: Submission, *, user: User) -> RunState:
        """Return the run that `submit` would make. Nothing is stored, no name is taken, and no
        upload is needed.

        Raises ConfigurationError, Invalid, Unprocessable (the band was not granted, or no gateway
        can serve it).
        """
        written = _mapping(submission.configuration)
        plan = to_run(parse(written), written, self._defaults, user_keys(submission.ssh_keys))
        require_band(user, plan.policy.band)
        self._secrets.require(plan.specs, user)
        name = self._name(_wanted_name(submission, plan))
        plan = self._gateways.chosen(plan, self._live_run_of(user, name))
        order = _Order(plan=plan, user=user, submission=submission, parent=None)
        return self._new(name, order)

    def planned(self, submission: Submission, *, user: User, present: Run | None = None) -> Plan:
        """Return the plan of a submission; nothing is stored. `present`: the live service that it
        changes. Raises as `would_make` does."""
        written = _mapping(submission.configuration)
        plan = to_run(parse(written), written, self._defaults, user_keys(submission.ssh_keys))
        require_band(user, plan.policy.band)
        self._secrets.require(plan.specs, user)
        return self._gateways.chosen(plan, present)

    async def require_uploads(self, plan: Plan, user: User) -> None:
        """Raise Conflict unless all uploads of the plan are there."""
        await self._require_blobs(plan, user)

    async def _submitted(
        self, written: dict[str, object], user: User, client_key: str
    ) -> RunState | None:
        found = await self._store.find_submission(user.name, client_key)
        if found is None:
            return None
        if found.run.configuration != public(written):
            raise Conflict(
                f"the client key was used for another configuration (run {found.run.name}); give "
                f"each submission a key of its own",
                code="client_key_used",
                field="client_key",
            )
        return self._turns.runs.get(found.run.id, found)

    async def _admit(
        self, submission: Submission, written: dict[str, object], user: User
    ) -> Submitted:
        plan = to_run(parse(written), written, self._defaults, user_keys(submission.ssh_keys))
        require_band(user, plan.policy.band)
        self._secrets.require(plan.specs, user)
        plan = self._gateways.chosen(plan)
        parent = await self._parent(submission.parent, user)
        name = self._name(_wanted_name(submission, plan))
        order = _Order(plan=plan, user=user, submission=submission, parent=parent)
        self._require_place(self._new(name, order))
        await self._require_blobs(plan, user)
        owner = (user.name, submission.client_key)
        live_id = self._live_id(name)
        if self._takeovers.is_anothers(name, owner, live_id):
            raise Conflict(
                f"the live run {name} is being replaced by another submission; give another name",
                code="name_taken",
                field="name",
            )
        if live_id is not None and submission.if_exists is IfExists.KEEP:
            return Submitted(state=await self._kept(name, user), kept=True)
        if live_id is not None and submission.if_exists is IfExists.REPLACE:
            self._require_other_family(live_id, parent)
            ending = await self._end(name, live_id, owner, user)
            if ending is not None:
                return Submitted(state=ending, ending=True)
        made = await self._make(name, order)
        self._takeovers.end(name, owner)
        return made

    async def _make(self, name: str, order: _Order) -> Submitted:
        state = self._new(name, order)
        if self._live_id(name) is not None:
            raise self._taken(name, order.user)
        await self._gateways.claim(state.run.service, name)
        try:
            await self._turns.admit(state)
        except NameTaken:
            raise self._taken(name, order.user) from None
        except ParentGone:
            raise await self._parent_ended(state.run.parent_id or "") from None
        return Submitted(state=await self._runs.get(state.run.id))

    def _new(self, name: str, order: _Order) -> RunState:
        plan, parent = order.plan, order.parent
        return new_run(
            name=name,
            user=order.user.name,
            groups=plan.groups,
            now=self._clock.now(),
            new_id=self._chance.new_id,
            type=plan.type,
            policy=plan.policy,
            configuration=plan.configuration,
            client_key=order.submission.client_key,
            parent_id=None if parent is None else parent.run.id,
            service=plan.service,
        )

    async def _parent(self, key: str | None, user: User) -> RunState | None:
        if key is None:
            return None
        try:
            parent = await self._runs.get(key)
            require_control(user, parent.run)
        except (NotFound, Forbidden) as error:
            error.field = "parent"
            raise
        if parent.run.status in FINAL_RUN_STATUSES:
            raise await self._parent_ended(parent.run.id)
        return parent

    async def _parent_ended(self, run_id: str) -> Conflict:
        parent = (await self._runs.get(run_id)).run
        return Conflict(
            f"the parent {parent.name} has already ended ({parent.status})",
            code="parent_ended",
            field="parent",
        )

    async def _kept(self, name: str, user: User) -> RunState:
        state = await self._runs.get(name)
        require_control(user, state.run)
        return state

    async def _end(self, name: str, live_id: str, owner: Owner, user: User) -> RunState | None:
        """Make this run end; None when it has already ended."""
        if live_id not in self._turns.runs:
            await self._turns.settled()
        live = self._turns.runs.get(live_id)
        if live is None:
            return None
        require_control(user, live.run)
        self._takeovers.begin(name, owner, live_id)
        await self._turns.report(StopRequested(run_id=live_id, abort=False, by=user.name))
        return self._turns.runs.get(live_id) if self._live_id(name) == live_id else None

    def _require_other_family(self, replaced: str, parent: RunState | None) -> None:
        """Raise Conflict if the parent would end with the run that its child replaces."""
        ancestor = parent
        while ancestor is not None:
            if ancestor.run.id == replaced:
                raise Conflict(
                    f"the run that is to be replaced is {ancestor.run.name}, with which the parent "
                    f"would end; give another parent or another name",
                    code="parent_replaced",
                    field="parent",
                )
            ancestor = self._turns.runs.get(ancestor.run.parent_id or "")

    def _require_place(self, state: RunState) -> None:
        never = self._turns.scheduler.why_never(state)
        if never is not None:
            field, sentence = never
            raise Unprocessable(sentence, code="cannot_fit", field=field)

    async def _require_blobs(self, plan: Plan, user: User) -> None:
        for digest in dict.fromkeys(blob for spec in plan.specs for blob in spec.blobs):
            if await self._blobs.size_for(digest, user.name) is None:
                raise Conflict(
                    f"the upload {digest} of {user.name} is missing or expired; apply the run "
                    f"again",
                    code="not_uploaded",
                    field="repos" if any(spec.repos for spec in plan.specs) else "files",
                )

    def _name(self, wanted: str | None) -> str:
        if wanted is None:
            return generate_name(self._pick, lambda name: self._live_id(name) is not None)
        if not is_run_name(wanted):
            raise Invalid(
                f"{wanted!r} is not a run name: a lowercase letter, then up to 40 lowercase "
                f"letters, digits and hyphens",
                field="name",
            )
        return wanted

    def _taken(self, name: str, user: User) -> Conflict:
        live = self._turns.runs.get(self._live_id(name) or "")
        if live is not None and not sees_all(user) and live.run.user != user.name:
            return Conflict(
                f"a live run of {live.run.user} is named {name} already; give another name",
                code="name_taken",
                field="name",
            )
        known = "being submitted" if live is None else f"{live.run.status}, id {live.run.id}"
        return Conflict(
            f"a live run is named {name} already ({known}); stop it (`fairlead stop {name}`), "
            f"give another name, or say --if-exists keep or replace",
            code="name_taken",
            field="name",
        )

    def why_not_named_so(self, state: RunState, user: User) -> str | None:
        """Return why `submit` would refuse the run's name; None: it is free, or the live service
        with this name would be changed in place."""
        run = state.run
        if self._live_id(run.name) is None:
            return None
        live = self._live_run_of(user, run.name)
        if live is not None and live.service is not None and run.service is not None:
            return None
        return str(self._taken(run.name, user))

    def why_not_changed(self, state: RunState, user: User) -> tuple[str, str] | None:
        """Return the field and the sentence by which the live service with the run's name would
        refuse to become this run."""
        run = state.run
        live = self._live_run_of(user, run.name)
        if live is None or live.service is None or run.service is None:
            return None
        return why_not_in_place(live, run.type, run.policy, run.service)

    def _live_run_of(self, user: User, name: str) -> Run | None:
        """Return the live run with this name, which the user's submission would change in place."""
        live = self._turns.runs.get(self._live_id(name) or "")
        return live.run if live is not None and live.run.user == user.name else None

    def _live_id(self, name: str) -> str | None:
        return self._turns.live_run_named(name)

    def _pick(self, below: int) -> int:
        return int(self._chance.new_id(), 16) % below


def why_not_in_place(
    present: Run, type: RunType, policy: RunPolicy, service: ServicePolicy | None
) -> tuple[str, str] | None:
    """Return the first field that a live service cannot change in place, and a sentence."""
    for field, before, after in (
        ("type", present.type, type),
        ("band", present.policy.band, policy.band),
        ("gateway", _gateway(present.service), _gateway(service)),
        ("on_parent_end", present.policy.on_parent_end, policy.on_parent_end),
    ):
        if before != after:
            return field, (
                f"{field} cannot change in place from {before} to {after}: replace the run with "
                f"--if-exists replace"
            )
    return None


def _gateway(service: ServicePolicy | None) -> str:
    return (service and service.gateway) or "none"


def _wanted_name(submission: Submission, plan: Plan) -> str | None:
    """Return the requested name. An empty name is an error, not a missing name: it may come from a
    variable that is not set."""
    return plan.name if submission.name is None else submission.name


def _mapping(configuration: object) -> dict[str, object]:
    """Return the configuration as a mapping; `parse` refuses anything else."""
    if not isinstance(configuration, dict):
        parse(configuration)
    assert isinstance(configuration, dict)
    return configuration
