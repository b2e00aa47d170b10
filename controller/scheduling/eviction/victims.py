"""Victims are the jobs to evict so that a higher band's job fits: the fewest, then the cheapest.

Only jobs of strictly lower bands are evicted, and only those that are gone before the waiting job
gives up. An allocation that is nominated already is not offered again.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from controller.lifecycle.attempts import termination
from controller.lifecycle.membership import ranks
from controller.lifecycle.membership.members import queues_as_a_whole
from controller.lifecycle.model import Allocation, Attempt, Job, Resources, Run
from controller.scheduling.fitting.capacity import Need
from controller.scheduling.fitting.fit import Room, room, shortfalls
from controller.scheduling.index import Where
from controller.scheduling.queue import BANDS
from controller.scheduling.trial_capacity import TrialCapacity
from fairlead.model.reasons import SHORT_GRACE, Reason
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus

_LIVE = frozenset({AttemptStatus.PROVISIONING, AttemptStatus.PULLING, AttemptStatus.RUNNING})
CLEANUP_SECONDS = 10.0
"""Seconds from the end of a victim's grace until its allocation is free."""
_COMES_BACK_IN_PLACE = frozenset({Reason.SIBLING_FAILED, Reason.INCARNATION_CHANGED})


class Preemptor(msgspec.Struct, frozen=True):
    """The job that needs room: lower bands are evicted if they are gone `before` (Unix seconds;
    None: at any time)."""

    band: int
    before: float | None = None


class Victim(msgspec.Struct, frozen=True):
    """A job that may be evicted, with its allocation."""

    allocation: Allocation
    run: Run
    attempt: Attempt

    @property
    def leaves_anyway(self) -> bool:
        is_ending = self.attempt.status is AttemptStatus.TERMINATING
        return is_ending and not self.attempt.carries_until

    @property
    def price(self) -> tuple[bool, int, bool, float, str]:
        """The cheapest first: jobs that leave anyway, the lowest band, reserved jobs, the
        youngest."""
        began = self.attempt.running_at or self.allocation.created_at
        band = BANDS[self.run.policy.band]
        reserved = ranks.is_reserved(self.attempt)
        return (not self.leaves_anyway, -band, not reserved, -began, self.allocation.id)


def evicted_of(victims: Iterable[Victim]) -> int:
    """Return how many of them are evicted; the others leave anyway."""
    return sum(not one.leaves_anyway for one in victims)


MAX_SETS = 100
"""The number of sets of victims that are tried to find a smaller one."""


def cheapest_first(victims: Sequence[Victim], size: int) -> Iterator[tuple[Victim, ...]]:
    """Yield all sets of so many of these victims, which are sorted by price. A set is as cheap as
    its dearest victim, then as the next one."""
    if size == 0:
        yield ()
        return
    for last in range(size - 1, len(victims)):
        for rest in cheapest_first(victims[:last], size - 1):
            yield (*rest, victims[last])


def number_of(parts: Iterable[float], wanted: float) -> int:
    """Return how many of the largest parts make up what is wanted; one more than all if they do
    not."""
    number = 0
    for number, part in enumerate(sorted(parts, reverse=True), 1):
        wanted -= part
        if wanted <= 1e-6:
            return number
    return number + 1


Cost = tuple[int, tuple[tuple[bool, int, bool, float, str], ...]]


class Eviction(msgspec.Struct, frozen=True):
    """One more job fits this node when these victims have left it."""

    node_id: str
    victims: tuple[Victim, ...]
    freed: Room

    @property
    def cost(self) -> Cost:
        evicted = [one for one in self.victims if not one.leaves_anyway]
        return len(evicted), tuple(sorted((one.price for one in evicted), reverse=True))


