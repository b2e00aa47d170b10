"""Groups: which jobs a task has, which of them are gangs, and what could never run.

A group accepts the fields that may stand at the top level; its own fields win. docs/rules.md 5.12
says which combinations are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from common.sizes import human_size
from controller.configuration import schema
from controller.configuration.convert import ConfigurationError, convert
from controller.configuration.hints import not_a_field
from controller.configuration.names import is_run_name
from controller.configuration.schema import (
    ALLOWED,
    MOST_JOBS,
    DisconnectFields,
    GangFields,
    GroupedFields,
    ResourcesFields,
    RunFields,
    TaskConfiguration,
)
from controller.configuration.units import shown
from controller.lifecycle.model import Group, RunType
from runner.schemas import LONGEST_ARGUMENT, SHORTEST_SECRET, script, script_after

LEAST_UNHEARD = 30.0
LEAST_LOG_QUOTA = 1 << 20
LEAST_MEMORY = 48 << 20
"""Bytes. The runner counts as the job's memory: 22 MiB, and 46 MiB with a session of SSH. With less
than 24 MiB a container was killed before its job began, with 40 MiB at the first session."""
_MARK = "/" * 255
"""Longer than the path of any mark that ends a setup."""


def check_limits(configuration: RunFields, plans: Iterable[GroupPlan]) -> None:
    """Raise ConfigurationError for limits that no run could keep."""
    longest = configuration.max_duration
    if longest is not None and longest.seconds == 0:
        raise ConfigurationError(
            "max_duration", "would end the run at once", ALLOWED["max_duration"]
        )
    quota = configuration.log_quota
    if quota is not None and quota < LEAST_LOG_QUOTA:
        raise ConfigurationError(
            "log_quota", f"{human_size(quota)} is less than 1MiB", ALLOWED["log_quota"]
        )
    unheard = configuration.on_disconnect
    if isinstance(unheard, DisconnectFields) and unheard.stop_after < LEAST_UNHEARD:
        raise ConfigurationError(
            "on_disconnect.stop_after",
            "is less than 30s, in which a connection that broke is made again",
            ALLOWED["on_disconnect.stop_after"],
        )
    for name, value in (configuration.secrets or {}).items():
        _check_length(f"secrets.{name}", f"{name}={value}")
        _check_secret(f"secrets.{name}", value)
    for planned in plans:
        _check_group(planned)


def _check_group(planned: GroupPlan) -> None:
    written = planned.written
    memory = written.resources.memory
    if memory is not None and memory < LEAST_MEMORY:
        raise ConfigurationError(
            planned.named("resources.memory"),
            f"is less than the {LEAST_MEMORY >> 20}MiB that Fairlead's own processes need in the "
            "job's container",
            ALLOWED["resources.memory"],
        )
    for name, value in (written.env or {}).items():
        _check_length(planned.named(f"env.{name}"), f"{name}={value}")
    for number, word in enumerate(written.entrypoint or ()):
        _check_length(planned.named(f"entrypoint[{number}]"), word)
    longest = script(written.commands)
    if written.setup:
        longest = script_after(written.setup, _MARK, written.commands)
    _check_length(planned.named("commands"), longest)
    _check_volumes(planned)


def _check_volumes(planned: GroupPlan) -> None:
    """Refuse volumes that no node's shim would mount."""
    written = planned.written.volumes or ()
    if not written:
        return
    from shim.container_rules import check_volumes  # few runs ask
    from shim.errors import VolumeError

    mounts = [volume.mount for volume in written]
    for number in range(len(mounts)):
        try:
            check_volumes(mounts[: number + 1])
        except VolumeError as error:
            field = planned.named(f"volumes[{number}]")
            raise ConfigurationError(field, str(error)) from None


def _check_secret(field: str, value: str) -> None:
    if len(value.encode()) < SHORTEST_SECRET or not value.strip():
        raise ConfigurationError(
            field,
            "is too short to be hidden in logs: use a longer value, or `env`",
            f"{SHORTEST_SECRET} bytes or more, not only blanks",
        )


def _check_length(field: str, argument: str) -> None:
    if len(argument.encode()) > LONGEST_ARGUMENT:
        raise ConfigurationError(
            field,
            "is longer than Linux allows for a program's arguments: use `files`",
            f"{LONGEST_ARGUMENT} bytes, name and value or all commands together",
        )


MAIN = "main"
MOST_GROUPS = 256
_OF_A_GROUP = frozenset(schema.GroupFields.__struct_fields__)
_ONLY_IN_GROUPS = ("nodes", "gang")
_WHAT_RUNS = ("commands", "entrypoint")
_NOT_WITH_GANGS = ("fail_on_job_restart", "restart_completed_jobs", "max_failed_jobs")


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A planned group. `field` is where the group stands ("" for the top level); `written` are the
    fields of its jobs."""

    field: str
    group: Group
    written: GroupedFields
    whole_node: bool

    def named(self, name: str) -> str:
        return f"{self.field}.{name}" if self.field else name


def groups(value: object, make: Callable[[type, Any], Any]) -> schema.Groups:
    """Return the groups. Raises ConfigurationError with the group's field."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"{shown(value)} is not a list of groups")
    if not value:
        raise ValueError("is empty")
    if len(value) > MOST_GROUPS:
        raise ValueError(f"has more than {MOST_GROUPS} groups")
    made = schema.Groups(_group(one, f"groups[{n}]", make) for n, one in enumerate(value))
    names = [str(group.name) for group in made]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ConfigurationError(
                f"groups[{number}].name", f"{shown(name)} is also the name of another group"
            )
    return made


