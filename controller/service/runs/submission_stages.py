"""A submission on its way: what a user hands in, what it is checked as, and what comes of it."""

import asyncio
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

import msgspec

from common.refusals import Conflict, Unavailable, Unprocessable
from controller.lifecycle.model import Run, RunState, TakenOutputs
from controller.lifecycle.predecessors import Predecessor
from controller.service.ssh_keys import user_keys
from controller.store.accounts import User
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.plan import Defaults, Plan, kept_for_next, to_run
from fairlead.configuration.text.plain import plain
from fairlead.model.service import ServicePolicy

P = TypeVar("P")

TURN_SECONDS = 1.0
"""So long a text waits for those before it. Its client may send the content instead."""


class IfExists(StrEnum):
    """The reaction to a live run that already has the name."""

    ERROR = "error"
    KEEP = "keep"
    REPLACE = "replace"


class Texts:
    """Reads the texts of files, one at a time: each thread that reads takes turns with the loop's,
    and uploads need threads too."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def read(self, text: str) -> dict[str, object]:
        """Return the configuration. Raises NotPlain, SourceError, Unavailable."""
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._turn.acquire()
        except TimeoutError:
            raise Unavailable(
                "many texts wait to be read: try again, or send the content as the `configuration` "
                "of POST /v1/runs"
            ) from None
        try:
            # A short text takes as long as the rest of the request, a long one far longer.
            return await asyncio.to_thread(plain, text)
        finally:
            self._turn.release()


class SetsAgain(msgspec.Struct, frozen=True, kw_only=True):
    """These sets of a sweep that has ended are submitted again; they become the sets of the new run
    in the order of their numbers."""

    state: RunState
    numbers: tuple[int, ...]


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A user's submission. `configuration` is the YAML's content; `parent` is the id or name of a
    run. `plan`: the one that another controller has made; `configuration` is the plan's then."""

    configuration: object
    name: str | None = None
    client_key: str | None = None
    ssh_keys: tuple[str, ...] = ()
    if_exists: IfExists = IfExists.ERROR
    parent: str | None = None
    starts_again: bool = False
    again: SetsAgain | None = None
    plan: Plan | None = None


class Form(StrEnum):
    """How a request submits its runs."""

    ONE = "one"
    SEVERAL = "several"
    """Each has an answer of its own."""
    TOGETHER = "together"
    """All of them, or none."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A user's request, which another controller has read: each submission has its plan."""

    user: User
    submissions: tuple[Submission, ...]
    form: Form = Form.ONE


class Gateways(Protocol):
    """The gateways, as a submission needs them."""

    def chosen(self, plan: Plan, present: Run | None = None) -> Plan:
        """Return the plan with its gateway's name. Raises Unprocessable."""

    async def claim(self, service: ServicePolicy | None, name: str) -> None:
        """Reserve the host name of a service. Raises Unavailable, Conflict."""


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """The result. `kept`: another submission made this run, which lives and keeps its name.
    `ending`: this run is being stopped; the same submission makes the new run once it has ended."""

    state: RunState
    kept: bool = False
    ending: bool = False


