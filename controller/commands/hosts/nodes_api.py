"""The controller's nodes and fleets, as commands about hosts read and change them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from common.links.host_keys import fingerprint
from controller.commands.hosts.connection import HostError
from controller.commands.hosts.host_plan import HostPlan
from fairlead.documents.nodes import FleetView, NodeView
from fairlead.errors import ApiError
from fairlead.rest import ControllerClient, decode, node_path


class _Fleets(msgspec.Struct):
    fleets: list[FleetView]


class _Nodes(msgspec.Struct):
    nodes: list[NodeView]
    next_cursor: str | None


class NodesApi:
    """The requests to the controller's API. The methods block and raise CliError."""

    def __init__(self, client: ControllerClient) -> None:
        self._client = client

    def tunnel_key(self) -> str:
        return str(decode(self._client.get("/v1/node-key"), dict[str, str])["public_key"])

    def find(self, name: str) -> NodeView | None:
        try:
            return decode(self._client.get(node_path(name)), NodeView)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def require_joinable(self, plan: HostPlan) -> NodeView | None:
        """Return the node that the host is already, if any. Raises HostError when it cannot be
        one: install asks before it changes the host."""
        if plan.fleet is not None and self.find_fleet(plan.fleet) is None:
            raise HostError(no_fleet(plan.fleet))
        node = self.find(plan.name)
        if node is None:
            return None
        if node.status == "expected":
            raise HostError(
                f"node {plan.name} is expected with the host key of its user-data: boot its "
                f"machine with that, or remove it (`fairlead node remove {plan.name}`)"
            )
        if not is_node_of(node, plan.host_key, None if plan.keeps_address else plan.address):
            raise HostError(
                f"there is already a node {plan.name}, at {node.address}: give another --name"
            )
        return node

    def join(self, plan: HostPlan) -> list[str]:
        """Make the host a node of the controller; return the changes."""
        node = self.require_joinable(plan)
        if node is None:
            self._add(plan)
            return [f"added node {plan.name} with host key {fingerprint(plan.host_key)}"]
        return self._change(node, plan)

    def named_at(self, address: tuple[str, int]) -> str | None:
        """Return the name of the node that has this address."""
        shown = shown_address(*address)
        return next((node.name for node in self.nodes() if node.address == shown), None)

    def find_fleet(self, name: str) -> FleetView | None:
        fleets = decode(self._client.get("/v1/fleets", limit=1000), _Fleets).fleets
        return next((fleet for fleet in fleets if fleet.name == name), None)

    def make_fleet(
        self,
        name: str,
        placement: str | None,
        attributes: dict[str, str],
        machines: dict[str, Any] | None = None,
        budget: dict[str, Any] | None = None,
    ) -> list[str]:
        """Make or change the fleet and return the changes; attributes that are not named stay, and
        so does what it may rent without `machines`; an empty mapping: nothing any more.

        What it may rent is refused before anything of a fleet is stored.
        """
        changes: list[str] = []
        before = self.find_fleet(name)
        # The API reads no machines as `off`.
        sections = {} if machines is None else {"machines": machines or None, "budget": budget}
        what = f"machines of {machines['provider']}" if machines else "no machines"
        rents = "" if machines is None else f"fleet {name} rents {what}"
        if before is None:
            body = {"name": name, "placement": placement, "attributes": attributes, **sections}
            made = decode(self._client.post("/v1/fleets", body), FleetView)
            return [f"added fleet {name}", *([rents] if rents else []), *_never_rents(made)]
        path = f"/v1/fleets/{quote(name, safe='')}"
        changed = before
        if machines is not None:
            changed = decode(self._client.put(f"{path}/machines", sections), FleetView)
        new = {
            key: value for key, value in attributes.items() if before.attributes.get(key) != value
        }
        if new or placement not in (None, before.placement):
            self._client.patch(path, {"placement": placement, "attributes": new})
            changes.append(f"changed fleet {name}")
        return [*changes, *([rents] if rents else []), *_never_rents(changed)]

    def set_images(self, name: str, images: list[object], registry_auth: object) -> bool:
        """Say what the fleet's nodes pull ahead; return whether that changed their list."""
        before = self.find_fleet(name)
        body = {"images": images, "registry_auth": registry_auth}
        self._client.put(f"/v1/fleets/{quote(name, safe='')}/images", body)
        return before is None or list(before.images) != images

    def nodes(self, fleet: str | None = None) -> list[NodeView]:
        """Return the nodes of one fleet, or all."""
        found: list[NodeView] = []
        cursor: str | None = None
        while True:
            page = decode(self._client.get("/v1/nodes", limit=1000, cursor=cursor), _Nodes)
            found += [node for node in page.nodes if fleet in (None, node.fleet)]
            if (cursor := page.next_cursor) is None:
                return found

    def remove(self, name: str) -> None:
        self._client.delete(node_path(name))

    def _add(self, plan: HostPlan) -> None:
        host, port = plan.address
        self._client.post(
            "/v1/nodes",
            {
                "name": plan.name,
                "host": host,
                "port": port,
                "host_key": plan.host_key,
                "attributes": plan.attributes,
                **({} if plan.fleet is None else {"fleet": plan.fleet}),
            },
        )

    def _change(self, node: NodeView, plan: HostPlan) -> list[str]:
        body: dict[str, object] = {}
        if fingerprint(plan.host_key) != node.host_key_fingerprint:
            body["host_key"] = plan.host_key
        if plan.fleet is not None and plan.fleet != node.fleet:
            body["fleet"] = plan.fleet
        new = {
            name: value
            for name, value in plan.attributes.items()
            if node.attributes.get(name) != value
        }
        if new:
            body["attributes"] = new
        if not body:
            return []
        self._client.patch(node_path(plan.name), body)
        return [f"changed node {plan.name}: {', '.join(sorted(body))}"]


def _never_rents(fleet: FleetView) -> list[str]:
    why = None if fleet.machines is None else fleet.machines.why_never
    return [] if why is None else [f"note: fleet {fleet.name}: {why}"]


def no_fleet(name: str) -> str:
    return (
        f"there is no fleet {name!r}; `fairlead fleet list` shows them, `fairlead fleet add "
        f"{name}` makes it"
    )


def shown_address(host: str, port: int) -> str:
    """Return the address as the API shows it for a node with Fairlead's own tunnel user."""
    return f"fairlead@{host}" + ("" if port == 22 else f":{port}")


def is_node_of(node: NodeView, host_key: str, address: tuple[str, int] | None) -> bool:
    """Return whether the node is the host with this key. `address`: at which the controller was
    said to reach it; None: nothing was said."""
    if address is not None:
        return node.address == shown_address(*address)
    return node.host_key_fingerprint == fingerprint(host_key)


def is_ready(node: NodeView) -> bool:
    """Return whether the node is connected and fit for work."""
    return node.status == "connected" and node.unfit is None
