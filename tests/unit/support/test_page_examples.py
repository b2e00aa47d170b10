from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.page_examples import Example, examples, missing_line, play

PAGE = """\
Write a file:
<!-- file: a.txt -->
```
hello
```
<!-- run -->
```sh
cat a.txt; echo "took $RANDOM s"
```
It prints:
<!-- prints -->
```
hello
took … s
```
```sh
false   # not marked, so not run
```
"""


def test_marked_fences_are_found_in_their_order() -> None:
    assert [example.kind for example in examples(PAGE)] == ["file", "run", "prints"]
    assert examples(PAGE)[0] == Example("file", "a.txt", "hello\n")


def test_a_page_that_is_right_can_be_followed(tmp_path: Path) -> None:
    play(PAGE, tmp_path, {})
    assert (tmp_path / "a.txt").read_text() == "hello\n"


def test_a_command_that_fails_fails_the_page(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ended with 1"):
        play("<!-- run -->\n```sh\nfalse\n```\n", tmp_path, {})


def test_a_line_that_is_not_printed_fails_the_page(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="goodbye"):
        play(PAGE.replace("hello\ntook", "goodbye\ntook"), tmp_path, {})


def test_lines_may_have_others_between_them_but_keep_their_order() -> None:
    assert missing_line("a\nc\n", "a\nb\nc\n") is None
    assert missing_line("c\na\n", "a\nb\nc\n") == "a"
