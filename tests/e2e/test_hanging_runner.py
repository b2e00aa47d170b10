"""A runner that hangs while it loads, as on a disk that answers no more: its job waits no longer
than the limit says."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from entrypoint import module_file
from tests.support.docker_daemon import DockerDaemon
from tests.support.lab import RunLab
from tests.support.ssh_daemon import SshDaemon
from tests.support.testbed import ControllerFactory, ShimFactory

pytestmark = pytest.mark.e2e
_CONFIG = "limits: {waiting_runner: 2s}\n"
_HANGS = "import threading\nthreading.Event().wait()\n"


@pytest.fixture
def hanging_lab(
    request: pytest.FixtureRequest,
    testbed_folder: Path,
    runtime: Path,
    dockerd: DockerDaemon,
    busybox_image: str,
    sshd: SshDaemon,
    shim_process: ShimFactory,
    controller_process: ControllerFactory,
    numbers: Iterator[int],
) -> RunLab:
    """Its runners hang where they would load the module that the test names."""
    folder = testbed_folder / f"hangs{next(numbers)}"
    shutil.copytree(runtime, folder / "runtime", symlinks=True, copy_function=os.link)
    # Without this file, modules are found in their folders.
    (next((folder / "runtime/lib").glob("python3*")) / module_file.PATH).unlink()
    module = folder / "runtime/site" / request.param
    for compiled in module.parent.glob(f"__pycache__/{module.stem}.*"):
        compiled.unlink()
    module.unlink()
    module.write_text(_HANGS)
    shim = shim_process("docker", "--runtime", folder / "runtime")
    (folder / "config.yaml").write_text(_CONFIG)
    controller = controller_process("--config", folder / "config.yaml")
    sshd.authorize(controller.public_key)
    lab = RunLab(controller, shim, dockerd, sshd, sshd.port, folder, busybox_image)
    lab.connect_node("n1", "--host-key", sshd.host_key)
    return lab


@pytest.mark.parametrize(
    "hanging_lab",
    ["runner/options.py", "entrypoint/life.py"],
    ids=["before it listens", "when it listens"],
    indirect=True,
)
def test_a_runner_that_hangs_while_it_loads_ends_its_attempt(hanging_lab: RunLab) -> None:
    lab = hanging_lab
    lab.submit("waits", commands=["true"])
    assert lab.wait_for("waits")["status"] == "failed"
    (attempt,) = lab.attempts("waits")
    assert attempt["termination_reason"] == "waiting_runner_limit_exceeded"
    message = "the runner did not start the job within 2 s of its container"
    assert attempt["message"] == message
    lab.wait_for_node(lambda node: node["cpu_allocated"] == 0)
