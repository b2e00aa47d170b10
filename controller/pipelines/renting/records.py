"""The records of machines as they were decided last, and what became of orders."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from controller.lifecycle.machines import life
from controller.lifecycle.machines.life import InstanceKnown, MachineReport
from controller.lifecycle.machines.market import Penalties
from controller.lifecycle.machines.model import Machine, MachineStatus
from controller.lifecycle.machines.sizes import Sizes
from controller.scheduling.index import CapacityIndex

log = logging.getLogger(__name__)


class MachineRecords:
    """The records, and what they tell about offers: which failed, and which gave less."""

    def __init__(
        self, index: CapacityIndex, machines: Iterable[Machine], setups: Mapping[str, str]
    ) -> None:
        self.machines = {machine.id: machine for machine in machines}
        self.penalties = Penalties(self.machines.values(), setups)
        self.sizes = Sizes(self.machines.values(), setups)
        self._index = index
        for machine in self.machines.values():
            index.machine_changed(machine)

    def put(self, machine: Machine) -> None:
        """Take over the record as it is decided."""
        self.machines[machine.id] = machine
        self._index.machine_changed(machine)

    def forget_ended(self, before: float) -> list[str]:
        """Forget the records that had ended by then; return their ids."""
        old = [
            one.id
            for one in self.machines.values()
            if one.terminated_at is not None and one.terminated_at < before
        ]
        for machine_id in old:
            del self.machines[machine_id]
        return old

    def checked(self, machine: Machine, report: MachineReport) -> MachineReport:
        """Return the report, or a refusal if it gives the machine what another one has."""
        if not isinstance(report, InstanceKnown):
            return report
        refusal = life.of_another(machine, report, self.machines.values())
        if refusal is None:
            return report
        log.error("machine %s: %s", machine.name, refusal.message)
        return refusal

    def remember_outcome(
        self, before: Machine, after: Machine, reports: Sequence[MachineReport], now: float
    ) -> None:
        if after.status is MachineStatus.JOINED and before.status is not MachineStatus.JOINED:
            self.penalties.came(after)
            self.sizes.joined(after)
        if after.end is not before.end:
            asked = (one.after for one in reports if isinstance(one, life.OrderRefused))
            self.penalties.add_failed(after, now, after=next(asked, None))
