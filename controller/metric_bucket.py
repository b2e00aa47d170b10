"""The history of use in the bucket of an installation, for a controller that lost its disk.

All samples of some minutes are one object: their number does not grow with that of jobs. One that
begins fetches the objects that its disk has not seen. What the last leader had sampled since
its last object is lost with its disk: `PUT_SECONDS` at most.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from controller.metric_history import KEPT_SECONDS, MetricHistory, Sample, packed, unpacked
from controller.outputs.bucket import BucketError
from controller.outputs.own_bucket import OwnBucket

log = logging.getLogger(__name__)

PUT_SECONDS = 600.0
MAX_WAITING = 200_000
"""Samples that wait for a bucket that is away, some 7 MB; the oldest ones go beyond that."""
AT_ONCE_BYTES = 8 << 20
"""Bytes of objects in memory while they are fetched. A day of 200 jobs is some 12 MB, so the file
of each job is opened a few times for it."""
FETCH_SECONDS = 300.0
"""Nothing is sampled meanwhile: a history is in the order of time."""
_FOLDER = "metrics/"
_NAME = re.compile(r"(\d{13})-[0-9a-f]+", re.ASCII)
_NOTE = "in-bucket"


class _Object(msgspec.Struct, frozen=True):
    """An object: its name, its bytes, and when it was put (ms)."""

    name: str
    size: int
    at: int


class MetricBucket:
    """Puts samples and fetches them. Everything may raise BucketError, OSError.

    `folder` is that of the history; `controller_id` differs between controllers.
    """

    def __init__(
        self,
        bucket: OwnBucket,
        history: MetricHistory,
        folder: Path,
        controller_id: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._bucket = bucket
        self._history = history
        self._note = folder / _NOTE
        self._id = controller_id
        self._waiting: dict[str, list[Sample]] = {}
        self._count = 0
        self._put_at: float | None = None

    async def fetch(self, now: float) -> int:
        """Add to the history what it lacks; return the number of objects that were read."""
        return await self._bucket.ask(self.fetch_all, now)

    async def keep(
        self, samples: Sequence[tuple[str, Sample]], now: float, *, is_for_sweep: bool
    ) -> None:
        """Take samples, and put what waits when it is time; remove what is too old if asked to."""
        await self._bucket.ask(self.add, samples, now)
        if is_for_sweep:
            await self._bucket.ask(self.sweep, now)

    # -- what blocks ------------------------------------------------------------------------

    def add(self, samples: Iterable[tuple[str, Sample]], now: float) -> None:
        """Take samples, by what their history is kept under; put all that wait when it is time."""
        for name, sample in samples:
            self._waiting.setdefault(name, []).append(sample)
            self._count += 1
        while self._count > MAX_WAITING:
            self._count -= len(self._waiting.pop(next(iter(self._waiting))))
        if self._put_at is None:
            self._put_at = now
        if now - self._put_at >= PUT_SECONDS:
            # Also before a try that fails: a bucket that is away is not asked at each tick.
            self._put_at = now
            self.put(now)

    def put(self, now: float) -> None:
        if not self._waiting:
            return
        data = {name: packed(samples) for name, samples in self._waiting.items()}
        key = f"{_FOLDER}{round(now * 1000):013d}-{self._id}"
        self._bucket.put(key, msgspec.msgpack.encode(data))
        self._waiting, self._count = {}, 0

    def fetch_all(self, now: float) -> int:
        try:
            seen = int(self._note.read_text())
        except (FileNotFoundError, ValueError):
            seen = 0
        # Another leader may have put its last object a little after this one saw the bucket.
        after = max(seen - PUT_SECONDS * 1000, (now - KEPT_SECONDS) * 1000)
        wanted = [one for one in self._objects() if one.at > after]
        began = self._clock()
        found: dict[str, list[bytes]] = {}
        size = 0
        for one in wanted:
            if self._clock() - began > FETCH_SECONDS:
                self._append(found)
                raise BucketError(f"the bucket gave too little of them in {FETCH_SECONDS:g} s")
            # Before it is read: an object that was put after an outage is large itself.
            if size and size + one.size > AT_ONCE_BYTES:
                self._append(found)
                found, size = {}, 0
            for history, records in self._read(one.name).items():
                found.setdefault(history, []).append(records)
            size += one.size
        self._append(found)
        self._note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._note.write_text(str(round(now * 1000)))
        return len(wanted)

    def sweep(self, now: float) -> None:
        """Remove objects that are too old."""
        for one in self._objects():
            if one.at < (now - KEPT_SECONDS) * 1000:
                self._bucket.delete(f"{_FOLDER}{one.name}")

    def _append(self, found: Mapping[str, Sequence[bytes]]) -> None:
        """Add to each history what is later than what it has."""
        for history, pieces in found.items():
            latest = self._history.latest(history)
            samples = unpacked(b"".join(pieces))
            self._history.append(history, *(one for one in samples if one.at > latest))

    def _read(self, name: str) -> dict[str, bytes]:
        data = self._bucket.get(f"{_FOLDER}{name}")
        try:
            return {} if data is None else msgspec.msgpack.decode(data, type=dict[str, bytes])
        except msgspec.MsgspecError as error:
            log.warning("an object of the history of use is damaged: %s", error)
            return {}

    def _objects(self) -> list[_Object]:
        """Return all objects, the first one first."""
        found = ((one, _NAME.fullmatch(one.name)) for one in self._bucket.list(_FOLDER))
        objects = (_Object(one.name, one.size, int(name[1])) for one, name in found if name)
        return sorted(objects, key=lambda one: one.at)
