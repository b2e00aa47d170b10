"""msgspec checks the structure and types of a configuration; this module turns its errors into
sentences.

A sentence names one field and what is allowed there. Values that JSON, a database or an environment
cannot carry are refused before any field is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import msgspec

from controller.configuration.hints import not_a_field
from controller.configuration.schema import ALLOWED
from controller.configuration.stored_secrets import problem_of
from controller.lifecycle.model import RunType


class ConfigurationError(Exception):
    """A field is wrong.

    `field` is a path like `resources.memory` or `commands[2]` ("" for the whole); `allowed` says
    what is allowed. No message repeats a value that may be secret.
    """

    def __init__(self, field: str, message: str, allowed: str | None = None) -> None:
        super().__init__(field, message, allowed)
        self.field = field
        self.message = message
        self.allowed = allowed

    def sentence(self) -> str:
        """Return the message without the field, for the `message` of an error answer."""
        return f"{self.message} (allowed: {self.allowed})" if self.allowed else self.message

    def __str__(self) -> str:
        return f"{self.field}: {self.sentence()}" if self.field else self.sentence()


MAX_DEPTH = 40


EXPRESSIONS_ALLOWED = (
    "${{ secrets.NAME }} in env, secrets, registry_auth, repos.token and repos.private_key"
)


def check_content(data: object, path: str = "", depth: int = 0) -> None:
    """Raise ConfigurationError for the first string, number or nesting that cannot be carried."""
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
        raise ConfigurationError(path, "the names of fields must be strings")
    readable = name.encode("utf-8", "backslashreplace").decode()
    field = f"{path}.{readable}" if path else readable
    _check_text(name, field)
    return field


def _check_text(text: str, path: str) -> None:
    if "\0" in text:
        raise ConfigurationError(path, "contains a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(path, "contains half of a character (a lone surrogate)") from None
    if problem := problem_of(text, path):
        raise ConfigurationError(path, problem, EXPRESSIONS_ALLOWED)


T = TypeVar("T")
_FINDING = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>(?:key in )?\$[^`]*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
_EXPECTED = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `(?P<got>[^`]*)`")
_NO_MEMBER = re.compile(r"Invalid enum value (?P<value>.*)", re.DOTALL)
_BOUND = re.compile(r"Expected `(?:int|float|str)` (?:<|>|of length)")
_PLAIN_NAMES = {
    "object": "a mapping",
    "array": "a list",
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
}


class InEntry(ValueError):
    """An error inside an entry of the list at `field`; only msgspec knows the entry's number."""

    def __init__(self, field: str, error: ConfigurationError) -> None:
        super().__init__(str(error))
        self.field = field
        self.error = error


def convert_entry(value: object, type_: type[T], hook: Callable[[type, Any], Any], field: str) -> T:
    """Convert as `convert` does, for a hook that makes one entry of the list at `field`.

    Raises InEntry, which the outer `convert` turns into a ConfigurationError that names the entry.
    """
    try:
        return convert(value, type_, hook, within=field)
    except ConfigurationError as error:
        raise InEntry(field, error) from None


def convert(
    value: object,
    type_: type[T],
    hook: Callable[[type, Any], Any],
    within: str = "",
    allowed: Mapping[str, str] = ALLOWED,
) -> T:
    """Return `value` as the struct `type_`, at the field `within`.

    `allowed` says what its fields may hold, by their paths. Raises ConfigurationError.
    """
    try:
        return msgspec.convert(value, type_, dec_hook=hook)
    except msgspec.ValidationError as error:
        _refuse(error, within, allowed)
    except (RecursionError, OverflowError):
        raise ConfigurationError(within, "is nested too deeply or too large") from None


def _refuse(error: msgspec.ValidationError, within: str, allowed: Mapping[str, str]) -> NoReturn:
    finding = str(error)
    match = _FINDING.fullmatch(finding)
    what, path = (match["what"], match["path"] or "") if match else (finding, "")
    place = _join(within, path.removeprefix("key in ").removeprefix("$").removeprefix("."))
    if isinstance(inside := error.__cause__, InEntry):
        found = inside.error
        rest = found.field.removeprefix(inside.field)
        raise ConfigurationError(place + rest, found.message, found.allowed)
    if unknown := _UNKNOWN.fullmatch(what):
        name = unknown["name"][:60]
        field = _join(place, name)
        names = fields_of(place, allowed) - {"uploaded"}
        path = _without_indices(field)
        raise ConfigurationError(field, *not_a_field(path, names, _run_type_of(allowed)))
    if missing := _MISSING.fullmatch(what):
        field = _join(place, missing["name"])
        raise ConfigurationError(field, "is missing", _allowed(field, allowed))
    raise ConfigurationError(place, _plainly(what, place), _allowed(place, allowed))


def _run_type_of(allowed: Mapping[str, str]) -> RunType | None:
    """Return the type of run whose file has these fields; None: another file."""
    if allowed is ALLOWED:
        return RunType.TASK
    if "replicas" in allowed:
        return RunType.SERVICE
    return RunType.DEV_ENVIRONMENT if "ide" in allowed else None


def fields_of(place: str, allowed: Mapping[str, str] = ALLOWED) -> set[str]:
    """Return the names that are allowed in the mapping at this field ("" for the whole)."""
    place = _without_indices(place)
    prefix = f"{place}." if place else ""
    return {
        path.removeprefix(prefix)
        for path in allowed
        if path.startswith(prefix) and "." not in path.removeprefix(prefix)
    }


def _plainly(what: str, place: str) -> str:
    expected = _EXPECTED.fullmatch(what)
    if _BOUND.match(what):
        return "is empty" if "of length" in what else "is out of range"
    if unknown := _NO_MEMBER.fullmatch(what):
        return f"{unknown['value']} is not known"
    if expected is None:
        return what if what[:2].isupper() else what[:1].lower() + what[1:]
    got = _PLAIN_NAMES.get(expected["got"], expected["got"])
    wanted = [_PLAIN_NAMES.get(name, name) for name in expected["wanted"].split(" | ")]
    said = f"is {got}, not {' or '.join(name for name in wanted if name != 'nothing')}"
    return said + _how_to_write(expected["got"], expected["wanted"].split(" | "), place)


def _how_to_write(got: str, wanted: list[str], place: str) -> str:
    """Return how YAML reads what was written, where it is not what its writer sees."""
    if "str" in wanted and got in ("int", "float", "bool"):
        return ": quote it"
    if wanted == ["str"] and place.endswith("]") and got in _READ_AS:
        return f": YAML reads {_READ_AS[got]}, so quote the whole entry"
    if got != "null" and wanted in (["array"], ["array", "null"]):
        return {"object": ": begin it with `- `"}.get(got, ": begin its line with `- `")
    return _INSTEAD.get((place, got), "")


_INSTEAD = {
    ("retry", "int"): ": write {max_failures: NUMBER}",
    ("retry", "str"): ": write true to try everything again",
    ("gang", "int"): ": write {size: NUMBER}",
    ("resources", "array"): ": leave out the `- `",
}
_READ_AS = {"object": "`: ` and {…} as a mapping", "array": "[…] as a list"}


def _allowed(place: str, allowed: Mapping[str, str]) -> str | None:
    return allowed.get(place) or allowed.get(_without_indices(place))


def _without_indices(place: str) -> str:
    return re.sub(r"\[[^\]]*\]", "", place)


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place and name and not name.startswith("[") else place + name
