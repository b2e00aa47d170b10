"""The fields of a service: what is meant, and what is refused with the field."""

from __future__ import annotations

from typing import Any

import pytest

from controller.lifecycle.model import RetryEvent
from fairlead.configuration.parse import ConfigurationError, parse
from fairlead.configuration.runs.plan import Defaults, Plan, to_run
from fairlead.model.service import (
    Probe,
    ProbeKind,
    RateLimit,
    RateLimitKey,
    ReplicaGroup,
    Scaling,
    ScalingMetric,
    Serves,
)

SERVICE = {"type": "service", "image": "busybox", "port": 8000}
RPS = {"metric": "rps", "target": 10}


def planned(**fields: Any) -> Plan:
    written = {**SERVICE, **fields}
    return to_run(parse(written), written, Defaults())


def test_a_service_without_more_has_one_replica_whose_port_must_accept() -> None:
    plan = planned()

    assert plan.service is not None
    assert plan.service.groups == (ReplicaGroup(name="main"),)
    assert (plan.service.auth, plan.service.strip_prefix) == (True, True)
    assert plan.specs[0].serves == Serves(port=8000, probes=(Probe(kind=ProbeKind.TCP),))
    assert not plan.specs[0].resources.whole_node


def test_a_replica_of_several_nodes_holds_them_whole_unless_it_shares_them() -> None:
    one = planned(nodes=2, replicas=3)
    assert one.service is not None
    assert one.service.groups == (ReplicaGroup(name="main", least=3, most=3, nodes=2),)
    assert one.groups[0].group.nodes == 6
    assert one.specs[0].resources.whole_node

    groups = [{"nodes": 2, "share_nodes": True}, {"count": 2}]
    mixed = planned(replicas=groups)
    assert mixed.service is not None
    assert [group.nodes for group in mixed.service.groups] == [2, 1]
    assert [spec.resources.whole_node for spec in mixed.specs] == [False, False]


def test_without_retry_a_replica_is_tried_again_after_errors_and_interruptions() -> None:
    retry = planned().policy.retry

    assert retry.on_events == {RetryEvent.ERROR, RetryEvent.INTERRUPTION}
    assert retry.max_failures is None
    assert planned(retry=False).policy.retry.on_events == frozenset()


@pytest.mark.parametrize(
    ("written", "seconds"), [({}, 30.0), ({"eject_for": "2m"}, 120.0), ({"eject_for": "off"}, None)]
)
def test_a_replica_that_only_fails_is_ejected_unless_that_is_off(
    written: dict[str, str], seconds: float | None
) -> None:
    plan = planned(**written)
    assert plan.service is not None
    assert plan.service.eject_for == seconds


def test_a_range_begins_with_its_least() -> None:
    plan = planned(replicas="0..4", scaling={**RPS, "window": "5m", "scale_up_delay": "1m"})

    assert [one.group.nodes for one in plan.groups] == [0]
    assert plan.service is not None
    assert plan.service.groups[0] == ReplicaGroup(
        name="main",
        least=0,
        most=4,
        scaling=Scaling(metric=ScalingMetric.RPS, target=10.0, window=300.0, scale_up_delay=60.0),
    )


def test_a_replica_group_has_fields_of_its_own_above_those_of_the_service() -> None:
    plan = planned(
        env={"A": 1},
        replicas=[
            {"count": 1, "commands": ["route"], "resources": {"cpu": 4}},
            {"name": "gpu", "count": "1..2", "scaling": RPS, "image": "vllm", "env": {"B": 2}},
        ],
    )

    assert [one.group.name for one in plan.groups] == ["group-0", "gpu"]
    assert [(spec.image, spec.commands) for spec in plan.specs] == [
        ("busybox", ("route",)),
        ("vllm", ()),
    ]
    assert plan.specs[1].env == {"A": "1", "B": "2"}
    assert plan.specs[0].resources.cpu == 4.0


def test_probes_rate_limits_model_and_headers_arrive() -> None:
    plan = planned(
        port="80:8000",
        probes=[
            {
                "type": "http",
                "url": "/ready?full=1",
                "method": "post",
                "headers": [{"name": "X-Key", "value": "k"}],
                "body": "{}",
                "timeout": "20s",
                "interval": 5,
                "ready_after": 2,
                "until_ready": True,
            }
        ],
        rate_limits=[
            {"prefix": "/a/", "rps": 1},
            {"rps": 4, "burst": 9, "key": "header"} | {"header": "X-Key"},
        ],
        model={"name": "llama", "prefix": "/api/v1"},
        headers={"X-From": "fairlead"},
    )

    service, serves = plan.service, plan.specs[0].serves
    assert service is not None
    assert serves is not None
    assert (service.port, service.public_port) == (8000, 80)
    assert serves.probes == (
        Probe(
            kind=ProbeKind.HTTP,
            url="/ready?full=1",
            method="POST",
            headers=(("X-Key", "k"),),
            body="{}",
            timeout=20.0,
            interval=5.0,
            ready_after=2,
            until_ready=True,
        ),
    )
    assert service.rate_limits == (
        RateLimit(prefix="/a/", rps=1.0),
        RateLimit(key=RateLimitKey.HEADER, header="X-Key", rps=4.0, burst=9),
    )
    assert (service.model, service.model_prefix) == ("llama", "/api/v1")
    assert service.headers == (("X-From", "fairlead"),)


