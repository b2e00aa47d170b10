"""The pages for users of other systems: each command, field and file of theirs is tried here."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from controller.cli.main import make_app
from controller.configuration.parse import parse

PAGES = sorted((Path(__file__).parents[3] / "docs").glob("coming-from-*.md"))
BESIDE = {"type": "task", "image": "busybox"}


def cells(page: Path) -> list[str]:
    """What stands in the right column of the page's tables."""
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    return [row.strip("| ").rpartition(" | ")[2] for row in rows]


def quoted(page: Path) -> list[str]:
    return [text for cell in cells(page) for text in re.findall(r"`([^`]+)`", cell)]


def test_there_is_a_page_for_each_system() -> None:
    names = [page.stem.removeprefix("coming-from-") for page in PAGES]
    assert names == ["dstack", "iris", "skypilot", "slurm", "ytsaurus"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_command_of_the_page_can_be_called_so(page: Path) -> None:
    commands = [text for text in quoted(page) if text.startswith("fairlead ")]
    assert len(commands) >= 7
    for command in commands:
        words = shlex.split(command)[1:]
        make_app(words).parse_args(words, exit_on_error=False, print_error=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_field_of_the_page_is_accepted(page: Path) -> None:
    fields = [text for text in quoted(page) if re.match(r"[a-z_]+: ", text)]
    for field in fields:
        written = yaml.safe_load(field.replace("abcd1234", "abcd-1234"))
        parse({**BESIDE, **written, **({"nodes": 8} if "gang" in written else {})})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_file_of_the_page_is_accepted(page: Path) -> None:
    files = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    assert files
    for file in files:
        parse(yaml.safe_load(file))
