"""Pages of lists: `limit` and `cursor` in, `next_cursor` out.

A cursor is the `next_cursor` of the previous page; null means that it was the last page. Entries
that are added or removed meanwhile neither repeat nor hide others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from fairlead.queries import MAX_PAGE, AttemptQuery, EventQuery, Limit, Query, RunQuery

T = TypeVar("T")


class PageQuery(Query, frozen=True):
    """`cursor`: the `next_cursor` of the previous page."""

    limit: Limit = MAX_PAGE
    cursor: str | None = None


L = TypeVar("L", RunQuery, EventQuery, AttemptQuery)


def one_more(query: L) -> L:
    """Return the query for a page and one entry more, which shows whether another page follows."""
    return msgspec.structs.replace(query, limit=query.limit + 1)


def page(
    everything: Sequence[T], query: PageQuery, key: Callable[[T], str]
) -> tuple[list[T], str | None]:
    """Return a page of a list that is short enough to have at once, in the order of its unique
    `key`."""
    ordered = sorted(everything, key=key)
    after = [entry for entry in ordered if query.cursor is None or key(entry) > query.cursor]
    return cut(after, query.limit, key)


def cut(found: Sequence[T], limit: int, key: Callable[[T], str]) -> tuple[list[T], str | None]:
    """Return the page of a list that was queried with `one_more` entry than `limit`."""
    kept = list(found[:limit])
    return kept, key(kept[-1]) if len(found) > limit else None
