"""`apply -f fleet.yaml`: many hosts become nodes at once, and the same again changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.nodes.conftest import BareHosts
from tests.support.bare_host import BareHost, make_bundle
from tests.support.processes import CommandResult
from tests.support.testbed import ControllerFactory

pytestmark = pytest.mark.e2e


def entry(name: str, host: BareHost, **more: Any) -> dict[str, Any]:
    where = {"host": "127.0.0.1", "port": host.port, "identity_file": str(host.identity)}
    return {"name": name, **where, "host_key": host.host_key, **more}


def write(folder: Path, *hosts: dict[str, Any], **more: Any) -> Path:
    file = folder / "fleet.yaml"
    fleet = {"type": "fleet", "name": "training", "docker": "none", "hosts": hosts, **more}
    file.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in fleet.items()))
    return file


def test_all_hosts_become_nodes_and_only_what_differs_changes_later(
    controller_process: ControllerFactory, bare_host: BareHosts, tmp_path: Path
) -> None:
    controller, bundle = controller_process(), make_bundle(tmp_path, "1.0")
    one, two = bare_host(), bare_host()

    def apply(*hosts: dict[str, Any]) -> CommandResult:
        file = write(tmp_path, *hosts, placement="rack")
        return controller.cli("apply", "-f", file, "--bundle", bundle, "--yes", "--json")

    both = entry("n1", one, attributes={"rack": "r1"}), entry("n2", two)
    first = apply(*both).succeeded().json
    assert first["changed"] == ["added fleet training"]
    assert [bool(host["changed"]) for host in first["hosts"]] == [True, True]
    nodes = controller.cli("node", "list", "--json").json["nodes"]
    assert [(node["name"], node["fleet"], node["status"]) for node in nodes] == [
        ("n1", "training", "connected"),
        ("n2", "training", "connected"),
    ]
    before = one.files(), two.files()
    again = apply(*both).succeeded().json
    assert again["changed"] == []
    assert [host["changed"] for host in again["hosts"]] == [[], []]
    assert (one.files(), two.files()) == before
    other = apply(both[0], entry("n2", two, attributes={"rack": "r2"})).succeeded().json
    assert [host["changed"] for host in other["hosts"]] == [[], ["changed node n2: attributes"]]


def test_a_host_that_fails_holds_up_no_other(
    controller_process: ControllerFactory, bare_host: BareHosts, tmp_path: Path
) -> None:
    controller, bundle = controller_process(), make_bundle(tmp_path, "1.0")
    bad, good = bare_host(), bare_host()
    bad.does("touch /opt/broken")
    file = write(tmp_path, entry("n1", bad), entry("n2", good))
    done = controller.cli("apply", "-f", file, "--bundle", bundle, "--yes")
    assert done.status == 1
    assert "the disk is on fire" in done.output
    nodes = controller.cli("node", "list", "--json").json["nodes"]
    assert [(node["name"], node["status"]) for node in nodes] == [("n2", "connected")]


def test_hosts_whose_keys_nobody_vouches_for_are_all_named_and_left_alone(
    controller_process: ControllerFactory, bare_host: BareHosts, tmp_path: Path
) -> None:
    controller, bundle = controller_process(), make_bundle(tmp_path, "1.0")
    one, two = bare_host(), bare_host()
    file = write(
        tmp_path,
        *(entry(name, host) | {"host_key": None} for name, host in (("n1", one), ("n2", two))),
    )
    refused = controller.cli("apply", "-f", file, "--bundle", bundle, "--yes")
    assert refused.status == 1
    assert one.fingerprint in refused.errors
    assert two.fingerprint in refused.errors
    assert not one.has("/opt/fairlead")
