"""The kernel's table of connections, which all jobs of a node and the node share."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network

import pytest

from shim.wires import connections
from shim.wires.connections import CLOSED_SECONDS, TABLE_SIZE, Limits
from shim.wires.namespace import Namespace
from shim.wires.wires import Attachment, Wires
from tests.support.waiting import wait_until
from tests.support.wire_lab import (
    OUTSIDE,
    OUTSIDE6,
    Member,
    WireLab,
    WireNode,
    wire_lab,
    wire_node,
)

pytestmark = pytest.mark.e2e

_SIZE = 8192
_LIMITS = Limits(_SIZE)
_FLOOD = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
begun = 0
while begun < int(sys.argv[2]):
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        for port in range(1024, 1024 + min(int(sys.argv[2]) - begun, 60000)):
            try:
                s.sendto(b"x", (sys.argv[1], port))
            except ConnectionRefusedError:
                s.sendto(b"x", (sys.argv[1], port))
            begun += 1
"""
_STREAM = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    for _ in range(int(sys.argv[2])):
        s.sendto(b"x", (sys.argv[1], 9999))
"""
_ACCEPT = """
import socket
with socket.create_server(("::", 8080), family=socket.AF_INET6, dualstack_ipv6=True) as server:
    print("listening", flush=True)
    while True:
        server.accept()[0].recv(1)
"""
_CONNECT = """
import socket, sys
socket.create_connection((sys.argv[1], 8080), 10).close()
"""
_KNOCK = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], 7777))
print("listening", flush=True)
_, job = s.recvfrom(1)
print("knows it", flush=True)
for line in sys.stdin:
    s.sendto(b"knock", job)
    print("knocked", flush=True)
"""
_LEAVE_A_WAY_IN = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 5000))
s.sendto(b"x", (sys.argv[1], 7777))
"""
_LISTEN = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 5000))
print("listening", flush=True)
print(s.recv(100).decode(), flush=True)
"""
_SAY = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.sendto(b"honest", (sys.argv[1], 5000))
"""
_NOWHERE = "10.96.0.1"
"""The outside drops what is for this address, and says nothing."""


class SmallNamespace(Namespace):
    """A node whose table of connections has room for a few: the real size is the machine's."""

    size = _SIZE

    def read(self, path: str) -> str:
        return f"{self.size}\n" if path == TABLE_SIZE else super().read(path)


class SmallNode(WireNode):
    def namespace(self) -> Namespace:
        return SmallNamespace(("nsenter", f"--net=/run/netns/{self.name}"))


@pytest.fixture
def node(numbers: Iterator[int]) -> Iterator[WireNode]:
    with wire_node(f"fl-e2e-{os.getpid()}-{next(numbers)}", ipv6=True, kind=SmallNode) as made:
        yield made


@pytest.fixture
def lab(node: WireNode) -> Iterator[WireLab]:
    with wire_lab(node) as made:
        yield made


def _known(node: WireNode) -> int:
    return int(node.inside("cat", "/proc/sys/net/netfilter/nf_conntrack_count"))


@pytest.mark.parametrize("to", ["outside", "outside by IPv6", "its run", "the node"])
def test_a_flood_of_one_run_fills_no_more_than_its_part(
    lab: WireLab, node: WireNode, to: str
) -> None:
    flooder, _ = lab.connect("t1", "ours")
    _, second = lab.connect("t2", "ours")
    other, _ = lab.connect("t3", "theirs")
    target = {
        "outside": OUTSIDE,
        "outside by IPv6": OUTSIDE6,
        "its run": str(second.address),
        "the node": "10.91.0.1",
    }[to]
    flooder.python(_FLOOD, target, str(3 * _SIZE))
    assert _LIMITS.of_run.open // 2 < _known(node) <= _LIMITS.of_run.open + 100
    assert not flooder.reaches(OUTSIDE)
    assert other.reaches(OUTSIDE)
    assert node.reaches(OUTSIDE)


