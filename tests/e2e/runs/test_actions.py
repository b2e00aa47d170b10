"""Users act on live runs and jobs, with a real controller, real shims and real runners.

The shims have the process engine: what containers add is tested elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fairlead.rest import ControllerClient, run_path
from tests.support.lab import ControllerLab
from tests.support.processes import CommandResult, ControllerProcess, ShimProcess, run_cli
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

_CONFIG = "limits: {waits: [0s], no_capacity_wait: 0s, jitter: 0}\n"
_SMALL = {"cpu": 0.1, "memory": "64MiB"}


@dataclass
class ActionLab(ControllerLab):
    """Two nodes, n1 and n2, of two CPUs each. A job that is `patient` says in a file that it has
    begun, and ends with the status that `end` gives it."""

    controller: ControllerProcess
    shims: list[ShimProcess]
    folder: Path
    image: str = ""

    def patient(self, before: str = "true") -> list[str]:
        place = f"{self.folder}/$FAIRLEAD_ATTEMPT_ID"
        wait = f"while [ ! -e {place}.end ]; do sleep 0.02; done"
        return [f"{before}; touch {place}.begun; {wait}; exit $(cat {place}.end)"]

    def small(self, name: str, *options: str, **fields: Any) -> None:
        """A patient run with little need."""
        self.submit(name, *options, **{"commands": self.patient(), "resources": _SMALL, **fields})

    def job(self, name: str, index: int = 0) -> Any:
        return self.inspect(name)["jobs"][index]

    def begun(self, name: str, index: int = 0, attempts: int = 1) -> str:
        """The id of the job's attempt of this number, once its commands run."""

        def reached() -> str | None:
            made = self.job(name, index)["attempts"] if len(self._jobs(name)) > index else []
            if len(made) < attempts or made[attempts - 1]["status"] != "running":
                return None
            attempt: str = made[attempts - 1]["id"]
            return attempt if (self.folder / f"{attempt}.begun").exists() else None

        return wait_until(reached, what=f"attempt {attempts} of {name}/{index}") or ""

    def end(self, attempt: str, status: int = 0) -> None:
        written = self.folder / f"{attempt}.writing"
        written.write_text(str(status))
        written.rename(self.folder / f"{attempt}.end")

    def user(self, name: str, *options: str) -> dict[str, str]:
        """The environment of a new user's commands."""
        token = self.cli("user", "add", name, *options).succeeded().output.strip()
        return {"FAIRLEAD_URL": self.controller.url, "FAIRLEAD_TOKEN": token}

    def suspend(self, name: str) -> None:
        """At once, without the time that a command takes to start."""
        client = ControllerClient(self.controller.url, self.controller.token)
        client.post(run_path(name, "suspend"), {})

    def submit_as(self, env: dict[str, str], name: str, **fields: Any) -> CommandResult:
        file = self.write(**{"commands": self.patient(), **fields})
        return run_cli("apply", "-f", file, "-n", name, "-d", env=env)

    def _jobs(self, name: str) -> Any:
        return self.inspect(name)["jobs"]


@pytest.fixture(scope="module")
def nodes(testbed_folder: Path, numbers: Iterator[int]) -> Iterator[ActionLab]:
    folder = testbed_folder / f"actions{next(numbers)}"
    folder.mkdir()
    config = folder / "controller.yaml"
    config.write_text(_CONFIG)
    controller = ControllerProcess(folder / "controller", "--config", config, outlasts_tests=True)
    capacity = ("--cpus", "2", "--memory", "1GiB")
    shims = [
        ShimProcess(folder / name, "process", *capacity, outlasts_tests=True)
        for name in ("n1", "n2")
    ]
    controller.start()
    lab = ActionLab(controller, shims, folder)
    for name, shim in zip(("n1", "n2"), shims, strict=True):
        shim.start()
        lab.cli("node", "add", name, "--local", shim.socket).succeeded()
        lab.wait_for_node(lambda node: node["status"] == "connected", name)
    yield lab
    controller.close()
    for shim in shims:
        shim.close()
    for daemon in (controller.daemon, *(shim.daemon for shim in shims)):
        assert "Traceback" not in daemon.log.read_text(errors="replace"), daemon.tail()


@pytest.fixture(scope="module")
def scheduled(nodes: ActionLab) -> str:
    """A run of each full minute, submitted before the other tests so that none waits long. Its
    band evicts no other test's job."""
    task = {"commands": ["echo tick"], "resources": _SMALL, "schedule": "* * * * *"}
    nodes.submit("minutely", band="batch", **task)
    return "minutely"


