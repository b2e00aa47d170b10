"""A search of one stored log for what a reader sees of it: a bounded part for each question.

What is on the screen is searched: sequences for colours and the like are left out, and what a
carriage return let a line write over. Blocking functions, as those of `windows`.
"""

from __future__ import annotations

import codecs
import re
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Protocol

import msgspec
import re2

from controller.clock import iso_of_job
from controller.logs.windows import ROW_BYTES, KnownLog, frames
from fairlead.wire.frames import HEADER_SIZE, Frame, tail_from

SEARCH_BYTES = 32 << 20
"""So much of the log is searched for one request."""
SEARCH_SECONDS = 0.5
_BLOCK_BYTES = 1 << 20
_CONTEXT_BYTES = 200
_MAX_PROGRAM_BYTES = 1 << 20
"""What a compiled pattern may take; RE2 needs time that is linear in the text for all of them."""


class LogMatch(msgspec.Struct, frozen=True, kw_only=True):
    """One line that matches. `offset`: where the match begins; `text`: what is around it, as a
    terminal shows it."""

    offset: int
    at: str
    stream: str
    text: str


class LogSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The matches before `searched_to`; at `log_end` all is searched."""

    matches: tuple[LogMatch, ...]
    searched_to: int
    log_end: int


NOTHING = LogSearch(matches=(), searched_to=0, log_end=0)
"""The answer about a log that has not begun."""


class Wanted(Protocol):
    """What is searched for."""

    def matches(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Yield the first match of each line that matches: its begin and its end."""


class Literal:
    """A text as it is written. Without `exact_case` ASCII letters match in both cases."""

    def __init__(self, text: str, *, exact_case: bool) -> None:
        asked = text.encode(errors="replace")
        self._exact_case = exact_case
        # `lower` of bytes changes ASCII alone: with that of a str, places would move.
        self._needle = asked if exact_case else asked.lower()

    def matches(self, text: bytes) -> Iterator[tuple[int, int]]:
        folded = text if self._exact_case else text.lower()
        at = folded.find(self._needle)
        while at >= 0:
            end = at + len(self._needle)
            yield at, end
            after = folded.find(b"\n", end)
            at = -1 if after < 0 else folded.find(self._needle, after)


_EACH_LINE = "(?m)"


class BadPattern(ValueError):
    """The pattern is none of RE2."""


class Pattern:
    """A regular expression in the syntax of RE2, within one line. It takes linear time, whatever
    the pattern is, and other threads go on meanwhile. Raises BadPattern."""

    def __init__(self, text: str, *, exact_case: bool) -> None:
        options = re2.Options()
        options.case_sensitive = exact_case
        options.never_nl = True
        # RE2 would write each bad pattern of a user to stderr.
        options.log_errors = False
        options.max_mem = _MAX_PROGRAM_BYTES
        try:
            self._pattern = re2.compile(f"{_EACH_LINE}{text}", options)
        # UnicodeEncodeError: half of a surrogate pair, which has no UTF-8.
        except (re2.error, UnicodeEncodeError) as error:
            why = error.args[0] if error.args else b""
            text = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
            # It repeats the pattern with what was put before it.
            raise BadPattern(text.replace(f": {_EACH_LINE}", ": ", 1)) from None

    def matches(self, text: bytes) -> Iterator[tuple[int, int]]:
        decoded = _as_text(text)
        at, offset, line_end = 0, 0, -1
        for match in self._pattern.finditer(decoded):
            begin, end = match.span()
            if begin <= line_end or begin == len(decoded):
                continue
            offset += len(decoded[at:begin].encode())
            at = begin
            yield offset, offset + len(decoded[begin:end].encode())
            after = decoded.find("\n", end)
            line_end = len(decoded) if after < 0 else after


def _as_text(text: bytes) -> str:
    """Return the text with a mark of one byte for each byte that is not UTF-8, so that places stay
    what they are."""
    return text.decode(errors=_MARKED)


def _mark(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\x1a" * (error.end - error.start), error.end


_MARKED = "fairlead-marked"
codecs.register_error(_MARKED, _mark)


def wanted(text: str, *, exact_case: bool = False, is_pattern: bool = False) -> Wanted:
    """Return what a search for this text looks for. Raises BadPattern."""
    if is_pattern:
        return Pattern(text, exact_case=exact_case)
    return Literal(text, exact_case=exact_case)


def search(known: KnownLog, folder: Path, wanted: Wanted, offset: int, most: int) -> LogSearch:
    """Return the lines from `offset` on that match. At most SEARCH_BYTES or SEARCH_SECONDS of the
    log are searched."""
    give_up_at = time.monotonic() + SEARCH_SECONDS
    matches: list[LogMatch] = []
    at, kept = offset, list[Frame]()
    stored = frames(folder, offset)
    while block := list(_block(stored)):
        texts = _Joined([*kept, *block])
        at = texts.end
        for match in texts.lines_with(wanted):
            # The last line of a block comes again with the next block.
            if matches and match.offset <= matches[-1].offset:
                continue
            matches.append(match)
            if len(matches) == most:
                return _answer(matches, texts.line_end(match.offset), known)
        kept = texts.last_line()
        if at - offset >= SEARCH_BYTES or time.monotonic() >= give_up_at:
            break
    return _answer(matches, at, known)


def _answer(matches: list[LogMatch], searched_to: int, known: KnownLog) -> LogSearch:
    return LogSearch(matches=tuple(matches), searched_to=searched_to, log_end=known.end())


def _block(stored: Iterator[Frame]) -> Iterator[Frame]:
    size = 0
    for frame in stored:
        yield frame
        size += len(frame.payload) + HEADER_SIZE
        if size >= _BLOCK_BYTES:
            return


# -- what is on the screen ------------------------------------------------------------------

_PRINTED = bytes(byte for byte in range(256) if byte in b"\n\t" or 0x20 <= byte != 0x7F)
_BEYOND_ASCII = rb"\xc2[\x80-\x9f]|\xe2\x80[\x8e\x8f\xaa-\xae]|\xe2\x81[\xa6-\xa9]"
"""Controls of a terminal (C1), and of the direction of writing."""
_RARE = re.compile(_BEYOND_ASCII)
_COLOUR = re.compile(rb"\x1b\[[0-9;:]*m")
_HIDDEN = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]?"  # CSI: colours, moves
    rb"|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # OSC: titles, links
    rb"|\x1b[PX^_][^\x1b\n]*(?:\x1b\\)?"  # other strings
    rb"|\x1b[ -/]*[0-~]?"
    rb"|[\x00-\x08\x0b-\x1f\x7f]|" + _BEYOND_ASCII
)
"""As `static/ansi.js` leaves it out."""