def test_a_run_with_many_containers_has_its_connections(numbers: Iterator[int]) -> None:
    """More than are counted in one list."""
    with wire_node(f"fl-e2e-{os.getpid()}-{next(numbers)}") as node, wire_lab(node) as lab:
        members = (lab.connect(f"t{number}", "run")[0] for number in range(34))
        assert [member.reaches(OUTSIDE) for member in members] == [True] * 34
        assert _dropped(lab) == {0}


def test_many_runs_leave_the_node_its_part(node: WireNode, monkeypatch: pytest.MonkeyPatch) -> None:
    # All may begin more at once then.
    monkeypatch.setattr(connections, "CLOSED_SECONDS", 1)
    with wire_lab(node) as lab:
        flooders = [lab.connect(f"t{number}", f"run-{number}")[0] for number in range(6)]

        def floods() -> bool:
            for flooder in flooders:
                flooder.python(_FLOOD, OUTSIDE, str(2 * _LIMITS.of_run.open))
            return max(_dropped(lab, f"numgen inc mod {_LIMITS.of_all.buckets} ")) > 0

        wait_until(floods, what="too many of all runs")
        assert _LIMITS.of_run.open < _known(node) <= _LIMITS.of_all.open + 100
        assert node.reaches(OUTSIDE)


def test_a_usual_tables_part_is_kept_too(numbers: Iterator[int]) -> None:
    """With the machine's own size, which a job exceeds in a second."""
    with wire_node(f"fl-e2e-{os.getpid()}-{next(numbers)}") as node, wire_lab(node) as lab:
        part = Limits(int(node.inside("cat", TABLE_SIZE))).of_run.open
        flooder, _ = lab.connect("t1", "ours")
        other, _ = lab.connect("t2", "theirs")
        flooder.python(_FLOOD, OUTSIDE, str(3 * part))
        assert part // 2 < _known(node) <= part + 100
        assert other.reaches(OUTSIDE)
        assert node.reaches(OUTSIDE)


def test_a_stream_without_answers_is_one_connection(lab: WireLab, node: WireNode) -> None:
    """Each of its packets is `new` to the kernel."""
    streamer, _ = lab.connect("t1", "ours")
    streamer.python(_STREAM, _NOWHERE, str(5 * _LIMITS.of_run.open))
    assert _dropped(lab) == {0}


def test_the_drops_of_a_flood_are_counted(lab: WireLab) -> None:
    flooder, _ = lab.connect("t1", "ours")
    flooder.python(_FLOOD, OUTSIDE, str(3 * _LIMITS.of_run.open))
    assert max(_dropped(lab)) > 0


def _dropped(lab: WireLab, by: str = "") -> set[int]:
    lines = lab.node.inside("nft", "list", "table", "inet", lab.names.table).splitlines()
    found = (re.search(r"counter packets (\d+) bytes \d+ drop", one) for one in lines if by in one)
    return {int(one[1]) for one in found if one}


