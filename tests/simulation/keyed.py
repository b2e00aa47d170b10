"""Users who submit with client keys, and ask again, elsewhere too, whenever no answer came."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from cryptography.fernet import Fernet
from msgspec.structs import replace

from common.refusals import Conflict, Unavailable, Unprocessable
from controller.assembly import Assembly
from controller.clock import Chance, Clock
from controller.lifecycle.model import Run, RunState
from controller.lifecycle.reports import StopRequested
from controller.pipelines.run_pipeline import RunPipeline
from controller.service import Stores
from controller.service.accounts.secrets import SecretService
from controller.service.accounts.users import Gate
from controller.service.runs.lookup import RunService
from controller.service.runs.progress import PullsInProgress
from controller.service.runs.submission_stages import (
    Form,
    IfExists,
    Request,
    Submission,
    Submitted,
    plan_of,
)
from controller.service.runs.submissions import SubmissionService
from controller.store.accounts import User
from controller.store.errors import StoreError
from controller.vault import KeyFile, Vault
from fairlead.configuration.runs.plan import Defaults, Plan
from fairlead.model.service import ServicePolicy
from fairlead.model.spec import Role
from fairlead.model.statuses import FINAL_RUN_STATUSES
from tests.simulation.messages import Counter, Messages, Results, done_alone
from tests.simulation.people import Office, until_answered
from tests.simulation.script import Script, Start, image_of
from tests.simulation.virtual import EPOCH

PATIENCE_SECONDS = 5.0
"""After that a client asks again, whatever becomes of its first request."""
OWNER = User(name="kim", role=Role.USER, created_at=EPOCH)
SHARED = "shared"
"""What several users call their runs."""
_DIGEST = "c0de" * 16
_SEVERAL = 3


class _NoGateways:
    def chosen(self, plan: Plan, present: Run | None = None) -> Plan:
        return plan

    async def claim(self, service: ServicePolicy | None, name: str) -> None:
        return None


def submissions_of(
    assembly: Assembly, stores: Stores, clock: Clock, chance: Chance
) -> SubmissionService:
    """Return the real service of submissions over this controller."""
    gate = Gate([OWNER], (), clock)
    # Its key is never used: nobody has secrets here.
    vault = Vault(KeyFile(Path(), [Fernet.generate_key()]), ())
    return SubmissionService(
        pipeline=assembly.pipeline,
        store=stores.store,
        clock=clock,
        chance=chance,
        defaults=Defaults(),
        blobs=stores.blobs,
        outputs=stores.outputs,
        runs=RunService(pipeline=assembly.pipeline, store=stores.store, progress=PullsInProgress()),
        gate=gate,
        secrets=SecretService(store=stores.store, vault=vault, gate=gate, clock=clock),
        gateways=_NoGateways(),
    )


class Kind(StrEnum):
    """What a user submits."""

    PLAIN = "plain"
    SERVICE = "service"
    SWEEP = "sweep"
    CODE = "code"
    """A task with an upload, about which a bucket is asked."""
    KEEP = "keep"
    """A task with a name that others use as well: whoever is first makes the run."""
    REPLACE = "replace"
    """A task with a name that others use as well, and take from each other."""
    SEVERAL = "several"
    TOGETHER = "together"
    """Several runs that are made as one act."""


def kinds() -> Iterator[Kind]:
    """Return those of the users of a world."""
    for kind, users in {Kind.PLAIN: 5, Kind.KEEP: 3, Kind.REPLACE: 3}.items():
        yield from [kind] * users
    for kind in (Kind.SERVICE, Kind.SWEEP, Kind.CODE, Kind.SEVERAL, Kind.TOGETHER):
        yield from [kind] * 2


class KeyedUser:
    """Submits runs with a key each until there is an answer about all, through followers that pass
    a request on or give it to the leader with others.

    `answers`: the ids of the runs that the user was told, from all of the requests, by the key.
    `kept`: those of other users that were told instead.
    """

    def __init__(
        self, counter: Counter, messages: Messages, name: str, chance: Random, kind: Kind
    ) -> None:
        self.name = name
        self.kind = kind
        self._counter = counter
        self._messages = messages
        self._chance = chance
        configuration = _configuration(kind, chance)
        shares = kind in (Kind.KEEP, Kind.REPLACE)
        several = kind in (Kind.SEVERAL, Kind.TOGETHER)
        names = [f"{name}-{number}" for number in range(_SEVERAL)] if several else [name]
        self._submissions = tuple(
            Submission(
                configuration=configuration,
                name=f"{SHARED}-{kind}" if shares else one,
                client_key=f"key-of-{one}",
                if_exists=IfExists(kind.value) if shares else IfExists.ERROR,
            )
            for one in names
        )
        self._form = Form(kind.value) if several else Form.ONE
        self.answers: dict[str, set[str]] = {f"key-of-{one}": set() for one in names}
        self.kept: set[str] = set()
        if kind is Kind.REPLACE:
            # Each of them tells all runs of this name to end.
            counter.checks.asked.setdefault(StopRequested, set()).add(f"{SHARED}-{kind}")

    async def live(self, latest: float) -> None:
        await asyncio.sleep(self._chance.uniform(0.0, latest))
        asking = set()
        while not (self.kept or all(self.answers.values())):
            alone = self._chance.random() < 0.3
            asked = self._counter.submit(self._ask) if alone else self._give()
            asking.add(self._counter.spawn(asked))
            done, _ = await asyncio.wait(
                asking, timeout=self._chance.uniform(0.1, PATIENCE_SECONDS)
            )
            asking -= done
            for one in done:
                one.result()
        # The answers that nobody waits for any more must name the same runs.
        await asyncio.gather(*asking)

    async def close(self, office: Office) -> None:
        """A service ends when it is told to."""
        if self.kind is not Kind.SERVICE:
            return
        for run_id in {one for told in self.answers.values() for one in told}:
            state = office.database.runs.get(run_id)
            if state is not None and state.run.status not in FINAL_RUN_STATUSES:
                office.checks.asked.setdefault(StopRequested, set()).add(run_id)
                wish = StopRequested(run_id=run_id, abort=False, by=OWNER.name)
                await until_answered(office, partial(_report, wish))

    def faults(self, stored: Mapping[str, Sequence[RunState]]) -> Iterator[str]:
        """Yield what is wrong with the answers. `stored`: all runs, by their keys."""
        for key, told in self.answers.items():
            made = {state.run.id for state in stored.get(key, ())}
            if len(made) > 1 or (not made and not self.kept):
                yield f"the key {key} ({self.kind}) made {len(made)} runs"
            # A request that nobody waits for any more may make one when another one was kept.
            if told != made and not (self.kept and not told):
                yield f"{self.name} was told {told}, and stored is {made}"
        runs = {state.run.id: state.run for some in stored.values() for state in some}
        for kept in self.kept:
            if kept not in runs or runs[kept].name != self._submissions[0].name:
                yield f"{self.name} was told of the run {kept}, which has another name"

    async def _ask(self, service: SubmissionService) -> None:
        given = Request(user=OWNER, submissions=self._submissions, form=self._form)
        self._hear(await done_alone(service, given))

    async def _give(self) -> None:
        planned = (replace(one, plan=plan_of(one, Defaults())) for one in self._submissions)
        given = Request(user=OWNER, submissions=tuple(planned), form=self._form)
        self._hear(await self._messages.submit(given))

    def _hear(self, results: Results | None) -> None:
        # A refusal of an act is one for all of its runs.
        for one, found in zip(self._submissions, results or (), strict=False):
            assert one.client_key is not None
            if not isinstance(found, Submitted):
                self._note_refusal(found)
            elif found.kept:
                self.kept.add(found.state.run.id)
            elif not found.ending:
                self.answers[one.client_key].add(found.state.run.id)

    def _note_refusal(self, error: Exception) -> None:
        """Note an error that is none of those after which a client asks again."""
        # Unprocessable: no node is known yet. Unavailable: the bucket is away.
        expected: tuple[type[Exception], ...] = (StoreError, Unavailable, Unprocessable)
        if self.kind is Kind.REPLACE:
            # Another one takes the name, or has just taken it.
            expected = (*expected, Conflict)
        if not isinstance(error, expected):
            self._counter.checks.violated(f"{self.name} ({self.kind}) was refused: {error!r}")


async def _report(wish: StopRequested, pipeline: RunPipeline) -> None:
    await pipeline.report(wish)


def _configuration(kind: Kind, chance: Random) -> dict[str, Any]:
    script = Script(seconds=chance.choice((0.5, 20.0, 200.0)), lines=3, line_bytes=40)
    made: dict[str, Any] = {
        "type": "task",
        "image": image_of(Start.FINE),
        "commands": ["true"],
        "env": script.env(),
        "resources": {"cpu": 0.25, "memory": "64MiB"},
    }
    if kind is Kind.SERVICE:
        made.update(type="service", port=80)
    if kind is Kind.SWEEP:
        made.update(sweep={"matrix": {"seed": list(range(chance.choice((1, 3, 8))))}})
    if kind is Kind.CODE or (kind is Kind.SERVICE and chance.random() < 0.5):
        made.update(files=[{"local_path": "a", "path": "/a", "uploaded": [_DIGEST, "/"]}])
    return made
