"""Who would have to go so that a higher band's job fits: the fewest, and of those the cheapest.

Only strictly lower bands, and only who will be gone before the job itself gives up waiting; a place
on which a nomination lies already is nobody's any more.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator

import msgspec

from controller.lifecycle import gangs, termination
from controller.lifecycle.model import Allocation, Attempt, Job, Run
from controller.lifecycle.reasons import SHORT_GRACE, Reason
from controller.lifecycle.statuses import AllocationState, AttemptStatus, RunStatus
from controller.scheduling.capacity import Need
from controller.scheduling.fit import Room, room, shortfalls
from controller.scheduling.index import TrialCapacity, Where
from controller.scheduling.queue import BANDS

_LIVE = frozenset({AttemptStatus.PROVISIONING, AttemptStatus.PULLING, AttemptStatus.RUNNING})
CLEANUP_SECONDS = 10.0
"""For what follows a victim's grace, until its place is free."""
_COMES_BACK_IN_PLACE = frozenset({Reason.SIBLING_FAILED, Reason.INCARNATION_CHANGED})


class Claimant(msgspec.Struct, frozen=True):
    """For whom room is made: those of lower bands go who are gone `before` (None: whenever)."""

    band: int
    before: float | None = None


class Victim(msgspec.Struct, frozen=True):
    allocation: Allocation
    run: Run
    attempt: Attempt

    @property
    def leaves_anyway(self) -> bool:
        return self.attempt.status is AttemptStatus.TERMINATING

    @property
    def price(self) -> tuple[bool, int, bool, float, str]:
        """The cheapest first: who leaves anyway, the lowest band, reserved jobs, the youngest."""
        began = self.attempt.running_at or self.allocation.created_at
        band = BANDS[self.run.policy.band]
        reserved = gangs.is_reserved(self.attempt)
        return (not self.leaves_anyway, -band, not reserved, -began, self.allocation.id)


Cost = tuple[int, tuple[tuple[bool, int, bool, float, str], ...]]


class Plan(msgspec.Struct, frozen=True):
    """One more job fits this node when these have left it."""

    node_id: str
    victims: tuple[Victim, ...]
    freed: Room

    @property
    def cost(self) -> Cost:
        evicted = [one for one in self.victims if not one.leaves_anyway]
        return len(evicted), tuple(sorted((one.price for one in evicted), reverse=True))


