"""Submissions: how a run is made, and how a name is taken over.

A run is checked completely before anything live changes, then made durable. A name belongs to one
live run at a time. A user that replaces a run does not keep a request open: the client submits
again once the old run has ended. Until then, and for a while after, the name is reserved for that
client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from weakref import WeakValueDictionary

import msgspec

from common.refusals import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    ServiceError,
    Unauthenticated,
    Unprocessable,
)
from controller.aio import in_stretches
from controller.blobs import BlobStore
from controller.clock import Chance, Clock
from controller.lifecycle.model import Run, RunPolicy, RunState, RunType
from controller.lifecycle.runs.first_state import new_run
from controller.outputs.store import OutputStore
from controller.pipelines.admissions import NameTaken, ParentGone, PredecessorGone
from controller.pipelines.run_pipeline import RunPipeline
from controller.service.accounts.rights import require_band, require_control
from controller.service.accounts.secrets import SecretService
from controller.service.accounts.users import Gate
from controller.service.runs.blobs import require_uploads
from controller.service.runs.earlier import EarlierRuns
from controller.service.runs.names import Names
from controller.service.runs.predecessors import (
    MAX_TOGETHER,
    RunLookup,
    in_order,
    resolved,
    without_predecessors,
)
from controller.service.runs.shared_turns import Meet, at_once
from controller.service.runs.submission_stages import (
    Batch,
    Gateways,
    IfExists,
    KnownPlans,
    Member,
    Order,
    Ready,
    Request,
    Submission,
    Submitted,
    key_used,
    made_in_part,
    mapping_of,
    plan_of,
    waits_for_more,
    wanted_name,
)
from controller.service.runs.taken_outputs import taken
from controller.store.accounts import User
from controller.store.base import Store
from controller.store.errors import StoreError
from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.runs.masking import public
from fairlead.configuration.runs.plan import Defaults, Plan
from fairlead.model.service import ServicePolicy
from fairlead.model.statuses import FINAL_RUN_STATUSES
from fairlead.wire.errors import Refused

SAME_MOMENT_SECONDS = 1.0
"""A new run that has waited longer for something gets another time."""


@contextlib.contextmanager
def numbered(number: int) -> Iterator[None]:
    """Put the number of a submission before the fields of what is refused."""
    try:
        yield
    except (Refused, ConfigurationError) as error:
        error.field = f"runs[{number}].{error.field}" if error.field else f"runs[{number}]"
        raise


def _keys_of(request: Request) -> list[tuple[str, str]]:
    keys = [one.client_key for one in request.submissions]
    return [(request.user.name, key) for key in keys if key is not None]


def _shown(submission: Submission) -> Mapping[str, object]:
    """Return its configuration without secrets. Raises ConfigurationError."""
    if submission.plan is not None:
        return submission.plan.configuration
    return public(mapping_of(submission.configuration))


def _names_of(found: Sequence[Submitted | Exception | Ready]) -> list[str]:
    return [one.state.run.name for one in found if isinstance(one, Ready)]


class SubmissionService:
    def __init__(
        self,
        *,
        pipeline: RunPipeline,
        store: Store,
        clock: Clock,
        chance: Chance,
        defaults: Defaults,
        blobs: BlobStore,
        outputs: OutputStore,
        runs: RunLookup,
        gate: Gate,
        secrets: SecretService,
        gateways: Gateways,
    ) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._chance = chance
        self._blobs = blobs
        self._outputs = outputs
        self._runs = runs
        self._gate = gate
        self._secrets = secrets
        self._gateways = gateways
        self._submitting: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._names = Names(pipeline, clock, chance)
        self._earlier = EarlierRuns(store)
        self._plans = KnownPlans(partial(plan_of, defaults=defaults))

    async def submit(
        self, submission: Submission, *, user: User, meet: Meet = at_once
    ) -> Submitted:
        """Return the run that this submission made, or that the same `client_key` made before.

        With REPLACE it may be the old run, which is still ending. Raises ConfigurationError,
        Conflict (a live run has the name, or the parent has ended), Forbidden, NotFound (the
        parent, or a run that must come first), Unprocessable (no node could ever hold it),
        Unauthenticated (the user was removed meanwhile), StoreUnavailable.
        """
        client_key = submission.client_key
        if client_key is None:
            return await self._admit(submission, user, meet)
        # A client that had no answer sends the same key again while the first request still works.
        async with self._lock(user, client_key):
            earlier = await self._earlier.of(user.name, client_key)
            if earlier is not None:
                return self._made_before(earlier, submission)
            return await self._admit(submission, user, meet)

    async def submit_all(
        self, submissions: Sequence[Submission], *, user: User, meet: Meet = at_once
    ) -> list[Submitted | Exception]:
        """Return for each submission, in their order, what `submit` would return or raise.

        The new runs are committed in one turn. A refused one keeps none of the others from being
        made. Raises StoreUnavailable when client keys cannot be looked up.
        """
        keys = sorted({one.client_key for one in submissions if one.client_key is not None})
        async with AsyncExitStack() as alone:
            # In one order in all requests, so that no two of them wait for each other.
            for key in keys:
                await alone.enter_async_context(self._lock(user, key))
            found = await self._earlier.of_all([(user.name, key) for key in keys])
            batch = Batch({key: state for (_, key), state in found.items()})
            async for one in in_stretches(submissions):
                batch.add(one, await self._outcome(batch, one, user, meet))
            await meet()
            return batch.results(await self._make_all(batch.ready))

    async def _outcome(
        self, batch: Batch, one: Submission, user: User, meet: Meet
    ) -> Submitted | Exception | Ready:
        try:
            if one.client_key is not None:
                if (earlier := batch.earlier.get(one.client_key)) is not None:
                    return self._made_before(earlier, one)
                if (same := batch.same_key(one)) is not None:
                    return same
            return await self._ready(one, user, batch.names, meet)
        except (ServiceError, ConfigurationError, StoreError) as error:
            return error

    def waits_for_more(self, request: Request) -> bool:
        """Return whether `submit_planned` does not take this request."""
        return waits_for_more(request, self._gateways)

    async def submit_planned(
        self, requests: Sequence[Request], meet: Meet = at_once
    ) -> list[list[Submitted | Exception] | None]:
        """Return for each request, which may be of any users, what `submit` would return or raise
        for each of its submissions. None `waits_for_more`. None: nothing
        of the request was done, and it would hold up the others: submit it by itself.

        The new runs are committed in one turn. A refused one keeps none of the others from being
        made. Raises StoreUnavailable when client keys cannot be looked up, and LeaseTaken: then
        nothing was done.
        """
        async with AsyncExitStack() as locks:
            quick = [await self._takes_keys(request, locks) for request in requests]
            taken_up = [one for one, is_quick in zip(requests, quick, strict=True) if is_quick]
            keys = [key for request in taken_up for key in _keys_of(request)]
            earlier = await self._earlier.of_all(keys)
            outcomes: list[list[Submitted | Exception | Ready] | None] = []
            names: set[str] = set()
            async for request, is_quick in in_stretches(list(zip(requests, quick, strict=True))):
                found = await self._outcomes(request, earlier, names) if is_quick else None
                own = [] if found is None else _names_of(found)
                # The second one of a name is judged when the first one has it.
                if len(own) + len(names) > len(names.union(own)):
                    found = None
                names.update(() if found is None else own)
                outcomes.append(found)
            ready = [one for found in outcomes if found for one in found if isinstance(one, Ready)]
            await meet()
            made = await self._make_all_of_many(ready)
        return [
            None
            if found is None
            else [made[one.state.run.id] if isinstance(one, Ready) else one for one in found]
            for found in outcomes
        ]

    async def _takes_keys(self, request: Request, locks: AsyncExitStack) -> bool:
        """Return whether no other request works on the client keys of this one."""
        for user, key in _keys_of(request):
            # A lock is there while anybody has it or waits for it. To wait here with those of
            # others could be a circle.
            if (user, key) in self._submitting:
                return False
            await locks.enter_async_context(self._lock(request.user, key))
        return True

    async def _outcomes(
        self,
        request: Request,
        earlier: Mapping[tuple[str, str], RunState],
        names: Collection[str],
    ) -> list[Submitted | Exception | Ready]:
        """`names`: those that other requests of the message get."""
        found: list[Submitted | Exception | Ready] = []
        besides = set(names)
        async for one in in_stretches(request.submissions):
            key = (request.user.name, one.client_key or "")
            try:
                if key in earlier:
                    found.append(self._made_before(earlier[key], one))
                else:
                    ready = await self._ready(one, request.user, besides)
                    found.append(ready)
                    besides.add(ready.state.run.name)
            # Also one that nobody has thought of: it is no reason to refuse the others.
            except Exception as error:
                found.append(error)
        return found

    async def _make_all_of_many(self, ready: Sequence[Ready]) -> dict[str, Submitted | Exception]:
        """As `_make_all`, for runs of several users."""
        made: dict[str, Submitted | Exception] = {}
        present = []
        for one in ready:
            try:
                self._gate.require_present(one.order.user)
                present.append(one)
            except Unauthenticated as error:
                made[one.state.run.id] = error
        refusals = await self._pipeline.admit_all([one.state for one in present])
        for one, refusal in zip(present, refusals, strict=True):
            try:
                made[one.state.run.id] = await self._result(one, refusal)
            except Exception as error:
                # The run that was stored is the answer, also if it can't be read again.
                made[one.state.run.id] = Submitted(state=one.state) if refusal is None else error
        return made

    def _lock(self, user: User, client_key: str) -> asyncio.Lock:
        return self._submitting.setdefault((user.name, client_key), asyncio.Lock())

    async def submit_together(
        self, submissions: Sequence[Submission], *, user: User, meet: Meet = at_once
    ) -> tuple[RunState, ...]:
        """Submit several runs as one act: all of them, or none. In `after`, a name among them means
        that run. Return their states in the order of the submissions.

        The same client keys give the same runs again. Raises as `submit` does, with the number of
        the submission in the field.
        """
        require_number(submissions)
        keys = sorted(_keys_of_act(submissions))
        async with AsyncExitStack() as alone:
            # As in `submit_all`: another request may have one of these keys alone.
            for key in keys:
                await alone.enter_async_context(self._lock(user, key))
            return await self._admit_together(submissions, user, meet)

    async def _admit_together(
        self, submissions: Sequence[Submission], user: User, meet: Meet
    ) -> tuple[RunState, ...]:
        ready = [await self._member(n, one, user) for n, one in enumerate(submissions)]
        earlier = [one.earlier for one in ready if one.earlier is not None]
        if len(earlier) == len(ready):
            return tuple(earlier)
        for number, one in enumerate(ready):
            if one.earlier is not None:
                with numbered(number):
                    raise made_in_part(one.earlier.run.name)
        order = in_order(
            [one.name for one in ready], [one.order.plan.policy.after for one in ready]
        )
        made: dict[str, RunState] = {}
        for number in order:
            name, asked = ready[number].name, ready[number].order
            with numbered(number):
                after = await resolved(asked.plan, self._runs, user, together=made)
                outputs = await taken(
                    asked.plan, after, self._runs, user, self._outputs, together=made
                )
                asked = msgspec.structs.replace(asked, after=after, outputs_from=outputs)
                made[name] = self._new(name, asked)
                self._require_place(made[name])
                await self._gateways.claim(made[name].run.service, name)
        await meet()
        self._gate.require_present(user)
        try:
            await self._pipeline.admit_together([made[ready[number].name] for number in order])
        except NameTaken as error:
            raise self._names.taken(str(error), user) from None
        # Each has ended meanwhile.
        except ParentGone as error:
            raise await self._parent_ended(str(error)) from None
        except PredecessorGone:
            return await self._admit_together(submissions, user, meet)
        return tuple([await self._runs.get(made[one.name].run.id) for one in ready])

    async def _member(self, number: int, submission: Submission, user: User) -> Member:
        """Return what is known of one of several submissions before their runs are made."""
        with numbered(number):
            require_new(submission)
            plan = self._allowed(self._plan_of(submission), user)
            name = self._names.chosen(wanted_name(submission, plan))
            parent = await self._parent(submission.parent, user)
            order = Order(plan=plan, user=user, submission=submission, parent=parent)
            if submission.client_key is not None:
                earlier = await self._earlier.of(user.name, submission.client_key)
                if earlier is not None:
                    before = self._made_before(earlier, submission)
                    return Member(name=name, order=order, earlier=before.state)
            require_time(plan, self._clock.now())
            live_id = self._names.live_id(name)
            if live_id is not None or self._names.takeovers.is_anothers(
                name, (user.name, submission.client_key), live_id
            ):
                raise self._names.taken(name, user)
            await require_uploads(self._blobs, plan, user)
            return Member(name=name, order=order)

    def would_make(self, submission: Submission, *, user: User) -> RunState:
        """Return the run that `submit` would make. Nothing is stored, no name is taken, and no
        upload is needed.

        Raises ConfigurationError, Invalid, Unprocessable (the band was not granted, or no gateway
        can serve it).
        """
        plan = self._plan_of(submission)
        require_time(plan, self._clock.now())
        require_allowed(plan, user, self._secrets)
        name = self._names.chosen(wanted_name(submission, plan))
        plan = self._gateways.chosen(plan, self._names.live_run_of(user, name))
        order = Order(
            plan=without_predecessors(plan), user=user, submission=submission, parent=None
        )
        return self._new(name, order)

    def planned(self, submission: Submission, *, user: User, present: Run | None = None) -> Plan:
        """Return the plan of a submission; nothing is stored. `present`: the live service that it
        changes. Raises as `would_make` does."""
        return self._allowed(self._plan_of(submission), user, present)

    async def require_others(self, submission: Submission, user: User) -> None:
        """Raise NotFound or another refusal unless the runs are there that a submission waits for,
        and those whose outputs it takes. Raises StoreUnavailable."""
        plan = self._plan_of(submission)
        after = await resolved(plan, self._runs, user)
        await taken(plan, after, self._runs, user, self._outputs)

    async def require_uploads(self, plan: Plan, user: User) -> None:
        """Raise Conflict unless all uploads of the plan are there, and Unavailable if a bucket does
        not tell."""
        await require_uploads(self._blobs, plan, user)

    def _made_before(self, found: RunState, submission: Submission) -> Submitted:
        if found.run.configuration != _shown(submission):
            raise key_used(found.run.name)
        return Submitted(state=self._pipeline.runs.get(found.run.id, found))

    def _plan_of(self, submission: Submission) -> Plan:
        return self._plans.of(submission) if submission.plan is None else submission.plan

    async def _admit(self, submission: Submission, user: User, meet: Meet) -> Submitted:
        ready = await self._ready(submission, user, meet=meet)
        if isinstance(ready, Submitted):
            return ready
        await meet()
        made = (await self._make_all([ready]))[ready.state.run.id]
        if isinstance(made, Exception):
            raise made
        return made

    async def _ready(
        self,
        submission: Submission,
        user: User,
        besides: Collection[str] = (),
        meet: Meet = at_once,
    ) -> Submitted | Ready:
        """Check everything before anything changes, but for the end of a run to be replaced.
        `besides`: names that runs before this one get in the same turn; a made-up name is none of
        them."""
        plan = self._plan_of(submission)
        require_time(plan, self._clock.now())
        plan = self._allowed(plan, user)
        parent = await self._parent(submission.parent, user)
        wanted = wanted_name(submission, plan)
        name = self._names.chosen(wanted, besides)
        after = await resolved(plan, self._runs, user, again=submission.again)
        order = Order(
            plan=plan,
            user=user,
            submission=submission,
            parent=parent,
            after=after,
            outputs_from=await taken(plan, after, self._runs, user, self._outputs),
        )
        state = self._new(name, order)
        self._require_place(state)
        await require_uploads(self._blobs, plan, user)
        if submission.if_exists is IfExists.REPLACE:
            # A stop is committed with the runs of others. Nothing is awaited between the next look
            # at who may have the name and the stop.
            await meet()
        if wanted is None and self._names.live_id(name) is not None:
            # Another request made up the same name meanwhile.
            name = self._names.chosen(None, besides)
            state = self._new(name, order)
        owner = (user.name, submission.client_key)
        live_id = self._names.live_id(name)
        if self._names.takeovers.is_anothers(name, owner, live_id):
            raise Conflict(
                f"the live run {name} is being replaced by another submission; give another name",
                code="name_taken",
                field="name",
            )
        if live_id is not None and submission.if_exists is IfExists.KEEP:
            return Submitted(state=await self._kept(name, user), kept=True)
        if live_id is not None and submission.if_exists is IfExists.REPLACE:
            self._names.require_other_family(live_id, parent)
            ending = await self._names.end_live(name, live_id, owner, user)
            if ending is not None:
                return Submitted(state=ending, ending=True)
        if self._names.live_id(name) is not None:
            raise self._names.taken(name, user)
        await self._gateways.claim(plan.service, name)
        # A gateway, or the end of another run, took its time.
        if self._clock.now() - state.run.submitted_at > SAME_MOMENT_SECONDS:
            state = self._new(name, order)
        return Ready(order=order, state=state)

    def _allowed(self, plan: Plan, user: User, present: Run | None = None) -> Plan:
        """Return the plan with its gateway, if this user may have it."""
        require_allowed(plan, user, self._secrets)
        return self._gateways.chosen(plan, present)

    async def _make_all(self, ready: Sequence[Ready]) -> dict[str, Submitted | Exception]:
        """Make the runs in one turn. Return the result of each by the run's id. Raises
        Unauthenticated if their user was removed while they were checked."""
        for one in ready:
            self._gate.require_present(one.order.user)
        refusals = await self._pipeline.admit_all([one.state for one in ready])
        return {
            one.state.run.id: await self._result(one, refusal)
            for one, refusal in zip(ready, refusals, strict=True)
        }

    async def _result(self, ready: Ready, refusal: Exception | None) -> Submitted | Exception:
        run, user = ready.state.run, ready.order.user
        # Name and parent were checked before the gateway was asked, which takes time.
        if isinstance(refusal, NameTaken):
            is_made_up = wanted_name(ready.order.submission, ready.order.plan) is None
            # A gateway has claimed a host name for that of a service.
            if is_made_up and run.service is None:
                return await self._made_again(ready, self._names.chosen(None))
            has_name = self._names.live_id(run.name) is not None
            if has_name and ready.order.submission.if_exists is IfExists.KEEP:
                return await self._kept_instead(run.name, user)
            return self._names.taken(run.name, user)
        if isinstance(refusal, ParentGone):
            return await self._parent_ended(run.parent_id or "")
        if isinstance(refusal, PredecessorGone):
            # It ended since it was looked up, and how it ended is stored now.
            return await self._made_again(ready, run.name)
        if refusal is not None:
            return refusal
        self._names.takeovers.end(run.name, (user.name, run.client_key))
        return Submitted(state=await self._runs.get(run.id))

    async def _made_again(self, ready: Ready, name: str) -> Submitted | Exception:
        order = await self._looked_up_again(ready.order)
        state = self._new(name, order)
        return (await self._make_all([Ready(order=order, state=state)]))[state.run.id]

    async def _looked_up_again(self, order: Order) -> Order:
        again = order.submission.again
        after = await resolved(order.plan, self._runs, order.user, known=order.after, again=again)
        return msgspec.structs.replace(order, after=after)

    def _new(self, name: str, order: Order) -> RunState:
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
            after=order.after,
            outputs_from=order.outputs_from,
            service=plan.service,
            sweep=plan.sweep,
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

    async def _kept_instead(self, name: str, user: User) -> Submitted | Exception:
        """Two that would keep the run were judged at the same time, and the other one made it."""
        try:
            return Submitted(state=await self._kept(name, user), kept=True)
        except ServiceError as error:
            return error

    async def _kept(self, name: str, user: User) -> RunState:
        if self._names.live_id(name) not in self._pipeline.runs:
            # Its name is taken before it is committed, and until then nobody finds it.
            await self._pipeline.settled()
        live = self._pipeline.runs.get(self._names.live_id(name) or "")
        if live is None:
            raise self._names.taken(name, user)
        require_control(user, live.run)
        return live

    def _require_place(self, state: RunState) -> None:
        never = self._pipeline.scheduler.why_never(state)
        if never is not None:
            field, sentence = never
            raise Unprocessable(sentence, code="cannot_fit", field=field)

    def why_not_named_so(self, state: RunState, user: User) -> str | None:
        """Return why `submit` would refuse the run's name; None: it is free, or the live service
        with this name would be changed in place."""
        run = state.run
        if self._names.live_id(run.name) is None:
            return None
        live = self._names.live_run_of(user, run.name)
        if live is not None and live.service is not None and run.service is not None:
            return None
        return str(self._names.taken(run.name, user))

    def why_not_changed(self, state: RunState, user: User) -> tuple[str, str] | None:
        """Return the field and the sentence by which the live service with the run's name would
        refuse to become this run."""
        run = state.run
        live = self._names.live_run_of(user, run.name)
        if live is None or live.service is None or run.service is None:
            return None
        return why_not_in_place(live, run.type, run.policy, run.service)


def require_number(submissions: Sequence[Submission]) -> None:
    """Raise Invalid unless they can be submitted as one act."""
    if not 1 <= len(submissions) <= MAX_TOGETHER:
        raise Invalid(f"give 1 to {MAX_TOGETHER} runs", field="runs")


def _keys_of_act(submissions: Sequence[Submission]) -> set[str]:
    """Return the client keys of an act. Raises Invalid for one that stands twice: each of its runs
    is new."""
    found: set[str] = set()
    for number, one in enumerate(submissions):
        if one.client_key in found:
            with numbered(number):
                raise Invalid(
                    "another one of these runs has this client key; give each a key of its own",
                    field="client_key",
                )
        if one.client_key is not None:
            found.add(one.client_key)
    return found


def require_new(submission: Submission) -> None:
    """Raise Invalid for one of an act that takes a live run into account."""
    if submission.if_exists is not IfExists.ERROR:
        raise Invalid("several runs at once are only submitted anew", field="if_exists")


def require_time(plan: Plan, now: float) -> None:
    """Raise Invalid for a run that could not start in time (docs/rules.md 4.18)."""
    latest = plan.policy.start_before
    if latest is not None and latest.at is not None and latest.at <= now:
        raise Invalid(
            f"{latest.written} has passed: give a later time, or a duration from the "
            f"submission such as 4h",
            field="start_before",
        )


def require_allowed(plan: Plan, user: User, secrets: SecretService) -> None:
    """Raise Unprocessable for what this user may not have, in a preview, too."""
    require_band(user, plan.policy.band)
    secrets.require(plan.specs, user)


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
