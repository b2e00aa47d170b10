"""Searches of a stored log: what a reader sees is found, and where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.logs.search import BadPattern, LogMatch, Visible, search, wanted
from fairlead.wire.frames import Stream
from tests.unit.logs.test_windows import Log


def found(
    log: Log,
    text: str,
    *,
    offset: int = 0,
    most: int = 100,
    exact: bool = False,
    pattern: bool = False,
) -> list[tuple[int, str]]:
    asked = wanted(text, exact_case=exact, is_pattern=pattern)
    answer = search(log.known, log.folder, asked, offset, most)
    return [(match.offset, match.text) for match in answer.matches]


def test_a_search_gives_each_line_once_with_its_offset(tmp_path: Path) -> None:
    log = Log(tmp_path, b"an error, one Error\nfine\n", b"ERROR two\n")
    assert found(log, "error") == [(3, "an error, one Error"), (25, "ERROR two")]
    assert found(log, "ERROR", exact=True) == [(25, "ERROR two")]
    assert found(log, "error", offset=25) == [(25, "ERROR two")]


def test_a_search_goes_on_after_the_last_match_that_it_gave(tmp_path: Path) -> None:
    log = Log(tmp_path, *(b"hit %d\n" % number for number in range(9)))
    first = search(log.known, tmp_path, wanted("hit"), 0, 4)
    rest = search(log.known, tmp_path, wanted("hit"), first.searched_to, 9)
    assert texts_of(first.matches) == ["hit 0", "hit 1", "hit 2", "hit 3"]
    assert texts_of(rest.matches) == ["hit 4", "hit 5", "hit 6", "hit 7", "hit 8"]
    assert rest.searched_to == rest.log_end


def test_a_match_goes_from_one_block_to_the_next(tmp_path: Path) -> None:
    block = 1 << 20
    log = Log(tmp_path, b"x" * (block - 4) + b"\nnee", b"dle end\n", b"y" * (block - 3) + b"nee")
    log.add(b"dle\n")
    assert found(log, "needle")[0] == (block - 3, "needle end")
    assert [offset for offset, _ in found(log, "needle")] == [block - 3, 2 * block + 5]


def test_a_search_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.logs.search.SEARCH_BYTES", 1)
    log = Log(tmp_path, b"x" * (1 << 20), b"\nneedle\n")
    first = search(log.known, tmp_path, wanted("needle"), 0, 9)
    assert (first.matches, first.searched_to) == ((), 1 << 20)
    assert found(log, "needle", offset=first.searched_to) == [((1 << 20) + 1, "needle")]


def texts_of(matches: tuple[LogMatch, ...]) -> list[str]:
    return [match.text for match in matches]


RED, PLAIN = b"\x1b[1;31m", b"\x1b[0m"


def test_a_text_is_found_through_colours_and_other_sequences(tmp_path: Path) -> None:
    log = Log(
        tmp_path,
        b"step 1 ok\n" + RED + b"step " + PLAIN + b"2 " + RED + b"fai" + PLAIN + b"led\n",
        b"\x1b]0;a title\x07step 3 ok\n",
    )
    assert found(log, "step 2 failed") == [(17, "step 2 failed")]
    assert found(log, "STEP", most=9) == [
        (0, "step 1 ok"),
        (17, "step 2 failed"),
        (58, "step 3 ok"),
    ]
    assert found(log, "[1;31m") == []
    assert found(log, "a title") == []


def test_what_a_carriage_return_wrote_over_is_not_found(tmp_path: Path) -> None:
    log = Log(tmp_path, b"epoch 1\repoch 2\repoch 3\r\nwindows\r\nend\n")
    assert found(log, "epoch") == [(16, "epoch 3")]
    assert found(log, "epoch 1") == []
    assert found(log, "windows") == [(25, "windows")]


def test_letters_beyond_ascii_and_bytes_that_are_none_keep_their_places(tmp_path: Path) -> None:
    log = Log(tmp_path, "Größe ".encode() + b"\xff\xfe 7\nx\n")
    for pattern in (False, True):
        assert [at for at, _ in found(log, "7", pattern=pattern)] == [11]
        assert [at for at, _ in found(log, "größe", pattern=True)] == [0]


@pytest.mark.parametrize(
    ("pattern", "offsets"),
    [
        (r"loss \d\.\d+$", [0, 20]),
        (r"^loss", [0]),
        (r"NaN|inf", [10]),
        (r"(?-i)nan", []),
        (r"loss.*val", []),
        (r"", [0, 9, 19]),
    ],
)
def test_a_pattern_is_found_within_a_line(tmp_path: Path, pattern: str, offsets: list[int]) -> None:
    log = Log(tmp_path, b"loss 0.1\n", b" NaN loss\n", b" loss 2.75\n")
    assert [at for at, _ in found(log, pattern, pattern=True)] == offsets


@pytest.mark.parametrize("pattern", ["a(b", r"(a)\1", "[", "x{99999}"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        wanted(pattern, is_pattern=True)


def test_no_pattern_takes_more_time_than_the_text_is_long(tmp_path: Path) -> None:
    log = Log(tmp_path, b"a" * 8000 + b"b\n")
    assert found(log, "(a+)+$", pattern=True) == []
    assert found(log, "(a|a)*c", pattern=True) == []


def test_a_sequence_that_is_cut_by_two_frames_hides_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path, b"here is \x1b[3", b"1mred\n", (Stream.STDERR, b"and more\n"))
    assert found(log, "is red") == [(5, "here is red")]


@pytest.mark.parametrize("text", [b"plain\n", RED + b"a" + PLAIN, b"\x1b[", b"", b"a\rb\x07c\n\r"])
def test_each_visible_byte_is_known_by_its_place(text: bytes) -> None:
    visible = Visible(text)
    places = [visible.stored_at(at) for at in range(len(visible.text))]
    assert bytes(text[at] for at in places) == visible.text
    assert places == sorted(places)


def test_a_wrong_pattern_is_told_as_its_user_wrote_it() -> None:
    with pytest.raises(BadPattern, match=r"^missing \): \(a$"):
        wanted("(a", is_pattern=True)
