"""msgspec checks the structure and types of a configuration; this module turns its errors into
sentences.

A sentence names one field and what is allowed there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

import msgspec

from fairlead.configuration.errors import ConfigurationError as ConfigurationError
from fairlead.configuration.field import FILLED_IN, fields_of
from fairlead.configuration.hints import not_a_field
from fairlead.wire.decoders import decoder_of

T = TypeVar("T")
_FINDING = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>(?:key in )?\$[^`]*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
_EXPECTED = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `(?P<got>[^`]*)`")
_NO_MEMBER = re.compile(r"Invalid enum value (?P<value>.*)", re.DOTALL)
_BOUND = re.compile(r"Expected `(?:int|float|str)` (?:<|>|of length)")
_SOME_ENTRY = "[...]"
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
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


class Guide(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a file's fields when one is wrong.

    `allowed`: what each may hold, by its path. `called`: the right path for names that others use.
    `hints`: a sentence for names that are no fields here. `words`: the only strings that some may
    hold. `is_in_schema`: `fairlead schema` describes the fields.
    """

    allowed: Mapping[str, str]
    called: Mapping[str, str] = {}
    hints: Mapping[str, str] = {}
    words: Mapping[str, tuple[str, ...]] = {}
    is_in_schema: bool = True

    def named_at(self, location: str) -> set[str]:
        """Return the names that are allowed in the mapping at this field ("" for the whole)."""
        location = without_indices(location)
        prefix = f"{location}." if location else ""
        return {
            path.removeprefix(prefix)
            for path, allowed in self.allowed.items()
            if path.startswith(prefix)
            and "." not in path.removeprefix(prefix)
            and allowed != FILLED_IN
        }

    def allowed_at(self, location: str) -> str | None:
        return self.allowed.get(location) or self.allowed.get(without_indices(location))


def guide_to(struct: type, within: str = "", hints: Mapping[str, str] | None = None) -> Guide:
    """Return what the fields of a struct say of themselves; `within`: the path of its mapping."""
    prefix = f"{without_indices(within)}." if within else ""
    described = {f"{prefix}{path}": one for path, one in fields_of(struct).items()}
    return Guide(
        allowed={path: one.allowed for path, one in described.items()},
        called={name: path for path, one in described.items() for name in one.field.called},
        hints=hints if hints is not None else getattr(struct, "HINTS", {}),
        words={path: one.words for path, one in described.items() if one.words},
    )


def read_itself(type_: type[Any], value: object) -> Any:
    """Make a value of a type of `values`; this is msgspec's hook."""
    return type_.read(value)


def convert_entry(value: object, type_: type[T], field: str) -> T:
    """Convert as `convert` does, for a type that is one entry of the list at `field`.

    Raises InEntry, which the outer `convert` turns into a ConfigurationError that names the entry.
    """
    try:
        return convert(value, type_, within=field)
    except ConfigurationError as error:
        raise InEntry(field, error) from None


def convert(
    value: object,
    type_: type[T],
    hook: Callable[[type[Any], Any], Any] = read_itself,
    within: str = "",
    *,
    allowed: Mapping[str, str] | None = None,
    hints: Mapping[str, str] = MappingProxyType({}),
    guide: Callable[[], Guide] | None = None,
) -> T:
    """Return `value` as the struct `type_`, at the field `within`.

    `guide` is asked when something is wrong; without it the fields of `type_` speak for themselves,
    or `allowed`, which says what they may hold by their paths, and `hints`. Raises
    ConfigurationError.
    """
    decoder_of(type_)  # AsyncClient submits from several threads
    try:
        return msgspec.convert(value, type_, dec_hook=hook)
    except msgspec.ValidationError as error:
        if allowed is not None:
            known = Guide(allowed=allowed, hints=hints, is_in_schema=False)
        else:
            known = guide_to(type_, within) if guide is None else guide()
        _refuse(error, within, known, _entry(error, value, type_, hook))
    # A YAML of a few bytes can nest a thousand lists, or name a number with a thousand digits.
    except (RecursionError, OverflowError):
        raise ConfigurationError(within, "is nested too deeply or too large") from None


