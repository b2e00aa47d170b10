"""Answers: what a look at demand tells waiting attempts, and those that stop (docs/rules.md 12.14).

Only what has become different is told, because each answer is a commit of its run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from controller.lifecycle.model import Unrentable
from controller.lifecycle.renting_reasons import MachineReason
from controller.lifecycle.reports import MachineAnswered
from controller.scheduling.index import CapacityIndex


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a waiting job may get a machine. `why`: none is to be had, and no node could hold it.
    `is_ordered`: it can only go onto what is on order, which may be refused yet."""

    why: str | None = None
    is_ordered: bool = False

    def differs(self, other: Answer) -> bool:
        """Return whether it is another state; other words for the same one are no news."""
        return (self.why is None, self.is_ordered) != (other.why is None, other.is_ordered)


HELD = Answer()
"""A node could hold the job, or nothing is known."""
ORDERED = Answer(is_ordered=True)


def changed(
    index: CapacityIndex,
    answers: Mapping[str, Answer],
    reasons: Mapping[str, MachineReason],
    replacing: Mapping[tuple[str, str], MachineReason],
) -> Iterator[MachineAnswered]:
    """Yield what has become different. `answers` and `reasons`: by the attempt's id; without an
    answer all is as before. `replacing`: what is done for the successor of an attempt that stops,
    by the ids of run and job."""
    for run_id, attempts in index.recalled.items():
        for attempt in attempts:
            reason = replacing.get((run_id, attempt.job_id))
            if reason != attempt.renting:
                yield MachineAnswered(
                    run_id=run_id, attempt_id=attempt.id, why=None, renting=reason
                )
    for unit in (unit for units in index.units.values() for unit in units):
        for member in unit.members:
            attempt = member.attempt
            before = _last(attempt.unrentable)
            answer = answers.get(attempt.id, before)
            if attempt.unrentable is None and answer.is_ordered:
                answer = HELD  # no time runs that could stand still
            reason = reasons.get(attempt.id)
            if answer.differs(before) or reason != attempt.renting:
                yield MachineAnswered(
                    run_id=unit.run.id,
                    attempt_id=attempt.id,
                    why=answer.why,
                    is_ordered=answer.is_ordered,
                    renting=reason,
                )


def _last(unrentable: Unrentable | None) -> Answer:
    if unrentable is None:
        return HELD
    return Answer(why=unrentable.why) if unrentable.paused_at is None else ORDERED