class Order(msgspec.Struct, frozen=True, kw_only=True):
    plan: Plan
    user: User
    submission: Submission
    parent: RunState | None
    after: tuple[Predecessor, ...] = ()
    outputs_from: tuple[TakenOutputs, ...] = ()


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One of several submissions. `earlier`: the run that it made before."""

    name: str
    order: Order
    earlier: RunState | None = None


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """A submission that was checked, and its run, which nothing knows yet."""

    order: Order
    state: RunState


class Batch:
    """The submissions of one request so far. `earlier`: the runs that client keys made before."""

    def __init__(self, earlier: Mapping[str, RunState]) -> None:
        self.earlier = earlier
        self.ready: list[Ready] = []
        self.names: set[str] = set()
        """Those of the runs that are ready."""
        self._outcomes: list[Submitted | Exception | Ready] = []
        self._by_key: dict[str, tuple[Submission, Submitted | Exception | Ready]] = {}

    def add(self, one: Submission, outcome: Submitted | Exception | Ready) -> None:
        self._outcomes.append(outcome)
        if one.client_key is not None and one.client_key not in self._by_key:
            self._by_key[one.client_key] = (one, outcome)
            self._note(outcome)
        elif one.client_key is None:
            self._note(outcome)

    def _note(self, outcome: Submitted | Exception | Ready) -> None:
        if isinstance(outcome, Ready):
            self.ready.append(outcome)
            self.names.add(outcome.state.run.name)

    def same_key(self, one: Submission) -> Submitted | Exception | Ready | None:
        """Return the outcome of an earlier submission of this request with the same client key.
        Raises Conflict when that had another configuration."""
        before, outcome = self._by_key.get(one.client_key or "", (None, None))
        if before is not None and before.configuration != one.configuration:
            raise key_used(before.name or "in this request")
        return outcome

    def results(self, made: Mapping[str, Submitted | Exception]) -> list[Submitted | Exception]:
        return [made[one.state.run.id] if isinstance(one, Ready) else one for one in self._outcomes]


_MAX_KNOWN = 32
_MAX_KNOWN_BYTES = 64 << 10
"""A larger configuration is planned each time."""


class KnownPlans(Generic[P]):
    """The plans of the configurations that came last; `plan` makes one, in any form.

    Programs submit one configuration many times, under other names: to read and to plan it is a
    sixth of the controller's time for a run. A plan depends on nothing else, and nobody changes it.
    """

    def __init__(self, plan: Callable[[Submission], P]) -> None:
        self._plan = plan
        self._known: dict[tuple[bytes, tuple[str, ...], bool], P] = {}

    def of(self, submission: Submission) -> P:
        """Return the plan. Raises ConfigurationError."""
        try:
            # Not JSON, in which infinity is null; not `==`, for which 1 is true.
            written = msgspec.msgpack.encode(submission.configuration)
        # Numbers of more than 64 bits, and nothing that can be planned.
        except (OverflowError, RecursionError, TypeError, ValueError):
            return self._plan(submission)
        if len(written) > _MAX_KNOWN_BYTES:
            return self._plan(submission)
        key = (written, submission.ssh_keys, submission.starts_again)
        plan = self._known.pop(key, None)
        if plan is None:
            plan = self._plan(submission)
        self._known[key] = plan
        if len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        return plan


def plan_of(submission: Submission, defaults: Defaults) -> Plan:
    """Return the plan. It depends on nothing that a controller knows but these defaults. Raises
    ConfigurationError, Invalid."""
    written = mapping_of(submission.configuration)
    keys = user_keys(submission.ssh_keys)
    plan = to_run(parse(written), written, defaults, keys)
    return kept_for_next(plan) if submission.starts_again else plan


def waits_for_more(request: Request, gateways: Gateways) -> bool:
    """Return whether more than this controller's memory and its database may be asked, or changed,
    before the runs of a request with plans are made."""
    return request.form is Form.TOGETHER or any(
        _waits_for_more(one, gateways) for one in request.submissions
    )


def _waits_for_more(submission: Submission, gateways: Gateways) -> bool:
    """Return whether it may wait for the end of a run that it replaces, a gateway, its uploads or
    other runs' outputs."""
    plan = submission.plan
    assert plan is not None, "another controller has planned it"
    return (
        submission.if_exists is IfExists.REPLACE
        or bool(plan.policy.outputs_from)
        or any(spec.blobs for spec in plan.specs)
        or _has_gateway(plan, gateways)
    )


def _has_gateway(plan: Plan, gateways: Gateways) -> bool:
    try:
        service = gateways.chosen(plan).service
    except Unprocessable:
        # It is refused at once.
        return False
    return service is not None and service.gateway is not None


def key_used(run: str) -> Conflict:
    return Conflict(
        f"the client key was used for another configuration (run {run}); give each submission a "
        f"key of its own",
        code="client_key_used",
        field="client_key",
    )


def made_in_part(run: str) -> Conflict:
    return Conflict(
        f"the client key has made run {run}, and others of these runs are new; give each "
        f"submission a new key",
        code="client_key_used",
        field="client_key",
    )


def wanted_name(submission: Submission, plan: Plan) -> str | None:
    """Return the requested name. An empty name is an error, not a missing name: it may come from a
    variable that is not set."""
    return plan.name if submission.name is None else submission.name


def mapping_of(configuration: object) -> dict[str, object]:
    """Return the configuration as a mapping; `parse` refuses anything else."""
    if not isinstance(configuration, dict):
        parse(configuration)
    assert isinstance(configuration, dict)
    return configuration
