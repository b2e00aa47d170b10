"""One turn's decisions about machines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from controller.lifecycle.events import Event
from controller.lifecycle.inventory import Fleet, Node, NodeAddress, Registration
from controller.lifecycle.machines import life
from controller.lifecycle.machines.life import InstanceKnown, MachineReport, Place
from controller.lifecycle.machines.model import (
    Machine,
    MachineEnd,
    MachineStatus,
    attributes_of_offer,
    token_of,
)
from controller.lifecycle.machines.orphans import KnownOrphan
from controller.lifecycle.reports import MachineAnswered
from controller.pipelines.renting.last_demand import LastDemand
from controller.pipelines.renting.records import MachineRecords
from controller.pipelines.renting.settings import RentalSettings
from controller.pipelines.renting.standing import purses_of, standing_of, surroundings
from controller.scheduling.renting.demand import Order
from fairlead.model.reasons import Reason
from fairlead.model.statuses import NodeStatus

log = logging.getLogger(__name__)
CLOSED = "its machine is being given back"
SHIM_SOCKET = "/run/fairlead/shim.sock"


class GoneNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose machine is gone: its runs must be told. `removed`: the node, too."""

    node_id: str
    reason: Reason
    message: str
    removed: bool


class Turned(msgspec.Struct, frozen=True, kw_only=True):
    """What one turn changes; a node of None is removed."""

    machines: Mapping[str, Machine] = {}
    nodes: Mapping[str, Node | None] = {}
    gone: Sequence[GoneNode] = ()
    answers: Sequence[MachineAnswered] = ()
    orphans: Mapping[str, KnownOrphan] = {}
    events: Sequence[Event] = ()
    """Of no run; they and the orphans are offered to each turn until `stored` or
    `leave_out_events` follows."""


