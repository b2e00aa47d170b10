"""What decides about a machine besides its record: how its fleet stands, and the last demand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from controller.lifecycle.inventory import Fleet, Node, Spending
from controller.lifecycle.machines.life import Surroundings
from controller.lifecycle.machines.market import Month, Purses
from controller.lifecycle.machines.model import Machine, MachineStatus
from controller.pipelines.renting.last_demand import LastDemand


class Standing:
    """How a fleet that rents machines stands in this turn."""

    def __init__(self, fleet: Fleet, machines: Iterable[Machine], purses: Purses) -> None:
        assert fleet.machines is not None
        own = [machine for machine in machines if machine.fleet == fleet.name]
        self.policy = fleet.machines
        self._is_broke = purses.fleet(fleet.name).is_over_month
        self._purses = purses
        self.staying = sum(
            one.status in (MachineStatus.PROVISIONING, MachineStatus.JOINED) and not one.closing
            for one in own
        )
        """The machines that nothing has decided to end."""

    def is_broke(self, machine: Machine) -> bool:
        """Return whether a budget of the month that pays for the machine is used up."""
        return self._is_broke or self._purses.is_broke(machine.user)


def purses_of(
    fleets: Mapping[str, Fleet],
    machines: Iterable[Machine],
    spending: Spending,
    now: float,
    month: Month,
    orphans: Sequence[Machine],
) -> Purses:
    """Return what is spent and may be spent, for the fleets that rent machines. `orphans`: those
    that cost money, as machines."""
    return Purses(_renting(fleets), spending, list(machines), now, month, orphans)


def standing_of(
    fleets: Mapping[str, Fleet], machines: Iterable[Machine], purses: Purses
) -> dict[str, Standing]:
    """Return how each fleet stands that rents machines."""
    known = list(machines)
    return {fleet.name: Standing(fleet, known, purses) for fleet in _renting(fleets)}


def _renting(fleets: Mapping[str, Fleet]) -> list[Fleet]:
    return [fleet for fleet in fleets.values() if fleet.machines is not None]


def surroundings(
    machine: Machine,
    node: Node | None,
    standing: Standing | None,
    demand: LastDemand,
    *,
    is_used: bool = False,
) -> Surroundings:
    """Return what decides about the machine besides its record. `standing` None: its fleet rents
    no machines any more."""
    if standing is None:
        return Surroundings(node=node, is_used=is_used)
    return Surroundings(
        node=node,
        is_used=is_used,
        policy=standing.policy,
        may_release=standing.staying > standing.policy.min,
        is_broke=standing.is_broke(machine),
        is_awaited=demand.is_awaited(machine),
        is_wanted=demand.is_wanted(machine),
    )
