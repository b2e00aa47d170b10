"""The jobs of a gang log in to each other's containers with the key of their run, in an image that
has an ssh client and no sshd; so does a real mpirun."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.gangs.lab import WAITING, GangLab
from tests.support import images

pytestmark = pytest.mark.e2e

IMAGE = "openmpi:e2e"


@pytest.fixture(scope="module")
def pair(whole_gang_lab: GangLab, testbed_folder: Path) -> Iterator[tuple[GangLab, list[Any]]]:
    """A gang of two machines."""
    folder = testbed_folder / "openmpi"
    folder.mkdir()
    archive = images.openmpi_archive(folder)
    with whole_gang_lab.only(2) as machines:
        for machine in machines:
            machine.dockerd.docker("import", archive, IMAGE)
        whole_gang_lab.submit("pair", image=IMAGE, nodes=2, commands=[WAITING])
        yield whole_gang_lab, whole_gang_lab.wait_for_incarnation("pair", 1, range(2))
        whole_gang_lab.cli("stop", "pair", "--abort").succeeded()
        whole_gang_lab.wait_for("pair")


def test_each_job_logs_in_to_the_other_without_options(
    pair: tuple[GangLab, list[Any]],
) -> None:
    lab, attempts = pair
    for here, there in (attempts, attempts[::-1]):
        assert lab.environment(there)["FAIRLEAD_ATTEMPT_ID"] == there["id"]
        address = lab.machine(there["node"]).address
        assert lab.inside(here, "ssh", address, "grep ATTEMPT_ID /tmp/env") == (
            f"FAIRLEAD_ATTEMPT_ID={there['id']}"
        )


def test_a_visitor_without_the_runs_key_is_refused(pair: tuple[GangLab, list[Any]]) -> None:
    lab, (here, there) = pair
    address = lab.machine(there["node"]).address
    options = "-F none -o BatchMode=yes -o StrictHostKeyChecking=no -p 10022"
    said = lab.inside(here, "sh", "-c", f"ssh {options} {address} id 2>&1 || true")
    assert "Permission denied (publickey)" in said


def test_mpirun_starts_ranks_on_all_nodes_that_add_up_over_the_network(
    pair: tuple[GangLab, list[Any]],
) -> None:
    lab, attempts = pair
    told = lab.environment(attempts[0])
    hosts = told["FAIRLEAD_MPI_HOSTFILE"]
    network = told["FAIRLEAD_MASTER_NODE_IP"].rpartition(".")[0] + ".0/24"
    only = f"--mca btl_tcp_if_include {network} --mca oob_tcp_if_include {network}"
    mpirun = f"mpirun --allow-run-as-root {only} --hostfile {hosts} -np 2 /allreduce"
    lines = lab.inside(attempts[0], "sh", "-c", mpirun).splitlines()
    # Open MPI may warn that its child has already started ssh: setpgid(2) fails with EACCES then.
    ranks = [line for line in lines if "plm:rsh: Warning: setpgid(" not in line]
    assert sorted(ranks) == ["rank 0 of 2: sum 3", "rank 1 of 2: sum 3"]
