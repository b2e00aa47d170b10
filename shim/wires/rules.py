"""The table of nftables that keeps the containers of runs apart. Pure: texts for `nft -f -`.

A packet from a wire must carry the source address that is routed to this wire. It may go to wires
of the same run, and out of the node; nothing begins a connection to a wire but the node itself. The
tables of the node's firewall know wires by the beginning of their names, as they know bridges: they
close metadata services and the node's sshd.

IPv4 and IPv6 have the same rules. Containers of a node without IPv6 have no address of it, so
whatever they send by IPv6 has a forged source: also router advertisements, whose sources are
link-local.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any

from shim.wires.connections import CLOSED_SECONDS, FIRST_PACKET, Limits

PASSED = 0x2000000
"""The bit of a packet's mark that says: our table let it pass. Docker's rules ask for it, so that
without our table nothing passes. Kubernetes uses 0x4000 and 0x8000, Tailscale 0xff0000."""

# `delete` fails where there is no table, so the table is made first, in one transaction.
_TABLE = """\
table inet {table}
delete table inet {table}
table inet {table} {{
    map runs {{ type ifname : verdict; }}
{limits}    chain source {{
        type filter hook prerouting priority raw; policy accept;
        iifname "{wires}" fib saddr . iif oif missing drop
        iifname "{wires}" ip daddr 127.0.0.0/8 drop
        iifname "{wires}" ip6 daddr fe80::/10 drop
    }}
    chain forward {{
        type filter hook forward priority -10; policy accept;
        iifname "{wires}" jump from_wire
        oifname "{wires}" ct state established,related accept
        oifname "{wires}" drop
    }}
    chain from_wire {{
        ct state invalid drop
        iifname vmap @runs
        oifname "{all_wires}" drop
        {but_uplinks}meta oifkind "bridge" ct state new drop
        meta mark set meta mark or {passed}
    }}
    chain translate {{
        type nat hook postrouting priority srcnat; policy accept;
        meta mark and {passed} == {passed} oifname != "{all_wires}" masquerade
    }}
{runs}}}
"""
_LIMITS = """\
    set connections {{ {counts} }}
    ct timeout closed {{
        protocol tcp;
        policy = {{ time_wait : {seconds} }};
    }}
    chain begins {{
        {rate}
        {count}
        ct timeout set "closed"
    }}
    chain input {{
        type filter hook input priority -10; policy accept;
        iifname "{wires}" ct state new iifname vmap @runs
    }}
"""
_RUN = """\
    set {run}_wires {{ type ifname; {elements}}}
{counts}    chain {run} {{
{limits}        oifname @{run}_wires meta mark set meta mark or {passed} accept
    }}
"""
_ADD_RUN = """\
add set inet {table} {run}_wires {{ type ifname; }}
{counts}add chain inet {table} {run}
flush chain inet {table} {run}
{limits}add rule inet {table} {run} oifname @{run}_wires meta mark set meta mark or {passed} accept
"""
_ADD = """\
add element inet {table} {run}_wires {{ "{wire}" }}
add element inet {table} runs {{ "{wire}" : jump {run} }}
"""
_REMOVE = """\
delete element inet {table} runs {{ "{wire}" }}
delete element inet {table} {run}_wires {{ "{wire}" }}
"""
_REMOVE_RUN = """\
delete chain inet {table} {run}
delete set inet {table} {run}_wires
"""
_BRIDGES = """\
table inet {table}
delete table inet {table}
table inet {table} {{
    chain leaves {{
        type filter hook prerouting priority -90; policy accept;
        iifname "{wires}*" return
        iifname "{bridges}*" fib daddr oifname "{wires}*" return
        iifname "{bridges}*" fib daddr oifname "{bridges}*" fib daddr . iif oif missing drop
    }}
}}
"""
BRIDGES = "fl-"
"""The names of runs' bridges begin with this: the node's firewall knows them by it."""
_REMOVE_COUNTS = "delete set inet {table} {run}_connections\n"
_GUARD = (
    "table inet {table} {{ flags owner; chain forward {{"
    " type filter hook forward priority 10; policy accept;"
    ' iifname "{wires}" meta mark & {passed} != {passed} drop;'
    ' oifname "{wires}" iifname != "{wires}" ct state new drop; }}; }}\n'
)
"""In one line: nft reads it from its standard input like one that a person writes."""
WIRES = "fl-w"
"""The names of all wires begin with this, whoever made them. Bridges of runs are named fl- and
hexadecimal digits."""
_OF_SHIM = 3
_OF_TASK = 8
_OF_PREFIX = 14
"""With `fd`, the first half of an IPv6 address."""
_HEADER = struct.Struct("=IHHIIBBH")
"""A message of nftables: length, type, flags, sequence, port; then family, version, resource
(linux/netlink.h, linux/netfilter/nfnetlink.h)."""
_DELETES_TABLE, _DELETES_CHAIN, _DELETES_RULE = 0xA02, 0xA05, 0xA08
"""linux/netfilter/nf_tables.h, in the subsystem 10 of nfnetlink."""
_PLAIN = re.compile(r"[\w.-]+", re.ASCII)
_OF_ENGINES = re.compile(
    r"docker\d+|docker_gwbridge|br-[0-9a-f]{12}|fl-[0-9a-f]+|(cni-)?podman\d*|virbr\d+|(lxc|lxd|incus)br\d+"
)
"""Bridges that engines and hosts of virtual machines make for themselves."""
_FIREWALLD = "firewalld"
OF_IPTABLES = ("ip", "ip6", "arp", "bridge")
"""The families in which iptables-nft has its tables, which `firewall_conflict` leaves to
rules of ours."""


class Names:
    """The names of one shim's wires and of its table: several shims may use one node."""

    def __init__(self, install_id: str) -> None:
        self.wires = f"{WIRES}{_digest(install_id, _OF_SHIM)}"
        self.table = f"fairlead_{_digest(install_id, _OF_TASK)}"
        self.bridges = f"{self.table}_bridges"
        """The table of the engine's bridges, where it connects containers."""
        self.guard = f"{self.table}_guard"
        self._of_prefix = _digest(install_id, _OF_PREFIX)

    @property
    def prefix(self) -> IPv6Network:
        """The IPv6 addresses of this shim's containers: unique local ones (RFC 4193), which no two
        shims share."""
        return IPv6Network((bytes.fromhex(f"fd{self._of_prefix}".ljust(32, "0")), 64))

    def address6(self, address: IPv4Address) -> IPv6Address:
        """Return the IPv6 address of the container that has this IPv4 address. So no other state
        says who has it."""
        return self.prefix[int(address)]

    def wire(self, task_id: str) -> str:
        """Return the name of the wire's end on the node, which has at most 15 characters (IFNAMSIZ
        of if.h, with its closing zero)."""
        return f"{self.wires}{_digest(task_id, _OF_TASK)}"


