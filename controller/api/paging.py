"""Pages of lists, one style for all: `limit` and `cursor` in, `next_cursor` out.

A cursor is what `next_cursor` of the page before was; null there means that this was the last one.
What is added or removed meanwhile neither repeats nor hides the others.
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
    """`cursor`: the `next_cursor` of the page before."""

    limit: Limit = MOST
    cursor: str | None = None


def page(
    everything: Sequence[T], query: PageQuery, key: Callable[[T], str]
) -> tuple[list[T], str | None]:
    """The page of a list that is short enough to be at hand, in the order of its unique `key`."""
    ordered = sorted(everything, key=key)
    after = [entry for entry in ordered if query.cursor is None or key(entry) > query.cursor]
    return cut(after, query.limit, key)


def cut(found: Sequence[T], limit: int, key: Callable[[T], str]) -> tuple[list[T], str | None]:
    """The page of what was found when one more than `limit` was asked for."""
    kept = list(found[:limit])
    return kept, key(kept[-1]) if len(found) > limit else None


def number(cursor: str | None) -> int:
    """Of a cursor that counts. Raises Invalid."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        raise Invalid(
            f"{cursor!r} is no cursor of this list: give the next_cursor of the page before",
            field="cursor",
        )
    return int(cursor)
