"""Row codecs turn the model's structs into rows and back; there is one for each table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec
import sqlalchemy as sa

from controller.lifecycle.events import Event
from controller.lifecycle.model import Allocation, Attempt, Fleet, Job, Node, Run
from controller.store import schema
from controller.store.base import Gateway, ServiceKey, StoredSecret, StoredToken, User

T = TypeVar("T", bound=msgspec.Struct)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class RowCodec(Generic[T]):
    """Converts values of one struct. `without` names fields that have a table of their own."""

    def __init__(self, type_: type[T], table: sa.Table, without: frozenset[str] = frozenset()):
        self.table = table
        self._type = type_
        fields = [field for field in msgspec.structs.fields(type_) if field.name not in without]
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
        in_columns = {*self._plain, *self._json}
        self._rest = tuple(
            (field.name, field.encode_name, field.default)
            for field in fields
            if field.name not in in_columns
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
        if "rest" in self.table.columns:
            row["rest"] = _encode(rest).decode()
        row.update(keys)
        return row

    def value(self, row: Mapping[Any, Any], **parts: object) -> T:
        """Return the value of this row; `parts` are the fields that `without` left out."""
        content = {name: row[name] for name in self._plain}
        for name in self._json:
            content[name] = _decode(row[name])
        if "rest" in row:
            content.update(_decode(row["rest"]))
        value = msgspec.convert(content, self._type)
        return msgspec.structs.replace(value, **parts) if parts else value

    def same(self, old: T, new: T) -> bool:
        """Return whether both give the same row, by the identity of their parts."""
        return all(_unchanged(getattr(old, name), getattr(new, name)) for name in self._names)


def storable(text: str) -> str:
    """Replace the characters that some databases refuse: NUL and halves of surrogate pairs.

    Jobs and other clients may send them.
    """
    text = text.replace("\0", "\N{SYMBOL FOR NULL}")
    return text.encode("utf-8", "replace").decode()


def _plain(content: object) -> object:
    """Return the value as drivers take it: without enums."""
    if isinstance(content, Enum):
        return content.value
    return storable(content) if isinstance(content, str) else content


def _unchanged(old: object, new: object) -> bool:
    return old is new or (isinstance(new, str | int | float) and old == new)


RUN = RowCodec(Run, schema.runs, without=frozenset({"past_running"}))
JOB = RowCodec(Job, schema.jobs, without=frozenset({"attempts", "past"}))
ATTEMPT = RowCodec(Attempt, schema.attempts)
ALLOCATION = RowCodec(Allocation, schema.allocations)
FLEET = RowCodec(Fleet, schema.fleets)
NODE = RowCodec(Node, schema.nodes)
USER = RowCodec(User, schema.users)
TOKEN = RowCodec(StoredToken, schema.tokens)
SERVICE_KEY = RowCodec(ServiceKey, schema.service_keys)
SECRET = RowCodec(StoredSecret, schema.secrets)
GATEWAY = RowCodec(Gateway, schema.gateways)
EVENT = RowCodec(Event, schema.events)
