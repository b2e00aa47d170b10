"""The attempts that a run's document leaves out: those of an earlier occurrence or incarnation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from controller.api.documents import AttemptView, PastAttemptView, RunView
from controller.cli.errors import CliError
from fairlead.rest import ControllerClient, decode, run_path


class _Page(msgspec.Struct):
    attempts: list[PastAttemptView]
    next_cursor: str | None = None


def with_history(
    client: ControllerClient,
    run: RunView,
    *,
    occurrence: int | None = None,
    incarnation: str | None = None,
) -> RunView:
    """Return the run with all attempts of this occurrence, or of this incarnation (its number or
    id), and no others.

    Raises CliError.
    """
    attempts: dict[str, list[AttemptView]] = defaultdict(list)
    for attempt in _all(client, run, occurrence=occurrence, incarnation=incarnation):
        attempts[attempt.job_id].append(attempt)
    if not attempts:
        raise CliError(_nothing_of(run, occurrence, incarnation))
    jobs = (msgspec.structs.replace(job, attempts=tuple(attempts[job.id])) for job in run.jobs)
    return msgspec.structs.replace(run, jobs=tuple(jobs))


def _all(
    client: ControllerClient, run: RunView, *, occurrence: int | None, incarnation: str | None
) -> Iterator[PastAttemptView]:
    path, cursor = run_path(run.id, "attempts"), None
    while True:
        asked = {"occurrence": occurrence, "incarnation": incarnation, "cursor": cursor}
        page = decode(client.get(path, **asked), _Page)
        yield from page.attempts
        cursor = page.next_cursor
        if cursor is None:
            return


def _nothing_of(run: RunView, occurrence: int | None, incarnation: str | None) -> str:
    if incarnation is None:
        return (
            f"--occurrence: no attempt of occurrence {occurrence} of {run.name} is kept; its "
            f"present one is {run.occurrence}"
        )
    if run.incarnation is None:
        return f"--incarnation: {run.name} has no gang, and so no incarnations"
    of = "" if occurrence is None else f" and occurrence {occurrence}"
    return (
        f"--incarnation: no attempt of incarnation {incarnation}{of} of {run.name} is kept; its "
        f"present one is {run.incarnation.number}"
    )
