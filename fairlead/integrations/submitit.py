"""The executor `fairlead` of submitit: functions of a program as jobs, without a shared folder.

    executor = submitit.AutoExecutor(folder="log", cluster="fairlead")
    executor.update_parameters(timeout_min=60, gpus_per_node=1, fairlead_image="pytorch/pytorch")
    print(executor.submit(train, 0.1).result())

The pickles go to the job with its files. Results and logs are outputs, which come to submitit's
folder when its program looks for them. A list of functions is one sweep.

submitit is extended by subclasses, which share attributes with an underscore with it: its own ones
for Slurm do so too.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from submitit.core import core, utils
from submitit.core.logger import get_logger

from fairlead import settings
from fairlead.client import Client
from fairlead.errors import FairleadError, OutputsMissing
from fairlead.integrations.in_job.environment import FairleadJobEnvironment
from fairlead.integrations.in_job.main import FOLDER
from fairlead.integrations.stage import PROGRAM, program
from fairlead.model.statuses import FINAL_RUN_STATUSES, RunStatus
from fairlead.model.sweep import SetStatus
from fairlead.run import Run
from fairlead.sweeps import all_sets
from fairlead.task import Task

__all__ = ["FairleadExecutor", "FairleadJob", "FairleadJobEnvironment"]

R = TypeVar("R", covariant=True)
_STAGED = ".fairlead-submitit"
"""Where a job finds its files, relative to its working folder."""
_RESTART_EXIT_CODE = 144
_MIN_LOOK, _MAX_LOOK = 0.3, 10.0
"""Seconds between two questions about all jobs: they grow with the time since the last one was
submitted."""
_STATES = {
    RunStatus.RUNNING: "RUNNING",
    RunStatus.TERMINATING: "COMPLETING",
    RunStatus.DONE: "COMPLETED",
    RunStatus.FAILED: "FAILED",
    RunStatus.TERMINATED: "CANCELLED",
}
_STATES_OF_SETS = {
    SetStatus.ACTIVE: "RUNNING",
    SetStatus.DONE: "COMPLETED",
    SetStatus.FAILED: "FAILED",
    SetStatus.STOPPED: "CANCELLED",
}
"""Slurm's words, in which submitit asks; whatever has not begun is PENDING."""
_PARAMETERS: dict[str, object] = {
    "name": "submitit",
    "timeout_min": 5,
    "mem_gb": None,
    "nodes": 1,
    "cpus_per_task": None,
    "gpus_per_node": None,
    "tasks_per_node": 1,
    "stderr_to_stdout": False,
    "signal_delay_s": 90,
    "array_parallelism": None,
    "setup": (),
    "image": None,
    "gpu": None,
    "code": None,
    "state": None,
    "task": {},
}
"""What `update_parameters` takes, with the defaults; those of submitit first."""


class FairleadInfoWatcher(core.InfoWatcher):
    """Asks the controller about all jobs of this program that have not ended."""

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """Return the state of the job, in Slurm's words; UNKNOWN before the first answer."""
        return self.get_info(job_id, mode=mode).get("State", "UNKNOWN")

    def update_if_long_enough(self, mode: str) -> None:
        """Ask if it is time. `mode`: force, standard or cache, as submitit has it."""
        now = time.time()
        pause = min(_MAX_LOOK, max(_MIN_LOOK, (now - self._start_time) / 20))
        if mode == "force" or (mode == "standard" and now - self._last_status_check > pause):
            self.update()

    def update(self) -> None:
        """Ask about all runs that have jobs that have not ended."""
        waiting = self._registered - self._finished
        try:
            for run_id in sorted({_run_of(job_id) for job_id in waiting}):
                self._info_dict.update(_infos(run_id))
        # submitit asks each few seconds, and a user's program must not end by one answer that did
        # not come.
        except FairleadError as error:
            get_logger().warning(f"{error}; the states of jobs may be old")
        self._last_status_check = time.time()
        self._finished |= {one for one in waiting if self.is_done(one, mode="cache")}


