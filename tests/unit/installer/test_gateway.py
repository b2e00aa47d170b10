"""What a gateway's machine is made of."""

from __future__ import annotations

from pathlib import Path

from installer import gateway
from installer.options import Docker, Options
from installer.plan import problems
from installer.steps import File
from tests.unit.installer.test_steps import FolderSystem

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA"


def files() -> dict[str, str]:
    made = gateway.steps("/opt/fl/bin/fairlead", [KEY], "HAPROXY")
    return {step.name: step.content for step in made if isinstance(step, File)}


def test_the_controllers_key_opens_unix_sockets_and_nothing_else() -> None:
    written = files()
    assert written["/etc/ssh/fairlead_authorized_keys"] == f"restrict,port-forwarding {KEY}\n"
    rules = written["/etc/ssh/sshd_config.d/fairlead.conf"]
    assert "ForceCommand /usr/sbin/nologin" in rules
    firewall = written["/etc/fairlead/firewall.nft"]
    assert 'meta skuid "fairlead" meta skgid "fairlead" reject' in firewall


def test_the_agent_runs_as_its_own_user_beside_caddy() -> None:
    written = files()
    unit = written["/etc/systemd/system/fairlead-gateway.service"]
    assert "ExecStart=/opt/fl/bin/fairlead gateway run" in unit
    assert "User=fairlead-gateway" in unit
    assert gateway.CADDY_ADMIN in unit
    assert gateway.CADDY_ADMIN in written["/etc/fairlead/caddy.json"]
    assert "--resume" in written["/etc/systemd/system/caddy.service.d/fairlead.conf"]


def test_a_gateway_is_no_node(tmp_path: Path) -> None:
    machine = FolderSystem(tmp_path)
    unit = tmp_path / "etc/systemd/system/fairlead-gateway.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("")
    assert problems(machine, Options(docker=Docker.NONE)) == [
        "this machine is a gateway; a node needs a machine of its own"
    ]


def test_a_node_is_no_gateway_and_missing_programs_are_named(tmp_path: Path) -> None:
    machine = FolderSystem(tmp_path)
    assert gateway.problems(machine) == []
    node = tmp_path / "etc/fairlead/install.json"
    node.parent.mkdir(parents=True)
    node.write_text("{}")
    assert gateway.problems(machine) == [
        "this machine is a node; a gateway needs a machine of its own"
    ]
