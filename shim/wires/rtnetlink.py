"""Requests to the kernel for devices, addresses, routes and neighbours (rtnetlink(7)). Pure.

Two runs of `ip -batch` took each start of a container 8 ms of CPU time, where all calls of its
engine take the shim 3. So a wire is asked for here, in the same words and the same order.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address

import msgspec

Address = IPv4Address | IPv6Address
LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBI")
_ROUTE = struct.Struct("=BBBBBBBBI")
_NEIGHBOUR = struct.Struct("=BxxxiHBB")
ATTRIBUTE = struct.Struct("=HH")
_NUMBER = struct.Struct("=I")
"""ifinfomsg, ifaddrmsg, rtmsg, ndmsg and rtattr of rtnetlink(7)."""
_NEW_LINK, _NEW_ADDRESS, _NEW_ROUTE, _NEW_NEIGHBOUR = 16, 20, 24, 28
_REPLACE, _EXCLUSIVE, _CREATE = 0x100, 0x200, 0x400
"""NLM_F_ of linux/netlink.h."""
_MAC, _NAME, _MTU, _INFO, _ALIAS, _OF_FAMILIES, _NAMESPACE = 1, 3, 4, 18, 20, 26, 28
_KIND, _DATA, _PEER = 1, 2, 1
_GENERATES, _NONE = 8, 1
"""IFLA_ and IFLA_INFO_ of linux/if_link.h, VETH_INFO_PEER of linux/veth.h;
IFLA_INET6_ADDR_GEN_MODE and its IN6_ADDR_GEN_MODE_NONE."""
_UP, _WITHOUT_ARP = 0x1, 0x80
"""IFF_ of linux/if.h."""
_WHOLE, _LOCAL = 1, 2
"""IFA_ADDRESS and IFA_LOCAL of linux/if_addr.h."""
_NO_DAD = 2
_TO, _OVER, _VIA = 1, 4, 5
"""RTA_ of linux/rtnetlink.h."""
_MAIN, _BOOT, _UNICAST, _ONLINK = 254, 3, 1, 4
_UNIVERSE, _ON_LINK = 0, 253
_OF_NEIGHBOUR, _ITS_MAC, _PERMANENT = 1, 2, 0x80
"""NDA_ and NUD_PERMANENT of linux/neighbour.h."""


class Request(msgspec.Struct, frozen=True):
    """One change. `words`: as they are in ip(8), for errors. `body` is given the index of the
    `device`, if there is one. `needless_after`: the error that tells that there is nothing to
    change."""

    words: str
    kind: int
    flags: int
    body: Callable[[int], bytes]
    device: str | None = None
    needless_after: int | None = None


class End(msgspec.Struct, frozen=True, kw_only=True):
    """One end of a new veth pair; `namespace`: the descriptor of the one where it shall be."""

    name: str
    mac: str
    mtu: int
    namespace: int | None = None


def add_pair(end: End, peer: End) -> Request:
    pair = attribute(_DATA, attribute(_PEER, _link() + _of_end(peer)))
    body = _link() + _of_end(end) + attribute(_INFO, attribute(_KIND, b"veth") + pair)
    words = f"link add {end.name} type veth peer name {peer.name}"
    return Request(words, _NEW_LINK, _CREATE | _EXCLUSIVE, lambda _: body)


def way_to(address: Address) -> bytes:
    """Return the body of a question which route leads to the address."""
    family, bits = _family(address), address.max_prefixlen
    return _ROUTE.pack(family, bits, 0, 0, 0, 0, 0, 0, 0) + attribute(_TO, address.packed)


def set_alias(name: str, alias: str) -> Request:
    body = _link() + _named(name) + attribute(_ALIAS, alias.encode())
    return Request(f"link set {name} alias {alias}", _NEW_LINK, 0, lambda _: body)


def generate_no_addresses(name: str) -> Request:
    """Before the device is up: the kernel gives it a link-local address then, unless it has no IPv6
    (booted with ipv6.disable=1) or gives none to a device with an MTU below 1280."""
    mode = attribute(socket.AF_INET6, attribute(_GENERATES, bytes((_NONE,))))
    body = _link() + _named(name) + attribute(_OF_FAMILIES, mode)
    words, without = f"link set {name} addrgenmode none", errno.EAFNOSUPPORT
    return Request(words, _NEW_LINK, 0, lambda _: body, needless_after=without)


def set_up(name: str, *, with_arp: bool = True) -> Request:
    """`with_arp`: it answers questions by ARP, and keeps a neighbour for each one who asks."""
    flags = _UP if with_arp else _UP | _WITHOUT_ARP
    body = _link(flags) + _named(name)
    words = f"link set {name} up" if with_arp else f"link set {name} arp off up"
    return Request(words, _NEW_LINK, 0, lambda _: body)


def replace_address(address: Address, device: str) -> Request:
    """Set the address, and ask nobody else on the wire whether they have it."""
    own = attribute(_LOCAL, address.packed) + attribute(_WHOLE, address.packed)
    flags = 0 if address.version == 4 else _NO_DAD

    def body(index: int) -> bytes:
        head = _ADDRESS.pack(_family(address), address.max_prefixlen, flags, _UNIVERSE, index)
        return head + own

    words = f"address replace {_alone(address)} dev {device}"
    return Request(words, _NEW_ADDRESS, _CREATE | _REPLACE, body, device)


def add_route(address: Address, device: str) -> Request:
    """The kernel refuses it with EEXIST where anybody's route to this address stands."""
    scope = _ON_LINK if address.version == 4 else _UNIVERSE
    to = attribute(_TO, address.packed)
    body = _route(address, address.max_prefixlen, scope, to)
    words = f"route add {_alone(address)} dev {device}"
    return Request(words, _NEW_ROUTE, _CREATE | _EXCLUSIVE, body, device)


