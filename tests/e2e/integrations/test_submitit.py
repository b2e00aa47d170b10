"""Functions as jobs: results, logs, several tasks, states and stops."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
import submitit

from fairlead.integrations.submitit import FairleadExecutor
from tests.support.processes import ControllerProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture
def executor(
    controller: ControllerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> submitit.AutoExecutor:
    for name, value in controller.env.items():
        monkeypatch.setenv(name, value)
    made = submitit.AutoExecutor(
        folder=tmp_path / "jobs", cluster="fairlead", fairlead_python=sys.executable
    )
    made.update_parameters(timeout_min=5)
    return made


def _where() -> tuple[str, str]:
    return os.environ["FAIRLEAD_RUN_NAME"], os.environ["FAIRLEAD_WORKING_DIR"]


def test_a_list_of_functions_is_one_run_whose_jobs_run_elsewhere(
    executor: submitit.AutoExecutor, controller: ControllerProcess
) -> None:
    executor.update_parameters(name="Sums", fairlead_array_parallelism=2)
    jobs = executor.map_array(pow, [2, 3, 4], [2, 2, 2])
    assert [job.result() for job in jobs] == [4, 9, 16]
    (run,) = controller.cli("ps", "-a", "--json").succeeded().json["runs"]
    assert run["name"].startswith("sums-")
    assert (run["status"], run["id"]) == ("done", jobs[0].job_id.partition("_")[0])
    name, folder = executor.submit(_where).result()
    assert name.startswith("sums-")
    assert folder != str(Path.cwd())


def test_a_job_that_runs_tells_its_log_and_can_be_stopped(executor: submitit.AutoExecutor) -> None:
    def wait() -> None:
        os.write(1, b"at work\n")
        time.sleep(600)

    job = executor.submit(wait)
    wait_until(lambda: "at work" in (job.stdout() or ""), what="the log")
    # Log and status come from the node over two streams.
    wait_until(lambda: job.state == "RUNNING", what="the job to be known as running")
    job.cancel()
    job.wait()
    assert job.state == "CANCELLED"
    assert isinstance(job.exception(), submitit.core.utils.UncompletedJobError)


def test_a_job_whose_python_is_missing_shows_what_was_said(
    executor: submitit.AutoExecutor, tmp_path: Path
) -> None:
    lost = FairleadExecutor(tmp_path / "lost", python="/nonexistent/python")
    job = lost.submit(pow, 2, 2)
    assert "/nonexistent/python" in str(job.exception())
