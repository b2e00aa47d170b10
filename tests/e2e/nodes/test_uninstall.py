"""The bundle's `install` can be undone to the last file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.service.machines.user_data import JoinPoint, UserData, document
from installer.bundle.build import Bundle
from installer.bundle.packing import write_deb
from tests.support.booted import BootedMachine, files_of

pytestmark = pytest.mark.e2e


def bring_user_data(machine: BootedMachine) -> None:
    """A controller that is never there would be told the node's address."""
    point = JoinPoint(host="127.0.0.1", port=1, certificate="0" * 64)
    told = UserData(
        name="n1",
        fleet="f",
        expires_at=0.0,
        host_private_key="k",
        host_public_key="k",
        tunnel_key="k",
        join=point,
        token="t",
    )
    for file in document(told)["write_files"]:
        path = machine.root / file["path"].lstrip("/")
        path.write_text(file["content"])
    machine.run("systemctl", "enable", "fairlead-join.service")


def test_an_uninstall_leaves_nothing_behind(
    bare_machine: BootedMachine, booted_folder: str, bundle: Bundle
) -> None:
    install = f"{booted_folder}/install"
    before = files_of(bare_machine)
    bare_machine.run(install, "--docker", "none", "--volume-prefix", "/srv")
    bring_user_data(bare_machine)
    assert bundle.version in bare_machine.run("readlink", "/opt/fairlead/current")
    bare_machine.run(install, "--uninstall", "--purge")
    assert files_of(bare_machine) == before


@pytest.fixture
def package(bare_machine: BootedMachine, bundle: Bundle, tmp_path: Path) -> Iterator[str]:
    """The Debian package's path on the machine, which no longer has it at the end."""
    built = write_deb(bundle, tmp_path)
    shutil.copy(built, bare_machine.root / "root" / built.name)
    yield f"/root/{built.name}"
    bare_machine.attempt("dpkg", "--purge", "fairlead-node")
    (bare_machine.root / "root" / built.name).unlink()


def test_an_upgrade_of_the_package_keeps_what_the_operator_chose(
    bare_machine: BootedMachine, package: str
) -> None:
    chosen = bare_machine.root / "etc/fairlead/install.json"
    engine = bare_machine.root / "usr/local/bin/dockerd"
    bare_machine.run("dpkg", "-i", package)
    bare_machine.run("/opt/fairlead/current/install", "--volume-prefix", "/srv")
    before = json.loads(chosen.read_text())
    assert (before["docker"], before["volume_prefixes"]) == ("none", ["/srv"])
    engine.write_text("#!/bin/sh\n")
    engine.chmod(0o755)
    try:
        bare_machine.run("dpkg", "-i", package)
        assert json.loads(chosen.read_text()) == before
        bare_machine.run("dpkg", "--remove", "fairlead-node")
        assert not chosen.exists()
    finally:
        engine.unlink()
