"""The node's network, seen from inside: by default a job that holds the whole node shares it, but
without raw sockets, with which it would read the node's own traffic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.docker_daemon import DockerDaemon
from tests.support.lab import UNTIL_ASKED, RunLab
from tests.support.ssh_daemon import SshDaemon
from tests.support.testbed import ControllerFactory, ShimFactory

pytestmark = pytest.mark.e2e

SNIFF = "arping -c 1 -w 1 -I lo 127.0.0.1 2>&1 || true"
"""Opens a packet socket on the node's loopback, and then has no use for it."""

LabFactory = Callable[..., RunLab]


@pytest.fixture
def lab_of(
    shim_process: ShimFactory,
    controller_process: ControllerFactory,
    dockerd: DockerDaemon,
    sshd: SshDaemon,
    busybox_image: str,
    tmp_path: Path,
) -> LabFactory:
    """Call it with options of the shim."""

    def make(*options: str) -> RunLab:
        controller = controller_process()
        sshd.authorize(controller.public_key)
        shim = shim_process("docker", "--cpus", "2", "--memory", "4GiB", *options)
        made = RunLab(controller, shim, dockerd, sshd, sshd.port, tmp_path, busybox_image)
        made.connect_node("n1", "--host-key", sshd.host_key)
        return made

    return make


def network_of(lab: RunLab, name: str) -> str:
    return lab.dockerd.docker("inspect", "-f", "{{.HostConfig.NetworkMode}}", lab.container(name))


def test_a_job_that_holds_its_node_has_its_network_and_cannot_read_others_traffic(
    lab_of: LabFactory,
) -> None:
    lab = lab_of()
    lab.start("whole", commands=[SNIFF, "echo done", UNTIL_ASKED], share_nodes=False)
    assert network_of(lab, "whole") == "host"
    lab.wait_for_log("whole", b"done")
    assert b"Operation not permitted" in lab.log("whole")
    lab.let_go("whole")
    assert lab.wait_for("whole")["status"] == "done"
    asked = lab.apply("asks", commands=["true"], share_nodes=False, cap_add=["NET_RAW"])
    assert asked.status == 1
    assert "--allow-raw-sockets" in asked.errors


def test_an_operator_may_allow_raw_sockets_there(lab_of: LabFactory) -> None:
    lab = lab_of("--allow-raw-sockets")
    result = lab.apply("whole", commands=[SNIFF], share_nodes=False).succeeded()
    assert result.output == "arping: interface lo is not ARPable\n"


def test_an_operator_may_keep_the_nodes_network_from_all_jobs(lab_of: LabFactory) -> None:
    lab = lab_of("--host-network", "never")
    lab.start("whole", commands=[UNTIL_ASKED], share_nodes=False)
    assert network_of(lab, "whole") != "host"
    lab.let_go("whole")
    assert lab.wait_for("whole")["status"] == "done"
    about = " ".join(lab.cli("node", "show", "n1").succeeded().output.split())
    assert "its network is given to no job (--host-network never)" in about


def test_jobs_that_need_each_others_nodes_are_refused_there_by_name(lab_of: LabFactory) -> None:
    lab = lab_of("--host-network", "never")
    refused = lab.apply("gang", commands=["true"], nodes=2)
    assert refused.status == 1
    assert "needs the node's network" in refused.errors
    assert "node n1 has a shim that gives its network to no job (--host-network never)" in (
        refused.errors
    )
    together = lab.apply("shared", commands=["echo hello"], nodes=2, share_nodes=True)
    assert together.succeeded().output.count("hello") == 2
