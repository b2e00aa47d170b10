"""Which set of another sweep has the parameters of each set of this one (docs/rules.md 11.13).

A retried sweep has fewer sets than the one before, so the numbers of equal sets differ.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

import msgspec

from controller.lifecycle.ranges import Ranges, union
from fairlead.model.sweep import ParameterSets

Pieces = tuple[tuple[int, int, int], ...]
"""Consecutive sets with consecutive counterparts: the first and the last own number, and the
number of the first one's counterpart."""
_encode = msgspec.json.Encoder().encode


def counterparts(own: ParameterSets, theirs: ParameterSets) -> dict[int, int]:
    """Return for each own set that has one the number of the set with the same parameters."""
    if own == theirs:
        return {number: number for number in range(len(own))}
    if set(own.names) != set(theirs.names):
        return {}
    known = {_row(theirs, number, own.names): number for number in range(len(theirs))}
    found = ((number, known.get(row)) for number, row in enumerate(own.rows))
    return {number: other for number, other in found if other is not None}


def _row(sets: ParameterSets, number: int, names: tuple[str, ...]) -> bytes:
    """Return the set as a row whose values are in the order of these names."""
    if sets.names == names:
        return sets.rows[number]
    values = sets.at(number)
    return _encode([values[name] for name in names])


def in_pieces(found: Mapping[int, int]) -> Pieces:
    """Return the counterparts as pieces; () if each has its own number."""
    if all(number == other for number, other in found.items()):
        return ()
    pieces: list[tuple[int, int, int]] = []
    for number, other in sorted(found.items()):
        if pieces:
            first, last, theirs = pieces[-1]
            if number == last + 1 and other == theirs + number - first:
                pieces[-1] = (first, number, theirs)
                continue
        pieces.append((number, number, other))
    return tuple(pieces)


def own_numbers(theirs: Ranges, pieces: Pieces) -> Ranges:
    """Return the own sets whose counterparts are among these."""
    if not pieces:
        return theirs
    lasts = [last for _, last in theirs]
    found: list[tuple[int, int]] = []
    for first, last, begin in pieces:
        end, shift = begin + last - first, first - begin
        at = bisect_left(lasts, begin)
        while at < len(theirs) and theirs[at][0] <= end:
            found.append((max(theirs[at][0], begin) + shift, min(theirs[at][1], end) + shift))
            at += 1
    return union(tuple(found))


def counterpart_of(number: int, pieces: Pieces) -> int:
    """Return the number of an own set's counterpart; without one, its own number."""
    found = (begin + number - first for first, last, begin in pieces if first <= number <= last)
    return next(found, number)
