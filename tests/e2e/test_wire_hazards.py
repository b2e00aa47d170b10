"""What a job, an operator or another program may do to wires, with the kernel and no engine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from shim.wires.guard import Guard
from shim.wires.namespace import AddressTaken, Namespace, WireError
from shim.wires.rtnetlink import Request
from shim.wires.rules import Names
from shim.wires.wires import Attachment, Wires
from tests.support.daemons import run
from tests.support.waiting import wait_until
from tests.support.wire_kills import KillLab
from tests.support.wire_lab import (
    METADATA,
    METADATA6,
    OUTSIDE,
    OUTSIDE6,
    SUBNET,
    Member,
    WireLab,
    WireNode,
    load_firewall,
    wire_lab,
    wire_node,
)

pytestmark = pytest.mark.e2e

_KILLS = 8
_ADVERTISE = """
import socket, struct, subprocess, sys
subprocess.run(["ip", "address", "add", "fe80::bad/64", "dev", "eth0", "nodad"], check=True)
s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
# Type 134 of RFC 4861: a router for half an hour.
advertisement = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0)
for _ in range(3):
    s.sendto(advertisement, ("ff02::1", 0, 0, socket.if_nametoindex("eth0")))
"""
_FORGE_ARP = """
import socket, sys
eth0 = "/sys/class/net/eth0/address"
mine = bytes.fromhex(open(eth0).read().strip().replace(":", ""))
whose, asked = map(socket.inet_aton, sys.argv[1:])
head = b"\\xff" * 6 + mine + b"\\x08\\x06" + bytes.fromhex("0001080006040002")
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("eth0", 0))
s.send(head + mine + whose + b"\\xff" * 6 + asked)
"""
_FORGE_SOURCE = """
import socket, struct, sys
source, target = sys.argv[1:]
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
payload = b"\\x30\\x39\\x30\\x39" + struct.pack("!HH", 13, 0) + b"forge"
head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 1, 0, 64, 17, 0)
s.sendto(head + socket.inet_aton(source) + socket.inet_aton(target) + payload, (target, 0))
"""
_RECEIVE = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 12345))
print("listening", flush=True)
print(s.recvfrom(1)[1][0], flush=True)
"""


@pytest.fixture
def node(numbers: Iterator[int]) -> Iterator[WireNode]:
    with wire_node(f"fl-e2e-{os.getpid()}-{next(numbers)}", ipv6=True) as made:
        yield made


@pytest.fixture
def lab(node: WireNode) -> Iterator[WireLab]:
    with wire_lab(node) as made:
        yield made


def test_ipv6_leads_to_the_own_run_and_out_and_to_no_other(lab: WireLab, node: WireNode) -> None:
    ours, our = lab.connect("t1", "ours")
    second, _ = lab.connect("t2", "ours")
    _, their = lab.connect("t3", "theirs")
    own, strange = (lab.names.address6(one.address) for one in (our, their))
    assert second.reached(own, strange, OUTSIDE6) == [True, False, True]
    assert ours.reaches(OUTSIDE)
    run(["ip", "-n", node.outside, "route", "replace", f"{own}/128", "via", "2001:db8:91::1"])
    outside = ["nsenter", f"--net=/run/netns/{node.outside}", "busybox", "ping", "-6", "-c", "1"]
    answer = run(["sh", "-c", '"$@" || echo silence', "sh", *outside, "-W", "1", str(own)])
    assert "silence" in answer


def test_a_node_that_does_not_forward_ipv6_has_none(numbers: Iterator[int]) -> None:
    name = f"fl-e2e-{os.getpid()}-{next(numbers)}"
    with wire_node(name) as node, wire_lab(node) as lab:
        member, _ = lab.connect("t1", "run")
        assert member.run("ip", "-6", "address", "show", "dev", "eth0") == ""
        (wire,) = node.wires()
        disabled = f"/proc/sys/net/ipv6/conf/{wire}/disable_ipv6"
        assert node.inside("cat", disabled).strip() == "1"


