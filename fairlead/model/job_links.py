"""Links to a run of wandb or MLflow that a job prints: how they are found in its log.

They are a job's data: whoever shows one escapes it, and nothing of ours fetches it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from urllib.parse import urlsplit

import msgspec

MAX_LINKS = 3
MAX_BYTES = 2048
"""Of the URLs of one attempt together."""
_SIGNS = (b"View run", b"wandb.ai/")
_RUNS = b"/runs/"
"""A line without it and one of the signs has no link. To look for it from the end takes 6 to 8 µs
for each 64 KiB of a log, from the front 27 to 36 µs; `re` takes 16 µs (Python 3.11)."""
# wandb colours its lines; rich makes links of terminals (OSC 8), whose text may be another.
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b\](?:8;[^;\x07\x1b]*;([^\x07\x1b]*)|[^\x07\x1b]*)(?:\x07|\x1b\\)"
)
_URL = r"https?://[!-~]{1,2000}"
_OF_WANDB = re.compile(rf"(?=https://(?:[a-z0-9-]+\.)?wandb\.ai/)({_URL})")
# "View run at https://wandb.example.org/team/p/runs/1a", "View run NAME at: http://mlflow:5000/#/…"
_VIEW_RUN = re.compile(rf"View run\b.{{0,300}}?\bat:?\s+({_URL})")
_RUN_OF_WANDB = re.compile(r"/[^/]+/[^/]+/runs/[^/?#]+")
_RUN_OF_MLFLOW = re.compile(r"/experiments/[^/?#]+/runs/[^/?#]+")
_NOT_IN_A_URL = frozenset("\"'<>`\\{}|^")
_AROUND = ".,;:!)]*"


class LinkKind(StrEnum):
    """The tool that a link leads to."""

    WANDB = "wandb"
    MLFLOW = "mlflow"


class JobLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link that a job printed."""

    kind: LinkKind
    url: str


class LinkFinder:
    """Finds the first links of one log, whose pieces come in order."""

    def __init__(self, known: tuple[JobLink, ...] = ()) -> None:
        self.found = known
        self._rest: dict[int, bytes] = {}

    @property
    def is_full(self) -> bool:
        return len(self.found) >= MAX_LINKS

    def feed(self, stream: int, payload: bytes) -> bool:
        """Take the next piece of a stream; return whether it had a new link."""
        if self.is_full:
            return False
        rest = self._rest.pop(stream, b"")
        data = rest + payload if rest else payload
        end = data.rfind(b"\n") + 1
        if len(data) - end <= MAX_BYTES:  # a longer line, such as a progress bar, has no link
            self._rest[stream] = data[end:]
        before = self.found
        if data.rfind(_RUNS, 0, end) >= 0:
            whole = data[:end]
            if any(sign in whole for sign in _SIGNS):
                for line in whole.splitlines():
                    self._take(line)
        return self.found is not before

    def _take(self, line: bytes) -> None:
        if len(line) > 2 * MAX_BYTES or not any(sign in line for sign in _SIGNS):
            return
        for link in links_in(line.decode(errors="replace")):
            used = sum(len(one.url) for one in self.found)
            if link not in self.found and not self.is_full and used + len(link.url) <= MAX_BYTES:
                self.found = (*self.found, link)


def links_in(line: str) -> Iterator[JobLink]:
    """Yield the links to a run of wandb or MLflow in one line of a log."""
    plain = _CONTROL.sub(lambda found: f" {found[1]} " if found[1] else "", line)
    for pattern in (_OF_WANDB, _VIEW_RUN):
        for match in pattern.finditer(plain):
            if (link := _link(match[1].rstrip(_AROUND))) is not None:
                yield link


def _link(url: str) -> JobLink | None:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return None
    # A name before the host would make one site look like another, or be a password.
    if not host or "@" in parts.netloc or _NOT_IN_A_URL.intersection(url):
        return None
    # MLflow's own pages come after #.
    if _RUN_OF_MLFLOW.search(f"{parts.path}#{parts.fragment}"):
        return JobLink(kind=LinkKind.MLFLOW, url=url)
    if _RUN_OF_WANDB.search(parts.path):
        return JobLink(kind=LinkKind.WANDB, url=url)
    return None
