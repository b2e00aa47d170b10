"""A hostile archive writes nothing outside its folder and is refused with a sentence; a good one
comes out as it went in."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import resource
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.code.errors import ArchiveLimits, BadArchive
from runner.code.tree import unpack
from tests.unit.runner.code import hostile
from tests.unit.runner.code.hostile import file, folder, hard, link, member, tar

SMALL = ArchiveLimits(size=4 << 20, entries=1000, ratio=50, ratio_free=1 << 20)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """With something beside it that nobody may touch."""
    made = tmp_path / "around" / "target"
    made.mkdir(parents=True)
    (tmp_path / "around" / "outside").write_text("untouched")
    return made


def put(
    archive: bytes, target: Path, limits: ArchiveLimits = SMALL, *, replace: bool = False
) -> None:
    blob = target.parent.parent / "blob"
    blob.write_bytes(archive)
    unpack(blob, target, limits=limits, replace=replace)


def around(target: Path) -> list[str]:
    return sorted(os.listdir(target.parent)) + sorted(os.listdir(target.parent.parent))


def test_there_are_enough_of_them() -> None:
    assert len(hostile.ALL) >= 60


@pytest.mark.parametrize(("make", "words"), hostile.ALL.values(), ids=hostile.ALL.keys())
def test_it_is_refused_and_nothing_is_written_outside(
    target: Path, make: Callable[[], bytes], words: str
) -> None:
    with pytest.raises(BadArchive, match=words):
        put(make(), target)
    assert around(target) == ["outside", "target", "around", "blob"]
    assert (target.parent / "outside").read_text() == "untouched"
    strange = [path for path in target.rglob("*") if _is_strange(path, target)]
    assert strange == []


def _is_strange(path: Path, target: Path) -> bool:
    mode = path.lstat().st_mode
    known = stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
    leaves = not Path(os.path.realpath(path)).is_relative_to(target)
    return not known or bool(mode & (stat.S_ISUID | stat.S_ISGID)) or leaves


def test_a_refusal_shows_no_control_characters_and_is_short(target: Path) -> None:
    with pytest.raises(BadArchive) as caught:
        put(tar(file("../\x1b[31m\n" + "n" * 200)), target)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_a_good_archive_comes_out_as_it_went_in(
    target: Path, pack: Callable[[bytes], bytes]
) -> None:
    content = bytes(range(256)) * 1000
    long = "d" * 120 + "/" + "e" * 120 + "/f"
    put(
        pack(
            tar(
                folder("."),
                file("./bin/run", b"#!", mode=0o755, mtime=1_700_000_000),
                file("data", content, mode=0o640),
                file(long),
                file("Straße/\udcff"),
                link("bin/data", "../data"),
                hard("copy", "data"),
                file("empty", b""),
            )
        ),
        target,
    )
    assert (target / "data").read_bytes() == content == (target / "copy").read_bytes()
    assert (target / "bin/data").read_bytes() == content
    run = (target / "bin/run").stat()
    assert (stat.S_IMODE(run.st_mode), run.st_mtime) == (0o755, 1_700_000_000)
    assert (target / long).read_bytes() == b"x"
    assert os.listdir(os.fsencode(target / "Straße")) == [b"\xff"]
    assert (target / "empty").read_bytes() == b""


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_common_format_is_read(target: Path, format: int) -> None:
    put(tar(file("a/b", b"1"), file("x" * 90 + "/" + "y" * 90, b"2"), format=format), target)
    assert sorted(p.read_bytes() for p in target.rglob("*") if p.is_file()) == [b"1", b"2"]


def test_the_header_of_git_archive_is_skipped(target: Path) -> None:
    put(tar(file("f", b"1"), pax={"comment": "0123456789abcdef"}), target)
    assert (target / "f").read_bytes() == b"1"


def test_setuid_setgid_and_sticky_bits_are_dropped(target: Path) -> None:
    put(tar(file("f", mode=0o7755), member("d", tarfile.DIRTYPE, mode=0o7777)), target)
    assert stat.S_IMODE((target / "f").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "d").stat().st_mode) == 0o777


def test_names_that_differ_by_case_are_two_files(target: Path) -> None:
    put(tar(file("README", b"1"), file("readme", b"2")), target)
    assert (target / "README").read_bytes() + (target / "readme").read_bytes() == b"12"


def test_a_link_that_lies_there_is_not_written_through(target: Path) -> None:
    (target / "l").symlink_to(target.parent)
    with pytest.raises(BadArchive, match="not a folder"):
        put(tar(file("l/outside", b"changed")), target, replace=True)
    assert (target.parent / "outside").read_text() == "untouched"


def test_a_link_that_lies_there_gives_way_to_a_file(target: Path) -> None:
    (target / "l").symlink_to(target.parent / "outside")
    put(tar(file("l", b"mine")), target, replace=True)
    assert (target / "l").read_bytes() == b"mine"
    assert not (target / "l").is_symlink()
    assert (target.parent / "outside").read_text() == "untouched"


def test_an_existing_file_is_kept_unless_it_may_be_replaced(target: Path) -> None:
    (target / "f").write_bytes(b"theirs")
    with pytest.raises(BadArchive, match="already exists"):
        put(tar(file("f", b"mine")), target)
    assert (target / "f").read_bytes() == b"theirs"


def test_a_folder_never_gives_way_to_a_file(target: Path) -> None:
    (target / "d").mkdir()
    with pytest.raises(BadArchive, match="is already a folder there"):
        put(tar(file("d", b"mine")), target, replace=True)


def test_a_name_of_a_FIFO_that_lies_there_does_not_hang_it(target: Path) -> None:
    os.mkfifo(target / "f")
    put(tar(file("f", b"mine")), target, replace=True)
    assert (target / "f").read_bytes() == b"mine"


def test_many_folders_do_not_use_up_the_descriptors(target: Path) -> None:
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 30, most))
    try:
        put(tar(*(file(f"d{n}/e/f", b"") for n in range(200))), target)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))
    assert len(list(target.iterdir())) == 200


def test_a_bomb_is_refused_before_it_is_unpacked(target: Path) -> None:
    """The header alone tells that it is too large: nothing of it reaches the disk."""
    with pytest.raises(BadArchive, match="more than"):
        put(gzip.compress(tar(file("f", bytes(32 << 20)))), target)
    assert list(target.iterdir()) == []


def test_text_that_packs_well_is_no_bomb(target: Path) -> None:
    content = b"int main(void) { return 0; }\n" * 20_000
    put(gzip.compress(tar(file("main.c", content))), target)
    assert (target / "main.c").read_bytes() == content


def test_an_abandoned_one_ends_at_the_next_entry(target: Path, tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    blob.write_bytes(tar(file("a"), file("b"), file("c")))
    entries = iter([None, InterruptedError])

    def check() -> None:
        if (error := next(entries)) is not None:
            raise error

    with pytest.raises(InterruptedError):
        unpack(blob, target, check=check)
    assert [path.name for path in target.iterdir()] == ["a"]


def test_content_is_copied_in_pieces(target: Path) -> None:
    content = os.urandom(3 << 20)
    put(tar(file("f", content)), target)
    assert (target / "f").read_bytes() == content


def test_a_stream_is_read_to_its_end_only_once(target: Path) -> None:
    """Bytes after the end of the archive are ignored."""
    put(tar(file("f")) + b"garbage" * 1000, target)
    assert [path.name for path in target.iterdir()] == ["f"]
