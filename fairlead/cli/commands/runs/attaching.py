"""What comes after a submission or an order, and `attach` and `wait`: follow runs here, exit with
their status.

Apart from `applying`, whose libraries read files: who follows a run needs none of them.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.errors import EXIT_INTERRUPTED, CliError
from fairlead.cli.log_start import tail_of
from fairlead.patience import Outages
from fairlead.rest import ControllerClient, decode, run_path

if TYPE_CHECKING:
    from fairlead.documents.runs import RunView


class _Submitted(msgspec.Struct, frozen=True):
    """What is told of a run at once; all types of its document take longer to load."""

    id: str
    name: str
    status: str
    schedule: tuple[str, ...] = ()
    next_triggered_at: str | None = None


class _Ordered(msgspec.Struct, frozen=True):
    """What is told of a run that was given an order, as to stop."""

    name: str
    status: str
    suspended: bool


def tell(data: bytes, json: bool) -> int:
    """Print the controller's answer to an order. Return the exit status."""
    if json:
        output.emit_json(data)
        return 0
    run = decode(data, _Ordered)
    suspended = " (suspended)" if run.suspended else ""
    output.emit(f"{run.name}: {run.status}{suspended}")
    return 0


def go_on(client: ControllerClient, data: bytes, *, kept: bool, detach: bool, json: bool) -> int:
    """Continue with the run that was submitted, or that was `kept` instead."""
    run = decode(data, _Submitted)
    if kept:
        output.note(f"kept {run.name}, which is already live ({run.status}); nothing was submitted")
    if detach:
        if json:
            output.emit_json(data)
        else:
            output.emit(run.name)
        return 0
    if not kept:
        output.note(f"submitted {run.name}")
    if run.schedule:
        output.note(f"{run.name} runs next at {run.next_triggered_at}; it goes on until stopped")
        if json:
            output.emit_json(data)
        return 0
    from fairlead.documents.runs import RunView

    return follow_here(client, decode(data, RunView), json)


def attach(run: str, *, job: str | None = None, tail: int | None = None, json: bool = False) -> int:
    """Follow a live run. Return the exit status."""
    from fairlead.follow import until_answered

    client, lines = settings.client(), tail_of(tail)
    found = until_answered(Outages(output.note), partial(client.run, run))
    return follow_here(client, found, json, job, may_stop=False, tail=lines)


def wait(runs: tuple[str, ...], *, json: bool = False) -> int:
    """Wait for the end of runs. Return the exit status: that of the first one that failed."""
    from fairlead.follow import until_answered

    client, statuses = settings.client(), []
    for run in runs:
        found = until_answered(Outages(output.note), partial(client.run, run))
        statuses.append(follow_here(client, found, json, may_stop=False, quiet=True))
        if statuses[-1] == EXIT_INTERRUPTED:
            break
    return next((status for status in statuses if status), 0)


def follow_here(
    client: ControllerClient,
    run: RunView,
    json: bool,
    job: str | None = None,
    *,
    may_stop: bool = True,
    tail: int | None = None,
    quiet: bool = False,
) -> int:
    """`quiet`: without the output of its jobs."""
    from fairlead.cli import follow
    from fairlead.cli.log_start import Start
    from fairlead.summaries.progress import exit_status, why

    try:
        if run.sweep is not None and job is not None:
            raise CliError(f"--job: `fairlead logs -f {run.name} {job}` shows one job of a sweep")
        shown = follow.Shown.NONE if quiet else follow.Shown.USUAL
        start = Start(tail=tail)
        final = follow.attach(client, run, job, beside_json=json, start=start, shown=shown)
    except KeyboardInterrupt:
        return interrupted(client, run, may_stop)
    if json:
        output.emit_json(client.get(run_path(run.id)))
    if final.sweep is not None:
        from fairlead.cli.commands.runs.sweeps import tell_failed

        tell_failed(client, final)
    output.note(f"{final.name}: {final.status}: {why(final)}")
    return exit_status(final)


def interrupted(client: ControllerClient, run: RunView, may_stop: bool, also: str = "") -> int:
    """Leave the run after Ctrl-C, or stop it if its user wants that. Return the exit status."""
    with output.alone_on_terminals():
        output.write_all(output.STDERR_FD, b"\n")
        if may_stop and _wants_stop(run.name):
            client.post(run_path(run.id, "stop"), {"abort": False})
            output.note(f"{run.name} is being stopped")
        else:
            output.note(
                f"detached; {run.name} goes on (`fairlead attach {run.name}`, "
                f"`fairlead logs -f {run.name}`, `fairlead stop {run.name}`){also}"
            )
    return EXIT_INTERRUPTED


def _wants_stop(name: str) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    output.write_all(output.STDERR_FD, f"Stop {name}? [y/N] ".encode())
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    # Ctrl-C twice: the first one asked, the second one leaves without an answer.
    except KeyboardInterrupt:
        return False
