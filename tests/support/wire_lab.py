"""A node with an uplink, and processes that stand for containers: wires without an engine."""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address

from shim.wires.namespace import Namespace
from shim.wires.rules import WIRES, Names
from shim.wires.wires import Attachment, Wires
from tests.support.daemons import run
from tests.support.ssh_daemon import CHECKOUT
from tests.support.waiting import wait_until

OUTSIDE, OUTSIDE6 = "10.91.0.2", "2001:db8:91::2"
METADATA, METADATA6 = "169.254.169.254", "fd00:ec2::254"
SUBNET = IPv4Network("10.92.0.0/24")
Address = str | IPv4Address | IPv6Address
_ASKS, _ANSWERS = {4: 8, 6: 128}, {4: 0, 6: 129}
"""The types of an echo request and of its reply, by the version of IP (RFC 792, RFC 4443)."""
_SILENCE_SECONDS = 1.0
_SOL_RAW, _ICMP_FILTER, _ICMPV6_FILTER = 255, 1, 1
"""Of linux/icmp.h and linux/icmpv6.h."""
_CLONE_NEWNET = 0x40000000
_ALL = 0xFFFFFFFF


class WireNode:
    """A network namespace with an uplink to another one, which is the outside. `ipv6`: it has a way
    out by IPv6 too, and forwards to it."""

    def __init__(self, name: str, *, ipv6: bool = False) -> None:
        self.name, self.outside = name, f"{name}-out"
        for one in (self.name, self.outside):
            run(["ip", "netns", "add", one])
            run(["ip", "-n", one, "link", "set", "lo", "up"])
        peer = ["type", "veth", "peer", "name", "up0", "netns", self.outside]
        run(["ip", "-n", name, "link", "add", "up0", "mtu", "1400", *peer])
        for one, address in ((self.name, "10.91.0.1/24"), (self.outside, f"{OUTSIDE}/24")):
            run(["ip", "-n", one, "address", "add", address, "dev", "up0"])
            run(["ip", "-n", one, "link", "set", "up0", "up"])
        run(["ip", "-n", self.name, "route", "add", "default", "via", OUTSIDE])
        run(["ip", "-n", self.outside, "address", "add", f"{METADATA}/32", "dev", "up0"])
        if ipv6:
            self._add_ipv6()
        # The kernel drops what a new device gets until it has noticed that the other end is up.
        for one in (self.name, self.outside):
            inside = Namespace(("nsenter", f"--net=/run/netns/{one}"))
            wait_until(partial(inside.sends, "up0"), what="the uplink to send")

    def _add_ipv6(self) -> None:
        self.inside("tee", "/proc/sys/net/ipv6/conf/all/forwarding", stdin=b"1")
        for one, address in (
            (self.name, "2001:db8:91::1/64"),
            (self.outside, f"{OUTSIDE6}/64"),
            (self.outside, f"{METADATA6}/128"),
        ):
            run(["ip", "-n", one, "address", "add", address, "dev", "up0", "nodad"])
        run(["ip", "-n", self.name, "route", "add", "default", "via", OUTSIDE6])

    def inside(self, *argv: str, stdin: bytes | None = None) -> str:
        return run(["nsenter", f"--net=/run/netns/{self.name}", *argv], stdin=stdin)

    def namespace(self) -> Namespace:
        return Namespace(("nsenter", f"--net=/run/netns/{self.name}"))

    def reaches(self, address: str) -> bool:
        return pings(f"/run/netns/{self.name}", address)

    def wires(self) -> set[str]:
        links = json.loads(self.inside("ip", "-j", "link", "show", "type", "veth") or "[]")
        return {one["ifname"] for one in links if one.get("ifname", "").startswith(WIRES)}

    def routes(self) -> list[str]:
        """The addresses to which a wire leads."""
        lines = self.inside("ip", "route").splitlines()
        return [line.split()[0] for line in lines if WIRES in line]

    def delete(self) -> None:
        for one in (self.name, self.outside):
            run(["ip", "netns", "delete", one])


