"""`stop`: orders runs to end.

The command is in `actions`; see `applying` for why this is apart. What reads the answer is loaded
while the controller works.
"""

from __future__ import annotations

from functools import partial

from fairlead import settings
from fairlead.cli import quick
from fairlead.cli.errors import EXIT_FAILED, EXIT_USAGE, CliError
from fairlead.errors import ApiError
from fairlead.rest import run_path

_TELLING = "fairlead.cli.commands.runs.attaching"


def stop(
    run: str,
    more: tuple[str, ...] = (),
    *,
    abort: bool = False,
    jobs: str | None = None,
    json: bool = False,
) -> int:
    """Stop the runs. Return the exit status. Raises CliError."""
    if jobs is not None:
        from fairlead.cli.commands.runs.sweeps import stop_sets

        if more or abort:
            raise CliError("--jobs stops parameter sets of one run, with their grace", EXIT_USAGE)
        return stop_sets(run, jobs, json)
    if not more:
        return _stop(run, abort, json)
    failed = 0
    for one in (run, *more):
        try:
            _stop(one, abort, json)
        except ApiError as error:
            from fairlead.cli import output

            output.note(f"{one}: {error}")
            failed += 1
    return EXIT_FAILED if failed else 0


def _stop(run: str, abort: bool, json: bool) -> int:
    client = settings.client()
    client.meanwhile(partial(quick.load, _TELLING))
    # As it is sent: to load what writes JSON would take longer than all else before the request.
    data = client.post(run_path(run, "stop"), b'{"abort":true}' if abort else b'{"abort":false}')
    from fairlead.cli.commands.runs.attaching import tell

    return tell(data, json)
