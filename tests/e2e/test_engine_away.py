"""A Docker engine that stays away, with its containers, is the fault of its node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemons import run
from tests.support.docker_daemon import DockerDaemon
from tests.support.images import busybox_root
from tests.support.lab import UNTIL_ASKED, RunLab
from tests.support.processes import ShimProcess
from tests.support.ssh_daemon import SshDaemon
from tests.support.testbed import ControllerFactory
from tests.support.waiting import LONG, wait_until

pytestmark = pytest.mark.e2e

_CONFIG = """
limits: {waits: [0s], no_capacity_wait: 0s, jitter: 0, waiting_runner: 100s}
node_failure: {probe_every: 1s, unreachable_after: 10s, after: 15s}
"""
"""A shim notices within 10 to 20 s that its engine is away; the runner's limit must be longer."""


@pytest.fixture
def own_lab(
    testbed_folder: Path,
    runtime: Path,
    sshd: SshDaemon,
    controller_process: ControllerFactory,
    numbers: Iterator[int],
) -> Iterator[RunLab]:
    """With an engine of the test's own."""
    folder = testbed_folder / f"away{next(numbers)}"
    (folder / "docker").mkdir(parents=True)
    docker = DockerDaemon(folder / "docker")
    docker.start()
    image = docker.import_image("busybox:away", busybox_root(folder / "busybox"))
    options: list[str | Path] = ["--runtime", runtime, "--cpus", "2", "--memory", "4GiB"]
    shim = ShimProcess(folder / "node", "docker", *options, env=docker.env)
    shim.start()
    (folder / "config.yaml").write_text(_CONFIG)
    controller = controller_process("--config", folder / "config.yaml")
    sshd.authorize(controller.public_key)
    lab = RunLab(controller, shim, docker, sshd, sshd.port, folder, image)
    lab.connect_node("n1", "--host-key", sshd.host_key)
    yield lab
    if not docker.is_alive():
        docker.start()
    shim.close()
    docker.remove_containers()
    docker.stop()


def test_a_job_that_an_absent_engine_took_along_is_tried_again_and_charged_no_failure(
    own_lab: RunLab,
) -> None:
    lab = own_lab
    lab.start("taken", commands=[UNTIL_ASKED])
    top = lab.dockerd.docker("inspect", "-f", "{{.State.Pid}}", lab.container("taken"))
    lab.dockerd.kill9()
    run(["kill", "-KILL", top])
    wait_until(lambda: len(lab.attempts("taken")) == 2, LONG, "a second attempt")
    first, second = lab.attempts("taken")
    assert (first["termination_reason"], first["status"]) == ("instance_unreachable", "failed")
    assert second["status"] == "submitted"

    lab.dockerd.start()
    lab.wait_for("taken", "running")
    lab.let_go("taken")
    assert lab.wait_for("taken")["status"] == "done"
    lab.wait_for_node(lambda node: node["cpu_allocated"] == 0)
