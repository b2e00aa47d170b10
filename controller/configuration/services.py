"""Services: the fields that only a service has, what is refused, and its policy.

A replica group accepts the fields that may stand at the top level; its own fields win. The short
forms are dstack's. A ValueError holds the sentence for the user; the caller adds the field's path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from controller.configuration import schema
from controller.configuration.convert import ConfigurationError, convert
from controller.configuration.groups import MAIN, MOST_GROUPS, GroupPlan, merged
from controller.configuration.hints import GANG_OF_A_REPLICA, not_a_field
from controller.configuration.names import is_run_name
from controller.configuration.schema import (
    MOST_JOBS,
    MOST_REPLICAS,
    SERVICE_ALLOWED,
    GroupedFields,
    ProbeFields,
    RateLimitFields,
    RateLimitKeyFields,
    ReplicaGroupFields,
    ScalingFields,
    ServiceConfiguration,
)
from controller.configuration.units import as_range, shown
from controller.lifecycle.model import Group, RunType
from controller.lifecycle.services.policy import (
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

Hook = Callable[[type, Any], Any]
_PORT = re.compile(r"(?:(\d{1,5}):)?(\d{1,5})", re.ASCII)
_RANGE = re.compile(r"\s*(\d{1,9})\s*(?:(\.\.)\s*(\d{1,9})?\s*)?", re.ASCII)
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", re.ASCII)
_URL_PATH = re.compile(r"/[!-~]{0,2000}", re.ASCII)
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
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_OF_A_GROUP = frozenset(ReplicaGroupFields.__struct_fields__)
_WINDOWS = {"30s": 30.0, "60s": 60.0, "1m": 60.0, "5m": 300.0}
LEAST_INTERVAL = 1.0


# -- the types of the schema ----------------------------------------------------------------


def port(value: object) -> schema.PortPair:
    match = _PORT.fullmatch(str(value)) if type(value) in (int, str) else None
    numbers = [int(number) for number in match.groups() if number] if match else []
    if not numbers or not all(1 <= number <= 65535 for number in numbers):
        raise ValueError(f"{shown(value)} is not a port")
    return schema.PortPair(numbers[-1], numbers[0] if len(numbers) == 2 else None)


def replica_range(value: object) -> schema.ReplicaRange:
    match = _RANGE.fullmatch(str(value)) if type(value) in (int, str) else None
    if match is None:
        raise ValueError(f"{shown(value)} is not a number of replicas{as_range(value)}")
    least = int(match[1])
    if match[2] and not match[3]:
        raise ValueError(f"{shown(value)} has no upper end; write the most that there may be")
    most = int(match[3]) if match[2] else least
    if most < least:
        raise ValueError(f"{shown(value)} ends before it begins")
    if not 1 <= most <= MOST_REPLICAS:
        raise ValueError(f"{shown(value)} is not between 1 and {MOST_REPLICAS}")
    return schema.ReplicaRange(least, most)


def replicas(value: object, make: Hook) -> schema.Replicas:
    """Return the replica groups. Raises ConfigurationError with the group's field."""
    if not isinstance(value, list | tuple):
        only = ReplicaGroupFields(count=replica_range(value))
        return schema.Replicas((only,), several=False)
    if not value:
        raise ValueError("is empty")
    if len(value) > MOST_GROUPS:
        raise ValueError(f"has more than {MOST_GROUPS} groups")
    made = tuple(_group(one, f"replicas[{n}]", make) for n, one in enumerate(value))
    names = [_name(number, group) for number, group in enumerate(made)]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ConfigurationError(
                f"replicas[{number}].name", f"{shown(name)} is also the name of another group"
            )
    return schema.Replicas(made, several=True)