def test_values_of_headers_are_not_shown() -> None:
    probe = {"type": "http", "headers": [{"name": "X-Key", "value": "canary"}]}
    plan = planned(
        probes=[probe], headers={"X-Key": "canary"}, replicas=[{"env": {"KEY": "canary"}}]
    )

    assert "canary" not in str(plan.configuration)


PROBE = {"type": "http"}


@pytest.mark.parametrize(
    ("fields", "field", "sentence"),
    [
        ({"port": 0}, "port", "'0' is not a port"),
        ({"port": "80:8000:1"}, "port", "is not a port"),
        ({"replicas": "2..1"}, "replicas", "'2..1' ends before it begins"),
        ({"replicas": "1.."}, "replicas", "has no upper end"),
        ({"replicas": 0}, "replicas", "is not between 1 and 1000"),
        ({"replicas": []}, "replicas", "is empty"),
        ({"replicas": "1..4"}, "replicas", "is a range, 1..4, and scaling is missing"),
        ({"scaling": RPS}, "scaling", "needs a range of replicas: replicas is 1"),
        ({"replicas": [{"scaling": RPS}]}, "replicas[0].scaling", "replicas[0].count is 1"),
        ({"replicas": [{"count": "x"}]}, "replicas[0].count", "is not a number of replicas"),
        ({"replicas": [{"port": 1}]}, "replicas[0].port", "applies to all groups"),
        ({"replicas": [{"router": {}}]}, "replicas[0].router", "as another that asks"),
        ({"replicas": [{"nodes": 0}]}, "replicas[0].nodes", "is out of range"),
        ({"replicas": [{"nodes": 2, "gang": True}]}, "replicas[0].gang", "live and die together"),
        ({"replicas": 1000, "nodes": 11}, "replicas", "have too many nodes"),
        ({"replicas": [{"name": "a"}, {"name": "a"}]}, "replicas[1].name", "another group"),
        ({"nodes": 2, "replicas": [{}]}, "nodes", "set it in each"),
        ({"gateway": "Public!"}, "gateway", "'Public!' is not a name"),
        ({"https": True, "gateway": False}, "https", "without a gateway"),
        ({"name": "web-"}, "name", "ends with a hyphen"),
        ({"probes": [{"type": "http", "url": "x"}]}, "probes[0].url", "begins with /"),
        ({"probes": [{"type": "tcp", "url": "/"}]}, "probes[0].url", "of type http"),
        ({"probes": [{"type": "tcp", "interval": 0.1}]}, "probes[0].interval", "less than 1s"),
        ({"probes": [{"type": "foo"}]}, "probes[0].type", "'foo' is not known"),
        ({"rate_limits": [{"rps": 1, "key": "header"}]}, "rate_limits[0].header", "is missing"),
        ({"rate_limits": [{"rps": 0}]}, "rate_limits[0].rps", "is out of range"),
        ({"rate_limits": [{"rps": 1}, {"rps": 2}]}, "rate_limits[1].prefix", "of rate_limits[0]"),
        ({"headers": {"Transfer-Encoding": "x"}}, "headers", "by the proxy: leave it out"),
        ({"headers": [1]}, "headers", "item 0: is a whole number, not a mapping"),
        ({"probes": [PROBE | {"headers": [{"name": "a b"}]}]}, "probes[0].headers", "item 0: "),
        ({"probes": [PROBE | {"headers": {"te": "x"}}]}, "probes[0].headers", "te is set"),
        ({"model": "a\nb"}, "model", "contains a control character"),
        ({"model": {"name": "a\tb"}}, "model.name", "contains a control character"),
        ({"rollout_timeout": 0}, "rollout_timeout", "at once"),
        ({"eject_for": 0}, "eject_for", "at once"),
        ({"schedule": "0 8 * * *"}, "schedule", "is for tasks"),
        ({"groups": []}, "groups", "write a list as replicas"),
        ({"gang": True}, "gang", "live and die together"),
        ({"replica": 2}, "replica", "did you mean replicas?"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_field(
    fields: dict[str, Any], field: str, sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse({**SERVICE, **fields})

    assert caught.value.field == field
    assert sentence in caught.value.message