class Victims:
    """The possible victims of one scheduling pass; `chosen` are the allocations that they leave."""

    def __init__(self, trial: TrialCapacity, now: float) -> None:
        self._trial = trial
        self._index = trial.index
        self._now = now
        self._holders: dict[str, dict[str, tuple[Job, Attempt]]] = {}
        self.chosen: set[str] = set(self._index.nomination_on)
        self.lowest = max(
            (BANDS[band] for band, count in self._index.bands.items() if count), default=0
        )

    def solos_on(self, node_id: str, preemptor: Preemptor) -> list[Victim]:
        """Return single jobs, and reserved jobs of gangs, the cheapest first."""
        found = []
        for allocation in self._index.taken.get(node_id, {}).values():
            victim = self._victim(allocation, preemptor)
            if victim is None or not self._is_solo(victim):
                continue
            if self._is_gone_in_time(victim, preemptor):
                found.append(victim)
        return sorted(found, key=lambda one: one.price)

    def gangs_in(self, where: Where, preemptor: Preemptor) -> Iterator[list[Victim]]:
        """Yield whole gangs with an allocation in this domain, those with the fewest jobs first,
        and of equally few the cheapest. Their jobs have only a short grace."""
        nodes = self._index.rooms if where is None else self._index.domains.get(where, {})
        runs: dict[str, Run] = {}
        jobs: Counter[str] = Counter()
        for node_id in nodes:
            for allocation in self._index.taken.get(node_id, {}).values():
                state = self._index.states.get(allocation.run_id)
                if (
                    state is not None
                    and ranks.is_gang_run(state.run)
                    and _goes(state.run, preemptor)
                ):
                    runs[state.run.id] = state.run
                    jobs[state.run.id] += 1
        in_order = sorted(runs.values(), key=lambda run: (jobs[run.id], _gang_price(run)))
        for run in in_order:
            found = [
                victim
                for allocation in self._index.states[run.id].allocations
                if (victim := self._victim(allocation, preemptor)) is not None
            ]
            if found and all(
                not one.leaves_anyway and self._is_gone_in_time(one, preemptor, SHORT_GRACE)
                for one in found
            ):
                yield found

    def plan(self, node_id: str, need: Need, preemptor: Preemptor) -> Eviction | None:
        """Return the cheapest plan for one node; None: no job has to go, or it would not fit even
        then."""
        candidates = self.solos_on(node_id, preemptor)
        if all(one.leaves_anyway for one in candidates):
            return None
        chosen: list[Victim] = []
        freed = self._without(node_id, chosen)
        for victim in candidates:
            if not shortfalls(need.resources, freed):
                break
            chosen.append(victim)
            freed = self._without(node_id, chosen)
        if shortfalls(need.resources, freed) or all(one.leaves_anyway for one in chosen):
            return None
        if len(chosen) == 1:
            return Eviction(node_id, tuple(chosen), freed)
        fewer = self._fewer(node_id, need, candidates, evicted_of(chosen))
        return self._pruned(node_id, need, fewer or chosen)

    def _fewer(
        self, node_id: str, need: Need, candidates: list[Victim], than: int
    ) -> list[Victim] | None:
        """Return fewer victims that are enough too, with all that leave anyway; None: none were
        found in MAX_SETS tries."""
        if need.resources.whole_node:
            return None
        leaving = [one for one in candidates if one.leaves_anyway]
        others = [one for one in candidates if not one.leaves_anyway]
        least = _at_least(need.resources, self._without(node_id, leaving), others)
        sets = (one for size in range(least, than) for one in cheapest_first(others, size))
        for some in islice(sets, MAX_SETS):
            if not shortfalls(need.resources, self._without(node_id, [*leaving, *some])):
                return [*leaving, *some]
        return None

    def _pruned(self, node_id: str, need: Need, chosen: list[Victim]) -> Eviction | None:
        """Return the plan without victims that turned out to be unnecessary; the dearest are spared
        first."""
        for victim in sorted(chosen, key=lambda one: one.price, reverse=True):
            fewer = [one for one in chosen if one is not victim]
            if not shortfalls(need.resources, self._without(node_id, fewer)):
                chosen = fewer
        if all(one.leaves_anyway for one in chosen):
            return None
        return Eviction(node_id, tuple(chosen), self._without(node_id, chosen))

    def _without(self, node_id: str, gone: Iterable[Victim]) -> Room:
        """Return the room of the node when these are gone. An allocation with a nomination counts
        for the nominating run only."""
        leaving = {one.allocation.id for one in gone} | self.chosen
        taken = [a for a in self._trial.taken_on(node_id) if a.id not in leaving]
        return room(self._index.nodes[node_id], taken)

    def _victim(self, allocation: Allocation, preemptor: Preemptor) -> Victim | None:
        if allocation.state is not AllocationState.HELD or allocation.id in self.chosen:
            return None
        state = self._index.states.get(allocation.run_id)
        if state is None:
            return None
        held = self._holders_of(allocation.run_id).get(allocation.id)
        if held is None:
            return None
        _, attempt = held
        if attempt.status is AttemptStatus.TERMINATING and not attempt.carries_until:
            in_place = attempt.reason in _COMES_BACK_IN_PLACE and not queues_as_a_whole(state.run)
            if in_place or ranks.is_gang_run(state.run):
                return None
        else:
            lives = attempt.status in _LIVE or attempt.carries_until
            if not lives or not _goes(state.run, preemptor):
                return None
        return Victim(allocation, state.run, attempt)

    def _is_gone_in_time(
        self, victim: Victim, preemptor: Preemptor, longest: float = math.inf
    ) -> bool:
        """Return whether the victim is gone in time. `longest`: an upper bound for its grace, in
        seconds."""
        if preemptor.before is None:
            return True
        attempt = victim.attempt
        was_running = attempt.running_at is not None
        grace = termination.grace(victim.run.policy, Reason.PREEMPTED, was_running=was_running)
        leaves_at = self._now + min(grace, longest)
        if victim.leaves_anyway:
            leaves_at = max(self._now, attempt.remove_at or 0.0)
        return leaves_at + CLEANUP_SECONDS <= preemptor.before

    def _holders_of(self, run_id: str) -> dict[str, tuple[Job, Attempt]]:
        if run_id not in self._holders:
            self._holders[run_id] = {
                job.attempts[-1].allocation_id: (job, job.attempts[-1])
                for job in self._index.states[run_id].jobs
                if job.attempts and job.attempts[-1].allocation_id is not None
            }
        return self._holders[run_id]

    def _is_solo(self, victim: Victim) -> bool:
        return not ranks.is_gang_run(victim.run) or ranks.is_reserved(victim.attempt)


