"""Says in a user's words what is wrong with a file that is not YAML.

The parser's own words are about tokens and flow sequences. Most files that it refuses hold a shell
command, an image or a glob that has a character of YAML in it: the sentence names that character
and what to write instead.
"""

from __future__ import annotations

import re

import yaml

_MARKED_CHARACTER = re.compile(r"found character '(.+)' that cannot start any token", re.DOTALL)
_ESCAPE = re.compile(r"found unknown escape character '(.+)'")
_FIELD = re.compile(r"\s*(?:- +)*[^\s:#'\"\[{][^:]*:(?:\s|$)")
_WITHOUT_BLANK = re.compile(r"\s*(?:- +)*[A-Za-z_][\w.-]*:[^\s/]")
_CLOSED = ("'", '"', "]", "}")
_GOES_ON = "a value goes on after its quote or bracket: quote the whole value"
_BLANK_MISSING = "a blank is missing after the colon"
_TWO_COLONS = "a value that holds `: ` must be quoted"
_NOTHING_FOLLOWS = "nothing follows the last colon: complete the value, or quote it"
_SEVERAL_DOCUMENTS = "expected a single document in the stream"
"""The parser's own words; it has no exception class for this."""


def explained(text: str, error: yaml.YAMLError) -> tuple[int | None, str]:
    """Return the line (from 1; None: unknown) and a sentence without its subject, the file."""
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return line, f"contains a character that YAML does not allow (#x{error.character:04x})"
    if not isinstance(error, yaml.MarkedYAMLError):
        return None, "is not valid YAML"
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return None, f"is not valid YAML: {error.problem}"
    if error.context == _SEVERAL_DOCUMENTS:
        return mark.line + 1, "begins a second document (---): write each run in its own file"
    lines = text.splitlines()
    line, why = _why(error, mark, lines)
    return line, f"is not valid YAML: {why}"


def _why(error: yaml.MarkedYAMLError, mark: yaml.Mark, lines: list[str]) -> tuple[int, str]:
    problem, context = error.problem or "", error.context or ""
    here, began = mark.line + 1, (error.context_mark or mark).line + 1
    present = lines[mark.line] if mark.line < len(lines) else ""
    if match := _MARKED_CHARACTER.fullmatch(problem):
        if match[1] in ("\t", "\\t"):
            return here, "a tab indents this line, and YAML takes spaces only"
        return here, f"a value that begins with {match[1]} must be quoted"
    if problem.startswith("found undefined alias"):
        return here, "a value that begins with * must be quoted"
    if context in _BEGINNINGS:
        after = present[: mark.column].rstrip("&* ").endswith(_CLOSED)
        return here, _GOES_ON if after else f"a value that begins with {_BEGINNINGS[context]}"
    if match := _ESCAPE.fullmatch(problem):
        return here, f"\\{match[1]} has no meaning in double quotes: use single quotes"
    if context == "while scanning a quoted scalar":
        return began, "a quote is not closed"
    if context == "while scanning a simple key":
        if _WITHOUT_BLANK.match(lines[began - 1]):
            return began, _BLANK_MISSING
        return began, "this line is neither NAME: VALUE nor an entry of a list (- VALUE)"
    if context in _BRACKETS:
        return began, f"{_BRACKETS[context]} is not closed, or a comma is missing after it"
    if problem.startswith("mapping values are not allowed"):
        return _second_colon(mark, lines)
    if problem.startswith("expected <block end>"):
        if present[: mark.column].rstrip().endswith(_CLOSED):
            return here, _GOES_ON
        return here, "this line is not indented like those that it belongs to"
    return here, problem or "it cannot be read"


_BEGINNINGS = {
    "while scanning an anchor": "& must be quoted",
    "while scanning an alias": "* must be quoted",
    "while scanning a block scalar": "> or | must be quoted, or its text begins on the next line",
    "while scanning a tag": "! must be quoted",
    "while scanning a directive": "% must be quoted",
}
_BRACKETS = {
    "while parsing a flow sequence": "[",
    "while parsing a flow mapping": "{",
    "while parsing a flow node": "[ or {",
}


def _second_colon(mark: yaml.Mark, lines: list[str]) -> tuple[int, str]:
    """Tell a colon within a value from a field in a wrong place."""
    here = mark.line + 1
    if _FIELD.match(lines[mark.line][: mark.column]):
        is_last = not lines[mark.line][mark.column + 1 :].strip()
        return here, _NOTHING_FOLLOWS if is_last else _TWO_COLONS
    before = next((n for n in range(mark.line - 1, -1, -1) if lines[n].strip()), None)
    if before is not None and _WITHOUT_BLANK.match(lines[before]):
        return before + 1, _BLANK_MISSING
    return here, "this line is indented deeper than the field before it, which has a value already"
