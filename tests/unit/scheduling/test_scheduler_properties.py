"""Properties that hold in any order of events: nothing is over-committed, a gang is whole or not at
all, no job waits while a node can take it, and the index is what one made anew would be."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from controller.lifecycle.membership import ranks
from controller.lifecycle.model import (
    Amount,
    Band,
    Constraint,
    GpuNeed,
    Group,
    NodeStatus,
    Operator,
    Resources,
    RetryEvent,
    RetryPolicy,
    RunPolicy,
)
from controller.lifecycle.reports import (
    Report,
    ResumeRequested,
    RunnerExited,
    StopRequested,
    SuspendRequested,
)
from controller.scheduling.fitting.fit import room, shortfalls
from controller.scheduling.index import is_usable
from controller.scheduling.placement import SchedulingPass
from controller.scheduling.queue import Kind, in_order
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AllocationState, AttemptStatus
from tests.support.indexes import index_of
from tests.unit.scheduling.cluster import Cluster, attempts, gpu_node, rack_fleet
from tests.unit.scheduling.parts import new_id

NODES = 5
_bands = st.sampled_from(list(Band))
_pick = st.integers(0, 1_000)


class Scheduling(RuleBasedStateMachine):
    @initialize(racks=st.booleans())
    def begin(self, racks: bool) -> None:
        nodes = [
            gpu_node(f"n{n}", 4, attributes={"rack": f"r{n % 2}"} if n else {})
            for n in range(NODES)
        ]
        self.cluster = Cluster(*nodes, fleets=(rack_fleet(),) if racks else ())
        self.settled = True

    # -- what may happen --------------------------------------------------------------------

    @rule(band=_bands, gpus=st.integers(0, 5), user=st.sampled_from(["ada", "bob"]))
    def submit_job(self, band: Band, gpus: int, user: str) -> None:
        self.cluster.submit(self._name(), band=band, gpus=gpus, user=user, cpu=7.0)
        self.settled = False

    @rule(band=_bands, size=st.integers(1, 3), reserved=st.integers(0, 1), whole=st.booleans())
    def submit_gang(self, band: Band, size: int, reserved: int, whole: bool) -> None:
        group = Group(name="main", nodes=size + reserved, gang_size=size)
        again = RunPolicy(retry=RetryPolicy(on_events=frozenset(RetryEvent)))
        self.cluster.submit(
            self._name(),
            group,
            band=band,
            gpus=2,
            whole_node=whole,
            policy=again,
            unset=tuple(Amount),
        )
        self.settled = False

    @rule(
        band=_bands,
        sizes=st.tuples(st.integers(1, 2), st.integers(1, 2)),
        gpus=st.tuples(st.integers(1, 3), st.integers(1, 4)),
        nodes=st.sets(st.integers(0, NODES - 1), min_size=1),
    )
    def submit_mixed_gang(
        self, band: Band, sizes: tuple[int, int], gpus: tuple[int, int], nodes: set[int]
    ) -> None:
        """The jobs of one group may go to some nodes alone."""
        groups = [
            Group(name=name, nodes=size, gang_size=size)
            for name, size in zip("gh", sizes, strict=True)
        ]
        names = tuple(f"n{n}" for n in sorted(nodes))
        own: dict[str, dict[str, Any]] = {
            name: {"resources": Resources(gpu=GpuNeed(count=count))}
            for name, count in zip("gh", gpus, strict=True)
        }
        own["h"]["constraints"] = (
            Constraint(attribute="node", operator=Operator.IN, values=names),
        )
        again = RunPolicy(retry=RetryPolicy(on_events=frozenset(RetryEvent)))
        self.cluster.submit(self._name(), *groups, band=band, policy=again, own=own)
        self.settled = False

    @rule()
    def turn(self) -> None:
        for _ in range(20):
            if not self.cluster.turn() and not self.cluster.pipeline.is_unfinished:
                self.settled = True
                return
        raise AssertionError("the scheduler finds no end")

    @rule()
    def start(self) -> None:
        self.cluster.start_all()
        self.settled = False

    @rule(pick=_pick, code=st.integers(0, 1))
    def job_ends(self, pick: int, code: int) -> None:
        reason = Reason.CONTAINER_EXITED_WITH_ERROR if code else Reason.DONE_BY_RUNNER
        running = [
            (run_id, attempt)
            for run_id, state in self.cluster.states.items()
            for attempt in attempts(state)
            if attempt.status is AttemptStatus.RUNNING
        ]
        if running:
            run_id, attempt = running[pick % len(running)]
            ids = {"run_id": run_id, "attempt_id": attempt.id}
            self.cluster.tell(run_id, RunnerExited(reason=reason, exit_code=code, **ids))
            self.settled = False

    @rule(seconds=st.sampled_from([20.0, 200.0]))
    def wait(self, seconds: float) -> None:
        self.cluster.now += seconds
        for run_id in list(self.cluster.states):
            self.cluster.tell(run_id)
        self.settled = False

    @rule(pick=_pick)
    def one_leaves(self, pick: int) -> None:
        run_id = self._run(pick)
        if run_id:
            self.cluster.leave(run_id, at_most=1)
            self.settled = False

    @rule(pick=_pick)
    def leave(self, pick: int) -> None:
        run_id = self._run(pick)
        if run_id:
            self.cluster.leave(run_id)
            self.settled = False

    @rule(pick=_pick, what=st.sampled_from(["stop", "suspend", "resume"]))
    def ask(self, pick: int, what: str) -> None:
        run_id = self._run(pick)
        if run_id is None:
            return
        ids: dict[str, Any] = {"run_id": run_id, "by": "ada"}
        asked: dict[str, Report] = {
            "stop": StopRequested(abort=False, **ids),
            "suspend": SuspendRequested(abort_running=False, **ids),
            "resume": ResumeRequested(**ids),
        }
        self.cluster.tell(run_id, asked[what])
        self.settled = False

    @rule(
        pick=st.integers(0, NODES - 1), change=st.sampled_from(["cordon", "drain", "cut", "mend"])
    )
    def change_node(self, pick: int, change: str) -> None:
        node = self.cluster.node(f"n{pick}")
        changes: dict[str, dict[str, Any]] = {
            "cordon": {"cordoned": True},
            "drain": {"draining": True},
            "cut": {"status": NodeStatus.UNREACHABLE},
            "mend": {"cordoned": False, "draining": False, "status": NodeStatus.CONNECTED},
        }
        self.cluster.set_node(replace(node, **changes[change]))
        self.settled = False

    # -- what always holds ------------------------------------------------------------------

    @invariant()
    def nothing_is_over_committed(self) -> None:
        for name in (f"n{n}" for n in range(NODES)):
            held = [
                a
                for state in self.cluster.states.values()
                for a in state.allocations
                if a.node_id == name and a.state in (AllocationState.HELD, AllocationState.ORPHANED)
            ]
            whole = [a for a in held if a.resources.whole_node]
            assert not whole or len(held) == 1, f"a whole node has two owners: {held}"
            owners = Counter(uuid for a in held for uuid in a.gpus)
            assert not [uuid for uuid, count in owners.items() if count > 1]
            free = room(self.cluster.node(name), held)
            assert whole or (free.cpu >= 0 and free.memory >= 0)

    @invariant()
    def what_a_switch_freed_goes_to_nobody_else(self) -> None:
        for name in (f"n{n}" for n in range(NODES)):
            taken = [
                a
                for state in self.cluster.states.values()
                for a in state.allocations
                if a.node_id == name
                and (a.state is AllocationState.HELD or a.freed)
                and a.state is not AllocationState.RELEASED
            ]
            if not any(a.freed for a in taken):
                continue
            assert not any(a.resources.whole_node for a in taken) or len(taken) == 1
            owners = Counter(uuid for a in taken for uuid in a.gpus)
            assert not [uuid for uuid, count in owners.items() if count > 1]
            free = room(self.cluster.node(name), taken)
            assert len(taken) == 1 or (free.cpu >= 0 and free.memory >= 0)

    @invariant()
    def a_gang_is_placed_whole_or_not_at_all(self) -> None:
        for state in self.cluster.states.values():
            ranked = ranks.ranked_attempts(state.run, state.jobs)
            live = [a for a in ranked if a.reason is None]
            waiting = [a for a in live if a.status is AttemptStatus.SUBMITTED]
            nominated = {a.id for a in self.cluster.nominated(state.run.id)}
            assert len({a.allocation_id in nominated for a in waiting}) <= 1
            held = {a.id: a for a in state.allocations if a.state is AllocationState.HELD}
            places = {held[a.allocation_id].placement for a in live if a.allocation_id in held}
            assert len(places) <= 1, "a gang lies in two placement values"

    @invariant()
    def the_index_is_what_one_made_anew_is(self) -> None:
        mine = self.cluster.pipeline.index
        mine.refresh()
        fresh = index_of(self.cluster.states.values(), mine.nodes.values(), mine.fleets)
        assert mine.rooms == fresh.rooms
        assert mine.units == fresh.units or _known(mine.units) == _known(fresh.units)
        assert {n: set(a) for n, a in mine.taken.items()} == {
            n: set(a) for n, a in fresh.taken.items()
        }
        assert mine.nominations == fresh.nominations
        assert mine.nomination_on == fresh.nomination_on
        assert {d: set(n) for d, n in mine.domains.items()} == {
            d: set(n) for d, n in fresh.domains.items()
        }
        for user in ("ada", "bob"):
            now = self.cluster.now + 100.0
            pairs = zip(mine.use.used(user, now), fresh.use.used(user, now), strict=True)
            assert all(abs(one - other) <= 1 for one, other in pairs)

    @invariant()
    def a_round_is_a_pure_function_of_the_index(self) -> None:
        index = self.cluster.pipeline.index
        index.refresh()
        before = dict(index.rooms)
        ids = iter(range(10_000))
        told = SchedulingPass(index, self.cluster.now, lambda: f"x{next(ids)}").decide()
        ids = iter(range(10_000))
        assert told == SchedulingPass(index, self.cluster.now, lambda: f"x{next(ids)}").decide()
        assert index.rooms == before

    @invariant()
    def the_order_is_total(self) -> None:
        index = self.cluster.pipeline.index
        units = [unit for waiting in index.units.values() for unit in waiting]
        ordered = in_order(units, index.use, self.cluster.now)
        assert ordered == in_order(reversed(units), index.use, self.cluster.now)

    @precondition(lambda self: self.settled)
    @invariant()
    def no_job_waits_beside_a_place(self) -> None:
        index = self.cluster.pipeline.index
        index.refresh()
        for units in index.units.values():
            for unit in units:
                if unit.kind is not Kind.SOLO or unit.nominated:
                    continue
                need = unit.members[0].need.resources
                fitting = [n for n, free in index.rooms.items() if not shortfalls(need, free)]
                assert not fitting, f"{unit.run.name} waits beside {fitting}"

    @invariant()
    def nothing_new_is_where_nothing_may_be_placed(self) -> None:
        for state in self.cluster.states.values():
            for place in self.cluster.nominated(state.run.id):
                node = self.cluster.node(place.node_id)
                usable = is_usable(replace(node, status=NodeStatus.CONNECTED))
                assert usable or not self.settled

    def _run(self, pick: int) -> str | None:
        runs = list(self.cluster.states)
        return runs[pick % len(runs)] if runs else None

    def _name(self) -> str:
        return f"run-{new_id()}"


def _known(units: dict[str, Any]) -> dict[str, list[tuple[str, ...]]]:
    """Needs are compared by identity; these are the members by attempt."""
    return {
        run_id: [tuple(member.attempt.id for member in unit.members) for unit in waiting]
        for run_id, waiting in units.items()
    }


TestScheduling = Scheduling.TestCase
TestScheduling.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
