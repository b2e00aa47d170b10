"""The subnets of runs' networks, cut from the node's ranges.

Docker gives a network that names no subnet one of about 30 address pools, each of thousands of
addresses: with the thirtieth run the node is full. Small subnets of our own make it hundreds. A
subnet is not used while something else of the node has addresses in it: another network of the
engine, a route, a DNS server.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, ip_address
from pathlib import Path
from typing import Any

from shim.settings import MAX_NETWORKS, SubnetRange
from shim.wires.namespace import ROUTES, Namespace, WireError
from shim.wires.rules import BRIDGES

log = logging.getLogger(__name__)
SUBNET_PREFIX = 22
"""A bridge of Linux has 1023 ports, so a larger network would not hold more containers."""
_BUILT_IN = (
    *(SubnetRange(IPv4Network(f"172.{n}.0.0/16"), SUBNET_PREFIX) for n in range(30, 17, -1)),
    SubnetRange(IPv4Network("198.18.0.0/15"), SUBNET_PREFIX),
)
"""Docker's own pools but for 172.17, its default bridge, and 172.31, the default network of AWS:
from the last, because Docker begins with the first. Then the range for benchmarks of networks, for
nodes that have a route to 172.16.0.0/12."""
_RESOLVERS = Path("/etc/resolv.conf")
_MIN_ROUTE_PREFIX = 8
"""A wider route is a default route: VPNs split it into 0.0.0.0/1 and 128.0.0.0/1."""


class Subnets:
    """All subnets of the ranges. The last one of the first range is used first, because Docker
    begins with the first of its pools."""

    def __init__(self, ranges: Sequence[SubnetRange]) -> None:
        self._ranges = ranges

    def __str__(self) -> str:
        return ", ".join(str(one.network) for one in self._ranges)

    def free(self, used: Collection[IPv4Network]) -> IPv4Network | None:
        """Return the first subnet that overlaps with none of these; None: there is none."""
        for one in self._ranges:
            taken = _taken(one, used)
            for number in reversed(range(one.count)):
                if number not in taken:
                    return one.subnet(number)
        return None

    def count(self, used: Collection[IPv4Network]) -> int:
        """Return how many subnets overlap with none of these."""
        return sum(one.count - len(_taken(one, used)) for one in self._ranges)


def _taken(among: SubnetRange, used: Iterable[IPv4Network]) -> set[int]:
    """Return the numbers of the range's subnets that overlap with one of these.

    By numbers, because a comparison of each with each would keep the shim's loop for 0.1 s.
    """
    base = int(among.network.network_address)
    taken: set[int] = set()
    for one in used:
        first, last = int(one.network_address) - base, int(one.broadcast_address) - base
        lowest, highest = max(first // among.size, 0), min(last // among.size, among.count - 1)
        taken.update(range(lowest, highest + 1))
    return taken


def ranges_of(asked: Sequence[SubnetRange], info: Mapping[str, Any]) -> tuple[SubnetRange, ...]:
    """Return the operator's ranges, else the pools in the engine's configuration, else ours.

    `info` is the engine's answer about itself. Operators set its pools because others collide with
    their networks.
    """
    if asked:
        return tuple(asked)
    pools = info.get("DefaultAddressPools") or ()
    return tuple(_pools(pools)) or _BUILT_IN


def _pools(pools: Iterable[Mapping[str, Any]]) -> Iterator[SubnetRange]:
    for pool in pools:
        try:
            base = IPv4Network(str(pool.get("Base")))
        except ValueError:
            continue  # IPv6
        prefix = max(int(pool.get("Size") or 0), SUBNET_PREFIX, base.prefixlen)
        if 1 << (prefix - base.prefixlen) > MAX_NETWORKS:
            prefix = base.prefixlen + MAX_NETWORKS.bit_length() - 1
        yield SubnetRange(base, prefix)


def of_network(network: Mapping[str, Any]) -> Iterator[IPv4Network]:
    """Yield the IPv4 subnets of a network, as the engine describes it."""
    for config in (network.get("IPAM") or {}).get("Config") or ():
        try:
            yield IPv4Network(str(config.get("Subnet")), strict=False)
        except ValueError:
            continue  # IPv6


def of_node(
    engine: Namespace, routes: str = ROUTES, resolvers: Path = _RESOLVERS
) -> frozenset[IPv4Network]:
    """Return the networks to which the node has routes, and the addresses of its DNS servers.

    `engine`: the namespace in which the networks of runs are made; the shim may have other routes.
    Routes over the bridges of runs are left out: the engine tells their subnets.
    """
    return frozenset((*_routes(engine, routes), *_resolvers(resolvers)))


def _routes(engine: Namespace, path: str) -> Iterator[IPv4Network]:
    try:
        routes = engine.routes(path)
    except WireError as error:
        log.warning("%s, so networks may overlap with its routes", error)
        return
    for route in routes:
        if not route.device.startswith(BRIDGES) and route.to.prefixlen >= _MIN_ROUTE_PREFIX:
            yield route.to


def _resolvers(path: Path) -> Iterator[IPv4Network]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        log.warning("%s cannot be read, so networks may overlap with it: %s", path, error)
        return
    for line in lines:
        words = line.split()
        if words[:1] != ["nameserver"] or len(words) < 2:
            continue
        try:
            # glibc's resolver passes over a name server that is no address, too.
            address = ip_address(words[1])
        except ValueError:
            continue
        if isinstance(address, IPv4Address):
            yield IPv4Network(address)
