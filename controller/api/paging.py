"""Pages of lists: `limit` and `cursor` in, `next_cursor` out.

A cursor is the `next_cursor` of the previous page; null means that it was the last page. Entries
that are added or removed meanwhile neither repeat nor hide others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import msgspec

from controller.service.errors import Invalid

T = TypeVar("T")
MOST = 1000
Limit = Annotated[int, msgspec.Meta(ge=1, le=MOST)]


class PageQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`cursor`: the `next_cursor` of the previous page."""

    limit: Limit = MOST
    cursor: str | None = None


def page(
    everything: Sequence[T], query: PageQuery, key: Callable[[T], str]
) -> tuple[list[T], str | None]:
    """Return a page of a list that is short enough to have at once, in the order of its unique
    `key`."""
    ordered = sorted(everything, key=key)
    after = [entry for entry in ordered if query.cursor is None or key(entry) > query.cursor]
    return cut(after, query.limit, key)


def cut(found: Sequence[T], limit: int, key: Callable[[T], str]) -> tuple[list[T], str | None]:
    """Return the page of a list that was queried with one more entry than `limit`."""
    kept = list(found[:limit])
    return kept, key(kept[-1]) if len(found) > limit else None


def number(cursor: str | None) -> int:
    """Return the number of a cursor that counts. Raises Invalid."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        raise Invalid(
            f"{cursor!r} is not a cursor of this list: give the next_cursor of the previous page",
            field="cursor",
        )
    return int(cursor)