def _group(value: object, place: str, make: Hook) -> ReplicaGroupFields:
    if not isinstance(value, dict):
        allowed = SERVICE_ALLOWED["replicas"]
        raise ConfigurationError(place, f"is {shown(value)}, not a mapping", allowed)
    for name in value:
        if name not in _OF_A_GROUP:
            raise ConfigurationError(f"{place}.{name}", *_unknown(name))
    if "name" in value and not is_run_name(str(value["name"])):
        raise ConfigurationError(
            f"{place}.name",
            f"{shown(value['name'])} is not a name",
            SERVICE_ALLOWED["replicas.name"],
        )
    try:
        return convert(value, ReplicaGroupFields, make, allowed=_ALLOWED_IN_GROUPS)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}.{error.field}", error.message, error.allowed) from None


_ALLOWED_IN_GROUPS = {**SERVICE_ALLOWED, "count": SERVICE_ALLOWED["replicas.count"]}


def _unknown(name: str) -> tuple[str, str | None]:
    if name in ServiceConfiguration.__struct_fields__:
        return "applies to all groups: set it at the top level", None
    return not_a_field(name, _OF_A_GROUP - {"gang"}, RunType.SERVICE)


def headers(value: object, make: Hook) -> schema.Headers:
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list | tuple):
        made = [_header(number, one, make) for number, one in enumerate(value)]
        pairs = [(one.name, one.value) for one in made]
    else:
        raise ValueError("must be a mapping or a list")
    for name, content in pairs:
        header_name(name)
        if not isinstance(content, str) or not content.isprintable():
            raise ValueError(f"the value of {name} is not a string that a header can hold")
    return schema.Headers((str(name), content) for name, content in pairs)


def _header(number: int, value: object, make: Hook) -> schema.HeaderFields:
    try:
        return convert(value, schema.HeaderFields, make)
    except ConfigurationError as error:
        parts = (f"item {number}:", error.field, error.message)
        raise ValueError(" ".join(part for part in parts if part)) from None


def header_name(value: object) -> schema.HeaderName:
    if not isinstance(value, str) or not _HEADER.fullmatch(value):
        raise ValueError(f"{shown(value)} is not the name of a header")
    return schema.HeaderName(value)


def url_path(value: object) -> schema.UrlPath:
    if not isinstance(value, str) or not _URL_PATH.fullmatch(value):
        raise ValueError(f"{shown(value)} is not a path that begins with /")
    return schema.UrlPath(value)


def method(value: object) -> schema.ProbeMethod:
    if not isinstance(value, str) or value.upper() not in _METHODS:
        raise ValueError(f"{shown(value)} is not a method")
    return schema.ProbeMethod(value.upper())


# -- what is refused ------------------------------------------------------------------------


def check_service(configuration: ServiceConfiguration) -> None:
    """Refuse combinations that cannot be meant. Raises ConfigurationError."""
    if configuration.name is not None and configuration.name.endswith("-"):
        _refuse("name", "ends with a hyphen, so it cannot be a part of a host name")
    _check_not_yet(configuration)
    _check_nodes(configuration)
    _check_what_runs(configuration)
    if configuration.scaling is not None and _several(configuration):
        _refuse("scaling", "can't be set at the top level together with groups: set it in each")
    for place, name, fields, group in _written(configuration):
        _check_scaling(place, _replica_group(name, fields, group, configuration))
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
    places: list[tuple[str, GroupedFields]] = [("", configuration)]
    places += [(f"replicas[{n}].", group) for n, group in enumerate(_several(configuration))]
    for place, fields in places:
        if fields.gang is not None:
            _refuse(f"{place}gang", GANG_OF_A_REPLICA, "nodes, for replicas of several nodes")
    if configuration.nodes not in (None, 1) and _several(configuration):
        _refuse("nodes", "can't be set at the top level together with groups: set it in each")
    planned = [
        _replica_group(name, fields, group, configuration)
        for _, name, fields, group in _written(configuration)
    ]
    if sum(group.most * group.nodes for group in planned) > MOST_JOBS:
        _refuse("replicas", "have too many nodes", f"{MOST_JOBS} together")


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


def _check_scaling(place: str, group: ReplicaGroup) -> None:
    field = f"{place}.scaling" if place else "scaling"
    count = f"{place}.count" if place else "replicas"
    if group.scaling is not None and group.least == group.most:
        _refuse(field, f"needs a range of replicas: {count} is {group.least}", f"{count}: 1..4")
    if group.scaling is None and group.least != group.most:
        _refuse(
            count,
            f"is a range, {group.least}..{group.most}, and {field} is missing",
            SERVICE_ALLOWED["scaling"],
        )