def test_no_metadata_service_is_reached_by_either_family(
    lab: WireLab, node: WireNode, tmp_path: Path
) -> None:
    member, _ = lab.connect("t1", "run")
    _, same = lab.connect("t2", "run")
    open_to = (OUTSIDE, OUTSIDE6, same.address, lab.names.address6(same.address))
    before = member.reached(METADATA, METADATA6)
    load_firewall(node, str(tmp_path))
    after = member.reached(METADATA, METADATA6, *open_to)
    node.inside("nft", "delete", "table", "inet", "fairlead")
    assert (before, after) == ([True, True], [False, False, *[True] * 4])


def test_a_router_advertisement_changes_nobodys_routes(lab: WireLab, node: WireNode) -> None:
    """Not even while our table is gone, and where the node takes advertisements of others."""
    node.inside("tee", "/proc/sys/net/ipv6/conf/default/accept_ra", stdin=b"2")
    forger, _ = lab.connect("t1", "ours")
    other, _ = lab.connect("t2", "ours")
    # The same attack works on a veth that nobody has closed.
    run(["ip", "-n", node.name, "link", "add", "open0", "type", "veth", "peer", "open1"])
    plain = Member()
    try:
        node.inside("ip", "link", "set", "open1", "netns", str(plain.pid), "name", "eth0")
        plain.run("ip", "link", "set", "eth0", "up")
        node.inside("ip", "link", "set", "open0", "up")
        # Its own address of the link is under examination for a second (RFC 4862).
        wait_until(lambda: _advertised(node, plain, "open0"), what="a route of the forger's")
    finally:
        plain.end()
        node.inside("tee", "/proc/sys/net/ipv6/conf/default/accept_ra", stdin=b"1")
    before = node.inside("ip", "-6", "route"), other.run("ip", "-6", "route")
    forger.python(_ADVERTISE)
    lab.drop_table()
    forger.run("ip", "address", "del", "fe80::bad/64", "dev", "eth0")
    forger.python(_ADVERTISE)
    assert _without_own(node.inside("ip", "-6", "route")) == _without_own(before[0])
    assert other.run("ip", "-6", "route") == before[1]


def _advertised(node: WireNode, plain: Member, dev: str) -> bool:
    plain.run("sh", "-c", "ip address del fe80::bad/64 dev eth0 || true")
    plain.python(_ADVERTISE)
    return f"dev {dev} proto ra" in node.inside("ip", "-6", "route", "show", "default")


def _without_own(routes: str) -> list[str]:
    return sorted(line for line in routes.splitlines() if "open0" not in line)


def test_forged_arp_reaches_no_other_and_changes_no_neighbour(lab: WireLab, node: WireNode) -> None:
    forger, _ = lab.connect("t1", "ours")
    _, victim = lab.connect("t2", "theirs")
    neighbours = node.inside("ip", "neigh", "show", "nud", "permanent")
    forger.python(_FORGE_ARP, str(victim.address), "169.254.1.1")
    forger.python(_FORGE_ARP, OUTSIDE, "10.91.0.1")
    assert node.inside("ip", "neigh", "show", "nud", "permanent") == neighbours
    assert node.reaches(str(victim.address))
    assert node.reaches(OUTSIDE)


def test_a_raw_packet_with_another_source_is_dropped(lab: WireLab, node: WireNode) -> None:
    forger, own = lab.connect("t1", "ours")
    second, to = lab.connect("t2", "ours")
    _, other = lab.connect("t3", "theirs")
    with second.running(_RECEIVE) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "listening\n"
        for source in (str(other.address), OUTSIDE, "127.0.0.1", "10.91.0.1", str(own.address)):
            forger.python(_FORGE_SOURCE, source, str(to.address))
        # The honest one comes last.
        assert receiver.stdout.readline() == f"{own.address}\n"


