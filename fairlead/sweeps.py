"""A sweep's sets as a user reads them: how far it is, and the rows of their table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from fairlead.documents.sweeps import SetView, SweepView
from fairlead.errors import UsageError
from fairlead.model.sweep import SetStatus, Value, as_text
from fairlead.queries import SetQuery
from fairlead.rest import ControllerClient, decode, run_path

MAX_NAMED = 5
"""The number of values, or of jobs, that a sentence names."""


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


class FailedSets(msgspec.Struct, frozen=True, kw_only=True):
    """Sets that failed for the same reason. `parameters`: the values that they have, by name."""

    why: str
    numbers: tuple[int, ...]
    parameters: dict[str, tuple[str, ...]]

    def __str__(self) -> str:
        """Return `3 jobs failed (lr=0.001; seed=2, 5, 8): exit code 1: jobs 2,5,8`."""
        if len(self.numbers) == 1:
            about = " ".join(f"{name}={values[0]}" for name, values in self.parameters.items())
            return f"job {self.numbers[0]} failed ({about}): {self.why}"
        # What they have in common comes first: it may be the cause.
        by_spread = sorted(self.parameters.items(), key=lambda found: len(found[1]) > 1)
        about = "; ".join(f"{name}={_few(values)}" for name, values in by_spread)
        which = _few(_in_ranges(self.numbers), ",")
        return f"{len(self.numbers):,} jobs failed ({about}): {self.why}: jobs {which}"


def failed_together(failed: Iterable[SetView]) -> list[FailedSets]:
    """Return the failed sets grouped by why they failed, the largest groups first."""
    alike: dict[tuple[str | None, int | None], list[SetView]] = {}
    for one in failed:
        alike.setdefault((one.termination_reason, one.exit_code), []).append(one)
    groups = [
        FailedSets(
            why=_why(several),
            numbers=tuple(one.number for one in several),
            parameters={
                name: tuple(dict.fromkeys(as_text(one.parameters[name]) for one in several))
                for name in several[0].parameters
            },
        )
        for several in alike.values()
    ]
    return sorted(groups, key=lambda group: (-len(group.numbers), group.numbers))


def _why(several: Sequence[SetView]) -> str:
    """Return the message of these sets, or what they have in common if each has its own."""
    messages = {one.message or outcome_of(one) for one in several}
    return messages.pop() if len(messages) == 1 else outcome_of(several[0])


def _few(words: Sequence[str], comma: str = ", ") -> str:
    left = len(words) - MAX_NAMED
    return comma.join(words) if left <= 0 else f"{comma.join(words[:MAX_NAMED])} and {left:,} more"


def _in_ranges(numbers: Iterable[int]) -> list[str]:
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] == number - 1:
            found[-1] = [found[-1][0], number]
        else:
            found.append([number])
    return ["-".join(map(str, one)) for one in found]


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
