"""`fairlead node upgrade`: through real sshd, on hosts whose bundles are played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.nodes.conftest import BareHosts
from tests.support.bare_host import BareHost, make_bundle
from tests.support.processes import CommandResult, ControllerProcess
from tests.support.testbed import ControllerFactory

pytestmark = pytest.mark.e2e


def add(controller: ControllerProcess, host: BareHost, name: str, bundle: Path) -> None:
    words: list[str | Path] = ["--name", name, "--identity", host.identity]
    words += ["--bundle", bundle, "--docker", "none"]
    trust = ["--accept-host-key", host.fingerprint, "--yes"]
    controller.cli("node", "install", host.target, *words, *trust).succeeded()


def upgrade(controller: ControllerProcess, identity: Path, bundle: Path) -> CommandResult:
    words: list[str | Path] = ["--identity", identity, "--bundle", bundle, "--yes", "--json"]
    return controller.cli("node", "upgrade", "--fleet", "default", *words)


def ends(result: CommandResult) -> dict[str, Any]:
    return {node["name"]: node["end"] for node in result.json["nodes"]}


def test_a_version_stops_at_the_first_node_that_it_breaks_and_that_one_goes_back(
    controller_process: ControllerFactory, bare_host: BareHosts, tmp_path: Path
) -> None:
    controller = controller_process()
    one, two = bare_host(), bare_host()
    two.let_in(one)
    first = make_bundle(tmp_path, "1.0")
    for name, host in (("n1", one), ("n2", two)):
        add(controller, host, name, first)

    broken = upgrade(controller, one.identity, make_bundle(tmp_path, "1.1broken"))
    assert (broken.status, ends(broken)) == (1, {"n1": "rolled back", "n2": "skipped"})
    assert "does not start" in broken.output
    for host in (one, two):
        assert host.does("readlink /opt/fairlead/current") == "/opt/fairlead/1.0\n"

    good = make_bundle(tmp_path, "1.2")
    done = upgrade(controller, one.identity, good).succeeded()
    assert ends(done) == {"n1": "upgraded", "n2": "upgraded"}
    for host in (one, two):
        assert host.does("readlink /opt/fairlead/current") == "/opt/fairlead/1.2\n"
    again = upgrade(controller, one.identity, good).succeeded()
    assert ends(again) == {"n1": "unchanged", "n2": "unchanged"}


def test_a_node_that_is_away_is_named_and_keeps_its_version(
    controller_process: ControllerFactory, bare_host: BareHosts, tmp_path: Path
) -> None:
    controller, host = controller_process(), bare_host()
    words = ["--host", "127.0.0.1", "--port", str(host.port), "--host-key", host.host_key]
    controller.cli("node", "add", "n1", *words).succeeded()
    result = upgrade(controller, host.identity, make_bundle(tmp_path, "1.0"))
    assert (result.status, ends(result)) == (1, {"n1": "skipped"})
    assert not host.has("/opt/fairlead")
