"""RunPipeline takes the turns: collect reports, ask the core and the scheduler, commit, tell.

A turn takes all reports since the last one. The pure core decides each run with reports, and the
scheduler places what waits. One transaction commits everything. Only then do the other pipelines
perform effects, and only then do callers get their answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from controller.aio import Flag, Watch, Watchers, in_stretches
from controller.clock import Chance, Clock
from controller.lifecycle.events import NO_RUN
from controller.lifecycle.model import Fleet, Node, RunState
from controller.lifecycle.node_history import with_history
from controller.lifecycle.reports import ControllerStarted, Report, Tick
from controller.lifecycle.runs.compaction import recent
from controller.pipelines.inventory import Inventory
from controller.pipelines.known_runs import KnownRuns, NewRuns
from controller.pipelines.live_state import (
    DecisionContexts,
    InventoryChanges,
    nodes_of,
    reports_about_nodes,
    reports_at_start,
)
from controller.pipelines.refused_runs import RefusedRuns
from controller.pipelines.renting.pipeline import Renting
from controller.pipelines.renting.rentals import Rentals
from controller.pipelines.seams import Scheduler, TurnListener
from controller.pipelines.turn import Brake, TurnInProgress
from controller.pipelines.waiting import Callers, Deadlines, Waiter, resolve
from controller.store.base import Store
from controller.store.errors import (
    LeaseLost,
    NotKnown,
    NotYetStored,
    Stops,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from fairlead.model.statuses import FINAL_RUN_STATUSES

log = logging.getLogger(__name__)
COMMIT_RETRY_SECONDS = 1.0
LOST_SECONDS = 1.0
"""So long a controller that was replaced waits for the end of its last commit. The store refuses it
at once, unless the database hangs."""
ANY_NODE = "any node"
"""The key to watch for changes of any node."""


class RunPipeline:
    """Owns the live runs and nodes in memory; a change is committed to the store before it is shown
    here."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        chance: Chance,
        scheduler: Scheduler,
        rentals: Rentals | None = None,
        listeners: Iterable[TurnListener] = (),
    ) -> None:
        self._wake = asyncio.Event()
        self._known = KnownRuns(scheduler, self._place_again)
        self.runs = self._known.live
        self._inventory = Inventory(scheduler)
        self.nodes = self._inventory.nodes
        self.fleets = self._inventory.fleets
        self.draining = self._inventory.draining
        """The ids of the draining nodes."""
        self._store = store
        self._clock = clock
        self._chance = chance
        self.scheduler = self._scheduler = scheduler
        self.rentals = rentals
        """None: this controller has no providers of machines."""
        self._listeners = list(listeners)
        self._pass_observers: list[Callable[[float], None]] = []
        self._watchers = Watchers()
        self._contexts = DecisionContexts(self.nodes)
        self._inbox: dict[str, list[Report]] = {}
        self._admissions = self._known.admissions
        self._aside = RefusedRuns()
        self._brake = Brake()
        self._callers = Callers(self._wake)
        self._new_runs = NewRuns(self._known, self._callers)
        self._deadlines = Deadlines()
        self._no_turn = Flag()
        self._no_turn.set()
        self._reschedule = False
        self._renting = None if rentals is None else Renting(rentals, self._inventory, self)
        if rentals is not None:
            rentals.wake_by(self._wake.set)

    # -- what callers ask for ---------------------------------------------------------------

    def restore(
        self, runs: Iterable[RunState], nodes: Iterable[Node], fleets: Iterable[Fleet] = ()
    ) -> None:
        """Take over what the store has. The first turn decides every run again, with no node
        connected yet."""
        self._inventory.restore(nodes, fleets)
        for state in runs:
            self._known.restore(state)
            began = ControllerStarted(run_id=state.run.id)
            self._inbox[state.run.id] = [began, *self._no_node_reached(state)]
        self._wake.set()

    def _no_node_reached(self, state: RunState) -> Iterator[Report]:
        return reports_at_start(state.run.id, sorted(nodes_of(state)), self.nodes)

    def remember(self, state: RunState) -> None:
        """Take over an ended run that still holds an allocation on a node, or of whose end a live
        run may not have heard."""
        self._known.remember(state)
        self._inbox[state.run.id] = [*self._no_node_reached(state)]
        self._wake.set()

    @property
    def membership(self) -> int:
        """Grows when a node comes or goes, or is no longer only expected."""
        return self._inventory.membership

    @property
    def known(self) -> Mapping[str, RunState]:
        """The live runs, and the ended runs that may still have something on a node."""
        return self._known.all

    def listen(self, listener: TurnListener) -> None:
        """Add a listener that is itself made of the pipeline."""
        self._listeners.append(listener)

    def observe_passes(self, observe: Callable[[float], None]) -> None:
        """Call this with the seconds of each pass of the scheduler."""
        self._pass_observers.append(observe)

    def live_run_named(self, name: str) -> str | None:
        """Return the id of the live run with this name, or of one that is being committed."""
        return self._admissions.names.get(name)

    def runs_on(self, node_id: str) -> list[RunState]:
        """Return the runs that have a live attempt on this node, or may have something left
        there."""
        return self._known.on_node(node_id)

    def is_used(self, node_id: str) -> bool:
        """Return whether something of a run is on the node, or may be, or is about to be."""
        node = self.nodes.get(node_id)
        quarantined = node is not None and bool(node.quarantine)
        return quarantined or self._scheduler.is_taken(node_id) or bool(self.runs_on(node_id))

    def may_mind_silence(self, node_id: str) -> bool:
        """Return whether a job may be there that stops when it hears from no controller
        (`on_disconnect: stop`)."""
        return self._known.may_mind_silence(node_id)

    def children_of(self, run_id: str) -> list[RunState]:
        """Return the live runs that were submitted as children of this one."""
        return self._known.children_of(run_id)

    async def admit(self, state: RunState) -> None:
        """Make this new run durable. Raises NotAdmitted, StoreUnavailable, StoreRefused: then
        the run does not exist."""
        await self._new_runs.admit(state)

    async def admit_all(self, states: Sequence[RunState]) -> list[Exception | None]:
        """Make these new runs durable in one turn. Return for each what `admit` would raise.

        A run that is refused keeps none of the others from being committed. Raises LeaseTaken if
        another controller leads and none was committed: it may do all of it.
        """
        return await self._new_runs.admit_all(states)

    async def admit_together(self, states: Sequence[RunState]) -> None:
        """Make these new runs durable in one commit, all or none; a run may wait for one before it.
        Raises as `admit` does."""
        await self._new_runs.admit_together(states)

    def post(self, report: Report) -> None:
        """Hand in a report. A run that has ended and left nothing behind ignores it."""
        if report.run_id not in self.known and report.run_id not in self._admissions.new:
            return
        self._inbox.setdefault(report.run_id, []).append(report)
        self._wake.set()

    async def report(self, report: Report) -> None:
        """Hand in a report and wait for its commit. Raises StoreUnavailable, StoreRefused."""
        self.post(report)
        self._aside.hurry(report.run_id)
        await self._next_commit(report.run_id)

    async def settled(self) -> None:
        """Wait until everything posted so far is decided and committed, except for runs that the
        store refuses. Raises StoreUnavailable."""
        await self._next_commit(None)

    async def _next_commit(self, of: str | None) -> None:
        """Wait for the commit of what was handed in. Raises NotYetStored if it failed: what was
        handed in outlives that. Raises what ends all commits, and StoreRefused."""
        try:
            await self._callers.next_commit(of)
        except StoreUnavailable as error:
            if self._callers.ended is not None or isinstance(error, NotKnown):
                raise
            raise NotYetStored(str(error)) from error

    async def save_node(self, node: Node | None, node_id: str, *, by: str | None = None) -> None:
        """Add, change or (None) remove a node, durably. `by`: the user who asked for it.

        Raises StoreUnavailable, StoreRefused.
        """
        self.set_node(node, node_id, by=by)
        await self._next_commit(node_id)

    def set_node(self, node: Node | None, node_id: str, *, by: str | None = None) -> None:
        """Change a node as `save_node` does, without waiting: for what a node reports about
        itself."""
        if node is not None:
            node = with_history(self.nodes.get(node_id), node, self._clock.now(), by)
        self._inventory.change_node(node, node_id)
        self._reschedule = True
        self._wake.set()

    def node_with_shim(self, install_id: str, *, besides: str) -> Node | None:
        """Return another node than `besides` that has the shim with this install id."""
        return self._inventory.node_with_shim(install_id, besides=besides)

    async def save_fleet(self, fleet: Fleet | None, name: str) -> None:
        """Add, change or (None) remove a fleet, durably. Raises StoreUnavailable, StoreRefused."""
        self._inventory.change_fleet(fleet, name)
        self._reschedule = True
        self._wake.set()
        await self._next_commit(name)

    def watch(self, key: str | None) -> Watch:
        """Return a watch that wakes when the run or node with this id was committed (None: any run
        or node; ANY_NODE: any node)."""
        return Watch(self._watchers, key)

    @property
    def revision(self) -> int:
        """The number of commits that changed a run or a node since this controller started."""
        return self._watchers.revision

    def changed_since(self, key: str | None, revision: int) -> bool:
        """Return whether the run or node changed after this revision; True if that is forgotten."""
        return self._watchers.changed_since(key, revision)

    def changed_after(self, revision: int) -> list[str | None] | None:
        """Return the runs and nodes that changed after this revision; None: some are forgotten."""
        return self._watchers.changed_after(revision)

    # -- the loop ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Take turns until cancelled. Raises LeaseLost: this controller must stop at once."""
        ended: StoreError = Stops("this controller is stopping")
        try:
            while True:
                await self._wait_for_work()
                await self._try_turn()
        except LeaseLost as error:
            ended = error
            raise
        finally:
            self._callers.end(ended)

    async def lost(self, why: LeaseLost) -> None:
        """Answer all callers: this controller leads no more. Return when those whose change is
        being committed have their answer, too, or after a moment."""
        self._callers.end(why)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOST_SECONDS):
                await self._no_turn.wait()

    async def _try_turn(self) -> None:
        self._no_turn.clear()
        try:
            await self._turn()
        except StoreUnavailable as error:
            log.error("commit failed, trying again in %s s: %s", COMMIT_RETRY_SECONDS, error)
            # SQLite is busy, or PostgreSQL is away: the inbox was put back, so nothing is lost.
            self._no_turn.set()
            await asyncio.sleep(COMMIT_RETRY_SECONDS)
            self._wake.set()
        finally:
            self._no_turn.set()

    async def _wait_for_work(self) -> None:
        renting = None if self._renting is None else self._renting.wakes_at
        wanted = (self._deadlines.next(), renting, self._aside.next_try())
        times = [at for at in wanted if at is not None]
        delay = max(0.0, min(times) - self._clock.now()) if times else None
        try:
            async with asyncio.timeout(delay):
                await self._wake.wait()
        except TimeoutError:
            pass
        # From here to the turn's look at the inbox nothing is awaited, so no report is missed.
        self._wake.clear()

    async def _turn(self) -> None:
        now = self._clock.now()
        # Taken in one step without an await: what is posted during the commit is for the next turn.
        inbox, self._inbox = self._inbox, {}
        admitted = self._admissions.take_all()
        inventory = self._inventory.take_changes()
        waiters = self._callers.take()
        for run_id in self._deadlines.due(now):
            inbox.setdefault(run_id, []).append(Tick(run_id=run_id))
        aside = self._aside.hold(inbox, now)
        turn = TurnInProgress(self.known, now, self._chance, self._contexts, self._scheduler, aside)
        try:
            await turn.begin(admitted, inbox)
            if turn.states or inventory.nodes or inventory.fleets or self._reschedule:
                turn.tell_dependents(self._known.dependents)
                await turn.place()
                for observe in self._pass_observers:
                    observe(turn.pass_seconds)
                self._reschedule = self._scheduler.is_unfinished
            self._tell_relatives(turn)
            if self._renting is not None:
                self._reschedule |= self._renting.decide(turn, inventory, now)
            await self._commit(turn, inventory)
        except StoreRefused as error:
            self._take_back(turn)
            self._leave_out(error, turn, inbox, inventory)
            self._put_back(inbox, inventory)
            self._go_on_without(error, admitted, waiters)
            return
        # Also when cancelled: a waiter must not believe in a commit that nobody knows the end of.
        except BaseException as error:
            self._take_back(turn)
            self._put_back(inbox, inventory)
            for state in admitted.values():
                self._known.forget_admission(state)
            refusal = error if isinstance(error, StoreError) else None
            resolve(waiters, refusal or NotKnown("this controller is stopping"))
            raise
        self._adopt(turn, now)
        if self._renting is not None:
            for report in self._renting.stored(inventory):
                self.post(report)
        resolve(waiters, None)
        await self._tell(
            turn, {**inventory.nodes, **self._inventory.nodes_of_fleets(inventory.fleets)}
        )

    def _tell_relatives(self, turn: TurnInProgress) -> None:
        """Report what became of runs to their children, and to the runs that wait for them."""
        families = self._known.families
        turn.tell_children(families)
        while turn.tell_dependents(self._known.dependents):
            self._reschedule = True  # their new attempts missed this turn's pass
            turn.tell_children(families)

    async def _commit(self, turn: TurnInProgress, inventory: InventoryChanges) -> None:
        changes = turn.changes(inventory, self._aside.events)
        if changes.runs or changes.events or changes.orphans or inventory.has_any:
            try:
                await self._store.commit(changes)
            except StoreRefused as error:
                # Nobody knows which part is refused, so none can be left out: all is tried again.
                if not error.is_in_parts:
                    raise StoreUnavailable(str(error)) from error
                raise
            self._aside.events.clear()

    def _take_back(self, turn: TurnInProgress) -> None:
        for run_id in turn.states:
            self._scheduler.run_changed(run_id, self.known.get(run_id))
        self._reschedule = True

    def _leave_out(
        self,
        error: StoreRefused,
        turn: TurnInProgress,
        inbox: dict[str, list[Report]],
        inventory: InventoryChanges,
    ) -> None:
        """Leave out what the store refused: a run is set aside, and a node or fleet becomes again
        what the store has."""
        self._aside.drop_events(error.runs)
        if self._renting is not None and NO_RUN in error.runs:
            self._renting.leave_out_events()
        # A new run is in no store yet, so it cannot stay as it was: its submission fails instead.
        for run_id in error.runs & turn.states.keys() & self.known.keys():
            name = self.known[run_id].run.name
            self._aside.refused(run_id, name, inbox.pop(run_id, []), str(error), self._clock.now())
        for node_id in error.nodes & inventory.nodes.keys():
            log.error("the changes of node %s are left out: %s", node_id, error)
            del inventory.nodes[node_id]
            stored = inventory.stored_nodes.pop(node_id)
            # Somebody changed it again during the commit: the newer change stays shown.
            if node_id not in self._inventory.changes.nodes:
                self._inventory.show_node(stored, node_id)
        for name in error.fleets & inventory.fleets.keys():
            del inventory.fleets[name]
            stored_fleet = inventory.stored_fleets.pop(name)
            if name not in self._inventory.changes.fleets:
                self._inventory.show_fleet(stored_fleet, name)

    def _go_on_without(
        self, error: StoreRefused, admitted: dict[str, RunState], waiters: list[Waiter]
    ) -> None:
        new = self._admissions.with_mates(error.runs & admitted.keys())
        for run_id in new & admitted.keys():
            self._known.forget_admission(admitted.pop(run_id))
        self._admissions.put_back(admitted)
        refused = error.runs | error.nodes | error.fleets | new
        resolve([waiter for waiter in waiters if waiter.of in refused], error)
        self._callers.put_back(waiter for waiter in waiters if waiter.of not in refused)
        self._wake.set()

    def _adopt(self, turn: TurnInProgress, now: float) -> None:
        for run_id, state in turn.states.items():
            changed = state is not self.known.get(run_id)
            wake_at = self._brake.next_look(
                state.run, turn.deadlines.get(run_id), now, changed=changed
            )
            fresh = self._known.show(state, self._trimmed(state))
            if state.run.status in FINAL_RUN_STATUSES:
                # A child that was handed in during this commit was not told in this turn.
                for ended in self._known.families.reports_to_children(state):
                    if ended.run_id in self._admissions.new:
                        self.post(ended)
            else:
                # A node that was lost during this commit could not tell the runs that came to it.
                for about_node in reports_about_nodes(
                    run_id, fresh, self.nodes, self._inventory.removed
                ):
                    self.post(about_node)
            self._deadlines.set(run_id, wake_at)
        self._aside.stored(turn.states.keys())
        for report in turn.held:
            self.post(report)
        if self._reschedule:
            self._wake.set()

    def _trimmed(self, state: RunState) -> RunState:
        """Return the state without its older attempts; only for a committed state, because the
        store must have what leaves."""
        kept = recent(state)
        if kept is not state:
            self._scheduler.run_trimmed(kept)
        return kept

    def _place_again(self) -> None:
        self._reschedule = True

    async def _tell(self, turn: TurnInProgress, nodes: Mapping[str, object]) -> None:
        touched = list(turn.states.values())
        async for state in in_stretches(touched):
            for listener in self._listeners:
                listener.committed((state,))
        if touched or nodes:
            of_nodes = (*nodes, ANY_NODE) if nodes else ()
            self._watchers.wake((*turn.states, *of_nodes, None))

    # -- small parts ------------------------------------------------------------------------

    @property
    def deadlines(self) -> int:
        """The number of deadlines, skipped ones included."""
        return len(self._deadlines)

    def _put_back(self, inbox: dict[str, list[Report]], inventory: InventoryChanges) -> None:
        for run_id, reports in inbox.items():
            # In front of what came meanwhile: of several states of a link the last one counts.
            self._inbox[run_id] = reports + self._inbox.get(run_id, [])
        self._inventory.put_back(inventory)
