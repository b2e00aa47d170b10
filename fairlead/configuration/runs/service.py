"""A service: replicas that answer requests, how many there are, and when one is ready.

The short forms are dstack's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self

from fairlead.configuration import secrecy
from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.field import Field, mapping_of
from fairlead.configuration.runs.common import (
    MAX_JOBS,
    TYPES_ALLOWED,
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
from fairlead.configuration.runs.other_systems import HINTS, OF_TASKS
from fairlead.configuration.values.commands import Text
from fairlead.configuration.values.names import GroupName
from fairlead.configuration.values.serving import (
    RANGE_ALLOWED,
    Headers,
    ModelFields,
    PortPair,
    ProbeFields,
    RateLimitFields,
    RateLimitKeyFields,
    ReplicaRange,
    ScalingFields,
)
from fairlead.configuration.values.units import (
    DURATION_ALLOWED,
    OFF_ALLOWED,
    AtLeastOne,
    Duration,
    DurationOrOff,
    shown,
)
from fairlead.model.reasons import RetryEvent
from fairlead.model.service import (
    Https,
    Probe,
    ProbeKind,
    RateLimit,
    RateLimitKey,
    ReplicaGroup,
    Scaling,
    Serves,
    ServicePolicy,
)
from fairlead.model.spec import Group, RetryPolicy, RunPolicy, RunType

_GATEWAY_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_OF_THE_CONNECTION = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""The proxy sets these for each request; a fixed value would contradict the body that it sends."""
_WINDOWS = {"30s": 30.0, "60s": 60.0, "1m": 60.0, "5m": 300.0}
_ALWAYS = 1_000_000_000
MIN_INTERVAL = 1.0
_GANG_OF_A_REPLICA = "is for tasks: the nodes of a replica live and die together; leave it out"
_A_RANGE = "write a range, such as replicas: 1..4, and scaling: {metric: rps, target: 10}"
_ROUTER = (
    "each replica here gets requests like the others; write the workers as one service, and the"
    " router as another that asks the first by its URL"
)
_SERVICE_HINTS: Mapping[str, str] = {
    **HINTS,
    "domain": "a gateway gives the host name; write gateway",
    "host": "a gateway gives the host name; write gateway",
    "health_check": "write probes: [{type: http, url: /health}]",
    "healthcheck": "write probes: [{type: http, url: /health}]",
    "min_replicas": _A_RANGE,
    "max_replicas": _A_RANGE,
    "autoscaling": _A_RANGE,
    "ports": "a service has one port",
    "router": _ROUTER,
    "gang": _GANG_OF_A_REPLICA,
    "groups": f"{OF_TASKS}; for replicas of several kinds write a list as replicas",
    "schedule": f"{OF_TASKS}; a service starts when it is applied, and with replicas: 0..1 and"
    " scaling it sleeps until its first request",
    "stop_criteria": OF_TASKS,
    "max_failed_jobs": f"{OF_TASKS}; a failed replica never ends a service that has others",
    "max_failed_attempts": f"{OF_TASKS}; write retry",
    "startup_order": OF_TASKS,
    "sweep": f"{OF_TASKS}; for replicas with other values write a list as replicas",
}


