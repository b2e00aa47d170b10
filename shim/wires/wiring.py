"""What makes one wire: requests to the kernel. Pure.

Both ends know each other's hardware address for good, so nothing asks for it and no forged answer
counts. The gateway is an address on the wire itself, so no pool is spent on subnets.
"""

from __future__ import annotations

import hashlib
from ipaddress import IPv4Address, IPv6Address

import msgspec

from shim.wires import rtnetlink
from shim.wires.rtnetlink import Address, End, Request

GATEWAY = IPv4Address("169.254.1.1")
GATEWAY6 = IPv6Address("fe80::1")
INSIDE = "eth0"
"""The name of the end in the container."""
_NODE_MAC = "0a:66:6c:00:00:01"
_OURS = "0a:66"


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """A wire to make. `name`: of its end on the node; `mtu` in bytes; without `address6` it has no
    IPv6."""

    name: str
    address: IPv4Address
    address6: IPv6Address | None = None
    mtu: int

    @property
    def addresses(self) -> tuple[Address, ...]:
        return (self.address,) if self.address6 is None else (self.address, self.address6)

    @property
    def mac(self) -> str:
        digest = hashlib.sha256(self.name.encode()).digest()[:4]
        return ":".join((_OURS, *(f"{byte:02x}" for byte in digest)))


def on_node(wire: Wire, namespace: int, owner: str) -> tuple[Request, ...]:
    """Return the requests for the node's side; `namespace`: the descriptor of the container's.

    The route is the claim to the address: it is refused where anybody's route to it stands, so two
    shims never give one address twice.
    """
    return (
        rtnetlink.add_pair(
            End(name=wire.name, mac=_NODE_MAC, mtu=wire.mtu),
            End(name=INSIDE, mac=wire.mac, mtu=wire.mtu, namespace=namespace),
        ),
        rtnetlink.set_alias(wire.name, owner),
        # No link-local address: nobody on this wire asks for neighbours.
        rtnetlink.generate_no_addresses(wire.name),
        # A question by ARP makes a neighbour of whatever sender it names, and all neighbours of the
        # node share one table: a job could fill it. Before neighbours are set: this removes them.
        rtnetlink.set_up(wire.name, with_arp=False),
        *(
            request
            for address in wire.addresses
            for request in (
                rtnetlink.add_route(address, wire.name),
                rtnetlink.replace_neighbour(address, wire.mac, wire.name),
            )
        ),
    )


def in_container(wire: Wire) -> tuple[Request, ...]:
    """Return the requests for the container's side. The IPv4 route comes last: a wire with a
    default route is complete."""
    return (
        rtnetlink.set_up("lo"),
        rtnetlink.generate_no_addresses(INSIDE),
        rtnetlink.set_up(INSIDE),
        *(
            request
            for address in reversed(wire.addresses)
            for request in _way_out(address, GATEWAY if address.version == 4 else GATEWAY6)
        ),
    )


def _way_out(address: Address, gateway: Address) -> tuple[Request, ...]:
    return (
        rtnetlink.replace_address(address, INSIDE),
        rtnetlink.replace_neighbour(gateway, _NODE_MAC, INSIDE),
        rtnetlink.replace_default(gateway, INSIDE),
    )
