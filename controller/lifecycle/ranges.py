"""Numbers of parameter sets as ranges: 10,000 sets that are done are one pair of numbers.

Ranges are (first, last), in their order, and none is next to another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Ranges = tuple[tuple[int, int], ...]


def in_ranges(numbers: Iterable[int]) -> Ranges:
    """Return the numbers as ranges."""
    return _merged((number, number) for number in sorted(set(numbers)))


def numbers_in(ranges: Iterable[tuple[int, int]]) -> Iterator[int]:
    for first, last in ranges:
        yield from range(first, last + 1)


def written(ranges: Iterable[tuple[int, int]]) -> str:
    """Return the numbers as users write them: `3,7-9`."""
    pairs = (f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)
    return ",".join(pairs)


def size(ranges: Ranges) -> int:
    return sum(last - first + 1 for first, last in ranges)


def contains(ranges: Ranges, number: int) -> bool:
    return any(first <= number <= last for first, last in ranges)


def union(*several: Ranges) -> Ranges:
    """Return the numbers that are in any of these."""
    return _merged(sorted(pair for ranges in several for pair in ranges))


def without(ranges: Ranges, others: Ranges) -> Ranges:
    """Return the numbers of the first that are not in the second."""
    left: list[tuple[int, int]] = []
    at = 0
    for first, last in ranges:
        while at < len(others) and others[at][1] < first:
            at += 1
        here = at
        while here < len(others) and others[here][0] <= last:
            if others[here][0] > first:
                left.append((first, others[here][0] - 1))
            first = others[here][1] + 1
            here += 1
        if first <= last:
            left.append((first, last))
    return tuple(left)


def common(ranges: Ranges, others: Ranges) -> Ranges:
    """Return the numbers that are in both."""
    return without(ranges, without(ranges, others))


def _merged(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """Merge pairs that are in the order of their first numbers."""
    found: list[tuple[int, int]] = []
    for first, last in pairs:
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return tuple(found)
