"""Questions about runs, events, attempts and logs, as values.

The API parses one from an address (`parse`), the client writes one into it (`Query.parameters`),
and services and stores take it as it is; a service narrows it to what its user may see. So a new
filter is a field here and a condition in the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar, TypeVar

import msgspec

from fairlead.model.costs import CostKey, CostPeriod
from fairlead.model.spec import Band
from fairlead.model.statuses import FINAL_RUN_STATUSES, RunStatus
from fairlead.model.sweep import SetStatus
from fairlead.wire.decoders import decoder_of

MAX_PAGE = 1000
MAX_ROWS = 1000
"""Rows of a window of a log, unless it is asked for more: empty lines are one byte each."""
Limit = Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
_Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
Q = TypeVar("Q", bound="Query")


class QueryError(ValueError):
    """A parameter asks for something that there is not."""

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class Query(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The parameters of a query. Unknown ones are refused by name: without its filter an answer
    would be a wrong one."""

    inner: ClassVar[frozenset[str]] = frozenset()
    """Fields that no address can set: a service fills them, or the dashboard."""

    def parameters(self) -> dict[str, object]:
        """Return the parameters of an address that asks this; defaults are left out."""
        written: dict[str, object] = msgspec.to_builtins(self)
        return written

    def check(self) -> None:
        """Raise QueryError for a value that no type refuses. A client leaves that to the
        controller, which may be newer and know more values."""


def parse(parameters: Mapping[str, str], shape: type[Q]) -> Q:
    """Return the query of an address. Raises msgspec.ValidationError, QueryError."""
    for name in parameters:
        if name in shape.inner:
            # The sentence of msgspec about a field that it does not know.
            raise msgspec.ValidationError(f"Object contains unknown field `{name}`")
    decoder_of(shape)
    query = msgspec.convert(dict(parameters), shape, strict=False)
    query.check()
    return query


class RunQuery(Query, frozen=True):
    """Runs, newest first.

    `all`: finished ones too. `cursor`: the `next_cursor` of the previous page (`before` is its old
    name). `status`: one or several, with commas between them. `user`: the owner. `name`: a pattern
    with `*` and `?`. `parent_id`: only the children of this run.
    """

    inner: ClassVar = frozenset({"band", "parent_id"})

    all: bool = False
    limit: Limit = 100
    cursor: str | None = None
    before: str | None = None
    status: str | None = None
    user: str | None = None
    name: str | None = None
    band: Band | None = None
    parent_id: str | None = None

    def check(self) -> None:
        _ = self.statuses

    @property
    def statuses(self) -> tuple[RunStatus, ...]:
        """Only runs with one of these; empty: with any."""
        text = self.status
        try:
            return tuple(RunStatus(word.strip()) for word in text.split(",")) if text else ()
        except ValueError:
            raise QueryError(
                f"{text!r} is no status: give one or several of {', '.join(RunStatus)}",
                field="status",
            ) from None

    @property
    def with_finished(self) -> bool:
        return self.all or not FINAL_RUN_STATUSES.isdisjoint(self.statuses)

    @property
    def last_known(self) -> str | None:
        """The id of the last run of the previous page."""
        return self.cursor or self.before


class EventQuery(Query, frozen=True):
    """Events, oldest first.

    `run`: id or name; for a store the id. `cursor`: the `next_cursor` of the previous page, or the
    `seq` of the last known event (`after` is its old name). `before`: the latest of those with a
    lower `seq`. `user`: of this user's runs; `node_id`: of attempts on this node.
    """

    inner: ClassVar = frozenset({"before", "user", "node_id"})

    run: str | None = None
    cursor: str | None = None
    after: Offset = 0
    limit: Limit = 1000
    before: int | None = None
    user: str | None = None
    node_id: str | None = None

    def check(self) -> None:
        _ = self.last_known

    @property
    def last_known(self) -> int:
        """The `seq` of the last known event; 0: none is known."""
        cursor = self.cursor
        if cursor is None:
            return self.after
        # `isdecimal` alone accepts the digits of other scripts; 19 digits may exceed a BIGINT.
        if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
            raise QueryError(
                f"{cursor!r} is not a cursor of this list: give the next_cursor of the previous "
                f"page",
                field="cursor",
            )
        return int(cursor) or self.after


