"""Makes, keeps and removes the wires of one shim's containers.

A wire may be cut short at any step by a crash. So each step is repeatable, a wire counts as made
once its container has a default route, and `open` removes what belongs to no container. What others
do to the node's firewall (`nft flush ruleset`, `iptables -F`) is found by `repair`.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import msgspec

from shim.errors import EngineError
from shim.wires import connections, rules, wiring
from shim.wires.connections import Limits
from shim.wires.namespace import (
    AddressTaken,
    AlreadyThere,
    Namespace,
    ProcessEnded,
    WireError,
)
from shim.wires.wiring import Wire

log = logging.getLogger(__name__)
_USUAL_MTU = 1500
_MIN_IPV6_MTU = 1280
"""The kernel gives no IPv6 to a device with less (RFC 8200, 5)."""
_STRIPES = 64
_READY_WITHIN = 20.0
_PAUSE = 0.001
_DOCKER_USER = "DOCKER-USER"
# Docker and firewalld hold the lock of iptables now and then.
_IPTABLES, _IP6TABLES = ("iptables", "--wait"), ("ip6tables", "--wait")
_IPV4, _IPV6 = "/proc/sys/net/ipv4", "/proc/sys/net/ipv6/conf"
_ADVERTISEMENTS = f"{_IPV6}/default/accept_ra"
_LEGACY_TABLES = "/proc/net/ip_tables_names"
_NO_FORWARDING = "the node does not forward IPv4 (sysctl net.ipv4.ip_forward=1)"
_NO_LIMITS = "jobs may fill the node's table of connections"
_NO_BRIDGES = "a bridge with the default route may be the engine's"
_NOT_FORGOTTEN = "the next job with an ended one's address may get what is sent to that one"


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """One container that has a wire, or gets one. `container`: the engine's id for it."""

    task_id: str
    run_id: str
    container: str
    address: IPv4Address


