"""A provider in memory: it does what it is told, at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from controller.clouds.base import Abilities, Created, Described, KnownOffers, Order
from controller.lifecycle.machines.life import Place
from controller.lifecycle.machines.model import Offer
from controller.lifecycle.machines.reconcile import Found, Traits


class MemoryInstance(msgspec.Struct):
    id: str
    order: Order | None
    installation: str
    machine_id: str | None
    created_at: float
    place: Place | None = None


class MemoryCloud:
    """`fails` has errors for the next calls, by their names; a call takes them one by one."""

    def __init__(self, *offers: Offer, idempotent: bool = True) -> None:
        self.abilities = Abilities(idempotent=idempotent, visible_after=60.0)
        self.instances: dict[str, MemoryInstance] = {}
        self.calls: list[str] = []
        self.fails: dict[str, list[Exception]] = {}
        self.loses: list[str] = []
        """Ids of calls that do their work and lose their answer; see `create`."""
        self.uses: str | None = None
        """The account in which calls find their machines."""
        self.unknown: dict[str, str] = {}
        """Why offers of a region or zone are not known."""
        self.now = 0.0
        self.place: Place | None = None
        """Where new machines are reached."""
        self.traits = Traits()
        """What lists tell of each machine."""
        self.fleet: str | None = None
        """The tag of machines that nobody asked for through `create`."""
        self._offers = offers
        self._made = 0

    def plant(self, machine_id: str | None, *, installation: str, created_at: float) -> str:
        """Put a machine there that nobody asked for through `create`."""
        self._made += 1
        instance_id = f"i-{self._made}"
        self.instances[instance_id] = MemoryInstance(
            id=instance_id,
            order=None,
            installation=installation,
            machine_id=machine_id,
            created_at=created_at,
            place=self.place,
        )
        return instance_id

    async def account(self) -> str | None:
        return self.uses

    async def offers(self) -> KnownOffers:
        self._called("offers")
        return KnownOffers(offers=self._offers, unknown=self.unknown)

    async def create(self, order: Order) -> Created:
        if self.abilities.idempotent:
            for one in self.instances.values():
                if one.order is not None and one.order.token == order.token:
                    assert one.order == order, "the same token came with another request"
                    self._called("create")
                    return Created(instance_id=one.id, place=one.place)
        if "create" not in self.loses:
            self._called("create")
        instance_id = self.plant(
            order.machine_id, installation=order.installation, created_at=self.now
        )
        self.instances[instance_id].order = order
        if "create" in self.loses:
            self._called("create")
        return Created(instance_id=instance_id)

    async def describe(self, instance_ids: Sequence[str]) -> Mapping[str, Described]:
        self._called("describe")
        known = (self.instances[one] for one in instance_ids if one in self.instances)
        return {one.id: Described(place=one.place) for one in known}

    async def terminate(self, instance_id: str) -> bool:
        self._called("terminate")
        self.instances.pop(instance_id, None)
        return True

    async def list_tagged(self, installation: str) -> Sequence[Found]:
        self._called("list")
        return [
            Found(
                instance_id=one.id,
                machine_id=one.machine_id,
                fleet=one.order.fleet if one.order is not None else self.fleet,
                created_at=one.created_at,
                place=one.place,
                traits=self.traits,
            )
            for one in self.instances.values()
            if one.installation == installation
        ]

    async def console(self, instance_id: str) -> str | None:
        return None

    def _called(self, call: str) -> None:
        self.calls.append(call)
        if waiting := self.fails.get(call):
            raise waiting.pop(0)