class AttemptQuery(Query, frozen=True):
    """Attempts of one run, oldest first.

    `job`: as in the log's query; for a store the id. `incarnation`: a gang's, by number or id.
    `cursor`: the `next_cursor` of the previous page. `key`: the attempts with this id or number.
    """

    inner: ClassVar = frozenset({"key"})

    job: str | None = None
    occurrence: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] | None = None
    incarnation: str | None = None
    cursor: str | None = None
    limit: Limit = 1000
    key: str | None = None


class SetQuery(Query, frozen=True):
    """Parameter sets of one sweep, in the order of their numbers.

    `which`: numbers such as `3,7-9`, or values such as `seed=3,lr=0.1`, all of which must hold.
    `status`: one or several, with commas between them. `cursor`: the `next_cursor` of the previous
    page.
    """

    which: str | None = None
    status: str | None = None
    cursor: str | None = None
    limit: Limit = 1000

    def check(self) -> None:
        _ = self.statuses

    @property
    def statuses(self) -> tuple[SetStatus, ...]:
        """Only sets with one of these; empty: with any."""
        text = self.status
        try:
            return tuple(SetStatus(word.strip()) for word in text.split(",")) if text else ()
        except ValueError:
            raise QueryError(
                f"{text!r} is no status of a set: give one or several of {', '.join(SetStatus)}",
                field="status",
            ) from None


class WindowQuery(Query, frozen=True):
    """A part of a log as rows.

    `job` and `attempt` as in the log's query. One place: `offset` and `before` are exact (the
    `end` and `start` of another window), `near` is any offset, `at` a time; none: the log's end.
    The window ends at about `size` bytes, or at `rows` rows.
    """

    job: str | None = None
    attempt: str | None = None
    offset: Offset | None = None
    before: Offset | None = None
    near: Offset | None = None
    at: str | None = None
    size: _Size = 64 << 10
    rows: Limit = MAX_ROWS

    def check(self) -> None:
        starts = [
            name for name in ("offset", "before", "near", "at") if getattr(self, name) is not None
        ]
        if len(starts) > 1:
            raise QueryError(f"give one place, not {' and '.join(starts)}", field=starts[1])
        _ = self.time_ns

    @property
    def time_ns(self) -> int | None:
        """The time in `at`, in nanoseconds since 1970."""
        if self.at is None:
            return None
        try:
            at = datetime.fromisoformat(self.at)
        except ValueError:
            at = None
        if at is None or at.tzinfo is None:
            raise QueryError(
                f"{self.at!r} is not a time with its zone, such as 2026-01-31T12:00:00Z",
                field="at",
            )
        return int(at.timestamp() * 1e9)


class SearchQuery(Query, frozen=True):
    """Lines of a log.

    `job` and `attempt` as in the log's query. `text` is found as it is written, ASCII letters in
    both cases; with `regex` it is a regular expression (RE2) for a part of a line, all letters in
    both cases. `exact_case`: not in both. `offset`: the `searched_to` of the answer before.
    """

    text: _Pattern
    job: str | None = None
    attempt: str | None = None
    offset: Offset = 0
    limit: Limit = 200
    exact_case: bool = False
    regex: bool = False


DEFAULT_SECONDS = 30 * 86400.0
"""How far back costs are looked at, if nothing else is asked for."""


class CostsQuery(Query, frozen=True, kw_only=True):
    """`by`: the names of `CostKey`, separated by commas. `seconds`: how far back. `per`: a row
    for each of these; null: for the whole time."""

    by: str = "user,fleet"
    seconds: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = DEFAULT_SECONDS
    per: CostPeriod | None = None

    def keys(self) -> tuple[CostKey, ...]:
        return tuple(CostKey(one.strip()) for one in self.by.split(","))

    def check(self) -> None:
        known = tuple(CostKey)
        for one in self.by.split(","):
            if one.strip() not in known:
                raise QueryError(f"{one!r} is none of {', '.join(known)}", field="by")
