"""Takes secrets out of a stream of bytes, wherever the pieces are cut.

What could be the beginning of a secret is held back until the bytes after it tell; nothing else
waits. A job can always say its secrets in other words: this guards against accidents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from runner.schemas import SHORTEST_SECRET

MASK = b"***"
_SHARED = 3
"""Bytes by which needles are told apart first; fewer than the shortest has."""


class Masker:
    def __init__(self, secrets: Iterable[str]) -> None:
        self._needles = _needles(secrets)
        self._pattern = re.compile(_any_of(self._needles))
        self._by_start: dict[bytes, list[bytes]] = {}
        for needle in self._needles:
            self._by_start.setdefault(needle[:SHORTEST_SECRET], []).append(needle)
        self._starts = re.compile(b"(?=" + _any_of(list(self._by_start)) + b")")
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What may be shown now."""
        if not self._needles:
            return data
        data = self._held + data
        keep = self._start_of_a_needle(data)
        self._held = data[keep:]
        return self._pattern.sub(MASK, data[:keep])

    def rest(self) -> bytes:
        """At the end: what was held back and became no secret."""
        held, self._held = self._held, b""
        return self._pattern.sub(MASK, held) if self._needles else held

    def _start_of_a_needle(self, data: bytes) -> int:
        """Where the unfinished end of `data` begins: the first place from which all that follows is
        the beginning of a needle, unless that place lies within a whole one."""
        begin = max(0, len(data) - len(self._needles[0]) + 1)
        whole: list[tuple[int, int]] | None = None
        for at in self._possible_starts(data, begin):
            if not self._may_begin(data, at):
                continue
            if whole is None:
                whole = [m.span() for m in self._pattern.finditer(data) if m.end() > begin]
            if not any(start < at < end for start, end in whole):
                return at
        return len(data)

    def _possible_starts(self, data: bytes, begin: int) -> Iterator[int]:
        """In order. The last few bytes may be the start of any needle."""
        last = max(begin, len(data) - SHORTEST_SECRET + 1)
        for match in self._starts.finditer(data, begin):
            if match.start() < last:
                yield match.start()
        yield from range(last, len(data))

    def _may_begin(self, data: bytes, at: int) -> bool:
        end = data[at:]
        if len(end) < SHORTEST_SECRET:
            return any(start.startswith(end) for start in self._by_start)
        alike = self._by_start.get(end[:SHORTEST_SECRET], ())
        return any(len(n) > len(end) and n.startswith(end) for n in alike)


def _any_of(needles: Sequence[bytes], depth: int = _SHARED) -> bytes:
    """A pattern of all of them, the earlier first. Those that begin alike are told apart by their
    next byte, so that a place where none begins costs the same for one needle and for thousands."""
    if depth == 0 or len(needles) < 2:
        return b"|".join(map(re.escape, needles))
    by_first: dict[bytes, list[bytes]] = {}
    for needle in needles:
        by_first.setdefault(needle[:1], []).append(needle[1:])
    return b"|".join(
        re.escape(first) + b"(?:" + _any_of(rests, depth - 1) + b")"
        for first, rests in by_first.items()
    )


def _needles(secrets: Iterable[str]) -> list[bytes]:
    """Longest first, so that of two that begin alike the longer is masked. The lines of a secret
    of several (a key) count too, since tools print them one by one."""
    texts = {part for secret in secrets for part in (secret, *secret.splitlines())}
    needles = {text.encode() for text in texts if text.strip()}
    return sorted((n for n in needles if len(n) >= SHORTEST_SECRET), key=lambda n: (-len(n), n))
