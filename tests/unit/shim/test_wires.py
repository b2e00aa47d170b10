"""What is decided about wires without a kernel: names, rules, files of a container's network."""

from __future__ import annotations

import errno
import itertools
import re
import struct
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from shim.engines.base import NodeFault
from shim.engines.docker import wired
from shim.wires import connections, guard, netlink, rtnetlink, rules, wiring
from shim.wires.connections import CLOSED_SECONDS, TABLE_SIZE, Limits
from shim.wires.guard import Guard
from shim.wires.namespace import ROUTES, AddressTaken, Namespace, WireError
from shim.wires.rtnetlink import Request
from shim.wires.wires import Attachment, Wires
from shim.wires.wiring import Wire
from tests.support.waiting import LONG, wait_until
from tests.unit.shim.test_docker_request import SPEC

MAX_INTERFACE_NAME = 15
NAMES = rules.Names("install-1")
ATTACHED = Attachment(task_id="t1", run_id="run", container="c1", address=IPv4Address("10.80.0.2"))


def test_a_wires_name_fits_the_kernel_and_tells_whose_it_is() -> None:
    name, other = NAMES.wire("t1"), rules.Names("install-2").wire("t1")
    assert len(name) == MAX_INTERFACE_NAME
    assert name.startswith(NAMES.wires)
    assert not other.startswith(NAMES.wires)


def test_no_bridge_of_a_run_is_taken_for_a_wire() -> None:
    assert not set(rules.WIRES.removeprefix("fl-")) & set("0123456789abcdef")


LIMITED = pytest.mark.parametrize("limits", [None, Limits(262144)])


@LIMITED
def test_the_whole_table_is_what_its_additions_would_make(limits: Limits | None) -> None:
    table = rules.table(NAMES, {"run": [NAMES.wire("t1")]}, limits=limits)
    added = rules.add(NAMES, "run", NAMES.wire("t1"), limits).splitlines()
    (jump,) = [line for line in added if line.startswith("add element") and "jump" in line]
    assert jump in table
    lines = [line.strip() for line in table.splitlines()]
    parts = [line.split(maxsplit=5)[5] for line in added if line.startswith("add rule")]
    assert len(parts) == (4 if limits else 1)
    first = lines.index(parts[0])
    assert lines[first : first + len(parts)] == parts


@LIMITED
def test_what_is_removed_is_what_was_added(limits: Limits | None) -> None:
    added = rules.add(NAMES, "run", NAMES.wire("t1"), limits).splitlines()
    removed = rules.remove(NAMES, "run", NAMES.wire("t1"), limits, last=True).splitlines()
    things = [line.split()[1:5] for line in added if line.startswith(("add chain", "add set"))]
    for thing in things:
        assert f"delete {' '.join(thing)}" in removed
    left = rules.remove(NAMES, "run", NAMES.wire("t1"), limits, last=False)
    assert "delete chain" not in left
    assert "delete set" not in left


@pytest.mark.parametrize("size", [1, 7, 100, 65536, 262144, 4_000_000])
def test_what_jobs_may_have_of_the_table_leaves_the_node_an_eighth(size: int) -> None:
    limits = Limits(size)
    closed = limits.of_all.burst + (limits.of_all.rate - 1) * CLOSED_SECONDS
    assert limits.of_all.open + closed <= size * 7 / 8
    for limit in (limits.of_run, limits.of_all):
        _, count = limit.counted_in("s")
        found = re.search(r"mod (\d+) ct count over (\d+) ", count)
        assert found is not None
        buckets, each = map(int, found.groups())
        assert 0 < buckets * each <= max(limit.open, 1) or limit.open == 0
        assert each <= 2 * 32


def _described(address: bytes, kind: int = 1) -> bytes:
    """What the kernel says of a connection, without the message's own header."""

    def part(kind: int, content: bytes) -> bytes:
        return struct.pack("=HH", 4 + len(content), kind) + content

    beginner = part(0x8001, part(0x8001, part(kind, address)) + part(0x8002, b"port"))
    status, number = part(3, b"stat"), part(12, b"numb")
    return bytes((2, 0, 0, 0)) + beginner + status + number


def test_a_connection_is_known_by_who_began_it_and_removed_by_its_number() -> None:
    body = _described(bytes((10, 0, 0, 1)))
    assert connections.beginner_in(body) == bytes((10, 0, 0, 1))
    asked = connections.removal(body)
    assert struct.unpack_from("=IH", asked) == (len(asked), 0x102)
    assert b"port" in asked
    assert b"numb" in asked
    assert b"stat" not in asked
    address6 = bytes(range(16))
    assert connections.beginner_in(_described(address6, 3)) == address6


@pytest.mark.parametrize("cut", range(20))
def test_half_a_connection_began_nowhere(cut: int) -> None:
    assert connections.beginner_in(_described(bytes(4))[:cut]) == b""


def test_of_another_kind_of_address_nobody_is_known() -> None:
    assert connections.beginner_in(_described(bytes(4), 7)) == b""


@pytest.mark.parametrize(
    ("uplinks", "but"),
    [
        ((), ""),
        (("eth0", "br0"), 'oifname != { "br0", "eth0" } '),
        (('" } accept', "br*", "br0"), 'oifname != { "br0" } '),
        (("br*",), ""),
        (("br-lan", "bridge0"), 'oifname != { "br-lan", "bridge0" } '),
        (("docker0", "br-0123456789ab", "fl-0123456789", "podman1", "virbr0"), ""),
    ],
)
def test_no_bridge_but_an_uplink_is_open_to_wires(uplinks: tuple[str, ...], but: str) -> None:
    lines = [line.strip() for line in rules.table(NAMES, {}, uplinks).splitlines()]
    assert f'{but}meta oifkind "bridge" ct state new drop' in lines


def test_docker_lets_only_what_is_marked_pass() -> None:
    first, second, *_ = rules.beside_docker()
    assert first[-2:] == ("-j", "ACCEPT")
    assert f"{hex(rules.PASSED)}/{hex(rules.PASSED)}" in first
    assert second == ("-i", "fl-w+", "-j", "DROP")


def test_a_subnets_first_and_last_address_are_nobodys() -> None:
    found = [str(IPv4Address(one)) for one in rules.addresses(IPv4Network("10.0.0.0/30"))]
    assert found == ["10.0.0.1", "10.0.0.2"]


def _words(requests: Iterable[Request]) -> list[str]:
    return [one.words for one in requests]


def test_a_wire_claims_its_address_before_its_container_has_it() -> None:
    wire = Wire(name=NAMES.wire("t1"), address=IPv4Address("10.0.0.1"), mtu=1400)
    assert f"route add 10.0.0.1/32 dev {wire.name}" in _words(wiring.on_node(wire, 7, "c1"))
    assert _words(wiring.in_container(wire))[-1].startswith("route replace default")


