"""What an attempt's log still has to say when its runner writes no more.

A GPU that breaks just before its job ends is often known only when the runner's log is closed. The
line is then added here, behind everything that the runner wrote, so that it is there however the
job ended; a repeated look finds it and adds nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from controller.logs.store import LogStore, LogWriter
from runner.schemas.frames import Decoder, Frame, Stream, encode, notice_line
from shim.schemas import Notice


async def say_rest(
    logs: LogStore, writer: LogWriter, attempt_id: str, notices: Sequence[Notice]
) -> None:
    """Add the notices that the stored log has not. Raises OSError."""
    if not notices:
        return
    said, at_line_start = await _system_lines(logs, attempt_id)
    lead = b"" if at_line_start else b"\n"
    for notice in notices:
        line = notice_line(notice.text)
        if line in said:
            continue
        told = Frame(writer.end, int(notice.at * 1e9), Stream.SYSTEM, lead + line)
        await writer.append(encode(told))
        said.add(line)
        lead = b""


async def _system_lines(logs: LogStore, attempt_id: str) -> tuple[set[bytes], bool]:
    """The lines that are no output of the job, and whether the log ends with a whole line."""
    decoder, last = Decoder(), b"\n"
    lines: set[bytes] = set()
    async with contextlib.aclosing(logs.read(attempt_id, 0)) as pieces:
        async for piece in pieces:
            for frame in decoder.feed(piece):
                last = frame.payload[-1:] or last
                if frame.stream is Stream.SYSTEM:
                    lines.add(frame.payload.lstrip(b"\n"))
    return lines, last == b"\n"
