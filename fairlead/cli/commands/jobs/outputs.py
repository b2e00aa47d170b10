"""`outputs`: list what a run's jobs left in their output folders, and bring it here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import Json
from fairlead.cli.errors import EXIT_FAILED, CliError
from fairlead.documents.jobs import OutputsView
from fairlead.errors import OutputsMissing, UsageError
from fairlead.files.outputs import left_out, listed, pull, read
from fairlead.model.statuses import OutputsState
from fairlead.rest import ControllerClient
from fairlead.wire.sizes import counted_files


def outputs(
    run: str,
    job_: Annotated[str | None, Parameter(name="JOB")] = None,
    /,
    *,
    job: str | None = None,
    attempt: str | None = None,
    pull_: Annotated[Path | None, Parameter(name="--pull")] = None,
    json: Json = False,
) -> int:
    """List what a run's jobs left in $FAIRLEAD_OUTPUT_DIR, or download it.

    Parameters
    ----------
    job_
        Id, index or GROUP/COOKIE; default: all.
    job
        The same as JOB.
    attempt
        Id, or number from 0; default: the job's latest.
    pull_
        Download into this folder; several jobs get a folder each, GROUP-COOKIE.
    """
    client = settings.client()
    data = read(client, run, job=job_ or job, attempt=attempt)
    found = listed(data)
    if json:
        output.emit_json(data)
    elif pull_ is None:
        _list(found)
    return 0 if pull_ is None else _pull(client, run, found, pull_)


def _list(found: tuple[OutputsView, ...]) -> None:
    output.emit_table(
        ("JOB", "ATTEMPT", "STATE", "FILES", "BYTES", "LEFT OUT"),
        [
            (
                f"{one.group}/{one.cookie}",
                str(one.attempt),
                _state(one),
                str(one.count),
                str(one.size),
                str(one.left_out or "-"),
            )
            for one in found
        ],
    )
    rows = [(str(file.size), file.name) for one in found for file in one.files or ()]
    if rows:
        output.emit("")
        output.emit_table(("BYTES", "FILE"), rows)


def _state(one: OutputsView) -> str:
    if one.removed:
        return "removed"
    if one.received is None or not one.total:
        return one.state.value
    return f"{one.state.value} {100 * one.received // one.total}%"


def _pull(client: ControllerClient, run: str, found: tuple[OutputsView, ...], folder: Path) -> int:
    """Download what there is; 1 when something that was there is not here."""
    if all(one.state is OutputsState.NONE for one in found):
        output.note(f"there are no outputs of run {run}")
    show = output.note if sys.stderr.isatty() else _quiet
    try:
        for pulled in pull(client, run, found, folder, show):
            one = pulled.outputs
            name = f"{one.group}/{one.cookie}"
            amount = f"{counted_files(one.count)}, {one.size} bytes of job {name}"
            output.note(f"{amount} are in {pulled.folder}")
            if (sentence := left_out(one)) is not None:
                output.note(sentence)
    except OutputsMissing as error:
        output.note(str(error))
        return EXIT_FAILED
    except UsageError as error:
        raise CliError(f"--pull {error}") from None
    return 0


def _quiet(text: str) -> None:
    pass
