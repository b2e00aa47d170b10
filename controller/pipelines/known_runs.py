"""The runs in memory: the live ones, and ended ones that a turn or the scheduler still needs.

They are shown as they are committed. What is derived of them (who is on which node, who waits for
whom, which names are taken) is kept here, so that it never differs from them.
"""

from __future__ import annotations

import asyncio
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence

from controller.lifecycle.model import RunState
from controller.pipelines.admissions import Admissions, NotAdmitted
from controller.pipelines.dependents import Dependents
from controller.pipelines.live_state import Families, RunsByNode, nodes_of
from controller.pipelines.seams import Scheduler
from controller.pipelines.waiting import Callers
from controller.store.base import Commits
from controller.store.errors import LeaseTaken, StoreError
from fairlead.model.statuses import FINAL_RUN_STATUSES


class KnownRuns:
    """`freed` is called when a run has ended: what waits may have room now."""

    def __init__(self, scheduler: Scheduler, freed: Callable[[], None]) -> None:
        self.live: dict[str, RunState] = {}
        self._leftovers: dict[str, RunState] = {}
        """Ended runs of which something may be left on a node: their places are still occupied.
        Also those for which a run still waits that was not told of their end."""
        self.all: Mapping[str, RunState] = ChainMap(self.live, self._leftovers)
        self.families = Families()
        self.dependents = Dependents()
        self.admissions = Admissions(self.live, self.families, self.dependents)
        self._by_node = RunsByNode()
        self._scheduler = scheduler
        self._freed = freed

    def restore(self, state: RunState) -> None:
        """Take over a live run that the store has."""
        self.live[state.run.id] = state
        self._scheduler.run_changed(state.run.id, state)
        self.admissions.restore(state)
        self._by_node.moved(None, state)

    def remember(self, state: RunState) -> None:
        """Take over an ended run that still holds an allocation on a node, or of whose end a live
        run may not have heard."""
        self._leftovers[state.run.id] = state
        self._scheduler.run_changed(state.run.id, state)
        self._by_node.moved(None, state)

    def show(self, committed: RunState, kept: RunState) -> list[str]:
        """Show what was committed of a run, of which `kept` stays in memory. Return the nodes that
        are new for it."""
        run_id = committed.run.id
        fresh = self._by_node.moved(self.all.get(run_id), committed)
        self._let_go(self.dependents.note(kept))
        if kept.run.status in FINAL_RUN_STATUSES:
            self._retire(kept)
        else:
            self.live[run_id] = kept
            self._leftovers.pop(run_id, None)
        return fresh

    def take_back_admission(self, state: RunState) -> None:
        """Forget a new run that no turn has taken yet."""
        del self.admissions.new[state.run.id]
        self.forget_admission(state)

    def forget_admission(self, state: RunState) -> None:
        """Forget a new run that was not committed."""
        self._let_go(self.admissions.forget(state))

    def on_node(self, node_id: str) -> list[RunState]:
        """Return the runs that have a live attempt on this node, or may have something left
        there."""
        return [self.all[run_id] for run_id in self._by_node.on(node_id)]

    def may_mind_silence(self, node_id: str) -> bool:
        """Return whether a job may be there that stops when it hears from no controller
        (`on_disconnect: stop`)."""
        return self._by_node.may_mind_silence(node_id)

    def children_of(self, run_id: str) -> list[RunState]:
        """Return the live runs that were submitted as children of this one."""
        ids = self.families.children_of(run_id)
        return [self.live[child_id] for child_id in ids if child_id in self.live]

    def _retire(self, state: RunState) -> None:
        self.live.pop(state.run.id, None)
        self.admissions.ended(state)
        # A lost node may come back with containers of this run, which still take room there. A run
        # that waits for it may be set aside, or have been handed in during the commit of its end.
        if nodes_of(state) or self.dependents.of(state.run.id):
            self._leftovers[state.run.id] = state
        else:
            self._leftovers.pop(state.run.id, None)
            self._scheduler.run_over(state.run.id)
        self._freed()

    def _let_go(self, run_ids: Iterable[str]) -> None:
        """Forget those of these runs that have ended: no run waits for them any more."""
        for run_id in run_ids:
            if run_id in self._leftovers:
                self._retire(self._leftovers[run_id])


class NewRuns:
    """Hands in new runs and waits for their commits. Each method raises as RunPipeline's does."""

    def __init__(self, known: KnownRuns, callers: Callers) -> None:
        self._known = known
        self._admissions = known.admissions
        self._callers = callers

    async def admit(self, state: RunState) -> None:
        (refused,) = await self.admit_all([state])
        if refused is not None:
            raise refused

    async def admit_all(self, states: Sequence[RunState]) -> list[Exception | None]:
        """Return for each run why it was refused; None: it is committed."""
        admitted = [self._enter(state) for state in states]
        try:
            refusals = [
                one if isinstance(one, Exception) else await _refusal_of(one) for one in admitted
            ]
            taken = [one for one in refusals if isinstance(one, LeaseTaken)]
            if taken and None not in refusals:
                raise taken[0]
            return refusals
        finally:
            for one in admitted:
                if isinstance(one, asyncio.Future):
                    one.cancel()
            for state in states:
                # No turn has taken the run yet, for example because its caller was cancelled.
                if self._admissions.new.get(state.run.id) is state:
                    self._known.take_back_admission(state)

    async def admit_together(self, states: Sequence[RunState]) -> None:
        """Return when all are committed, in one commit."""
        self._admissions.take(states)
        try:
            await self._callers.next_commit(states[-1].run.id)
        except BaseException:
            # No turn has taken the runs yet, for example because their caller was cancelled.
            for state in states:
                if state.run.id in self._admissions.new:
                    self._known.take_back_admission(state)
            raise
        finally:
            self._admissions.part(states)

    def _enter(self, state: RunState) -> Exception | asyncio.Future[None]:
        """Hand in a new run; return what its commit resolves, or why there will be none."""
        if self._callers.ended is not None:
            return self._callers.ended
        try:
            self._admissions.take([state])
        except NotAdmitted as refused:
            return refused
        return self._callers.waiter(state.run.id).done


async def _refusal_of(commit: asyncio.Future[None]) -> Exception | None:
    try:
        await commit
    except StoreError as error:
        return error
    Commits.note()
    return None
