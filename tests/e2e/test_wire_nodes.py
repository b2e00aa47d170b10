"""Wires on nodes that are set up in other ways, and the tables that all jobs of a node share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from ipaddress import IPv4Address

import pytest

from shim.wires.namespace import WireError
from shim.wires.wires import Attachment
from tests.support.daemons import run
from tests.support.waiting import wait_until
from tests.support.wire_lab import OUTSIDE, OUTSIDE6, Member, WireNode, wire_lab, wire_node

pytestmark = pytest.mark.e2e

_BEHIND_A_BRIDGE = "10.95.0.2"
_FLOOD_OF_ARP = """
import socket, struct, sys
eth0 = "/sys/class/net/eth0/address"
mine = bytes.fromhex(open(eth0).read().strip().replace(":", ""))
head = b"\\xff" * 6 + mine + b"\\x08\\x06" + bytes.fromhex("0001080006040001")
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("eth0", 0))
for number in range(int(sys.argv[2])):
    whose = struct.pack("!I", 0x0A600000 + number)
    s.send(head + mine + whose + b"\\0" * 6 + socket.inet_aton(sys.argv[1]))
"""
_FLOOD = 300


@pytest.fixture
def node(numbers: Iterator[int]) -> Iterator[WireNode]:
    with wire_node(f"fl-e2e-{os.getpid()}-{next(numbers)}", ipv6=True) as made:
        yield made


def test_a_flood_of_arp_makes_no_neighbours_of_the_node(node: WireNode) -> None:
    """All neighbours of a machine share one table; when it is full, the node reaches nobody new."""
    with wire_lab(node) as lab:
        forger, _ = lab.connect("t1", "ours")
        # The same attack works on a veth that nobody has closed.
        run(["ip", "-n", node.name, "link", "add", "open0", "type", "veth", "peer", "open1"])
        plain = Member()
        node.inside("ip", "link", "set", "open1", "netns", str(plain.pid), "name", "eth0")
        plain.run("ip", "link", "set", "eth0", "up")
        node.inside("ip", "link", "set", "open0", "up")

        def floods() -> bool:
            plain.python(_FLOOD_OF_ARP, "10.91.0.1", str(_FLOOD))
            return len(_neighbours(node, "open0")) > _FLOOD // 2

        wait_until(floods, what="neighbours of the plain one")
        plain.end()
        (wire,) = node.wires()
        before = _neighbours(node, wire)
        forger.python(_FLOOD_OF_ARP, "10.91.0.1", str(_FLOOD))
        assert forger.reached(OUTSIDE, OUTSIDE6) == [True, True]
        assert _neighbours(node, wire) == before


def _neighbours(node: WireNode, device: str) -> list[str]:
    return node.inside("ip", "-4", "neigh", "show", "nud", "all", "dev", device).splitlines()


@pytest.fixture
def bridged_node(node: WireNode) -> WireNode:
    """As a host of virtual machines: its way out is a bridge, and it has another one."""
    for words in (
        "link add br0 type bridge",
        "link set br0 mtu 1400 up",
        "address flush dev up0",
        "address add 10.91.0.1/24 dev br0",
        "-6 address add 2001:db8:91::1/64 dev br0 nodad",
        "link set up0 master br0",
        f"route add default via {OUTSIDE}",
        f"-6 route replace default via {OUTSIDE6} dev br0",
        "link add inner type bridge",
        "address add 10.95.0.1/24 dev inner",
        "link set inner up",
    ):
        node.inside("ip", *words.split())
    wait_until(lambda: node.reaches(OUTSIDE) and node.reaches(OUTSIDE6), what="the bridge")
    return node


@pytest.fixture
def guest(bridged_node: WireNode) -> Iterator[Member]:
    """Lives at the other bridge, as a virtual machine or a container of others."""
    made = Member()
    inside = ["netns", str(made.pid), "name", "eth0"]
    add = ["link", "add", "port", "type", "veth", "peer", "name", "guest"]
    bridged_node.inside("ip", *add)
    bridged_node.inside("ip", "link", "set", "guest", *inside)
    bridged_node.inside("ip", "link", "set", "port", "master", "inner", "up")
    for words in (
        f"address add {_BEHIND_A_BRIDGE}/24 dev eth0",
        "link set eth0 up",
        "route add default via 10.95.0.1",
    ):
        made.run("ip", *words.split())
    wait_until(lambda: bridged_node.reaches(_BEHIND_A_BRIDGE), what="the guest")
    yield made
    made.end()


def test_a_way_out_over_a_bridge_is_open_and_another_bridge_is_not(
    bridged_node: WireNode, guest: Member
) -> None:
    with wire_lab(bridged_node) as lab:
        job, _ = lab.connect("t1", "ours")
        assert job.reached(OUTSIDE, OUTSIDE6, _BEHIND_A_BRIDGE) == [True, True, False]


def test_a_way_out_that_becomes_a_bridge_is_open_after_the_next_look(node: WireNode) -> None:
    with wire_lab(node) as lab:
        job, _ = lab.connect("t1", "ours")
        assert job.reaches(OUTSIDE)
        for words in (
            "link add br0 type bridge",
            "link set br0 mtu 1300 up",
            "address flush dev up0",
            "address add 10.91.0.1/24 dev br0",
            "link set up0 master br0",
            f"route add default via {OUTSIDE}",
        ):
            node.inside("ip", *words.split())
        wait_until(lambda: node.reaches(OUTSIDE), what="the bridge")
        assert not job.reaches(OUTSIDE)
        lab.wires.repair()
        assert job.reaches(OUTSIDE)
        later, _ = lab.connect("t2", "ours")
        assert " mtu 1300 " in later.run("ip", "link", "show", "dev", "eth0")


def test_an_uplink_too_small_for_ipv6_carries_ipv4(node: WireNode) -> None:
    """The kernel answers about IPv6 of its wires as one that was booted with ipv6.disable=1."""
    for name in (node.name, node.outside):
        run(["ip", "-n", name, "link", "set", "up0", "mtu", "1200"])
    with wire_lab(node) as lab:
        job, _ = lab.connect("t1", "ours")
        _, theirs = lab.connect("t2", "theirs")
        assert job.reached(OUTSIDE, theirs.address) == [True, False]
        assert job.run("ip", "-6", "address", "show", "dev", "eth0") == ""


@pytest.mark.parametrize("strict", ["all", "default"])
def test_strict_reverse_paths_stop_no_job(node: WireNode, strict: str) -> None:
    setting = f"/proc/sys/net/ipv4/conf/{strict}/rp_filter"
    node.inside("tee", setting, stdin=b"1")
    with wire_lab(node) as lab:
        job, _ = lab.connect("t1", "ours")
        _, ours = lab.connect("t2", "ours")
        assert job.reached(OUTSIDE, OUTSIDE6, ours.address) == [True, True, True]


def test_a_node_whose_new_devices_forward_nothing_has_wires_that_do(node: WireNode) -> None:
    node.inside("tee", "/proc/sys/net/ipv4/conf/default/forwarding", stdin=b"0")
    with wire_lab(node) as lab:
        job, _ = lab.connect("t1", "ours")
        assert job.reaches(OUTSIDE)


def test_no_job_starts_on_a_node_that_stopped_to_forward(node: WireNode) -> None:
    with wire_lab(node) as lab:
        job, _ = lab.connect("t1", "ours")
        node.inside("tee", "/proc/sys/net/ipv4/ip_forward", stdin=b"0")
        member = Member()
        address = IPv4Address(lab.wires.give())
        wanted = Attachment(task_id="t2", run_id="ours", container="t2", address=address)
        with pytest.raises(WireError, match="does not forward IPv4"):
            lab.wires.attach(wanted, member.pid, lambda: True)
        assert len(node.wires()) == 1
        node.inside("tee", "/proc/sys/net/ipv4/ip_forward", stdin=b"1")
        lab.wires.attach(wanted, member.pid, lambda: True)
        assert [job.reaches(OUTSIDE), member.reaches(OUTSIDE)] == [True, True]
        member.end()
        lab.wires.detach("t2")
