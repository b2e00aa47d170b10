"""The table that keeps the engine's bridges of runs apart."""

from __future__ import annotations

import re

import pytest

from shim.wires import rules
from shim.wires.bridges import Bridges
from shim.wires.connections import Limits
from shim.wires.namespace import Namespace, WireError
from tests.support.ssh_daemon import CHECKOUT

TABLE = rules.Names("i").bridges


class NftNamespace(Namespace):
    """Notes what nft was given. `why_not`: it refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[tuple[str, ...], str]] = []
        self.why_not = ""

    def run(self, *argv: str, given: str = "") -> str:
        if self.why_not:
            raise WireError(self.why_not)
        self.given.append((argv, given))
        return ""


def test_it_is_written_whole_and_each_shim_has_its_own() -> None:
    namespace = NftNamespace()
    Bridges("i", namespace).keep_apart()
    assert namespace.given == [(("nft", "-f", "-"), rules.bridges(TABLE))]
    assert len({TABLE, rules.Names("other").bridges, rules.Names("i").table}) == 3


def test_it_goes_with_the_last_network() -> None:
    namespace = NftNamespace()
    Bridges("i", namespace).leave()
    assert namespace.given == [(("nft", "delete", "table", "inet", TABLE), "")]


def test_a_node_that_cannot_have_it_is_told_once_for_each_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    namespace = NftNamespace()
    bridges = Bridges("i", namespace)
    for why in ("no nft", "no nft", "no root", ""):
        namespace.why_not = why
        bridges.keep_apart()
    namespace.why_not = "no root"
    bridges.keep_apart()
    only = "only the engine keeps the networks of runs apart: "
    assert caplog.messages == [f"{only}no nft", f"{only}no root", f"{only}no root"]


@pytest.mark.parametrize(
    "table",
    [
        rules.bridges(TABLE),
        rules.table(rules.Names("i"), {"run": ["wire"]}, ("eth0",), Limits(65536)),
        (CHECKOUT / "packer/firewall.nft").read_text(),
    ],
    ids=["bridges", "wires", "node"],
)
def test_where_a_packet_would_go_is_asked_where_older_kernels_answer(table: str) -> None:
    """Before 5.19, a rule elsewhere is refused, and with it the whole table."""
    chains = re.split(r"^    chain ", table, flags=re.MULTILINE)[1:]
    asking = [one for one in chains if re.search(r"^ +[^#\n]*fib .*oif", one, re.MULTILINE)]
    assert len(asking) == 1
    assert "type filter hook prerouting " in asking[0]