def table(
    names: Names,
    runs: Mapping[str, Iterable[str]],
    uplinks: Collection[str] = (),
    limits: Limits | None = None,
) -> str:
    """Return the whole table, with the wires of each run. It replaces one that is there, in one
    transaction.

    Wires do not lead to bridges, where the engine's other containers and virtual machines are, but
    for `uplinks`: many hosts of virtual machines have their own way out over a bridge. One that an
    engine made stays closed: a default route over it leads to a container, such as a VPN's, and the
    engine's other containers are there, too.
    """
    parts = []
    for run_id, wires in runs.items():
        listed = ", ".join(f'"{wire}"' for wire in wires)
        elements = f"elements = {{ {listed} }} " if listed else ""
        run = _chain(run_id)
        counts = f"    set {_counts(run)} {{ {limits.of_run.set_of_counts()} }}\n" if limits else ""
        limited = "".join(f"        {rule}\n" for rule in _rules_of_run(run, limits))
        parts.append(
            _RUN.format(
                run=run, elements=elements, counts=counts, limits=limited, passed=hex(PASSED)
            )
        )
    whole = _TABLE.format(
        table=names.table,
        wires=f"{names.wires}*",
        all_wires=f"{WIRES}*",
        passed=hex(PASSED),
        but_uplinks=_other_than(uplinks),
        runs="".join(parts),
        limits=_limits_of_all(names, limits) if limits else "",
    )
    jumps = [
        f'add element inet {names.table} runs {{ "{wire}" : jump {_chain(run_id)} }}\n'
        for run_id, wires in runs.items()
        for wire in wires
    ]
    return whole + "".join(jumps)


def bridges(table: str) -> str:
    """Return the whole table that keeps the engine's bridges of runs apart. It replaces one that is
    there, in one transaction.

    A packet leaves its run's network if its way leads to such a bridge, and not to the one that it
    came from. Kernels before 5.19 tell that only before they route it (nft_fib_validate), here
    after Docker has translated its destination. So it holds for no multicast or broadcast, which
    br_netfilter shows although it only crosses its bridge.
    """
    return _BRIDGES.format(table=table, bridges=BRIDGES, wires=WIRES)


def guard(names: Names) -> str:
    """Return the table that lets nothing of wires pass which the other one has not let pass."""
    return _GUARD.format(table=names.guard, wires=f"{names.wires}*", passed=hex(PASSED))


def _limits_of_all(names: Names, limits: Limits) -> str:
    rate, count = limits.of_all.counted_in("connections")
    return _LIMITS.format(
        counts=limits.of_all.set_of_counts(),
        seconds=CLOSED_SECONDS,
        rate=rate,
        count=count,
        wires=f"{names.wires}*",
    )


def _rules_of_run(run: str, limits: Limits | None) -> tuple[str, ...]:
    """Return what lets a run begin no more connections than its share, and all runs together no
    more than theirs. A run's own limit comes first: what it drops counts for no other run."""
    if limits is None:
        return ()
    each = (*limits.of_run.counted_in(_counts(run)), "jump begins")
    return tuple(f"{FIRST_PACKET} {rule}" for rule in each)


