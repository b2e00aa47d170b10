"""One scheduling pass gives each waiting unit an allocation, a nomination, or the reason why not.

It is a pure function of the index and does not change it. No job blocks another behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from controller.lifecycle.membership import ranks
from controller.lifecycle.pending_reasons import PendingReason, RanksFirst, VictimsLeave
from controller.lifecycle.renting_reasons import BuysMachine, GangsInTurn, ProviderAway
from controller.lifecycle.reports import (
    GangTooLarge,
    Nominated,
    NominationEnded,
    NotPlaced,
    Placed,
    Preempted,
    Report,
)
from controller.scheduling.diagnosis import why_all_wait, why_one_waits
from controller.scheduling.eviction.preemption import Nomination, Preemption
from controller.scheduling.fitting.capacity import Need
from controller.scheduling.fitting.constraints import Domain
from controller.scheduling.freed_allocations import lost as lost_allocations
from controller.scheduling.freed_allocations import used_up
from controller.scheduling.gang_placement import (
    MemberAllocation,
    allocate,
    best_kept,
    could_ever_hold,
    domains_for,
    place_first,
    placement_name,
    roomiest_first,
    whole_of,
)
from controller.scheduling.index import CapacityIndex, Where
from controller.scheduling.nominations import ended_nominations, review
from controller.scheduling.packing import by_kind, by_need, how_many_fit
from controller.scheduling.queue import Kind, Member, Unit, in_order, member_of
from controller.scheduling.trial_capacity import PASS_EFFORT, TrialCapacity

MAX_CHANGED_REASONS = 100
"""The number of waiting jobs that get a changed pending reason in one pass; `explain` always
computes the present one."""
_NO_REFUSAL = (BuysMachine, GangsInTurn, ProviderAway)
ReportsByRun = dict[str, list[Report]]
"""The reports of a pass by run. A victim's report comes after the reports of the
run that gets its room."""


class SchedulingPass:
    """One pass over the waiting units; use it once."""

    def __init__(self, index: CapacityIndex, now: float, new_id: Callable[[], str]) -> None:
        index.refresh()
        self._index = index
        self._now = now
        self._new_id = new_id
        self.trial = TrialCapacity(index)
        self._preemption: Preemption | None = None
        self._reports: ReportsByRun = {}
        self._victims: ReportsByRun = {}
        self._full: set[tuple[object, ...]] = set()
        self._in_vain: set[tuple[object, ...]] = set()
        self._reasons: dict[tuple[object, ...], PendingReason] = {}
        self._incomplete: set[str] = set()
        """Runs whose ranked jobs have no allocations."""
        self._went_to: dict[str, Where] = {}
        self._changed_reasons = 0
        self.left_over: dict[str, None] = {}
        """Runs that should be looked at again at once, whatever happens."""

    def decide(
        self, units: Iterable[Unit] | None = None, without: Container[str] = frozenset()
    ) -> ReportsByRun:
        """Return the reports of this pass.

        `units`: those that may be placed now; None: all. `without`: runs whose units are left out.
        """
        for ended in ended_nominations(self._index):
            self._tell(ended)
        for lost in lost_allocations(self._index):
            self._tell(lost)
            self.left_over[lost.run_id] = None
        if units is None:
            units = [unit for waiting in self._index.units.values() for unit in waiting]
        chosen = (unit for unit in units if unit.run.id not in without)
        for unit in in_order(chosen, self._index.use, self._now):
            if unit.nominated:
                self._review(unit)
            else:
                with self.trial.seen_by(unit):
                    self._place(unit)
        return self._reports | {
            run_id: [*self._reports.get(run_id, ()), *reports]
            for run_id, reports in self._victims.items()
        }

    def _place(self, unit: Unit) -> None:
        if unit.kind is Kind.TOGETHER:
            self._place_together(unit)
        elif unit.kind is Kind.SOLO or self._is_complete(unit):
            self._place_one(unit)
        else:
            self._wait(unit, unit.members[0], RanksFirst())

    # -- nominations ------------------------------------------------------------------------

    def _review(self, unit: Unit) -> None:
        reports = review(self._index, unit, self._now)
        for report in reports:
            self._tell(report)
            if isinstance(report, NominationEnded):
                self.left_over[unit.run.id] = None
        if unit.kind is Kind.TOGETHER and not any(isinstance(one, Placed) for one in reports):
            self._incomplete.add(unit.run.id)

    def _nominate(self, unit: Unit, nomination: Nomination) -> None:
        reason = VictimsLeave(count=nomination.waits_for)
        for choice in nomination.chosen:
            if choice.member not in unit.members:
                continue
            self._tell(
                Nominated(
                    run_id=unit.run.id,
                    attempt_id=choice.member.attempt.id,
                    allocation=choice.allocation,
                    pending_reason=reason,
                )
            )
        run = unit.run
        for victim in nomination.victims:
            who = f"run {run.name}" if victim.run.user == run.user else f"a run of {run.user}"
            message = f"{who} of the {run.policy.band} band needs its allocation"
            report = Preempted(run_id=victim.run.id, attempt_id=victim.attempt.id, message=message)
            self._victims.setdefault(victim.run.id, []).append(report)

    def _preempting(self, unit: Unit) -> Preemption | None:
        if self._preemption is None:
            self._preemption = Preemption(self.trial, self._now, self._new_id)
        if not self._preemption.may_help(unit):
            return None
        if self._preemption.is_tired:
            self.left_over[unit.run.id] = None
            return None
        return self._preemption

    # -- one job ----------------------------------------------------------------------------

    def _is_complete(self, unit: Unit) -> bool:
        return unit.run.id not in self._incomplete and (
            bool(unit.anchors) or unit.run.id in self._went_to
        )

    def _place_one(self, unit: Unit) -> None:
        (member,) = unit.members
        where = self._bound_to(unit)
        key = (member.need, where, unit.view)
        free = None
        if key not in self._full:
            free = best_kept(self.trial, unit, member, where) or self.trial.best(member.need, where)
        if free is not None:
            domain = self._index.domain(free.node.id)
            allocation = allocate(unit, member, free, domain, self._now, self._new_id)
            self.trial.give(allocation)
            self._placed(unit, [MemberAllocation(member, allocation)])
            return
        self._full.add(key)
        preemption = self._preempting(unit)
        nomination = preemption.for_one(unit, where) if preemption else None
        if nomination is not None:
            self._nominate(unit, nomination)
            return
        self._wait(unit, member, self._reason(key, lambda: self._why_one(member.need, where)))

    def _bound_to(self, unit: Unit) -> Where:
        """Return the domain of a reserved job: that of the ranks that it may take over."""
        if unit.kind is not Kind.RESERVED:
            return None
        if unit.run.id in self._went_to:
            return self._went_to[unit.run.id]
        return next(iter(domains_for(self._index, unit)), None)

    def _why_one(self, need: Need, where: Where) -> PendingReason:
        return why_one_waits(self.trial, need, where)

    # -- a gang -----------------------------------------------------------------------------

    def _place_together(self, unit: Unit) -> None:
        domains = domains_for(self._index, unit)
        whole = whole_of(unit)
        counted = by_need(whole.members)
        needs = tuple((id(need), count) for need, count in counted.items())
        key = (needs, tuple(domains), unit.view)
        if key not in self._in_vain:
            before, kinds = self.trial.effort, by_kind(counted)
            if self._place_in_any(unit, domains, kinds):
                return
            if len(kinds) > 1 and self.trial.effort <= 0 and before < PASS_EFFORT:
                # Others have used the effort of this pass; the next one has its own.
                self._incomplete.add(unit.run.id)
                self.left_over[unit.run.id] = None
                return
            self._in_vain.add(key)
        self._incomplete.add(unit.run.id)
        if unit.is_replacement and self._is_too_large(unit):
            return
        preemption = self._preempting(unit)
        nomination = preemption.for_all(whole, domains) if preemption else None
        if nomination is not None:
            self._nominate(unit, nomination)
            return
        reason = self._reason(key, lambda: why_all_wait(self.trial, whole))
        for member in unit.members:
            self._wait(unit, member, reason)

    def _place_in_any(self, unit: Unit, domains: list[Domain], counted: Mapping[Need, int]) -> bool:
        for domain in roomiest_first(self.trial, unit, domains):
            if any(
                how_many_fit(self.trial, need, domain, count) < count
                for need, count in counted.items()
            ):
                continue
            chosen = place_first(self.trial, unit, domain, self._now, self._new_id)
            if chosen is not None:
                self._went_to[unit.run.id] = domain
                self._placed(unit, chosen)
                return True
        return False

    def _is_too_large(self, unit: Unit) -> bool:
        """Report it to the run when the placement value of its survivors could never hold the whole
        gang.

        A gang that was whole goes on: a job beside it waits there.
        """
        state = self._index.states[unit.run.id]
        if ranks.is_whole(state.run, state.jobs):
            return False
        ranked = {attempt.id for attempt in ranks.ranked_attempts(state.run, state.jobs)}
        whole = [
            member_of(state, job, self._index.needs)
            for job in state.jobs
            if job.attempts and job.attempts[-1].id in ranked
        ]
        domains = domains_for(self._index, unit)
        if domains and could_ever_hold(self._index, unit, whole, domains[0]):
            return False
        if domains and self._may_get_machine(unit, domains[0]):
            return False
        kind = placement_name(self._index.fleets, domains[0]) if domains else "node"
        name = "gone" if not domains else f"{domains[0]}"
        message = f"the {kind} of its other jobs ({name}) can never hold all {len(whole)} of them"
        self._tell(GangTooLarge(run_id=unit.run.id, message=message))
        self.left_over[unit.run.id] = None
        return True

    def _may_get_machine(self, unit: Unit, domain: Domain) -> bool:
        """Return whether demand may still order machines for the gang there: it has not refused.

        Demand looks after this pass, at most twice a second. So a gang that has just begun, or
        whose machine was just refused, has nothing on order although the next offer may be open.
        """
        fleet = self._index.fleets.get(domain.fleet)
        if fleet is None or fleet.machines is None:
            return False
        asked = (member.attempt.renting for member in unit.members)
        return any(one is None or isinstance(one, _NO_REFUSAL) for one in asked)

    # -- reports ------------------------------------------------------------------------------

    def _placed(self, unit: Unit, chosen: Sequence[MemberAllocation]) -> None:
        new = [choice.allocation for choice in chosen]
        used = used_up(self._index, unit, new, self.trial.taken_on) if unit.freed else {}
        for choice in chosen:
            instead_of = used.get(choice.allocation.id, ())
            self.trial.use_up(instead_of)
            self._tell(
                Placed(
                    run_id=unit.run.id,
                    attempt_id=choice.member.attempt.id,
                    allocation=choice.allocation,
                    instead_of=instead_of,
                )
            )

    def _reason(self, key: tuple[object, ...], make: Callable[[], PendingReason]) -> PendingReason:
        if key not in self._reasons:
            self._reasons[key] = make()
        return self._reasons[key]

    def _wait(self, unit: Unit, member: Member, reason: PendingReason) -> None:
        known = member.attempt.pending_reason
        if known == reason:
            return
        if known is not None:
            # Each change is part of the commit, and one node can change those of thousands of jobs.
            self._changed_reasons += 1
            if self._changed_reasons > MAX_CHANGED_REASONS:
                return
        self._tell(
            NotPlaced(run_id=unit.run.id, attempt_id=member.attempt.id, pending_reason=reason)
        )

    def _tell(self, report: Report) -> None:
        self._reports.setdefault(report.run_id, []).append(report)
