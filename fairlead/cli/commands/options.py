"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fairlead.cli.errors import EXIT_USAGE, CliError

Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print the API's JSON.")]
Watch = Annotated[
    bool,
    Parameter(name=["-w", "--watch"], negative=(), help="Refresh until you interrupt it."),
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
ConfigurationFiles = Annotated[
    list[Path],
    Parameter(
        name=["--file", "-f"], allow_leading_hyphen=True, negative=(), consume_multiple=False
    ),
]
"""One file or more, each by position, or as -f or --file."""


def require_files(files: list[Path]) -> None:
    """Raise CliError for what is meant as an option: by position `-` is a file, so the parser takes
    an option that it does not know for one."""
    for file in files:
        if str(file).startswith("--"):
            raise CliError(f"{file}: there is no option of this name", EXIT_USAGE)


Flag = Parameter(negative=())
Overrides = Annotated[
    tuple[str, ...],
    Parameter(
        name="--override",
        negative=(),
        help="FIELD=VALUE, such as env.LR=0.1: replace the value of a field; may be repeated.",
    ),
]
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
