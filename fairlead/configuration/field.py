"""A field of a file says itself what it may hold, and by which other names people know it.

Most types say it alone: a type of `values` has its sentence, an enumeration its members. Where the
type does not say it, or one field allows less, the annotation does: `Annotated[Size, Field("…")]`.
Error texts, hints, the JSON schema and the tests of the pages ask here; no table stands next to the
fields. Nothing is computed before it is asked for, so a file without errors pays nothing.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from fairlead.wire.engine_abilities import EngineAbility

FILLED_IN = "nothing: `fairlead apply` fills it in"


class Field:
    """What a field says beside its type.

    `allowed`: what it may hold; None: its type says it. `called`: other names for it, from other
    systems and common use, as the paths that a user writes. `needs`: what a node's engine must be
    able to do for a job that gives it. `public`: returns what may be shown of a written value;
    None: all of it. `is_filled_in`: `fairlead apply` sets it, never a user.
    """

    __slots__ = ("allowed", "called", "is_filled_in", "needs", "public")

    def __init__(
        self,
        allowed: str | None = None,
        *,
        called: tuple[str, ...] = (),
        needs: EngineAbility | None = None,
        public: Callable[[Any], object] | None = None,
        is_filled_in: bool = False,
    ) -> None:
        self.allowed = FILLED_IN if is_filled_in else allowed
        self.called = called
        self.needs = needs
        self.public = public
        self.is_filled_in = is_filled_in


class Described(msgspec.Struct, frozen=True):
    """A field of a struct. `part`: the struct of its mapping, or of its entries' mappings. `pair`:
    the struct of an entry that is a pair, whose two names nobody has to look up. `words`: the only
    strings that it may hold, if there are such."""

    allowed: str
    field: Field
    part: type[msgspec.Struct] | None
    pair: type[msgspec.Struct] | None
    words: tuple[str, ...] = ()


_NOTHING = Field()


@functools.cache
def own_fields(struct: type[msgspec.Struct]) -> Mapping[str, Described]:
    """Return the fields of a struct by their names. Raises TypeError for one that does not say what
    it may hold."""
    hints = get_type_hints(struct, include_extras=True)
    return {name: _described(struct, name, hints[name]) for name in struct.__struct_fields__}


@functools.cache
def fields_of(struct: type[msgspec.Struct]) -> Mapping[str, Described]:
    """Return the fields of a struct and of its parts, by their paths.

    A part that extends another struct, as a group of jobs does, repeats its fields: of such a part
    there are only the fields that it adds.
    """
    found: dict[str, Described] = {}
    for name, described in own_fields(struct).items():
        found[name] = described
        part = described.part
        if part is None or described.field.is_filled_in:
            continue
        adds_to_another = part.__bases__ != (msgspec.Struct,)
        inner = own_fields(part) if adds_to_another else fields_of(part)
        for path, one in inner.items():
            if not adds_to_another or path in part.__annotations__:
                found[f"{name}.{path}"] = one
    return found


def parts_of(struct: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """Yield the structs of all mappings in it, outer ones first, some more than once."""
    for described in own_fields(struct).values():
        if described.part is not None and not described.field.is_filled_in:
            yield described.part
            yield from parts_of(described.part)
        if described.pair is not None:
            yield described.pair


def mapping_of(part: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON schema of a mapping with the fields of this struct."""
    return {"$ref": f"#/$defs/{part.__name__}"}


def _described(struct: type, name: str, hint: object) -> Described:
    fields = tuple(_annotations(hint))
    field = fields[0] if fields else _NOTHING
    allowed = next((one.allowed for one in fields if one.allowed), None) or _allowed(hint)
    if allowed is None:
        raise TypeError(f"{struct.__name__}.{name} does not say what it may hold")
    return Described(allowed, field, _struct(hint, "FIELDS"), _struct(hint, "PAIR"), _words(hint))


def _annotations(hint: object) -> Iterator[Field]:
    """Yield what the annotations say, the outermost first: a field can say more than the alias of
    its type."""
    if get_origin(hint) is Annotated:
        yield from (one for one in reversed(get_args(hint)[1:]) if isinstance(one, Field))
        yield from _annotations(get_args(hint)[0])
    elif len(inner := _without_none(hint)) == 1:
        yield from _annotations(inner[0])


def _without_none(hint: object) -> tuple[object, ...]:
    """Return the members of a union but None; empty: it is no union."""
    if get_origin(hint) not in (Union, types.UnionType):
        return ()
    return tuple(one for one in get_args(hint) if one is not type(None))


def _bare(hint: object) -> object:
    """Return a type without what is annotated, and without None."""
    while get_origin(hint) is Annotated or len(_without_none(hint)) == 1:
        hint = get_args(hint)[0] if get_origin(hint) is Annotated else _without_none(hint)[0]
    return hint


def _words(hint: object) -> tuple[str, ...]:
    bare = _bare(hint)
    if get_origin(bare) is Literal:
        return tuple(one for one in get_args(bare) if isinstance(one, str))
    if isinstance(bare, type) and issubclass(bare, StrEnum):
        return tuple(bare)
    return ()


def _allowed(hint: object) -> str | None:
    """Return what a type allows; None: it does not tell."""
    hint = _bare(hint)
    if get_origin(hint) is Literal:
        return ", ".join(map(str, get_args(hint)))
    if get_origin(hint) is tuple:
        entry = get_args(hint)[0]
        if isinstance(entry, type) and issubclass(entry, msgspec.Struct):
            return f"a list of mappings with {', '.join(entry.__struct_fields__)}"
        return f"a list of {inner}" if (inner := _allowed(entry)) else None
    if not isinstance(hint, type):
        return None
    if hint is bool:
        return "true or false"
    if issubclass(hint, StrEnum):
        return ", ".join(hint)
    if issubclass(hint, msgspec.Struct):
        return f"a mapping with {', '.join(hint.__struct_fields__)}"
    return getattr(hint, "ALLOWED", None)


def _struct(hint: object, attribute: str) -> type[msgspec.Struct] | None:
    """Return the struct that a type is, or that it names by this attribute."""
    if isinstance(hint, type) and get_origin(hint) is None:
        if issubclass(hint, msgspec.Struct):
            return hint if attribute == "FIELDS" else None
        named: type[msgspec.Struct] | None = getattr(hint, attribute, None)
        return named
    if get_origin(hint) is Literal:
        return None
    found = (_struct(one, attribute) for one in get_args(hint))
    return next((struct for struct in found if struct is not None), None)
