"""A fleet rents a virtual machine of the controller's own host, for real: cloud-init makes it a
node, a job runs on it, and the idle machine ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import end_processes_that_mention
from tests.support.processes import ControllerProcess
from tests.support.waiting import wait_until
from tests.vm.conftest import Figures
from tests.vm.jobs import Jobs
from tests.vm.machine import BOOT_SECONDS

FLEET = """\
type: fleet
name: burst
machines: {provider: here, nodes: 0..1, idle_duration: 10s, boot_limit: 40m}
budget: {per_hour: 1}
"""


@pytest.fixture
def rented(image_with_busybox: Path, vm_folder: Path) -> Iterator[Path]:
    """The folder of the machines; their account may read the image."""
    folder = vm_folder / "rented"
    folder.mkdir(mode=0o711)
    vm_folder.chmod(0o711)
    yield folder
    end_processes_that_mention(f"{folder}/")


@pytest.fixture
def renting(
    rented: Path, image_with_busybox: Path, accel: str, vm_folder: Path
) -> Iterator[ControllerProcess]:
    provider = {
        "type": "qemu",
        "image": str(image_with_busybox),
        "folder": str(rented),
        "user": "nobody",
        "machines": 1,
        "accelerator": accel,
        "instance_types": {"small": {"cpu": 2, "memory": "1536MB", "disk": "16GB", "price": 0.1}},
    }
    config = vm_folder / "renting.yaml"
    config.write_text(json.dumps({"providers": {"here": provider}}))
    started = ControllerProcess(vm_folder / "renting", "--config", config)
    started.start()
    yield started
    started.close()


def machines(controller: ControllerProcess, *options: str) -> list[dict[str, Any]]:
    listed = controller.cli("machine", "list", "--json", *options).succeeded().json
    found: list[dict[str, Any]] = listed["machines"]
    return found


def test_a_job_gets_a_virtual_machine_of_this_host_and_the_machine_ends(
    renting: ControllerProcess, rented: Path, tmp_path: Path, figures: Figures
) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    renting.cli("apply", "-f", fleet).succeeded()
    jobs = Jobs(renting, tmp_path)
    jobs.start("hello", "echo hello from a rented machine", fleets=["burst"])
    wait_until(lambda: "booting" in renting.cli("ps").output, BOOT_SECONDS, "the machine to boot")
    (booting,) = machines(renting)
    assert booting["status"] == "provisioning"
    with figures.timed("seconds from a booting machine to its job's end"):
        wait_until(
            lambda: "hello from a rented machine" in jobs.log("hello"), 2 * BOOT_SECONDS, "its log"
        )
    wait_until(lambda: machines(renting) == [], BOOT_SECONDS, "the idle machine to end")
    (ended,) = machines(renting, "--all")
    assert (ended["status"], ended["end"]) == ("terminated", "idle")
    assert [one for one in rented.iterdir() if not one.name.startswith(".")] == []
