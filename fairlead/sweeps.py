"""A sweep's sets as a user reads them: how far it is, and the rows of their table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from fairlead.documents import SetView, SweepView
from fairlead.errors import UsageError
from fairlead.model.sweep import SetStatus, Value, as_text
from fairlead.queries import SetQuery
from fairlead.rest import ControllerClient, decode, run_path


class SetsAnswer(msgspec.Struct):
    sets: list[SetView]
    next_cursor: str | None = None


def progress_of(sweep: SweepView) -> str:
    """Return `412 of 1,000 done, 3 failed; about 5m left`."""
    parts = [f"{sweep.done:,} of {sweep.total:,} done"]
    if sweep.failed:
        parts.append(f"{sweep.failed:,} failed")
    if sweep.stopped:
        parts.append(f"{sweep.stopped:,} stopped")
    left = "" if sweep.seconds_left is None else f"; about {_roughly(sweep.seconds_left)} left"
    return ", ".join(parts) + left


def _roughly(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(1, round(seconds))}s"


def all_sets(
    client: ControllerClient, run: str, which: str | None = None, status: str | None = None
) -> Iterator[SetView]:
    """Yield the chosen sets, page by page. Raises ApiError, ConnectionLost."""
    query = SetQuery(which=which, status=status)
    while True:
        data = client.get(run_path(run, "sets"), **query.parameters())
        page = decode(data, SetsAnswer)
        yield from page.sets
        if page.next_cursor is None:
            return
        query = msgspec.structs.replace(query, cursor=page.next_cursor)


def written(one: SetView) -> str:
    """Return `lr=0.001 seed=3`."""
    return " ".join(f"{name}={as_text(value)}" for name, value in one.parameters.items())


def outcome_of(one: SetView) -> str:
    """Return why a set ended, in a few words; empty: it has not, or it is done."""
    if one.status is not SetStatus.FAILED:
        return ""
    if one.exit_code is not None:
        return f"exit code {one.exit_code}"
    return str(one.termination_reason or "")


def sets_as_written(
    params: Mapping[str, Sequence[Value]] | Sequence[Mapping[str, Value]],
) -> dict[str, object]:
    """Return the `sweep` of these sets: a matrix, or the sets themselves. Raises UsageError."""
    if isinstance(params, Mapping):
        return {"matrix": {name: list(values) for name, values in params.items()}}
    if not params:
        raise UsageError("params: give at least one parameter set")
    names = list(params[0])
    for number, one in enumerate(params):
        if set(one) != set(names):
            raise UsageError(f"params[{number}] has {', '.join(one)}, not {', '.join(names)}")
    return {"sets": {"names": names, "rows": [[one[name] for name in names] for one in params]}}
