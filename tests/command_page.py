"""Writes `docs/command.md` from the command's own help: `./dev pages`.

The sentences and options are those that `--help` shows. Examples and notes are in
`command_examples.py`; a test parses each example with the command's own parser.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from cyclopts import App
from cyclopts.argument import Argument

from fairlead.cli.main import make_app
from tests.command_examples import INTRODUCTION, SECTIONS, Command

PAGE = Path("docs/command.md")

Words = tuple[str, ...]


def app_of(words: Sequence[str]) -> App:
    """Return the parser that the command makes for these arguments: it looks up no more than they
    ask for."""
    return make_app(list(words))


def names() -> list[Words]:
    """Return the words of each command that does something, once, under its first name."""
    return list(_walk(app_of(["controller"])))


def _walk(app: App, words: Words = ()) -> Iterator[Words]:
    seen: set[int] = set()
    for name in app:
        if name.startswith("-") or id(app[name]) in seen:
            continue
        command = app[name]
        seen.add(id(command))
        if command.default_command is not None:
            yield (*words, name)
        yield from _walk(command, (*words, name))


def command_of(words: Sequence[str]) -> App:
    """Return the command of these words."""
    app = app_of(words)
    for word in words:
        app = app[word]
    return app


def words_of(example: str) -> list[str]:
    """Return the arguments of an example, without the comment and what the shell does."""
    words = shlex.split(example, comments=True)
    ends = [index for index, word in enumerate(words) if word in {">", "|", "&&"}]
    return words[1 : min(ends, default=len(words))]


def page() -> str:
    """Return the text of `docs/command.md`."""
    parts = [INTRODUCTION]
    for title, listed in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [_section(about, command_of(about.name.split())) for about in listed]
    return "\n".join(parts)


def _section(about: Command, command: App) -> str:
    assembled = command.assemble_argument_collection(parse_docstring=True)
    arguments = [argument for argument in assembled if argument.show]
    positional = [each for each in arguments if not _is_option(each)]
    options = [each for each in arguments if _is_option(each)]
    usage = ["fairlead", about.name, *map(_placeholder, positional)]
    said = f"{command.help.splitlines()[0]}{' ' * bool(about.note)}{about.note}"
    rows = [_row(each) for each in positional if each.parameter.help]
    rows += [_row(each) for each in options if each.name != "--json"]
    lines = [f"### {' '.join(usage[:2])}\n", f"{said}\n", f"```sh\n{about.example}\n```\n"]
    if rows:
        lines.append("\n".join(["| option | meaning | default |", "|---|---|---|", *rows, ""]))
    if any(each.name == "--json" for each in options):
        lines.append("It takes `--json`.\n")
    return "\n".join(lines)


def _is_option(argument: Argument) -> bool:
    return bool(argument.name.startswith("-"))


def _placeholder(argument: Argument) -> str:
    repeated = argument.field_info.kind is argument.field_info.VAR_POSITIONAL
    return f"{argument.name}{'…' * repeated}"


def _row(argument: Argument) -> str:
    name = ", ".join(f"`{each}`" for each in _names(argument))
    meaning = " ".join((argument.parameter.help or "").split())
    choices = _choices(argument.hint)
    if choices:
        meaning = f"{meaning} One of {', '.join(f'`{each}`' for each in choices)}."
    return f"| {name} | {_escaped(meaning)} | {_default(argument)} |"


def _names(argument: Argument) -> list[str]:
    if not _is_option(argument):
        return [_placeholder(argument)]
    value = _value(argument)
    names = sorted(argument.names, key=len)
    return [*names[:-1], f"{names[-1]} {value}".strip()]


def _value(argument: Argument) -> str:
    shape = str(argument.hint)
    if argument.hint is bool:
        return ""
    if "int" in shape:
        return "N"
    return "PATH" if "Path" in shape else "VALUE"


def _choices(hint: Any) -> list[str]:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return [str(each.value) for each in hint]
    if get_origin(hint) is Literal:
        return [str(each) for each in get_args(hint)]
    return [each for part in get_args(hint) for each in _choices(part)]


def _default(argument: Argument) -> str:
    if argument.required:
        return "required"
    default = argument.field_info.default
    if argument.field_info.kind is argument.field_info.VAR_POSITIONAL:
        return ""
    if isinstance(default, Enum):
        default = default.value
    return f"`{default}`" if default not in (None, False, (), "") else ""


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def main(path: Path) -> None:
    path.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(PAGE)
