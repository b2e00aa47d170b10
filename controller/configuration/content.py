"""Refuses what JSON, a database or an environment could not carry, wherever in the data it stands.

Done once, before anything looks at fields, so that nothing later meets a text that it can't store.
"""

from __future__ import annotations

import math

from controller.configuration.errors import ConfigurationError

MAX_DEPTH = 40


def check_content(data: object, path: str = "", depth: int = 0) -> None:
    """Raises ConfigurationError for the first text, number or nesting that can't be carried."""
    if depth > MAX_DEPTH:
        raise ConfigurationError(path, "is nested too deeply")
    if isinstance(data, str):
        _check_text(data, path)
    elif isinstance(data, float) and not math.isfinite(data):
        raise ConfigurationError(path, "is not a finite number")
    elif isinstance(data, dict):
        for name, content in data.items():
            check_content(content, _named(path, name), depth + 1)
    elif isinstance(data, list | tuple):
        for number, content in enumerate(data):
            check_content(content, f"{path}[{number}]", depth + 1)


def _named(path: str, name: object) -> str:
    if not isinstance(name, str):
        raise ConfigurationError(path, "the names of fields must be texts")
    readable = name.encode("utf-8", "backslashreplace").decode()
    field = f"{path}.{readable}" if path else readable
    _check_text(name, field)
    return field


def _check_text(text: str, path: str) -> None:
    if "\0" in text:
        raise ConfigurationError(path, "holds a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(path, "holds half of a character (a lone surrogate)") from None
