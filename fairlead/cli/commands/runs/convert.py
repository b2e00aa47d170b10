"""`convert`: print a task of SkyPilot as the YAML that it is here."""

from __future__ import annotations

import os
from pathlib import Path

from fairlead.cli import output
from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.text.skypilot import convert as converted
from fairlead.configuration.text.written import as_yaml
from fairlead.errors import InvalidConfiguration
from fairlead.submission import read_document


def convert(file: Path, /) -> int:
    """Print a task of SkyPilot as YAML for `fairlead apply`.

    Parameters
    ----------
    file
        SkyPilot's YAML; - for standard input. A field without a counterpart is refused.
    """
    document = read_document(file)
    try:
        configuration, notes = converted(document.data)
    except ConfigurationError as error:
        raise InvalidConfiguration(document.explain(error)) from None
    for note in notes:
        output.note(note)
    output.emit(as_yaml(configuration).rstrip("\n"))
    return os.EX_OK