def _check_probe(place: str, probe: ProbeFields) -> None:
    if probe.type == "tcp":
        for name in ("url", "method", "headers", "body"):
            if getattr(probe, name) is not None:
                _refuse(f"{place}.{name}", "is for a probe of type http", "type: http")
    if probe.timeout is not None and not probe.timeout > 0:
        _refuse(f"{place}.timeout", "would fail at once", SERVICE_ALLOWED["probes.timeout"])
    if probe.interval is not None and probe.interval < LEAST_INTERVAL:
        _refuse(f"{place}.interval", "is less than 1s", SERVICE_ALLOWED["probes.interval"])


def _check_headers(place: str, written: schema.Headers | None) -> None:
    for name, _ in written or ():
        if name.lower() in _OF_THE_CONNECTION:
            _refuse(place, f"{name} is set for each request by the proxy: leave it out")


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


def _check_model(model: schema.ModelFields | str | None) -> None:
    place, name = "model", model
    if isinstance(model, schema.ModelFields):
        place, name = "model.name", model.name
    if name is not None and not str(name).isprintable():
        _refuse(place, f"{shown(str(name))} contains a control character")


def _refuse(field: str, message: str, allowed: str | None = None) -> NoReturn:
    raise ConfigurationError(field, message, allowed or SERVICE_ALLOWED.get(field))


# -- what is planned ------------------------------------------------------------------------


def plan_replicas(configuration: ServiceConfiguration) -> tuple[GroupPlan, ...]:
    """Return the replica groups in the order of the configuration, at least one."""
    return tuple(_plan(*written, configuration) for written in _written(configuration))


def _plan(
    place: str,
    name: str,
    fields: GroupedFields,
    own: ReplicaGroupFields,
    configuration: ServiceConfiguration,
) -> GroupPlan:
    group = _replica_group(name, fields, own, configuration)
    shares = group.nodes == 1 if fields.share_nodes is None else fields.share_nodes
    return GroupPlan(
        field=place,
        written=fields,
        whole_node=not shares,
        group=Group(name=name, nodes=group.least * group.nodes, share_nodes=shares),
    )


def is_gateway_name(name: str) -> bool:
    return _GATEWAY_NAME.fullmatch(name) is not None


def wanted_gateway(configuration: ServiceConfiguration) -> bool | str | None:
    """Return the gateway's name; True: the default one; False: none; None: nothing is said."""
    written = configuration.gateway
    return str(written) if isinstance(written, str) else written


def policy(configuration: ServiceConfiguration) -> ServicePolicy:
    model, timeout = configuration.model, configuration.rollout_timeout
    unhealthy, default = configuration.unhealthy_after, ServicePolicy(port=1, groups=())
    eject = configuration.eject_for
    written = configuration.https
    https = Https.AUTO if written == "auto" else Https.ON if written else Https.OFF
    long_model = model if isinstance(model, schema.ModelFields) else None
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


def serves(configuration: ServiceConfiguration) -> Serves:
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


def _rate_limit(place: str, written: RateLimitFields) -> RateLimit:
    key, header = written.key, written.header
    if isinstance(key, RateLimitKeyFields):
        if header is not None:
            _refuse(f"{place}.header", "stands in key, which is a mapping here")
        kind, header = key.type, key.header
        place += ".key"
    else:
        kind = RateLimitKey(key)
    if (kind is RateLimitKey.HEADER) != (header is not None):
        missing = "is missing: key is header" if header is None else "needs key: header"
        _refuse(f"{place}.header", missing, SERVICE_ALLOWED["rate_limits.header"])
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
    count = written.count or schema.ReplicaRange(1, 1)
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
        place = f"replicas[{number}]" if written.several else ""
        yield place, name, merged(group, configuration), group


def _name(number: int, group: ReplicaGroupFields) -> str:
    return str(group.name) if group.name is not None else f"group-{number}"
