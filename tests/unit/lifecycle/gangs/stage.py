"""A gang on a stage: one group of ranked and reserved jobs, each on a node of its own."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from controller.lifecycle.draft import DecisionContext
from controller.lifecycle.gangs import incarnation
from controller.lifecycle.gangs.incarnation import Phase
from controller.lifecycle.model import Group, RetryEvent, RetryPolicy
from controller.lifecycle.reports import Placed
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus
from tests.unit.lifecycle.play import Play

RETRY = RetryPolicy(
    on_events=frozenset({RetryEvent.ERROR, RetryEvent.INTERRUPTION}), max_failures=10
)
FAILED = Reason.CONTAINER_EXITED_WITH_ERROR


def gang(nodes: int = 3, size: int | None = None, **more: Any) -> Group:
    return Group(name=more.pop("name", "train"), nodes=nodes, gang_size=size or nodes, **more)


class GangPlay(Play):
    """`Play` with whole-gang moves; job n lives on node `n<n>` under the placement value `rack`."""

    def __init__(self, *groups: Group, retry: RetryPolicy | None = None, **more: Any) -> None:
        super().__init__(groups=groups or [gang()], retry=retry or RETRY, **more)

    @property
    def count(self) -> int:
        return len(self.state.jobs)

    @property
    def number(self) -> int:
        assert self.run.incarnation is not None
        return self.run.incarnation.number

    def phase(self) -> Phase | None:
        return incarnation.phase(self.run, self.state.jobs)

    def statuses(self) -> list[AttemptStatus]:
        return [self.attempt(n).status for n in range(self.count)]

    def reasons(self, number: int = -1) -> list[Reason | None]:
        return [self.attempt(n, number).reason for n in range(self.count)]

    def ranks(self) -> list[int | None]:
        return [job.rank for job in self.state.jobs]

    def places(self) -> list[str | None]:
        return [self.attempt(n).allocation_id for n in range(self.count)]

    def surround(
        self,
        *nodes: str,
        undecided_nodes: tuple[str, ...] = (),
        broken_allocations: tuple[str, ...] = (),
        nominated: tuple[str, ...] = (),
    ) -> None:
        """`nodes` are the unusable ones."""
        self.around = DecisionContext(
            unusable_nodes=frozenset(nodes),
            undecided_nodes=frozenset(undecided_nodes),
            broken_allocations=frozenset(broken_allocations),
            nominated=frozenset(nominated),
        )

    def drain(self, node: str) -> GangPlay:
        nodes = frozenset({node})
        self.around = DecisionContext(unusable_nodes=nodes, draining_nodes=nodes)
        self.send()
        return self

    def placed_in(self, n: int, node: str | None = None, placement: str = "rack") -> Placed:
        report = self.placed(n, node or f"n{n}")
        return replace(report, allocation=replace(report.allocation, placement=placement))

    def place_waiting(self) -> GangPlay:
        """As the scheduler does: all waiting jobs get places in one turn."""
        waiting = [n for n in range(self.count) if self.waits(n)]
        self.send(*(self.placed_in(n) for n in waiting))
        return self

    def run_all(self) -> GangPlay:
        """Everything placed and RUNNING."""
        self.place_waiting()
        for n in range(self.count):
            if self.attempt(n).status is AttemptStatus.PROVISIONING:
                self.send(self.accepted(n), self.seen(n), self.started(n))
        return self

    def fail(self, n: int, reason: Reason = FAILED) -> GangPlay:
        """The job ends by itself; nothing is cleaned up yet."""
        return self.end(n, reason)

    def clean_all(self) -> GangPlay:
        """The nodes confirm whatever is TERMINATING."""
        for n in range(self.count):
            if self.attempt(n).status is AttemptStatus.TERMINATING:
                self.clean(n)
        self.release_places()
        return self

    def waits(self, n: int) -> bool:
        return self.attempt(n).status is AttemptStatus.SUBMITTED
