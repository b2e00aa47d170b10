"""A task: jobs that end, in groups, as gangs, or on a schedule. docs/rules.md 5.12 says which
combinations of its fields are refused.

Its `sweep:`, `after:` and deadlines belong here: a section is a struct of `values` and a field of
`TaskConfiguration`; `_check` refuses what contradicts it, and `Task.policy` or `Task.groups` plans
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.field import Field, mapping_of
from fairlead.configuration.runs.common import (
    MAX_JOBS,
    TYPES_ALLOWED,
    GangFields,
    GroupedFields,
    RunFields,
)
from fairlead.configuration.runs.definition import RunDefinition
from fairlead.configuration.runs.groups import (
    MAIN,
    GroupList,
    GroupPlan,
    merged,
    read_groups,
)
from fairlead.configuration.runs.job import Defaults, common_policy, retry_policy
from fairlead.configuration.runs.other_systems import HINTS
from fairlead.configuration.values.beginning import AfterList, MomentField, RunKeys
from fairlead.configuration.values.names import GroupName
from fairlead.configuration.values.placement import Schedule
from fairlead.configuration.values.sweep import SweepFields, plan_of, sets_of, without_sets
from fairlead.configuration.values.units import DURATION_ALLOWED, Duration, Times, shown
from fairlead.model.beginning import SameJob
from fairlead.model.needs import StartupOrder
from fairlead.model.spec import Group, OnTimeLimit, RunPolicy, RunType, StopCriteria
from fairlead.model.sweep import ParameterSets, SweepPlan
from fairlead.wire.job import BucketMode

_ONLY_IN_GROUPS = ("nodes", "gang")
_WHAT_RUNS = ("commands", "entrypoint")
_NOT_WITH_SCHEDULE = ("after", "begin", "start_before")
_NOT_WITH_A_SWEEP = (
    "groups",
    "gang",
    "schedule",
    "startup_order",
    "stop_criteria",
    "max_failed_jobs",
    "max_failed_attempts",
    "fail_on_job_restart",
    "restart_completed_jobs",
    "on_time_limit",
)
_INSTEAD_IN_A_SWEEP = {
    "gang": "nodes alone: the jobs of one set always start and end together",
    "max_failed_jobs": "sweep.stop_after_failures",
    "max_failed_attempts": "sweep.stop_after_failures",
}
_NOT_IN_ONE_CONTAINER = {
    "ssh": "the processes of a session would look like those of the job",
}
_NOT_WITH_GANGS = ("fail_on_job_restart", "restart_completed_jobs", "max_failed_jobs")


class GroupFields(GroupedFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the `groups`."""

    name: GroupName


class Groups(tuple[GroupFields, ...]):
    __slots__ = ()
    FIELDS = GroupFields
    ALLOWED = (
        "a list of mappings with name, nodes, gang, share_nodes, commands and what else the"
        " group's jobs have of their own"
    )
    SCHEMA: ClassVar[dict[str, Any]] = {
        "type": "array",
        "minItems": 1,
        "items": mapping_of(GroupFields),
    }

    @classmethod
    def read(cls, value: object) -> Self:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{shown(value)} is not a list of groups")
        return cls(read_groups(value, GroupFields, _GROUPS, lambda _, group: str(group.name)))


