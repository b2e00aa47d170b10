"""Users who submit with a client key, and ask again, elsewhere too, whenever no answer came."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Protocol

from cryptography.fernet import Fernet
from msgspec.structs import replace

from common.refusals import Unavailable, Unprocessable
from controller.assembly import Assembly
from controller.clock import Chance, Clock
from controller.lifecycle.model import Run
from controller.service import Stores
from controller.service.accounts.secrets import SecretService
from controller.service.accounts.users import Gate
from controller.service.runs.lookup import RunService
from controller.service.runs.progress import PullsInProgress
from controller.service.runs.submission_stages import Request, Submission, Submitted, plan_of
from controller.service.runs.submissions import SubmissionService
from controller.store.accounts import User
from controller.store.errors import StoreError
from controller.vault import KeyFile, Vault
from fairlead.configuration.runs.plan import Defaults, Plan
from fairlead.model.service import ServicePolicy
from fairlead.model.spec import Role
from tests.simulation.checks import Checks
from tests.simulation.script import Script, Start, image_of
from tests.simulation.virtual import EPOCH

PATIENCE_SECONDS = 5.0
"""After that a client asks again, whatever becomes of its first request."""
OWNER = User(name="kim", role=Role.USER, created_at=EPOCH)


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


Ask = Callable[[SubmissionService], Awaitable[None]]


class Counter(Protocol):
    """Where submissions are received."""

    checks: Checks

    async def submit(self, ask: Ask) -> None:
        """Let the controller that leads do this; return in any case."""

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]: ...


class Messages:
    """A follower that gives the leader the submissions of several users at once."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._waiting: list[tuple[Submission, asyncio.Future[str | None]]] = []
        self._is_on_the_way = False

    async def submit(self, submission: Submission) -> str | None:
        """Return the run's id; None: there was no answer, or a refusal."""
        answered: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((submission, answered))
        if not self._is_on_the_way:
            self._is_on_the_way = True
            self._counter.spawn(self._carry())
        return await answered

    async def _carry(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            made = await self._made([submission for submission, _ in batch])
            for _, answered in batch:
                if not answered.done():
                    answered.set_result(next(made, None))
        self._is_on_the_way = False

    async def _made(self, submissions: Sequence[Submission]) -> Iterator[str | None]:
        planned = [
            Request(user=OWNER, submissions=(replace(one, plan=plan_of(one, Defaults())),))
            for one in submissions
        ]
        found: list[list[Submitted | Exception] | None] = []

        async def ask(service: SubmissionService) -> None:
            with contextlib.suppress(StoreError):
                found.extend(await service.submit_planned(planned))

        await self._counter.submit(ask)
        single = [one[0] if one else None for one in found]
        return iter([one.state.run.id if isinstance(one, Submitted) else None for one in single])


class KeyedUser:
    """Submits one run with a key until it has an answer, through followers that pass it on or give
    it to the leader with others. `answers`: the ids of the run that it was told, from all of its
    requests."""

    def __init__(self, counter: Counter, messages: Messages, name: str, chance: Random) -> None:
        self.name = name
        self.answers: set[str] = set()
        self._counter = counter
        self._messages = messages
        self._chance = chance
        script = Script(seconds=chance.choice((0.5, 20.0, 200.0)), lines=3, line_bytes=40)
        self._submission = Submission(
            configuration={
                "type": "task",
                "image": image_of(Start.FINE),
                "commands": ["true"],
                "env": script.env(),
                "resources": {"cpu": 0.25, "memory": "64MiB"},
            },
            name=name,
            client_key=f"key-of-{name}",
        )

    async def live(self, latest: float) -> None:
        await asyncio.sleep(self._chance.uniform(0.0, latest))
        asking = set()
        while not self.answers:
            alone = self._chance.random() < 0.3
            asked = self._counter.submit(self._ask) if alone else self._give()
            asking.add(self._counter.spawn(asked))
            done, _ = await asyncio.wait(
                asking, timeout=self._chance.uniform(0.1, PATIENCE_SECONDS)
            )
            asking -= done
        # The answers that nobody waits for any more must name the same run.
        await asyncio.gather(*asking)

    async def _ask(self, service: SubmissionService) -> None:
        try:
            made = await service.submit(self._submission, user=OWNER)
        except (StoreError, Unavailable, Unprocessable):
            # Unprocessable: no node is known yet.
            return
        self.answers.add(made.state.run.id)

    async def _give(self) -> None:
        made = await self._messages.submit(self._submission)
        if made is not None:
            self.answers.add(made)