class Victims:
    """As one round of the scheduler sees them; `claimed` are those that it has chosen itself."""

    def __init__(self, board: TrialCapacity, now: float) -> None:
        self._board = board
        self._index = board.index
        self._now = now
        self._holders: dict[str, dict[str, tuple[Job, Attempt]]] = {}
        self.claimed: set[str] = set(self._index.claims)
        self.lowest = max(
            (BANDS[state.run.policy.band] for state in self._index.states.values()), default=0
        )

    def solos_on(self, node_id: str, claimant: Claimant) -> list[Victim]:
        """Jobs of their own, and reserved ones of gangs, the cheapest first."""
        found = []
        for allocation in self._index.taken.get(node_id, {}).values():
            victim = self._victim(allocation, claimant)
            if victim is None or not self._is_solo(victim):
                continue
            if self._is_gone_in_time(victim, claimant):
                found.append(victim)
        return sorted(found, key=lambda one: one.price)

    def gangs_in(self, where: Where, claimant: Claimant) -> Iterator[list[Victim]]:
        """Whole gangs with a place in this domain, the cheapest first: their switch leaves each of
        their jobs a short grace alone."""
        nodes = self._index.rooms if where is None else self._index.domains.get(where, {})
        runs: dict[str, Run] = {}
        for node_id in nodes:
            for allocation in self._index.taken.get(node_id, {}).values():
                state = self._index.states.get(allocation.run_id)
                if (
                    state is not None
                    and gangs.is_gang_run(state.run)
                    and _goes(state.run, claimant)
                ):
                    runs[state.run.id] = state.run
        for run in sorted(runs.values(), key=_gang_price):
            found = [
                victim
                for allocation in self._index.states[run.id].allocations
                if (victim := self._victim(allocation, claimant)) is not None
            ]
            if found and all(
                not one.leaves_anyway and self._is_gone_in_time(one, claimant, SHORT_GRACE)
                for one in found
            ):
                yield found

    def plan(self, node_id: str, need: Need, claimant: Claimant) -> Plan | None:
        """None: nobody has to go, or it would not fit even then."""
        candidates = self.solos_on(node_id, claimant)
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
            return Plan(node_id, tuple(chosen), freed)
        return self._pruned(node_id, need, chosen)

    def _pruned(self, node_id: str, need: Need, chosen: list[Victim]) -> Plan | None:
        """Without those who turned out to be in nobody's way, the dearest spared first."""
        for victim in sorted(chosen, key=lambda one: one.price, reverse=True):
            fewer = [one for one in chosen if one is not victim]
            if not shortfalls(need.resources, self._without(node_id, fewer)):
                chosen = fewer
        if all(one.leaves_anyway for one in chosen):
            return None
        return Plan(node_id, tuple(chosen), self._without(node_id, chosen))

    def _without(self, node_id: str, gone: Iterable[Victim]) -> Room:
        """Whose nomination lies on a place counts, not who still has it."""
        leaving = {one.allocation.id for one in gone} | self.claimed
        taken = [a for a in self._board.taken_on(node_id) if a.id not in leaving]
        return room(self._index.nodes[node_id], taken)

    def _victim(self, allocation: Allocation, claimant: Claimant) -> Victim | None:
        if allocation.state is not AllocationState.HELD or allocation.id in self.claimed:
            return None
        state = self._index.states.get(allocation.run_id)
        if state is None:
            return None
        held = self._holders_of(allocation.run_id).get(allocation.id)
        if held is None:
            return None
        _, attempt = held
        if attempt.status is AttemptStatus.TERMINATING:
            if attempt.reason in _COMES_BACK_IN_PLACE or gangs.is_gang_run(state.run):
                return None
        elif attempt.status not in _LIVE or not _goes(state.run, claimant):
            return None
        return Victim(allocation, state.run, attempt)

    def _is_gone_in_time(
        self, victim: Victim, claimant: Claimant, longest: float = math.inf
    ) -> bool:
        """`longest`: that no grace is longer than."""
        if claimant.before is None:
            return True
        attempt = victim.attempt
        was_running = attempt.status is AttemptStatus.RUNNING
        grace = termination.grace(victim.run.policy, Reason.PREEMPTED, was_running=was_running)
        leaves_at = self._now + min(grace, longest)
        if victim.leaves_anyway:
            leaves_at = max(self._now, attempt.remove_at or 0.0)
        return leaves_at + CLEANUP_SECONDS <= claimant.before

    def _holders_of(self, run_id: str) -> dict[str, tuple[Job, Attempt]]:
        if run_id not in self._holders:
            self._holders[run_id] = {
                job.attempts[-1].allocation_id: (job, job.attempts[-1])
                for job in self._index.states[run_id].jobs
                if job.attempts and job.attempts[-1].allocation_id is not None
            }
        return self._holders[run_id]

    def _is_solo(self, victim: Victim) -> bool:
        return not gangs.is_gang_run(victim.run) or gangs.is_reserved(victim.attempt)


class Evictions:
    """The cheapest plan first, for one need of a claimant; what has changed is planned anew."""

    def __init__(
        self, victims: Victims, need: Need, claimant: Claimant, node_ids: Iterable[str]
    ) -> None:
        self._victims = victims
        self._need = need
        self._claimant = claimant
        self._heap: list[tuple[Cost, str]] = []
        for node_id in node_ids:
            self._push(node_id)

    def best(self) -> Plan | None:
        while self._heap:
            cost, node_id = heapq.heappop(self._heap)
            plan = self._victims.plan(node_id, self._need, self._claimant)
            if plan is None:
                continue
            heapq.heappush(self._heap, (plan.cost, node_id))
            if plan.cost <= cost:
                return plan
        return None

    def _push(self, node_id: str) -> None:
        """As if the cheapest one alone had to go: what it really costs is looked at only when that
        would be the best."""
        candidates = self._victims.solos_on(node_id, self._claimant)
        cheapest = next((one for one in candidates if not one.leaves_anyway), None)
        if cheapest is not None:
            heapq.heappush(self._heap, ((1, (cheapest.price,)), node_id))


def _goes(run: Run, claimant: Claimant) -> bool:
    return BANDS[run.policy.band] > claimant.band and run.status is not RunStatus.TERMINATING


def _gang_price(run: Run) -> tuple[int, float, str]:
    return (-BANDS[run.policy.band], -run.submitted_at, run.id)
