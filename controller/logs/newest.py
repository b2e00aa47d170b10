"""The pieces of logs that were written last: a reader at a log's end gets them from memory.

To fetch from the disk what this process had just put there took a turn of a thread, an open file
and a copy for each piece: a sixth of the CPU time for a log that one reader follows.
"""

from __future__ import annotations

from controller.logs.segments import READ_BYTES, Position, Written

MAX_BYTES = 8 << 20
"""Of all logs together; what is older is on the disk alone."""
_MIN_PIECE = 4096
"""A smaller piece counts as this much, so that there are not too many."""


class NewestPieces:
    """The newest pieces of the logs that have readers here, and where each of these logs ends."""

    def __init__(self) -> None:
        self._size = 0
        self._pieces: dict[tuple[str, Position], Written] = {}
        self._ends: dict[str, Position] = {}

    def add(self, attempt_id: str, written: Written) -> None:
        self._ends[attempt_id] = written.after
        # A reader takes no more than this at once from the disk, and holds it while it sends.
        if len(written.data) <= READ_BYTES:
            self._pieces[attempt_id, written.position] = written
            self._size += max(len(written.data), _MIN_PIECE)
        while self._size > MAX_BYTES:
            self._drop(next(iter(self._pieces)))

    def at(self, attempt_id: str, position: Position) -> Written | None:
        """Return what was written at this position, with the pieces that followed it."""
        first = self._pieces.get((attempt_id, position))
        if first is None or (attempt_id, first.after) not in self._pieces:
            return first
        joined, size, after = [first.data], len(first.data), first.after
        while (found := self._pieces.get((attempt_id, after))) is not None:
            size += len(found.data)
            if size > READ_BYTES:
                break
            joined.append(found.data)
            after = found.after
        return Written(position, b"".join(joined), after)

    def is_end(self, attempt_id: str, position: Position) -> bool:
        """Return whether nothing was written after this position; False where that isn't known."""
        return self._ends.get(attempt_id) == position

    def forget(self, attempt_id: str) -> None:
        """Forget this log: it has no reader, or another writer may go on."""
        if self._ends.pop(attempt_id, None) is not None:
            for key in [key for key in self._pieces if key[0] == attempt_id]:
                self._drop(key)

    def _drop(self, key: tuple[str, Position]) -> None:
        self._size -= max(len(self._pieces.pop(key).data), _MIN_PIECE)
