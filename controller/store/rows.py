"""Row codecs turn the model's structs into rows and back; there is one for each table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Generic, TypeVar, get_args

import msgspec
import sqlalchemy as sa

from controller.lifecycle.events import Event
from controller.lifecycle.machines.cost import DayCosts
from controller.lifecycle.machines.model import Machine
from controller.lifecycle.machines.orphans import KnownOrphan
from controller.lifecycle.model import (
    Allocation,
    Attempt,
    Fleet,
    Job,
    JobSpec,
    Node,
    Run,
    RunState,
    SweepContent,
)
from controller.store import schema
from controller.store.accounts import ServiceKey, StoredSecret, StoredToken, User
from controller.store.base import Gateway, StoredCatalog
from fairlead.model.sweep import ParameterSets
from fairlead.wire.decoders import decoder_of

T = TypeVar("T", bound=msgspec.Struct)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class _Part:
    """A field that is a struct and whose own fields are kept next to its owner's."""

    def __init__(self, field: msgspec.structs.FieldInfo) -> None:
        self.name, self.default = field.name, field.default
        struct = next(one for one in get_args(field.type) or (field.type,) if _is_struct(one))
        self.fields = tuple(
            (one.name, one.encode_name, one.default) for one in msgspec.structs.fields(struct)
        )


class RowCodec(Generic[T]):
    """Converts values of one struct.

    `without` names fields that have a table of their own. `flat` names fields that are structs
    without columns: their fields are kept in `rest` under their encoded names, as if they were
    fields of `type_`. So a row does not tell how its fields are grouped.
    """

    def __init__(
        self,
        type_: type[T],
        table: sa.Table,
        without: frozenset[str] = frozenset(),
        flat: frozenset[str] = frozenset(),
    ):
        self.table = table
        self._type = type_
        decoder_of(type_)  # rows are read in several threads
        fields = [field for field in msgspec.structs.fields(type_) if field.name not in without]
        self._parts = tuple(_Part(field) for field in fields if field.name in flat)
        self._part_of = {key: part.name for part in self._parts for _, key, _ in part.fields}
        columns = table.columns
        self._plain = tuple(
            field.name
            for field in fields
            if field.name in columns and not columns[field.name].info.get("json")
        )
        self._json = tuple(
            field.name
            for field in fields
            if field.name in columns and columns[field.name].info.get("json")
        )
        self._has_rest = "rest" in columns
        in_columns = {*self._plain, *self._json}
        self._rest = tuple(
            (field.name, field.encode_name, field.default)
            for field in fields
            if field.name not in in_columns and field.name not in flat
        )
        self._names = tuple(field.name for field in fields)

    def row(self, value: T, **keys: object) -> dict[str, Any]:
        """Return the row of this value; `keys` are columns that are not its fields."""
        row: dict[str, Any] = {name: _plain(getattr(value, name)) for name in self._plain}
        for name in self._json:
            row[name] = _encode(getattr(value, name)).decode()
        rest = {
            key: content
            for name, key, default in self._rest
            if (content := getattr(value, name)) is not default
        }
        for part in self._parts:
            whole = getattr(value, part.name)
            if whole is not part.default:
                rest |= {
                    key: content
                    for name, key, default in part.fields
                    if (content := getattr(whole, name)) is not default
                }
        if self._has_rest:
            row["rest"] = _encode(rest).decode()
        row.update(keys)
        return row

    def value(self, row: Mapping[Any, Any], **parts: object) -> T:
        """Return the value of this row; `parts` are the fields that `without` left out."""
        content = {name: row[name] for name in self._plain}
        for name in self._json:
            content[name] = _decode(row[name])
        if "rest" in row:
            self._add_rest(content, _decode(row["rest"]))
        value = msgspec.convert(content, self._type)
        return msgspec.structs.replace(value, **parts) if parts else value

    def _add_rest(self, content: dict[str, Any], rest: dict[str, Any]) -> None:
        if not self._parts:
            content.update(rest)
            return
        for key, value in rest.items():
            part = self._part_of.get(key)
            if part is None:
                content[key] = value
            elif part in content:
                content[part][key] = value
            else:
                content[part] = {key: value}

    def same(self, old: T, new: T) -> bool:
        """Return whether both give the same row, by the identity of their parts."""
        return all(_unchanged(getattr(old, name), getattr(new, name)) for name in self._names)


def storable(text: str) -> str:
    """Replace the characters that some databases refuse: NUL and halves of surrogate pairs.

    Jobs and other clients may send them.
    """
    if text.isascii() and "\0" not in text:
        return text
    text = text.replace("\0", "\N{SYMBOL FOR NULL}")
    return text.encode("utf-8", "replace").decode()


def submission_mark(user: str, client_key: str) -> int:
    """Return a number of 64 bits for this submission; it is another one in another process."""
    return hash((user, storable(client_key)))


def _is_struct(type_: object) -> bool:
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)


def _plain(content: object) -> object:
    """Return the value as drivers take it: without enums."""
    if isinstance(content, Enum):
        return content.value
    return storable(content) if isinstance(content, str) else content


def _unchanged(old: object, new: object) -> bool:
    return old is new or (isinstance(new, str | int | float) and old == new)


RUN = RowCodec(Run, schema.runs, without=frozenset({"past_running"}))
JOB = RowCodec(Job, schema.jobs, without=frozenset({"attempts", "past"}))
ATTEMPT = RowCodec(
    Attempt,
    schema.attempts,
    flat=frozenset(
        {"limit_pause", "pull", "task", "seen", "serving", "inactivity", "interruption"}
    ),
)
ALLOCATION = RowCodec(Allocation, schema.allocations)
FLEET = RowCodec(Fleet, schema.fleets)
NODE = RowCodec(Node, schema.nodes)
MACHINE = RowCodec(Machine, schema.machines)
ORPHAN = RowCodec(KnownOrphan, schema.orphans)
USER = RowCodec(User, schema.users)
TOKEN = RowCodec(StoredToken, schema.tokens)
SERVICE_KEY = RowCodec(ServiceKey, schema.service_keys)
SECRET = RowCodec(StoredSecret, schema.secrets)
GATEWAY = RowCodec(Gateway, schema.gateways)
CATALOG = RowCodec(StoredCatalog, schema.catalogs)
COSTS = RowCodec(DayCosts, schema.cost_days)
EVENT = RowCodec(Event, schema.events)


def sweep_row(state: RunState) -> dict[str, Any]:
    """Return the row of a sweep's content."""
    content = state.sweep
    assert content is not None, "only a sweep has content"
    return {
        "run_id": state.run.id,
        "sets": storable(content.sets.text()),
        "spec": _encode(content.spec).decode(),
    }


def sweep_content(row: Mapping[Any, Any]) -> SweepContent:
    """Return the content of such a row."""
    spec = decoder_of(JobSpec).decode(row["spec"])
    return SweepContent(sets=ParameterSets.read(row["sets"]), spec=spec)
