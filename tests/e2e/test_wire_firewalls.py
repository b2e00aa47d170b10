"""Wires on nodes whose operator has a firewall of his own, or the older kind of iptables."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from shim.wires.wires import Wires
from tests.support.wire_lab import OUTSIDE, OUTSIDE6, WireLab, WireNode, wire_lab, wire_node

pytestmark = pytest.mark.e2e

_IN_COPIES = """
mount --bind "$0/ufw" /etc/ufw && mount --bind "$0/default" /etc/default && exec ufw "$@"
"""
_LEGACY = {
    f"{name}{what}": f"{name}-legacy{what}"
    for name in ("iptables", "ip6tables")
    for what in ("", "-save", "-restore")
}
Reaches = Callable[[], list[bool]]
_APART = [True, True, True, True, False, False]
"""The outside and the own run are reached, and no other one, by IPv4 and IPv6."""


@pytest.fixture
def node(numbers: Iterator[int]) -> Iterator[WireNode]:
    with wire_node(f"fl-e2e-{os.getpid()}-{next(numbers)}", ipv6=True) as made:
        yield made


class Ufw:
    """ufw on a node, with settings of its own: it never touches the machine's."""

    def __init__(self, node: WireNode, folder: Path) -> None:
        self._node, self._folder = node, folder
        for name in ("ufw", "default"):
            shutil.copytree(f"/etc/{name}", folder / name)

    def __call__(self, *words: str) -> None:
        private = ("unshare", "--mount", "--propagation", "private")
        self._node.inside(*private, "sh", "-c", _IN_COPIES, str(self._folder), *words)


@pytest.fixture
def ufw(node: WireNode, tmp_path: Path) -> Ufw:
    if shutil.which("ufw") is None:
        pytest.fail("ufw is missing: apt-get install ufw", pytrace=False)
    return Ufw(node, tmp_path)


def _members(lab: WireLab) -> Reaches:
    """Connect two members of a run and one of another."""
    ours, _ = lab.connect("t1", "ours")
    others = [lab.connect("t2", "ours")[1].address, lab.connect("t3", "theirs")[1].address]
    places = [place for one in others for place in (one, lab.names.address6(one))]
    return lambda: ours.reached(OUTSIDE, OUTSIDE6, *places)


def _is_enabled(node: WireNode) -> bool:
    """Return whether its chains are there: those that it made stay when it is disabled."""
    return "ufw-reject-forward" in node.inside("iptables", "-S", "FORWARD")


def test_jobs_reach_what_they_may_behind_ufw(node: WireNode, ufw: Ufw) -> None:
    """It drops all that is forwarded by default. It begins before the engine, at a boot."""
    ufw("--force", "enable")
    ufw("default", "deny", "routed")
    assert _is_enabled(node)
    # As an engine does at its start.
    for words in ("-D FORWARD -j DOCKER-USER", "-I FORWARD -j DOCKER-USER"):
        node.inside("sh", "-c", f"iptables {words} || true")
    assert Wires("asking", node.namespace()).firewall_conflict() is None
    with wire_lab(node) as lab:
        reaches = _members(lab)
        assert reaches() == _APART


def test_ufw_that_is_changed_while_jobs_run_cuts_none_off(node: WireNode, ufw: Ufw) -> None:
    with wire_lab(node) as lab:
        reaches = _members(lab)
        for words in ("--force enable", "default deny routed", "reload", "disable"):
            ufw(*words.split())
            assert _is_enabled(node)
            assert reaches() == _APART


@pytest.fixture
def legacy(tmp_path: Path) -> Path:
    """A folder for PATH with the older kind of iptables, as `update-alternatives` sets it."""
    for name, program in _LEGACY.items():
        found = shutil.which(program)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    return tmp_path


@contextmanager
def _before_others(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        yield


def test_jobs_reach_what_they_may_with_the_older_iptables(
    numbers: Iterator[int], legacy: Path
) -> None:
    name = f"fl-e2e-{os.getpid()}-{next(numbers)}"
    with _before_others(legacy), wire_node(name, ipv6=True) as node:
        assert "filter" in node.inside("cat", "/proc/net/ip_tables_names")
        assert Wires("asking", node.namespace()).firewall_conflict() is None
        with wire_lab(node) as lab:
            reaches = _members(lab)
            assert reaches() == _APART
            for flush in ("iptables", "ip6tables"):
                node.inside(flush, "-F")
            assert reaches() == [False] * 6
            lab.wires.repair()
            assert reaches() == _APART
        assert "fl-w" not in node.inside("iptables-save")


def test_rules_of_the_iptables_that_is_not_used_are_told(
    numbers: Iterator[int], legacy: Path
) -> None:
    """The kernel asks both kinds, and an engine keeps the one with which it began."""
    name = f"fl-e2e-{os.getpid()}-{next(numbers)}"
    with ExitStack() as left:
        with _before_others(legacy):
            old = left.enter_context(wire_node(f"{name}-old"))
        assert "iptables-legacy drops what is forwarded" in _conflict(old)
        new = left.enter_context(wire_node(f"{name}-new"))
        with _before_others(legacy):
            assert "FORWARD of the table ip filter drops what is forwarded" in _conflict(new)


def _conflict(node: WireNode) -> str:
    return Wires("asking", node.namespace()).firewall_conflict() or ""
