"""The nouns of a service (docs/rules.md 8) as immutable values: what its user asked for."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class ProbeKind(StrEnum):
    TCP = "tcp"
    """The port accepts a connection."""
    HTTP = "http"
    """A request is answered with a 2xx status."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One check of a replica. The replica is ready once each of its probes passed `ready_after`
    times in a row."""

    kind: ProbeKind = ProbeKind.TCP
    url: str = "/"
    """Path and query of an HTTP probe."""
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body: str | None = None
    timeout: float = 10.0
    interval: float = 15.0
    ready_after: int = 1
    until_ready: bool = False
    """The probe ends once it has passed often enough."""


class Serves(msgspec.Struct, frozen=True, kw_only=True):
    """The offer of a replica's primary job: a port on its loopback, and how to check it."""

    port: int
    probes: tuple[Probe, ...] = (Probe(),)


class RateLimitKey(StrEnum):
    IP = "ip"
    HEADER = "header"


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """At most `rps` requests per second and key to paths with this prefix, and `burst` more at
    once."""

    prefix: str = "/"
    key: RateLimitKey = RateLimitKey.IP
    header: str | None = None
    rps: float
    burst: int = 0


class ScalingMetric(StrEnum):
    RPS = "rps"
    """Requests per second and replica."""
    CONCURRENCY = "concurrency"
    """Requests in flight per replica, on average."""
    LATENCY_P95 = "latency-p95"
    """Seconds within which 95 of 100 requests are answered."""


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    metric: ScalingMetric
    target: float
    window: float = 60.0
    scale_up_delay: float = 300.0
    scale_down_delay: float = 600.0


class ReplicaGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas of one kind, from `least` to `most`. `scaling` None: always `least`."""

    name: str
    least: int = 1
    most: int = 1
    scaling: Scaling | None = None
    nodes: int = 1
    """The nodes of each replica: one job runs on each of them."""


class Https(StrEnum):
    ON = "on"
    OFF = "off"
    AUTO = "auto"


class ServicePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A service as its user wants it; a new deployment may change all of it."""

    port: int
    """The port of the replicas."""
    public_port: int | None = None
    """The `80` of `80:8000`: the port under which a gateway offers it."""
    groups: tuple[ReplicaGroup, ...]
    rate_limits: tuple[RateLimit, ...] = ()
    auth: bool = True
    https: Https = Https.AUTO
    gateway: str | None = None
    """The gateway at which it is reached too; None: the controller's proxy alone."""
    strip_prefix: bool = True
    model: str | None = None
    """Its name under the OpenAI-compatible endpoint."""
    model_prefix: str = "/v1"
    headers: tuple[tuple[str, str], ...] = ()
    """Headers that the proxy sets in each request to a replica."""
    surge: int = 1
    """Replicas of a group beyond the wanted number during a rollout."""
    rollout_timeout: float = 600.0
    """Seconds without a further ready replica after which a rollout is rolled back."""
    unhealthy_after: float | None = None
    """Seconds after which a replica whose probes fail is replaced; None: never."""

    eject_for: float | None = 30.0
    """Seconds for which a replica that only fails gets no requests (8.15); None: never."""

    def group(self, name: str) -> ReplicaGroup | None:
        return next((group for group in self.groups if group.name == name), None)


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The known state of one probe of an attempt."""

    passes: bool
    """The latest result."""
    in_a_row: int
    """Successes in a row; counted up to the probe's `ready_after`."""
    since: float
    """When `passes` got its value."""
    paused: float = 0.0
    """Seconds since then that do not count for `unhealthy_after`: its node was silent, or its run
    suspended. Each probe has its own, because they begin to fail at different times."""
    message: str | None = None
    """Why it fails."""


class GroupScale(msgspec.Struct, frozen=True, kw_only=True):
    """How many replicas a group shall have."""

    group: str
    wanted: int
    at: float
    """When `wanted` last changed."""
    why: str


class DeploymentState(StrEnum):
    ROLLING = "rolling"
    DONE = "done"
    ROLLED_BACK = "rolled_back"
    REPLACED = "replaced"
    """Another deployment came before it was done."""
    FAILED = "failed"
    """It did not become ready, and there is none to go back to. Its replicas go on trying; it is
    done once they are ready after all."""
