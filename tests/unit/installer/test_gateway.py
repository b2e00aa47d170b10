"""What a gateway's machine is made of."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from installer import gateway
from installer.keys import Keys
from installer.options import Docker, Options
from installer.plan import problems
from installer.steps import File, Step
from installer.system import Done, InstallError
from tests.unit.installer.test_steps import FolderSystem

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA"


def files() -> dict[str, str]:
    made = gateway.steps("/opt/fl/bin/fairlead", [KEY], "HAPROXY")
    return {step.name: step.content for step in made if isinstance(step, File)}


def let_in(system: FolderSystem, *controllers: str) -> str:
    """The file of keys after a setup for these controllers."""
    (step,) = (each for each in gateway.steps("/bin/fl", controllers, "") if isinstance(each, Keys))
    step.apply(system)
    return (system.root / step.name.lstrip("/")).read_text()


def test_another_controller_takes_a_gateway_over_only_when_it_is_told_to(tmp_path: Path) -> None:
    system, other = FolderSystem(tmp_path), f"{KEY[:-1]}B"
    gateway.require_own(system, [KEY])
    let_in(system, KEY)
    gateway.require_own(system, [KEY])
    gateway.require_own(system, [other, KEY])
    with pytest.raises(InstallError, match=r"SHA256:\S+ may log in\. --takeover"):
        gateway.require_own(system, [other])
    assert let_in(system, other) == f"restrict,port-forwarding {other}\n"


def test_the_controllers_key_opens_unix_sockets_and_nothing_else(tmp_path: Path) -> None:
    written = files()
    assert let_in(FolderSystem(tmp_path), KEY) == f"restrict,port-forwarding {KEY}\n"
    rules = written["/etc/ssh/sshd_config.d/fairlead.conf"]
    assert "ForceCommand /usr/sbin/nologin" in rules
    firewall = written["/etc/fairlead/firewall.nft"]
    assert 'meta skuid "fairlead" meta skgid "fairlead" reject' in firewall


def test_all_three_programs_run_as_one_user_and_only_haproxy_may_have_the_ports() -> None:
    written = files()
    units = {
        name: written[f"/etc/systemd/system/fairlead-{name}.service"]
        for name in ("gateway", "haproxy", "caddy")
    }
    assert "ExecStart=/opt/fl/bin/fairlead gateway run" in units["gateway"]
    assert f"--caddy-admin {gateway.CADDY_ADMIN}\n" in units["gateway"]
    assert gateway.CADDY_ADMIN in written["/etc/fairlead/caddy.json"]
    assert "--resume" in units["caddy"]
    assert written["/etc/fairlead/haproxy.cfg"] == "HAPROXY"
    for unit in units.values():
        assert "\nUser=fairlead-gateway\n" in unit
        assert "\nProtectSystem=strict\n" in unit
    rights = {
        name: [line for line in unit.splitlines() if "Capabilit" in line]
        for name, unit in units.items()
    }
    assert rights == {
        "gateway": ["CapabilityBoundingSet="],
        "caddy": ["CapabilityBoundingSet="],
        "haproxy": [
            "AmbientCapabilities=CAP_NET_BIND_SERVICE",
            "CapabilityBoundingSet=CAP_NET_BIND_SERVICE",
        ],
    }


class BootedSystem(FolderSystem):
    def is_booted(self) -> bool:
        return True


LISTENING = ("ss", "-Hltnp", "sport = :80 or sport = :443")


def ports_step() -> Step:
    (found,) = (
        step for step in gateway.steps("/bin/fairlead", [KEY], "HAPROXY") if step.name == "ports"
    )
    return found


def test_debians_own_services_are_stopped_and_another_program_at_a_port_is_named(
    tmp_path: Path,
) -> None:
    machine = BootedSystem(tmp_path)
    ours = 'LISTEN 0 4096 0.0.0.0:80 0.0.0.0:* users:(("haproxy",pid=9,fd=8))'
    machine.answers[LISTENING] = Done(0, f"{ours}\n")
    ports_step().apply(machine)
    for unit in ("caddy.service", "haproxy.service"):
        assert ("systemctl", "disable", "--now", unit) in machine.asked
    nginx = 'LISTEN 0 511     0.0.0.0:80 0.0.0.0:* users:(("nginx",pid=7,fd=6))'
    machine.answers[LISTENING] = Done(0, f"{nginx}\n")
    with pytest.raises(InstallError, match=r"stop it: .* 0\.0\.0\.0:80 .*nginx.*pid=7"):
        ports_step().apply(machine)


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


@pytest.mark.parametrize(
    ("present", "status"),
    [
        ({"direct.pem": "x", "nodes.pem": "x"}, 0),
        ({"direct.pem": "x"}, 127),
        ({"direct.pem": "x", "nodes.pem": ""}, 127),
        ({}, 127),
    ],
)
def test_haproxy_needs_no_program_once_its_files_are_there(
    tmp_path: Path, present: dict[str, str], status: int
) -> None:
    made = gateway.steps(f"{tmp_path}/no such/fairlead", [KEY], "")
    (unit,) = (
        step.content
        for step in made
        if isinstance(step, File) and step.name.endswith("/fairlead-haproxy.service")
    )
    lines = unit.replace("\\\n", " ").replace(gateway.DATA, str(tmp_path)).splitlines()
    (line,) = (line for line in lines if "--prepare" in line)
    for name, text in present.items():
        (tmp_path / name).write_text(text)
    command = shlex.split(line.removeprefix("ExecStartPre="))
    assert subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == status
