"""Checks that must hold after every commit, whatever happened before it.

Each check compares the controller's committed account with the truth, which only the simulation
knows: what really ran, wrote and ended. A breach is a `Violation`, not an exception, so that the
story goes on and the world stays the one that the seed gave.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from controller.lifecycle.attempts.inactivity import limit_of
from controller.lifecycle.events import Event, EventKind
from controller.lifecycle.inventory import DEFAULT_NODE_FAILURE
from controller.lifecycle.membership.members import is_member, members_of
from controller.lifecycle.model import Allocation, Attempt, Job, Node, Resources, RunState
from controller.lifecycle.reports import JobAbortRequested, Report
from controller.lifecycle.runs.compaction import KEPT_ATTEMPTS
from controller.store.base import Changes
from fairlead.model.reasons import Reason
from fairlead.model.starts import LEASE_SECONDS
from fairlead.model.statuses import (
    ALLOCATION_MOVES,
    ATTEMPT_MOVES,
    FINAL_ATTEMPT_STATUSES,
    FINAL_RUN_STATUSES,
    RUN_MOVES,
    AllocationState,
    AttemptStatus,
    RunStatus,
)
from fairlead.wire.frames import Decoder, Frame, Stream
from fairlead.wire.runner import SignalRequest
from fairlead.wire.shim import TaskInfo
from tests.simulation import (
    gangs,
    idle,
    orders,
    placing,
    replicas,
    standstill,
    sweeps,
    waiting,
    watched,
)
from tests.simulation.container import Container
from tests.simulation.graces import Graces
from tests.simulation.idle import Use
from tests.simulation.kept import FreedPlaces
from tests.simulation.node import SimulatedNode
from tests.simulation.outputs import leaves_outputs, outputs_of
from tests.simulation.verdicts import Circumstances, could_preempt, undeserved
from tests.simulation.virtual import EPOCH

OVERLAP_SECONDS = 60.0
"""How long two containers of one job may run while a node that was given up is being cleared."""
SOON_SECONDS = 120.0
"""A job that is stopped when so long unheard has ended, with its grace and replies that were lost,
before its node is given up."""
LATE_SECONDS = 120.0
"""By so much a controller that works may miss a deadline: its database may be busy."""
RECONNECTED_WITHIN = 30.0
"""Seconds from the end of what kept a node from being reached until a controller has reached it."""
_LOST_AFTER_SECONDS = DEFAULT_NODE_FAILURE.lost_after - 20.0
"""A little less: a word on its way is heard by the simulation before the controller has read it."""


_ENDED_IN_VAIN = FINAL_RUN_STATUSES - {RunStatus.DONE}


class Violation(msgspec.Struct, frozen=True):
    at: float
    """Virtual seconds since the start."""
    text: str


class Checks:
    def __init__(
        self, nodes: Mapping[str, SimulatedNode], log_folder: Path, now: Callable[[], float]
    ) -> None:
        self.violations: list[Violation] = []
        self.runs: dict[str, RunState] = {}
        self.containers: dict[str, Container] = {}
        """By attempt id: everything that was ever started."""
        self._started_on: dict[str, str] = {}
        """The name of the node on which an attempt's last container began, by the attempt's id."""
        self.node_ids: dict[str, str] = {}
        """The controller's id of a node by its name."""
        self.names: dict[str, str] = {}
        """The name of a node by each id that the controller ever had for it."""
        self.uses: dict[str, list[Use]] = {}
        """What a dev environment was used for, by its attempt."""
        self.leases: dict[str, dict[str, float]] = {}
        """Until when clients watch a run, by its id and theirs, in Unix seconds."""
        self.asked: dict[type[Report], set[str]] = {}
        """The ids of the runs and jobs that users asked such a thing for, and names of runs."""
        self.unreliable: set[str] = set()
        """Names of nodes that were rebooted or were away for long."""
        self.drains: dict[str, list[list[float]]] = {}
        """From when to when somebody wanted a node drained, by its id, in Unix seconds."""
        self.broken_gpus: dict[str, list[list[float]]] = {}
        """From when to when a GPU was broken, by its UUID, in Unix seconds."""
        self.engines_away: dict[str, list[list[float]]] = {}
        """From when to when the engine of a node was away, by its name, in Unix seconds."""
        self.lost: set[str] = set()
        """Ids of tasks that their node has forgotten."""
        self.unheard: dict[str, float] = {}
        """When nodes stopped tasks, by their ids, since they had not heard of a controller; in Unix
        seconds."""
        self.broken: set[str] = set()
        """Ids of tasks whose engine or GPU failed."""
        self.clock_jumped = False
        self.succeeded_at = float("-inf")
        """When the last controller began."""
        self.rewound: set[str] = set()
        """Ids of attempts and jobs of which a restored database has an older story."""
        self._nodes = nodes
        self._log_folder = log_folder
        self._now = now
        self._said: set[str] = set()
        self._run_of: dict[str, str] = {}
        self._arriving: dict[str, RunState] = {}
        self._overlaps: dict[str, float] = {}
        self._stuck_since: dict[tuple[str, str], float] = {}
        self._committed_nodes: dict[str, Node] = {}
        self._freed = FreedPlaces()
        self._graces = Graces()
        self._going_on: Counter[str] = Counter()
        self._calm_since: dict[str, float] = {}

    def violated(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.violations.append(Violation(self._now(), text))

    def committed(self, changes: Changes) -> None:
        for event in changes.events:
            self._check_event(event)
        for text in placing.evicted_in_vain(changes.events, self.runs, self._has_changed):
            self.violated(text)
        self._arriving = {run_id: after for run_id, (_, after) in changes.runs.items()}
        nodes = self._committed_nodes
        self._committed_nodes = {
            name: node
            for name, node in {**nodes, **changes.nodes}.items()
            if name not in changes.removed_nodes
        }
        recalls = {
            node.id: node.recalled_at
            for node in self._committed_nodes.values()
            if node.recalled_at is not None and node.draining
        }
        known = dict(self.runs)
        for run_id, after in self._arriving.items():
            before = self.runs.get(run_id)
            self._check_moves(before, after)
            self._check_run(after)
            for text in (
                *gangs.breaches(before, after),
                *gangs.overdrawn_jobs(after),
                *replicas.breaches(before, after),
                *sweeps.breaches(before, after),
                *watched.breaches(before, after, changes.events),
                *placing.breaches(before, after, nodes, self._committed_nodes),
                *orders.overspent(after),
                *waiting.out_of_turn(before, after, known | self._arriving),
                *self._graces.cut_short(
                    before,
                    after,
                    changes.events,
                    clock_jumped=self.clock_jumped,
                    recalls=recalls,
                ),
                *orders.misnamed(after),
                *standstill.unlimited(after),
                *(() if self.clock_jumped else standstill.too_far_away(after, EPOCH + self._now())),
                *(() if self.clock_jumped else orders.out_of_order(before, after)),
            ):
                self.violated(text)
            self.runs[run_id] = after
        for text in (
            *placing.names_taken_twice(self.runs),
            *self._given_up_early(changes.events),
            *self._overlong(),
            *self._freed.breaches(known, self.runs, self._committed_nodes),
        ):
            self.violated(text)
        self.look()
        self._check_capacity()
        self._check_overlaps()

    def _has_changed(self, place: Allocation) -> bool:
        """Whether its node is not what it was when the place was planned."""
        broken = any(uuid in self.broken_gpus for uuid in place.gpus)
        return broken or bool(self.rewound) or self._is_unreliable(self.names.get(place.node_id))

    def _given_up_early(self, events: Iterable[Event]) -> Iterator[str]:
        if not self.clock_jumped:
            yield from watched.given_up_early(events, self.leases, EPOCH + self._now())

    def _waiting_too_long(self) -> Iterator[str]:
        """Containers that wait for a start although nobody watches any more."""
        for state in () if self.clock_jumped else self.runs.values():
            if (leases := self.leases.get(state.run.id)) is None or state.run.suspended:
                continue
            for _, attempt in _attempts([state]):
                container = self.containers.get(attempt.id)
                if container is None or container.starts.waits is None or container.ended.is_set():
                    continue
                calm = max(
                    self._is_calm_since(self.names.get(attempt.node_id or "", "")),
                    self.succeeded_at + LEASE_SECONDS,
                )
                since = max(
                    EPOCH + calm,
                    container.starts.waits.finished_at,
                    state.run.resumed_at or 0.0,
                    *leases.values(),
                )
                late = EPOCH + self._now() - since - LEASE_SECONDS - LATE_SECONDS
                if late > 0 and container.record is None and attempt.id not in self.rewound:
                    yield f"the container of {attempt.id} waits, and nobody watches"

    def _overlong(self) -> Iterator[str]:
        if self.clock_jumped or self._now() < self.succeeded_at + LATE_SECONDS:
            return
        for state in self.runs.values():
            yield from orders.overlong(state, EPOCH + self._now(), LATE_SECONDS)

    def look(self) -> None:
        """For what stands still: it may be that nothing is committed any more."""
        stuck = {
            attempt.id: (attempt, text)
            for state in self.runs.values()
            for _, attempt in _attempts([state])
            if not _is_final(attempt) and (text := self._stuck(state, attempt)) is not None
        }
        self._stuck_since = {
            (key, text): self._stuck_since.get((key, text), self._now())
            for key, (_, text) in stuck.items()
        }
        for (key, text), since in self._stuck_since.items():
            if since + standstill.PATIENCE_SECONDS < self._now():
                self.violated(f"attempt {key} {text}")
        for text in (*self._left_alone(), *self._waiting_too_long()):
            self.violated(text)

    def _stuck(self, state: RunState, attempt: Attempt) -> str | None:
        """None where something is, or was just now, in the way."""
        name = self.names.get(attempt.node_id or "", "")
        calm_from = max(self._is_calm_since(name), self.succeeded_at) + standstill.PATIENCE_SECONDS
        if self.clock_jumped or attempt.id in self.rewound or calm_from >= self._now():
            return None
        node, container = self._nodes.get(name), self.containers.get(attempt.id)
        return standstill.stuck(state, attempt, node, container, EPOCH + self._now())

    def put_back(self, runs: Mapping[str, RunState], nodes: Mapping[str, Node]) -> None:
        """The database was restored: what is newer than it nobody remembers."""
        for job, attempt in _attempts([*self.runs.values(), *runs.values()]):
            known = runs.get(self._run_of.get(attempt.id, ""))
            kept = {a.id: a for _, a in _attempts([known] if known else [])}.get(attempt.id)
            if kept is None or not _is_final(kept):
                self.rewound |= {job.id, attempt.id}
        self.runs = dict(runs)
        self._committed_nodes = dict(nodes)
        self._freed.forget()
        self._graces.forget()

    @contextlib.contextmanager
    def disturbed(self, names: Iterable[str]) -> Iterator[None]:
        """While something keeps these nodes and controllers from each other, or may."""
        hit = list(names)
        self._going_on.update(hit)
        try:
            yield
        finally:
            self._going_on.subtract(hit)
            self._calm_since |= dict.fromkeys(hit, self._now())

    def _is_calm_since(self, name: str) -> float:
        return float("inf") if self._going_on[name] > 0 else self._calm_since.get(name, 0.0)

    # -- SimulatedNode's watcher --------------------------------------------------------------

    def container_started(self, node: SimulatedNode, info: TaskInfo, made: Container) -> None:
        if info.id in self.containers and not self._may_start_again(info.id):
            self.violated(f"attempt {info.id} got a second container, on {node.name}")
        self.containers[info.id] = made
        self._started_on[info.id] = node.name
        made.rides.began = self.ride_began
        if info.id in self.rewound:
            return
        for _, attempt in _attempts(self.runs.values()):
            final = attempt.status in FINAL_ATTEMPT_STATUSES and not attempt.cleanup_unknown
            if attempt.id == info.id and final:
                self.violated(f"the container of {attempt.id} started after the attempt was final")
        self._check_older_incarnations(info)
        self._check_alone(info)

    def ride_began(self, attempt_id: str) -> None:
        """A job began in the container of another one (docs/rules.md 11.14)."""
        if attempt_id in self.rewound:
            return
        for _, attempt in _attempts(self.runs.values()):
            lost = attempt.reason is Reason.INSTANCE_UNREACHABLE
            if attempt.id == attempt_id and attempt.status in FINAL_ATTEMPT_STATUSES and not lost:
                self.violated(f"{attempt_id} began in another's container after it was final")

    def _may_start_again(self, attempt_id: str) -> bool:
        """Its first container was lost, or a restored controller has not seen it yet."""
        if self.containers[attempt_id].ended.is_set():
            return attempt_id in self.lost or attempt_id in self.rewound
        known_since = max(self._is_calm_since(self._started_on[attempt_id]), self.succeeded_at)
        return attempt_id in self.rewound and known_since + RECONNECTED_WITHIN > self._now()

    def task_lost(self, task_id: str) -> None:
        self.lost.add(task_id)

    def task_unheard(self, node: SimulatedNode, info: TaskInfo) -> None:
        self.unheard[info.id] = EPOCH + self._now()
        patience = node.tasks[info.id].request.stop_when_unheard_seconds or 0.0
        calm_since = max(self._is_calm_since(node.name), self.succeeded_at)
        if calm_since + patience + RECONNECTED_WITHIN < self._now():
            self.violated(f"{node.name} stopped {info.id} unheard, though nothing was in the way")

    def _check_older_incarnations(self, info: TaskInfo) -> None:
        state = self.runs.get(info.run_id)
        if state is None:
            return
        for _, other in _attempts([state]):
            if other.incarnation is None or other.incarnation.number >= info.incarnation:
                continue
            container = self.containers.get(other.id)
            runs = container is not None and not container.ended.is_set()
            if runs and not other.cleanup_unknown and other.id not in self.rewound:
                self.violated(
                    f"incarnation {info.incarnation} of {state.run.name} started while {other.id} "
                    f"of incarnation {other.incarnation.number} runs"
                )

    def _check_alone(self, info: TaskInfo) -> None:
        """A job that ends by itself before its node can be given up never runs twice."""
        state = self.runs.get(info.run_id)
        for job, attempt in _attempts([] if state is None or self.clock_jumped else [state]):
            patience, other = job.spec.stop_when_unheard, self.containers.get(attempt.id)
            node = self._nodes.get(self.names.get(attempt.node_id or "", ""))
            if patience is None or patience > SOON_SECONDS or other is None or node is None:
                continue
            beside = attempt.id != info.id and any(one.id == info.id for one in job.attempts)
            watched = node.serving and self._now() - node.serving_since > patience + SOON_SECONDS
            runs = not other.ended.is_set() and attempt.id not in self.rewound
            if beside and watched and runs:
                self.violated(f"{info.id} started while {attempt.id} of its job still runs")

    # -- one run ------------------------------------------------------------------------------

    def _check_event(self, event: Event) -> None:
        moves: dict[EventKind, Mapping[str, Iterable[str]]] = {
            EventKind.RUN: {str(k): v for k, v in RUN_MOVES.items()},
            EventKind.ATTEMPT: {str(k): v for k, v in ATTEMPT_MOVES.items()},
            EventKind.ALLOCATION: {str(k): v for k, v in ALLOCATION_MOVES.items()},
        }
        table = moves.get(event.kind)
        if table is None or event.from_status is None or event.to_status is None:
            return
        if event.to_status not in set(table[event.from_status]):
            self.violated(f"illegal move: {event.kind} {event.from_status} → {event.to_status}")

    def _check_moves(self, before: RunState | None, after: RunState) -> None:
        if before is None:
            return
        run = after.run
        if before.run.status in FINAL_RUN_STATUSES and (before.run.status, before.run.reason) != (
            run.status,
            run.reason,
        ):
            self.violated(f"run {run.name} changed from {before.run.status} to {run.status}")
        now = {attempt.id: attempt for _, attempt in _attempts([after])}
        self._check_stillness(before, after)
        self._check_inactivity(before, after)
        for _, old in _attempts([before]):
            new = now.get(old.id)
            if new is None:
                if not _is_final(old) or old.cleanup_unknown or not _is_long(after, old):
                    self.violated(f"attempt {old.id} vanished")
            elif old.status in FINAL_ATTEMPT_STATUSES and _verdict(old) != _verdict(new):
                self.violated(f"final attempt {old.id}: {_verdict(old)} → {_verdict(new)}")
            elif old.reason is not None and old.reason is not new.reason:
                self.violated(f"attempt {old.id} changed its reason from {old.reason}")
        places = {place.id: place for place in after.allocations}
        for place in before.allocations:
            kept = places.get(place.id)
            if kept is None and place.state is not AllocationState.RELEASED:
                self.violated(f"allocation {place.id} vanished while it was {place.state}")
            if kept is not None and place.state is AllocationState.RELEASED is not kept.state:
                self.violated(f"allocation {place.id} came back after its release")

    def _check_stillness(self, before: RunState, after: RunState) -> None:
        """A run that is suspended gets no places, one that is about to end no new attempts."""
        known = {attempt.id: attempt for _, attempt in _attempts([before])}
        suspended = before.run.suspended and after.run.suspended
        for _, attempt in _attempts([after]):
            old = known.get(attempt.id)
            if suspended and attempt.node_id is not None and (old is None or old.node_id is None):
                self.violated(f"{attempt.id} of suspended run {after.run.name} got a place")
            if old is None and before.run.status is RunStatus.TERMINATING is after.run.status:
                self.violated(f"ending run {after.run.name} got attempt {attempt.id}")

    def _check_inactivity(self, before: RunState, after: RunState) -> None:
        """A dev environment is stopped for inactivity only when it was left alone."""
        ended = {a.id for _, a in _attempts([before]) if a.reason is not None}
        for _, attempt in _attempts([after]):
            unused = attempt.reason is Reason.INACTIVITY_DURATION_EXCEEDED
            if not unused or attempt.id in ended | self.rewound or self.clock_jumped:
                continue
            uses = self.uses.get(attempt.id, ())
            since = (attempt.running_at or 0.0) - EPOCH
            calm = self._could_be_seen_since(attempt)
            wrong = idle.stopped_in_use(after.run, uses, self._now(), since, calm)
            if wrong is not None:
                self.violated(f"{attempt.id} was stopped for inactivity: {wrong}")

    def _could_be_seen_since(self, attempt: Attempt) -> float:
        name = self.names.get(attempt.node_id or "", "")
        return max(self._is_calm_since(name), self.succeeded_at)

    def _left_alone(self) -> Iterator[str]:
        """Dev environments that should have been stopped for inactivity."""
        for state in () if self.clock_jumped else self.runs.values():
            resumed = (state.run.resumed_at or EPOCH) - EPOCH
            for _, attempt in _attempts([state]) if limit_of(state.run) else ():
                running = (attempt.running_at or EPOCH) - EPOCH
                since = max(self._could_be_seen_since(attempt), running, resumed)
                uses = self.uses.get(attempt.id, ())
                text = idle.left_alone_too_long(state.run, attempt, uses, self._now(), since)
                if text is not None and attempt.id not in self.rewound:
                    yield f"attempt {attempt.id} {text}"

    def _check_run(self, state: RunState) -> None:
        run = state.run
        attempts = list(_attempts([state]))
        live = [attempt for _, attempt in attempts if attempt.status not in FINAL_ATTEMPT_STATUSES]
        if run.status in FINAL_RUN_STATUSES and live:
            self.violated(f"run {run.name} is final with live attempt {live[0].id}")
        for job in state.jobs:
            lives = [a.id for a in job.attempts if a.status not in FINAL_ATTEMPT_STATUSES]
            if len(lives) > 1:
                self.violated(f"job {job.id} has live attempts {', '.join(lives)}")
        known = self.runs.get(run.id)
        finals = {a.id for _, a in _attempts([known] if known else []) if _is_final(a)}
        for job, attempt in attempts:
            ends = _is_final(attempt) or attempt.status is AttemptStatus.TERMINATING
            if ends != (attempt.reason is not None):
                self.violated(f"attempt {attempt.id} is {attempt.status}, reason {attempt.reason}")
            self._run_of[attempt.id] = run.id
            if _is_final(attempt) and attempt.id not in finals and attempt.id not in self.rewound:
                self._check_ended(state, job, attempt)
        for place in state.allocations:
            if place.state is AllocationState.RELEASED:
                self._check_released(state, place)

    def _check_released(self, state: RunState, place: Allocation) -> None:
        for _, attempt in _attempts([state]):
            container = self.containers.get(attempt.id)
            if attempt.allocation_id != place.id or container is None:
                continue
            if not container.ended.is_set() and attempt.id not in self.rewound:
                self.violated(f"the place of {attempt.id} was released while its job ran")

    def _check_carried(self, attempt: Attempt) -> None:
        """Its end and its log are those of the job that ran in its carrier's container."""
        carrier = self.containers.get(attempt.carrier or "")
        ride = None if carrier is None else carrier.rides.all.get(attempt.id)
        by_itself = attempt.reason in (Reason.DONE_BY_RUNNER, Reason.CONTAINER_EXITED_WITH_ERROR)
        if ride is None or ride.exit is None:
            if by_itself:
                self.violated(f"{attempt.id} is {attempt.reason}, and its job has not ended")
            return
        if by_itself and attempt.exit_code != ride.exit.exit_code:
            self.violated(f"{attempt.id} has the exit code {attempt.exit_code}")
        stored = self._stored(attempt.id)
        if stored is None or not ride.output.startswith(stored):
            self.violated(f"the stored log of {attempt.id} is not what the job wrote")
        elif by_itself and stored != ride.output:
            self.violated(f"the log of {attempt.id}, which was carried, is not whole")
        if by_itself and leaves_outputs(attempt.id):
            self._check_stored_outputs(attempt)
        self._check_signals(attempt, ride.signals)

    def _check_ended(self, state: RunState, job: Job, attempt: Attempt) -> None:
        if attempt.carrier:
            self._check_carried(attempt)
            return
        container = self.containers.get(attempt.id)
        found = undeserved(state, job, attempt, container, self._circumstances(state, job, attempt))
        if found is not None:
            self.violated(f"attempt {attempt.id}: {found}")
        self._check_log(attempt, container)
        self._check_outputs(attempt, container)
        if container is not None:
            self._check_signals(attempt, container.rules.signals)

    def _check_signals(self, attempt: Attempt, signals: Mapping[str, SignalRequest]) -> None:
        if self.clock_jumped:
            return
        causes = Counter(one.cause for one in signals.values())
        # A drain may be called off and begin again.
        for cause in (one for one, times in causes.items() if times > 1):
            if cause != Reason.NODE_DRAINED:
                self.violated(f"attempt {attempt.id} was told twice of {cause}")

    def _check_outputs(self, attempt: Attempt, container: Container | None) -> None:
        """What the node promised is stored when the attempt is final, unless the node is lost."""
        if container is None or not leaves_outputs(attempt.id) or self._may_lack_output(attempt):
            return
        self._check_stored_outputs(attempt)

    def _check_stored_outputs(self, attempt: Attempt) -> None:
        stored = self._log_folder / "outputs" / attempt.id[:2] / attempt.id / "outputs.tar"
        if attempt.seen.outputs is None:
            self.violated(f"attempt {attempt.id} is {attempt.status} without its outputs")
        elif stored.read_bytes() != outputs_of(attempt.id):
            self.violated(f"the stored outputs of {attempt.id} are not what its job left")

    def _circumstances(self, state: RunState, job: Job, attempt: Attempt) -> Circumstances:
        ids, parent = {job.id, state.run.id, state.run.name}, self._parent(state)
        bands = {other.run.policy.band for other in self.runs.values()}
        return Circumstances(
            asked=frozenset(kind for kind, asked in self.asked.items() if asked & ids),
            parent_ended=parent is not None and parent.run.status in _ENDED_IN_VAIN,
            one_job_aborted=any(
                one.id in self.asked.get(JobAbortRequested, ()) for one in state.jobs
            ),
            unheard_at=self.unheard.get(attempt.id),
            unreliable=self._is_unreliable(self.names.get(attempt.node_id or "")),
            drained=any(
                self._held_within(one, self.drains.get(one.node_id or "", []))
                for one in (attempt, *self._beside(state, job))
            ),
            lost=attempt.id in self.lost,
            broken=attempt.id in self.broken,
            engine_away=self._held_within(
                attempt, self.engines_away.get(self.names.get(attempt.node_id or "", ""), [])
            ),
            gpu_broke=any(
                self._held_within(attempt, self.broken_gpus.get(uuid, []))
                for uuid in attempt.task.gpus
            ),
            clock_jumped=self.clock_jumped,
            crowded=bool(self.rewound),
            outranked=could_preempt(state.run.policy.band, bands),
        )

    def _is_unreliable(self, name: str | None) -> bool:
        """Also a node that several faults in a row kept from being reached, and one that is silent
        while controllers follow each other: nobody may have listened in the moment in which it was
        heard."""
        node = self._nodes.get(name or "")
        if name in self.unreliable or node is None:
            return name in self.unreliable
        now, weather = self._now(), node.weather
        if weather.heard_at <= now - _LOST_AFTER_SECONDS:
            return True
        # Silence from before a controller's start is counted by the wall clock (docs/state.md).
        if self.clock_jumped and weather.heard_at <= now - 30.0:
            return True
        return weather.silent_since <= min(now - 30.0, self.succeeded_at + 400.0)

    def _parent(self, state: RunState) -> RunState | None:
        key = state.run.parent_id or ""
        return self._arriving.get(key) or self.runs.get(key)

    def _beside(self, state: RunState, job: Job) -> list[Attempt]:
        """The attempts of the other jobs of a service's replica."""
        if not is_member(state.run, job):
            return []
        others = (one for one in members_of(state.jobs, job) if one.id != job.id)
        return [attempt for one in others for attempt in one.attempts]

    def _held_within(self, attempt: Attempt, spans: list[list[float]]) -> bool:
        """Whether the attempt held its place at some time within one of them."""
        placed, ended = attempt.provisioned_at, attempt.terminating_at
        if placed is None or ended is None:
            return False
        if self.clock_jumped:
            return bool(spans)
        return any(since <= ended and placed <= until for since, until in spans)

    def _check_log(self, attempt: Attempt, container: Container | None) -> None:
        written = b"" if container is None else container.output
        stored = self._stored(attempt.id)
        if stored is None:
            self.violated(f"the stored log of {attempt.id} has a gap or a system line")
        elif not written.startswith(stored):
            self.violated(f"the stored log of {attempt.id} is not what the job wrote")
        elif stored != written and not self._may_lack_output(attempt):
            self.violated(
                f"{len(written) - len(stored)} of {len(written)} bytes of the log of {attempt.id} "
                f"were lost ({attempt.reason})"
            )

    def _may_lack_output(self, attempt: Attempt) -> bool:
        """Its node or its files were lost: what had not been sent may be gone."""
        reasons = (attempt.reason, *attempt.later_reasons)
        lost = attempt.cleanup_unknown or attempt.id in self.lost
        return lost or Reason.INSTANCE_UNREACHABLE in reasons

    def _stored(self, attempt_id: str) -> bytes | None:
        folder = self._log_folder / attempt_id[:2] / attempt_id
        payloads = []
        for path in sorted(folder.glob("*.seg")):
            for frame in Decoder().feed(path.read_bytes()):
                if frame.stream not in (Stream.STDOUT, Stream.STDERR) and not _is_warning(frame):
                    return None
                payloads.append(frame.payload)
        return b"".join(payloads)

    # -- all of them --------------------------------------------------------------------------

    def _check_capacity(self) -> None:
        places: dict[str, list[Allocation]] = {}
        for state in self.runs.values():
            for place in state.allocations:
                if place.state is not AllocationState.RELEASED:
                    places.setdefault(place.node_id, []).append(place)
        for node in self._nodes.values():
            held = places.get(self.node_ids.get(node.name, ""), [])
            held = [place for place in held if place.state is not AllocationState.NOMINATED]
            if len(held) > 1 and any(place.resources.whole_node for place in held):
                self.violated(f"{node.name} is held whole, and by {len(held)} allocations")
            gpus = [uuid for place in held for uuid in place.gpus]
            if len(gpus) != len(set(gpus)):
                self.violated(f"a GPU of {node.name} is held twice: {sorted(gpus)}")
            capacity, used = node.ledger.capacity, node.ledger.used()
            self._check_fits(f"allocations on {node.name}", [p.resources for p in held], node)
            networked = {place.run_id for place in held if not place.resources.whole_node}
            if node.networks is not None and len(networked) > node.networks:
                self.violated(
                    f"{len(networked)} runs share {node.networks} networks of {node.name}"
                )
            if used.cpu > capacity.cpu or used.memory > capacity.memory:
                self.violated(f"the shim of {node.name} gave more than it has")

    def _check_fits(self, what: str, held: list[Resources], node: SimulatedNode) -> None:
        capacity = node.ledger.capacity
        cpu, memory = sum(need.cpu for need in held), sum(need.memory for need in held)
        if cpu > capacity.cpu + 1e-6:
            self.violated(f"{what}: {cpu} of {capacity.cpu} CPU")
        if memory > capacity.memory:
            self.violated(f"{what}: {memory} of {capacity.memory} bytes of memory")

    def _check_overlaps(self) -> None:
        jobs = {attempt.id: job.id for job, attempt in _attempts(self.runs.values())}
        running: dict[str, list[str]] = {}
        for node in self._nodes.values():
            if not node.serving or node.weather.silent or node.weather.refusing:
                continue
            for info, _ in node.containers():
                running.setdefault(jobs.get(info.id, info.id), []).append(node.name)
        twice = {
            job_id: names
            for job_id, names in running.items()
            if len(names) > 1 and job_id not in self.rewound
        }
        self._overlaps = {job_id: self._overlaps.get(job_id, self._now()) for job_id in twice}
        for job_id, since in self._overlaps.items():
            if self._now() - since > OVERLAP_SECONDS:
                self.violated(f"job {job_id} runs on {' and '.join(sorted(twice[job_id]))}")


def _attempts(states: Iterable[RunState]) -> Iterator[tuple[Job, Attempt]]:
    for state in states:
        for job in state.all_jobs:
            for attempt in job.attempts:
                yield job, attempt


def _is_long(state: RunState, attempt: Attempt) -> bool:
    """So many attempts has its job that the older ones are in the store alone."""
    return any(
        job.id == attempt.job_id and len(job.attempts) >= KEPT_ATTEMPTS for job in state.jobs
    )


def _is_warning(frame: Frame) -> bool:
    """The system line before the end of a dev environment that is not used."""
    return frame.stream is Stream.SYSTEM and frame.payload.startswith(b"not in use: ")


def _is_final(attempt: Attempt) -> bool:
    return attempt.status in FINAL_ATTEMPT_STATUSES


def _verdict(attempt: Attempt) -> tuple[object, ...]:
    return attempt.status, attempt.reason, attempt.finished_at
