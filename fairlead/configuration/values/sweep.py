"""A task's `sweep:`: its parameter sets, and how many may run or fail (docs/rules.md 11)."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

import msgspec

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.field import Field
from fairlead.configuration.values.commands import Text
from fairlead.configuration.values.units import shown
from fairlead.model.spec import JobSpec
from fairlead.model.sweep import Parameters, ParameterSets, SweepPlan, Value, as_text

MAX_SETS = 10_000
MAX_NAMES = 64
MAX_VALUE = 4096
"""Bytes of one value: it stands in an environment variable, in a command and in tables."""
MAX_INTEGER = 10**300
"""Python writes no integer of more than 4,300 digits, which YAML may read from hexadecimal ones."""
MAX_BYTES = 1 << 20
"""Bytes of all sets: the whole submission may have 2 MiB."""
NAME_ALLOWED = "a letter, then up to 63 letters, digits, underscores and hyphens"
VALUE_ALLOWED = f"a string of one line and at most {MAX_VALUE} bytes, a number, true or false"
MATRIX_ALLOWED = "a mapping of names to lists of values, or to ranges such as 0..9"
ENTRIES_ALLOWED = "a list of mappings of names to values"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)
_RANGE = re.compile(r"(-?\d{1,9})\.\.(-?\d{1,9})", re.ASCII)
_EXPONENT = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)[eE][+-]?\d{1,3}", re.ASCII)
"""YAML 1.1 reads 1e-3 as a string, because it has no dot (yaml.org/type/float.html)."""
_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)\s*%", re.ASCII)
_PARAMETER = re.compile(r"\$\{\{\s*params\.([^{}\s]*)\s*\}\}", re.ASCII)
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./-]+", re.ASCII)
"""What no POSIX shell reads as more than itself."""
PREFIX = "FAIRLEAD_PARAM_"
_OF_SETS = frozenset({"matrix", "exclude", "include", "file", "sets"})
"""The fields of a sweep that say which sets there are."""


class Names(dict[str, Any]):
    """A mapping of parameters' names; `sets_of` reads what they hold, and names their fields."""

    ALLOWED = "a mapping of names to values"
    SCHEMA: ClassVar[dict[str, Any]] = {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    }

    @classmethod
    def read(cls, value: object) -> Self:
        if not isinstance(value, dict):
            raise ValueError(f"{shown(value)} is not a mapping")
        return cls(value)


class Matrix(Names):
    ALLOWED = MATRIX_ALLOWED
    SCHEMA: ClassVar[dict[str, Any]] = {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {
            "anyOf": [
                {"type": "array", "minItems": 1},
                {"type": "string", "pattern": rf"^{_RANGE.pattern}$"},
            ]
        },
    }


class FailureLimit:
    """A number of sets, or a share of all."""

    __slots__ = ("number", "share")
    ALLOWED = "a number of at least 1, or a share such as 10%"
    SCHEMA: ClassVar[dict[str, Any]] = {
        "anyOf": [
            {"type": "integer", "minimum": 1},
            {"type": "string", "pattern": r"^\s*[0-9.]+\s*%\s*$"},
        ]
    }

    def __init__(self, number: int | None, share: float | None) -> None:
        self.number = number
        self.share = share

    @classmethod
    def read(cls, value: object) -> Self:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return cls(value, None)
        match = _SHARE.fullmatch(value.strip()) if isinstance(value, str) else None
        share = float(match[1]) if match else 0.0
        if not 0 < share <= 100:
            raise ValueError(f"{shown(value)} is neither a number nor a share")
        return cls(None, share)

    def of(self, sets: int) -> int:
        """Return the number of failed sets that ends a run of so many sets."""
        if self.number is not None:
            return self.number
        # Rounded first: 10% of 30 is 3, and not 4 because of a float's last digit.
        return max(1, math.ceil(round(sets * (self.share or 0.0) / 100, 6)))


