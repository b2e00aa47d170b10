"""A machine image boots with rendered user-data, by real cloud-init, and is a ready node.

The image is a stock Debian with cloud-init on which the bundle was installed before its first boot.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from installer.bundle.build import Bundle
from tests.support.booted import BootedMachine, booted_image
from tests.support.daemons import run
from tests.support.machines import Switch
from tests.support.processes import ControllerProcess
from tests.support.ssh_daemon import CHECKOUT, free_port
from tests.support.testbed import ControllerFactory
from tests.support.waiting import LONG, wait_until

pytestmark = pytest.mark.e2e
_APART = "network: {config: disabled}\ndatasource_list: [NoCloud]\n"
"""The bed has set the network up; no other data source is looked for."""


@pytest.fixture
def image_machine(testbed_folder: Path, bundle: Bundle) -> Iterator[BootedMachine]:
    """Off, with the bundle installed as an image's build does it."""
    switch = Switch()
    switch.build()
    image = booted_image(CHECKOUT / ".build/images", "cloud-init")
    machine = BootedMachine(switch, 1, testbed_folder / "cloud", image)
    (machine.root / "etc/cloud/cloud.cfg.d/99-bed.cfg").write_text(_APART)
    run(["cp", "-a", bundle.folder, machine.root / "root/bundle"])
    run(["chroot", machine.root, "/root/bundle/install", "--docker", "none"])
    yield machine
    machine.close()
    switch.remove()


def boot_with(machine: BootedMachine, user_data: str) -> None:
    seed = machine.root / "var/lib/cloud/seed/nocloud"
    seed.mkdir(parents=True)
    (seed / "user-data").write_text(user_data)
    (seed / "meta-data").write_text("instance-id: first\n")
    machine.start()


def wait_until_ready(controller: ControllerProcess) -> None:
    def is_ready() -> bool:
        node = controller.cli("node", "show", "n1", "--json").json
        return bool(node["status"] == "connected" and node["unfit"] is None)

    wait_until(is_ready, LONG, "n1 to be ready")


def test_an_image_that_boots_with_user_data_tells_its_address_and_is_a_ready_node(
    image_machine: BootedMachine, controller_process: ControllerFactory, tmp_path: Path
) -> None:
    ours = image_machine.address.rpartition(".")[0] + ".254"
    controller = controller_process("--join", f"{ours}:{free_port()}")
    own = tmp_path / "own.sh"
    own.write_text("#!/bin/sh\ntouch /root/own\n")
    announced = controller.cli(
        "node", "user-data", "n1", "--volume-prefix", "/srv", "--user-data", own
    )
    boot_with(image_machine, announced.succeeded().output)
    wait_until_ready(controller)
    assert image_machine.run("hostname") == "n1\n"
    left = "find /etc -name '*join*' -newer /etc/fairlead/node.yaml"
    wait_until(lambda: image_machine.run("sh", "-c", left) == "", LONG, "the unit to remove itself")
    assert "--volume-prefix /srv" in (image_machine.root / "etc/fairlead/node.env").read_text()
    wait_until((image_machine.root / "root/own").exists, LONG, "own user-data to be run")
    job = tmp_path / "job.yaml"
    job.write_text("type: task\ncommands: [echo hello]\nresources: {cpu: 1, memory: 100MB}\n")
    assert "hello" in controller.cli("apply", "-f", job).succeeded().output
