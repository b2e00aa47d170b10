"""`fairlead node install`: a host that its operator reaches by SSH becomes a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.nodes.conftest import BareHosts
from tests.support.bare_host import BareHost, make_bundle
from tests.support.processes import CommandResult, ControllerProcess
from tests.support.testbed import ControllerFactory

pytestmark = pytest.mark.e2e

ACCEPT = "--accept-host-key"


@pytest.fixture
def controller(controller_process: ControllerFactory) -> ControllerProcess:
    return controller_process()


def words_for(host: BareHost) -> list[str | Path]:
    return ["--name", "n1", "--identity", host.identity, "--yes"]


def install(
    controller: ControllerProcess, host: BareHost, bundle: Path, *options: str
) -> CommandResult:
    words = [*words_for(host), "--bundle", bundle, "--docker", "none"]
    return controller.cli("node", "install", host.target, *words, *options)


def test_a_host_becomes_a_node_and_the_second_and_third_time_change_nothing(
    controller: ControllerProcess, bare_host: BareHosts, tmp_path: Path
) -> None:
    host, bundle = bare_host(), make_bundle(tmp_path, "1.0")
    fleet = ("--attribute", "rack=r1")
    first = install(controller, host, bundle, ACCEPT, host.fingerprint, *fleet).succeeded()
    assert "node n1 is ready: " in first.output
    assert "  + let the controller in: made" in first.errors
    assert f"added node n1 with host key {host.fingerprint}" in first.output
    node = controller.cli("node", "show", "n1", "--json").json
    assert (node["status"], node["attributes"]) == ("connected", {"rack": "r1"})
    before = host.files()
    assert "/opt/fairlead/1.0/install" in before
    for _ in range(2):
        again = install(controller, host, bundle, *fleet, "--json").succeeded()
        assert again.json["changed"] == []
        assert "uploading" not in again.errors
        assert host.files() == before


def test_what_a_repetition_does_not_name_stays(
    controller: ControllerProcess, bare_host: BareHosts, tmp_path: Path
) -> None:
    host, bundle = bare_host(), make_bundle(tmp_path, "1.0")
    install(controller, host, bundle, ACCEPT, host.fingerprint).succeeded()
    before = host.files()
    words: list[str | Path] = ["--identity", host.identity, "--yes", "--bundle", bundle, "--json"]
    again = controller.cli("node", "install", host.target, *words).succeeded()
    assert (again.json["name"], again.json["changed"]) == ("n1", [])
    assert host.files() == before


def test_a_second_controller_is_refused_and_takes_the_node_over_only_when_told(
    controller_process: ControllerFactory, bare_host: BareHosts, tmp_path: Path
) -> None:
    first, second = controller_process(), controller_process()
    host, bundle = bare_host(), make_bundle(tmp_path, "1.0")
    known = (ACCEPT, host.fingerprint)
    install(first, host, bundle, *known).succeeded()
    keys, before = "cat /etc/ssh/fairlead_authorized_keys", host.files()
    refused = install(second, host, bundle, *known)
    assert refused.status == 1
    assert "another controller has this host as its node" in refused.errors
    assert host.files() == before
    taken = install(second, host, bundle, *known, "--takeover").succeeded()
    assert "  ! controller: another controller" in taken.errors
    assert len(host.does(keys).splitlines()) == 2
    assert second.cli("node", "show", "n1", "--json").json["status"] == "connected"
    assert first.cli("node", "show", "n1", "--json").json["status"] == "connected"
    for controller in (first, second):
        assert install(controller, host, bundle, "--json").succeeded().json["changed"] == []
    gone = controller.cli("node", "install", host.target, *words_for(host), "--uninstall")
    assert (gone.status, "another controller has" in gone.errors) == (1, True)
    assert host.has("/opt/fairlead")


def test_an_unknown_host_key_is_refused_before_anything_else(
    controller: ControllerProcess, bare_host: BareHosts, tmp_path: Path
) -> None:
    host, bundle = bare_host(), make_bundle(tmp_path, "1.0")
    refused = install(controller, host, bundle)
    assert refused.status == 1
    assert f"--accept-host-key {host.fingerprint}" in refused.errors
    assert "Accepted" not in host.log
    wrong = install(controller, host, bundle, ACCEPT, "SHA256:wrong")
    assert (wrong.status, host.fingerprint in wrong.errors) == (1, True)
    assert not host.has("/opt/fairlead")


def test_a_host_that_cannot_be_a_node_is_told_why_and_stays_as_it_is(
    controller: ControllerProcess, bare_host: BareHosts, tmp_path: Path
) -> None:
    host, bundle = bare_host(), make_bundle(tmp_path, "1.0")
    host.does("rmdir /run/systemd/system")
    before = host.files()
    refused = install(controller, host, bundle, ACCEPT, host.fingerprint)
    assert (refused.status, "does not run systemd" in refused.errors) == (1, True)
    assert host.files() == before
    assert controller.cli("node", "list", "--json").json["nodes"] == []


def test_an_installation_that_fails_leaves_no_upload_and_no_node(
    controller: ControllerProcess, bare_host: BareHosts, tmp_path: Path
) -> None:
    host, bundle = bare_host(), make_bundle(tmp_path, "1.0")
    host.does("touch /opt/broken")
    failed = install(controller, host, bundle, ACCEPT, host.fingerprint)
    assert (failed.status, "the disk is on fire" in failed.errors) == (1, True)
    assert host.does("ls /var/tmp") == ""
    assert controller.cli("node", "list", "--json").json["nodes"] == []
    host.does("rm /opt/broken")
    install(controller, host, bundle, ACCEPT, host.fingerprint).succeeded()


def test_another_version_replaces_the_first_only_when_that_is_asked_for(
    controller: ControllerProcess, bare_host: BareHosts, tmp_path: Path
) -> None:
    host, first, second = bare_host(), make_bundle(tmp_path, "1.0"), make_bundle(tmp_path, "1.1")
    install(controller, host, first, ACCEPT, host.fingerprint).succeeded()
    refused = install(controller, host, second)
    assert (refused.status, "--upgrade" in refused.errors) == (1, True)
    install(controller, host, second, "--upgrade").succeeded()
    assert host.does("readlink /opt/fairlead/current") == "/opt/fairlead/1.1\n"


def test_an_uninstall_leaves_nothing_behind(
    controller: ControllerProcess, bare_host: BareHosts, tmp_path: Path
) -> None:
    host, bundle = bare_host(), make_bundle(tmp_path, "1.0")
    install(controller, host, bundle, ACCEPT, host.fingerprint).succeeded()
    words = [*words_for(host), "--uninstall"]
    gone = controller.cli("node", "install", host.target, *words).succeeded()
    assert "removed node n1 from the controller" in gone.output
    assert not host.has("/opt/fairlead")
    assert not host.has("/etc/fairlead")
    assert host.does("ls /var/tmp") == ""
    assert controller.cli("node", "list", "--json").json["nodes"] == []


def test_a_host_is_reached_through_a_jump_host_whose_key_is_in_known_hosts(
    controller: ControllerProcess,
    bare_host: BareHosts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host, bundle = bare_host(), make_bundle(tmp_path, "1.0")
    monkeypatch.setenv("HOME", str(tmp_path))
    jump = ("--jump", host.target)
    unknown = install(controller, host, bundle, *jump)
    assert (unknown.status, "jump host 127.0.0.1 is not known" in unknown.errors) == (1, True)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/known_hosts").write_text(f"[127.0.0.1]:{host.port} {host.host_key}\n")
    install(controller, host, bundle, *jump).succeeded()
