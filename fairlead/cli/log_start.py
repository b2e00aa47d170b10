"""Where in a log to begin: `--tail` and `--since`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from fairlead.cli.errors import EXIT_USAGE, CliError

if TYPE_CHECKING:
    from fairlead.wire.frames import Frame


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The place in a log to begin at. `tail`: lines; `since`: Unix seconds."""

    tail: int | None = None
    since: float | None = None

    @property
    def is_given(self) -> bool:
        return self.tail is not None or self.since is not None

    def offset(self, stored: Iterable[Frame]) -> int:
        """Return the offset of that place in what is stored."""
        begun, end = 0, 0
        starts: deque[int] = deque([0], maxlen=None if self.tail is None else self.tail + 1)
        for frame in stored:
            end = frame.end
            if self.since is not None and frame.time_ns < self.since * 1e9:
                begun = end
            position = frame.offset
            for part in frame.payload.split(b"\n")[:-1] if self.tail is not None else ():
                position += len(part) + 1
                starts.append(position)
        if self.tail is None:
            return begun
        lines = [start for start in starts if start < end][-self.tail :] if self.tail else []
        return max(begun, lines[0] if lines else end)


def tail_of(tail: int | None) -> int | None:
    """Return the value of `--tail`. Raises CliError."""
    if tail is not None and tail < 0:
        raise CliError(f"--tail: {tail} is less than 0", EXIT_USAGE)
    return tail
