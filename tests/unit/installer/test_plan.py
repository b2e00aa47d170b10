"""What a node is made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from installer import docker
from installer.main import install
from installer.options import Docker, Options, merge
from installer.plan import problems, steps
from installer.steps import Command, File, NoFile, NoFolder, NoUnit, Step, Unit
from installer.system import Done, InstallError
from tests.unit.installer.test_steps import FolderSystem

ROOT = Path(__file__).parents[3]


def planned(tmp_path: Path, options: Options) -> list[Step]:
    """What a node is made of, from a bundle with the system's files alone."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "manifest.json").write_text(
        '{"version": "1", "architecture": "amd64", "machine": "x86_64", "runtime": "r"}'
    )
    system = tmp_path / "system"
    system.mkdir()
    for source in (
        *("packer/firewall.nft", "packer/firewall-jobs.nft", "packer/sysctl.conf"),
        *("cloud-init/sshd_fairlead.conf", "packer/systemd/fairlead-shim.service"),
        "packer/systemd/fairlead-firewall.service",
    ):
        (system / Path(source).name).write_text((ROOT / source).read_text())
    return steps(tmp_path, options)


def written(tmp_path: Path, options: Options | None = None) -> dict[str, str]:
    made = planned(tmp_path, options or Options(docker=Docker.USE))
    return {step.name: step.content for step in made if isinstance(step, File)}


def test_a_login_at_a_node_carries_more_requests_than_sshds_own_limit(tmp_path: Path) -> None:
    """At 1,024 open files sshd refuses the 1,020th channel of a connection."""
    lines = written(tmp_path)["/etc/security/limits.d/60-fairlead.conf"].splitlines()
    limits = [line.split() for line in lines if not line.startswith("#")]
    assert limits == [[user, "-", "nofile", "65536"] for user in ("fairlead", "fairlead-gateway")]


class FreshSystem(FolderSystem):
    """A machine without an engine, whose apt-get brings what it is asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.missing = {"dockerd", "crun"}

    def is_booted(self) -> bool:
        return True

    def run(self, *argv: str) -> Done:
        if argv[:2] == ("apt-get", "install"):
            self.missing -= {"dockerd"} if "docker.io" in argv else set(argv)
        return super().run(*argv)


def test_a_new_engine_knows_the_crun_that_comes_with_it(tmp_path: Path) -> None:
    kinds = (docker.EngineSettings, docker.EnginePackage, Command)
    made = planned(tmp_path / "bundle", Options(docker=Docker.INSTALL))
    of_engine = [one for one in made if isinstance(one, kinds) and "ocker" in one.name]
    system, told = FreshSystem(tmp_path / "node"), list[tuple[str, str]]()
    install(system, of_engine, lambda *one: told.append(one), check=False)
    text = (system.root / docker.CONFIGURATION.lstrip("/")).read_text()
    assert json.loads(text)["runtimes"] == {"crun": {"path": "crun"}}
    # Its first start has the settings already, and it hears of crun afterwards.
    assert [why for _, why in told][1:] == ["installed (docker.io)", "sets runtimes", "reloaded"]
    install(system, of_engine, lambda *one: told.append(one), check=False)
    assert len(told) == 4
    left = [one.leftover(system) for one in of_engine if isinstance(one, docker.EngineSettings)]
    assert left == ["as it was before", None]


def test_a_node_listens_for_gateways_only_where_its_operator_says_so(tmp_path: Path) -> None:
    unit = "/etc/systemd/system/fairlead-direct.service"
    rules = "/etc/fairlead/firewall.d/direct.nft"
    usual = planned(tmp_path / "usual", Options(docker=Docker.USE))
    assert [step.name for step in usual if isinstance(step, NoUnit)] == ["fairlead-direct.service"]
    taken_away = {step.name for step in usual if isinstance(step, NoFile)}
    assert {unit, rules} <= taken_away
    options = Options(docker=Docker.USE, gateway_port=8443)
    made = written(tmp_path / "direct", options)
    assert "--gateway-port 8443 --direct-folder" in made["/etc/fairlead/node.env"]
    assert "tcp dport 8443 reject" in made[rules]
    assert "CapabilityBoundingSet=CAP_NET_BIND_SERVICE CAP_SETGID CAP_SETUID" in made[unit]
    (service,) = (
        step
        for step in planned(tmp_path / "again", options)
        if isinstance(step, Unit) and step.unit == "fairlead-direct.service"
    )
    assert service.restarts_for == {unit, "/etc/fairlead/node.env"}


def test_a_node_that_gives_up_its_port_forgets_whom_it_let_in(tmp_path: Path) -> None:
    made = planned(tmp_path / "plan", Options(docker=Docker.USE))
    (step,) = (step for step in made if isinstance(step, NoFolder))
    shim = next(at for at, one in enumerate(made) if one.name == "fairlead-shim.service")
    assert made.index(step) > shim
    system = FolderSystem(tmp_path)
    assert step.difference(system, frozenset()) is None
    folder = tmp_path / "run/fairlead-direct"
    folder.mkdir(parents=True)
    (folder / "gateways.pem").write_text("x")
    assert step.difference(system, frozenset()) == "removed"
    step.apply(system)
    assert not folder.exists()
    step.apply(system)


def test_a_unit_that_is_not_there_is_not_taken_away(tmp_path: Path) -> None:
    system = FolderSystem(tmp_path)
    assert NoUnit("x.service").difference(system, frozenset()) is None
    file = tmp_path / "etc/systemd/system/x.service"
    file.parent.mkdir(parents=True)
    file.touch()
    assert NoUnit("x.service").difference(system, frozenset()) == "stopped and disabled"


def test_a_gateway_port_stays_until_it_is_named_again() -> None:
    def merged(before: Options | None, port: int | None) -> Options:
        return merge(
            before,
            docker="use",
            has_docker=True,
            tunnel_keys=(),
            volume_prefixes=(),
            registry_mirror=None,
            gateway_port=port,
        )

    first = merged(None, 8443)
    assert (first.gateway_port, merged(first, None).gateway_port) == (8443, 8443)
    assert (merged(first, 0).gateway_port, merged(None, None).gateway_port) == (None, None)
    for port in (-1, 22, 65536):
        with pytest.raises(InstallError, match="--gateway-port"):
            merged(None, port)


def test_the_direct_way_needs_haproxy(tmp_path: Path) -> None:
    system = FolderSystem(tmp_path)
    system.missing.add("haproxy")
    found = problems(system, Options(docker=Docker.USE, gateway_port=8443))
    assert "--gateway-port: no HAProxy is here; install the package haproxy" in found