class MachineTurn:
    """What one turn decides; use it once. `is_used`: something of a run is on this node.
    `orphans`: those that cost money, as machines."""

    def __init__(
        self,
        records: MachineRecords,
        demand: LastDemand,
        settings: RentalSettings,
        nodes: Mapping[str, Node],
        fleets: Mapping[str, Fleet],
        is_used: Callable[[str], bool],
        orphans: Sequence[Machine],
        now: float,
    ) -> None:
        self._records = records
        self._demand = demand
        self._nodes = nodes
        self._fleets = fleets
        self._is_used = is_used
        self._now = now
        self._settings = settings
        machines = records.machines.values()
        month = settings.month(now)
        purses = purses_of(fleets, machines, settings.spending, now, month, orphans)
        self._standing = standing_of(fleets, machines, purses)
        self._machines: dict[str, Machine] = {}
        self._changed_nodes: dict[str, Node | None] = {}
        self._gone: list[GoneNode] = []
        self.answers: Sequence[MachineAnswered] = ()
        self.orphans: Mapping[str, KnownOrphan] = {}
        self.events: Sequence[Event] = ()

    def result(self) -> Turned:
        return Turned(
            machines=self._machines,
            nodes=self._changed_nodes,
            gone=self._gone,
            answers=self.answers,
            orphans=self.orphans,
            events=self.events,
        )

    def move(self, machine: Machine, reports: Sequence[MachineReport]) -> None:
        reports = [self._records.checked(machine, one) for one in reports]
        standing = self._standing.get(machine.fleet)
        node, used = self._nodes.get(machine.id), self._is_used(machine.id)
        around = surroundings(machine, node, standing, self._demand, is_used=used)
        after = life.moved(machine, reports, around, self._now)
        for report in reports:
            if isinstance(report, InstanceKnown) and report.place is not None:
                self._reach(after, report.place)
        self._let_join(after)
        if after is machine:
            return
        stays = after.status in (MachineStatus.PROVISIONING, MachineStatus.JOINED)
        if standing is not None and not machine.closing and (after.closing or not stays):
            standing.staying -= 1
        self._records.remember_outcome(machine, after, reports, self._now)
        self._put(machine, after)

    def _put(self, before: Machine, after: Machine) -> None:
        self._records.put(after)
        self._machines[after.id] = after
        node = self._node(after.id)
        if after.closing is not before.closing and node is not None and after.is_live:
            closed = after.closing or after.status is MachineStatus.TERMINATING
            self._changed_nodes[node.id] = replace(
                node, cordoned=closed, cordon_reason=CLOSED if closed else None
            )
        if after.status is before.status:
            return
        if after.status is MachineStatus.TERMINATING:
            self._close(after)
        elif after.status is MachineStatus.TERMINATED:
            log.info("machine %s (%s) is gone: %s", after.name, after.id, after.message)
            self._changed_nodes[after.id] = None
            self._tell_runs(after, removed=True)

    def _node(self, node_id: str) -> Node | None:
        if node_id in self._changed_nodes:
            return self._changed_nodes[node_id]
        return self._nodes.get(node_id)

    def _close(self, machine: Machine) -> None:
        """Let nothing new onto a machine that ends; what it lost is told to its runs at once."""
        log.info("machine %s (%s) ends: %s", machine.name, machine.id, machine.message)
        node = self._node(machine.id)
        if node is not None:
            self._changed_nodes[node.id] = replace(node, cordoned=True, cordon_reason=CLOSED)
        if machine.end is MachineEnd.LOST:
            self._tell_runs(machine, removed=False)

    def _tell_runs(self, machine: Machine, *, removed: bool) -> None:
        spot = machine.offer.spot
        reason = Reason.INTERRUPTED_BY_NO_CAPACITY if spot else Reason.INSTANCE_UNREACHABLE
        message = f"its machine is gone: {machine.message}"
        self._gone.append(
            GoneNode(node_id=machine.id, reason=reason, message=message, removed=removed)
        )

    def _reach(self, machine: Machine, place: Place) -> None:
        """Give an expected node its address. A machine that tells it by itself may come first."""
        node = self._node(machine.id)
        if node is None or node.status is not NodeStatus.EXPECTED:
            return
        if place.host is None:
            address = NodeAddress(shim_socket=place.socket or SHIM_SOCKET, local_socket=True)
        else:
            address = replace(
                node.address,
                host=place.host,
                port=place.port,
                user=place.user or node.address.user,
                shim_socket=place.socket or node.address.shim_socket,
            )
        self._changed_nodes[node.id] = replace(
            node, address=address, status=NodeStatus.CONNECTING, registration=None, message=None
        )

    def _let_join(self, machine: Machine) -> None:
        """Let an expected machine join as long as it may boot, also after its fleet's limit has
        changed."""
        node = self._node(machine.id)
        if node is None or node.registration is None or not machine.is_live:
            return
        standing = self._standing.get(machine.fleet)
        until = life.boots_until(machine, None if standing is None else standing.policy)
        if node.registration.expires_at != until:
            registration = replace(node.registration, expires_at=until)
            self._changed_nodes[node.id] = replace(node, registration=registration)

    def end_broken_orders(self) -> None:
        machines = list(self._records.machines.values())
        for machine in life.of_broken_orders(machines):
            if machine.status is MachineStatus.JOINED and self._is_used(machine.id):
                continue
            message = "another machine of its gang did not come"
            after = life.ending(machine, MachineEnd.GANG_INCOMPLETE, message, self._now)
            self._put(machine, after)

    def release_unused(self) -> None:
        """Give back what nothing needs, right after a look that knows everything of this turn."""
        for machine in list(self._records.machines.values()):
            stays = machine.status in (MachineStatus.PROVISIONING, MachineStatus.JOINED)
            # The scheduler's pass of this turn may have been before its node was there.
            if stays and machine.joined_at != self._now:
                self.move(machine, ())

    def order(self, orders: Sequence[Order], account_of: Callable[[str], str | None]) -> None:
        """Make the records of these orders. `account_of`: that of a provider's offers."""
        groups: dict[int, str] = {}
        for order in orders:
            group = None
            if order.group is not None:
                group = groups.setdefault(order.group, self._settings.new_id())
            machine_id = self._settings.new_id()
            machine = Machine(
                id=machine_id,
                name=f"{order.fleet[:40]}-{machine_id[:8]}",
                fleet=order.fleet,
                offer=order.offer,
                token=token_of(self._settings.installation, machine_id, order.offer),
                account=account_of(order.offer.provider),
                setup=self._settings.setups.get(order.offer.provider),
                group=group,
                leash=self._leash_of(order.fleet),
                idle_duration=order.idle_duration,
                user=order.user,
                run_id=order.run_id,
                ordered_at=self._now,
            )
            log.info("machine %s is ordered: %s", machine.name, order.offer.words())
            self._records.put(machine)
            self._machines[machine.id] = machine
            self._changed_nodes[machine.id] = self._expected(machine)

    def _leash_of(self, fleet: str) -> float | None:
        policy = self._fleets[fleet].machines
        return None if policy is None else policy.leash

    def _expected(self, machine: Machine) -> Node:
        pinned = self._settings.pin(machine.id)
        fleet = self._fleets[machine.fleet]
        # Its own limit ends the machine; the token must live as long as that takes.
        expires_at = life.boots_until(machine, fleet.machines)
        return Node(
            id=machine.id,
            name=machine.name,
            fleet=machine.fleet,
            attributes=attributes_of_offer(machine.offer),
            address=NodeAddress(shim_socket=SHIM_SOCKET, host_key=pinned.host_key),
            status=NodeStatus.EXPECTED,
            registration=Registration(expires_at=expires_at, token_digest=pinned.token_digest),
            message="its machine was ordered",
            created_at=self._now,
        )