class FairleadJob(core.Job[R]):
    """A job of a run, or of one parameter set of a sweep."""

    watcher = FairleadInfoWatcher()
    _results_timeout_s = 0

    def done(self, force_check: bool = False) -> bool:
        """Return whether the job has ended; its results and logs are in the folder then."""
        if self._sub_jobs:
            return all(job.done() for job in self._sub_jobs)
        if self._brought.exists():
            return True
        mode = "force" if force_check else "standard"
        if not self.watcher.is_done(self.job_id, mode=mode):
            return False
        self._bring()
        return True

    def wait(self) -> None:
        """Wait for the end of the job."""
        while not self.done():
            time.sleep(_MIN_LOOK)

    def cancel(self, check: bool = True) -> None:
        """Stop the job. `check`: raise what goes wrong."""
        try:
            run, number = self._run(), _number_of(self.job_id)
            if number is None:
                run.stop(abort=True)
            else:
                run.stop_sets(str(number))
        except FairleadError:
            if check:
                raise

    def _interrupt(self, timeout: bool = False) -> None:
        """Ask the job to leave its node, as a preemption does."""
        run = self._run()
        for cookie in self._cookies(run):
            run.interrupt_job(f"main/{cookie}")

    def _get_logs_string(self, name: str) -> str | None:
        """Return the log, of a job that runs from the controller."""
        kept = super()._get_logs_string(name)
        if kept is not None or self._brought.exists():
            return kept
        # submitit shows logs in messages about failures: another failure would hide the first.
        with suppress(FairleadError):
            return self._log_of_controller(name) or None
        return None

    @property
    def _brought(self) -> Path:
        return Path(self.paths.folder) / f".{self.job_id}_brought"

    def _run(self) -> Run:
        return _client().run(_run_of(self.job_id))

    def _cookies(self, run: Run) -> list[int]:
        """Return the numbers of the jobs of the run, one on each node, that are this job."""
        sweep = run.state.sweep
        if sweep is None:
            return [job.cookie for job in run.state.jobs]
        first = (_number_of(self.job_id) or 0) * sweep.nodes
        here = {job.cookie for job in run.state.jobs}
        return [cookie for cookie in range(first, first + sweep.nodes) if cookie in here]

    def _bring(self) -> None:
        """Download what the job left into submitit's folder."""
        run, folder = self._run(), Path(self.paths.folder)
        folder.mkdir(parents=True, exist_ok=True)
        for cookie in self._cookies(run):
            with tempfile.TemporaryDirectory(dir=folder, prefix=".bringing-") as arriving:
                try:
                    run.pull_outputs(arriving, f"main/{cookie}", progress=False)
                except OutputsMissing as error:
                    get_logger().warning(str(error))
                for file in (Path(arriving) / FOLDER).glob("*"):
                    if not file.name.endswith("_submitted.pkl"):
                        file.rename(folder / file.name)
        for name, file in (("stdout", self.paths.stdout), ("stderr", self.paths.stderr)):
            # A job whose Python did not even start has left only this.
            if not file.exists() and (text := self._log_of_controller(name)):
                file.write_text(text)
        self._brought.touch()

    def _log_of_controller(self, name: str) -> str:
        run = self._run()
        cookies = self._cookies(run)
        if not cookies:
            return ""
        streams = ("stdout",) if name == "stdout" else ("stderr", "system")
        pieces = run.logs(f"main/{cookies[0]}")
        return "".join(piece.text for piece in pieces if piece.stream in streams)


