"""Runs the pickled function of a job: one process for each task of submitit on this node.

The pickles come with the job's files, and results, logs and checkpoints go to its output folder.
The function's process gets submitit's preemption signal (SIGUSR2) when its time is over, as it does
from the runner when the job must leave its node; then it may save its state as a new pickle.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

_PREFIX = "SUBMITIT_FAIRLEAD_"
FOLDER = "submitit"
"""The folder in the job's output folder that the client looks into."""
ARRAY_VARIABLE = "FAIRLEAD_PARAM_ARRAY_TASK_ID"
_FAILED = 1


class Job(NamedTuple):
    """This job of a run, and where its files lie."""

    id: str
    folder: Path
    state: Path | None
    node: int
    nodes: int
    tasks: int

    @property
    def submitted(self) -> Path:
        return self.folder / f"{self.id}_submitted.pkl"

    @property
    def requeue(self) -> Path:
        return self.folder / f".{self.id}_requeue"

    def rank(self, task: int) -> int:
        return self.node * self.tasks + task

    def result(self, task: int) -> Path:
        return self.folder / f"{self.id}_{self.rank(task)}_result.pkl"


def main(program: str) -> int:
    """Run the tasks of this node. `program`: the zip. Return the exit status of the job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", action="store_true")
    parser.add_argument("--stage", type=Path)
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--grace", type=float, default=90.0)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--restart", type=int, default=_FAILED)
    parser.add_argument("--one-log", action="store_true")
    asked = parser.parse_args()
    if asked.task:
        from submitit.core.submission import process_job

        process_job(os.environ["SUBMITIT_FOLDER"])
        return 0
    job = _job(asked.stage, asked.tasks, asked.state)
    # The runner's signal goes to all processes of the job: the tasks' answer to it counts.
    asked_to_end = threading.Event()
    for number in (signal.SIGTERM, _preemption_signal()):
        signal.signal(number, lambda *_: asked_to_end.set())
    while True:
        if _has_ended_before(job):
            return _FAILED
        timed_out, statuses = _life(program, job, asked)
        comes_back = job.requeue.exists()
        job.requeue.unlink(missing_ok=True)
        _keep(job)
        if comes_back and asked_to_end.is_set():
            return int(asked.restart)
        if not (comes_back and timed_out and job.nodes == 1):
            return _FAILED if any(statuses) else 0


def _job(stage: Path, tasks: int, state: Path | None) -> Job:
    run = os.environ["FAIRLEAD_RUN_ID"]
    number = os.environ.get(ARRAY_VARIABLE)
    id = run if number is None else f"{run}_{number}"
    job = Job(
        id=id,
        folder=Path(os.environ["FAIRLEAD_OUTPUT_DIR"]) / FOLDER,
        state=None if state is None else state / id,
        node=int(os.environ.get("FAIRLEAD_NODE_RANK", "0")),
        nodes=int(os.environ.get("FAIRLEAD_NODES_NUM", "1")),
        tasks=tasks,
    )
    job.folder.mkdir(parents=True, exist_ok=True)
    saved = None if job.state is None else job.state / job.submitted.name
    is_resumed = saved is not None and saved.exists()
    shutil.copyfile(saved if saved and is_resumed else stage / f"{number or 0}.pkl", job.submitted)
    return job


def _has_ended_before(job: Job) -> bool:
    """Return whether an earlier life of the job had a result: a job that comes back after its time,
    whatever it said, must not begin anew. Its result is given again."""
    results = [] if job.state is None else sorted(job.state.glob("*_result.pkl"))
    for result in results:
        shutil.copyfile(result, job.folder / result.name)
    return bool(results)


def _keep(job: Job) -> None:
    """Save what a later life needs."""
    if job.state is None:
        return
    job.state.mkdir(parents=True, exist_ok=True)
    for file in (job.submitted, *map(job.result, range(job.tasks))):
        if file.exists():
            # A job that is killed here must leave no half of a file.
            part = job.state / f".{file.name}.{job.node}"
            shutil.copyfile(file, part)
            part.rename(job.state / file.name)


def _life(program: str, job: Job, asked: argparse.Namespace) -> tuple[bool, list[int]]:
    """Run all tasks once. Return whether their time was over, and their exit statuses."""
    started = [_start(program, job, task, asked.one_log) for task in range(job.tasks)]
    processes = [process for process, _ in started]
    readers = [
        reader
        for task, process in enumerate(processes)
        for reader in _readers(process, job.folder / f"{job.id}_{job.rank(task)}_log")
    ]
    for _, ready in started:
        with ready:
            ready.read()
    timed_out = not _all_ended(processes, asked.seconds)
    if timed_out:
        # A task that has its result only needs to end.
        late = [one for task, one in enumerate(processes) if not job.result(task).exists()]
        _send(late, _preemption_signal())
        if not _all_ended(processes, asked.grace):
            _send(processes, signal.SIGKILL)
    statuses = [process.wait() for process in processes]
    for reader in readers:
        reader.join()
    return timed_out, statuses


def _start(
    program: str, job: Job, task: int, one_log: bool
) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """Return the task, and what ends when it answers signals, or has ended: a signal that comes
    earlier would kill it."""
    hears, says = os.pipe()
    own = {
        "JOB_ID": job.id.partition("_")[0],
        "NUM_TASKS": str(job.tasks * job.nodes),
        "NUM_NODES": str(job.nodes),
        "NODE": str(job.node),
        "GLOBAL_RANK": str(job.rank(task)),
        "LOCAL_RANK": str(task),
        "REQUEUE": str(job.requeue),
        "READY": str(says),
    }
    array, _, number = job.id.partition("_")
    if number:
        own |= {"ARRAY_JOB_ID": array, "ARRAY_TASK_ID": number}
    env = {f"{_PREFIX}{name}": value for name, value in own.items()}
    process = subprocess.Popen(
        [sys.executable, "-u", program, "--task"],
        env={
            **os.environ,
            **env,
            "SUBMITIT_EXECUTOR": "fairlead",
            "SUBMITIT_FOLDER": str(job.folder),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if one_log else subprocess.PIPE,
        pass_fds=(says,),
    )
    os.close(says)
    return process, os.fdopen(hears, "rb")


def _readers(process: subprocess.Popen[bytes], log: Path) -> Iterable[threading.Thread]:
    """Copy the output of a task to the job's own and to submitit's files, which are of one task."""
    for source, target, end in (
        (process.stdout, sys.stdout.buffer, "out"),
        (process.stderr, sys.stderr.buffer, "err"),
    ):
        if source is None:
            continue
        file = log.with_name(f"{log.name}.{end}").open("ab", buffering=0)
        thread = threading.Thread(target=_copy, args=(source, target, file), daemon=True)
        thread.start()
        yield thread


def _copy(source: IO[bytes], target: IO[bytes], file: IO[bytes]) -> None:
    with source, file:
        for line in source:
            target.write(line)
            target.flush()
            file.write(line)


def _all_ended(processes: list[subprocess.Popen[bytes]], seconds: float | None) -> bool:
    deadline = None if seconds is None else time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
    return True


def _send(processes: list[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for process in processes:
        # It can end between the look at it and the signal.
        with suppress(ProcessLookupError):
            process.send_signal(number)


def _preemption_signal() -> signal.Signals:
    """Return the signal that submitit's handler waits for in the task."""
    return signal.Signals[f"SIG{os.environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}"]
