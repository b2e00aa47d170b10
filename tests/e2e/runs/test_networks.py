"""A node whose range of addresses has room for few runs: the next one waits, and nothing breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.docker_daemon import DockerDaemon
from tests.support.lab import UNTIL_ASKED, RunLab
from tests.support.ssh_daemon import SshDaemon
from tests.support.testbed import ControllerFactory, ShimFactory
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

SMALL = {"cpu": 0.1, "memory": "100MB"}
RUNS = 5


@pytest.fixture
def lab(
    shim_process: ShimFactory,
    controller_process: ControllerFactory,
    dockerd: DockerDaemon,
    sshd: SshDaemon,
    busybox_image: str,
    tmp_path: Path,
) -> RunLab:
    controller = controller_process()
    sshd.authorize(controller.public_key)
    options = ("--networks", "docker", "--cpus", "2", "--memory", "4GiB")
    shim = shim_process("docker", *options, "--job-networks", "10.83.0.0/28:29")
    made = RunLab(controller, shim, dockerd, sshd, sshd.port, tmp_path, busybox_image)
    made.connect_node("n1", "--host-key", sshd.host_key)
    return made


def test_runs_beyond_the_nodes_networks_wait_with_a_reason_and_cordon_nothing(lab: RunLab) -> None:
    for name in ("one", "two"):
        lab.start(name, commands=[UNTIL_ASKED], resources=SMALL)
    waiting = [f"waits-{number}" for number in range(RUNS)]
    for name in waiting:
        lab.submit(name, commands=["echo hello"], resources=SMALL)

    def why() -> str:
        return " ".join(lab.cli("explain", waiting[0]).succeeded().output.split())

    wait_until(
        lambda: "needs a network for its run; best node n1 has 0 free of 2" in why(),
        what="the run to say what it waits for",
    )
    lab.let_go("one", "two")
    for name in ("one", "two", *waiting):
        assert lab.wait_for(name)["status"] == "done"
        assert [one["termination_reason"] for one in lab.attempts(name)] == ["done_by_runner"]
    assert lab.node()["cordoned"] is False
