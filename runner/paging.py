"""What `GET /v1/logs` answers: a page of whole frames."""

from __future__ import annotations

from typing import NamedTuple

from runner.schemas import LOG_COMPLETE_HEADER, LOG_END_HEADER
from runner.segments import LogReader

PAGE_SIZE = 4 << 20
"""About how much one page has at most; the reader asks again from where it ends."""


class Page(NamedTuple):
    """`complete`: the job has ended and this reaches the end of its output. `end`: where the next
    page begins."""

    frames: bytes
    complete: bool
    end: int

    @property
    def headers(self) -> dict[str, str]:
        complete = "true" if self.complete else "false"
        return {
            "Content-Type": "application/octet-stream",
            LOG_COMPLETE_HEADER: complete,
            LOG_END_HEADER: str(self.end),
        }


def next_page(reader: LogReader, size: int = PAGE_SIZE) -> Page:
    """Raises BadFrame and OSError as `LogReader.read` does."""
    frames = bytearray()
    while len(frames) < size and (piece := reader.read(size)):
        frames += piece
    return Page(bytes(frames), reader.at_end, reader.offset)