def replace_default(gateway: Address, device: str) -> Request:
    """The kernel has no route to the gateway, and is told not to look for one."""
    via = attribute(_VIA, gateway.packed)
    body = _route(gateway, 0, _UNIVERSE, via, _ONLINK)
    words = f"route replace default via {gateway} dev {device} onlink"
    return Request(words, _NEW_ROUTE, _CREATE | _REPLACE, body, device)


def replace_neighbour(address: Address, mac: str, device: str) -> Request:
    """The kernel asks nobody for it."""
    known = attribute(_OF_NEIGHBOUR, address.packed) + attribute(_ITS_MAC, _bytes_of(mac))

    def body(index: int) -> bytes:
        return _NEIGHBOUR.pack(_family(address), index, _PERMANENT, 0, 0) + known

    words = f"neigh replace {address} lladdr {mac} dev {device} nud permanent"
    return Request(words, _NEW_NEIGHBOUR, _CREATE | _REPLACE, body, device)


def _route(
    address: Address, length: int, scope: int, attributes: bytes, flags: int = 0
) -> Callable[[int], bytes]:
    head = _ROUTE.pack(_family(address), length, 0, 0, _MAIN, _BOOT, scope, _UNICAST, flags)
    return lambda index: head + attributes + attribute(_OVER, _NUMBER.pack(index))


def _link(flags: int = 0) -> bytes:
    return LINK.pack(socket.AF_UNSPEC, 0, 0, flags, flags)


def _of_end(end: End) -> bytes:
    namespace = b""
    if end.namespace is not None:
        namespace = attribute(_NAMESPACE, _NUMBER.pack(end.namespace))
    mtu = attribute(_MTU, _NUMBER.pack(end.mtu))
    return _named(end.name) + mtu + attribute(_MAC, _bytes_of(end.mac)) + namespace


def _named(name: str) -> bytes:
    return attribute(_NAME, name.encode() + b"\0")


def attribute(kind: int, data: bytes) -> bytes:
    """Return the attribute with the padding up to the next one."""
    whole = ATTRIBUTE.pack(ATTRIBUTE.size + len(data), kind) + data
    return whole.ljust(aligned(len(whole)), b"\0")


def aligned(length: int) -> int:
    """Return the length with the padding up to the next attribute."""
    return length + 3 & ~3


def _bytes_of(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def _family(address: Address) -> int:
    return socket.AF_INET if address.version == 4 else socket.AF_INET6


def _alone(address: Address) -> str:
    return f"{address}/{address.max_prefixlen}"