def _entry(
    error: msgspec.ValidationError,
    value: object,
    type_: type[Any],
    hook: Callable[[type[Any], Any], Any],
) -> str:
    """Return the name that msgspec writes as `[...]`, that of an entry of a mapping, or that."""
    before, found, _ = str(error).rpartition(" - at `$")[2].partition(_SOME_ENTRY)
    if not found:
        return _SOME_ENTRY
    way: list[Any] = [
        int(number) if number else name for name, number in _STEP.findall(before) if name or number
    ]
    inner: Any = value
    for step in way:
        inner = inner[step]
    for name in inner:
        # What is wrong with the whole is wrong with the entry alone.
        try:
            msgspec.convert(_with(value, way, {name: inner[name]}), type_, dec_hook=hook)
        except msgspec.ValidationError as alone:
            if str(alone) == str(error):
                return f".{name}"
    return _SOME_ENTRY


def _with(value: Any, way: Sequence[Any], content: object) -> object:
    """Return a copy of the value that has this content at the end of the way."""
    if not way:
        return content
    made = value.copy()
    made[way[0]] = _with(value[way[0]], way[1:], content)
    return made


def _refuse(error: msgspec.ValidationError, within: str, guide: Guide, entry: str) -> NoReturn:
    # msgspec gives the field's path in its text alone: "Expected `int`, got `str` - at `$.nodes`".
    finding = str(error)
    match = _FINDING.fullmatch(finding)
    what, path = (match["what"], match["path"] or "") if match else (finding, "")
    path = path.replace(_SOME_ENTRY, entry, 1)
    location = _join(within, path.removeprefix("key in ").removeprefix("$").removeprefix("."))
    # msgspec turns a ValueError of its hook into its own error, and keeps it as the cause.
    if isinstance(inside := error.__cause__, InEntry):
        found = inside.error
        rest = found.field.removeprefix(inside.field)
        raise ConfigurationError(location + rest, found.message, found.allowed)
    if unknown := _UNKNOWN.fullmatch(what):
        name = unknown["name"][:60]
        field = _join(location, name)
        names = guide.named_at(location)
        path = without_indices(field)
        refusal = not_a_field(
            path, names, guide.called, guide.hints, is_in_schema=guide.is_in_schema
        )
        raise ConfigurationError(field, *refusal)
    if missing := _MISSING.fullmatch(what):
        field = _join(location, missing["name"])
        raise ConfigurationError(field, "is missing", guide.allowed_at(field))
    words = guide.words.get(without_indices(location), ())
    raise ConfigurationError(location, _plainly(what, location, words), guide.allowed_at(location))


def _plainly(what: str, location: str, words: Sequence[str]) -> str:
    expected = _EXPECTED.fullmatch(what)
    if _BOUND.match(what):
        return "is empty" if "of length" in what else "is out of range"
    if unknown := _NO_MEMBER.fullmatch(what):
        return f"{unknown['value']} is not known"
    if expected is None:
        return what if what[:2].isupper() else what[:1].lower() + what[1:]
    got = _PLAIN_NAMES.get(expected["got"], expected["got"])
    wanted = [_PLAIN_NAMES.get(name, name) for name in expected["wanted"].split(" | ")]
    wrong = f"is {got}, not {' or '.join(name for name in wanted if name != 'nothing')}"
    return wrong + _how_to_write(expected["got"], expected["wanted"].split(" | "), location, words)


def _how_to_write(got: str, wanted: list[str], location: str, words: Sequence[str]) -> str:
    """Return how YAML reads what was written, where it is not what its writer sees. `words`: the
    only strings that are allowed."""
    if words and _READ_AS_BOOL.isdisjoint(words) and got in ("int", "float", "bool"):
        # In quotes, it would be as wrong.
        first = ", ".join(words[:-1])
        return f": write {first} or {words[-1]}" if first else f": write {words[-1]}"
    if "str" in wanted and got in ("int", "float", "bool"):
        return ": quote it"
    if wanted == ["str"] and location.endswith("]") and got in _READ_AS:
        return f": YAML reads {_READ_AS[got]}, so quote the whole entry"
    if got != "null" and wanted in (["array"], ["array", "null"]):
        return {"object": ": begin it with `- `"}.get(got, ": begin its line with `- `")
    return _INSTEAD.get((location, got), "")


_INSTEAD = {
    ("retry", "int"): ": write {max_failures: NUMBER}",
    ("retry", "str"): ": write true to try everything again",
    ("gang", "int"): ": write {size: NUMBER}",
    ("resources", "array"): ": leave out the `- `",
}
_READ_AS_BOOL = frozenset({"on", "off", "yes", "no", "true", "false"})
_READ_AS = {"object": "`: ` and {…} as a mapping", "array": "[…] as a list"}


def without_indices(location: str) -> str:
    return re.sub(r"\[[^\]]*\]", "", location)


def _join(location: str, name: str) -> str:
    return (
        f"{location}.{name}" if location and name and not name.startswith("[") else location + name
    )