class SentSets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sets of a file, as the client sends them."""

    names: tuple[str, ...]
    rows: tuple[tuple[str | int | float | bool, ...], ...]


class SweepFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    matrix: Matrix | None = None
    exclude: Annotated[tuple[Names, ...], Field(ENTRIES_ALLOWED)] = ()
    include: Annotated[tuple[Names, ...], Field(ENTRIES_ALLOWED)] = ()
    file: Annotated[
        Text | None, Field("the path of a .jsonl or .csv file with one set in each line")
    ] = None
    sets: Annotated[SentSets | None, Field(is_filled_in=True)] = None
    max_parallel: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=MAX_SETS)] | None,
        Field(f"a whole number from 1 to {MAX_SETS}"),
    ] = None
    stop_after_failures: FailureLimit | None = None
    reuse_container: bool = False


def plan_of(written: SweepFields, nodes: int) -> SweepPlan:
    """Return the sweep whose sets have so many jobs each. Raises ConfigurationError."""
    sets = sets_of(written)
    if sets is None:
        raise ConfigurationError(
            "sweep.file", "was not read: submit with `fairlead apply`, or send `sweep.sets`"
        )
    if len(sets) * nodes > MAX_SETS:
        raise ConfigurationError(
            "sweep",
            f"makes {len(sets) * nodes:,} jobs ({len(sets):,} sets of {nodes} nodes)",
            f"{MAX_SETS:,} jobs at most",
        )
    limit = written.stop_after_failures
    return SweepPlan(
        sets=sets,
        max_parallel=written.max_parallel,
        stop_after_failures=None if limit is None else limit.of(len(sets)),
        reuse_container=written.reuse_container,
    )


def sets_of(written: SweepFields) -> ParameterSets | None:
    """Return the sets; None: they are in a file that was not read. Raises ConfigurationError."""
    if written.sets is not None:
        _refuse_beside(written, "sets, which are all sets")
        return checked_sets(written.sets.names, written.sets.rows, lambda at: f"sweep.sets[{at}]")
    if written.file is not None:
        _refuse_beside(written, "file, which has all sets")
        return None
    if written.matrix is None and not written.include:
        raise ConfigurationError(
            "sweep", "has no parameters", "matrix, include, or file: params.jsonl"
        )
    columns = dict(_columns(written.matrix)) if written.matrix is not None else {}
    _require_room(math.prod(map(len, columns.values())) if columns else 0, "sweep.matrix")
    # Without a matrix there is no combination; product() of nothing would be one.
    combined = itertools.product(*columns.values()) if columns else ()
    kept = list(
        _without_excluded([dict(zip(columns, row, strict=True)) for row in combined], written)
    )
    names = tuple(columns) or tuple(written.include[0])
    sets = [*kept, *_included(written, names)]
    if not sets:
        raise ConfigurationError("sweep.exclude", "leaves no parameter set over")
    first = len(kept)
    return checked_sets(
        names,
        [[one[name] for name in names] for one in sets],
        lambda at: f"sweep.include[{at - first}]" if at >= first else "sweep.matrix",
    )


def _refuse_beside(written: SweepFields, other: str) -> None:
    for name in ("matrix", "exclude", "include"):
        if getattr(written, name):
            raise ConfigurationError(
                f"sweep.{name}",
                f"can't be given together with {other}",
                "one of both",
            )


def _columns(matrix: Mapping[str, object]) -> Iterator[tuple[str, list[Value]]]:
    if not matrix:
        raise ConfigurationError("sweep.matrix", "is empty", MATRIX_ALLOWED)
    for name, written in matrix.items():
        field = f"sweep.matrix.{name}"
        values = _range(written, field) if isinstance(written, str) else written
        if not isinstance(values, list | tuple):
            raise ConfigurationError(
                field,
                f"{shown(written)} is not a list of values",
                "[1, 2, 3], or a range such as 0..9",
            )
        if not values:
            raise ConfigurationError(
                field, "is empty, so no set would be left", "[1, 2, 3], or 0..9"
            )
        column = [_value(one, f"{field}[{at}]") for at, one in enumerate(values)]
        twice = _first_twice(column)
        if twice is not None:
            raise ConfigurationError(f"{field}[{twice}]", f"{shown(column[twice])} is given twice")
        yield name, column


def _range(text: str, field: str) -> list[int]:
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(
            field, f"{shown(text)} is not a range", "a list such as [a, b], or a range such as 0..9"
        )
    first, last = int(match[1]), int(match[2])
    if last < first:
        raise ConfigurationError(
            field, f"{shown(text)} is empty: its end is less than its beginning", f"{last}..{first}"
        )
    _require_room(last - first + 1, field)
    return list(range(first, last + 1))


def _require_room(sets: int, field: str) -> None:
    if sets > MAX_SETS:
        raise ConfigurationError(field, f"makes {sets:,} sets", f"{MAX_SETS:,} at most")


def _without_excluded(
    sets: list[dict[str, Value]], written: SweepFields
) -> Iterator[dict[str, Value]]:
    if written.exclude and written.matrix is None:
        raise ConfigurationError("sweep.exclude", "has no matrix from which it could exclude")
    patterns = []
    for number, entry in enumerate(written.exclude):
        field = f"sweep.exclude[{number}]"
        pattern = _entry(entry, field)
        for name in pattern:
            _require_known(name, written.matrix or {}, f"{field}.{name}")
        if not any(_fits(pattern, one) for one in sets):
            raise ConfigurationError(
                field, "matches no set of the matrix", "values that stand in the matrix"
            )
        patterns.append(pattern)
    return (one for one in sets if not any(_fits(pattern, one) for pattern in patterns))


def _fits(pattern: Parameters, one: Parameters) -> bool:
    return all(as_text(one[name]) == as_text(value) for name, value in pattern.items())


def _included(written: SweepFields, names: Sequence[str]) -> Iterator[dict[str, Value]]:
    for number, entry in enumerate(written.include):
        field = f"sweep.include[{number}]"
        one = _entry(entry, field)
        for name in one:
            _require_known(name, names, f"{field}.{name}")
        missing = [name for name in names if name not in one]
        if missing:
            raise ConfigurationError(
                field, f"lacks {', '.join(missing)}: each set has the same names"
            )
        yield one


def _entry(written: Mapping[str, object], field: str) -> dict[str, Value]:
    if not written:
        raise ConfigurationError(field, "is empty", Names.ALLOWED)
    return {name: _value(value, f"{field}.{name}") for name, value in written.items()}


def _require_known(name: str, names: Iterable[str], field: str) -> None:
    if name not in names:
        raise ConfigurationError(field, "is no parameter of this sweep", ", ".join(names))


def _value(written: object, field: str) -> Value:
    if isinstance(written, str) and _EXPONENT.fullmatch(written.strip()):
        written = float(written)
    if isinstance(written, bool | int | float):
        _check_integer(written, field)
        return written
    if not isinstance(written, str):
        raise ConfigurationError(field, f"{shown(written)} is not a value", VALUE_ALLOWED)
    return written


# -- what holds for all sets, wherever they come from ---------------------------------------------


def checked_sets(
    names: Sequence[str],
    rows: Iterable[Sequence[Value]],
    field_of: Callable[[int], str],
    *,
    named_in: str | None = None,
) -> ParameterSets:
    """Return the sets; `field_of` names the field or line of one by its number, `named_in` the
    line that has the names, if it is not that of the first set.

    Raises ConfigurationError.
    """
    _check_names(names, field_of(0) if named_in is None else named_in)
    checked = []
    for number, row in enumerate(rows):
        if number >= MAX_SETS:
            raise ConfigurationError("sweep", f"has more than {MAX_SETS:,} sets")
        if len(row) != len(names):
            raise ConfigurationError(
                field_of(number), f"has {len(row)} values for {len(names)} names"
            )
        for name, value in zip(names, row, strict=True):
            if isinstance(value, str) or not -MAX_INTEGER < value < MAX_INTEGER:
                _check_value(value, name, field_of(number))
        checked.append(row)
    if not checked:
        raise ConfigurationError("sweep", "has no parameter set")
    sets = ParameterSets.of(names, checked)
    twice = _first_twice(sets.rows)
    if twice is not None:
        raise ConfigurationError(field_of(twice), "is a set that there is already")
    if sum(map(len, sets.rows)) > MAX_BYTES:
        raise ConfigurationError(
            "sweep",
            f"has more than {MAX_BYTES >> 20} MiB of parameters",
            "names of `files` instead of their content",
        )
    return sets


def _check_names(names: Sequence[str], where: str) -> None:
    seen: dict[str, str] = {}
    if len(names) > MAX_NAMES:
        raise ConfigurationError("sweep", f"has {len(names)} parameters", f"{MAX_NAMES} at most")
    for name in names:
        field = f"{where}.{shown(name)[1:-1]}"
        if not _NAME.fullmatch(name):
            raise ConfigurationError(field, "is not the name of a parameter", NAME_ALLOWED)
        other = seen.setdefault(variable_of(name), name)
        if other is not name:
            raise ConfigurationError(
                field, f"gives the same variable as {other}, {variable_of(name)}: use another name"
            )


def _check_value(value: Value, name: str, field: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigurationError(f"{field}.{name}", "is not a finite number")
    _check_integer(value, f"{field}.{name}")
    if not isinstance(value, str):
        return
    if "\0" in value:
        raise ConfigurationError(f"{field}.{name}", "holds a NUL character", VALUE_ALLOWED)
    if value.splitlines() not in ([], [value]):
        raise ConfigurationError(
            f"{field}.{name}", "holds a line break: a parameter is one line", VALUE_ALLOWED
        )
    if len(value.encode()) > MAX_VALUE:
        raise ConfigurationError(f"{field}.{name}", "is too long", VALUE_ALLOWED)


def _check_integer(value: Value, field: str) -> None:
    if isinstance(value, int) and abs(value) >= MAX_INTEGER:
        raise ConfigurationError(field, "has more than 300 digits", "the same in quotes")


def _first_twice(values: Iterable[Value | bytes]) -> int | None:
    """Return the number of the first value that was there before. 1, 1.0 and true are equal in
    Python and different parameters."""
    seen: set[tuple[type, Value | bytes]] = set()
    for number, value in enumerate(values):
        if (type(value), value) in seen:
            return number
        seen.add((type(value), value))
    return None


# -- where parameters stand -----------------------------------------------------------------------


def variable_of(name: str) -> str:
    """Return the name of the environment variable of this parameter."""
    return PREFIX + name.upper().replace("-", "_")


def check_expressions(fields: Iterable[tuple[str, str]], names: Iterable[str] | None) -> None:
    """Refuse `${{ params.NAME }}` that stands for nothing. `fields`: each string with its path;
    `names`: those of the sweep, None: they are in a file. Raises ConfigurationError."""
    known = None if names is None else tuple(names)
    for field, text in fields:
        for name in _PARAMETER.findall(text):
            if known is not None and name not in known:
                raise ConfigurationError(
                    field,
                    f"holds ${{{{ params.{name[:60]} }}}}, which is no parameter of this run",
                    ", ".join(known) or "parameters of a `sweep`",
                )


def filled(spec: JobSpec, one: Parameters) -> JobSpec:
    """Return what a job of this set executes: its variables, and the values in its commands."""
    texts = {name: as_text(value) for name, value in one.items()}

    def as_it_is(text: str) -> str:
        return _PARAMETER.sub(lambda match: texts.get(match[1], ""), text)

    def in_a_shell(text: str) -> str:
        return _PARAMETER.sub(lambda match: _word(match[1], texts.get(match[1], "")), text)

    variables = {variable_of(name): text for name, text in texts.items()}
    return msgspec.structs.replace(
        spec,
        env={name: as_it_is(text) for name, text in spec.env.items()} | variables,
        setup=tuple(map(in_a_shell, spec.setup)),
        commands=tuple(map(in_a_shell, spec.commands)),
        entrypoint=None if spec.entrypoint is None else tuple(map(as_it_is, spec.entrypoint)),
    )


def _word(name: str, text: str) -> str:
    """Return the value for a command: a shell must never run a part of it."""
    return text if _PLAIN_WORD.fullmatch(text) else f"${{{variable_of(name)}}}"


def with_sets(
    written: Mapping[str, Any], names: Sequence[str], rows: Iterable[Sequence[Value]]
) -> dict[str, Any]:
    """Return a written sweep with these sets instead of its own, and its other fields."""
    others = {field: value for field, value in written.items() if field not in _OF_SETS}
    return {**others, "sets": {"names": list(names), "rows": [list(row) for row in rows]}}


def without_sets(written: object) -> object:
    """Return what may be stored and shown of a written sweep: the sets of a file have a place of
    their own, and here a digest stands for them."""
    if not isinstance(written, Mapping) or not isinstance(written.get("sets"), Mapping):
        return written
    digest = hashlib.sha256(msgspec.json.encode(written["sets"])).hexdigest()
    return {**written, "sets": f"sha256:{digest}"}
