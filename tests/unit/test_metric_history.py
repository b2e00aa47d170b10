"""The history of what jobs use: bounded, pruned, and honest about what is not known."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec
import pytest

from controller.metric_history import MetricHistory, Point, Sample, points


@pytest.fixture
def history(tmp_path: Path) -> MetricHistory:
    return MetricHistory(tmp_path / "kept", most=1000)


def a_sample(at: float, **fields: float) -> Sample:
    return msgspec.structs.replace(Sample(at, 2 * at, int(at) << 20), **fields)


def test_samples_are_read_back_from_a_moment_on_with_the_one_before(
    history: MetricHistory,
) -> None:
    for at in range(10):
        history.append("attempt", a_sample(at))
    assert history.read("attempt", 7.0) == [a_sample(at) for at in (6, 7, 8, 9)]
    assert history.read("another", 0.0) == []


def test_what_is_not_known_stays_unknown(history: MetricHistory) -> None:
    known, unknown = Sample(1.0, 2.0, 3, 50.0, 4), Sample(2.0, None, None, None, None)
    history.append("attempt", known)
    history.append("attempt", unknown)
    assert history.read("attempt", 0.0) == [known, unknown]


def test_a_file_keeps_to_its_limit_and_loses_the_oldest_samples(
    history: MetricHistory, tmp_path: Path
) -> None:
    for at in range(2500):
        history.append("attempt", a_sample(at))
    kept = history.read("attempt", 0.0)
    assert kept[-1] == a_sample(2499)
    assert [one.at for one in kept] == [float(at) for at in range(2500 - len(kept), 2500)]
    assert 500 <= len(kept) <= 1000


def test_a_record_that_a_crash_has_torn_is_written_over(
    history: MetricHistory, tmp_path: Path
) -> None:
    history.append("attempt", a_sample(1.0))
    (file,) = (tmp_path / "kept").glob("*/*")
    with file.open("ab") as torn:
        torn.write(b"torn")
    history.append("attempt", a_sample(2.0))
    assert history.read("attempt", 0.0) == [a_sample(1.0), a_sample(2.0)]


def test_a_file_of_another_version_shows_nothing_and_begins_again(
    history: MetricHistory, tmp_path: Path
) -> None:
    history.append("attempt", a_sample(1.0))
    (file,) = (tmp_path / "kept").glob("*/*")
    data = file.read_bytes()
    file.write_bytes(data[:7] + bytes([data[7] + 1]) + data[8:])
    assert history.read("attempt", 0.0) == []
    history.append("attempt", a_sample(2.0))
    assert history.read("attempt", 0.0) == [a_sample(2.0)]


def test_another_record_needs_another_version(history: MetricHistory, tmp_path: Path) -> None:
    """A file that an earlier release has written is read with its record."""
    history.append("attempt", Sample(1.0, 2.0, 3, 50.0, 4))
    (file,) = (tmp_path / "kept").glob("*/*")
    content = "6d65747269637301" + struct.pack("<ddqfq", 1.0, 2.0, 3, 50.0, 4).hex()
    assert file.read_bytes().hex() == content


def test_a_file_from_before_there_were_versions_goes_on(
    history: MetricHistory, tmp_path: Path
) -> None:
    history.append("attempt", a_sample(1.7e9))
    (file,) = (tmp_path / "kept").glob("*/*")
    file.write_bytes(file.read_bytes()[8:])
    for seconds in range(1, 1500):
        history.append("attempt", a_sample(1.7e9 + seconds))
        if seconds == 1:
            assert history.read("attempt", 0.0) == [a_sample(1.7e9), a_sample(1.7e9 + 1)]
    kept = history.read("attempt", 0.0)
    assert kept[-1] == a_sample(1.7e9 + 1499)
    assert [one.at for one in kept] == [1.7e9 + n for n in range(1500 - len(kept), 1500)]


def test_a_file_is_removed_a_week_after_its_last_sample(
    history: MetricHistory, tmp_path: Path
) -> None:
    for name in ("old", "young"):
        history.append(name, a_sample(1.0))
    (old,) = (tmp_path / "kept").glob("*/old")
    os.utime(old, (1000.0, 1000.0))
    assert history.sweep(2000.0) == 1
    assert history.read("old", 0.0) == []
    assert history.read("young", 0.0) == [a_sample(1.0)]


def test_points_are_means_of_cpu_and_the_most_of_memory() -> None:
    samples = [
        Sample(0.0, 0.0, 10),
        Sample(10.0, 10.0, 40, 100.0, 7),
        Sample(20.0, 40.0, 20, 50.0, 5),
        Sample(90.0, 20.0, None),
    ]
    assert points(samples, 5.0, 105.0, 2) == [
        Point(20.0, 2.0, 40, 75.0, 7),
        Point(90.0, None, None, None, None),
    ]
