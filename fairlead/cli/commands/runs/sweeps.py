"""The parameter sets of a sweep: list, stop and retry them, and change how many run at once."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from cyclopts import Parameter

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import Json
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.configuration.values.sweep import with_sets
from fairlead.documents.runs import RetriedView, RunView
from fairlead.documents.sweeps import SetView
from fairlead.model.sweep import SetStatus, as_text
from fairlead.rest import ControllerClient, decode, run_path
from fairlead.sweeps import all_sets, failed_together, outcome_of, progress_of

MAX_GROUPS = 10


def list_sets(
    run: str, which: str | None, status: tuple[str, ...], *, watch: bool, json: bool
) -> int:
    """Print the table of a sweep's sets."""
    client = settings.client()
    ask = partial(_sets, client, run, which, ",".join(status) or None)
    if watch and json:
        output.repeat_json(lambda: msgspec.json.encode({"sets": ask()}))
    if watch:
        output.repeat(lambda width: _lines(ask(), width))
    found = ask()
    if json:
        output.emit_json(msgspec.json.encode({"sets": found}))
        return 0
    for line in _lines(found, output.table_width()):
        output.emit(line)
    return 0


def _sets(
    client: ControllerClient, run: str, which: str | None, status: str | None
) -> list[SetView]:
    return list(all_sets(client, run, which, status))


def _lines(sets: list[SetView], width: int | None) -> list[str]:
    now = output.utc_now()
    names = tuple(sets[0].parameters) if sets else ()
    rows = [
        (
            str(one.number),
            *(as_text(one.parameters[name]) for name in names),
            one.status,
            "-" if one.exit_code is None else str(one.exit_code),
            one.node or "-",
            output.lasted(one.running_at, one.ended_at, now),
            output.shortened(one.message or outcome_of(one)),
        )
        for one in sets
    ]
    columns = ("JOB", *(name.upper() for name in names), "STATUS", "EXIT", "NODE", "RAN", "ABOUT")
    return output.table_lines(columns, rows, width)


def retry(
    run: str,
    /,
    *,
    failed: Annotated[bool, Parameter(negative=())] = False,
    jobs: str | None = None,
    json: Json = False,
) -> int:
    """Run parameter sets of a sweep again that failed or were stopped; after its end as a new run.

    A set whose predecessor failed (`after`, `job: same`) is left out, and named.

    Parameters
    ----------
    failed
        Run all failed sets again.
    jobs
        Run these sets again: numbers (3,7-9) or values (seed=3).
    """
    if failed is (jobs is not None):
        raise CliError("give either --failed or --jobs", EXIT_USAGE)
    client = settings.client()
    before = client.run(run)
    data = client.post(run_path(before.id, "sets/retry"), {"which": jobs})
    found = decode(data, RetriedView)
    if found.id != before.id and found.sweep is not None:
        # Both have the same name.
        output.note(
            f"{before.name} ({before.id}) has ended: {found.sweep.total:,} of its "
            f"{_total(before):,} sets are submitted as the new run {found.name} ({found.id})"
        )
    for why in found.left_out:
        output.note(why)
    return _tell(data, found, json)


def _total(run: RunView) -> int:
    return 0 if run.sweep is None else run.sweep.total


def stop_sets(run: str, which: str, json: bool) -> int:
    return act_on_sets(run, "stop", {"which": which}, json)


def resize(run: str, parallel: int, json: bool) -> int:
    return act_on_sets(run, "parallel", {"max_parallel": parallel}, json)


def act_on_sets(run: str, act: str, body: object, json: bool) -> int:
    data = settings.client().post(run_path(run, f"sets/{act}"), body)
    return _tell(data, decode(data, RunView), json)


def _tell(data: bytes, found: RunView, json: bool) -> int:
    if json:
        output.emit_json(data)
        return 0
    about = "" if found.sweep is None else f": {progress_of(found.sweep)}"
    output.emit(f"{found.name}: {found.status}{about}")
    return 0


def tell_failed(client: ControllerClient, run: RunView) -> None:
    """Say at the end of a sweep which sets failed, grouped by why, with their parameters."""
    if run.sweep is None or not run.sweep.failed:
        return
    failed = list(all_sets(client, run.id, status=SetStatus.FAILED))
    groups = failed_together(failed)
    for group in groups[:MAX_GROUPS]:
        output.note(str(group))
    left = sum(len(group.numbers) for group in groups[MAX_GROUPS:])
    if left:
        output.note(f"{left:,} more failed for other reasons: `fairlead ps {run.name} --jobs`")
    if any(one.running_at is not None for one in failed):
        output.note(f"`fairlead logs {run.name} --failed --tail 20` shows the end of their logs")


def with_failed_sets(client: ControllerClient, configuration: object, run: str) -> object:
    """Return the sweep's configuration with the sets that failed in that run, and no others.

    Raises CliError when none failed, or the configuration is no sweep.
    """
    sweep = configuration.get("sweep") if isinstance(configuration, dict) else None
    if not isinstance(configuration, dict) or not isinstance(sweep, dict):
        raise CliError("--failed-of: the configuration has no sweep", EXIT_USAGE)
    failed = list(all_sets(client, run, status=SetStatus.FAILED))
    if not failed:
        raise CliError(f"--failed-of: no parameter set of {run} failed")
    names = list(failed[0].parameters)
    rows = [[one.parameters[name] for name in names] for one in failed]
    return {**configuration, "sweep": with_sets(sweep, names, rows)}
