"""The parts that all programs share, where no program's own tests look at them."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.files.durable import write_beside, write_durably
from fairlead.wire.errors import ErrorDetail, Refused, read_error
from fairlead.wire.sizes import human_size, is_count, size_of


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16GB", 16e9),
        ("16GiB", 16 * 2**30),
        ("1.5 tb", 1.5e12),
        ("512B", 512),
        ("16", None),
        ("16G", None),
        ("GB", None),
        ("-1GB", None),
    ],
)
def test_a_size_has_a_unit_of_a_thousand_or_of_1024(text: str, size: float | None) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (8 << 30, "8.0 GiB"),
        (8 * 10**9, "8.0 GB"),
        (1_500_000_000_000, "1.5 TB"),
        (512 * 10**6, "512.0 MB"),
        (8 * 10**9 + 4096, "7.5 GiB"),
        (3 << 50, "3072.0 TiB"),
    ],
)
def test_a_size_is_told_in_the_unit_in_which_it_was_written(amount: int, words: str) -> None:
    assert human_size(amount) == words


@pytest.mark.parametrize(
    ("text", "counts"),
    [("0", True), ("9" * 18, True), ("9" * 19, False), ("-1", False), ("²", False)],
)
def test_a_count_is_what_every_program_can_hold(text: str, counts: bool) -> None:
    assert is_count(text) is counts


def test_a_refusal_is_read_as_it_was_written() -> None:
    body = Refused(409, "conflict", "it is there already", "name").body()
    assert read_error(body) == ErrorDetail(
        code="conflict", message="it is there already", field="name"
    )


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"error": {}}', b"\xff", b"[" * 9999]
)
def test_an_answer_of_another_shape_is_no_refusal(body: bytes) -> None:
    assert read_error(body) is None


def test_a_file_is_replaced_whole_and_what_was_left_unfinished_is_reused(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(b"old")
    unfinished = write_beside(path, b"half", 0o600)
    assert path.read_bytes() == b"old"

    write_durably(path, b"new", 0o600)

    assert path.read_bytes() == b"new"
    assert not unfinished.exists()


def test_a_link_in_the_place_of_the_unfinished_file_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"kept")
    (tmp_path / ".record.json.new").symlink_to(target)

    with pytest.raises(OSError, match="symbolic links"):
        write_durably(tmp_path / "record.json", b"new")

    assert target.read_bytes() == b"kept"