def test_an_ipv6_address_follows_from_the_ipv4_address_and_the_shim() -> None:
    ours, theirs = NAMES, rules.Names("install-2")
    address = IPv4Address("10.0.0.1")
    assert ours.address6(address) in ours.prefix
    assert ours.address6(address) not in theirs.prefix
    assert ours.address6(address) != ours.address6(IPv4Address("10.0.0.2"))
    assert ours.prefix.subnet_of(IPv6Network("fd00::/8"))


def test_a_wire_without_ipv6_has_no_request_for_it() -> None:
    wire = Wire(name=NAMES.wire("t1"), address=IPv4Address("10.0.0.1"), mtu=1400)
    assert not any("::" in words for words in _words(wiring.in_container(wire)))
    both = msgspec.structs.replace(wire, address6=NAMES.address6(wire.address))
    on_node = _words(wiring.on_node(both, 7, "c1"))
    assert f"route add {both.address6}/128 dev {wire.name}" in on_node
    assert _words(wiring.in_container(both))[-1].startswith("route replace default via 169.")


def test_a_device_is_up_once_it_makes_no_addresses_of_its_own() -> None:
    wire = Wire(name=NAMES.wire("t1"), address=IPv4Address("10.0.0.1"), mtu=1400)
    for words, device in (
        (_words(wiring.on_node(wire, 7, "c1")), wire.name),
        (_words(wiring.in_container(wire)), wiring.INSIDE),
    ):
        first = words.index(f"link set {device} addrgenmode none")
        assert words[first + 1] in (f"link set {device} up", f"link set {device} arp off up")


def test_a_change_that_the_kernel_refuses_is_named() -> None:
    # Of a device that is not there: the kernel changes nothing.
    with pytest.raises(WireError, match=r"^link set fl-w-none up: No such device$"):
        Namespace().change([rtnetlink.set_up("fl-w-none")])
    route = rtnetlink.add_route(IPv4Address("10.80.0.2"), "fl-w-none")
    with pytest.raises(WireError, match=r"^route add 10\.80\.0\.2/32 dev fl-w-none: "):
        Namespace().change([route])


