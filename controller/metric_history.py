"""The history of what jobs use: a file of fixed-size records for each attempt, and for each of its
GPUs, kept for a week.

A young attempt is sampled often, an older one once a minute, so a file has a bounded size: a week
is less than half a megabyte. The oldest records go when a file is full. Nothing decides by them, so
a record may be lost in a crash.

A file begins with its version. One of an unknown version, from before a return to an older
release, shows nothing and begins again with the next sample.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

KEPT_SECONDS = 7 * 86400.0
OFTEN_SECONDS = 10.0
SELDOM_SECONDS = 60.0
YOUNG_SECONDS = 600.0
MAX_SAMPLES = int(KEPT_SECONDS / SELDOM_SECONDS) + int(YOUNG_SECONDS / OFTEN_SECONDS)
_ROOM = 500
"""A full file is made smaller by so many samples, so that this is seldom."""
_NAME = b"metrics"
_VERSION = 1
_HEAD = _NAME + bytes([_VERSION])
"""Files from before there were versions begin with a record instead. Its first eight bytes are a
time, which never equals `_NAME` and a version: read as a number of seconds, that is almost 0."""
_RECORD = struct.Struct("<ddqfq")
_UNKNOWN = -1


class Sample(msgspec.Struct, frozen=True):
    """The use of a job at a moment (Unix seconds). `cpu_seconds` counts since its start; GPU values
    are over all its GPUs: mean percent, bytes. None: not known."""

    at: float
    cpu_seconds: float | None
    memory: int | None
    gpu_utilization: float | None = None
    gpu_memory: int | None = None


class Point(msgspec.Struct, frozen=True):
    """The use in a span of time that ends at `at`: `cpu` in cores and `gpu_utilization` are means,
    the others are the most."""

    at: float
    cpu: float | None
    memory: int | None
    gpu_utilization: float | None
    gpu_memory: int | None


def points(samples: Sequence[Sample], since: float, until: float, most: int) -> list[Point]:
    """Return the use from `since` to `until` in at most so many spans of one length; a span without
    a sample is left out."""
    length = max((until - since) / most, 1e-3)
    spans: dict[int, list[tuple[float | None, Sample]]] = {}
    for before, sample in zip((None, *samples), samples, strict=False):
        if since <= sample.at <= until:
            span = min(int((sample.at - since) / length), most - 1)
            spans.setdefault(span, []).append((_cores(before, sample), sample))
    return [_point(found) for _, found in sorted(spans.items())]


def _cores(before: Sample | None, sample: Sample) -> float | None:
    if before is None or before.cpu_seconds is None or sample.cpu_seconds is None:
        return None
    passed, used = sample.at - before.at, sample.cpu_seconds - before.cpu_seconds
    # The clock may be set back, and a job that answers in its runner's place may count down.
    return used / passed if passed > 0 and used >= 0 else None


def _point(found: Sequence[tuple[float | None, Sample]]) -> Point:
    samples = [sample for _, sample in found]
    return Point(
        at=samples[-1].at,
        cpu=_mean(cores for cores, _ in found),
        memory=_most(sample.memory for sample in samples),
        gpu_utilization=_mean(sample.gpu_utilization for sample in samples),
        gpu_memory=_most(sample.gpu_memory for sample in samples),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def of_gpu(attempt_id: str, number: int) -> str:
    """Return what the history of one of an attempt's GPUs is kept under, beside that of the
    attempt; its samples have GPU values alone."""
    return f"{attempt_id}.gpu{number}"


class MetricHistory:
    """The files, one for each attempt and each of its GPUs. All methods block and may raise
    OSError."""

    def __init__(self, folder: Path, *, most: int = MAX_SAMPLES) -> None:
        self._folder = folder
        self._most = most

    def append(self, attempt_id: str, *samples: Sample) -> None:
        """Add samples, which are later than those that are there."""
        added = packed(samples)
        path = self._path(attempt_id)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0) as file:
            start = _records_begin(file.read(len(_HEAD)))
            if start is None:
                file.truncate(0)
                file.seek(0)
                file.write(_HEAD + added)
                return
            whole = (os.fstat(file.fileno()).st_size - start) // _RECORD.size
            if whole >= self._most:
                file.seek(start)
                self._shorten(path, file.read(whole * _RECORD.size), added)
                return
            file.seek(start + whole * _RECORD.size)  # over a record that a crash has torn
            file.write(added)

    def read(self, attempt_id: str, since: float) -> list[Sample]:
        """Return the samples from then on, and one before, which the CPU's use is counted from."""
        try:
            data = self._path(attempt_id).read_bytes()
        except FileNotFoundError:
            return []
        start = _records_begin(data)
        if start is None:
            return []
        samples = unpacked(data[start:])
        first = next((at for at, sample in enumerate(samples) if sample.at >= since), len(samples))
        return samples[max(0, first - 1) :]

    def latest(self, attempt_id: str) -> float:
        """Return the time of the last sample; minus infinity without one."""
        return max((sample.at for sample in self.read(attempt_id, math.inf)), default=-math.inf)

    def sweep(self, written_before: float) -> int:
        """Remove the files that were last written before then; return how many."""
        removed = 0
        for path in self._folder.glob("*/*"):
            # A temporary file gets its name between the listing and this look.
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < written_before:
                    path.unlink()
                    removed += 1
        return removed

    def _shorten(self, path: Path, data: bytes, added: bytes) -> None:
        """Drop the oldest samples and add some."""
        kept = max(1, self._most - _ROOM)
        fresh = path.with_name(f".{path.name}")
        fresh.write_bytes(_HEAD + data[-kept * _RECORD.size :] + added)
        fresh.chmod(0o600)
        fresh.replace(path)

    def _path(self, attempt_id: str) -> Path:
        return self._folder / attempt_id[:2] / attempt_id


def _records_begin(data: bytes) -> int | None:
    """Return where the records of a file begin; None: it is empty, or of another version."""
    if data.startswith(_HEAD):
        return len(_HEAD)
    return None if len(data) < len(_HEAD) or data.startswith(_NAME) else 0


def packed(samples: Iterable[Sample]) -> bytes:
    """Return samples as records of a fixed size."""
    return b"".join(map(_encoded, samples))


def unpacked(data: bytes) -> list[Sample]:
    """Return the samples of whole records."""
    whole = len(data) // _RECORD.size * _RECORD.size
    return [_decoded(*values) for values in _RECORD.iter_unpack(data[:whole])]


def _encoded(sample: Sample) -> bytes:
    return _RECORD.pack(
        sample.at,
        _UNKNOWN if sample.cpu_seconds is None else sample.cpu_seconds,
        _UNKNOWN if sample.memory is None else sample.memory,
        _UNKNOWN if sample.gpu_utilization is None else sample.gpu_utilization,
        _UNKNOWN if sample.gpu_memory is None else sample.gpu_memory,
    )


def _decoded(at: float, cpu: float, memory: int, busy: float, gpu_memory: int) -> Sample:
    return Sample(
        at,
        None if cpu < 0 else cpu,
        None if memory < 0 else memory,
        None if busy < 0 else busy,
        None if gpu_memory < 0 else gpu_memory,
    )