class Member:
    """A process in a network namespace of its own: a container without a network."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.pid = self._process.pid
        self.enter = ["nsenter", f"--net=/proc/{self.pid}/ns/net"]
        wait_until(self._is_apart, what="a namespace of its own")

    def _is_apart(self) -> bool:
        return os.readlink(f"/proc/{self.pid}/ns/net") != os.readlink("/proc/self/ns/net")

    def run(self, *argv: str) -> str:
        return run([*self.enter, *argv])

    def python(self, script: str, *argv: str) -> str:
        """As root of its own namespace: more than a job may by default."""
        return self.run(sys.executable, "-c", script, *argv)

    @contextmanager
    def running(self, script: str) -> Iterator[subprocess.Popen[str]]:
        """Within this block the script runs. A test that fails may leave it waiting for ever."""
        argv = [*self.enter, sys.executable, "-c", script]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def reaches(self, address: Address) -> bool:
        return pings(f"/proc/{self.pid}/ns/net", address)

    def reached(self, *addresses: Address) -> list[bool]:
        """Ask all at once: each silence lasts a second."""
        with ThreadPoolExecutor(len(addresses)) as threads:
            return list(threads.map(self.reaches, addresses))

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class WireLab:
    """The wires of one shim on a node."""

    def __init__(self, node: WireNode, install: str = "lab") -> None:
        self.node = node
        self.names = Names(install)
        self.wires = Wires(install, node.namespace())
        self._members: list[Member] = []

    def open(self, attached: Sequence[Attachment] = ()) -> None:
        self.wires.open(attached, SUBNET)

    def connect(self, task_id: str, run_id: str) -> tuple[Member, Attachment]:
        member = Member()
        self._members.append(member)
        address = IPv4Address(self.wires.give())
        wanted = Attachment(task_id=task_id, run_id=run_id, container=task_id, address=address)
        self.wires.attach(wanted, member.pid, lambda: True)
        return member, wanted

    def drop_table(self) -> None:
        self.node.inside("nft", "delete", "table", "inet", self.names.table)

    def close(self) -> None:
        for member in self._members:
            member.end()
        wait_until(lambda: not self._left(), what="the wires of ended processes to go")
        for one in tuple(self.wires._attached.values()):
            self.wires.detach(one.task_id)
        self.wires.close()

    def _left(self) -> list[str]:
        return [one for one in self.node.wires() if one.startswith(self.names.wires)]


@contextmanager
def wire_node(
    name: str, *, ipv6: bool = False, kind: type[WireNode] = WireNode
) -> Iterator[WireNode]:
    node = kind(name, ipv6=ipv6)
    # What Docker does where it switches forwarding on itself.
    for iptables in ("iptables", "ip6tables"):
        node.inside(iptables, "-P", "FORWARD", "DROP")
    node.inside("iptables", "-N", "DOCKER-USER")
    node.inside("iptables", "-A", "DOCKER-USER", "-j", "RETURN")
    try:
        yield node
    finally:
        node.delete()


@contextmanager
def wire_lab(node: WireNode, install: str = "lab") -> Iterator[WireLab]:
    lab = WireLab(node, install)
    lab.open()
    try:
        yield lab
    finally:
        lab.close()


def load_firewall(node: WireNode, folder: str) -> None:
    """Load the table of an installed node, with users that this machine has."""
    rules = (CHECKOUT / "packer/firewall.nft").read_text()
    for user in ("fairlead-gateway", "fairlead"):
        rules = rules.replace(f'= "{user}"\n', '= "daemon"\n')
    rules = rules.replace("/etc/fairlead/firewall.d", folder)
    node.inside("nft", "-f", "-", stdin=rules.encode())


def pings(namespace: str, address: Address) -> bool:
    """Return whether an answer comes within a second. One that has come counts also when this
    process was not let run for longer, which takes a second away from a program such as ping."""
    to = ip_address(address)
    # Unlike those of others that ask at the same time.
    asked = os.urandom(4)
    with _asking(namespace, to.version) as asking:
        try:
            asking.sendto(_echo(to.version, asked), (str(to), 0))
        except OSError:
            return False
        until = time.monotonic() + _SILENCE_SECONDS
        # The time over, `select` still looks once.
        while select.select([asking], [], [], max(0.0, until - time.monotonic()))[0]:
            heard, sender = asking.recvfrom(2048)
            # Only a socket for IPv4 gets the head of IP too, whose length is in words of 4 bytes.
            start = (heard[0] & 15) * 4 if to.version == 4 else 0
            if heard[start] == _ANSWERS[to.version] and heard[start + 4 : start + 8] == asked:
                return str(sender[0]).partition("%")[0] == str(to)
    return False


def _asking(namespace: str, version: int) -> socket.socket:
    """Return a socket in this network namespace that hears nothing but answers: a flood's errors
    would fill it."""

    def made() -> socket.socket:
        with open(namespace) as entered:
            if ctypes.CDLL(None, use_errno=True).setns(entered.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"{namespace} cannot be entered")
        if version == 4:
            asking = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
            asking.setsockopt(_SOL_RAW, _ICMP_FILTER, struct.pack("=I", ~(1 << _ANSWERS[4]) & _ALL))
        else:
            asking = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
            words = [_ALL] * 8
            words[_ANSWERS[6] // 32] &= ~(1 << _ANSWERS[6] % 32)
            asking.setsockopt(socket.IPPROTO_ICMPV6, _ICMPV6_FILTER, struct.pack("=8I", *words))
        return asking

    # setns(2) moves one thread, which is not used again.
    with ThreadPoolExecutor(1) as once:
        return once.submit(made).result()


def _echo(version: int, asked: bytes) -> bytes:
    """Return an echo request; the kernel adds the checksum of ICMPv6 itself."""
    head = struct.pack("!BBH", _ASKS[version], 0, 0) + asked
    total = sum(struct.unpack("!4H", head))
    total = (total & 0xFFFF) + (total >> 16)
    checksum = ~(total + (total >> 16)) & 0xFFFF
    return struct.pack("!BBH", _ASKS[version], 0, checksum if version == 4 else 0) + asked