def _message(kind: int, table: str) -> bytes:
    attribute = struct.pack("=HH", 5 + len(table), 1) + table.encode() + b"\0"
    body = struct.pack("=BBH", 1, 0, 0) + attribute.ljust(-(-len(attribute) // 4) * 4, b"\0")
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


@pytest.mark.parametrize(
    ("kind", "table", "lost"),
    [
        (0xA02, NAMES.table, True),
        (0xA02, "filter", True),
        (0xA08, "filter", True),
        (0xA05, "filter", True),
        (0xA08, NAMES.table, False),
        (0xA05, NAMES.table, False),
        (0xA06, "filter", False),
        (0xA08, f"{NAMES.table}0", True),
    ],
)
def test_what_others_remove_is_told_from_what_the_shim_does(
    kind: int, table: str, lost: bool
) -> None:
    heard = _message(0xA0F, "x") + _message(kind, table)
    assert rules.removes_rules(heard, NAMES.table) is lost


@pytest.mark.parametrize("heard", [b"", b"\0" * 7, b"\0" * 64, _message(0xA08, "filter")[:15]])
def test_half_a_message_is_none(heard: bytes) -> None:
    assert not rules.removes_rules(heard, NAMES.table)


def _chain(**fields: str) -> dict[str, Any]:
    usual = {"family": "inet", "table": "t", "name": "c", "hook": "forward", "policy": "accept"}
    return {"chain": {**usual, **fields}}


@pytest.mark.parametrize(
    ("chain", "doubted"),
    [
        (_chain(), False),
        (_chain(policy="drop"), True),
        (_chain(policy="drop", hook="input"), False),
        (_chain(policy="drop", family="ip", table="filter", name="FORWARD"), False),
        (_chain(table="firewalld"), True),
        ({"metainfo": {"version": "1.0.6"}}, False),
    ],
)
def test_another_firewall_is_doubted(chain: dict[str, Any], doubted: bool) -> None:
    assert (rules.firewall_conflict([chain]) is not None) is doubted


@pytest.mark.parametrize(
    ("tables", "answer", "why"),
    [
        ("", "", None),
        ("nat\n", "-P FORWARD DROP", None),
        ("filter\n", "-P FORWARD ACCEPT\n-A FORWARD -j DROP", None),
        ("filter\n", "-P FORWARD DROP\n", "drops what is forwarded"),
        # The installed unit has no CAP_NET_RAW.
        ("nat\nfilter\n", None, "cannot be read"),
    ],
)
def test_rules_of_the_other_iptables_are_doubted_also_where_they_cannot_be_read(
    tables: str, answer: str | None, why: str | None
) -> None:
    found = Wires("install-1", LegacyNamespace(tables, answer)).firewall_conflict()
    assert found is None if why is None else why in str(found)


ONE_SIDE = ("netlink",)
"""Makes the node's side of a wire, and then the container's."""


class QuietNamespace(Namespace):
    """A node that forwards, has an engine's chain, and nothing else. Its devices send after they
    were asked `idle` times whether they do."""

    idle = 0

    def sends(self, device: str) -> bool:
        self.idle -= 1
        return self.idle < 0

    def run(self, *argv: str, given: str = "") -> str:
        return {"cat": "1\n", "ip": "[]"}.get(argv[0], "")

    def change(self, requests: Iterable[Request]) -> None:
        """Take them as made."""

    def forget(self, is_stale: Callable[[bytes], bool]) -> int:
        return 0

    def read(self, path: str) -> str:
        return "1\n" if path.endswith(("/ip_forward", "/forwarding")) else ""


class ToldNamespace(QuietNamespace):
    """Has the files of /proc/net that it is given, and notes the programs that it starts, and that
    the kernel was asked for something. Those with the argument `refuses` fail."""

    refuses = ""

    def __init__(self, **files: str) -> None:
        super().__init__()
        self.files = files
        self.started: list[tuple[str, ...]] = []

    def run(self, *argv: str, given: str = "") -> str:
        self.started.append(argv)
        if self.refuses in argv:
            raise WireError(f"{argv[0]}: refused")
        return super().run(*argv, given=given)

    def change(self, requests: Iterable[Request]) -> None:
        self.started.append(ONE_SIDE)

    def read(self, path: str) -> str:
        return self.files.get(path.rpartition("/")[2]) or super().read(path)


_ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0
fl-w0\t0100500A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0
eth1\t0200500A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0
"""


def test_an_address_is_given_without_a_program_and_not_to_two_shims() -> None:
    namespace = ToldNamespace(route=_ROUTES)
    wires = Wires("install-1", namespace)
    wires.open((), IPv4Network("10.80.0.0/30"))
    namespace.started.clear()
    assert wires.give() == "10.80.0.2"
    assert namespace.started == []


def test_routes_are_those_that_the_kernel_lists() -> None:
    words = [line.split() for line in _ROUTES.splitlines()]
    words.append(["fl-w1", "0000500A", *words[1][2:7], "00F0FFFF", "0", "0", "0"])
    namespace = ToldNamespace(route="\n".join(map("\t".join, words)))
    found = [(route.device, str(route.to)) for route in namespace.routes()]
    assert found == [
        ("eth0", "0.0.0.0/0"),
        ("fl-w0", "10.80.0.1/32"),
        ("eth1", "10.80.0.2/32"),
        ("fl-w1", "10.80.0.0/20"),
    ]
    of_wires = [route.device for route in namespace.routes(devices=rules.WIRES)]
    assert of_wires == ["fl-w0", "fl-w1"]


_ROUTES6 = """\
20010db8000000000000000000000000 40 {0} 00 {0} 00000100 00000001 00000000 00000001     eth2
{0} 00 {0} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     br0
{0} 00 {0} 00 {0} ffffffff 00000001 00000000 00200200       lo
""".format("0" * 32)


def test_the_uplinks_are_the_devices_with_a_default_route() -> None:
    both = ToldNamespace(route=_ROUTES, ipv6_route=_ROUTES6)
    assert both.uplinks() == {"eth0", "br0"}
    assert ToldNamespace(route=_ROUTES).uplinks() == {"eth0"}
    assert ToldNamespace().uplinks() == frozenset()
    assert ToldNamespace(route=_ROUTES.replace("eth0", "*")).uplinks() == frozenset()


class LegacyNamespace(QuietNamespace):
    """Its iptables is nftables; iptables-legacy has these tables, and answers, or cannot."""

    def __init__(self, tables: str, answer: str | None) -> None:
        super().__init__()
        self._tables, self._answer = tables, answer

    def answers(self, *argv: str) -> bool:
        return False

    def read(self, path: str) -> str:
        return self._tables

    def run(self, *argv: str, given: str = "") -> str:
        if argv[0] == "iptables-legacy" and self._answer is None:
            raise WireError("Permission denied (you must be root)")
        known = {"nft": "{}", "iptables": "iptables v1.8.9 (nf_tables)"}
        return known.get(argv[0], self._answer or "")


class FlushedNamespace(QuietNamespace):
    """Has no table, as after `nft flush ruleset`, until the whole of it is written. `given` are the
    texts for nft."""

    def __init__(self) -> None:
        super().__init__()
        self.has_table = False
        self.given: list[str] = []

    def run(self, *argv: str, given: str = "") -> str:
        if argv[0] != "nft":
            return super().run(*argv, given=given)
        if given:
            self.given.append(given)
            self.has_table |= given.startswith("table ")
        if not self.has_table:
            raise WireError("nft: No such file or directory")
        return "jump from_wire"


class MovingNamespace(FlushedNamespace):
    """Has its default route over `uplink`, if there is one, with this MTU, and keeps the requests
    for wires."""

    uplink, mtu = "eth0", 1500
    kind, port = "veth", '"linkinfo": {"info_kind": "veth"}'

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.settings: dict[str, str] = {}

    @contextmanager
    def entered(self, pid: int) -> Iterator[tuple[Namespace, int]]:
        yield self, 0

    def change(self, requests: Iterable[Request]) -> None:
        self.asked += [one.words for one in requests]

    def run(self, *argv: str, given: str = "") -> str:
        if argv[:4] == ("ip", "-j", "-d", "link"):
            kind = f'"linkinfo": {{"info_kind": "{self.kind}"}}'
            port = f'{{"ifname": "port", "mtu": 1500, "master": "{self.uplink}", {self.port}}}'
            return f'[{{"ifname": "{self.uplink}", "mtu": {self.mtu}, {kind}}}, {port}]'
        return super().run(*argv, given=given)

    def read(self, path: str) -> str:
        if path == ROUTES:
            return _ROUTES.replace("eth0", self.uplink) if self.uplink else ""
        return self.settings.get(path) or super().read(path)

    def write(self, path: str, value: str) -> None:
        self.settings[path] = value


def _opened(namespace: Namespace) -> Wires:
    wires = Wires("install-1", namespace)
    wires.open((), IPv4Network("10.80.0.0/24"))
    return wires


def test_the_table_follows_the_nodes_way_out() -> None:
    namespace = MovingNamespace()
    wires = _opened(namespace)
    assert namespace.given == [rules.table(NAMES, {}, ("eth0",))]
    for uplink, written in (
        ("eth0", []),
        ("", []),
        ("br0", [rules.table(NAMES, {}, ("br0",))]),
        ("br0", []),
    ):
        namespace.uplink = uplink
        namespace.given.clear()
        wires.repair()
        assert namespace.given == written


def test_a_table_that_could_not_follow_is_written_at_the_next_look() -> None:
    namespace = MovingNamespace()
    wires = _opened(namespace)
    namespace.uplink, namespace.has_table = "br0", False
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(namespace, "run", _refused)
        with pytest.raises(WireError):
            wires.repair()
    namespace.has_table = True
    namespace.given.clear()
    wires.repair()
    assert namespace.given == [rules.table(NAMES, {}, ("br0",))]


def _refused(*argv: str, given: str = "") -> str:
    if argv[0] == "nft":
        raise WireError("nft: refused")
    return '[{"ifname": "br0", "mtu": 1500}]'


def test_a_kernel_that_cannot_limit_connections_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    namespace = MovingNamespace()
    wires = _opened(namespace)
    namespace.settings[TABLE_SIZE] = "65536\n"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(namespace, "run", _refuses_trials(namespace.run))
        for _ in range(2):
            wires.repair()
    assert caplog.text.count("jobs may fill the node's table of connections: nft: no numgen") == 1
    assert namespace.given == [rules.table(NAMES, {}, ("eth0",))]
    # It was out of memory.
    wires.repair()
    assert namespace.given[-1] == rules.table(NAMES, {}, ("eth0",), Limits(65536))


def test_limits_stay_while_those_of_another_size_are_refused() -> None:
    namespace = MovingNamespace()
    namespace.settings[TABLE_SIZE] = "65536\n"
    wires = _opened(namespace)
    namespace.settings[TABLE_SIZE] = "131072\n"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(namespace, "run", _refuses_trials(namespace.run))
        namespace.has_table = False
        wires.repair()
    assert namespace.given[-1] == rules.table(NAMES, {}, ("eth0",), Limits(65536))


def _refuses_trials(run: Callable[..., str]) -> Callable[..., str]:
    def answers(*argv: str, given: str = "") -> str:
        if "-c" in argv:
            raise WireError("nft: no numgen")
        return run(*argv, given=given)

    return answers


def test_the_limits_follow_the_size_of_the_table() -> None:
    namespace = MovingNamespace()
    wires = _opened(namespace)
    for size, limits in (("65536", Limits(65536)), ("0", None), ("131072", Limits(131072))):
        namespace.settings[TABLE_SIZE] = size
        namespace.given.clear()
        wires.repair()
        wires.repair()
        written = rules.table(NAMES, {}, ("eth0",), limits)
        assert [one for one in namespace.given if '"trial"' not in one][-1:] == [written]


def test_a_program_that_cannot_be_started_is_an_error_that_the_next_look_survives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The unit has a limit of processes and of memory."""

    def full(*argv: Any, **options: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", full)
    with pytest.raises(WireError, match="nft cannot be started: Resource temporarily unavailable"):
        Namespace().run("nft", "list", "tables")


class KnowingNamespace(QuietNamespace):
    """Has connections that these addresses began. `route`: what the kernel lists."""

    route = ""

    def __init__(self, *known: str) -> None:
        super().__init__()
        self.known = [IPv4Address(one).packed for one in known]
        self.looks = 0
        self.why_not = ""

    def forget(self, is_stale: Callable[[bytes], bool]) -> int:
        self.looks += 1
        if self.why_not:
            raise WireError(self.why_not)
        self.known = [one for one in self.known if not is_stale(one)]
        return 0

    def read(self, path: str) -> str:
        return self.route if path == ROUTES else super().read(path)


def test_an_address_is_given_again_once_its_connections_are_forgotten() -> None:
    namespace = KnowingNamespace("10.80.0.1", "10.80.0.2", "10.0.0.9")
    wires = Wires("install-1", namespace)
    wires.open((ATTACHED,), IPv4Network("10.80.0.0/30"))
    # Those of an earlier life's containers.
    assert namespace.known == [ATTACHED.address.packed, IPv4Address("10.0.0.9").packed]
    assert wires.give() == "10.80.0.1"
    wires.detach("t1")
    assert namespace.looks == 1
    assert wires.give() == str(ATTACHED.address)
    assert namespace.known == [IPv4Address("10.0.0.9").packed]
    wires.repair()
    assert namespace.looks == 2


def test_the_containers_of_another_shim_keep_their_connections() -> None:
    """Two shims of one node may give addresses of one subnet."""
    theirs, since, stale = "10.80.0.1", "10.80.0.2", "10.80.0.9"
    namespace = KnowingNamespace(theirs, stale)
    namespace.route = _ROUTES
    wires = Wires("install-1", namespace)
    wires.open((ATTACHED,), IPv4Network("10.80.0.0/24"))
    assert namespace.known == [IPv4Address(theirs).packed]
    wires.detach("t1")
    namespace.known = [IPv4Address(since).packed]
    namespace.route = _ROUTES.replace("eth1", "fl-w2")
    wires.repair()
    assert namespace.known == [IPv4Address(since).packed]


def test_a_kernel_that_does_not_tell_of_connections_is_named_once_for_each_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    namespace = KnowingNamespace()
    wires = Wires("install-1", namespace)
    attached = [
        msgspec.structs.replace(ATTACHED, task_id=f"t{number}", address=ATTACHED.address + number)
        for number in range(5)
    ]
    wires.open(attached, IPv4Network("10.80.0.0/24"))
    reasons = ("no ctnetlink", "no ctnetlink", "no memory", "", "no memory")
    for one, why in zip(attached, reasons, strict=True):
        namespace.why_not = why
        wires.detach(one.task_id)
        wires.repair()
    told = [one.rpartition(": ")[2] for one in caplog.messages]
    assert told == ["no ctnetlink", "no memory", "no memory"]


def test_a_task_gets_its_address_again_without_earlier_connections() -> None:
    namespace = KnowingNamespace(str(ATTACHED.address))
    wires = Wires("install-1", namespace)
    wires.open((ATTACHED,), IPv4Network("10.80.0.0/24"))
    wires.detach("t1")
    assert wires.give(wanted=str(ATTACHED.address)) == str(ATTACHED.address)
    assert namespace.known == []
    namespace.known = [ATTACHED.address.packed]
    wires.repair()
    assert namespace.known == [ATTACHED.address.packed]


class Bridging:
    """A node whose default route is the bridge `foo`, and an engine that tells these bridges."""

    def __init__(self, *told: str) -> None:
        self.told, self.asked, self.is_away = frozenset(told), 0, False
        self.namespace = MovingNamespace()
        self.namespace.kind, self.namespace.uplink = "bridge", "foo"
        self.wires = Wires("install-1", self.namespace, self._bridges)

    def _bridges(self) -> frozenset[str]:
        self.asked += 1
        if self.is_away:
            raise WireError("the engine is away")
        return self.told

    def open(self) -> None:
        self.wires.open((), IPv4Network("10.80.0.0/24"))

    @property
    def way_out(self) -> str:
        (line,) = [one for one in self.namespace.given[-1].splitlines() if "oifkind" in one]
        return line.strip().partition("meta oifkind")[0]


_OPEN = 'oifname != { "foo" } '


def test_an_engines_bridge_is_closed_whatever_it_is_called() -> None:
    node = Bridging("foo")
    node.open()
    assert node.way_out == ""


def test_a_bridge_that_the_engine_does_not_know_is_open_also_while_it_is_away() -> None:
    node = Bridging("docker0")
    node.open()
    node.is_away = True
    node.wires.repair()
    assert node.way_out == _OPEN
    node.is_away, node.told = False, frozenset({"foo"})
    node.wires.repair()
    assert node.way_out == ""


@pytest.mark.parametrize("port", ['"linkinfo": {"info_kind": "bond"}', '"link": "hardware"'])
def test_a_bridge_with_a_way_out_of_its_own_is_open_also_to_containers_of_the_engine(
    port: str,
) -> None:
    node = Bridging("foo")
    node.namespace.port = port
    node.open()
    assert (node.way_out, node.asked) == (_OPEN, 0)


def test_a_bridge_is_closed_until_the_engine_answers() -> None:
    node = Bridging("docker0")
    node.is_away = True
    node.open()
    assert node.way_out == ""
    node.is_away = False
    node.wires.repair()
    assert node.way_out == _OPEN


def test_the_bridges_of_an_engine_are_those_that_it_was_told_and_its_own() -> None:
    named = {"Id": "a" * 64, "Options": {"com.docker.network.bridge.name": "foo"}}
    assert wired._bridge_of(named) == "foo"
    assert wired._bridge_of({"Id": "0123456789abcdef", "Options": None}) == "br-0123456789ab"


@pytest.mark.parametrize("uplink", ["tun0", "eth0"])
def test_a_new_wire_has_the_size_of_the_nodes_way_out_by_then(uplink: str) -> None:
    namespace = MovingNamespace()
    wires = _opened(namespace)
    namespace.uplink, namespace.mtu = uplink, 1200
    wires.repair()
    wires.attach(ATTACHED, 1, lambda: True)
    assert wires._mtu == 1200


def test_a_wire_too_small_for_ipv6_needs_none_of_its_settings() -> None:
    namespace = MovingNamespace()
    namespace.mtu = 1279
    wires = _opened(namespace)
    wires.attach(ATTACHED, 1, lambda: True)
    assert not any("ipv6" in path for path in namespace.settings)
    assert not any("::" in words for words in namespace.asked)


def test_a_request_that_a_kernel_without_ipv6_refuses_is_needless() -> None:
    def refused(asked: object, kind: int, flags: int, body: bytes) -> bytes:
        number = errno.EAFNOSUPPORT if b"none" in body else 0
        return struct.pack("=IHHIIi", 20, 2, 0, 0, 0, -number)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(netlink, "_answer", refused)
        netlink.change([rtnetlink.generate_no_addresses("none")])
        with pytest.raises(OSError, match="link set none up"):
            netlink.change([rtnetlink.set_up("none")])


_OWN = f"/proc/sys/net/ipv4/conf/{NAMES.wire('t1')}/forwarding"
_ALL = "/proc/sys/net/ipv4/ip_forward"


def test_a_wire_forwards_also_where_new_devices_do_not() -> None:
    namespace = MovingNamespace()
    wires = _opened(namespace)
    namespace.settings[_OWN] = "0\n"
    wires.attach(ATTACHED, 1, lambda: True)
    assert namespace.settings[_OWN] == "1"


def test_no_container_starts_on_a_node_that_forwards_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    namespace = MovingNamespace()
    wires = _opened(namespace)
    namespace.settings |= {_OWN: "0\n", _ALL: "0\n"}
    with pytest.raises(WireError, match="does not forward IPv4"):
        wires.attach(ATTACHED, 1, lambda: True)
    for _ in range(2):
        wires.repair()
    assert (
        caplog.messages.count(
            "jobs reach nobody: the node does not forward IPv4 (sysctl net.ipv4.ip_forward=1)"
        )
        == 1
    )
    namespace.settings[_ALL] = "1\n"
    wires.repair()
    namespace.settings[_OWN] = "1\n"
    wires.attach(ATTACHED, 1, lambda: True)


def test_a_wire_that_went_with_its_container_is_forgotten_by_one_program() -> None:
    namespace = ToldNamespace(dev="Inter-|\n face |\n    lo: 0 0\n")
    wires = Wires("install-1", namespace)
    wires.open((ATTACHED,), IPv4Network("10.80.0.0/30"))
    namespace.started.clear()
    assert wires.detach("t1") == ATTACHED.address
    assert namespace.started == [("nft", "-f", "-")]


def test_a_wire_that_is_cut_keeps_its_address_until_its_container_is_gone() -> None:
    namespace = ToldNamespace(dev="")
    wires = Wires("install-1", namespace)
    wires.open((ATTACHED,), IPv4Network("10.80.0.0/30"))
    wires.give()
    namespace.started.clear()
    wires.cut("t1")
    wires.cut("t1")
    assert namespace.started == [("nft", "-f", "-")]
    with pytest.raises(AddressTaken):
        wires.give()
    assert wires.detach("t1") == ATTACHED.address
    assert namespace.started == [("nft", "-f", "-")]
    assert wires.give() == str(ATTACHED.address)
    assert wires.detach("t1") is None


def test_the_rules_of_an_expected_wire_are_written_once_and_removed_without_a_wire() -> None:
    namespace = ToldNamespace(dev="")
    wires = Wires("install-1", namespace)
    wires.open((), IPv4Network("10.80.0.0/30"))
    namespace.started.clear()
    wires.expect("t1", "run")
    wires.expect("t1", "run")
    assert namespace.started == [("nft", "-f", "-")]
    assert wires.detach("t1") is None
    assert namespace.started == [("nft", "-f", "-")] * 2
    assert wires.detach("t1") is None
    assert namespace.started == [("nft", "-f", "-")] * 2


def test_the_rules_of_a_run_stay_when_it_gets_another_wire() -> None:
    """New ones would count its connections anew."""
    namespace = FlushedNamespace()
    wires = _opened(namespace)
    for task_id, run_id in (("t1", "one"), ("t2", "one"), ("t3", "other"), ("t4", "one")):
        wires.expect(task_id, run_id)
    texts = namespace.given[-4:]
    assert ["flush chain" in one for one in texts] == [True, False, True, False]
    assert [NAMES.wire(f"t{n}") in one for n, one in enumerate(texts, 1)] == [True] * 4


class LosingNamespace(FlushedNamespace):
    """Refuses wires of runs whose rules were never written, or all. Makes wires without a
    container."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses_all = False
        self._known: set[str] = set()

    @contextmanager
    def entered(self, pid: int) -> Iterator[tuple[Namespace, int]]:
        yield self, 0

    def write(self, path: str, value: str) -> None:
        """Nothing reads it."""

    def run(self, *argv: str, given: str = "") -> str:
        runs = {*re.findall(r"jump (\w+)", given)} if given.startswith("add ") else set[str]()
        is_whole = "flush chain" in given or runs <= self._known
        if runs and (self.refuses_all or not is_whole):
            self.given.append(given)
            raise WireError("nft: refused")
        self._known |= runs
        return super().run(*argv, given=given)


def test_rules_of_a_run_whose_first_wire_got_none_are_written_with_the_next() -> None:
    namespace = LosingNamespace()
    wires = _opened(namespace)
    namespace.refuses_all = True
    address = IPv4Address("10.80.0.2")
    one = Attachment(task_id="t1", run_id="run", container="c", address=address)
    with pytest.raises(WireError, match="refused"):
        wires.attach(one, 1, lambda: True)
    namespace.refuses_all = False
    namespace.given.clear()
    wires.expect("t2", "run")
    assert ["flush chain" in text for text in namespace.given] == [False, True]
    # What cannot be written at all is told.
    namespace.refuses_all = True
    with pytest.raises(WireError, match="refused"):
        wires.expect("t3", "run")


def test_a_table_that_somebody_flushed_is_written_again_before_a_wires_rules() -> None:
    namespace = FlushedNamespace()
    wires = Wires("install-1", namespace)
    wires.open((ATTACHED,), IPv4Network("10.80.0.0/30"))
    namespace.has_table = False
    namespace.given.clear()
    wires.expect("t2", "run-2")
    added = rules.add(NAMES, "run-2", NAMES.wire("t2"))
    whole = rules.table(NAMES, {"run": [NAMES.wire("t1")]})
    assert namespace.given == [added, whole, added]


def test_rules_that_could_not_be_written_are_not_counted_on() -> None:
    namespace = ToldNamespace(dev="")
    wires = Wires("install-1", namespace)
    wires.open((), IPv4Network("10.80.0.0/30"))
    namespace.refuses = "nft"
    with pytest.raises(WireError, match="refused"):
        wires.expect("t1", "run")
    namespace.refuses = ""
    namespace.started.clear()
    wires.expect("t1", "run")
    assert namespace.started == [("nft", "-f", "-")]


class SlowNamespace(QuietNamespace):
    """Writes no rules before it may `go_on`. `given` are the texts for nft; one with a word that it
    `refuses` fails."""

    def __init__(self, refuses: str = "") -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.go_on.set()
        self.given: list[str] = []
        self._refuses = refuses

    def run(self, *argv: str, given: str = "") -> str:
        if not given:
            return "jump from_wire" if argv[0] == "nft" else super().run(*argv)
        self.given.append(given)
        assert self.go_on.wait(LONG)
        if self._refuses and self._refuses in given:
            raise WireError("nft: refused")
        return ""


def _expected_at_once(namespace: SlowNamespace, *task_ids: str) -> dict[str, str]:
    """Expect wires while the rules of the first one are written; return what each was told."""
    wires = Wires("install-1", namespace)
    wires.open((), IPv4Network("10.80.0.0/24"))
    namespace.given.clear()
    namespace.go_on.clear()
    told = {}

    def expect(task_id: str) -> None:
        told[task_id] = ""
        try:
            wires.expect(task_id, f"run of {task_id}")
        except WireError as error:
            told[task_id] = str(error)

    def all_wait() -> bool:
        begun = sum(thread.ident is not None for thread in threads)
        return len(wires._waiting) == begun and namespace.given != []

    threads = [threading.Thread(target=expect, args=(task_id,)) for task_id in task_ids]
    for thread in threads:
        thread.start()
        wait_until(all_wait)
    namespace.go_on.set()
    for thread in threads:
        thread.join(LONG)
    assert wires._waiting == {}
    assert {*wires._expected} == {NAMES.wire(one) for one in task_ids if not told[one]}
    return told


def _added(*task_ids: str) -> str:
    return "".join(rules.add(NAMES, f"run of {one}", NAMES.wire(one)) for one in task_ids)


def test_the_rules_of_wires_that_wait_are_written_together() -> None:
    namespace = SlowNamespace()
    assert _expected_at_once(namespace, "t1", "t2", "t3", "t4") == dict.fromkeys(
        ("t1", "t2", "t3", "t4"), ""
    )
    assert namespace.given == [_added("t1"), _added("t2", "t3", "t4")]


def test_rules_that_are_refused_cost_no_other_wire_its_own() -> None:
    namespace = SlowNamespace(refuses=NAMES.wire("t2"))
    told = _expected_at_once(namespace, "t1", "t2", "t3")
    assert told == {"t1": "", "t2": "nft: refused", "t3": ""}
    assert _added("t3") in namespace.given


def test_a_wire_that_cannot_be_removed_is_not_forgotten() -> None:
    stuck = f"{NAMES.wire('t1')}: 0 0\n"
    namespace = ToldNamespace(dev=f"Inter-|\n face |\n{stuck}")
    wires = Wires("install-1", namespace)
    wires.open((ATTACHED,), IPv4Network("10.80.0.0/30"))
    namespace.refuses = "delete"
    for _ in range(2):
        with pytest.raises(WireError, match="cannot be removed"):
            wires.detach("t1")
    namespace.refuses = ""
    assert wires.detach("t1") == ATTACHED.address


def test_a_running_container_keeps_an_address_of_an_earlier_subnet() -> None:
    wires = Wires("install-1", QuietNamespace())
    kept = Attachment(task_id="t1", run_id="run", container="c1", address=IPv4Address("10.9.0.5"))
    wires.open((kept,), IPv4Network("10.80.0.0/24"))
    assert wires.give(wanted="10.9.0.5") == "10.9.0.5"
    assert wires.give(wanted="10.9.0.6").startswith("10.80.0.")


def test_all_addresses_are_given_once_and_again_when_they_are_back() -> None:
    wires = Wires("install-1", QuietNamespace())
    wires.open((), IPv4Network("10.80.0.0/29"))
    given = {wires.give() for _ in range(6)}
    assert len(given) == 6
    with pytest.raises(AddressTaken, match="all 6 addresses"):
        wires.give()
    wires.give_back(given)
    assert wires.give() in given


ID = "5f" * 32


class Inspected:
    """An engine that says of each container: it runs, and its first process is 7."""

    def __init__(self) -> None:
        self.asked = 0

    def inspect_container(self, container_id: str) -> dict[str, Any]:
        self.asked += 1
        return {"State": {"Running": True, "Pid": 7}}


@pytest.mark.parametrize(
    ("pid", "cgroups", "is_still", "asked"),
    [
        (7, f"0::/system.slice/docker-{ID}.scope\n", True, 0),
        (7, f"4:memory:/docker/{ID}\n0::/\n", True, 0),
        (7, "0::/\n", True, 1),
        (8, f"0::/docker/{ID[::-1]}\n", False, 1),
        (8, None, False, 1),
    ],
    ids=["version 2", "version 1", "the root", "another container", "an ended process"],
)
async def test_the_kernel_tells_whose_a_process_is_and_else_the_engine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pid: int,
    cgroups: str | None,
    is_still: bool,
    asked: int,
) -> None:
    monkeypatch.setattr(wired, "_PROC", tmp_path)
    if cgroups is not None:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(cgroups)
    networks = wired.WiredNetworks(_never_called, "install-1", Path)
    networks._api = engine = Inspected()
    assert networks._is_still(ID, pid) is is_still
    assert engine.asked == asked


class RunsOn(Inspected):
    """Says of a container of ours that it runs, with a first process that has ended meanwhile."""

    def inspect_container(self, container_id: str) -> dict[str, Any]:
        labels = {"fairlead.task": "t1", "fairlead.run": "r", wired.WIRE: "10.80.0.2"}
        # No process has this number: kernel.pid_max is at most 2^22 (proc(5)).
        state = {"Running": True, "Pid": (1 << 22) + 1}
        return {"Id": container_id, "State": state, "Config": {"Labels": labels}}


async def test_a_container_that_ended_before_the_engine_knows_it_is_no_fault_of_the_node() -> None:
    networks = wired.WiredNetworks(_at_once, "install-1", Path)
    networks._wires = Wires("install-1", ToldNamespace(dev=""))
    networks._api = RunsOn()
    assert await networks.started("c1") is False


async def _at_once(act: Callable[[], Any]) -> Any:
    return act()


async def test_a_starting_containers_rules_are_written_once_and_by_who_made_it(
    tmp_path: Path,
) -> None:
    namespace = ToldNamespace(dev="")
    networks = wired.WiredNetworks(_at_once, "install-1", lambda task_id: tmp_path)
    networks._wires = Wires("install-1", namespace)
    spec = msgspec.structs.replace(SPEC, address="10.80.0.2")
    await networks.starting("of an earlier life")
    assert namespace.started == []
    await networks.made(spec, "c1")
    await networks.starting("c1")
    await networks.starting("c1")
    assert namespace.started == [("nft", "-f", "-")]
    await networks.made(spec, "c2")
    await networks.removed(spec.task_id)
    namespace.started.clear()
    await networks.starting("c2")
    assert namespace.started == []


async def test_a_node_that_takes_no_rules_starts_no_container_without_them(tmp_path: Path) -> None:
    namespace = ToldNamespace(dev="")
    namespace.refuses = "nft"
    networks = wired.WiredNetworks(_at_once, "install-1", lambda task_id: tmp_path)
    networks._wires = Wires("install-1", namespace)
    await networks.made(msgspec.structs.replace(SPEC, address="10.80.0.2"), "c1")
    with pytest.raises(NodeFault, match="network cannot be made: nft: refused"):
        await networks.starting("c1")


def _never_called(act: object) -> Any:
    raise AssertionError("no thread is needed")


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("nameserver 10.0.0.53\nnameserver fd00::53\n", ("10.0.0.53",)),
        ("# nameserver 10.0.0.1\nnameserver 127.0.0.53\n", ()),
        ("nameserver\nnameserver me\n", ()),
    ],
)
def test_a_container_gets_the_servers_that_it_can_reach(
    tmp_path: Path, text: str, servers: tuple[str, ...]
) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text(text)
    assert wired.resolvers((file,)).servers == servers


def test_behind_a_resolver_on_the_loopback_are_others(tmp_path: Path) -> None:
    stub, real = tmp_path / "stub", tmp_path / "real"
    stub.write_text("nameserver 127.0.0.53\noptions edns0 trust-ad\n")
    real.write_text("search lab.example\nnameserver 10.0.0.53\n")
    found = wired.resolvers((tmp_path / "missing", stub, real))
    assert wired.resolv_conf(found) == "search lab.example\nnameserver 10.0.0.53\n"


def test_a_container_resolves_names_as_its_node_does(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text(
        "options ndots:2\ndomain old.example\nsearch a.example b.example\nnameserver 10.0.0.53\n"
        "nameserver 10.0.0.54\noptions timeout:1 rotate\n"
    )
    assert wired.resolv_conf(wired.resolvers((file,))) == (
        "search a.example b.example\noptions ndots:2 timeout:1 rotate\nnameserver 10.0.0.53\n"
        "nameserver 10.0.0.54\n"
    )


@pytest.mark.parametrize(
    ("now", "servers"),
    [
        (wired.Resolvers(("10.0.0.54",)), "nameserver 10.0.0.54\n"),
        (wired.Resolvers(), "nameserver 10.0.0.53\n"),
    ],
    ids=["others", "none for a moment"],
)
def test_a_container_asks_the_servers_that_its_node_has_by_then(
    tmp_path: Path, now: wired.Resolvers, servers: str
) -> None:
    found = [now, wired.Resolvers(("10.0.0.53",))]
    networks = wired.WiredNetworks(
        _never_called, "install-1", lambda task_id: tmp_path, read_resolvers=lambda: found.pop()
    )
    for expected in ("nameserver 10.0.0.53\n", servers):
        asked: dict[str, Any] = {"host_config": {}, "labels": {}}
        networks.join(asked, msgspec.structs.replace(SPEC, address="10.80.0.2"))
        assert (tmp_path / "resolv.conf").read_text() == expected


def test_a_container_finds_itself_by_its_name() -> None:
    assert "10.0.0.1\tfair-wind\n" in wired.hosts("10.0.0.1", "fair-wind")


class EnteredNamespace(ToldNamespace):
    """Makes wires without a container: what is run in one is run here."""

    @contextmanager
    def entered(self, pid: int) -> Iterator[tuple[Namespace, int]]:
        yield self, 0

    def write(self, path: str, value: str) -> None:
        """Nothing reads it."""


RULES = ("nft", "-f", "-")


def _wired() -> tuple[EnteredNamespace, Wires, Attachment]:
    namespace = EnteredNamespace(dev="")
    wires = Wires("install-1", namespace)
    wires.open((), IPv4Network("10.80.0.0/30"))
    namespace.started.clear()
    address = IPv4Address("10.80.0.2")
    return namespace, wires, Attachment(task_id="t1", run_id="r", container="c", address=address)


def test_a_wire_is_made_once_its_end_on_the_node_sends() -> None:
    namespace, wires, one = _wired()
    namespace.idle = 2
    wires.attach(one, 1, lambda: True)
    assert namespace.idle == -1


class Ipv6Namespace(EnteredNamespace):
    """A way out by IPv6, too, whose addresses are usable after it was asked for them twice."""

    asked = 0

    def run(self, *argv: str, given: str = "") -> str:
        if "-6" in argv:
            return '[{"dst": "default"}]'
        return super().run(*argv, given=given)

    def takes(self, address: IPv6Address) -> bool:
        assert address == NAMES.address6(IPv4Address("10.80.0.2"))
        self.asked += 1
        return self.asked > 2


def test_a_wire_is_made_once_its_container_takes_what_is_sent_by_ipv6() -> None:
    namespace = Ipv6Namespace(dev="")
    wires = _opened(namespace)
    address = IPv4Address("10.80.0.2")
    one = Attachment(task_id="t1", run_id="r", container="c", address=address)
    wires.attach(one, 1, lambda: True)
    assert namespace.asked == 3


@pytest.mark.parametrize(("kind", "is_own"), [(1, False), (2, True)], ids=["unicast", "local"])
def test_the_kernels_answer_tells_where_an_address_leads(kind: int, is_own: bool) -> None:
    route = struct.pack("=BBBBBBBBI", 10, 128, 0, 0, 254, 0, 0, kind, 0)
    told = struct.pack("=IHHII", 16 + len(route), 24, 0, 0, 0) + route
    assert netlink.leads_here(told) == is_own


def test_an_address_to_which_nothing_leads_is_an_error() -> None:
    told = struct.pack("=IHHIIi", 20, 2, 0, 0, 0, -errno.ENETUNREACH)
    with pytest.raises(OSError, match="Network is unreachable"):
        netlink.leads_here(told)


def _told_of_a_link(*attributes: bytes, kind: int = 16) -> bytes:
    body = struct.pack("=BxHiII", 0, 1, 7, 0x1043, 0) + b"".join(attributes)
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


def _attribute(kind: int, value: bytes) -> bytes:
    whole = struct.pack("=HH", 4 + len(value), kind) + value
    return whole.ljust(-(-len(whole) // 4) * 4, b"\0")


_NAMED, _MTU = _attribute(3, b"fl-w0\0"), _attribute(4, b"\xdc\5\0\0")


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (_told_of_a_link(_NAMED, _attribute(16, b"\6"), _MTU), netlink.UP),
        (_told_of_a_link(_attribute(16, b"\0")), 0),
        (_told_of_a_link(_NAMED, _MTU), None),
        (_told_of_a_link(), None),
        (_told_of_a_link(_NAMED, _attribute(16, b"\6"))[:44], None),
        (_told_of_a_link(b"\0" * 4, _attribute(16, b"\6")), netlink.UP),
        (_told_of_a_link(_attribute(16, b"\6"), kind=17), None),
    ],
    ids=["up", "unknown", "left out", "nothing", "cut off", "an empty attribute", "of a removal"],
)
def test_the_kernels_answer_tells_the_state_of_a_device(answer: bytes, state: int | None) -> None:
    assert netlink.state_in(answer) == state


def test_a_device_sends_only_once_the_kernel_says_that_it_is_up() -> None:
    # The kernel never says it of the loopback, which is there in each namespace.
    assert not Namespace().sends("lo")


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(WireError, match="fl-w-none cannot be looked at: No such device"):
        Namespace().sends("fl-w-none")


@pytest.mark.parametrize("is_expected", [True, False])
def test_a_container_has_its_rules_once_and_before_its_end_has_an_address(
    is_expected: bool,
) -> None:
    namespace, wires, one = _wired()
    if is_expected:
        wires.expect(one.task_id, one.run_id)
    wires.attach(one, 1, lambda: True)
    made = [argv for argv in namespace.started if argv in (RULES, ONE_SIDE)]
    first = [RULES, ONE_SIDE] if is_expected else [ONE_SIDE, RULES]
    assert made == [*first, ONE_SIDE]


def test_rules_that_another_life_wrote_are_not_counted_on() -> None:
    namespace, wires, one = _wired()
    wires.expect(one.task_id, one.run_id)
    # It writes the table anew, with the wires of containers that run.
    wires.open((), IPv4Network("10.80.0.0/30"))
    namespace.started.clear()
    wires.attach(one, 1, lambda: True)
    assert namespace.started.count(RULES) == 1


def test_a_wire_that_is_made_again_has_its_rules_again() -> None:
    namespace, wires, one = _wired()
    wires.expect(one.task_id, one.run_id)
    wires.attach(one, 1, lambda: True)
    wires.cut(one.task_id)
    namespace.started.clear()
    wires.attach(one, 1, lambda: True)
    assert namespace.started.count(RULES) == 1


def test_a_container_that_ended_before_its_wire_leaves_no_rule() -> None:
    namespace, wires, one = _wired()
    wires.expect(one.task_id, one.run_id)
    with pytest.raises(WireError, match="has ended"):
        wires.attach(one, 1, lambda: False)
    assert wires._runs() == {"r": [NAMES.wire("t1")]}
    wires.cut(one.task_id)
    assert (namespace.started, wires._runs()) == ([RULES, RULES], {})


def test_the_table_stays_while_a_wire_is_expected() -> None:
    namespace, wires, one = _wired()
    wires.expect(one.task_id, one.run_id)
    wires.close()
    assert not any("delete" in argv for argv in namespace.started)


class GuardedNamespace(QuietNamespace):
    """Has the guard's table as long as its program, which is `program` here. `why_not`: nft does
    not take such a table. `looks` counts the questions for it."""

    def __init__(self, *program: str) -> None:
        super().__init__()
        self.program = program
        self.why_not = ""
        self.keepers: list[subprocess.Popen[str]] = []
        self.looks = 0

    def run(self, *argv: str, given: str = "") -> str:
        if "-c" in argv and self.why_not:
            raise WireError(self.why_not)
        return super().run(*argv, given=given)

    def answers(self, *argv: str) -> bool:
        self.looks += 1
        return any(one.poll() is None for one in self.keepers) and self.program == ("cat",)

    def start(self, *argv: str, given: str) -> subprocess.Popen[str]:
        self.keepers.append(super().start(*self.program, given=given))
        return self.keepers[-1]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], int]:
    caplog.set_level("INFO")
    return lambda: caplog.text.count("would open the way between runs")


def test_a_guard_is_looked_at_no_more_while_its_program_runs(told: Callable[[], int]) -> None:
    namespace = GuardedNamespace("cat")
    kept = Guard("install-1", namespace)
    kept.ensure()
    namespace.looks = 0
    kept.ensure()
    assert (len(namespace.keepers), namespace.looks) == (1, 0)
    namespace.keepers[0].kill()
    namespace.keepers[0].wait()
    kept.ensure()
    assert len(namespace.keepers) == 2
    kept.close()
    assert namespace.keepers[1].returncode == 0
    assert told() == 0


def test_a_node_without_tables_that_have_an_owner_is_told_once_and_asked_again(
    told: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    namespace = GuardedNamespace("cat")
    namespace.why_not = "nft -c: unknown table option owner\ntable inet {\n      ^^^"
    kept = Guard("install-1", namespace)
    for _ in range(2):
        kept.ensure()
    assert (told(), namespace.keepers) == (1, [])
    assert "^" not in caplog.text
    # It was out of memory.
    namespace.why_not = ""
    kept.ensure()
    assert len(namespace.keepers) == 1
    kept.close()


@pytest.mark.parametrize(
    ("program", "within"), [("true", 20.0), ("false", 20.0), ("tail", 0.0)], ids=str
)
def test_a_program_that_makes_no_table_is_told_once_and_does_not_stay(
    monkeypatch: pytest.MonkeyPatch, told: Callable[[], int], program: str, within: float
) -> None:
    monkeypatch.setattr(guard, "_MADE_WITHIN", within)
    namespace = GuardedNamespace(program)
    kept = Guard("install-1", namespace)
    for _ in range(2):
        kept.ensure()
    assert told() == 1
    assert [one.returncode is None for one in namespace.keepers] == [False, False]


def test_a_guard_is_waited_for_on_a_busy_node(
    monkeypatch: pytest.MonkeyPatch, told: Callable[[], int]
) -> None:
    namespace, seconds = GuardedNamespace("cat"), itertools.count(0.0, 3.0)
    looks, answers = itertools.count(), namespace.answers
    monkeypatch.setattr(namespace, "answers", lambda *argv: next(looks) > 3 and answers(*argv))
    each_takes_3_s = SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: None)
    monkeypatch.setattr(guard, "time", each_takes_3_s)
    kept = Guard("install-1", namespace)
    kept.ensure()
    assert (told(), len(namespace.keepers)) == (0, 1)
    kept.close()


def test_a_guard_lets_pass_what_the_table_has_marked() -> None:
    text = rules.guard(NAMES)
    assert text.count("\n") == 1
    assert (
        f'iifname "{NAMES.wires}*" meta mark & {hex(rules.PASSED)} != {hex(rules.PASSED)}' in text
    )
    assert NAMES.guard != NAMES.table
