"""A job may be root in its container and mean harm: it ends itself, and nothing else."""

from __future__ import annotations

import pytest

from tests.support.lab import RunLab

pytestmark = pytest.mark.e2e

OURS = "/opt/fairlead"
OUR_FILES = f"$(find {OURS}/task -type f)"


def _is_unharmed(lab: RunLab) -> None:
    lab.wait_for_node(lambda node: node["status"] == "connected" and node["cpu_allocated"] == 0)
    assert lab.apply("afterwards", commands=["echo fine"]).succeeded().output == "fine\n"


def test_a_job_that_takes_more_memory_than_it_asked_for_is_told_so(lab: RunLab) -> None:
    commands = ["echo eating", "tail /dev/zero"]
    result = lab.apply("hungry", commands=commands, resources={"memory": "64MB"})
    assert result.status == 137
    assert "memory" in result.errors
    assert lab.attempts("hungry")[0]["termination_reason"] == "out_of_memory"


def test_processes_that_a_job_leaves_running_end_with_it(lab: RunLab) -> None:
    commands = ["sleep 1000 & (setsid sleep 1000 &)", "echo started"]
    lab.apply("litter", commands=commands).succeeded()
    assert lab.log("litter") == b"started\n"
    assert lab.container("litter") == ""


@pytest.mark.parametrize(
    "harm",
    [
        f"rm -rf {OURS}/task/* {OURS}/run/*",
        f"for f in {OUR_FILES}; do echo junk > $f; done",
        f"for f in {OUR_FILES}; do rm $f; ln -s /etc/passwd $f; done",
        "kill -9 1; kill -TERM 1",
    ],
    ids=["removed files", "junk in files", "links out", "killed runner"],
)
def test_harm_done_to_the_runner_harms_nobody_else(lab: RunLab, harm: str) -> None:
    lab.submit("harmful", commands=[harm, "exit 5"])
    run = lab.wait_for("harmful")
    assert (run["status"], run["termination_reason"]) == ("failed", "job_failed")
    assert len(run["jobs"][0]["attempts"]) == 1
    assert b"root:x" not in lab.log("harmful")
    _is_unharmed(lab)


@pytest.mark.parametrize(
    "forged",
    [
        '{"reason":"done_by_runner","finished_at":1,"log_end":0,"exit_code":%s}' % ("9" * 40),
        '{"reason":"executor_error","finished_at":1,"log_end":0,"message":"\\u0000"}',
        '{"x":' + "[" * 20_000,
    ],
    ids=["a number beyond all bounds", "a character that no database keeps", "a deep nest"],
)
def test_a_forged_exit_record_harms_nobody_else(lab: RunLab, forged: str) -> None:
    """The job writes the record, and its runner has no time left to write its own. A kill of
    the container interrupts the job, which is not tried again here."""
    write = f"printf %s '{forged}' > {OURS}/task/exit.json"
    lab.submit("forged", commands=[write, "echo ready", "sleep 1000"], retry=False)
    lab.wait_for_log("forged", b"ready")
    lab.dockerd.docker("kill", lab.container("forged"))
    run = lab.wait_for("forged")
    assert run["status"] == "failed"
    _is_unharmed(lab)
