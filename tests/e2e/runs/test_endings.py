"""How runs end: by themselves, by a limit, by their user; and what everybody is told about it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fairlead.wire.frames import Stream
from tests.support.docker_daemon import DockerDaemon
from tests.support.lab import RunLab
from tests.support.ssh_daemon import SshDaemon
from tests.support.testbed import ControllerFactory, ShimFactory
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

FOREVER = "while :; do sleep 0.05; done"


def test_a_job_that_succeeds_ends_with_0(lab: RunLab) -> None:
    result = lab.apply("hello", commands=["echo hello"]).succeeded()
    assert result.output == "hello\n"
    assert "hello: done" in result.errors
    assert lab.inspect("hello")["status"] == "done"


def test_an_exit_code_is_the_same_everywhere(lab: RunLab) -> None:
    result = lab.apply("seven", commands=["echo oops >&2", "exit 7", "echo never"])
    assert result.status == 7
    assert "oops" in result.errors
    assert result.output == ""
    run = lab.cli("inspect", "seven", "--json").succeeded().json
    assert (run["status"], run["termination_reason"]) == ("failed", "job_failed")
    (attempt,) = run["jobs"][0]["attempts"]
    assert attempt["exit_code"] == 7
    assert attempt["termination_reason"] == "container_exited_with_error"
    assert "7" in attempt["message"]
    summary = next(r for r in lab.get("/v1/runs", all=True)["runs"] if r["name"] == "seven")
    assert summary["exit_code"] == 7


def test_a_job_killed_by_a_signal_ends_with_128_and_its_number(lab: RunLab) -> None:
    result = lab.apply("killed", commands=["kill -SEGV $$"])
    assert result.status == 139
    assert "SIGSEGV" in result.errors


def test_an_image_without_a_tag_is_named_when_it_is_not_there(lab: RunLab) -> None:
    result = lab.apply("untagged", image="127.0.0.1:1/nothing", commands=["true"])
    assert result.status == 1
    assert "127.0.0.1:1/nothing" in result.errors
    assert "Traceback" not in result.errors
    (attempt,) = lab.attempts("untagged")
    assert attempt["termination_reason"] == "image_pull_failed"
    assert attempt["exit_code"] is None
    assert attempt["running_at"] is None


def test_an_image_that_may_not_be_pulled_is_missing(lab: RunLab) -> None:
    result = lab.apply("never", image="not/here:1", pull_policy="never", commands=["true"])
    assert result.status == 1
    assert "not/here:1" in result.errors
    assert lab.attempts("never")[0]["termination_reason"] == "image_pull_failed"


def test_a_program_that_is_not_in_the_image_is_named(lab: RunLab) -> None:
    result = lab.apply("missing", entrypoint=["/no/such/program"])
    assert result.status == 1
    assert "/no/such/program" in result.errors
    assert lab.attempts("missing")[0]["termination_reason"] == "executor_error"


def test_a_job_that_its_node_cannot_begin_is_not_blamed_and_runs_once_the_node_is_repaired(
    shim_process: ShimFactory,
    controller_process: ControllerFactory,
    dockerd: DockerDaemon,
    sshd: SshDaemon,
    busybox_image: str,
    runtime: Path,
    tmp_path: Path,
) -> None:
    controller = controller_process()
    sshd.authorize(controller.public_key)
    current = tmp_path / "current"
    current.symlink_to(runtime)
    shim = shim_process("docker", "--cpus", "2", "--memory", "4GiB", "--runtime", current)
    current.unlink()
    current.symlink_to(tmp_path / "nothing")
    made = RunLab(controller, shim, dockerd, sshd, sshd.port, tmp_path, busybox_image)
    made.connect_node("n1", "--host-key", sshd.host_key)
    made.submit("early", commands=["echo at last"], retry=False)
    wait_until(lambda: len(made.attempts("early")) > 1, what="a second attempt")
    first = made.attempts("early")[0]
    assert first["termination_reason"] == "instance_unreachable"
    assert f"bind source path does not exist: {tmp_path}/nothing" in first["message"]
    current.unlink()
    current.symlink_to(runtime)
    assert made.wait_for("early")["status"] == "done"
    assert made.log("early") == b"at last\n"


def test_a_stopped_job_may_clean_up(lab: RunLab) -> None:
    cleanup = "trap 'echo cleaned; exit 0' TERM"
    lab.start("polite", commands=[f"{cleanup}; echo ready; {FOREVER}"])
    lab.wait_for_log("polite", b"ready")
    said = lab.cli("stop", "polite").succeeded().output
    assert "polite: terminating" in said
    run = lab.wait_for("polite")
    assert (run["status"], run["termination_reason"]) == ("terminated", "stopped_by_user")
    (attempt,) = run["jobs"][0]["attempts"]
    assert attempt["termination_reason"] == "terminated_by_user"
    written = (f.payload for f in lab.frames("polite") if f.stream is Stream.STDOUT)
    assert b"".join(written) == b"ready\ncleaned\n"


def test_a_job_that_ignores_sigterm_is_killed_after_stop_duration(lab: RunLab) -> None:
    commands = [f"trap '' TERM; echo ready; {FOREVER}"]
    lab.start("deaf", commands=commands, stop_duration=4)
    lab.wait_for_log("deaf", b"ready")
    before = time.monotonic()
    lab.cli("stop", "deaf").succeeded()
    assert lab.wait_for("deaf")["status"] == "terminated"
    assert time.monotonic() - before > 3.5
    assert lab.log("deaf") == b"ready\n"


def test_an_abort_cuts_the_grace_of_a_stop_short(lab: RunLab) -> None:
    lab.start("deaf-too", commands=[f"trap '' TERM; echo ready; {FOREVER}"])
    lab.wait_for_log("deaf-too", b"ready")
    lab.cli("stop", "deaf-too").succeeded()
    lab.cli("stop", "deaf-too", "--abort").succeeded()
    assert lab.wait_for("deaf-too")["status"] == "terminated"
    assert lab.container("deaf-too") == ""


def test_an_aborted_run_says_so(lab: RunLab) -> None:
    lab.start("aborted", commands=[f"trap '' TERM; {FOREVER}"])
    lab.cli("stop", "aborted", "--abort").succeeded()
    run = lab.wait_for("aborted")
    assert (run["status"], run["termination_reason"]) == ("terminated", "aborted_by_user")
    (attempt,) = run["jobs"][0]["attempts"]
    assert (attempt["status"], attempt["termination_reason"]) == ("aborted", "aborted_by_user")


def test_stopping_what_has_ended_changes_nothing(lab: RunLab) -> None:
    lab.apply("over", commands=["true"]).succeeded()
    before = lab.inspect("over")
    lab.cli("stop", "over").succeeded()
    assert lab.inspect("over") == before


def test_max_duration_ends_the_job(lab: RunLab) -> None:
    result = lab.apply("long", commands=[FOREVER], max_duration=2, stop_duration=1)
    assert result.status != 0
    (attempt,) = lab.attempts("long")
    assert attempt["termination_reason"] == "max_duration_exceeded"
    assert attempt["status"] == "terminated"
    assert "max_duration" in result.errors or "allowed" in result.errors


def test_at_max_duration_a_job_is_asked_once_and_may_save_for_its_whole_stop_duration(
    lab: RunLab,
) -> None:
    saving = "trap 'echo asked; sleep 12; echo saved; exit 0' TERM"
    # Within its max_duration, the shell of a busy machine can set its trap.
    result = lab.apply("saves", commands=[saving, FOREVER], max_duration=6, stop_duration=60)
    assert result.output == "asked\nsaved\n"
    (attempt,) = lab.attempts("saves")
    assert attempt["termination_reason"] == "max_duration_exceeded"


def test_a_failing_job_is_tried_again_as_often_as_allowed(lab: RunLab) -> None:
    retry = {"on_events": ["error"], "max_failures": 1}
    result = lab.apply("again", commands=["echo try; exit 3"], retry=retry)
    assert result.status == 3
    run = lab.inspect("again")
    assert (run["status"], run["termination_reason"]) == ("failed", "retry_limit_exceeded")
    attempts = run["jobs"][0]["attempts"]
    assert [attempt["exit_code"] for attempt in attempts] == [3, 3]
    assert len({attempt["id"] for attempt in attempts}) == 2
    assert result.output == "try\ntry\n"
    first = lab.cli("logs", "again", "--attempt", "0").succeeded()
    assert first.output == "try\n"


def test_nothing_is_left_on_the_node_by_runs_that_have_ended(lab: RunLab) -> None:
    lab.apply("tidy", commands=["true"]).succeeded()
    lab.wait_for_node(lambda node: node["cpu_allocated"] == 0 and node["runs"] == [])
    left = lab.dockerd.docker("ps", "-aq", "--filter", "label=fairlead.task")
    assert left == ""
    folders = [path.name for path in (lab.shim.data / "tasks").iterdir()]
    assert folders == []