class Evictions:
    """The plans for one need of a preemptor, the cheapest first; a node that has changed is planned
    again."""

    def __init__(
        self, victims: Victims, need: Need, preemptor: Preemptor, node_ids: Iterable[str]
    ) -> None:
        self._victims = victims
        self._need = need
        self._preemptor = preemptor
        self._heap: list[tuple[Cost, str]] = []
        for node_id in node_ids:
            self._push(node_id)

    def best(self) -> Eviction | None:
        while self._heap:
            cost, node_id = heapq.heappop(self._heap)
            plan = self._victims.plan(node_id, self._need, self._preemptor)
            if plan is None:
                continue
            heapq.heappush(self._heap, (plan.cost, node_id))
            if plan.cost <= cost:
                return plan
        return None

    def _push(self, node_id: str) -> None:
        """Add the node as if only its cheapest job had to go; the real cost is computed when it
        would be the best."""
        candidates = self._victims.solos_on(node_id, self._preemptor)
        cheapest = next((one for one in candidates if not one.leaves_anyway), None)
        if cheapest is not None:
            heapq.heappush(self._heap, ((1, (cheapest.price,)), node_id))


def _at_least(need: Resources, free: Room, victims: Sequence[Victim]) -> int:
    """Return a number of victims below which none of their sets leaves enough."""
    left = [one.allocation for one in victims]
    return max(
        number_of([len(one.gpus) for one in left], need.gpu.count - len(free.gpus)),
        number_of([one.resources.cpu for one in left], need.cpu - free.cpu),
        number_of([one.resources.memory for one in left], need.memory - free.memory),
    )


def _goes(run: Run, preemptor: Preemptor) -> bool:
    return BANDS[run.policy.band] > preemptor.band and run.status is not RunStatus.TERMINATING


def _gang_price(run: Run) -> tuple[int, float, str]:
    return (-BANDS[run.policy.band], -run.submitted_at, run.id)
