"""Wrong files, each with the sentence that its user reads: `wrong-inputs.txt` is the table.

A sentence names the file and, where one is known, the line and the field, and says what to write
instead. What is allowed follows it in parentheses, and is no part of the table.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.plan import Defaults, to_run
from fairlead.configuration.text.environment import with_environment
from fairlead.configuration.text.source import SourceError, read

TABLE = Path(__file__).with_name("wrong-inputs.txt")
LONGEST = 480


def rows() -> list[tuple[str, str]]:
    """The files and their sentences: a sentence ends a file, and a blank line ends a row."""
    found, lines = [], list[str]()
    for line in TABLE.read_text("utf-8").splitlines():
        if line.startswith("=> "):
            found.append(("".join(f"{one}\n" for one in lines), line.removeprefix("=> ")))
            lines = []
        elif lines or line:
            lines.append(line)
    return found


def said(text: str) -> str:
    """What `fairlead apply` says of the file before it asks a controller."""
    try:
        document = read(text.encode(), name="job.yaml")
    except SourceError as error:
        return str(error)
    try:
        filled = with_environment(document.data, {}, {})
        configuration = parse(filled)
        assert isinstance(filled, dict)
        to_run(configuration, filled, Defaults())
    except ConfigurationError as error:
        return document.explain(error)
    return "nothing"


def test_the_table_is_read_whole() -> None:
    assert len(rows()) == TABLE.read_text("utf-8").count("=> ")


@pytest.mark.parametrize(("text", "sentence"), rows())
def test_a_wrong_file_is_answered_with_what_to_write(text: str, sentence: str) -> None:
    found = said(text)

    assert found.partition(" (allowed: ")[0] == sentence
    assert len(found) <= LONGEST


def test_a_file_that_is_no_text_is_refused_with_its_line() -> None:
    with pytest.raises(SourceError, match=r"job\.yaml:2: is not UTF-8"):
        read(b"type: task\nname: \xff\n", name="job.yaml")
    with pytest.raises(SourceError, match=r"job\.yaml:2: contains a character"):
        read(b"type: task\nname: \x01\n", name="job.yaml")