def check_groups(configuration: TaskConfiguration) -> None:
    """Refuse combinations that cannot be meant. Raises ConfigurationError."""
    _check_top(configuration)
    planned = plan_groups(configuration)
    if sum(one.group.nodes for one in planned) > MOST_JOBS:
        raise ConfigurationError("groups", "have too many nodes", f"{MOST_JOBS} together")
    gangs = [one.group.name for one in planned if one.group.gang_size is not None]
    for name in _NOT_WITH_GANGS if gangs else ():
        if getattr(configuration, name):
            where = "" if configuration.groups is None else f" in group {', '.join(gangs)}"
            raise ConfigurationError(
                name,
                f"can't be given with a gang, whose jobs restart together{where}",
                f"gang: false{where}",
            )
    _check_timeout(configuration.reincarnation_timeout, gangs)


def _check_timeout(written: schema.Duration | None, gangs: list[str]) -> None:
    field = "reincarnation_timeout"
    if written is not None and not gangs:
        raise ConfigurationError(field, "needs a gang, and there is none", "gang: true")
    if written is not None and not written > 0:
        raise ConfigurationError(
            field, "would release a gang's allocations at once", ALLOWED[field]
        )


def _check_top(configuration: TaskConfiguration) -> None:
    if configuration.groups is None:
        return
    for name in _ONLY_IN_GROUPS:
        if getattr(configuration, name) is not None:
            raise ConfigurationError(
                name, "can't be set at the top level together with groups: set it in each group"
            )
    if any(group.commands or group.entrypoint for group in configuration.groups):
        for name in _WHAT_RUNS:
            if getattr(configuration, name):
                raise ConfigurationError(
                    name, "is set at the top level and in a group: set it in each group"
                )


def plan_groups(configuration: TaskConfiguration) -> tuple[GroupPlan, ...]:
    """Return the groups in the order of the configuration, at least one. Raises
    ConfigurationError."""
    written = list(_written(configuration))
    several = sum(fields.nodes or 1 for _, _, fields in written) > 1
    return tuple(
        GroupPlan(
            field=place,
            written=fields,
            whole_node=not _shares(fields.share_nodes, several),
            group=Group(
                name=name,
                nodes=fields.nodes or 1,
                gang_size=_gang_size(fields, place, several),
                share_nodes=_shares(fields.share_nodes, several),
                monitoring_by_rank=configuration.monitoring == "by-rank",
            ),
        )
        for place, name, fields in written
    )


def asks_for_gang(configuration: TaskConfiguration) -> bool:
    """Return whether the user wrote `gang` explicitly: then the defaults of retry differ."""
    return any(
        fields.gang is not None and fields.gang is not False
        for _, _, fields in _written(configuration)
    )


def _written(configuration: TaskConfiguration) -> Iterator[tuple[str, str, GroupedFields]]:
    if configuration.groups is None:
        yield "", MAIN, configuration
        return
    for number, group in enumerate(configuration.groups):
        yield f"groups[{number}]", str(group.name), merged(group, configuration)


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
    env = schema.Env({**(top.env or {}), **(group.env or {})})
    resources = {
        name: value
        for name in ResourcesFields.__struct_fields__
        if (value := getattr(group.resources, name)) is not None
    }
    joined = msgspec.structs.replace(top.resources, **resources)
    shared = {name: getattr(top, name) for name in GroupedFields.__struct_fields__}
    return GroupedFields(**{**shared, **given, "env": env, "resources": joined})


def _shares(written: bool | None, several: bool) -> bool:
    """Return whether jobs share their nodes: by default a single job does, and several jobs do
    not."""
    return not several if written is None else written


def _gang_size(fields: GroupedFields, place: str, several: bool) -> int | None:
    nodes, gang = fields.nodes or 1, fields.gang
    if gang is False or (gang is None and not several):
        return None
    size = gang.size if isinstance(gang, GangFields) else None
    if size is not None and size > nodes:
        field = f"{place}.gang.size" if place else "gang.size"
        raise ConfigurationError(
            field, f"{size} is more than the {nodes} nodes there are", ALLOWED["gang.size"]
        )
    return size or nodes


def _group(value: object, place: str, make: Callable[[type, Any], Any]) -> schema.GroupFields:
    if not isinstance(value, dict):
        raise ConfigurationError(place, f"is {shown(value)}, not a mapping", ALLOWED["groups"])
    for name in value:
        if name not in _OF_A_GROUP:
            raise ConfigurationError(f"{place}.{name}", *_unknown(name))
    if not is_run_name(str(value.get("name", ""))):
        missing = "is missing" if "name" not in value else f"{shown(value['name'])} is not a name"
        raise ConfigurationError(f"{place}.name", missing, ALLOWED["groups.name"])
    try:
        return convert(value, schema.GroupFields, make)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}.{error.field}", error.message, error.allowed) from None


def _unknown(name: str) -> tuple[str, str | None]:
    if name in TaskConfiguration.__struct_fields__:
        return "applies to all groups: set it at the top level", None
    return not_a_field(name, _OF_A_GROUP, RunType.TASK)
