"""Machines whose release is due in the moment in which something needs them."""

from __future__ import annotations

from typing import Any

from controller.lifecycle.inventory import Node
from controller.lifecycle.machines.market import Supply
from controller.lifecycle.machines.model import Machine, MachineStatus
from controller.lifecycle.model import NodeStatus
from controller.pipelines.renting.last_demand import DEMAND_EVERY_SECONDS
from controller.pipelines.renting.machine_turn import Turned
from controller.pipelines.renting.rentals import Rentals
from controller.pipelines.renting.settings import Pinned, RentalSettings
from tests.unit.machines.parts import NOW, fleet, machine, offer
from tests.unit.scheduling.cluster import Cluster
from tests.unit.scheduling.parts import new_id, node

IDLE_SECONDS = 60.0
DUE = NOW + IDLE_SECONDS
BURST = fleet(idle_duration=IDLE_SECONDS)


class Bed:
    """One machine, which nothing has needed since NOW, and what was decided about it."""

    def __init__(self, record: Machine, there: Node) -> None:
        self.cluster = Cluster(there, fleets=(BURST,))
        settings = RentalSettings(
            installation="here",
            pin=lambda one: Pinned(host_key=one, token_digest=one),
            new_id=new_id,
            month_of=lambda now: 0.0,
        )
        self.rentals = Rentals(self.cluster.pipeline.index, settings, [record])
        self.rentals.set_offers("lab", Supply(offers=(offer(),)))
        before = self.decide(DUE - 10.0)
        assert (before.machines, before.nodes) == ({}, {})

    def decide(self, now: float) -> Turned:
        return self.rentals.decide(
            self.cluster.pipeline.index.nodes,
            {"burst": BURST},
            lambda node_id: node_id in self.cluster.pipeline.index.taken,
            now,
        )

    def submit(self) -> None:
        """Hand in a job that fits onto the machine. The pass of the turn finds no room for it."""
        self.cluster.submit("comes now", cpu=4.0)
        self.rentals.note_change()

    def show(self, there: Node) -> None:
        """The node changes after the pass of the turn, which could place nothing there."""
        self.cluster.set_node(there)
        self.rentals.note_change()

    @property
    def records(self) -> list[Machine]:
        return list(self.rentals.machines.values())


def _ordered(**more: Any) -> Machine:
    return machine("m1", instance_id="i-1", ordered_at=NOW - 100.0, idle_since=NOW, **more)


def _node(status: NodeStatus, **more: Any) -> Node:
    return node("m1", fleet="burst", status=status, **more)


def test_an_order_that_nothing_needs_ends_when_it_is_due() -> None:
    bed = Bed(_ordered(), _node(NodeStatus.EXPECTED))
    bed.decide(DUE)
    assert [one.status for one in bed.records] == [MachineStatus.TERMINATING]


def test_an_order_that_a_job_needs_since_this_turn_does_not_end_in_it() -> None:
    bed = Bed(_ordered(), _node(NodeStatus.EXPECTED))
    bed.submit()
    bed.decide(DUE)
    (record,) = bed.records
    assert (record.status, record.idle_since) == (MachineStatus.PROVISIONING, None)


def test_an_order_is_not_ended_by_a_look_that_does_not_know_the_job_yet() -> None:
    bed = Bed(_ordered(), _node(NodeStatus.EXPECTED))
    bed.decide(DUE - 0.1)
    bed.show(_node(NodeStatus.CONNECTING))
    bed.decide(DUE - DEMAND_EVERY_SECONDS / 4)
    # Demand looks at the queue only now and then: this turn is between two looks.
    bed.submit()
    bed.decide(DUE)
    (record,) = bed.records
    assert record.status is MachineStatus.PROVISIONING
    bed.decide(DUE + DEMAND_EVERY_SECONDS)
    (record,) = bed.records
    assert (record.status, record.idle_since) == (MachineStatus.PROVISIONING, None)


def test_a_machine_that_joins_when_it_is_due_is_open_to_the_jobs_that_wait() -> None:
    bed = Bed(_ordered(), _node(NodeStatus.EXPECTED))
    bed.submit()
    bed.show(_node(NodeStatus.CONNECTED))
    turned = bed.decide(DUE)
    (record,) = bed.records
    assert (record.status, record.closing) == (MachineStatus.JOINED, False)
    assert turned.nodes == {}
    bed.cluster.settle()
    bed.rentals.note_change()
    bed.decide(DUE + 1.0)
    (record,) = bed.records
    assert (record.closing, record.idle_since) == (False, None)


def test_a_machine_that_joins_when_it_is_due_is_given_back_if_no_job_comes() -> None:
    bed = Bed(_ordered(), _node(NodeStatus.EXPECTED))
    bed.show(_node(NodeStatus.CONNECTED))
    bed.decide(DUE)
    assert [one.closing for one in bed.records] == [False]
    wake_at = bed.rentals.wakes_at(bed.cluster.pipeline.index.nodes, {"burst": BURST}, DUE)
    assert wake_at == DUE + DEMAND_EVERY_SECONDS
    bed.decide(wake_at)
    assert [one.closing for one in bed.records] == [True]
