"""The names of live runs: who has one, which ones are free, and how one is taken over.

A takeover reserves a name for the client that replaces the run that has it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

import msgspec

from common.refusals import Conflict, Invalid
from controller.clock import Chance, Clock
from controller.lifecycle.model import Run, RunState
from controller.lifecycle.reports import StopRequested
from controller.pipelines.run_pipeline import RunPipeline
from controller.service.accounts.rights import require_control, sees_all
from controller.store.accounts import User
from fairlead.configuration.values.names import RunName, generate_name, is_run_name

KEPT_SECONDS = 30.0
"""Seconds after the end of the old run in which the second request must come."""
Owner: TypeAlias = tuple[str, str | None]
"""A user, and the client key of the submission."""


class Names:
    """The names that runs may get. A name belongs to one live run at a time."""

    def __init__(self, pipeline: RunPipeline, clock: Clock, chance: Chance) -> None:
        self._pipeline = pipeline
        self._chance = chance
        self.takeovers = Takeovers(clock)

    def live_id(self, name: str) -> str | None:
        """Return the id of the live run with this name, or of one that is being committed."""
        return self._pipeline.live_run_named(name)

    def live_run_of(self, user: User, name: str) -> Run | None:
        """Return the live run with this name, which the user's submission would change in place."""
        live = self._pipeline.runs.get(self.live_id(name) or "")
        return live.run if live is not None and live.run.user == user.name else None

    def chosen(self, wanted: str | None, besides: Collection[str] = ()) -> str:
        """Return this name, or a new one that is free, and is none of those `besides`. Raises
        Invalid."""
        if wanted is None:
            return generate_name(
                self._pick, lambda name: name in besides or self.live_id(name) is not None
            )
        if not is_run_name(wanted):
            raise Invalid(
                f"{wanted!r} is not a run name: {RunName.ALLOWED}",
                field="name",
            )
        return wanted

    def taken(self, name: str, user: User) -> Conflict:
        """Return the refusal of a name that a live run has."""
        live = self._pipeline.runs.get(self.live_id(name) or "")
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

    async def end_live(self, name: str, live_id: str, owner: Owner, user: User) -> RunState | None:
        """Make this run end; None when it has already ended."""
        if live_id not in self._pipeline.runs:
            # Its name is taken before it is committed, and only a committed run can be stopped.
            await self._pipeline.settled()
        live = self._pipeline.runs.get(live_id)
        if live is None:
            return None
        require_control(user, live.run)
        self.takeovers.begin(name, owner, live_id)
        await self._pipeline.report(StopRequested(run_id=live_id, abort=False, by=user.name))
        return self._pipeline.runs.get(live_id) if self.live_id(name) == live_id else None

    def require_other_family(self, replaced: str, parent: RunState | None) -> None:
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
            ancestor = self._pipeline.runs.get(ancestor.run.parent_id or "")

    def _pick(self, below: int) -> int:
        return int(self._chance.new_id(), 16) % below


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


class _Takeover(msgspec.Struct):
    owner: Owner
    run_id: str
    free_at: float | None = None
    """Set when the old run is seen to have ended."""