class Wires:
    """The wires of one shim. Blocking, for the engine's threads; several may call at once.

    `bridges_of_engine` names the bridges of the engine's networks. Raises EngineError.
    """

    def __init__(
        self,
        install_id: str,
        namespace: Namespace,
        bridges_of_engine: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self._bridges_of_engine = bridges_of_engine
        self._own_bridges = frozenset[str]()
        """Bridges with the default route that are not the engine's."""
        self._names = rules.Names(install_id)
        self._namespace = namespace
        self._attached: dict[str, Attachment] = {}
        """By the name of the wire."""
        self._expected: dict[str, str] = {}
        """The runs of wires that the table names already, and that are still to be made."""
        self._waiting: dict[str, str] = {}
        """The runs of wires whose rules a thread is about to write."""
        self._cut: dict[str, IPv4Address] = {}
        """The addresses of wires that are cut, whose containers may be there still."""
        self._ended: set[IPv4Address] = set()
        """The addresses of containers that are gone, whose connections may be there still."""
        self._told: dict[str, str | None] = {}
        """Why each thing does not work; None: it works."""
        self._size_of_table = 0
        self._limits: Limits | None = None
        self._written_limits: Limits | None = None
        self._subnet = IPv4Network("0.0.0.0/30")
        self._given: set[IPv4Address] = set()
        self._last = 0
        self._mtu = _USUAL_MTU
        self._uplinks = self._written_uplinks = frozenset[str]()
        self._forwards = True
        self._kernel_has_ipv6 = self._has_ipv6 = False
        self._lock = threading.RLock()
        """For all of the above, and for the table: two transactions of nft at once may each find
        that the other has changed what they had read."""
        self._forgetting = threading.Lock()
        """An address that its task gets again must not be forgotten by a thread that began when
        nobody had it."""
        self._making = tuple(threading.Lock() for _ in range(_STRIPES))
        """A wire is made by one thread at a time: `repair` finds one missing that a start makes."""

    def firewall_conflict(self) -> str | None:
        """Return why the node's firewall may drop what wires send; None: as far as it is known, it
        does not. Raises WireError."""
        listed = json.loads(self._namespace.run("nft", "-j", "list", "chains"))
        is_legacy = "nf_tables" not in self._namespace.run("iptables", "--version")
        of_iptables = () if is_legacy else rules.OF_IPTABLES
        found = rules.firewall_conflict(listed.get("nftables", ()), of_iptables)
        if found is None and not is_legacy:
            found = self._conflict_of_legacy()
        if found is not None:
            return found
        forward = ("nft", "list", "chain", "inet", "fairlead", "forward")
        if self._namespace.answers(*forward):
            return rules.outdated_firewall(self._namespace.run(*forward))
        return None

    def _conflict_of_legacy(self) -> str | None:
        """Return why the other kind of iptables may drop what wires send: a Docker engine that
        began with it has its rules there, and the kernel asks both."""
        try:
            names = self._namespace.read(_LEGACY_TABLES).split()
        except WireError:
            return None
        # To list a table that is not there would make it.
        if "filter" not in names:
            return None
        try:
            rule = self._namespace.run("iptables-legacy", "-S", "FORWARD").partition("\n")[0]
        # The shim's unit lacks CAP_NET_RAW, without which it lists nothing.
        except WireError as error:
            return f"rules of iptables-legacy are there and cannot be read ({error})"
        if rule != "-P FORWARD DROP":
            return None
        return "iptables-legacy drops what is forwarded, and iptables here is another kind"

    def loses(self, heard: bytes) -> bool:
        """Return whether messages of nftables tell that `repair` has something to do."""
        return rules.removes_rules(heard, self._names.table)

    def open(
        self,
        attached: Iterable[Attachment],
        subnet: IPv4Network,
        reserved: Iterable[IPv4Address] = (),
    ) -> None:
        """Take over the wires of running containers, and remove those of no container. The
        addresses `reserved` are given to no other container.

        Raises WireError, which says why this node cannot have wires.
        """
        self._attached = {self._names.wire(one.task_id): one for one in attached}
        self._expected = {}
        self._given = {*(one.address for one in self._attached.values()), *reserved}
        self._ended = set()
        self._subnet = subnet
        # Which addresses rest is forgotten: from a random one on, a recent one is rarely met.
        self._last = random.choice(rules.addresses(subnet))
        self._check_node()
        self._has_ipv6 = self._kernel_has_ipv6 and self._forwards_ipv6()
        self._look_at_uplinks()
        self._look_at_connections()
        for name in self._present() - set(self._attached):
            self._unlink(name)
        self._forget_all_but(self._given)
        # Whole, because it may still name wires of containers that were removed meanwhile.
        self._write_table()
        self.repair()

    def _check_node(self) -> None:
        self._forwards = self._forwards_ipv4()
        if not self._forwards:
            raise WireError(_NO_FORWARDING)
        # A unit or a container that forbids namespaces is found here, before a job needs one.
        self._namespace.run("nsenter", "--net=/proc/self/ns/net", "true")
        self._kernel_has_ipv6 = self._namespace.answers("test", "-e", _IPV6)
        if self._kernel_has_ipv6 and not self._namespace.answers("test", "-w", _ADVERTISEMENTS):
            raise WireError("/proc/sys/net is read-only here, so IPv6 of wires cannot be closed")
        if not self._namespace.answers(*_IPTABLES, "-n", "-L", _DOCKER_USER):
            raise WireError(
                f"the engine has no chain {_DOCKER_USER} in iptables, so it may drop what wires "
                "forward"
            )

    def _forwards_ipv6(self) -> bool:
        """Return whether the node has a way out by IPv6 and forwards to it. It is not made to: a
        host that forwards takes no router advertisements, from which it may have its own route."""
        forwards = self._namespace.run("cat", f"{_IPV6}/all/forwarding").strip()
        routes = self._namespace.run("ip", "-j", "-6", "route", "show", "default")
        return forwards == "1" and bool(json.loads(routes or "[]"))

    def _forwards_ipv4(self) -> bool:
        return self._namespace.read(f"{_IPV4}/ip_forward").strip() == "1"

    def _look_at_uplinks(self) -> None:
        """Look at the devices with a default route. A node without any is about to get one back.

        New wires get their least MTU: tunnels of clouds and VPNs have less than 1500 bytes, and a
        job would only see connections that hang.
        """
        if not (uplinks := self._namespace.uplinks()):
            return
        # Each time: a device keeps its name when its MTU changes.
        links = json.loads(self._namespace.run("ip", "-j", "-d", "link", "show"))
        sizes = (int(one["mtu"]) for one in links if one["ifname"] in uplinks)
        self._mtu = min(sizes, default=_USUAL_MTU)
        self._uplinks = uplinks - self._closed_bridges(uplinks, links)

    def _closed_bridges(
        self, uplinks: Collection[str], links: Sequence[Mapping[str, Any]]
    ) -> frozenset[str]:
        """Return the uplinks that are an engine's bridges: containers are there, and a default
        route over one leads to a container. An operator's bridge, to which an engine was told to
        attach containers, has another port than theirs."""
        bridges = {one["ifname"] for one in links if _kind(one) == "bridge"}
        ways_out = {one.get("master") for one in links if _kind(one) != "veth"}
        doubted = frozenset(bridges.intersection(uplinks) - ways_out)
        if not doubted:
            return frozenset()
        try:
            closed = doubted.intersection(self._bridges_of_engine())
        # It may be away: what it has said before counts.
        except EngineError as error:
            self._tell(_NO_BRIDGES, error)
            return doubted - self._own_bridges
        self._tell(_NO_BRIDGES)
        self._own_bridges = doubted - closed
        return closed

    def _look_at_connections(self) -> None:
        """Follow the size of the table of connections, of which jobs may have a part. The kernel
        tells it once something uses that table."""
        try:
            size = int(self._namespace.read(connections.TABLE_SIZE))
        except (WireError, ValueError):
            return
        if size == self._size_of_table:
            return
        # 0 is for no end.
        limits = Limits(size) if size else None
        trial = rules.table(self._names, {"trial": ()}, limits=limits)
        try:
            self._namespace.run("nft", "-c", "-f", "-", given=trial)
        # It may be for a moment, as with too little memory. Until then, what was written counts.
        except WireError as error:
            self._tell(_NO_LIMITS, error)
            return
        self._tell(_NO_LIMITS)
        self._size_of_table, self._limits = size, limits

    def give(self, taken: Collection[str] = (), wanted: str | None = None) -> str:
        """Return an address for a container; `wanted` is one that its task got before.

        Raises AddressTaken when all are in use.
        """
        with self._lock:
            if wanted is not None and wanted not in taken and self._is_ours(IPv4Address(wanted)):
                if IPv4Address(wanted) in self._ended:
                    self._forget_ended()
                self._given.add(IPv4Address(wanted))
                return wanted
            address = self._next_free()
            if address is None:
                self._forget_ended()
                address = self._next_free()
            if address is not None:
                self._last = int(address)
                self._given.add(address)
                return str(address)
        many = len(rules.addresses(self._subnet))
        raise AddressTaken(f"all {many} addresses for containers on this node are in use")

    def _next_free(self) -> IPv4Address | None:
        routed = self._routed()
        among = rules.addresses(self._subnet)
        start = among.index(self._last)
        # On from the last one: an address rests before it is used again, so that late packets of
        # its last container meet nobody.
        for offset in range(1, len(among) + 1):
            address = IPv4Address(among[(start + offset) % len(among)])
            if not any(address in held for held in (self._given, self._ended, routed)):
                return address
        return None

    def _is_ours(self, address: IPv4Address) -> bool:
        """Return whether a task may keep the address: a running container has its own also when
        this life of the shim got another subnet."""
        return address in self._subnet or address in self._given

    def give_back(self, addresses: Iterable[str]) -> None:
        with self._lock:
            self._given.difference_update(map(IPv4Address, addresses))

    def expect(self, task_id: str, run_id: str) -> None:
        """Write the rules of a wire before its container has a process; may be repeated.

        The kernel ends a transaction of nft only after a grace period of RCU: 10 to 30 ms, in which
        the engine starts the container. So one transaction has the rules of all that wait for it.
        Raises WireError.
        """
        name = self._names.wire(task_id)
        # Without the lock, which whoever writes now holds for so long.
        self._waiting[name] = run_id
        try:
            with self._lock:
                if name not in self._attached and name not in self._expected:
                    self._expect_all(name, run_id)
        finally:
            self._waiting.pop(name, None)

    def _expect_all(self, name: str, run_id: str) -> None:
        """Write the rules of this wire and of all that wait to be expected."""
        known = {*self._attached, *self._expected}
        # A copy in one step: other threads add to it meanwhile.
        waiting = {**self._waiting, name: run_id}
        together = {one: run for one, run in waiting.items() if one not in known}
        try:
            self._add(together)
        except WireError:
            if len(together) == 1:
                raise
            # Each has an answer of its own.
            together = {name: run_id}
            self._add(together)
        self._expected.update(together)

    def attach(self, one: Attachment, pid: int, still: Callable[[], bool]) -> None:
        """Make the container's wire, unless it has one. `pid`: of its first process.

        `still` tells whether `pid` is still that process; it is asked once its namespace is held,
        because the kernel may have given the number to another one meanwhile. Raises AddressTaken
        when another shim was faster, ProcessEnded, WireError.
        """
        name = self._names.wire(one.task_id)
        alone = self._making[hash(name) % _STRIPES]
        with alone, self._namespace.entered(pid) as (inside, held):
            if not still():
                raise ProcessEnded(f"container {one.container} has ended")
            if self._is_complete(one, name, inside):
                return
            # A crash may have left half of it, and the kernel refuses a name that exists.
            self._unlink(name)
            try:
                self._make(one, name, inside, held)
            except WireError:
                self._unlink(name)
                raise
        with self._lock:
            self._given.add(one.address)

    def _is_complete(self, one: Attachment, name: str, inside: Namespace) -> bool:
        if name not in self._present():
            return False
        routes = json.loads(inside.run("ip", "-j", "-4", "route", "show", "default"))
        found = json.loads(inside.run("ip", "-j", "-4", "address", "show", "dev", wiring.INSIDE))
        addresses = {info.get("local") for link in found for info in link.get("addr_info", ())}
        return bool(routes) and str(one.address) in addresses

    def _make(self, one: Attachment, name: str, inside: Namespace, held: int) -> None:
        has_ipv6 = self._has_ipv6 and self._mtu >= _MIN_IPV6_MTU
        address6 = self._names.address6(one.address) if has_ipv6 else None
        wire = Wire(name=name, address=one.address, address6=address6, mtu=self._mtu)
        try:
            self._namespace.change(wiring.on_node(wire, held, one.container))
        except AlreadyThere:
            raise AddressTaken(f"address {one.address} is in use on this node") from None
        self._ignore_advertisements(wire)
        self._let_it_forward(name)
        with self._lock:
            self._attached[name] = one
            # Before the container's end has an address: no packet goes out past the rules.
            if self._expected.pop(name, None) is None:
                self._add({name: one.run_id})
        inside.change(wiring.in_container(wire))
        # Its node's end was up first: of the first answers to 22 containers beside other work, 7
        # were dropped there.
        _wait(lambda: self._namespace.sends(name), f"{name} is not up")
        # Of 60 containers at load 20, 11 would have lost the first answer by IPv6.
        if address6 is not None:
            _wait(lambda: inside.takes(address6), f"{address6} is not in use")

    def _ignore_advertisements(self, wire: Wire) -> None:
        """A router advertisement of a container must not change the node's routes, also while our
        table is flushed. A node that does not forward IPv6 accepts them by default."""
        if not self._kernel_has_ipv6 or wire.mtu < _MIN_IPV6_MTU:
            return
        setting, value = ("accept_ra", "0") if self._has_ipv6 else ("disable_ipv6", "1")
        self._namespace.write(f"{_IPV6}/{wire.name}/{setting}", value)

    def _let_it_forward(self, name: str) -> None:
        """A new device forwards what the node's default says, and hardening scripts set it to 0. No
        job may start without a way out. Raises WireError."""
        setting = f"{_IPV4}/conf/{name}/forwarding"
        if self._namespace.read(setting).strip() == "1":
            return
        # It sets all devices and the default (ip-sysctl: ip_forward), so this is for the node.
        if not self._forwards_ipv4():
            raise WireError(_NO_FORWARDING)
        self._namespace.write(setting, "1")

    def cut(self, task_id: str) -> None:
        """Remove the wire and the rules of a container that has ended; may be repeated.

        Its address stays taken until `detach`: as long as the container is there, somebody may look
        it up there.
        """
        name = self._names.wire(task_id)
        with self._lock:
            if (one := self._attached.get(name)) is not None:
                # Usually the kernel has removed it, with the container's namespace.
                self._unlink(name)
                del self._attached[name]
                self._cut[name] = one.address
            run_id = self._expected.pop(name, None) if one is None else one.run_id
            if run_id is None:
                return
            last = run_id not in self._runs()
            try:
                self._nft(rules.remove(self._names, run_id, name, self._written_limits, last=last))
            except WireError as error:
                # Another program flushed the table: `repair` writes it without this wire.
                log.warning("the rules of %s are not removed: %s", name, error)

    def detach(self, task_id: str) -> IPv4Address | None:
        """Forget the wire of a container that is gone, and cut it unless that is done.

        Return its address, which may be given again; None: it had no wire.
        """
        with self._lock:
            self.cut(task_id)
            address = self._cut.pop(self._names.wire(task_id), None)
            if address is not None:
                self._given.discard(address)
                self._ended.add(address)
        return address

    def _forget_ended(self) -> None:
        """Remove what containers that are gone have left in the table of connections.

        Not at their end: it takes some 10 ms, for one or for many. Until then nobody gets the
        address, since the outside could still reach whoever had it.
        """
        with self._forgetting:
            ended = tuple(self._ended)
            if not ended:
                return
            # Another shim of this node may have the same subnet, and have given one of them since.
            packed = {address.packed for address in {*ended} - self._routed()}
            self._forget(lambda source: source in packed)
            # Without the lock, under which a start may wait for this.
            for address in ended:
                self._ended.discard(address)

    def _forget_all_but(self, kept: Collection[IPv4Address]) -> None:
        """Remove the connections of all other addresses: an earlier life of the shim may have ended
        before it did."""
        packed = {address.packed for address in map(IPv4Address, rules.addresses(self._subnet))}
        # Another shim of this node may have the same subnet: its containers go on.
        packed -= {address.packed for address in (*kept, *self._routed())}
        self._forget(lambda source: source in packed)

    def _forget(self, is_stale: Callable[[bytes], bool]) -> None:
        prefix = self._names.prefix.network_address.packed[:8]

        def began_by_stale(source: bytes) -> bool:
            # An IPv6 address of ours ends in the IPv4 address of the same container.
            return (len(source) == 4 or source.startswith(prefix)) and is_stale(source[-4:])

        try:
            self._namespace.forget(began_by_stale)
        # A kernel without ctnetlink: they end by themselves.
        except WireError as error:
            self._tell(_NOT_FORGOTTEN, error)
        else:
            self._tell(_NOT_FORGOTTEN)

    def _tell(self, what: str, error: EngineError | None = None) -> None:
        """Log what does not work, or works again. It is tried every few seconds: each reason is
        logged once."""
        why = None if error is None else str(error)
        if why is not None and self._told.get(what) != why:
            log.warning("%s: %s", what, why)
        self._told[what] = why

    def repair(self) -> tuple[Attachment, ...]:
        """Put back what the node's firewall has lost, and follow its uplinks. Return those whose
        wire is gone."""
        self._forget_ended()
        with self._lock:
            self._look_at_uplinks()
            self._look_at_connections()
            written = (self._uplinks, self._limits) == (self._written_uplinks, self._written_limits)
            if not written or not self._keeps_apart():
                log.info("writing the table %s", self._names.table)
                self._write_table()
            self._tell_of_forwarding()
            self._repair_docker_user(_IPTABLES)
            if self._has_ipv6:
                self._repair_docker_user(_IP6TABLES)
            present = self._present()
            return tuple(one for name, one in self._attached.items() if name not in present)

    def _write_table(self) -> None:
        self._nft(rules.table(self._names, self._runs(), self._uplinks, self._limits))
        self._written_uplinks, self._written_limits = self._uplinks, self._limits

    def _tell_of_forwarding(self) -> None:
        before, self._forwards = self._forwards, self._forwards_ipv4()
        if before and not self._forwards:
            log.warning("jobs reach nobody: %s", _NO_FORWARDING)

    def close(self) -> None:
        """Remove the table when no container needs it, and the rules in Docker's chain when no wire
        of any shim is left. A shim that has none yet writes them again."""
        with self._lock:
            if not self._attached and not self._expected:
                self._namespace.answers("nft", "delete", "table", "inet", self._names.table)
                if not any(name.startswith(rules.WIRES) for name in self._links()):
                    self._leave_docker_user()
            self._namespace.close()

    def _leave_docker_user(self) -> None:
        for iptables in (_IPTABLES, _IP6TABLES) if self._has_ipv6 else (_IPTABLES,):
            for rule in rules.beside_docker():
                self._namespace.answers(*iptables, "-D", _DOCKER_USER, *rule)

    def _runs(self) -> Mapping[str, list[str]]:
        runs: dict[str, list[str]] = {}
        for name, one in self._attached.items():
            runs.setdefault(one.run_id, []).append(name)
        for name, run_id in self._expected.items():
            runs.setdefault(run_id, []).append(name)
        return runs

    def _keeps_apart(self) -> bool:
        """Return whether the table is there, and not flushed."""
        chain = ("inet", self._names.table, "forward")
        try:
            return "jump from_wire" in self._namespace.run("nft", "list", "chain", *chain)
        except WireError:
            return False

    def _repair_docker_user(self, iptables: Sequence[str]) -> None:
        """Docker makes the chain, for IPv6 only if it has networks with IPv6; `nft flush ruleset`
        removes it where iptables writes nftables."""
        if not self._namespace.answers(*iptables, "-n", "-L", _DOCKER_USER):
            self._namespace.run(*iptables, "-N", _DOCKER_USER)
        jump = ("FORWARD", "-j", _DOCKER_USER)
        if not self._namespace.answers(*iptables, "-C", *jump):
            self._namespace.run(*iptables, "-I", *jump)
        listed = self._namespace.run(*iptables, "-S", _DOCKER_USER).splitlines()
        wanted = rules.beside_docker()
        texts = [f"-A {_DOCKER_USER} {' '.join(rule)}" for rule in wanted]
        # The first line declares the chain.
        if listed[1 : len(texts) + 1] == texts:
            return
        log.info("writing the rules in %s", _DOCKER_USER)
        # `-I` puts a rule before all others, so the first one is written last.
        for rule, text in reversed(tuple(zip(wanted, texts, strict=True))):
            # iptables keeps a rule that is there twice, and `-D` takes one of them.
            for _ in range(listed.count(text)):
                self._namespace.run(*iptables, "-D", _DOCKER_USER, *rule)
            self._namespace.run(*iptables, "-I", _DOCKER_USER, *rule)

    def _present(self) -> set[str]:
        """Return the wires of this shim that are there."""
        return {name for name in self._links() if name.startswith(self._names.wires)}

    def _links(self) -> list[str]:
        return self._namespace.devices()

    def _routed(self) -> set[IPv4Address]:
        routes = self._namespace.routes(devices=rules.WIRES)
        return {route.to.network_address for route in routes}

    def _unlink(self, name: str) -> None:
        if name not in self._links():
            return
        # The kernel may have removed it meanwhile, with the namespace of its other end.
        if not self._namespace.answers("ip", "link", "delete", name) and name in self._links():
            raise WireError(f"{name} cannot be removed")

    def _add(self, runs: Mapping[str, str]) -> None:
        """Write the rules of wires, by name and run, and first what another program took away.
        Raises WireError."""
        written = {run for run, names in self._runs().items() if not runs.keys() >= {*names}}
        try:
            self._nft(self._additions(runs, written))
        except WireError:
            # `nft flush ruleset` a moment ago, and `repair` has not come yet: no fault of the node.
            if not self._keeps_apart():
                self.repair()
            # A start of the same run may have failed while it wrote them.
            elif written.isdisjoint(runs.values()):
                raise
            self._nft(self._additions(runs, ()))

    def _additions(self, runs: Mapping[str, str], written: Collection[str]) -> str:
        """Return the rules of these wires. Those of the runs in `written` are there."""
        texts, seen = list[str](), {*written}
        for name, run in runs.items():
            is_first = run not in seen
            texts.append(rules.add(self._names, run, name, self._written_limits, first=is_first))
            seen.add(run)
        return "".join(texts)

    def _nft(self, text: str) -> None:
        with self._lock:
            self._namespace.run("nft", "-f", "-", given=text)


def _wait(is_so: Callable[[], bool], otherwise: str) -> None:
    """Wait for what the kernel does in its own time. Raises WireError."""
    until = time.monotonic() + _READY_WITHIN
    while not is_so():
        if time.monotonic() > until:
            raise WireError(f"{otherwise} after {_READY_WITHIN:.0f} s")
        time.sleep(_PAUSE)


def _kind(link: Mapping[str, Any]) -> str:
    """Return the kind of a device, as ip-link(8) names it; empty: hardware."""
    return str((link.get("linkinfo") or {}).get("info_kind", ""))
