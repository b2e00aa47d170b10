"""Admins act on nodes that have jobs; a node acts by itself when it hears of no controller."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.lab import UNTIL_ASKED, RunLab
from tests.support.proxy import CuttableProxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


def _first_reason(lab: RunLab, name: str) -> Any:
    def reason() -> Any:
        return lab.attempts(name)[0]["termination_reason"]

    return wait_until(reason, what=f"an end of the first attempt of {name}")


def _runs_again(lab: RunLab, name: str) -> None:
    def again() -> bool:
        attempts = lab.attempts(name)
        return len(attempts) == 2 and attempts[1]["status"] == "running"

    wait_until(again, what=f"{name} to run again")


def _containers(lab: RunLab) -> str:
    return lab.dockerd.docker("ps", "-q", "--no-trunc")


def test_a_job_that_runs_at_a_drains_deadline_is_moved_and_charged_nothing(lab: RunLab) -> None:
    lab.start("moved", commands=[UNTIL_ASKED], retry={"max_preemptions": 0})
    lab.cli("node", "drain", "n1", "--deadline", "1s", "--reason", "new fans").succeeded()
    try:
        assert _first_reason(lab, "moved") == "node_drained"
        assert "new fans" in lab.attempts("moved")[0]["message"]
    finally:
        lab.cli("node", "resume", "n1").succeeded()
    _runs_again(lab, "moved")
    lab.let_go("moved")
    assert lab.wait_for("moved")["status"] == "done"


def test_a_drains_deadline_outlives_the_controller(lab: RunLab) -> None:
    lab.start("patient", commands=[UNTIL_ASKED])
    lab.cli("node", "drain", "n1", "--deadline", "3s").succeeded()
    try:
        lab.controller.restart()
        assert _first_reason(lab, "patient") == "node_drained"
    finally:
        lab.cli("node", "resume", "n1").succeeded()
    lab.cli("stop", "--abort", "patient").succeeded()
    lab.wait_for("patient")


def test_a_cordoned_node_gets_nothing_new_and_what_runs_goes_on(lab: RunLab) -> None:
    lab.start("there", commands=[UNTIL_ASKED])
    lab.cli("node", "cordon", "n1", "--reason", "noisy").succeeded()
    try:
        lab.submit("later", commands=["echo later"])

        def waits() -> Any:
            return lab.inspect("later")["jobs"][0]["pending_reason"]

        assert "cordoned" in wait_until(waits, what="a reason why it waits")
        assert "cordoned: noisy" in lab.cli("node", "list").succeeded().output
        lab.let_go("there")
        assert lab.wait_for("there")["status"] == "done"
        assert lab.inspect("later")["status"] == "submitted"
    finally:
        lab.cli("node", "uncordon", "n1").succeeded()
    assert lab.wait_for("later")["status"] == "done"


def test_a_lost_node_is_removed_and_its_jobs_go_elsewhere(
    lab_behind_proxy: tuple[RunLab, CuttableProxy],
) -> None:
    lab, network = lab_behind_proxy
    lab.start("moved", commands=[UNTIL_ASKED])
    container = lab.container("moved")
    assert "is connected" in lab.cli("node", "remove", "n1", "--lost").errors
    network.cut()
    lab.wait_for_node(lambda node: node["status"] != "connected")
    refused = lab.cli("node", "remove", "n1")
    assert refused.status == 1
    assert "--lost" in refused.errors
    lab.cli("node", "remove", "n1", "--lost").succeeded()
    assert _first_reason(lab, "moved") == "instance_unreachable"
    network.restore()
    lab.add_node("n2", "--host-key", lab.sshd.host_key).succeeded()
    _runs_again(lab, "moved")
    wait_until(lambda: container not in _containers(lab), what="the stale container to be gone")
    lab.let_go("moved")
    assert lab.wait_for("moved")["status"] == "done"


def test_a_job_that_asked_for_it_ends_when_its_node_hears_of_no_controller_and_only_then(
    lab: RunLab, lab_behind_proxy: tuple[RunLab, CuttableProxy]
) -> None:
    """One wait, longer than the shortest that can be asked for, proves both."""
    lab.start("heard", commands=["sleep 35; echo heard"], on_disconnect={"stop_after": "30s"})
    _ends_unheard(*lab_behind_proxy)
    assert lab.wait_for("heard")["status"] == "done"
    assert lab.log("heard") == b"heard\n"


def _ends_unheard(lab: RunLab, network: CuttableProxy) -> None:
    lab.start("alone", commands=[UNTIL_ASKED], on_disconnect={"stop_after": "30s"})
    lab.start("other", commands=[UNTIL_ASKED])
    alone, other = lab.container("alone"), lab.container("other")
    network.stall()
    wait_until(lambda: alone not in _containers(lab), 180, "the job to be stopped")
    assert other in _containers(lab)
    network.restore()
    assert _first_reason(lab, "alone") == "instance_unreachable"
    assert "had no contact to a controller for 30 s" in lab.attempts("alone")[0]["message"]
    assert len(lab.attempts("other")) == 1
    for name in ("alone", "other"):
        lab.cli("stop", "--abort", name).succeeded()
        lab.wait_for(name)
