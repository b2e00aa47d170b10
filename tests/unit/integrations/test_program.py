"""The program that a job of submitit's brings, in a Python that has nothing else."""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import submitit
from submitit.core.utils import DelayedSubmission

from fairlead.integrations.stage import PROGRAM, program
from tests.support.waiting import wait_until


class Job:
    """A job's folders, as a node makes them."""

    def __init__(self, folder: Path, python: Path, function: Any, *arguments: Any) -> None:
        self.stage, self.output = folder / "stage", folder / "output"
        self.state = folder / "state"
        self.python = python
        self.stage.mkdir()
        (self.stage / PROGRAM).write_bytes(program())
        delayed = DelayedSubmission(function, *arguments)
        delayed.set_timeout(1, 1)
        delayed.dump(self.stage / "0.pkl")

    def start(self, *options: str | Path, **env: str) -> subprocess.Popen[bytes]:
        self.output.mkdir(exist_ok=True)
        command = [self.python, "-u", self.stage / PROGRAM, "--stage", self.stage, *options]
        given = {"FAIRLEAD_RUN_ID": "r1", "FAIRLEAD_OUTPUT_DIR": str(self.output)}
        return subprocess.Popen(
            list(map(str, command)),
            env={"PATH": os.environ["PATH"], **given, **env},
            cwd=self.stage,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def run(self, *options: str | Path, **env: str) -> int:
        return self.start(*options, **env).wait(60)

    def result(self, job: str = "r1", rank: int = 0) -> Any:
        return pickle.loads((self.output / f"submitit/{job}_{rank}_result.pkl").read_bytes())

    def log(self, job: str = "r1", rank: int = 0) -> str:
        return (self.output / f"submitit/{job}_{rank}_log.out").read_text()


def a_sleeper() -> Steps:
    made: Steps = Steps()  # type: ignore[no-untyped-call]
    return made


@pytest.fixture(autouse=True)
def _code_travels() -> Iterator[None]:
    """The functions of this module travel by their value, as those of a program's own file do."""
    own = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(own)
    yield
    cloudpickle.unregister_pickle_by_value(own)


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without any package."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(folder)
    return folder / "bin" / "python"


def _who(factor: int) -> tuple[str, int, int, int]:
    job = submitit.JobEnvironment()
    return job.job_id, job.global_rank * factor, job.num_tasks, job.num_nodes


class Steps(submitit.helpers.Checkpointable):
    """Sleeps at its first step; each life begins a step later."""

    def __call__(self, step: int) -> str:
        os.write(1, b"step %d\n" % step)
        if step == 0:
            time.sleep(60)
        return f"done at {step}"

    def checkpoint(self, step: int) -> DelayedSubmission:
        return DelayedSubmission(self, step + 1)


def test_each_task_has_a_rank_a_result_and_a_log(tmp_path: Path, bare_python: Path) -> None:
    job = Job(tmp_path, bare_python, _who, 10)
    env = {"FAIRLEAD_NODE_RANK": "1", "FAIRLEAD_NODES_NUM": "2"}
    assert job.run("--tasks", "2", **env) == 0
    assert job.result(rank=2) == ("success", ("r1", 20, 4, 2))
    assert job.result(rank=3) == ("success", ("r1", 30, 4, 2))
    assert "local_rank=1(2), node=1(2), global_rank=3(4)" in job.log(rank=3)


def test_a_set_of_a_sweep_runs_its_own_function(tmp_path: Path, bare_python: Path) -> None:
    job = Job(tmp_path, bare_python, _who, 1)
    (job.stage / "0.pkl").rename(job.stage / "3.pkl")
    assert job.run(FAIRLEAD_PARAM_ARRAY_TASK_ID="3") == 0
    assert job.result("r1_3") == ("success", ("r1_3", 0, 1, 1))


def test_a_function_that_fails_fails_its_job(tmp_path: Path, bare_python: Path) -> None:
    job = Job(tmp_path, bare_python, int, "none")
    assert job.run() == 1
    outcome, trace = job.result()
    assert (outcome, "invalid literal" in trace) == ("error", True)


def test_after_its_time_a_function_goes_on_from_its_checkpoint(
    tmp_path: Path, bare_python: Path
) -> None:
    job = Job(tmp_path, bare_python, a_sleeper(), 0)
    assert job.run("--seconds", "0.2", "--grace", "20") == 0
    assert job.result() == ("success", "done at 1")
    assert "(0 remaining timeouts)" in job.log()


def test_a_job_that_must_leave_its_node_saves_its_state_for_the_next_one(
    tmp_path: Path, bare_python: Path
) -> None:
    job = Job(tmp_path, bare_python, a_sleeper(), 0)
    options = ("--state", tmp_path / "state", "--restart", "144")
    first = job.start(*options)
    log = job.output / "submitit/r1_0_log.out"
    wait_until(lambda: log.exists() and "step 0" in log.read_text(), what="the first step")
    os.killpg(first.pid, signal.SIGUSR2)
    assert first.wait(60) == 144
    job.output.rename(tmp_path / "of the first node")
    assert job.run(*options) == 0
    assert job.result() == ("success", "done at 1")


def test_what_has_a_result_is_not_run_again(tmp_path: Path, bare_python: Path) -> None:
    job = Job(tmp_path, bare_python, _who, 1)
    assert job.run("--state", job.state) == 0
    job.output.rename(tmp_path / "of the first life")
    assert job.run("--state", job.state) == 1
    assert job.result() == ("success", ("r1", 0, 1, 1))
    assert not (job.output / "submitit/r1_0_log.out").exists()


def test_the_program_is_the_same_each_time() -> None:
    again = subprocess.run(
        [
            sys.executable,
            "-c",
            "import hashlib; from fairlead.integrations.stage import program;"
            "print(hashlib.sha256(program()).hexdigest())",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout.strip() == hashlib.sha256(program()).hexdigest()