@pytest.fixture
def lab(nodes: ActionLab, scheduled: str) -> Iterator[ActionLab]:
    """Runs that a test has left are aborted after it."""
    yield nodes
    for run in nodes.get("/v1/runs")["runs"]:
        if run["name"] != scheduled:
            nodes.cli("stop", run["id"], "--abort").succeeded()
            nodes.wait_for(run["id"])


def reasons(job: Any) -> list[str | None]:
    return [attempt["termination_reason"] for attempt in job["attempts"]]


def test_an_interrupted_job_comes_back_if_it_says_so_and_is_done_if_it_says_that(
    lab: ActionLab,
) -> None:
    answer = lab.folder / "answer"
    answer.write_text("42")
    commands = lab.patient(before=f"trap 'exit $(cat {answer})' TERM")
    lab.small("asked", commands=commands, restart_exit_code=42)
    lab.begun("asked")
    lab.cli("job", "interrupt", "asked", "main/0").succeeded()
    lab.begun("asked", attempts=2)
    answer.write_text("0")
    lab.cli("job", "interrupt", "asked", "main/0").succeeded()
    run = lab.wait_for("asked")
    assert run["status"] == "done"
    assert reasons(run["jobs"][0]) == ["interrupted", "done_by_runner"]
    assert [attempt["exit_code"] for attempt in run["jobs"][0]["attempts"]] == [42, 0]


def test_a_job_that_answers_an_interruption_with_a_failure_has_failed(lab: ActionLab) -> None:
    lab.small("rude", commands=lab.patient(before="trap 'exit 3' TERM"), restart_exit_code=42)
    lab.begun("rude")
    lab.cli("job", "interrupt", "rude", "main/0").succeeded()
    run = lab.wait_for("rude")
    assert (run["status"], run["termination_reason"]) == ("failed", "job_failed")
    assert reasons(run["jobs"][0]) == ["container_exited_with_error"]


def test_a_suspended_run_keeps_its_jobs_and_gets_no_others(lab: ActionLab) -> None:
    lab.small("calm", retry={"on_events": ["error"], "max_failures": 1})
    first = lab.begun("calm")
    lab.cli("suspend", "calm").succeeded()
    assert lab.inspect("calm")["status"] == "running"
    lab.end(first, 1)
    run = lab.wait_for("calm", "pending")
    assert run["suspended"] is True
    assert reasons(run["jobs"][0]) == ["container_exited_with_error"]
    lab.cli("resume", "calm").succeeded()
    lab.end(lab.begun("calm", attempts=2))
    assert lab.wait_for("calm")["status"] == "done"


def test_neither_controller_nor_runner_ends_a_suspended_run_at_its_max_duration(
    lab: ActionLab,
) -> None:
    """Another job is the clock. The time is over when the run is resumed, and ends the job then; it
    is so long that the run can be suspended within it."""
    lab.small("slow", max_duration=15, stop_duration=1)
    first = lab.begun("slow")
    lab.suspend("slow")
    lab.small("clock", commands=lab.patient(before="sleep 16"))
    lab.begun("clock")
    assert lab.inspect("slow")["status"] == "running"
    lab.cli("resume", "slow").succeeded()
    assert lab.wait_for("slow")["status"] == "failed"
    assert reasons(lab.job("slow")) == ["max_duration_exceeded"]
    assert lab.job("slow")["attempts"][0]["message"].startswith("the run was running for its")
    assert lab.job("slow")["attempts"][0]["id"] == first
    lab.end(lab.begun("clock"))


def test_jobs_that_a_suspension_ends_come_back_uncharged(lab: ActionLab) -> None:
    lab.small("paused")
    lab.begun("paused")
    lab.cli("suspend", "paused", "--abort-running").succeeded()
    lab.wait_for("paused", "pending")
    lab.cli("resume", "paused").succeeded()
    lab.end(lab.begun("paused", attempts=2))
    run = lab.wait_for("paused")
    assert run["status"] == "done"
    assert reasons(run["jobs"][0]) == ["suspended", "done_by_runner"]


def test_a_group_is_scaled_up_and_down_while_it_runs(lab: ActionLab) -> None:
    lab.small("wide", nodes=1, gang=False, share_nodes=True)
    first = lab.begun("wide")
    lab.cli("scale", "wide", "--nodes", "3").succeeded()
    lab.begun("wide", index=1)
    lab.begun("wide", index=2)
    lab.cli("scale", "wide", "--nodes", "1").succeeded()
    lab.end(first)
    run = lab.wait_for("wide")
    assert run["status"] == "done"
    assert [reasons(job) for job in run["jobs"]] == [
        ["done_by_runner"],
        ["scaled_down"],
        ["scaled_down"],
    ]