class FairleadExecutor(core.Executor):
    """Submits functions to Fairlead.

    Parameters
    ----------
    folder: Path/str
        folder of this machine for pickles, results and logs; no job sees it.
    max_num_timeout: int
        how often a function that can save its state is started again after its time was over.
    max_pickle_size_gb: float
        maximum size of the pickles of one submission.
    python: str
        the command of Python in the job.
    """

    job_class = FairleadJob

    def __init__(
        self,
        folder: str | Path,
        max_num_timeout: int = 3,
        max_pickle_size_gb: float = 1.0,
        python: str = "python3",
    ) -> None:
        super().__init__(folder)
        self.max_num_timeout = max_num_timeout
        self.max_pickle_size_gb = max_pickle_size_gb
        self.python = python

    @classmethod
    def affinity(cls) -> int:
        """Return 1 where a controller is known: submitit then takes it if it is asked to."""
        try:
            _, token = settings.chosen()
        # submitit asks every executor that is installed, also where nobody has logged in.
        except FairleadError:
            return -1
        return -1 if token is None else 1

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return set(_PARAMETERS)

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        """Update the parameters. Raises ValueError for one that is not known, naming all.

        image, gpu (a name such as H100), setup (commands before the function), code (a folder that
        the job gets as its working folder), state (a folder in the job that outlives it, for
        checkpoints), array_parallelism (how many of a list run at once), signal_delay_s, and task
        (more fields of a task).
        """
        unknown = sorted(set(kwargs) - set(_PARAMETERS))
        if unknown:
            known = "\n".join(f"  - {name} (default: {one!r})" for name, one in _PARAMETERS.items())
            raise ValueError(f"Unavailable parameter(s): {unknown}\nValid parameters are:\n{known}")
        super()._internal_update_parameters(**kwargs)

    def _internal_process_submissions(
        self, delayed_submissions: list[utils.DelayedSubmission]
    ) -> list[core.Job[Any]]:
        with tempfile.TemporaryDirectory(prefix="fairlead-submitit-") as made:
            stage = Path(made)
            for number, delayed in enumerate(delayed_submissions):
                delayed.set_timeout(self._asked("timeout_min"), self.max_num_timeout)
                delayed.dump(stage / f"{number}.pkl")
            self._refuse_much(stage)
            (stage / PROGRAM).write_bytes(program())
            count = len(delayed_submissions)
            run = _client().submit(Task.of(self._task(stage, count)))
            tasks = range(self._asked("nodes") * self._asked("tasks_per_node"))
            ids = [run.id] if count == 1 else [f"{run.id}_{number}" for number in range(count)]
            jobs: list[core.Job[Any]] = [self.job_class(self.folder, id, list(tasks)) for id in ids]
            for number, job in enumerate(jobs):
                job.paths.folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(stage / f"{number}.pkl", job.paths.submitted_pickle)
        return jobs

    def _refuse_much(self, stage: Path) -> None:
        size = sum(file.stat().st_size for file in stage.iterdir()) / 1024**3
        if size > self.max_pickle_size_gb:
            raise RuntimeError(
                f"the pickles have {size:.2f} GB, more than {self.max_pickle_size_gb} GB: set "
                f"executor.max_pickle_size_gb, or let the function read its data in the job"
            )

    def _asked(self, name: str) -> Any:
        given = self.parameters.get(name)
        return _PARAMETERS[name] if given is None else given

    def _task(self, stage: Path, count: int) -> dict[str, object]:
        """Return the fields of the task that runs these functions."""
        fields = {
            "type": "task",
            "name": _free_name(str(self._asked("name"))),
            "files": [{"local_path": str(stage), "path": _STAGED}],
            "commands": [*self._asked("setup"), self._command(count)],
            "stop_signal": f"SIG{FairleadJobEnvironment.USR_SIG}",
            "stop_duration": max(1, int(self._asked("signal_delay_s"))),
            **self._resources(),
            **self._coming_back(count),
        }
        if count > 1:
            parallel = self._asked("array_parallelism")
            limit = {} if parallel is None else {"max_parallel": parallel}
            fields["sweep"] = {"matrix": {"array_task_id": f"0..{count - 1}"}, **limit}
        if self._asked("image"):
            fields["image"] = self._asked("image")
        if self._asked("code"):
            fields["repos"] = [{"local_path": str(Path(self._asked("code")).resolve())}]
        return fields | dict(self._asked("task"))

    def _resources(self) -> dict[str, object]:
        cpus, memory, gpus = map(self._asked, ("cpus_per_task", "mem_gb", "gpus_per_node"))
        resources: dict[str, object] = {}
        if cpus:
            resources["cpu"] = cpus * self._asked("tasks_per_node")
        if memory:
            resources["memory"] = f"{int(memory * 1024)}MiB"
        if gpus:
            name = self._asked("gpu")
            resources["gpu"] = f"{name}:{gpus}" if name else gpus
        nodes = self._asked("nodes")
        return {
            **({"resources": resources} if resources else {}),
            **({"nodes": nodes} if nodes > 1 else {}),
        }

    @property
    def _seconds(self) -> float:
        return float(self._asked("timeout_min")) * 60

    def _comes_back_by_itself(self, count: int) -> bool:
        """Return whether the controller starts the job again after its time: not in a sweep, and
        only where its state outlives it."""
        return count == 1 and self._asked("state") is not None

    def _coming_back(self, count: int) -> Mapping[str, object]:
        again = {"restart_exit_code": _RESTART_EXIT_CODE} if self._asked("state") else {}
        if self._comes_back_by_itself(count):
            limit = max(1, round(self._seconds))
            return {**again, "max_duration": limit, "on_time_limit": "requeue"}
        return again

    def _command(self, count: int) -> str:
        options: list[object] = ["--tasks", self._asked("tasks_per_node"), "--stage", _STAGED]
        options += ["--grace", self._asked("signal_delay_s")]
        if self._asked("state"):
            options += ["--state", self._asked("state"), "--restart", _RESTART_EXIT_CODE]
        if not self._comes_back_by_itself(count):
            options += ["--seconds", self._seconds]
        if self._asked("stderr_to_stdout"):
            options += ["--one-log"]
        return f"{self.python} -u {_STAGED}/{PROGRAM} {shlex.join(map(str, options))}"


def _free_name(name: str) -> str:
    """Return a name that no other run has: those of live runs must differ."""
    plain = "".join(letter if letter.isalnum() else "-" for letter in name.lower()).strip("-")
    return f"{plain[:24] if plain[:1].isalpha() else 'submitit'}-{uuid.uuid4().hex[:8]}"


def _run_of(job_id: str) -> str:
    return job_id.partition("_")[0]


def _number_of(job_id: str) -> int | None:
    number = job_id.partition("_")[2]
    return int(number) if number else None


def _infos(run_id: str) -> dict[str, dict[str, str]]:
    """Return what is known of a run's jobs, by submitit's ids. A job counts as ended once its
    outputs are with the controller."""
    run = _client().run(run_id)
    if run.state.sweep is None:
        return {run_id: {"JobID": run_id, "State": _STATES.get(run.status, "PENDING")}}
    is_final = run.status in FINAL_RUN_STATUSES
    found = {}
    for one in all_sets(run.client.rest, run_id):
        state = _STATES_OF_SETS.get(one.status, "CANCELLED" if is_final else "PENDING")
        if one.jobs and one.finished_at is None and not is_final:
            state = "RUNNING"
        found[f"{run_id}_{one.number}"] = {"JobID": f"{run_id}_{one.number}", "State": state}
    return found


def _client() -> Client:
    """Return the client of the chosen controller."""
    return _client_of(*settings.chosen(), os.getpid())


@cache
def _client_of(url: str, token: str | None, process: int) -> Client:
    """`process`: a forked one must not share a connection."""
    return Client(url, token)
