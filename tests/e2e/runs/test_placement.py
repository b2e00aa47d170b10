"""Jobs get nodes in their order, and a waiting job is told why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e.runs.test_contract import shown
from tests.support.lab import UNTIL_ASKED, RunLab
from tests.support.testbed import ShimFactory
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


def _why_it_waits(lab: RunLab, name: str) -> str:
    def reason() -> Any:
        return lab.inspect(name)["jobs"][0]["pending_reason"]

    return str(wait_until(reason, what=f"a reason why {name} waits"))


@contextmanager
def _drained(lab: RunLab) -> Iterator[None]:
    lab.cli("node", "drain", "n1", "--reason", "new fans").succeeded()
    try:
        yield
    finally:
        lab.cli("node", "resume", "n1").succeeded()


def test_two_jobs_run_at_once_and_keep_their_logs_apart(lab: RunLab) -> None:
    lab.start("left", commands=["echo left 1", UNTIL_ASKED, "echo left 2"])
    lab.start("right", commands=["echo right 1", UNTIL_ASKED, "echo right 2"])
    assert {lab.inspect(name)["status"] for name in ("left", "right")} == {"running"}
    assert lab.node()["cpu_allocated"] == 2
    lab.let_go("right", "left")
    assert {lab.wait_for(name)["status"] for name in ("left", "right")} == {"done"}
    assert lab.log("left") == b"left 1\nleft 2\n"
    assert lab.log("right") == b"right 1\nright 2\n"


def test_a_job_without_room_waits_and_says_for_what(lab: RunLab) -> None:
    lab.start("first", commands=[UNTIL_ASKED], resources={"cpu": 1.5, "memory": "3GiB"})
    lab.submit("second", commands=["echo my turn"], resources={"cpu": 0.5, "memory": "2GiB"})
    waits = _why_it_waits(lab, "second")
    assert "2 GiB memory" in waits
    assert "n1" in waits
    assert "1 GiB free of 4 GiB" in waits
    assert "CPU" not in waits
    run = shown(lab, "second")
    assert (run["status"], run["jobs"][0]["status"]) == ("submitted", "submitted")
    assert run["jobs"][0]["attempts"][0]["node"] is None
    assert waits in lab.cli("ps").succeeded().output.replace("\n", " ")
    lab.let_go("first")
    assert lab.wait_for("second")["status"] == "done"
    assert lab.log("second") == b"my turn\n"


def test_a_job_that_fits_goes_before_one_that_waits(lab: RunLab) -> None:
    lab.start("holder", commands=[UNTIL_ASKED], resources={"cpu": 1})
    lab.submit("large", commands=["true"], resources={"cpu": 2})
    assert "2 CPU" in _why_it_waits(lab, "large")
    assert lab.apply("small", commands=["echo small"], resources={"cpu": 1}).output == "small\n"
    assert lab.inspect("large")["status"] == "submitted"
    lab.cli("stop", "large").succeeded()
    assert lab.wait_for("large")["termination_reason"] == "stopped_by_user"
    lab.let_go("holder")
    lab.wait_for("holder", "done")


def test_a_job_that_no_node_could_hold_is_refused(lab: RunLab) -> None:
    result = lab.apply("giant", commands=["true"], resources={"memory": "5TB"})
    assert result.status != 0
    assert "memory" in result.errors
    assert "n1" in result.errors
    assert lab.cli("inspect", "giant").status != 0


def test_a_caller_that_does_not_wait_fails_at_once(lab: RunLab) -> None:
    with _drained(lab):
        result = lab.apply("now", commands=["true"], scheduling_timeout=0)
    assert result.status == 1
    assert lab.attempts("now")[0]["termination_reason"] == "unschedulable"


def test_a_drained_node_finishes_its_jobs_and_takes_no_more(lab: RunLab) -> None:
    lab.start("before", commands=[UNTIL_ASKED, "echo finished"])
    with _drained(lab):
        lab.submit("after", commands=["echo at last"])
        assert "drain" in _why_it_waits(lab, "after")
        assert "new fans" in lab.cli("node", "list").succeeded().output
        lab.let_go("before")
        assert lab.wait_for("before")["status"] == "done"
        assert lab.inspect("after")["status"] == "submitted"
    assert lab.wait_for("after")["status"] == "done"


def test_a_node_with_jobs_is_not_removed(lab: RunLab) -> None:
    lab.start("tenant", commands=[UNTIL_ASKED])
    refused = lab.cli("node", "remove", "n1")
    assert refused.status != 0
    assert "tenant" in refused.errors
    lab.let_go("tenant")
    lab.wait_for("tenant", "done")


def test_a_node_without_jobs_is_removed_and_can_come_back(lab: RunLab) -> None:
    lab.wait_for_node(lambda node: node["runs"] == [])
    lab.cli("node", "remove", "n1").succeeded()
    assert lab.get("/v1/nodes")["nodes"] == []
    lab.submit("early", commands=["echo patience"])
    assert _why_it_waits(lab, "early")
    lab.add_node("n1", "--accept-host-key", lab.sshd.fingerprint).succeeded()
    assert lab.wait_for("early")["status"] == "done"


def test_a_name_can_be_used_again_once_its_run_has_ended(lab: RunLab) -> None:
    lab.start("twice", commands=[UNTIL_ASKED])
    refused = lab.apply("twice", "-d", commands=["true"])
    assert refused.status != 0
    assert "twice" in refused.errors
    lab.let_go("twice")
    lab.wait_for("twice", "done")
    lab.apply("twice", commands=["echo second"]).succeeded()
    assert lab.log("twice") == b"second\n"


def test_a_job_that_asks_for_volumes_goes_to_no_node_without_them(
    lab: RunLab, shim_process: ShimFactory
) -> None:
    """The node of the process engine is the larger one, so it would be the best."""
    plain = shim_process("process", "--cpus", "8", "--memory", "8GiB")
    lab.cli("node", "add", "plain", "--local", plain.socket).succeeded()
    try:
        lab.wait_for_node(lambda node: node["status"] == "connected", "plain")
        fields = {"commands": ["echo kept > /data/f"], "volumes": ["e2e-kept:/data"]}
        for name in ("first", "second"):
            lab.apply(name, **fields).succeeded()
        lab.apply("without", commands=["true"], image=None).succeeded()
        nodes = [lab.attempts(name)[0]["node"] for name in ("first", "second", "without")]
        assert nodes == ["n1", "n1", "plain"]
        never = lab.apply("never", commands=["true"], constraints=["node EQ plain"])
        assert never.status != 0
        assert "image: no node could ever hold it: needs an engine with images;" in never.errors
    finally:
        lab.cli("node", "remove", "plain").succeeded()