def test_a_limit_follows_the_size_of_the_table(
    lab: WireLab, node: WireNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.connect("t1", "ours")
    for size in (2 * _SIZE, 0, _SIZE):
        monkeypatch.setattr(SmallNamespace, "size", size)
        lab.wires.repair()
        table = node.inside("nft", "list", "table", "inet", lab.names.table)
        each = {f"burst {Limits(size).of_run.burst} packets"} if size else set()
        assert set(re.findall(r"burst \d+ packets", table)) == each
        lab.connect(f"t-{size}", "ours")
        lab.connect(f"o-{size}", "others")


@pytest.fixture
def server(node: WireNode) -> Iterator[None]:
    with _outside(node, _ACCEPT):
        yield


@contextmanager
def _outside(node: WireNode, script: str, *argv: str) -> Iterator[subprocess.Popen[str]]:
    entered = ["nsenter", f"--net=/run/netns/{node.outside}", sys.executable, "-c", script, *argv]
    pipe = subprocess.PIPE
    with subprocess.Popen(entered, stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield process
        finally:
            process.kill()


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("to", [OUTSIDE, OUTSIDE6])
def test_a_closed_connection_leaves_the_table_soon(lab: WireLab, node: WireNode, to: str) -> None:
    job, _ = lab.connect("t1", "ours")
    job.python(_CONNECT, to)

    def closed() -> list[str]:
        return [line for line in _table(node) if "TIME_WAIT" in line]

    # The server may close its side later than the job ends.
    (one,) = wait_until(closed, what="a closed connection")
    assert int(one.split()[4]) <= CLOSED_SECONDS


def _table(node: WireNode) -> list[str]:
    return node.inside("cat", "/proc/net/nf_conntrack").splitlines()


class _Small:
    """The wires of a shim with two addresses, of which one is given."""

    def __init__(self, node: WireNode) -> None:
        self.wires = Wires("small", node.namespace())
        self.open(())
        self.wires.give()

    def open(self, attached: tuple[Attachment, ...]) -> None:
        self.wires.open(attached, IPv4Network("10.93.0.0/30"))

    def attach(self, run_id: str, member: Member, address: str) -> None:
        one = Attachment(task_id=run_id, run_id=run_id, container="c", address=IPv4Address(address))
        self.wires.attach(one, member.pid, lambda: True)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_nobody_comes_in_by_what_an_earlier_container_began(
    node: WireNode, is_restarted: bool
) -> None:
    """The outside may keep such a connection alive for ever."""
    small, first, second = _Small(node), Member(), Member()
    address = small.wires.give()
    small.attach("first", first, address)
    with _outside(node, _KNOCK, OUTSIDE) as knocker:
        assert knocker.stdin is not None
        assert knocker.stdout is not None
        first.python(_LEAVE_A_WAY_IN, OUTSIDE)
        assert knocker.stdout.readline() == "knows it\n"
        first.end()
        wait_until(lambda: not node.wires(), what="the first wire to go")
        small.wires.detach("first")
        if is_restarted:
            small.open(())
            small.wires.give(wanted=_other(address))
        assert small.wires.give() == address
        small.attach("second", second, address)
        with second.running(_LISTEN) as listener:
            assert listener.stdout is not None
            assert listener.stdout.readline() == "listening\n"
            knocker.stdin.write("knock\n")
            assert knocker.stdout.readline() == "knocked\n"
            node.inside(sys.executable, "-c", _SAY, address)
            assert listener.stdout.readline() == "honest\n"
    second.end()
    small.wires.detach("second")
    small.wires.close()


def _other(address: str) -> str:
    return {"10.93.0.1": "10.93.0.2", "10.93.0.2": "10.93.0.1"}[address]


def test_an_ended_container_leaves_nothing_in_the_table(lab: WireLab, node: WireNode) -> None:
    ended, gone = lab.connect("t1", "ours")
    stays, kept = lab.connect("t2", "ours")
    for member in (ended, stays):
        assert member.reached(OUTSIDE, OUTSIDE6) == [True, True]
    ended.end()
    lab.wires.detach("t1")
    lab.wires.repair()
    known = "\n".join(_table(node))
    of_gone = (f"src={one.exploded} " for one in (gone.address, lab.names.address6(gone.address)))
    of_kept = (f"src={one.exploded} " for one in (kept.address, lab.names.address6(kept.address)))
    assert [one in known for one in (*of_gone, *of_kept)] == [False, False, True, True]


def test_a_second_shim_of_the_node_leaves_the_connections_of_the_first(
    lab: WireLab, node: WireNode
) -> None:
    """Each may choose the same subnet: neither counts wires as routes of others."""
    job, one = lab.connect("t1", "ours")
    assert job.reaches(OUTSIDE)
    second = WireLab(node, "second")
    second.open()
    second.close()
    assert f"src={one.address} " in "\n".join(_table(node))