class TaskConfiguration(RunFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of a task."""

    type: Annotated[Literal["task"], Field(TYPES_ALLOWED)]
    groups: Annotated[Groups | None, Field(called=("tasks",))] = None
    monitoring: Literal["random", "by-rank"] = "random"
    placement: Literal["any", "cluster"] = "any"
    startup_order: StartupOrder = StartupOrder.ANY
    after: Annotated[
        AfterList, Field(called=("depends_on", "dependencies", "dependency", "needs"))
    ] = AfterList()
    outputs_from: Annotated[RunKeys, Field(called=("inputs", "inputs_from"))] = RunKeys()
    begin: Annotated[MomentField | None, Field(called=("not_before", "start_after"))] = None
    start_before: MomentField | None = None
    on_time_limit: OnTimeLimit = OnTimeLimit.END
    schedule: Annotated[Schedule | None, Field(called=("cron",))] = None
    sweep: Annotated[
        SweepFields | None,
        Field(
            "a mapping with matrix or file, exclude, include, max_parallel, stop_after_failures and"
            " reuse_container",
            called=("array", "parameters"),
            public=without_sets,
        ),
    ] = None
    reincarnation_timeout: Annotated[Duration | None, Field(f"{DURATION_ALLOWED}; more than 0")] = (
        None
    )
    stop_criteria: StopCriteria = StopCriteria.ALL_DONE
    max_failed_jobs: Annotated[
        Times,
        Field(called=("max_failed_job_count", "max_task_failures")),
    ] = 0
    max_failed_attempts: Times | None = None
    fail_on_job_restart: bool = False
    restart_completed_jobs: bool = False
    init: bool = False


_NOTHING_ELSE = TaskConfiguration(type="task")


class Task(RunDefinition[TaskConfiguration]):
    run_type = RunType.TASK
    fields = TaskConfiguration
    hints = HINTS

    def check(self, written: TaskConfiguration) -> None:
        _check(written)

    def groups(self, written: TaskConfiguration) -> tuple[GroupPlan, ...]:
        return _groups(written)

    def sweep(self, written: TaskConfiguration) -> SweepPlan | None:
        return None if written.sweep is None else plan_of(written.sweep, written.nodes or 1)

    def parameters(self, written: TaskConfiguration) -> tuple[str, ...] | None:
        sets = () if written.sweep is None else sets_of(written.sweep)
        return sets.names if isinstance(sets, ParameterSets) else sets

    def policy(self, written: TaskConfiguration, defaults: Defaults) -> RunPolicy:
        retry = retry_policy(written.retry, defaults, gang=_asks_for_gang(written))
        policy = common_policy(written, defaults, retry)
        timeout = written.reincarnation_timeout
        return msgspec.structs.replace(
            policy,
            stop_criteria=written.stop_criteria,
            max_failed_jobs=written.max_failed_jobs,
            max_failed_attempts=written.max_failed_attempts,
            fail_on_job_restart=written.fail_on_job_restart,
            restart_completed_jobs=written.restart_completed_jobs,
            schedule=tuple(written.schedule or ()),
            after=tuple(written.after),
            outputs_from=tuple(str(one) for one in written.outputs_from),
            on_time_limit=written.on_time_limit,
            begin=None if written.begin is None else written.begin.moment,
            start_before=None if written.start_before is None else written.start_before.moment,
            startup_order=written.startup_order,
            same_placement=written.placement == "cluster",
            limits=policy.limits
            if timeout is None
            else msgspec.structs.replace(policy.limits, reincarnation_timeout=float(timeout)),
        )


TASK = Task()
_GROUPS = GroupList(
    field="groups", whole=TaskConfiguration, guide=TASK.guide, allowed=Groups.ALLOWED
)


def _allowed(field: str) -> str:
    return TASK.guide().allowed[field]


# -- what is refused ------------------------------------------------------------------------------


def _check(written: TaskConfiguration) -> None:
    """Refuse combinations that cannot be meant. Raises ConfigurationError."""
    _check_top(written)
    _check_sweep(written)
    planned = _groups(written)
    if sum(one.group.nodes for one in planned) > MAX_JOBS:
        raise ConfigurationError("groups", "have too many nodes", f"{MAX_JOBS} together")
    gangs = [one.group.name for one in planned if one.group.gang_size is not None]
    for name in _NOT_WITH_GANGS if gangs else ():
        if getattr(written, name):
            where = "" if written.groups is None else f" in group {', '.join(gangs)}"
            raise ConfigurationError(
                name,
                f"can't be given with a gang, whose jobs restart together{where}",
                f"gang: false{where}",
            )
    _check_timeout(written.reincarnation_timeout, gangs)
    _check_beginning(written, gangs)
    _check_time_limit(written)


def _check_beginning(written: TaskConfiguration, gangs: list[str]) -> None:
    for name in _NOT_WITH_SCHEDULE:
        if written.schedule is not None and getattr(written, name):
            raise ConfigurationError(
                name, "can't be given with schedule, whose triggers say when jobs begin"
            )
    same = next((n for n, one in enumerate(written.after) if one.job is SameJob.SAME), None)
    if same is not None and gangs:
        raise ConfigurationError(
            f"after[{same}].job",
            f"can't be same with a gang (group {', '.join(gangs)}), whose jobs begin together",
            "all, or gang: false",
        )
    begin, latest = written.begin, written.start_before
    if begin is None or latest is None:
        return
    if begin.moment.after(0.0) >= latest.moment.after(0.0) and _alike(begin, latest):
        raise ConfigurationError("start_before", "is not after begin", _allowed("start_before"))


def _check_time_limit(written: TaskConfiguration) -> None:
    if written.on_time_limit is not OnTimeLimit.REQUEUE:
        return
    if written.max_duration is None or written.max_duration.seconds is None:
        raise ConfigurationError(
            "on_time_limit", "can't be requeue without a max_duration, which is each life's limit"
        )
    if written.fail_on_job_restart:
        raise ConfigurationError(
            "on_time_limit", "can't be requeue with fail_on_job_restart, which ends the run then"
        )


def _alike(begin: MomentField, latest: MomentField) -> bool:
    """Return whether both are times, or both durations, so that they can be compared now."""
    return (begin.moment.at is None) == (latest.moment.at is None)


def _check_sweep(written: TaskConfiguration) -> None:
    """Refuse what a sweep has no use for (docs/rules.md 11.11)."""
    if written.sweep is None:
        return
    for name in _NOT_WITH_A_SWEEP:
        if getattr(written, name) != getattr(_NOTHING_ELSE, name):
            instead = _INSTEAD_IN_A_SWEEP.get(name, "a task without a sweep")
            raise ConfigurationError(name, "can't be given with a sweep", instead)
    if written.sweep.reuse_container:
        _check_reuse(written)
    if sets_of(written.sweep) is not None:
        plan_of(written.sweep, written.nodes or 1)


def _check_reuse(written: TaskConfiguration) -> None:
    """Refuse what jobs that share a container one after another cannot have (11.14)."""
    instead = "a sweep without reuse_container"
    if (written.nodes or 1) > 1:
        raise ConfigurationError(
            "sweep.reuse_container", "needs sets of one node", f"{instead}, or nodes: 1"
        )
    for name, why in _NOT_IN_ONE_CONTAINER.items():
        value = getattr(written, name)
        if value and value not in ("off", "auto"):
            problem = f"can't be given with sweep.reuse_container: {why}"
            raise ConfigurationError(name, problem, instead)
    for number, one in enumerate(written.buckets):
        if one.mode is not BucketMode.READ:
            raise ConfigurationError(
                f"buckets[{number}].mode",
                "can't be write-back with sweep.reuse_container: its jobs share the folder",
                f"{instead}, or $FAIRLEAD_OUTPUT_DIR for what each job leaves",
            )


def _check_timeout(timeout: Duration | None, gangs: list[str]) -> None:
    field = "reincarnation_timeout"
    if timeout is not None and not gangs:
        raise ConfigurationError(field, "needs a gang, and there is none", "gang: true")
    if timeout is not None and not timeout > 0:
        raise ConfigurationError(
            field, "would release a gang's allocations at once", _allowed(field)
        )


def _check_top(written: TaskConfiguration) -> None:
    if written.groups is None:
        return
    for name in _ONLY_IN_GROUPS:
        if getattr(written, name) is not None:
            raise ConfigurationError(
                name, "can't be set at the top level together with groups: set it in each group"
            )
    if any(group.commands or group.entrypoint for group in written.groups):
        for name in _WHAT_RUNS:
            if getattr(written, name):
                raise ConfigurationError(
                    name, "is set at the top level and in a group: set it in each group"
                )


# -- what is planned ------------------------------------------------------------------------------


def _groups(configuration: TaskConfiguration) -> tuple[GroupPlan, ...]:
    """Return the groups in the order of the configuration, at least one. Raises
    ConfigurationError."""
    written = list(_written(configuration))
    several = sum(fields.nodes or 1 for _, _, fields in written) > 1
    return tuple(
        GroupPlan(
            field=location,
            written=fields,
            whole_node=not _shares(fields.share_nodes, several),
            group=Group(
                name=name,
                nodes=fields.nodes or 1,
                gang_size=_gang_size(fields, location, several, configuration.sweep is not None),
                share_nodes=_shares(fields.share_nodes, several),
                monitoring_by_rank=configuration.monitoring == "by-rank",
            ),
        )
        for location, name, fields in written
    )


def _asks_for_gang(configuration: TaskConfiguration) -> bool:
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


def _shares(written: bool | None, several: bool) -> bool:
    """Return whether jobs share their nodes: by default a single job does, and several jobs do
    not."""
    return not several if written is None else written


def _gang_size(fields: GroupedFields, location: str, several: bool, is_sweep: bool) -> int | None:
    nodes, gang = fields.nodes or 1, fields.gang
    # Each set of a sweep is a replica of its own, and no set restarts with another.
    if gang is False or is_sweep or (gang is None and not several):
        return None
    size = gang.size if isinstance(gang, GangFields) else None
    if size is not None and size > nodes:
        field = f"{location}.gang.size" if location else "gang.size"
        raise ConfigurationError(
            field, f"{size} is more than the {nodes} nodes there are", _allowed("gang.size")
        )
    return size or nodes