@pytest.mark.parametrize(
    "flush",
    [
        ("nft", "flush", "ruleset"),
        ("iptables", "-F"),
        ("ip6tables", "-F"),
    ],
    ids=["ruleset", "iptables", "ip6tables"],
)
def test_a_flush_is_repaired(lab: WireLab, node: WireNode, flush: tuple[str, ...]) -> None:
    ours, _ = lab.connect("t1", "ours")
    _, their = lab.connect("t2", "theirs")
    hears = node.namespace().rules_that_go()
    try:
        node.inside(*flush)
        hears.setblocking(True)
        assert lab.wires.loses(hears.recv(1 << 16))
    finally:
        hears.close()
    assert lab.wires.repair() == ()
    their6 = lab.names.address6(their.address)
    assert ours.reached(OUTSIDE, OUTSIDE6, their.address, their6) == [True, True, False, False]


def test_without_our_table_nothing_passes_until_it_is_back(lab: WireLab, node: WireNode) -> None:
    ours, _ = lab.connect("t1", "ours")
    second, our = lab.connect("t2", "ours")
    _, their = lab.connect("t3", "theirs")
    our6, their6 = lab.names.address6(our.address), lab.names.address6(their.address)
    places = (our.address, their.address, OUTSIDE, our6, their6, OUTSIDE6)
    for policy in ("ACCEPT", "DROP"):
        for iptables in ("iptables", "ip6tables"):
            node.inside(iptables, "-P", "FORWARD", policy)
        lab.drop_table()
        assert ours.reached(*places) == [False] * 6
        lab.wires.repair()
    assert ours.reached(*places) == [True, False, True] * 2
    assert second.reaches(OUTSIDE)


def test_kills_of_the_shim_leave_nothing_behind(node: WireNode, tmp_path: Path) -> None:
    """A short form of `./dev prove wires`, which kills a thousand times."""
    killed = KillLab(node, tmp_path)
    try:
        for _ in range(_KILLS):
            killed.kill_once()
        assert killed.broken == []
        killed.plant()
        assert len(killed.broken) == 1
    finally:
        killed.close()


class Killed(BaseException):
    """What stands for `kill -9`: no handler of errors sees it."""


class CutNamespace(Namespace):
    """A namespace whose process is killed when it is about to run a command, or to ask the kernel
    for a change, once nothing is `left`."""

    left = 0

    def run(self, *argv: str, given: str = "") -> str:
        self._step()
        return super().run(*argv, given=given)

    def change(self, requests: Iterable[Request]) -> None:
        def until_it_is_killed() -> Iterator[Request]:
            for one in requests:
                self._step()
                yield one

        super().change(until_it_is_killed())

    def _step(self) -> None:
        CutNamespace.left -= 1
        if CutNamespace.left < 0:
            raise Killed


@pytest.fixture
def member() -> Iterator[Member]:
    made = Member()
    yield made
    made.end()


@pytest.mark.parametrize("is_expected", [True, False])
def test_a_wire_is_whole_after_a_kill_at_each_of_its_steps(
    node: WireNode, member: Member, is_expected: bool
) -> None:
    """Once the shim is back, there is one wire, one address, and no rule of another."""
    command = ("nsenter", f"--net=/run/netns/{node.name}")
    cuts, done = 0, False
    while not done:
        first = Wires("cut", Namespace(command))
        first.open((), SUBNET)
        wanted = Attachment(
            task_id="t", run_id="run", container="c", address=IPv4Address(first.give())
        )
        first._namespace = CutNamespace(command)
        CutNamespace.left = cuts
        try:
            if is_expected:
                first.expect("t", "run")
            first.attach(wanted, member.pid, lambda: True)
            done = True
        except Killed:
            cuts += 1
        second = Wires("cut", Namespace(command))
        second.open((wanted,), SUBNET)
        second.attach(wanted, member.pid, lambda: True)
        assert (len(node.wires()), node.routes()) == (1, [str(wanted.address)])
        assert node.reaches(str(wanted.address))
        second.detach("t")
        assert node.wires() == set()
        second.close()
    assert cuts > 12


def test_a_kill_at_each_step_of_a_containers_end_leaves_no_wire(
    node: WireNode, member: Member
) -> None:
    command = ("nsenter", f"--net=/run/netns/{node.name}")
    cuts, done = 0, False
    while not done:
        first = Wires("cut", Namespace(command))
        first.open((), SUBNET)
        address = IPv4Address(first.give())
        one = Attachment(task_id="t", run_id="run", container="c", address=address)
        first.attach(one, member.pid, lambda: True)
        first._namespace = CutNamespace(command)
        CutNamespace.left = cuts
        try:
            first.cut("t")
            done = True
        except Killed:
            cuts += 1
        second = Wires("cut", Namespace(command))
        second.open((), SUBNET)
        assert (node.wires(), node.routes()) == (set(), [])
        assert first._names.wire("t") not in node.inside("nft", "list", "ruleset")
        second.close()
    assert cuts == 3