def _counts(run: str) -> str:
    return f"{run}_connections"


def add(
    names: Names, run_id: str, wire: str, limits: Limits | None = None, *, first: bool = True
) -> str:
    """Return what makes the wire one of the run's; it may be repeated. `limits`: the table's.

    `first`: the run may have no rules yet. New ones begin to count anew: each first connection
    after that would be counted in the same short list, which is full after some.
    """
    run, counts = _chain(run_id), ""
    if limits is not None:
        text = limits.of_run.set_of_counts()
        counts = f"add set inet {names.table} {_counts(run)} {{ {text} }}\n"
    limited = (f"add rule inet {names.table} {run} {one}\n" for one in _rules_of_run(run, limits))
    return (_ADD_RUN + _ADD if first else _ADD).format(
        table=names.table,
        run=run,
        wire=wire,
        counts=counts,
        limits="".join(limited),
        passed=hex(PASSED),
    )


def remove(
    names: Names, run_id: str, wire: str, limits: Limits | None = None, *, last: bool
) -> str:
    """Return what removes the wire, and the run if it is the `last` of its wires."""
    text = _REMOVE
    if last:
        text += _REMOVE_RUN + (_REMOVE_COUNTS if limits is not None else "")
    return text.format(table=names.table, run=_chain(run_id), wire=wire)


def beside_docker() -> tuple[Sequence[str], ...]:
    """Return the rules for Docker's chain DOCKER-USER, the first one first.

    Docker sets the policy of FORWARD to DROP, and an accept in another table does not undo a drop
    there. Only what our table has marked passes: when something flushes it, nothing does.
    """
    mark = ("-m", "mark", "--mark", f"{hex(PASSED)}/{hex(PASSED)}")
    answers = ("-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED")
    return (
        ("-i", f"{WIRES}+", *mark, "-j", "ACCEPT"),
        ("-i", f"{WIRES}+", "-j", "DROP"),
        ("-o", f"{WIRES}+", *answers, "-j", "ACCEPT"),
        ("-o", f"{WIRES}+", "-j", "DROP"),
    )


def removes_rules(heard: bytes, table: str) -> bool:
    """Return whether messages of nftables tell that a table is gone, or rules of another table than
    this one, whose rules the shim itself adds and removes."""
    for kind, body in _messages(heard):
        # The first attribute of these messages is the table's name, with its closing zero.
        ours = body[4:].startswith(table.encode() + b"\0")
        if kind == _DELETES_TABLE or (kind in (_DELETES_CHAIN, _DELETES_RULE) and not ours):
            return True
    return False


def _messages(heard: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(heard):
        length, kind = _HEADER.unpack_from(heard, at)[:2]
        yield kind, heard[at + _HEADER.size : at + length]
        at += max(length + 3 & ~3, _HEADER.size)


def firewall_conflict(
    listed: Iterable[Mapping[str, Any]], of_iptables: Collection[str] = OF_IPTABLES
) -> str | None:
    """Return what may drop the packets of wires; None: nothing. `listed` are all chains of the node
    as `nft -j list chains` names them.

    An accept in our table does not undo a drop in another one. What rules these chains have is not
    read: a node whose firewall is not known to let wires pass has Docker's networks. Rules of ours
    are in the families `of_iptables`.
    """
    for one in listed:
        chain = one.get("chain", {})
        table = f"{chain.get('family')} {chain.get('table')}"
        if chain.get("table") == _FIREWALLD:
            return "firewalld may reject what it has no zone for"
        is_theirs = chain.get("family") not in of_iptables
        if is_theirs and chain.get("hook") == "forward" and chain.get("policy") == "drop":
            return f"the chain {chain.get('name')} of the table {table} drops what is forwarded"
    return None


def has_zone(firewalld: str) -> bool:
    """Return whether firewalld has a zone for wires. `firewalld`: its table, as nft lists it."""
    return f'iifname "{WIRES}*"' in firewalld


def outdated_firewall(forward: str) -> str | None:
    """Return why the firewall of an installed node (packer/firewall.nft) drops what wires of one
    run send each other; None: it does not. `forward`: its chain as nft lists it."""
    if "jump runs" in forward and f'"{WIRES}*"' not in forward:
        return "the node's firewall is of an earlier version; run `install` of this one"
    return None


def addresses(subnet: IPv4Network) -> range:
    """Return the subnet's addresses for containers, as numbers."""
    return range(int(subnet.network_address) + 1, int(subnet.broadcast_address))


def _other_than(devices: Collection[str]) -> str:
    # The kernel allows nearly every character in a name; to nft, some would be its own.
    named = (one for one in sorted(devices) if _PLAIN.fullmatch(one))
    listed = ", ".join(f'"{one}"' for one in named if not _OF_ENGINES.fullmatch(one))
    return f"oifname != {{ {listed} }} " if listed else ""


def _chain(run_id: str) -> str:
    return f"run_{_digest(run_id, _OF_TASK * 2)}"


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]
