"""Takes secrets out of a stream of bytes, wherever the pieces are cut.

What could be the beginning of a secret is held back until the bytes after it tell; nothing else
waits. A job can always say its secrets in other words: this guards against accidents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from runner.schemas import SHORTEST_SECRET

MASK = b"***"


class Masker:
    def __init__(self, secrets: Iterable[str]) -> None:
        self._needles = _needles(secrets)
        self._pattern = re.compile(b"|".join(map(re.escape, self._needles)))
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
        whole = [m.span() for m in self._pattern.finditer(data) if m.end() > begin]
        for at in range(begin, len(data)):
            within = any(start < at < end for start, end in whole)
            if not within and self._may_begin(data[at:]):
                return at
        return len(data)

    def _may_begin(self, end: bytes) -> bool:
        return any(len(n) > len(end) and n.startswith(end) for n in self._needles)


def _needles(secrets: Iterable[str]) -> list[bytes]:
    """Longest first, so that of two that begin alike the longer is masked. The lines of a secret
    of several (a key) count too, since tools print them one by one."""
    texts = {part for secret in secrets for part in (secret, *secret.splitlines())}
    needles = {text.encode() for text in texts if text.strip()}
    return sorted((n for n in needles if len(n) >= SHORTEST_SECRET), key=lambda n: (-len(n), n))
