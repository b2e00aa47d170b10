"""The environment of a job, as submitit asks for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from submitit.core.job_environment import JobEnvironment
from submitit.core.logger import get_logger
from submitit.core.utils import DelayedSubmission, JobPaths

PREFIX = "SUBMITIT_FAIRLEAD_"
REQUEUE = f"{PREFIX}REQUEUE"
"""The path of the file that says: start the function again, from its checkpoint."""
READY = f"{PREFIX}READY"
"""The descriptor on which `main` hears that the task answers signals: its time begins then."""


class FairleadJobEnvironment(JobEnvironment):
    """A job on Fairlead; `main` sets the variables."""

    _env: ClassVar[dict[str, str]] = {
        name: f"{PREFIX}{name.upper()}"
        for name in (
            "job_id",
            "array_job_id",
            "array_task_id",
            "num_tasks",
            "num_nodes",
            "node",
            "global_rank",
            "local_rank",
        )
    }

    @property
    def hostnames(self) -> Sequence[str]:
        """The addresses of the job's nodes."""
        return os.environ.get("FAIRLEAD_NODES_IPS", self.hostname).split("\n")

    def _handle_signals(self, paths: JobPaths, submission: DelayedSubmission) -> None:
        super()._handle_signals(paths, submission)
        if (ready := os.environ.pop(READY, None)) is not None:
            os.close(int(ready))

    def _requeue(self, countdown: int) -> None:
        """Ask `main` to start the function again; `countdown`: how often it may still time out."""
        Path(os.environ[REQUEUE]).touch()
        get_logger().info(f"Requeued job {self.job_id} ({countdown} remaining timeouts)")