class ReplicaGroupFields(GroupedFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the `replicas`, when they are of several kinds."""

    name: GroupName | None = None
    count: ReplicaRange | None = None
    scaling: ScalingFields | None = None


class Replicas:
    """The replica groups. `several`: the user wrote a list, and not a number or a range."""

    __slots__ = ("groups", "several")
    FIELDS = ReplicaGroupFields
    ALLOWED = (
        f"{RANGE_ALLOWED}, or a list of mappings with count, scaling, commands and what else the"
        " group's replicas have of their own"
    )
    SCHEMA: ClassVar[dict[str, Any]] = {
        "anyOf": [
            {"type": ["integer", "string"]},
            {"type": "array", "minItems": 1, "items": mapping_of(ReplicaGroupFields)},
        ]
    }

    def __init__(self, groups: tuple[ReplicaGroupFields, ...], *, several: bool) -> None:
        self.groups = groups
        self.several = several

    @classmethod
    def read(cls, value: object) -> Self:
        if isinstance(value, list | tuple):
            return cls(read_groups(value, ReplicaGroupFields, _REPLICAS, _name), several=True)
        return cls((ReplicaGroupFields(count=ReplicaRange.read(value)),), several=False)


class ServiceConfiguration(RunFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of a service."""

    type: Annotated[Literal["service"], Field(TYPES_ALLOWED)]
    port: PortPair
    replicas: Replicas | None = None
    scaling: ScalingFields | None = None
    probes: Annotated[
        tuple[ProbeFields, ...] | None, Field(public=secrecy.probes_without_headers)
    ] = None
    rate_limits: Annotated[
        tuple[RateLimitFields, ...], Field("a list of mappings with prefix, key, rps, burst")
    ] = ()
    auth: bool = True
    https: Annotated[bool | Literal["auto"], Field("true, false, auto")] = "auto"
    gateway: Annotated[
        bool | Text | None, Field("true (the default gateway), false, or a gateway's name")
    ] = None
    strip_prefix: bool = True
    model: Annotated[
        Text | ModelFields | None,
        Field("the model's name, or a mapping with name, type, format, prefix"),
    ] = None
    headers: Annotated[
        Headers | None,
        Field(
            "a mapping of names to values, or a list of mappings with name and value",
            public=secrecy.hidden_headers,
        ),
    ] = None
    surge: AtLeastOne = 1
    rollout_timeout: Annotated[Duration | None, Field(f"{DURATION_ALLOWED}; more than 0")] = None
    unhealthy_after: Annotated[DurationOrOff | None, Field(f"{OFF_ALLOWED}; more than 0")] = None
    eject_for: Annotated[DurationOrOff | None, Field(f"{OFF_ALLOWED}; more than 0")] = None
    init: bool = False


class Service(RunDefinition[ServiceConfiguration]):
    run_type = RunType.SERVICE
    fields = ServiceConfiguration
    hints = _SERVICE_HINTS
    withheld = frozenset({"gang"})

    def check(self, written: ServiceConfiguration) -> None:
        _check(written)

    def groups(self, written: ServiceConfiguration) -> tuple[GroupPlan, ...]:
        return tuple(_plan(*group, written) for group in _written(written))

    def policy(self, written: ServiceConfiguration, defaults: Defaults) -> RunPolicy:
        """Without `retry` a replica is tried again as long as the service lives."""
        retry = retry_policy(written.retry, defaults, gang=False)
        if written.retry is None:
            events = frozenset({RetryEvent.ERROR, RetryEvent.INTERRUPTION})
            retry = RetryPolicy(on_events=events, max_preemptions=_ALWAYS)
        return common_policy(written, defaults, retry)

    def serves(self, written: ServiceConfiguration) -> Serves:
        return _serves(written)

    def service(self, written: ServiceConfiguration) -> ServicePolicy:
        return _service_policy(written)

    def gateway(self, written: ServiceConfiguration) -> bool | str | None:
        named = written.gateway
        return str(named) if isinstance(named, str) else named


SERVICE = Service()
_REPLICAS = GroupList(
    field="replicas",
    whole=ServiceConfiguration,
    guide=SERVICE.guide,
    allowed=Replicas.ALLOWED,
    withheld=SERVICE.withheld,
    must_be_named=False,
)


def _allowed() -> Mapping[str, str]:
    return SERVICE.guide().allowed


def is_gateway_name(name: str) -> bool:
    return _GATEWAY_NAME.fullmatch(name) is not None


# -- what is refused ------------------------------------------------------------------------------


def _check(configuration: ServiceConfiguration) -> None:
    """Refuse combinations that cannot be meant. Raises ConfigurationError."""
    if configuration.name is not None and configuration.name.endswith("-"):
        _refuse("name", "ends with a hyphen, so it cannot be a part of a host name")
    _check_not_yet(configuration)
    _check_nodes(configuration)
    _check_what_runs(configuration)
    if configuration.scaling is not None and _several(configuration):
        _refuse("scaling", "can't be set at the top level together with groups: set it in each")
    for location, name, fields, group in _written(configuration):
        _check_scaling(location, _replica_group(name, fields, group, configuration))
    _check_headers("headers", configuration.headers)
    for number, probe in enumerate(configuration.probes or ()):
        _check_probe(f"probes[{number}]", probe)
        _check_headers(f"probes[{number}].headers", probe.headers)
    _check_rate_limits(configuration.rate_limits)
    _check_model(configuration.model)
    for name in ("rollout_timeout", "unhealthy_after", "eject_for"):
        written = getattr(configuration, name)
        seconds = getattr(written, "seconds", written)
        if seconds is not None and not seconds > 0:
            _refuse(name, "would apply at once")


def _check_not_yet(configuration: ServiceConfiguration) -> None:
    named = configuration.gateway
    if isinstance(named, str) and not is_gateway_name(named):
        _refuse("gateway", f"{shown(named)} is not a name")
    if configuration.https is True and configuration.gateway is False:
        _refuse(
            "https",
            "is not decided by a service without a gateway: its URL is the controller's own",
            "false, auto",
        )


def _check_nodes(configuration: ServiceConfiguration) -> None:
    locations: list[tuple[str, GroupedFields]] = [("", configuration)]
    locations += [(f"replicas[{n}].", group) for n, group in enumerate(_several(configuration))]
    for location, fields in locations:
        if fields.gang is not None:
            _refuse(f"{location}gang", _GANG_OF_A_REPLICA, "nodes, for replicas of several nodes")
    if configuration.nodes not in (None, 1) and _several(configuration):
        _refuse("nodes", "can't be set at the top level together with groups: set it in each")
    planned = [
        _replica_group(name, fields, group, configuration)
        for _, name, fields, group in _written(configuration)
    ]
    if sum(group.most * group.nodes for group in planned) > MAX_JOBS:
        _refuse("replicas", "have too many nodes", f"{MAX_JOBS} together")


def _check_what_runs(configuration: ServiceConfiguration) -> None:
    groups = _several(configuration)
    if any(group.commands or group.entrypoint for group in groups):
        for name in ("commands", "entrypoint"):
            if getattr(configuration, name):
                _refuse(
                    name,
                    "is set at the top level and in a replica group: set it in each group",
                )


def _several(configuration: ServiceConfiguration) -> tuple[ReplicaGroupFields, ...]:
    """Return the groups that the user wrote as a list."""
    written = configuration.replicas
    return written.groups if written is not None and written.several else ()


def _check_scaling(location: str, group: ReplicaGroup) -> None:
    field = f"{location}.scaling" if location else "scaling"
    count = f"{location}.count" if location else "replicas"
    if group.scaling is not None and group.least == group.most:
        _refuse(field, f"needs a range of replicas: {count} is {group.least}", f"{count}: 1..4")
    if group.scaling is None and group.least != group.most:
        _refuse(
            count,
            f"is a range, {group.least}..{group.most}, and {field} is missing",
            _allowed()["scaling"],
        )


def _check_probe(location: str, probe: ProbeFields) -> None:
    if probe.type == "tcp":
        for name in ("url", "method", "headers", "body"):
            if getattr(probe, name) is not None:
                _refuse(f"{location}.{name}", "is for a probe of type http", "type: http")
    if probe.timeout is not None and not probe.timeout > 0:
        _refuse(f"{location}.timeout", "would fail at once", _allowed()["probes.timeout"])
    if probe.interval is not None and probe.interval < MIN_INTERVAL:
        _refuse(f"{location}.interval", "is less than 1s", _allowed()["probes.interval"])


def _check_headers(location: str, written: Headers | None) -> None:
    for name, _ in written or ():
        if name.lower() in _OF_THE_CONNECTION:
            _refuse(location, f"{name} is set for each request by the proxy: leave it out")


def _check_rate_limits(limits: Sequence[RateLimitFields]) -> None:
    prefixes: list[str] = []
    for number, limit in enumerate(limits):
        prefix = _rate_limit(f"rate_limits[{number}]", limit).prefix
        if prefix in prefixes:
            first = f"rate_limits[{prefixes.index(prefix)}]"
            _refuse(
                f"rate_limits[{number}].prefix",
                f"{shown(prefix)} is also the prefix of {first}, and one limit holds for each path",
            )
        prefixes.append(prefix)


def _check_model(model: ModelFields | str | None) -> None:
    location, name = "model", model
    if isinstance(model, ModelFields):
        location, name = "model.name", model.name
    if name is not None and not str(name).isprintable():
        _refuse(location, f"{shown(str(name))} contains a control character")


def _refuse(field: str, message: str, allowed: str | None = None) -> NoReturn:
    raise ConfigurationError(field, message, allowed or _allowed().get(field))


# -- what is planned ------------------------------------------------------------------------------


def _plan(
    location: str,
    name: str,
    fields: GroupedFields,
    own: ReplicaGroupFields,
    configuration: ServiceConfiguration,
) -> GroupPlan:
    group = _replica_group(name, fields, own, configuration)
    shares = group.nodes == 1 if fields.share_nodes is None else fields.share_nodes
    return GroupPlan(
        field=location,
        written=fields,
        whole_node=not shares,
        group=Group(name=name, nodes=group.least * group.nodes, share_nodes=shares),
    )


def _service_policy(configuration: ServiceConfiguration) -> ServicePolicy:
    model, timeout = configuration.model, configuration.rollout_timeout
    unhealthy, default = configuration.unhealthy_after, ServicePolicy(port=1, groups=())
    eject = configuration.eject_for
    written = configuration.https
    https = Https.AUTO if written == "auto" else Https.ON if written else Https.OFF
    long_model = model if isinstance(model, ModelFields) else None
    return ServicePolicy(
        port=configuration.port.port,
        public_port=configuration.port.public,
        groups=tuple(
            _replica_group(name, fields, group, configuration)
            for _, name, fields, group in _written(configuration)
        ),
        rate_limits=tuple(
            _rate_limit(f"rate_limits[{number}]", limit)
            for number, limit in enumerate(configuration.rate_limits)
        ),
        auth=configuration.auth,
        https=https,
        strip_prefix=configuration.strip_prefix,
        model=long_model.name if long_model else None if model is None else str(model),
        model_prefix=str((long_model and long_model.prefix) or default.model_prefix),
        headers=tuple(configuration.headers or ()),
        surge=configuration.surge,
        rollout_timeout=default.rollout_timeout if timeout is None else float(timeout),
        unhealthy_after=None if unhealthy is None else unhealthy.seconds,
        eject_for=default.eject_for if eject is None else eject.seconds,
    )


def _serves(configuration: ServiceConfiguration) -> Serves:
    port = configuration.port.port
    if configuration.probes is None:
        return Serves(port=port)
    return Serves(port=port, probes=tuple(_probe(probe) for probe in configuration.probes))


def _probe(written: ProbeFields) -> Probe:
    default = Probe()
    return Probe(
        kind=ProbeKind(written.type),
        url=default.url if written.url is None else str(written.url),
        method=default.method if written.method is None else str(written.method),
        headers=tuple(written.headers or ()),
        body=written.body,
        timeout=default.timeout if written.timeout is None else float(written.timeout),
        interval=default.interval if written.interval is None else float(written.interval),
        ready_after=written.ready_after,
        until_ready=written.until_ready,
    )


def _rate_limit(location: str, written: RateLimitFields) -> RateLimit:
    key, header = written.key, written.header
    if isinstance(key, RateLimitKeyFields):
        if header is not None:
            _refuse(f"{location}.header", "stands in key, which is a mapping here")
        kind, header = key.type, key.header
        location += ".key"
    else:
        kind = RateLimitKey(key)
    if (kind is RateLimitKey.HEADER) != (header is not None):
        missing = "is missing: key is header" if header is None else "needs key: header"
        _refuse(f"{location}.header", missing, _allowed()["rate_limits.header"])
    return RateLimit(
        prefix="/" if written.prefix is None else str(written.prefix),
        key=kind,
        header=None if header is None else str(header),
        rps=written.rps,
        burst=written.burst,
    )


def _replica_group(
    name: str,
    fields: GroupedFields,
    written: ReplicaGroupFields,
    configuration: ServiceConfiguration,
) -> ReplicaGroup:
    """`fields`: what its jobs have, `written`: what the group has of its own."""
    count = written.count or ReplicaRange(1, 1)
    scaling = written.scaling or configuration.scaling
    return ReplicaGroup(
        name=name,
        least=count.least,
        most=count.most,
        scaling=None if scaling is None else _scaling(scaling),
        nodes=fields.nodes or 1,
    )


def _scaling(written: ScalingFields) -> Scaling:
    default = Scaling(metric=written.metric, target=written.target)
    up, down = written.scale_up_delay, written.scale_down_delay
    return Scaling(
        metric=written.metric,
        target=written.target,
        window=_WINDOWS[written.window],
        scale_up_delay=default.scale_up_delay if up is None else float(up),
        scale_down_delay=default.scale_down_delay if down is None else float(down),
    )


def _written(
    configuration: ServiceConfiguration,
) -> Iterator[tuple[str, str, GroupedFields, ReplicaGroupFields]]:
    """Yield each group: its place, its name, the fields of its jobs, and its own fields."""
    written = configuration.replicas
    if written is None:
        yield "", MAIN, configuration, ReplicaGroupFields()
        return
    for number, group in enumerate(written.groups):
        name = _name(number, group) if written.several else MAIN
        location = f"replicas[{number}]" if written.several else ""
        yield location, name, merged(group, configuration), group


def _name(number: int, group: ReplicaGroupFields) -> str:
    return str(group.name) if group.name is not None else f"group-{number}"
