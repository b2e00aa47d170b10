"""Parsing turns data of YAML or JSON into a checked configuration, or one sentence about one field.

It raises only ConfigurationError, whatever the data is.
"""

from __future__ import annotations

import math

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.runs.task import TaskConfiguration
from fairlead.configuration.runs.types import Configuration, definition_of
from fairlead.configuration.text.dstack import translated
from fairlead.configuration.text.stored_secrets import problem_of
from fairlead.configuration.values.units import shown

__all__ = ["Configuration", "ConfigurationError", "TaskConfiguration", "parse"]

_MAX_DEPTH = 40
_EXPRESSIONS_ALLOWED = (
    "${{ secrets.NAME }} in env, secrets, registry_auth, repos.token and repos.private_key;"
    " ${{ params.NAME }} of a sweep in commands, setup, entrypoint and env"
)
# In YAML's double quotes `\0` is NUL, so the colour code \033[31m begins with one.
_NUL = "contains a NUL character, as which YAML reads `\\0` in double quotes: use single quotes"


def parse(data: object) -> Configuration:
    """Return the configuration. Raises ConfigurationError for the first error."""
    if not isinstance(data, dict):
        what = "a configuration is a mapping of fields to values"
        why = f"is empty; {what}" if data is None else f"{what}, not {shown(data)}"
        raise ConfigurationError("", why, "type: task")
    _check_content(data)
    ours = translated(data).data
    configuration: Configuration = definition_of(ours).read(ours)
    return configuration


def _check_content(data: object, path: str = "", depth: int = 0) -> None:
    """Raise ConfigurationError for the first string, number or nesting that JSON, a database or an
    environment cannot carry."""
    if depth > _MAX_DEPTH:
        raise ConfigurationError(path, "is nested too deeply")
    if isinstance(data, str):
        _check_text(data, path)
    elif isinstance(data, float) and not math.isfinite(data):
        raise ConfigurationError(path, "is not a finite number")
    elif isinstance(data, dict):
        for name, content in data.items():
            _check_content(content, _named(path, name), depth + 1)
    elif isinstance(data, list | tuple):
        for number, content in enumerate(data):
            _check_content(content, f"{path}[{number}]", depth + 1)


def _named(path: str, name: object) -> str:
    if not isinstance(name, str):
        raise ConfigurationError(path, "the names of fields must be strings")
    readable = name.encode("utf-8", "backslashreplace").decode()
    field = f"{path}.{readable}" if path else readable
    _check_text(name, field)
    return field


def _check_text(text: str, path: str) -> None:
    if "\0" in text:
        raise ConfigurationError(path, _NUL)
    try:
        text.encode()
    # YAML's \ud800 makes such a character; no encoding of a file, variable or database has it.
    except UnicodeEncodeError:
        raise ConfigurationError(path, "contains half of a character (a lone surrogate)") from None
    if problem := problem_of(text, path):
        raise ConfigurationError(path, problem, _EXPRESSIONS_ALLOWED)
