"""From which addresses the networks of runs are cut."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.engines.docker.subnets import Subnets, of_network, of_node, ranges_of
from shim.errors import StartError
from shim.settings import SubnetRange
from shim.wires.namespace import Namespace

ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0
tun0\t00000000\t01000A0A\t0003\t0\t0\t0\t00000080\t0\t0\t0
eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
fl-0123456789ab\t00FC1EAC\t00000000\t0001\t0\t0\t0\t00FCFFFF\t0\t0\t0
tun0\t0000A8C0\t01000A0A\t0003\t0\t0\t0\t0000FFFF\t0\t0\t0
"""


@pytest.mark.parametrize(
    ("text", "count", "containers"),
    [
        ("10.80.0.0/16", 64, 1021),
        ("10.80.0.0/12", 1024, 1021),
        ("10.80.0.0/20", 64, 61),
        ("10.80.0.0/24", 16, 13),
        ("10.80.0.0/28", 1, 13),
        ("10.80.0.0/16:24", 256, 253),
        ("10.80.0.0/24:24", 1, 253),
    ],
)
def test_a_range_is_cut_into_many_networks(text: str, count: int, containers: int) -> None:
    made = SubnetRange.parse(text)
    subnets = {made.subnet(number) for number in range(made.count)}
    assert (len(subnets), made.size - 3) == (count, containers)
    whole = IPv4Network(text.partition(":")[0])
    assert all(one.subnet_of(whole) and one.num_addresses == made.size for one in subnets)


def test_the_last_subnet_is_the_first_to_be_used() -> None:
    among = Subnets([SubnetRange.parse("10.80.0.0/16:24"), SubnetRange.parse("10.9.0.0/28:28")])
    used: set[IPv4Network] = set()
    order = []
    while (subnet := among.free(used)) is not None:
        used.add(subnet)
        order.append(str(subnet))
    assert (order[0], order[1], order[-2]) == ("10.80.255.0/24", "10.80.254.0/24", "10.80.0.0/24")
    assert (order[-1], len(order)) == ("10.9.0.0/28", 257)


@given(st.lists(st.tuples(st.integers(0, (1 << 32) - 1), st.integers(1, 32)), max_size=8))
def test_a_free_subnet_overlaps_with_nothing_that_is_used(places: list[tuple[int, int]]) -> None:
    near = int(IPv4Address("10.80.0.0"))
    used = [
        IPv4Network((near + (number >> 15) - (1 << 16), length), strict=False)
        for number, length in places
    ]
    made = SubnetRange.parse("10.80.0.0/18:22")
    every = [made.subnet(number) for number in range(made.count)]
    free = [one for one in every if not any(one.overlaps(other) for other in used)]
    among = Subnets([made])
    assert among.count(used) == len(free)
    assert among.free(used) == (free[-1] if free else None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("10.80.0.1/16", "expected an IPv4 network"),
        ("fd00::/48", "expected an IPv4 network"),
        ("10.80.0.0/16:x", "expected an IPv4 network"),
        ("10.80.0.0/16:12", "must be from 16, the whole range, to 29"),
        ("10.80.0.0/30", "must be from 30"),
        ("10.0.0.0/8:24", "would be 65536 networks, at most 4096"),
    ],
)
def test_a_range_that_cannot_be_cut_is_refused(text: str, why: str) -> None:
    with pytest.raises(StartError, match=why):
        SubnetRange.parse(text)


def test_without_a_range_the_engines_pools_are_cut_smaller() -> None:
    pools = [{"Base": "172.31.0.0/16", "Size": 20}, {"Base": "fd00::/48", "Size": 64}]
    (only,) = ranges_of((), {"DefaultAddressPools": pools})
    assert only == SubnetRange(IPv4Network("172.31.0.0/16"), 22)


def test_the_engines_pools_are_not_made_larger() -> None:
    (only,) = ranges_of((), {"DefaultAddressPools": [{"Base": "10.9.0.0/24", "Size": 26}]})
    assert only == SubnetRange(IPv4Network("10.9.0.0/24"), 26)


def test_a_very_large_pool_gives_as_many_networks_as_are_possible() -> None:
    (only,) = ranges_of((), {"DefaultAddressPools": [{"Base": "10.0.0.0/8", "Size": 24}]})
    assert only.count == 4096


def test_an_engine_without_pools_of_its_own_has_hundreds_of_networks() -> None:
    among = Subnets(ranges_of((), {}))
    assert among.count(()) == 960
    assert str(among.free(())) == "172.30.252.0/22"
    behind_vpn = {IPv4Network("172.16.0.0/12")}
    assert str(among.free(behind_vpn)) == "198.19.252.0/22"


def test_the_operators_ranges_come_before_all() -> None:
    asked = (SubnetRange.parse("10.80.0.0/16"),)
    assert ranges_of(asked, {"DefaultAddressPools": [{"Base": "10.9.0.0/24"}]}) == asked


def test_a_node_has_the_networks_of_its_routes_and_its_dns_servers(tmp_path: Path) -> None:
    (tmp_path / "route").write_text(ROUTES)
    (tmp_path / "resolv.conf").write_text("# x\nnameserver 172.30.1.1\nnameserver fe80::1%eth0\n")
    found = of_node(Namespace(), str(tmp_path / "route"), tmp_path / "resolv.conf")
    assert {str(one) for one in found} == {"10.0.0.0/24", "192.168.0.0/16", "172.30.1.1/32"}


def test_the_routes_are_those_of_the_engines_namespace(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text(ROUTES)
    (tmp_path / "ours").write_text("Iface\n")
    # In place of nsenter: another view of the same path.
    entering = Namespace(("sh", "-c", f'[ "$1" = {tmp_path}/ours ] && cat {tmp_path}/theirs'))
    found = of_node(entering, f"{tmp_path}/ours", tmp_path / "none")
    assert {str(one) for one in found} == {"10.0.0.0/24", "192.168.0.0/16"}


def test_a_node_that_hides_its_routes_is_taken_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    none = tmp_path / "none"
    assert of_node(Namespace(), str(none), none) == frozenset()
    assert of_node(Namespace(("false",)), str(none), none) == frozenset()
    assert caplog.text.count("so networks may overlap") == 4


def test_the_subnets_of_a_network_are_told_without_ipv6() -> None:
    config = [{"Subnet": "fd00::/64"}, {"Subnet": "172.18.0.0/16"}]
    assert list(of_network({"IPAM": {"Config": config}})) == [IPv4Network("172.18.0.0/16")]
    assert list(of_network({"IPAM": {"Config": None}})) == []
