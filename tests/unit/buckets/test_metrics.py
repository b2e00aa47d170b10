"""The history of use in a bucket: a controller with an empty disk shows what was before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from controller import metric_bucket
from controller.metric_bucket import PUT_SECONDS, MetricBucket
from controller.metric_history import KEPT_SECONDS, MetricHistory, Sample
from controller.outputs.bucket import BucketError
from controller.outputs.own_bucket import OwnBucket
from tests.support.object_storage import ObjectStorage

BEGAN = 1_800_000_000.0


def sample(at: float) -> Sample:
    return Sample(at, cpu_seconds=at - BEGAN, memory=1)


class Machine:
    def __init__(
        self, own: OwnBucket, folder: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.history = MetricHistory(folder)
        self.bucket = MetricBucket(own, self.history, folder, "a1", clock)

    def keep(self, name: str, *at: float) -> None:
        for each in at:
            self.history.append(name, sample(each))
            self.bucket.add([(name, sample(each))], each)

    def times(self, name: str) -> list[float]:
        return [one.at for one in self.history.read(name, 0.0)]


@pytest.fixture
def own(storage: ObjectStorage, tmp_path: Path) -> Iterator[OwnBucket]:
    bucket = OwnBucket(msgspec.structs.replace(storage.bucket, prefix=tmp_path.name), "here")
    yield bucket
    bucket.close()


def test_an_empty_disk_gets_all_that_was_put(own: OwnBucket, tmp_path: Path) -> None:
    first, second = Machine(own, tmp_path / "a"), Machine(own, tmp_path / "b")
    times = [BEGAN + passed for passed in (0, 60, PUT_SECONDS, PUT_SECONDS + 60)]
    first.keep("one", *times)
    assert len(own.list("metrics/")) == 1
    assert second.bucket.fetch_all(times[-1]) == 1
    assert second.times("one") == times[:3], "the last minutes are lost with the disk"


def test_a_disk_that_has_a_part_gets_the_rest_once(
    own: OwnBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_bucket, "AT_ONCE_BYTES", 200)
    first, second = Machine(own, tmp_path / "a"), Machine(own, tmp_path / "b")
    times = [BEGAN + number * PUT_SECONDS for number in range(8)]
    for at in times[:4]:
        first.keep("one", at)
        first.keep("two", at)
    second.bucket.fetch_all(times[3])
    for at in times[4:]:
        first.keep("one", at)
    first.bucket.put(times[-1] + 1)
    second.bucket.fetch_all(times[-1] + 2)
    second.bucket.fetch_all(times[-1] + 3)
    assert second.times("one") == times
    assert second.times("two") == times[:4]


def test_objects_that_are_damaged_or_too_old_are_passed_over(
    own: OwnBucket, tmp_path: Path
) -> None:
    first, second = Machine(own, tmp_path / "a"), Machine(own, tmp_path / "b")
    first.keep("one", BEGAN, BEGAN + PUT_SECONDS)
    own.put(f"metrics/{round(BEGAN * 1000):013d}-ff", b"no msgpack")
    now = BEGAN + KEPT_SECONDS + 60
    assert second.bucket.fetch_all(now) == 1
    second.bucket.sweep(now)
    assert len(own.list("metrics/")) == 1


def test_a_bucket_that_is_away_holds_a_bounded_number_of_samples(
    own: OwnBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_bucket, "MAX_WAITING", 3)
    first, second = Machine(own, tmp_path / "a"), Machine(own, tmp_path / "b")
    first.keep("old", BEGAN, BEGAN + 1)
    first.keep("new", BEGAN, BEGAN + 1)
    first.bucket.put(BEGAN + 2)
    second.bucket.fetch_all(BEGAN + 3)
    assert (second.times("old"), second.times("new")) == ([], [BEGAN, BEGAN + 1])


def test_objects_in_memory_are_bounded_by_their_bytes(
    own: OwnBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object that was put after an outage may be as large as a day of others."""
    first, second = Machine(own, tmp_path / "a"), Machine(own, tmp_path / "b")
    times = [BEGAN + number * PUT_SECONDS for number in range(10)]
    first.keep("one", *times)
    first.bucket.put(times[-1] + 1)
    (size, *_) = (one.size for one in own.list("metrics/"))
    monkeypatch.setattr(metric_bucket, "AT_ONCE_BYTES", 3 * size)
    held: list[int] = []
    append = second.history.append

    def noted(name: str, *samples: Sample) -> None:
        held.append(len(samples))
        append(name, *samples)

    monkeypatch.setattr(second.history, "append", noted)
    second.bucket.fetch_all(times[-1] + 2)
    assert second.times("one") == times
    assert max(held) <= 5


def test_a_bucket_that_is_too_slow_leaves_the_rest_out(own: OwnBucket, tmp_path: Path) -> None:
    first = Machine(own, tmp_path / "a")
    times = [BEGAN + number * PUT_SECONDS for number in range(8)]
    first.keep("one", *times)
    ticks = iter(range(0, 10_000, 100))
    second = Machine(own, tmp_path / "b", lambda: float(next(ticks)))
    with pytest.raises(BucketError, match="too little of them in 300 s"):
        second.bucket.fetch_all(times[-1])
    assert second.times("one") == times[: len(second.times("one"))]
    assert 0 < len(second.times("one")) < len(times)
