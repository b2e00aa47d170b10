"""docs/operators as a new operator reads it: three machines that boot, one fleet file, one gang."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from installer.bundle.build import Bundle
from installer.bundle.packing import write_tar
from tests.support.booted import BootedMachine, booted_machines
from tests.support.daemons import run
from tests.support.ssh_daemon import CHECKOUT
from tests.support.testbed import ControllerFactory

pytestmark = pytest.mark.e2e
_PAGE = (CHECKOUT / "docs/operators/README.md").read_text()
_FLEET, _GANG = re.findall(r"```yaml\n(type: .*?)```", _PAGE, re.DOTALL)


@pytest.fixture
def machines(testbed_folder: Path) -> Iterator[list[BootedMachine]]:
    images = CHECKOUT / ".build/images"
    with booted_machines(testbed_folder / "three", images, 3) as made:
        yield made


def log_in_once(machines: list[BootedMachine], home: Path) -> None:
    """As the page says: the operator's key is there, and the hosts' keys are known."""
    folder = home / ".ssh"
    folder.mkdir(parents=True)
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", folder / "node"])
    entries = [f"{each.address} {each.host_key}\n" for each in machines]
    (folder / "known_hosts").write_text("".join(entries))
    (folder / "config").write_text("Host *\n    IdentityFile ~/.ssh/node\n")
    for machine in machines:
        machine.authorize((folder / "node.pub").read_text())


def test_three_bare_machines_become_a_gang(
    machines: list[BootedMachine],
    bundle: Bundle,
    controller_process: ControllerFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FAIRLEAD_BUNDLE", str(write_tar(bundle, tmp_path)))
    log_in_once(machines, tmp_path)
    fleet, gang = tmp_path / "fleet.yaml", tmp_path / "gang.yaml"
    text = _FLEET.replace("docker: install", "docker: none")
    for number, machine in enumerate(machines):
        text = text.replace(f"10.0.0.{5 + number}", machine.address)
    fleet.write_text(text)
    gang.write_text("".join(line for line in _GANG.splitlines(True) if "image:" not in line))
    controller = controller_process()
    controller.cli("apply", "-f", fleet, "--yes").succeeded()
    again = controller.cli("apply", "-f", fleet, "--yes").succeeded().output
    assert again.count("nothing had to be changed") == 3
    done = controller.cli("apply", "-f", gang).succeeded()
    said = done.output + done.errors
    firsts = re.findall(r"rank (\d) of 3, the first is at (\S+)", said)
    assert sorted(rank for rank, _ in firsts) == ["0", "1", "2"], said
    (first,) = {address for _, address in firsts}
    assert first in [machine.address for machine in machines]
    for number, machine in enumerate(machines, 1):
        words = ("--name", f"gpu-{number}", "--uninstall", "--yes")
        controller.cli("node", "install", f"root@{machine.address}", *words).succeeded()
    assert controller.cli("node", "list", "--json").json["nodes"] == []
