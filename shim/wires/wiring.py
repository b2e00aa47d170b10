"""The commands that make one wire. Pure: lines for `ip -batch -`.

Both ends know each other's hardware address for good, so nothing asks for it and no forged answer
counts. The gateway is an address on the wire itself, so no pool is spent on subnets.
"""

from __future__ import annotations

import hashlib
from ipaddress import IPv4Address, IPv6Address

import msgspec

GATEWAY = "169.254.1.1"
GATEWAY6 = "fe80::1"
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
    def mac(self) -> str:
        digest = hashlib.sha256(self.name.encode()).digest()[:4]
        return ":".join((_OURS, *(f"{byte:02x}" for byte in digest)))


def on_node(wire: Wire, namespace: str, owner: str) -> str:
    """Return the commands for the node's side; `namespace`: the path of the container's.

    The route is the claim to the address: `add` fails where anybody's route to it stands, so two
    shims never give one address twice.
    """
    return "\n".join(
        (
            f"link add {wire.name} mtu {wire.mtu} address {_NODE_MAC} type veth "
            f"peer name {INSIDE} mtu {wire.mtu} address {wire.mac} netns {namespace}",
            f"link set {wire.name} alias {owner}",
            # No link-local address: nobody on this wire asks for neighbours.
            f"link set {wire.name} addrgenmode none up",
            f"route add {wire.address}/32 dev {wire.name} scope link",
            f"neigh replace {wire.address} lladdr {wire.mac} dev {wire.name} nud permanent",
            *_on_node6(wire),
            "",
        )
    )


def _on_node6(wire: Wire) -> tuple[str, ...]:
    if wire.address6 is None:
        return ()
    return (
        f"route add {wire.address6}/128 dev {wire.name}",
        f"neigh replace {wire.address6} lladdr {wire.mac} dev {wire.name} nud permanent",
    )


def in_container(wire: Wire) -> str:
    """Return the commands for the container's side. The route comes last: a wire with a default
    route is complete."""
    return "\n".join(
        (
            "link set lo up",
            f"link set {INSIDE} addrgenmode none up",
            f"address replace {wire.address}/32 dev {INSIDE}",
            *_in_container6(wire),
            f"neigh replace {GATEWAY} lladdr {_NODE_MAC} dev {INSIDE} nud permanent",
            # The kernel has no route to the gateway: `onlink` tells it not to look for one.
            f"route replace default via {GATEWAY} dev {INSIDE} onlink",
            "",
        )
    )


def _in_container6(wire: Wire) -> tuple[str, ...]:
    if wire.address6 is None:
        return ()
    return (
        # Nobody else is on this wire who could have the address.
        f"address replace {wire.address6}/128 dev {INSIDE} nodad",
        f"neigh replace {GATEWAY6} lladdr {_NODE_MAC} dev {INSIDE} nud permanent",
        f"route replace default via {GATEWAY6} dev {INSIDE} onlink",
    )
