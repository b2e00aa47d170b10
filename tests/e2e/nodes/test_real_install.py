"""`fairlead node install` with the real bundle on a machine that boots: nothing is played."""

from __future__ import annotations

from pathlib import Path

import pytest

from installer.bundle.build import Bundle
from installer.bundle.packing import write_tar
from tests.support.booted import BootedMachine, files_of
from tests.support.daemons import run
from tests.support.processes import CommandResult
from tests.support.testbed import ControllerFactory

pytestmark = pytest.mark.e2e
_JOB = "type: task\ncommands: [echo hello from a node]\nresources: {cpu: 1, memory: 100MB}\n"


def test_a_stock_machine_becomes_a_node_stays_as_it_is_and_is_bare_again(
    bare_machine: BootedMachine,
    bundle: Bundle,
    controller_process: ControllerFactory,
    tmp_path: Path,
) -> None:
    controller, archive = controller_process(), write_tar(bundle, tmp_path)
    identity = tmp_path / "identity"
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", identity])
    bare_machine.authorize(identity.with_suffix(".pub").read_text())
    before = files_of(bare_machine)
    words: list[str | Path] = ["--name", "n1", "--identity", identity, "--yes"]
    words += ["--host-key", bare_machine.host_key]

    def install(*options: str | Path) -> CommandResult:
        target = f"root@{bare_machine.address}"
        return controller.cli("node", "install", target, *words, *options).succeeded()

    given: list[str | Path] = ["--bundle", archive, "--docker", "none", "--json"]
    assert install(*given).json["node"]["status"] == "connected"
    job = tmp_path / "job.yaml"
    job.write_text(_JOB)
    said = controller.cli("apply", "-f", job, "-n", "hello").succeeded().output
    assert "hello from a node" in said
    installed = files_of(bare_machine)
    for _ in range(2):
        assert install(*given).json["changed"] == []
        assert files_of(bare_machine) == installed
    install("--uninstall")
    assert files_of(bare_machine) == before
