"""What a user can ask about runs. Every answer that says "done" is committed before it is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from controller.blobs import BlobStore
from controller.clock import Chance, Clock
from controller.configuration.names import generate_name, is_run_name
from controller.configuration.parse import parse
from controller.configuration.plan import Defaults, Plan, public, to_run
from controller.lifecycle.model import RunState
from controller.lifecycle.reports import StopRequested
from controller.lifecycle.submission import new_run
from controller.pipelines.turns import NameTaken, Turns
from controller.scheduling.fit import could_ever_fit
from controller.service.access import require_control
from controller.service.errors import Conflict, Invalid, NotFound, Refused
from controller.service.progress import ProgressWatch, PullBoard
from controller.service.userkeys import user_keys
from controller.store.base import Store, StoredEvent
from controller.store.users import User


class RunWatch:
    """The states of one run: the present one first, then one after each change of it or of its
    pull progress."""

    def __init__(
        self, runs: RunService, run_id: str, changed: asyncio.Event, progress: ProgressWatch
    ) -> None:
        self._runs = runs
        self._run_id = run_id
        self._changed = changed
        self._progress = progress
        changed.set()

    async def next(self, patience: float) -> RunState | None:
        """None when nothing has changed for `patience` seconds."""
        try:
            async with asyncio.timeout(patience):
                await self._changed.wait()
        except TimeoutError:
            return None
        self._changed.clear()
        state = await self._runs.get(self._run_id)
        self._progress.attend(job.attempts[-1].id for job in state.jobs if job.attempts)
        return state


class RunService:
    def __init__(
        self,
        *,
        turns: Turns,
        store: Store,
        clock: Clock,
        chance: Chance,
        defaults: Defaults,
        progress: PullBoard,
        blobs: BlobStore,
    ) -> None:
        self._turns = turns
        self._store = store
        self._clock = clock
        self._chance = chance
        self._defaults = defaults
        self._progress = progress
        self._blobs = blobs
        self._submitting: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def submit(
        self,
        configuration: object,
        *,
        user: User,
        name: str | None,
        client_key: str | None,
        ssh_keys: tuple[str, ...] = (),
    ) -> RunState:
        """The run that this submit made, or that the same `client_key` made before.

        Raises ConfigurationError, Conflict (a live run has the name), Refused (no node could ever
        hold it), StoreUnavailable."""
        written = _mapping(configuration)
        keys = user_keys(ssh_keys)
        if client_key is None:
            return await self._admit(written, user, name, None, keys)
        key = (user.name, client_key)
        lock = self._submitting.setdefault(key, asyncio.Lock())
        async with lock:
            earlier = await self._submitted(written, user, client_key)
            return earlier or await self._admit(written, user, name, client_key, keys)

    async def stop(self, key: str, *, abort: bool, user: User) -> RunState:
        """Returns when the wish is recorded; stopping a run that has ended changes nothing.

        Raises NotFound, Forbidden, StoreUnavailable."""
        state = await self.get(key)
        require_control(user, state.run)
        run_id = state.run.id
        if run_id in self._turns.runs:
            await self._turns.report(StopRequested(run_id=run_id, abort=abort, by=user.name))
        return await self.get(run_id)

    async def get(self, key: str) -> RunState:
        """By id or name; the live run of a name before finished ones. Raises NotFound."""
        live = self._turns.runs.get(key)
        if live is None:
            live = self._turns.runs.get(self._turns.live_run_named(key) or "")
        found = live or await self._store.find_run(key)
        if found is None:
            raise NotFound(f"there is no run {key!r}; `fairlead ps -a` shows all runs", field="run")
        return self._turns.runs.get(found.run.id, found)

    async def page(
        self, *, include_finished: bool, limit: int, before: str | None
    ) -> list[RunState]:
        """Newest first. Raises StoreUnavailable."""
        stored = await self._store.list_runs(
            include_finished=include_finished, limit=limit, before=before
        )
        return [self._turns.runs.get(state.run.id, state) for state in stored]

    async def events(self, key: str | None, *, after: int, limit: int) -> list[StoredEvent]:
        """Oldest first; of the run `key`, or of all. Raises NotFound, StoreUnavailable."""
        run_id = None if key is None else (await self.get(key)).run.id
        return await self._store.events(run_id=run_id, after=after, limit=limit)

    @asynccontextmanager
    async def watch(self, run_id: str) -> AsyncIterator[RunWatch]:
        async with self._turns.watch(run_id) as changed:
            progress = self._progress.watch(changed)
            try:
                yield RunWatch(self, run_id, changed, progress)
            finally:
                progress.attend(())

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
        self,
        written: dict[str, object],
        user: User,
        name: str | None,
        client_key: str | None,
        ssh_keys: tuple[str, ...],
    ) -> RunState:
        plan = to_run(parse(written), written, self._defaults, ssh_keys)
        self._require_place(plan)
        await self._require_blobs(plan)
        state = new_run(
            name=self._name(name or plan.name),
            user=user.name,
            groups=plan.groups,
            now=self._clock.now(),
            new_id=self._chance.new_id,
            type=plan.type,
            policy=plan.policy,
            configuration=plan.configuration,
            client_key=client_key,
        )
        try:
            await self._turns.admit(state)
        except NameTaken:
            raise self._taken(state.run.name) from None
        return await self.get(state.run.id)

    def _require_place(self, plan: Plan) -> None:
        nodes = tuple(self._turns.nodes.values())
        for spec in plan.specs:
            why_never = could_ever_fit(spec.resources, nodes)
            if why_never is not None:
                raise Refused(why_never, code="cannot_fit", field="resources")

    async def _require_blobs(self, plan: Plan) -> None:
        for digest in dict.fromkeys(blob for spec in plan.specs for blob in spec.blobs):
            if await self._blobs.size(digest) is None:
                raise Conflict(
                    f"the upload {digest} is not here (any more); apply the run again",
                    code="not_uploaded",
                    field="repos" if any(spec.repos for spec in plan.specs) else "files",
                )

    def _name(self, wanted: str | None) -> str:
        if wanted is None:
            return generate_name(self._pick, lambda name: self._live_id(name) is not None)
        if not is_run_name(wanted):
            raise Invalid(
                f"{wanted!r} is not a run name: a small letter, then up to 40 small letters, "
                f"digits and hyphens",
                field="name",
            )
        if self._live_id(wanted) is not None:
            raise self._taken(wanted)
        return wanted

    def _taken(self, name: str) -> Conflict:
        live = self._turns.runs.get(self._live_id(name) or "")
        known = "being submitted" if live is None else f"{live.run.status}, id {live.run.id}"
        return Conflict(
            f"a live run is named {name} already ({known}); stop it (`fairlead stop {name}`) or "
            f"give another name",
            code="name_taken",
            field="name",
        )

    def _live_id(self, name: str) -> str | None:
        return self._turns.live_run_named(name)

    def _pick(self, below: int) -> int:
        return int(self._chance.new_id(), 16) % below


def _mapping(configuration: object) -> dict[str, object]:
    """What is not even a mapping is left to `parse` to explain."""
    if not isinstance(configuration, dict):
        parse(configuration)
    assert isinstance(configuration, dict)
    return configuration
