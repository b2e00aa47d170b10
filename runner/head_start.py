"""A job that begins before the runner is whole.

Most jobs need nothing but their process and its pipes, and those need neither asyncio nor an HTTP
library, which take most of the time until a runner serves. Here is what a job has when it begins
like that; the `runner.Runner` that comes later takes it over.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from runner import cgroup
from runner.durable import sync_and_close
from runner.job.setup import Groundwork
from runner.job.spawning import Children, Spawned, spawn
from runner.logs.output import Output
from runner.logs.segments import SegmentLog
from runner.options import Settings
from runner.schemas import EXIT_RECORD_NAME, LOGS_FOLDER_NAME, RunnerState, SubmitRequest
from runner.status import StatusLog


class HeadStart(NamedTuple):
    request: SubmitRequest
    groundwork: Groundwork
    log: SegmentLog
    status: StatusLog
    spawned: Spawned
    output: Output
    oom_kills: int
    """Before it began."""
    started_at: float


def may_begin(task: Path, request: SubmitRequest) -> bool:
    """Not a job that needs code or a terminal, nor one that others expect to reach by SSH as soon
    as it runs, nor one that has ended already."""
    job = request.job
    simple = not (job.repos or job.files or job.tty) and job.job_count == 1
    return simple and not (task / EXIT_RECORD_NAME).exists()


def begin(task: Path, request: SubmitRequest, settings: Settings, children: Children) -> HeadStart:
    """Raises CannotStart and OSError; nothing is left behind then that the next try would mind."""
    log = SegmentLog(
        task / LOGS_FOLDER_NAME,
        segment_size=settings.segment_size,
        quota=settings.log_quota,
        retire=sync_and_close,
    )
    groundwork = None
    try:
        log.limit(request.job.log_quota or settings.log_quota, None)
        groundwork = Groundwork(task, request)
        launch = groundwork.launch()
        oom_kills = cgroup.oom_kills()
        started_at = time.time()
        with children.starting():
            spawned = spawn(launch)
            children.own(spawned.pid)
    except BaseException:
        log.close()
        if groundwork is not None:
            groundwork.clean()
        raise
    secrets = request.secrets.values()
    output = Output(log, spawned.stdout, spawned.stderr, secrets=secrets)
    status = _status(spawned.pid)
    return HeadStart(request, groundwork, log, status, spawned, output, oom_kills, started_at)


def _status(pid: int) -> StatusLog:
    status = StatusLog(time.time)
    status.add(RunnerState.READY)
    status.add(RunnerState.PREPARING)
    status.add(RunnerState.RUNNING, pid=pid)
    return status
