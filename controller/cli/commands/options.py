"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from controller.cli.errors import EXIT_USAGE, CliError
from controller.configuration.units import DURATION_ALLOWED, parse_duration

Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print the API's JSON.")]
Watch = Annotated[
    bool,
    Parameter(name=["-w", "--watch"], negative=(), help="Show it anew until you interrupt it."),
]


def _refuse_options(kind: object, file: Path) -> None:
    """By position, `-` is a file; so the parser takes an option that it does not know for one."""
    if str(file).startswith("--"):
        raise ValueError("there is no option of this name")


ConfigurationFile = Annotated[
    Path,
    Parameter(name=["--file", "-f"], allow_leading_hyphen=True, validator=_refuse_options),
]
"""By position, or as -f or --file."""
Flag = Parameter(negative=())
Attributes = Annotated[
    list[str] | None,
    Parameter(
        name="--attribute",
        negative=(),
        help="NAME=VALUE, which constraints can compare; may be repeated.",
    ),
]


def attributes_of(written: list[str] | None, *, takes_away: bool = False) -> dict[str, str | None]:
    """Return the attributes. `takes_away`: NAME= removes an attribute. Raises CliError."""
    found: dict[str, str | None] = {}
    for text in written or ():
        name, equals, value = text.partition("=")
        if not (name and equals and (value or takes_away)):
            raise CliError(f"--attribute: {text!r} is not NAME=VALUE", EXIT_USAGE)
        found[name] = value or None
    return found


def seconds_of(text: str | None, option: str) -> float | None:
    """Return the duration of an option, in seconds. Raises CliError."""
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise CliError(f"{option}: {error}, give {DURATION_ALLOWED}", EXIT_USAGE) from None
