"""An admin's requests about fleets, and the attributes that nodes and fleets may have."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from common.refusals import Conflict, Invalid, NotFound
from controller.clock import Clock
from controller.lifecycle.inventory import Budget, MachinesPolicy, NodeImage
from controller.lifecycle.model import DEFAULT_FLEET, Fleet, Node, NodeStatus
from controller.nodes.images import login_of
from controller.pipelines.run_pipeline import RunPipeline
from controller.pipelines.to_node import SecretSource
from controller.service.accounts.rights import require_admin
from controller.store.accounts import User
from controller.vault import SecretMissing
from fairlead.configuration.values.fleet_images import fleet_images
from fairlead.wire.engine_abilities import EngineAbility

MAX_ATTRIBUTES = 64
NOT_ASKED = "not asked"
"""The state of an image that its node does not pull ahead."""
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_MAX_VALUE = 256
BUILT_IN = frozenset(
    {"node", "fleet", "cpu", "memory", "disk", "gpu.count", "gpu.name", "gpu.memory"}
)
"""Attributes that every node has by itself (see `controller.scheduling.fitting.constraints`)."""


def check_attributes(attributes: Mapping[str, str | None], field: str = "attributes") -> None:
    """Raise Invalid, with the field, for wrong attributes."""
    if len(attributes) > MAX_ATTRIBUTES:
        raise Invalid(f"more than {MAX_ATTRIBUTES} attributes", field=field)
    for name, value in attributes.items():
        if not _NAME.fullmatch(name):
            raise Invalid(
                f"{name!r} is not an attribute's name: 1 to 63 letters, digits and ._/- with a "
                f"letter or digit at both ends",
                field=field,
            )
        if name in BUILT_IN:
            raise Invalid(f"every node has {name} by itself; give another name", field=field)
        if value is not None and not (0 < len(value) <= _MAX_VALUE and value.isprintable()):
            raise Invalid(
                f"the value of {name} must be 1 to {_MAX_VALUE} printable characters",
                field=field,
            )


def changed_attributes(
    attributes: Mapping[str, str], changes: Mapping[str, str | None]
) -> dict[str, str]:
    """Return the attributes with the changes; None removes an attribute."""
    merged = {**attributes, **changes}
    return {name: value for name, value in merged.items() if value is not None}


NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class FleetService:
    def __init__(self, pipeline: RunPipeline, clock: Clock, secrets: SecretSource) -> None:
        self._pipeline = pipeline
        self._secrets = secrets
        self._clock = clock

    def all(self) -> list[Fleet]:
        return sorted(self._pipeline.fleets.values(), key=lambda fleet: fleet.name)

    def get(self, name: str) -> Fleet:
        """Return the fleet. Raises NotFound."""
        fleet = self._pipeline.fleets.get(name)
        if fleet is None:
            raise NotFound(
                f"there is no fleet {name!r}; `fairlead fleet list` shows them", field="fleet"
            )
        return fleet

    def _machines_of(self, name: str) -> list[str]:
        rentals = self._pipeline.rentals
        known = () if rentals is None else rentals.machines.values()
        return sorted(one.name for one in known if one.fleet == name and one.is_live)

    def nodes_of(self, name: str) -> list[str]:
        """Return the names of its nodes."""
        return sorted(node.name for node in self._pipeline.nodes.values() if node.fleet == name)

    async def add(
        self,
        name: str,
        *,
        placement: str | None,
        attributes: dict[str, str],
        machines: MachinesPolicy | None = None,
        budget: Budget | None = None,
        user: User,
    ) -> Fleet:
        """Add a fleet. Raises Invalid, Conflict, Forbidden."""
        require_admin(user, "add a fleet")
        if not NAME_PATTERN.fullmatch(name):
            raise Invalid(
                f"{name!r} is not a fleet's name: 1 to 63 of a-z, 0-9 and '-', with a letter or "
                f"digit at both ends",
                field="name",
            )
        if name in self._pipeline.fleets:
            raise Conflict(f"a fleet named {name} exists already", field="name")
        _check_placement(placement)
        check_attributes(attributes)
        fleet = Fleet(
            name=name,
            placement=placement,
            attributes=attributes,
            machines=machines,
            budget=budget or Budget(),
            created_at=self._clock.now(),
        )
        await self._pipeline.save_fleet(fleet, name)
        return fleet

    async def set(
        self,
        name: str,
        *,
        placement: str | None,
        attributes: dict[str, str | None],
        user: User,
    ) -> Fleet:
        """Change a fleet. `placement` None keeps it, an empty one removes it; an attribute of None
        is removed.

        Raises NotFound, Invalid, Forbidden.
        """
        require_admin(user, "change a fleet")
        fleet = self.get(name)
        check_attributes(attributes)
        if placement:
            _check_placement(placement)
        changed = msgspec.structs.replace(
            fleet,
            placement=fleet.placement if placement is None else placement or None,
            attributes=changed_attributes(fleet.attributes, attributes),
        )
        await self._pipeline.save_fleet(changed, name)
        return changed

    async def set_images(
        self, name: str, *, images: object, registry_auth: object, user: User
    ) -> Fleet:
        """Say which images the fleet's nodes pull ahead.

        Raises ConfigurationError, Invalid, NotFound, Forbidden.
        """
        require_admin(user, "have a fleet's nodes pull images ahead")
        fleet = self.get(name)
        written = fleet_images(images, registry_auth)
        changed = msgspec.structs.replace(fleet, images=written.images, registry_auth=written.auth)
        try:
            login_of(changed, self._secrets)
        except SecretMissing as error:
            raise Invalid(str(error), field="registry_auth") from None
        await self._pipeline.save_fleet(changed, name)
        return changed

    def images_on(self, node: Node) -> tuple[NodeImage, ...]:
        """Return how far the node is with the images of its fleet."""
        fleet = self._pipeline.fleets.get(node.fleet)
        if fleet is None or not fleet.images:
            return ()
        known = {one.image: one for one in node.capacity.images or ()}
        why = self._why_not_asked(node, fleet)
        waiting = NodeImage(image="", state=NOT_ASKED if why else "waiting", since=0.0, message=why)
        return tuple(
            (not why and known.get(image)) or msgspec.structs.replace(waiting, image=image)
            for image in fleet.images
        )

    def _why_not_asked(self, node: Node, fleet: Fleet) -> str | None:
        if EngineAbility.IMAGES in node.capacity.engine_lacks:
            return "its engine has no images"
        if node.capacity.images is None and node.status is NodeStatus.CONNECTED:
            return "its shim is of an older version: `fairlead node upgrade` installs this one"
        if node.draining:
            return "it is draining"
        try:
            login_of(fleet, self._secrets)
        except SecretMissing as error:
            return str(error)
        return None

    async def remove(self, name: str, *, user: User) -> Fleet:
        """Remove a fleet. Raises NotFound, Forbidden, and Conflict while it has nodes."""
        require_admin(user, "remove a fleet")
        fleet = self.get(name)
        if name == DEFAULT_FLEET.name:
            raise Conflict(f"the fleet {name} is always there", field="fleet")
        nodes = self.nodes_of(name)
        if nodes:
            rented = "; rented ones end with `machines: off` in its file"
            off = "" if fleet.machines is None else rented
            raise Conflict(
                f"fleet {name} still has nodes: {', '.join(nodes)}; move them "
                f"(`fairlead node set NODE --fleet OTHER`) or remove them{off}",
                code="fleet_not_empty",
                field="fleet",
            )
        machines = self._machines_of(name)
        if machines:
            raise Conflict(
                f"fleet {name} still has machines at its provider: {', '.join(machines)}; they end "
                f"by themselves (`fairlead machine list` shows them)",
                code="fleet_not_empty",
                field="fleet",
            )
        await self._pipeline.save_fleet(None, name)
        return fleet


def _check_placement(attribute: str | None) -> None:
    if attribute is not None:
        check_attributes({attribute: None}, "placement")
