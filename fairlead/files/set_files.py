"""Reads the file of a sweep: one parameter set in each line, as JSON or CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.values.sweep import MAX_BYTES, MAX_SETS, checked_sets

FIELD = "sweep.file"
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_MAX_DIGITS = 300
"""A longer number stays a string: Python reads no integer of more than 4,300 digits."""
_Row = dict[str, str | int | float | bool]


def with_sets(sweep: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Return the `sweep` with the sets of its file, whose path is relative to `base`.

    Raises ConfigurationError, which names the file and the line.
    """
    file = base / str(sweep["file"])
    lines: list[int] = []
    names: tuple[str, ...] = ()
    rows: list[list[object]] = []
    for line, row in _rows(file):
        names = names or tuple(row)
        if tuple(sorted(row)) != tuple(sorted(names)):
            raise _wrong(file, line, f"has {', '.join(row) or 'no names'}, not {', '.join(names)}")
        if len(rows) == MAX_SETS:
            raise ConfigurationError(FIELD, f"{file.name} has more than {MAX_SETS:,} sets")
        lines.append(line)
        rows.append([row[name] for name in names])
    if not rows:
        raise ConfigurationError(FIELD, f"{file.name} has no parameter set")
    # Checked here, where the line is known; the controller checks all of it again.
    names_at = 1 if file.suffix.lower() == ".csv" else lines[0]
    checked_sets(
        names,
        rows,  # type: ignore[arg-type]
        lambda at: f"{FIELD}: {file.name}:{lines[at]}",
        named_in=f"{FIELD}: {file.name}:{names_at}",
    )
    return {**sweep, "sets": {"names": list(names), "rows": rows}}


def _rows(file: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Yield each set with the number of its line, from 1."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigurationError(FIELD, f"{file} can't be read: {error.strerror}") from None
    if len(content) > 4 * MAX_BYTES:
        raise ConfigurationError(FIELD, f"{file.name} is larger than {4 * MAX_BYTES >> 20} MiB")
    try:
        # Excel and others begin a UTF-8 file with a byte order mark, which is no part of a name.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise _wrong(file, line, "is not UTF-8") from None
    match file.suffix.lower():
        case ".jsonl" | ".ndjson":
            yield from _of_json(file, text)
        case ".csv":
            yield from _of_csv(file, text)
        case _:
            raise ConfigurationError(FIELD, f"{file.name} is no .jsonl or .csv file")


def _of_json(file: Path, text: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    decoder = msgspec.json.Decoder(_Row)
    # Not `splitlines`: it also breaks at characters that JSON allows in a string.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield number, decoder.decode(line)
        except msgspec.DecodeError:
            raise _wrong(
                file, number, "is not a JSON object of strings, numbers, true and false"
            ) from None


def _of_csv(file: Path, text: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        names = [name.strip() for name in next(reader, [])]
        if len(set(names)) != len(names):
            raise _wrong(file, 1, "has one name twice")
        if not names and text:
            raise _wrong(file, 1, "is empty: the first line has the names")
        for row in reader:
            if not row:
                continue
            if len(row) != len(names):
                raise _wrong(file, reader.line_num, f"has {len(row)} values for {len(names)} names")
            yield reader.line_num, dict(zip(names, map(_value, row), strict=True))
    # The csv module refuses a field of more than 128 KiB (csv.field_size_limit).
    except csv.Error as error:
        raise _wrong(file, reader.line_num, f"is not CSV: {error}") from None


def _value(text: str) -> object:
    """Return a number as a number: a CSV file has only strings."""
    stripped = text.strip()
    if len(stripped) <= _MAX_DIGITS and _NUMBER.fullmatch(stripped):
        return float(stripped) if set(stripped) & set(".eE") else int(stripped)
    return {"true": True, "false": False}.get(stripped, text)


def _wrong(file: Path, line: int, message: str) -> ConfigurationError:
    return ConfigurationError(FIELD, f"{file.name}:{line} {message}")
