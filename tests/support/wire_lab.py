"""A node with an uplink, and processes that stand for containers: wires without an engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address

from shim.wires.namespace import Namespace
from shim.wires.rules import WIRES, Names
from shim.wires.wires import Attachment, Wires
from tests.support.daemons import DaemonFailed, run
from tests.support.ssh_daemon import CHECKOUT
from tests.support.waiting import wait_until

OUTSIDE, OUTSIDE6 = "10.91.0.2", "2001:db8:91::2"
METADATA, METADATA6 = "169.254.169.254", "fd00:ec2::254"
SUBNET = IPv4Network("10.92.0.0/24")
Address = str | IPv4Address | IPv6Address


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
        return pings(["nsenter", f"--net=/run/netns/{self.name}"], address)

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
        return pings(self.enter, str(address))

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


def pings(enter: Sequence[str], address: str) -> bool:
    """busybox's own ping: a machine may have no other."""
    family = "-6" if ":" in address else "-4"
    try:
        run([*enter, "busybox", "ping", family, "-c", "1", "-W", "1", address])
    except DaemonFailed:
        return False
    return True
