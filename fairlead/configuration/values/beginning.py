"""What must be true before a run begins: the runs that come first, and its times."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Self

import msgspec

from fairlead.configuration.convert import ConfigurationError, InEntry, convert
from fairlead.configuration.field import Field, mapping_of
from fairlead.configuration.values.commands import STRING
from fairlead.configuration.values.names import is_run_name
from fairlead.configuration.values.units import Duration, parse_duration, shown
from fairlead.model.beginning import After, Moment, SameJob, When

MOMENT_ALLOWED = (
    "a time with its zone such as 2026-12-01T08:00Z, or a duration from the submission such as 4h"
)
MAX_AFTER = 100
"""The most runs that one run waits for."""
_RUN_ID = re.compile(r"[0-9a-f-]{16,64}", re.ASCII)
_LOOKS_LIKE_A_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]|$)", re.ASCII)


class RunKey(str):
    """The name or the id of another run."""

    __slots__ = ()
    ALLOWED = "the name or the id of another run"
    SCHEMA = STRING

    @classmethod
    def read(cls, value: object) -> Self:
        if isinstance(value, str) and (is_run_name(value) or _RUN_ID.fullmatch(value)):
            return cls(value)
        raise ValueError(f"{shown(value)} is neither the name nor the id of a run")


class RunKeys(tuple[str, ...]):
    """Other runs."""

    __slots__ = ()
    ALLOWED = "the name or the id of a run, or a list of them"
    SCHEMA: ClassVar[dict[str, Any]] = {"anyOf": [STRING, {"type": "array", "items": STRING}]}

    @classmethod
    def read(cls, value: object) -> Self:
        given = list(value) if isinstance(value, list | tuple) else [value]
        if len(given) > MAX_AFTER:
            raise ValueError(f"has more than {MAX_AFTER} runs")
        keys = [RunKey.read(one) for one in given]
        if len(set(keys)) != len(keys):
            raise ValueError("names a run twice")
        return cls(keys)


class AfterFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The long form of one of `after`."""

    run: RunKey
    when: When = When.DONE
    job: Annotated[
        SameJob, Field("all, or same for the job, or the parameter set, with the same number")
    ] = SameJob.ALL


class AfterList(tuple[After, ...]):
    """The runs that come first."""

    __slots__ = ()
    FIELDS = AfterFields
    ALLOWED = "the name or the id of a run, or a list of them and of mappings with run, when, job"
    SCHEMA: ClassVar[dict[str, Any]] = {
        "anyOf": [
            STRING,
            mapping_of(AfterFields),
            {"type": "array", "items": {"anyOf": [STRING, mapping_of(AfterFields)]}},
        ]
    }

    @classmethod
    def read(cls, value: object) -> Self:
        listed = isinstance(value, list | tuple)
        given = list(value) if isinstance(value, list | tuple) else [value]
        if len(given) > MAX_AFTER:
            raise ValueError(f"has more than {MAX_AFTER} runs")
        try:
            entries = [_after(one, f"[{n}]" if listed else "") for n, one in enumerate(given)]
        except ConfigurationError as error:
            raise InEntry("after", error) from None
        if len({one.run for one in entries}) != len(entries):
            raise ValueError("names a run twice")
        return cls(entries)


def _after(value: object, location: str) -> After:
    field = f"after{location}"
    if isinstance(value, dict):
        fields = convert(value, AfterFields, within=field)
        return After(run=str(fields.run), when=fields.when, job=fields.job)
    try:
        return After(run=str(RunKey.read(value)))
    except ValueError as error:
        raise ConfigurationError(field, str(error), AfterList.ALLOWED) from None


class MomentField:
    """A time, or a duration from the submission."""

    __slots__ = ("moment",)
    ALLOWED = MOMENT_ALLOWED
    SCHEMA: ClassVar[dict[str, Any]] = {"anyOf": [*Duration.SCHEMA["anyOf"], STRING]}

    def __init__(self, moment: Moment) -> None:
        self.moment = moment

    @property
    def plain(self) -> Moment:
        return self.moment

    @classmethod
    def read(cls, value: object) -> Self:
        if isinstance(value, datetime):
            value = value.isoformat()
        if isinstance(value, str) and _LOOKS_LIKE_A_TIME.match(value):
            return cls(Moment(at=_time(value), written=value))
        try:
            return cls(Moment(within=parse_duration(value), written=_duration_words(value)))
        except ValueError:
            message = f"{shown(value)} is neither a time with its zone nor a duration"
            raise ValueError(message) from None


def _duration_words(value: object) -> str:
    return value.strip() if isinstance(value, str) and not value.isdigit() else f"{value} s"


def _time(text: str) -> float:
    """Return Unix seconds. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{shown(text)} is not a time such as 2026-12-01T08:00Z") from None
    if moment.tzinfo is None:
        raise ValueError(f"{shown(text)} has no time zone: write {text}Z for UTC, or add +02:00")
    if not datetime(2000, 1, 1, tzinfo=UTC) <= moment <= datetime(2200, 1, 1, tzinfo=UTC):
        raise ValueError(f"{shown(text)} is not between the years 2000 and 2200")
    return moment.timestamp()
