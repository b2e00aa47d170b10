"""`--override FIELD=VALUE`: one field of a configuration gets another value.

A field is named by its path, as errors name it: `env.LR`, `resources.gpu`, `commands[0]`. Its value
is read as YAML, but for a variable, which is a string as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.text.source import SourceError, read

_STEP = re.compile(r"([A-Za-z_][\w-]*)|\[(\d{1,5})\]", re.ASCII)
_PATH = re.compile(r"[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*|\[\d{1,5}\])*", re.ASCII)
_AS_WRITTEN = frozenset({"env", "secrets"})
"""The mappings whose values are strings."""


def overridden(data: object, assignments: Iterable[str]) -> object:
    """Return a copy with the fields of these `FIELD=VALUE`; an empty value takes the field out.
    Raises ConfigurationError."""
    for text in assignments:
        path, equals, written = text.partition("=")
        if not equals or not _PATH.fullmatch(path):
            raise ConfigurationError("", f"--override: {path[:60]!r} is not FIELD=VALUE")
        steps = [name or int(index) for name, index in _STEP.findall(path)]
        data = _with(data, steps, _value(steps, written, path), path)
    return data


def _value(steps: list[str | int], written: str, path: str) -> object:
    if any(step in _AS_WRITTEN for step in steps[:-1]):
        return written
    try:
        return read(written.encode(), name="--override").data
    except SourceError:
        raise ConfigurationError(path, "--override: the value is not YAML: quote it") from None


def _with(data: object, steps: list[str | int], value: object, path: str) -> object:
    step, rest = steps[0], steps[1:]
    if isinstance(step, int):
        if not isinstance(data, list) or step >= len(data):
            raise ConfigurationError(path, f"--override: there is no entry [{step}]")
        entries = list(data)
        entries[step] = _with(data[step], rest, value, path) if rest else value
        return entries
    if data is None:
        data = {}
    if isinstance(data, list) and all(isinstance(one, str) for one in data) and not rest:
        # Variables may be a list of NAME=VALUE.
        others = [one for one in data if one.partition("=")[0] != step]
        return others if value in (None, "") else [*others, f"{step}={value}"]
    if not isinstance(data, dict):
        raise ConfigurationError(path, f"--override: there is no field {step}")
    changed: dict[str, Any] = dict(data)
    new = _with(changed.get(step), rest, value, path) if rest else value
    if new is None:
        changed.pop(step, None)
    else:
        changed[step] = new
    return changed
