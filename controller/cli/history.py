"""What a run's document leaves out: the attempts of an earlier occurrence."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from controller.api.documents import AttemptView, PastAttemptView, RunView
from controller.cli.client import ControllerClient, decode, run_path
from controller.cli.errors import CliError


class _Page(msgspec.Struct):
    attempts: list[PastAttemptView]
    next_cursor: str | None = None


def with_occurrence(client: ControllerClient, run: RunView, occurrence: int) -> RunView:
    """The run with all attempts of this occurrence and no others. Raises CliError."""
    path, cursor = run_path(run.id, "attempts"), None
    attempts: dict[str, list[AttemptView]] = defaultdict(list)
    while True:
        page = decode(client.get(path, occurrence=occurrence, cursor=cursor), _Page)
        for attempt in page.attempts:
            attempts[attempt.job_id].append(attempt)
        cursor = page.next_cursor
        if cursor is None:
            break
    if not attempts:
        raise CliError(
            f"--occurrence: no attempt of occurrence {occurrence} of {run.name} is kept; its "
            f"present one is {run.occurrence}"
        )
    jobs = (msgspec.structs.replace(job, attempts=tuple(attempts[job.id])) for job in run.jobs)
    return msgspec.structs.replace(run, jobs=tuple(jobs))
