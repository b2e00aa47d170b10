"""`inspect --json` is read by scripts: its keys are always there, before whatever else is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.lab import RunLab

pytestmark = pytest.mark.e2e

RUN = """id name type user status termination_reason message incarnation occurrence
    next_triggered_at suspended parent_id deployment switches jobs"""
JOB = "id group replica cookie index rank status pending_reason attempts"
ATTEMPT = """id status termination_reason message exit_code node allocation_id incarnation gpus
    ports ssh_host_key ready registered_at submitted_at provisioned_at pulling_at running_at
    finished_at"""


def shown(lab: RunLab, name: str) -> Any:
    """The run, whose first keys are the contract's."""
    run = lab.cli("inspect", name, "--json").succeeded().json
    assert begins_with(run, RUN)
    for job in run["jobs"]:
        assert begins_with(job, JOB)
        for attempt in job["attempts"]:
            assert begins_with(attempt, ATTEMPT)
    return run


def begins_with(shown: dict[str, Any], keys: str) -> bool:
    wanted = keys.split()
    return list(shown)[: len(wanted)] == wanted


def test_a_finished_run_tells_its_moments_in_order(lab: RunLab) -> None:
    lab.apply("finished", commands=["true"]).succeeded()
    run = shown(lab, "finished")
    (job,) = run["jobs"]
    (attempt,) = job["attempts"]
    assert (run["status"], run["termination_reason"]) == ("done", "all_jobs_done")
    assert (attempt["status"], attempt["exit_code"], attempt["node"]) == ("done", 0, "n1")
    moments = ("submitted", "provisioned", "pulling", "running", "finished")
    times = [attempt[f"{moment}_at"] for moment in moments]
    assert times == sorted(times)
    assert all(time.endswith(("Z", "+00:00")) for time in times)


def test_a_failed_run_has_its_exit_code_in_its_attempt(lab: RunLab) -> None:
    lab.apply("broken", commands=["exit 9"])
    run = shown(lab, "broken")
    assert (run["status"], run["jobs"][0]["status"]) == ("failed", "failed")
    assert run["jobs"][0]["attempts"][0]["exit_code"] == 9


def test_a_run_that_never_had_a_container_has_no_exit_code(lab: RunLab) -> None:
    lab.apply("unpulled", image="127.0.0.1:1/nothing:1", commands=["true"])
    attempt = shown(lab, "unpulled")["jobs"][0]["attempts"][0]
    assert (attempt["running_at"], attempt["exit_code"]) == (None, None)


def test_tiny_jobs_of_a_sweep_share_a_container_that_none_has_left_dirty(
    lab: RunLab, tmp_path: Path
) -> None:
    layer = "grep -o 'upperdir=[^,]*' /proc/self/mountinfo | head -n 1"
    commands = [
        "test ! -e /tmp/left",
        f'echo "$FAIRLEAD_PARAM_N $({layer})"',
        'echo "$FAIRLEAD_PARAM_N" > "$FAIRLEAD_OUTPUT_DIR/n"',
        'test "$FAIRLEAD_PARAM_N" != 2 || touch /tmp/left',
        'test "$FAIRLEAD_PARAM_N" != 4',
    ]
    sweep = {"matrix": {"n": "0..7"}, "max_parallel": 1, "reuse_container": True}
    lab.apply("tiny", commands=commands, sweep=sweep)
    jobs = shown(lab, "tiny")["jobs"]
    codes = {job["replica"]: job["attempts"][-1]["exit_code"] for job in jobs}
    assert codes == {number: int(number == 4) for number in range(8)}
    lines = lab.cli("logs", "tiny").succeeded().output.splitlines()
    told = dict(line.split(" | ")[1].split(" ") for line in lines)
    assert sorted(told) == [str(number) for number in range(8)]
    assert len(set(told.values())) < 8
    assert told["3"] != told["2"]
    lab.cli("outputs", "tiny", "--pull", tmp_path).succeeded()
    left = {number: tmp_path / f"main-{number}" for number in range(8)}
    assert all((folder / "n").read_text() == f"{number}\n" for number, folder in left.items())
    sets = [msgspec.json.decode((folder / "params.json").read_bytes()) for folder in left.values()]
    assert sets == [{"n": number} for number in range(8)]
