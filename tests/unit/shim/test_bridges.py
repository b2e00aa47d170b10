"""The table that keeps the engine's bridges of runs apart."""

from __future__ import annotations

import pytest

from shim.wires import rules
from shim.wires.bridges import Bridges
from shim.wires.namespace import Namespace, WireError

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
