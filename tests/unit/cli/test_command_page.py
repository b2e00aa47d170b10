"""docs/command.md shows the command as it is, and its examples are accepted by the real parser."""

from __future__ import annotations

from pathlib import Path

import pytest
from cyclopts import CycloptsError

from tests import command_page
from tests.command_examples import SECTIONS, Command

CHECKOUT = Path(__file__).parents[3]
LISTED = [about for section in SECTIONS.values() for about in section]


def test_every_command_is_on_the_page_once() -> None:
    named = [" ".join(words) for words in command_page.names()]
    assert sorted(about.name for about in LISTED) == sorted(named)


def test_the_page_is_what_the_commands_help_says() -> None:
    """If this fails, run `./dev pages`."""
    assert (CHECKOUT / command_page.PAGE).read_text(encoding="utf-8") == command_page.page()


@pytest.mark.parametrize("about", LISTED, ids=lambda about: about.name)
def test_the_example_is_accepted_and_is_of_its_own_command(about: Command) -> None:
    own = command_page.command_of(about.name.split()).default_command
    assert _called(about.example) == own


def test_an_example_with_an_option_that_is_not_there_is_found() -> None:
    with pytest.raises(CycloptsError):
        _called("fairlead ps --everything")


def test_what_the_shell_does_is_no_argument() -> None:
    assert command_page.words_of("fairlead schema > file   # a comment") == ["schema"]


def _called(example: str) -> object:
    words = command_page.words_of(example)
    app = command_page.app_of(words)
    return app.parse_args(words, exit_on_error=False, print_error=False)[0]
