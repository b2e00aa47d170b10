"""The parts of logs in a bucket: a controller that loses its disk leaves them to the next one.

A part is an object of whole frames, as a segment's file is, named by the offsets of its first byte
and of the byte after its last one. Parts may overlap: a controller that was paused may put what its
successor has put already, with the same bytes. When a log is complete, its parts are joined to
fewer, larger ones, and only then the smaller ones are removed. So at each moment the parts cover
the log up to the last acknowledged byte.

The folder on disk is a copy. `settle` compares it with the bucket, which decides; `fill` fetches
what the copy lacks. Everything here blocks; `store.LogStore` calls it in its threads.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from common import object_storage
from common.files import log_segments
from controller.logs import segments
from controller.logs.segments import Position
from controller.outputs.bucket import Bucket, BucketError, as_bucket_errors
from controller.outputs.own_bucket import LOGS, Listed
from fairlead.wire.frames import Decoder, Frame, encode, span_at

if TYPE_CHECKING:
    from obstore.store import S3Store

log = logging.getLogger(__name__)

PART_BYTES = 8 << 20
PART_SECONDS = 300.0
"""A part is put when so much has come, or so long after the first byte that is in none."""
JOINED_BYTES = 32 << 20
"""About the size of a joined part; one is in memory at a time."""
_REQUEST = timedelta(seconds=20)
_NAME = re.compile(r"(\d{20})-(\d{20})\.seg", re.ASCII)
_COMPLETE = "complete"
_NOTE = "in-bucket"


class Part(msgspec.Struct, frozen=True, order=True):
    """The bytes of a log from `start` up to `end`, which is not among them."""

    start: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.start:020d}-{self.end:020d}.seg"


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """All that a bucket has of one log."""

    all: tuple[Part, ...] = ()
    is_complete: bool = False
    size: int = 0
    """The bytes of the objects."""

    @property
    def end(self) -> int:
        """The offset up to which no byte is missing."""
        return max((part.end for part, _ in cover(self.all)), default=0)

    @property
    def is_whole(self) -> bool:
        """Return whether all is there that will ever come."""
        return self.is_complete and all(part.end <= self.end for part in self.all)


def cover(parts: Iterable[Part]) -> list[tuple[Part, int]]:
    """Return the parts to read for the whole log, each with the offset from which on it is read."""
    left, at = sorted(parts), 0
    chosen: list[tuple[Part, int]] = []
    while reaching := [part for part in left if part.start <= at < part.end]:
        longest = max(reaching, key=lambda part: part.end)
        chosen.append((longest, at))
        at = longest.end
    return chosen


class LogBucket:
    """The logs of one installation in a bucket. Each method may raise BucketError.

    `verify` raises BucketError while nothing may be read or written there.
    """

    def __init__(
        self, bucket: Bucket, installation_id: str, verify: Callable[[], None] = lambda: None
    ) -> None:
        self._bucket = bucket
        # Its own folder: what another installation keeps in the same place is never removed.
        self._folder = f"{LOGS}/{installation_id}"
        self._verify = verify
        self._store: S3Store | None = None
        self._is_closed = False

    def close(self) -> None:
        """Let each request after the present one fail. Another thread may call it."""
        self._is_closed = True

    def __str__(self) -> str:
        return str(self._bucket)

    def parts(self, attempt_id: str) -> Parts:
        listed = self._listed(f"{_folder_of(attempt_id)}/")
        found = (_NAME.fullmatch(one.name) for one in listed)
        parts = tuple(Part(int(one[1]), int(one[2])) for one in found if one)
        is_complete = any(one.name == _COMPLETE for one in listed)
        return Parts(all=parts, is_complete=is_complete, size=sum(one.size for one in listed))

    def put(self, attempt_id: str, part: Part, data: bytes) -> None:
        import obstore

        key = self._key(attempt_id, part.name)
        with as_bucket_errors(f"{self._bucket}"):
            obstore.put(self._opened(), key, data)

    def get(self, attempt_id: str, part: Part) -> bytes:
        import obstore

        with as_bucket_errors(f"{self._bucket}"):
            return bytes(obstore.get(self._opened(), self._key(attempt_id, part.name)).bytes())

    def complete(self, attempt_id: str) -> None:
        import obstore

        with as_bucket_errors(f"{self._bucket}"):
            obstore.put(self._opened(), self._key(attempt_id, _COMPLETE), b"", use_multipart=False)

    def remove(self, attempt_id: str, names: Iterable[str]) -> None:
        import obstore

        with as_bucket_errors(f"{self._bucket}"):
            for name in names:
                obstore.delete(self._opened(), self._key(attempt_id, name))

    def sweep(self, needed: Collection[str], written_before: float) -> int:
        """Remove the logs of attempts that are not `needed` and were last written before then (Unix
        time); return how many."""
        found: dict[str, list[tuple[str, float]]] = {}
        for one in self._listed(""):
            _, _, rest = one.name.partition("/")
            attempt_id, _, name = rest.partition("/")
            found.setdefault(attempt_id, []).append((name, one.at))
        expired = [
            attempt_id
            for attempt_id, objects in found.items()
            if attempt_id not in needed and max(at for _, at in objects) < written_before
        ]
        for attempt_id in expired:
            # The mark comes first: a log without its parts would else count as an empty one.
            names = sorted((name for name, _ in found[attempt_id]), reverse=True)
            self.remove(attempt_id, names)
        return len(expired)

    def _listed(self, below: str) -> list[Listed]:
        import obstore

        prefix = self._bucket.object(f"{self._folder}/{below}").key
        listed = []
        with as_bucket_errors(f"{self._bucket}"):
            for some in obstore.list(self._opened(), prefix=prefix):
                for found in some:
                    name, at = found["path"][len(prefix) :], found["last_modified"].timestamp()
                    listed.append(Listed(name, found["size"], at))
        return listed

    def _key(self, attempt_id: str, name: str) -> str:
        return self._bucket.object(f"{self._folder}/{_folder_of(attempt_id)}/{name}").key

    def _opened(self) -> S3Store:
        if self._is_closed:
            raise BucketError("the controller ends")
        if self._store is None:
            where = (self._bucket.name, self._bucket.endpoint, self._bucket.region)
            self._store = object_storage.open_bucket(*where, request=_REQUEST, retries=0)
        self._verify()
        return self._store


def _folder_of(attempt_id: str) -> str:
    return f"{attempt_id[:2]}/{attempt_id}"


# -- the copy on disk -----------------------------------------------------------------------


def settle(bucket: LogBucket, folder: Path, attempt_id: str, dropping: Callable[[], None]) -> int:
    """Make the copy agree with the bucket; return the offset up to which the bucket has the log.

    A copy that goes on where its own last part ended is newer, and stays. One that ends before was
    passed by another controller: what it has beyond the bucket was never acknowledged, so the node
    still has that. One that has put more than the bucket has is the last one of these bytes: the
    bucket is another one, or was emptied. Raises OSError. `dropping` is called before a copy goes.
    """
    found = bucket.parts(attempt_id)
    noted, starts = _noted(folder), log_segments.starts_in(folder)
    if noted > found.end and starts:
        log.warning(
            "the log of attempt %s has %d bytes in %s, and %d were put: is that the right bucket? "
            "The copy on this disk stays",
            *(attempt_id, found.end, bucket, noted),
        )
    elif noted != found.end:
        if starts:
            dropping()
        for start in starts:
            log_segments.path(folder, start).unlink(missing_ok=True)
        _note(folder, found.end)
    if found.is_complete:
        segments.mark_complete(folder)
    return found.end


def begin_at(folder: Path, end: int) -> None:
    """Let an empty copy go on at this offset. Raises OSError."""
    if not log_segments.starts_in(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        log_segments.path(folder, end).touch(mode=0o600)


def fill(bucket: LogBucket, folder: Path, attempt_id: str) -> None:
    """Fetch what the copy lacks before its first byte. Raises OSError."""
    if not is_whole(folder):
        try:
            _fetch(bucket, folder, attempt_id)
        except BucketError:
            # Another controller may have joined parts since they were listed.
            _fetch(bucket, folder, attempt_id)


def is_whole(folder: Path) -> bool:
    return log_segments.starts_in(folder)[:1] == [0]


def is_final(folder: Path) -> bool:
    """Return whether the copy has all that will ever come: the bucket need not be asked."""
    return (folder / segments.COMPLETE_NAME).exists() and is_whole(folder)


def _fetch(bucket: LogBucket, folder: Path, attempt_id: str) -> None:
    """The last part comes first: a copy that has a beginning is whole, though a crash cut this
    off."""
    starts = log_segments.starts_in(folder)
    first = starts[0] if starts else None
    for part, at in reversed(cover(bucket.parts(attempt_id).all)):
        if first is None or at < first:
            data = segments.cut(bucket.get(attempt_id, part), at)
            _keep(folder, at, data if first is None or part.end <= first else _head(data, first))
            first = at


def _keep(folder: Path, start: int, data: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    arriving = folder / "arriving"
    with open(os.open(arriving, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        # A power cut could else keep the name and lose the bytes (fsync(2)).
        os.fsync(file.fileno())
    os.replace(arriving, log_segments.path(folder, start))


def _head(data: bytes, end: int) -> bytes:
    """Return the part of these whole frames before `end`."""
    kept = []
    for frame in Decoder().feed(data):
        if frame.offset >= end:
            break
        if frame.end > end and not frame.dropped:
            payload = frame.payload[: end - frame.offset]
            frame = Frame(frame.offset, frame.time_ns, frame.stream, payload)
        kept.append(encode(frame))
    return b"".join(kept)


def _noted(folder: Path) -> int:
    """Return where the last part ended that was put or seen from here."""
    try:
        return int((folder / _NOTE).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return 0


def _note(folder: Path, end: int) -> None:
    # Not forced to the disk: a copy without its note is fetched once more.
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = folder / f"{_NOTE}.new"
    fresh.write_text(str(end))
    os.replace(fresh, folder / _NOTE)


# -- putting --------------------------------------------------------------------------------


class PartWriter:
    """Puts the copy of one log into the bucket, from `end` on. Threads may call it."""

    def __init__(self, bucket: LogBucket, folder: Path, attempt_id: str, end: int) -> None:
        self.end = end
        self._bucket = bucket
        self._folder = folder
        self._attempt_id = attempt_id
        self._position: Position | None = None
        # A put whose caller was cancelled goes on in its thread.
        self._one_at_a_time = threading.Lock()

    def put(self, upto: int) -> int:
        """Put at least all before `upto`; return the offset up to which the bucket has the log.

        Raises OSError; `end` tells what was put.
        """
        with self._one_at_a_time:
            position = self._position or segments.locate(self._folder, self.end)
            while self.end < upto:
                data, end, position = _gathered(self._folder, position, self.end, PART_BYTES)
                if not data:
                    break
                self._bucket.put(self._attempt_id, Part(self.end, end), data)
                self.end, self._position = end, position
                _note(self._folder, end)
            return self.end


def _gathered(
    folder: Path, position: Position, start: int, size: int
) -> tuple[bytes, int, Position]:
    """Return whole frames from `start` on, about so many bytes, the offset after them, and their
    end's position."""
    pieces, taken, end = [], 0, start
    while taken < size:
        data, position = segments.read_frames(folder, position)
        if not data:
            break
        data = segments.cut(data, start)
        end = max(_ends(data), default=end)
        pieces.append(data)
        taken += len(data)
    return b"".join(pieces), end, position


def _ends(data: bytes) -> Iterator[int]:
    at = 0
    while (span := span_at(data, at)) is not None:
        yield span.end
        at += span.size


def join(bucket: LogBucket, folder: Path, attempt_id: str) -> None:
    """Replace the parts of a complete log, whose copy is whole, by fewer, larger ones. Repeatable.
    Raises OSError."""
    before = bucket.parts(attempt_id)
    if not before.is_complete or len(before.all) <= _fewest(before.end):
        return
    position, start, joined = Position(0, 0), 0, set()
    while start < before.end:
        data, end, position = _gathered(folder, position, start, JOINED_BYTES)
        if not data:
            # Retention has removed the copy meanwhile.
            return
        part = Part(start, end)
        bucket.put(attempt_id, part, data)
        joined.add(part)
        start = end
    bucket.remove(attempt_id, (part.name for part in before.all if part not in joined))


def _fewest(size: int) -> int:
    return max(1, -(-size // JOINED_BYTES))