def test_a_container_that_was_expected_and_never_made_leaves_no_rule(node: WireNode) -> None:
    with wire_lab(node) as lab:
        before = node.inside("nft", "list", "ruleset")
        lab.wires.expect("t", "run")
        # Who flushes the firewall meanwhile takes nothing away for good.
        lab.drop_table()
        lab.wires.repair()
        assert lab.names.wire("t") in node.inside("nft", "list", "ruleset")
        assert lab.wires.detach("t") is None
        assert node.inside("nft", "list", "ruleset") == before


def test_a_wire_whose_rules_are_flushed_before_it_is_made_is_closed_until_they_are_back(
    node: WireNode, member: Member
) -> None:
    with wire_lab(node) as lab:
        _, theirs = lab.connect("t2", "theirs")
        lab.wires.expect("t1", "ours")
        lab.drop_table()
        address = IPv4Address(lab.wires.give())
        ours = Attachment(task_id="t1", run_id="ours", container="t1", address=address)
        lab.wires.attach(ours, member.pid, lambda: True)
        assert member.reached(OUTSIDE, theirs.address) == [False, False]
        lab.wires.repair()
        assert member.reached(OUTSIDE, theirs.address) == [True, False]
        assert lab.wires.detach("t1") == address


def test_wires_whose_rules_are_written_together_lead_to_their_own_run_alone(
    node: WireNode,
) -> None:
    with wire_lab(node) as lab:
        # As of threads that came while rules were written.
        lab.wires._waiting.update({lab.names.wire("t1"): "ours", lab.names.wire("t2"): "ours"})
        lab.wires.expect("t3", "theirs")
        assert {*lab.wires._expected.values()} == {"ours", "theirs"}
        (one, first), (other, second) = lab.connect("t1", "ours"), lab.connect("t2", "ours")
        third, foreign = lab.connect("t3", "theirs")
        assert one.reached(OUTSIDE, second.address, foreign.address) == [True, True, False]
        assert other.reached(OUTSIDE, first.address, foreign.address) == [True, True, False]
        assert third.reached(OUTSIDE, first.address, second.address) == [True, False, False]


def test_a_guard_outlives_a_flush_and_ends_with_its_shim(node: WireNode) -> None:
    one, other = (Guard("guarded", node.namespace()) for _ in range(2))
    with closing(one) as guard, closing(other) as next_life:
        guard.ensure()
        node.inside("nft", "flush", "ruleset")
        assert _guards(node) == [Names("guarded").guard]
        next_life.ensure()
        guard.close()
        assert _guards(node) == []
        next_life.ensure()
        assert next_life._keeper is not None
        next_life._keeper.kill()
        # The kernel removes the table before others can see that its program is over.
        next_life._keeper.wait()
        assert _guards(node) == []
        next_life.ensure()
        assert _guards(node) == [Names("guarded").guard]
        next_life.close()
        assert _guards(node) == []


def _guards(node: WireNode) -> list[str]:
    tables = node.inside("nft", "list", "tables").splitlines()
    return [line.split()[2] for line in tables if line.endswith("_guard")]


@pytest.mark.parametrize("is_expected", [True, False], ids=["expected", "attached"])
def test_a_flush_between_two_starts_costs_the_second_one_nothing(
    node: WireNode, member: Member, is_expected: bool
) -> None:
    with wire_lab(node) as lab:
        first, theirs = lab.connect("t2", "theirs")
        node.inside("nft", "flush", "ruleset")
        # Nothing else repairs it here: an agent's repair comes some milliseconds later.
        if is_expected:
            lab.wires.expect("t1", "ours")
        address = IPv4Address(lab.wires.give())
        ours = Attachment(task_id="t1", run_id="ours", container="t1", address=address)
        lab.wires.attach(ours, member.pid, lambda: True)
        assert member.reached(OUTSIDE, theirs.address) == [True, False]
        assert first.reached(OUTSIDE, address) == [True, False]
        assert lab.wires.detach("t1") == address


