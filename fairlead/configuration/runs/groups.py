"""Groups of jobs: what a run's jobs have in common with its other jobs, and what of their own.

A group accepts the fields that may stand at the top level; its own fields win. A task has its
`groups`, a service its `replicas`, and every other run is one group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from fairlead.configuration.convert import ConfigurationError, Guide, convert
from fairlead.configuration.field import own_fields
from fairlead.configuration.hints import not_a_field
from fairlead.configuration.runs.common import GroupedFields
from fairlead.configuration.values.commands import Env
from fairlead.configuration.values.names import is_run_name
from fairlead.configuration.values.resources import ResourcesFields
from fairlead.configuration.values.units import shown
from fairlead.model.spec import Group

MAIN = "main"
MAX_GROUPS = 256
G = TypeVar("G", bound=GroupedFields)


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A planned group. `field` is where the group stands ("" for the top level); `written` are the
    fields of its jobs."""

    field: str
    group: Group
    written: GroupedFields
    whole_node: bool

    def named(self, name: str) -> str:
        return f"{self.field}.{name}" if self.field else name


def merged(group: GroupedFields, top: GroupedFields) -> GroupedFields:
    """Return the group's fields, with the top level's where the group has none; `env` and
    `resources` are merged by name."""
    given = {
        name: value
        for name in GroupedFields.__struct_fields__
        if (value := getattr(group, name)) not in (None, ())
    }
    if group.entrypoint is not None:
        given["shell"] = group.shell
    env = Env({**(top.env or {}), **(group.env or {})})
    resources = {
        name: value
        for name in ResourcesFields.__struct_fields__
        if (value := getattr(group.resources, name)) is not None
    }
    joined = msgspec.structs.replace(top.resources, **resources)
    shared = {name: getattr(top, name) for name in GroupedFields.__struct_fields__}
    return GroupedFields(**{**shared, **given, "env": env, "resources": joined})


# -- reading a list of groups ---------------------------------------------------------------------


class GroupList(msgspec.Struct, frozen=True, kw_only=True):
    """How a type of run writes a list of groups.

    `field`: where the list stands. `whole`: the struct of the whole file; `withheld`: what a group
    has, and may not be given here. `guide`: what is said of the whole file's fields.
    """

    field: str
    whole: type[msgspec.Struct]
    guide: Callable[[], Guide]
    allowed: str
    withheld: frozenset[str] = frozenset()
    must_be_named: bool = True


def read_groups(
    values: Sequence[object], type_: type[G], kind: GroupList, name_of: Callable[[int, G], str]
) -> tuple[G, ...]:
    """Return the groups. Raises ValueError, and ConfigurationError with the group's field."""
    if not values:
        raise ValueError("is empty")
    if len(values) > MAX_GROUPS:
        raise ValueError(f"has more than {MAX_GROUPS} groups")
    made = tuple(
        _group(one, f"{kind.field}[{number}]", type_, kind) for number, one in enumerate(values)
    )
    names = [name_of(number, group) for number, group in enumerate(made)]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ConfigurationError(
                f"{kind.field}[{number}].name", f"{shown(name)} is also the name of another group"
            )
    return made


def _group(value: object, location: str, type_: type[G], kind: GroupList) -> G:
    if not isinstance(value, dict):
        raise ConfigurationError(location, f"is {shown(value)}, not a mapping", kind.allowed)
    for name in value:
        if name not in type_.__struct_fields__:
            raise ConfigurationError(f"{location}.{name}", *_unknown(name, type_, kind))
    missing = kind.must_be_named and "name" not in value
    if missing or ("name" in value and not is_run_name(str(value["name"]))):
        why = "is missing" if missing else f"{shown(value['name'])} is not a name"
        raise ConfigurationError(f"{location}.name", why, own_fields(type_)["name"].allowed)
    try:
        return convert(value, type_, guide=lambda: _guide(type_, kind))
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{location}.{error.field}", error.message, error.allowed
        ) from None


def _guide(type_: type[GroupedFields], kind: GroupList) -> Guide:
    whole, described = kind.guide(), own_fields(type_)
    own = {name: one.allowed for name, one in described.items() if name not in kind.withheld}
    return msgspec.structs.replace(whole, allowed={**whole.allowed, **own})


def _unknown(name: str, type_: type[GroupedFields], kind: GroupList) -> tuple[str, str | None]:
    if name in kind.whole.__struct_fields__:
        return "applies to all groups: set it at the top level", None
    guide = kind.guide()
    names = frozenset(type_.__struct_fields__) - kind.withheld
    return not_a_field(name, names, guide.called, guide.hints)
