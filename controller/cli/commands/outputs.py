"""`outputs`: list what a run's jobs left in their output folders, and bring it here."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from controller.api.documents import OutputsAnswer, OutputsView
from controller.cli import output
from controller.cli.commands.options import Json
from controller.cli.errors import EXIT_FAILED, CliError
from controller.lifecycle.outputs import OutputsState
from fairlead import settings
from fairlead.errors import ConnectionLost
from fairlead.rest import ControllerClient, decode, run_path

_NOTED_BYTES = 64 << 20
_TRIES = 5


def outputs(
    run: str,
    job_: Annotated[str | None, Parameter(name="JOB")] = None,
    /,
    *,
    job: str | None = None,
    attempt: str | None = None,
    pull: Path | None = None,
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
    pull
        Download into this folder; of several jobs each into a folder of its own, GROUP-COOKIE.
    """
    client = settings.client()
    data = client.get(run_path(run, "outputs"), job=job_ or job, attempt=attempt)
    found = decode(data, OutputsAnswer).outputs
    if json:
        output.emit_json(data)
    elif pull is None:
        _list(found)
    return 0 if pull is None else _pull(client, run, found, pull)


def _list(found: tuple[OutputsView, ...]) -> None:
    output.emit_table(
        ("JOB", "ATTEMPT", "STATE", "FILES", "BYTES", "LEFT OUT"),
        [
            (
                f"{one.group}/{one.cookie}",
                str(one.attempt),
                "removed" if one.removed else one.state.value,
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


def _pull(client: ControllerClient, run: str, found: tuple[OutputsView, ...], folder: Path) -> int:
    """Download what there is; 1 when something that was there is not here."""
    failed = False
    wanted = [one for one in found if one.state is not OutputsState.NONE]
    if not wanted:
        output.note(f"there are no outputs of run {run}")
    for one in wanted:
        name = f"{one.group}/{one.cookie}"
        if one.archive_size is None:
            state = "removed: they have expired" if one.removed else one.state.value
            output.note(f"the outputs of job {name} are {state}")
            failed = True
            continue
        target = folder if len(found) == 1 else folder / f"{one.group}-{one.cookie}"
        _download(client, run, one, target)
        output.note(f"{one.count} files, {one.size} bytes of job {name} are in {target}")
        if one.left_out:
            output.note(
                f"{one.left_out} entries ({one.left_out_size} bytes) of job {name} were left out: "
                f"beyond the limit of outputs, or neither files nor folders"
            )
    return EXIT_FAILED if failed else 0


def _download(client: ControllerClient, run: str, one: OutputsView, target: Path) -> None:
    """Bring the tar beside its place, going on where an earlier try stopped, then unpack it."""
    path = run_path(run, "outputs/archive")
    arriving = target / f".fairlead-{one.attempt_id}.tar"
    try:
        target.mkdir(parents=True, exist_ok=True)
        for left in reversed(range(_TRIES)):
            try:
                heard = _Progress(one.archive_size or 0)
                client.download(path, arriving, heard, attempt=one.attempt_id)
                break
            except ConnectionLost:
                if left == 0:
                    raise
        with tarfile.open(arriving, "r:") as archive:
            archive.extractall(target, filter="data")
        arriving.unlink()
    except tarfile.TarError as error:
        arriving.unlink(missing_ok=True)
        raise CliError(f"the outputs came damaged ({error}); give the command again") from None
    except OSError as error:
        raise CliError(f"--pull {target}: {error.strerror or error}") from None


class _Progress:
    """Says now and then how much of a large download is here."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._next = _NOTED_BYTES

    def __call__(self, have: int) -> None:
        if have >= self._next and sys.stderr.isatty():
            output.note(f"{have >> 20} of {self._total >> 20} MiB are here")
            self._next = have + _NOTED_BYTES