def test_the_last_shim_leaves_nothing_in_the_nodes_firewall(node: WireNode) -> None:
    ours = ("iptables-save", "ip6tables-save")
    with wire_lab(node) as lab:
        lab.connect("t1", "run")
        with wire_lab(node, "another"):
            pass
        # The first one has a wire.
        assert ["fl-w" in node.inside(one) for one in ours] == [True, True]
    assert ["fl-w" in node.inside(one) for one in ours] == [False, False]
    assert "fairlead" not in node.inside("nft", "list", "tables")


def test_two_shims_give_no_address_twice(lab: WireLab, node: WireNode) -> None:
    ours, mine = lab.connect("t1", "run")
    with wire_lab(node, "another") as other:
        theirs, their = other.connect("t1", "run")
        assert mine.address != their.address
        assert not ours.reaches(their.address)
        assert not theirs.reaches(lab.names.address6(mine.address))
        stolen = Attachment(task_id="t2", run_id="run", container="c", address=mine.address)
        member = Member()
        with pytest.raises(AddressTaken):
            other.wires.attach(stolen, member.pid, lambda: True)
        member.end()
        assert theirs.reaches(OUTSIDE)
        assert len(node.wires()) == 2
    assert ours.reaches(OUTSIDE)


def test_a_full_pool_says_so_and_gives_what_comes_back(node: WireNode) -> None:
    wires = Wires("small", node.namespace())
    wires.open((), IPv4Network("10.93.0.0/30"), (IPv4Address("10.93.0.1"),))
    given = wires.give()
    assert given == "10.93.0.2"
    with pytest.raises(AddressTaken, match="all 2 addresses for containers"):
        wires.give()
    wires.give_back((given,))
    assert wires.give() == given
    wires.close()


def test_an_engine_whose_firewall_cannot_be_trusted_is_refused(node: WireNode) -> None:
    rules = node.inside("iptables-save")
    node.inside("iptables", "-F")
    node.inside("iptables", "-X", "DOCKER-USER")
    try:
        with pytest.raises(WireError, match="the engine has no chain DOCKER-USER in iptables"):
            Wires("refused", node.namespace()).open((), SUBNET)
    finally:
        node.inside("iptables-restore", stdin=rules.encode())


def test_a_firewall_that_may_drop_is_told_before_anything_is_changed(node: WireNode) -> None:
    wires = Wires("doubting", node.namespace())
    assert wires.firewall_conflict() is None
    theirs = (
        "table inet {0} {{ chain c {{ type filter hook forward priority 10; policy {1}; }}\n}}\n"
    )
    for name, policy, why in (
        ("firewalld", "accept", "firewalld may reject"),
        ("mine", "drop", "the chain c of the table inet mine drops what is forwarded"),
    ):
        node.inside("nft", "-f", "-", stdin=theirs.format(name, policy).encode())
        assert why in (wires.firewall_conflict() or "")
        node.inside("nft", "delete", "table", "inet", name)


_EARLIER_FIREWALL = b"""
table inet fairlead {
    chain runs {
        fib daddr . iif oif missing drop
    }
    chain forward {
        type filter hook forward priority filter; policy accept;
        iifname "fl-*" oifname "fl-*" jump runs
    }
}
"""


def test_the_firewall_of_an_earlier_version_is_doubted(node: WireNode, tmp_path: Path) -> None:
    """It drops what wires of one run send each other."""
    wires = Wires("doubting", node.namespace())
    load_firewall(node, str(tmp_path))
    assert wires.firewall_conflict() is None
    node.inside("nft", "delete", "table", "inet", "fairlead")
    node.inside("nft", "-f", "-", stdin=_EARLIER_FIREWALL)
    assert "earlier version" in (wires.firewall_conflict() or "")
    node.inside("nft", "delete", "table", "inet", "fairlead")