def test_a_gang_is_not_scaled(lab: ActionLab) -> None:
    lab.small("gang", nodes=2, share_nodes=True)
    lab.begun("gang")
    refused = lab.cli("scale", "gang", "--nodes", "1")
    assert refused.status == 1
    assert "is a gang" in refused.errors
    assert len(lab.inspect("gang")["jobs"]) == 2


def test_an_aborted_job_comes_back_and_an_abandoned_one_does_not(lab: ActionLab) -> None:
    lab.small("pair", nodes=2, gang=False, share_nodes=True)
    lab.begun("pair", index=0)
    lab.begun("pair", index=1)
    lab.cli("job", "abort", "pair", "main/0").succeeded()
    lab.cli("job", "abandon", "pair", "main/1").succeeded()
    lab.end(lab.begun("pair", index=0, attempts=2))
    run = lab.wait_for("pair")
    assert run["status"] == "done"
    assert reasons(run["jobs"][0]) == ["job_aborted_by_user", "done_by_runner"]
    assert reasons(run["jobs"][1]) == ["abandoned"]
    assert run["jobs"][1]["abandoned"] is True


def test_a_completed_run_is_done(lab: ActionLab) -> None:
    lab.small("enough")
    lab.begun("enough")
    lab.cli("complete", "enough").succeeded()
    run = lab.wait_for("enough")
    assert (run["status"], run["termination_reason"]) == ("done", "completed_by_user")


def test_children_end_with_a_parent_that_is_stopped_unless_they_are_kept(lab: ActionLab) -> None:
    lab.small("parent")
    lab.small("child", "--parent", "parent")
    lab.small("kept", "--parent", "parent", on_parent_end="keep")
    lab.begun("child")
    kept = lab.begun("kept")
    lab.cli("stop", "parent").succeeded()
    child = lab.wait_for("child")
    assert (child["status"], child["termination_reason"]) == ("terminated", "stopped_by_user")
    assert "parent" in child["message"]
    assert lab.inspect("kept")["status"] == "running"
    lab.end(kept)
    assert lab.wait_for("kept")["status"] == "done"


def test_a_parent_that_is_done_leaves_its_children_alone(lab: ActionLab) -> None:
    lab.small("proud")
    lab.small("heir", "--parent", "proud")
    heir = lab.begun("heir")
    lab.end(lab.begun("proud"))
    assert lab.wait_for("proud")["status"] == "done"
    lab.end(heir)
    assert lab.wait_for("heir")["status"] == "done"


def test_a_name_is_kept_or_taken_over(lab: ActionLab) -> None:
    lab.small("same")
    lab.begun("same")
    first = lab.inspect("same")["id"]
    task = {"commands": lab.patient(), "resources": _SMALL}
    assert "--if-exists" in lab.apply("same", "-d", **task).errors
    lab.apply("same", "-d", "--if-exists", "keep", **task).succeeded()
    assert lab.inspect("same")["id"] == first
    lab.apply("same", "-d", "--if-exists", "replace", **task).succeeded()
    assert lab.inspect(first)["termination_reason"] == "stopped_by_user"
    second = lab.inspect("same")["id"]
    assert second != first
    lab.end(lab.begun("same"))
    assert lab.wait_for(second)["status"] == "done"


def test_a_higher_band_takes_the_place_of_a_lower_one_which_comes_back(lab: ActionLab) -> None:
    ann, bob = lab.user("ann"), lab.user("bob", "--band", "production")
    whole = {"resources": {"cpu": 2, "memory": "64MiB"}}
    for name in ("low-1", "low-2"):
        lab.submit_as(ann, name, band="batch", **whole).succeeded()
        lab.begun(name)
    refused = lab.submit_as(ann, "high", band="production", **whole)
    assert refused.status == 1
    assert "band" in refused.errors
    lab.submit_as(bob, "high", band="production", **whole).succeeded()
    high = lab.begun("high")
    preempted = [name for name in ("low-1", "low-2") if reasons(lab.job(name))[0] == "preempted"]
    assert len(preempted) == 1
    lab.end(high)
    lab.end(lab.begun(preempted[0], attempts=2))
    run = lab.wait_for(preempted[0])
    assert run["status"] == "done"
    assert reasons(run["jobs"][0]) == ["preempted", "done_by_runner"]


def test_a_scheduled_run_has_an_occurrence_each_minute_and_ends_when_it_is_stopped(
    lab: ActionLab, scheduled: str
) -> None:
    occurrences = wait_until(lambda: lab.inspect(scheduled)["occurrences"], 180, "an occurrence")
    assert occurrences[0]["status"] == "done"
    assert lab.inspect(scheduled)["next_triggered_at"].endswith(":00.000Z")
    lab.cli("stop", scheduled).succeeded()
    assert lab.wait_for(scheduled)["status"] == "terminated"
