"""A hostile job cannot make the shim read what is not its own."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shim.api.app import LogSource, find_segments, read_segments
from shim.files import safe_files


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "exit.json").write_bytes(b"{}")
    assert safe_files.read_small(tmp_path, "exit.json", 10) == b"{}"


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "exit.json").write_bytes(b"x" * 11)
    assert safe_files.read_small(tmp_path, "exit.json", 10) is None


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "exit.json").symlink_to("/etc/passwd")
    with pytest.raises(safe_files.UnsafeFile):
        safe_files.open_regular(tmp_path, "exit.json")


def test_a_linked_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / f"{0:020d}.seg").write_bytes(b"secret")
    job = tmp_path / "job"
    job.mkdir()
    (job / "logs").symlink_to(tmp_path / "secret")
    assert find_segments(job, 0).segments == ()


def test_nothing_above_the_folder_is_reached(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "job").mkdir()
    with pytest.raises(safe_files.UnsafeFile):
        safe_files.open_regular(tmp_path / "job", "../secret")


def test_a_pipe_does_not_hang_the_shim(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "exit.json")
    with pytest.raises(safe_files.UnsafeFile):
        safe_files.open_regular(tmp_path, "exit.json")


def test_the_log_starts_with_the_segment_that_holds_the_offset(tmp_path: Path) -> None:
    _segments(tmp_path, {100: b"b", 200: b"c"})
    assert [find_segments(tmp_path, at).start for at in (0, 100, 199, 200, 999)] == [
        100,
        100,
        100,
        200,
        200,
    ]


def test_a_task_without_output_has_an_empty_log(tmp_path: Path) -> None:
    assert find_segments(tmp_path, 0) == LogSource(0, ())


async def test_segments_are_read_in_order_to_their_end(tmp_path: Path) -> None:
    _segments(tmp_path, {0: b"a" * 300_000, 300_000: b"b", 300_001: b"c"})
    (tmp_path / "logs" / "runner.tmp").write_bytes(b"not a segment")
    with ThreadPoolExecutor(1) as threads:
        pieces = [
            piece async for piece in read_segments(tmp_path, find_segments(tmp_path, 0), threads)
        ]
    assert b"".join(pieces) == b"a" * 300_000 + b"bc"


def test_this_kernel_can_open_files_safely() -> None:
    assert safe_files.is_supported()


def _segments(folder: Path, contents: dict[int, bytes]) -> None:
    (folder / "logs").mkdir()
    for start, data in contents.items():
        (folder / "logs" / f"{start:020d}.seg").write_bytes(data)


def test_a_file_takes_the_place_of_a_link_and_leaves_alone_what_that_led_to(tmp_path: Path) -> None:
    folder, victim = tmp_path / "job", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("untouched")
    (folder / "image.json").symlink_to(victim)
    for content in (b"one", b"two"):
        safe_files.replace_file(folder, "image.json", content)
        assert (folder / "image.json").read_bytes() == content
    assert (victim.read_text(), os.listdir(folder)) == ("untouched", ["image.json"])


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "image.json").mkdir()
    with pytest.raises(IsADirectoryError):
        safe_files.replace_file(tmp_path, "image.json", b"{}")
    assert os.listdir(tmp_path) == ["image.json"]


def test_a_place_is_found_through_links_that_stay_below_and_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "allowed"
    (folder / "real").mkdir(parents=True)
    (folder / "inside").symlink_to("real")
    (folder / "outside").symlink_to("..")
    (folder / "absolute").symlink_to("/")
    fd = safe_files.open_path(folder, "inside")
    found = os.readlink(f"/proc/self/fd/{fd}")
    os.close(fd)
    assert found == str(folder / "real")
    for name in ("outside", "absolute", "real/../.."):
        with pytest.raises(safe_files.UnsafeFile):
            safe_files.open_path(folder, name)
    with pytest.raises(FileNotFoundError):
        safe_files.open_path(folder, "absent")