class Visible:
    """What a reader sees of a text, and where in the text it stands."""

    def __init__(self, text: bytes) -> None:
        self._stored = text
        self._starts: tuple[list[int], list[int]] | None = None
        self.text = text
        if _is_plain(text):
            self._starts = [0], [0]
        elif not _is_plain(uncoloured := _COLOUR.sub(b"", text)):
            self.text = b"".join(text[begin:end] for begin, end in _shown(text))
        else:
            self.text = uncoloured  # the same, and several times as fast

    def stored_at(self, at: int) -> int:
        """Return where the byte at this place of what is seen stands in the text."""
        if self._starts is None:
            spans = list(_shown(self._stored))
            lengths = accumulate((end - begin for begin, end in spans), initial=0)
            self._starts = list(lengths), [begin for begin, _ in spans]
        seen, stored = self._starts
        piece = bisect_right(seen, at, hi=len(stored)) - 1
        return stored[piece] + at - seen[piece]


def _is_plain(text: bytes) -> bool:
    """Return whether all of it is seen, as of most logs."""
    if text.translate(None, _PRINTED):
        return False
    return not ((b"\xc2" in text or b"\xe2" in text) and _RARE.search(text))


def _has_overwritten(text: bytes) -> bool:
    # A pty puts a \r before each \n that a job prints (ONLCR, termios(3)): it hides nothing.
    return text.count(b"\r") > text.count(b"\r\n")


def _shown(text: bytes) -> Iterator[tuple[int, int]]:
    """Yield the spans that are seen."""
    at = 0
    for begin, end in (*_hidden(text), (len(text), len(text))):
        if begin > at:
            yield at, begin
        at = max(at, end)


def _hidden(text: bytes) -> list[tuple[int, int]]:
    """Return the spans that are not seen, in their order."""
    spans = [found.span() for found in _HIDDEN.finditer(text)]
    if _has_overwritten(text):
        spans = sorted([*spans, *_overwritten(text)])
    return spans


def _overwritten(text: bytes) -> Iterator[tuple[int, int]]:
    """Yield the beginnings of lines that a carriage return let the rest write over."""
    begin = 0
    for line in text.split(b"\n"):
        last = line.rstrip(b"\r").rfind(b"\r")
        if last > 0:
            yield begin, begin + last
        begin += len(line) + 1


class _Joined:
    """The text of some frames as one, so that a match may go from one to the next."""

    def __init__(self, joined: Sequence[Frame]) -> None:
        self._frames = joined
        self._text = b"".join(frame.payload for frame in joined)
        self._starts = list(accumulate((len(frame.payload) for frame in joined), initial=0))

    @property
    def end(self) -> int:
        return self._frames[-1].end

    def lines_with(self, wanted: Wanted) -> Iterator[LogMatch]:
        """Yield one match for each line."""
        visible = Visible(self._text)
        text = visible.text
        for found, end in wanted.matches(text):
            at = visible.stored_at(found)
            frame = self._frame(at)
            after = text.find(b"\n", end)
            begin = max(text.rfind(b"\n", 0, found) + 1, found - _CONTEXT_BYTES)
            last = min(after if after >= 0 else len(text), end + _CONTEXT_BYTES)
            shown = text[begin:last].decode(errors="replace")
            yield LogMatch(
                offset=self._offset(at),
                at=iso_of_job(frame.time_ns),
                stream=frame.stream.name.lower(),
                text=shown,
            )

    def line_end(self, offset: int) -> int:
        """Return the offset after the line that holds `offset`, as far as it is here."""
        at = bisect_right(self._frames, offset, key=lambda frame: frame.offset) - 1
        frame = self._frames[at]
        inside = self._starts[at] + (0 if frame.dropped else offset - frame.offset)
        after = self._text.find(b"\n", inside)
        return self.end if after < 0 else self._offset(after) + 1

    def last_line(self) -> list[Frame]:
        """Return the frames of the line that is not at its end: its match may go on."""
        # A job may print for ever without a line's end: what is kept stays small.
        begin = max(self._text.rfind(b"\n") + 1, len(self._text) - ROW_BYTES)
        at = bisect_right(self._starts, begin) - 1
        kept = list(islice(self._frames, at, None))
        cut = begin - self._starts[at]
        if kept and cut and not kept[0].dropped:
            tail = tail_from(kept[0], kept[0].offset + cut)
            kept[:1] = [] if tail is None else [tail]
        return kept

    def _frame(self, at: int) -> Frame:
        return self._frames[bisect_right(self._starts, at) - 1]

    def _offset(self, at: int) -> int:
        frame, start = self._frame(at), self._starts[bisect_right(self._starts, at) - 1]
        return frame.offset if frame.dropped else frame.offset + at - start
