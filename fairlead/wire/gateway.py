"""The messages between the controller and a gateway's agent, over one WebSocket.

The controller opens `GET /v1/link` on the agent's unix socket, through SSH. Each message is one
JSON text with its kind in `type`. The agent says `Hello` first. Whatever either side does not know
of a message it ignores, so each may be newer than the other.
"""

from __future__ import annotations

import msgspec

PROTOCOL = 1
LINK_PATH = "/v1/link"
HEALTH_PATH = "/v1/health"
AGENT_SOCKET = "/run/fairlead-gateway/agent.sock"
NODE_USER = "fairlead-gateway"
"""The SSH user of gateways on a node."""


# -- between an agent and a node ------------------------------------------------------------


class DirectQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent writes, as one line of JSON, to the `.direct` socket beside an exposed one: it
    wants to reach the port without SSH. `certificate`: its own (PEM), which the node lets in."""

    certificate: str


class DirectAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the node answers, as one line of JSON. `why`: there is no direct way; else `name`, at
    TCP port `port` of the node, leads to the exposed port by TLS, and `certificate` (PEM) is the
    node's."""

    why: str | None = None
    port: int = 0
    name: str = ""
    certificate: str = ""


# -- what a snapshot holds ------------------------------------------------------------------


class GatewayNode(msgspec.Struct, frozen=True, kw_only=True):
    """How the agent reaches a node's exposed sockets."""

    id: str
    host: str
    port: int = 22
    user: str = NODE_USER
    host_key: str
    """The pinned key, as an OpenSSH public key line."""
    local: bool = False
    """The sockets are on the gateway's own machine, and no SSH is needed."""


class GatewayReplica(msgspec.Struct, frozen=True, kw_only=True):
    """A replica in traffic."""

    id: str
    """The id of its primary attempt."""
    group: str
    node_id: str
    socket: str
    """The path of its exposed socket on the node."""


class GatewayRateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """`burst` requests at once, then `rps` each second, for each client below this path."""

    prefix: str = "/"
    header: str | None = None
    """The header that tells clients apart; None: their IP address."""
    rps: float
    burst: int = 1


class GatewayService(msgspec.Struct, frozen=True, kw_only=True):
    """A service, as a gateway serves it at `host`."""

    run_id: str
    name: str
    owner: str
    host: str
    https: str = "auto"
    """`on` and `auto`: plain HTTP is redirected where there is a certificate; `off`: it is served,
    too."""
    auth: bool = True
    model: str | None = None
    model_prefix: str = "/v1"
    headers: tuple[tuple[str, str], ...] = ()
    """They are set on each request to a replica."""
    groups: tuple[str, ...] = ("main",)
    rate_limits: tuple[GatewayRateLimit, ...] = ()
    replicas: tuple[GatewayReplica, ...] = ()
    """The replicas that get requests."""
    draining: tuple[str, ...] = ()
    """Ids of replicas that get no new requests and finish those that they have."""
    is_held: bool = False
    """Requests wait while there is no replica."""
    eject_for: float | None = None
    """Seconds for which a replica that only fails gets no requests; None: never."""


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """`kind`: lets-encrypt, internal, none or files. Paths are of the gateway's machine."""

    kind: str = "lets-encrypt"
    email: str | None = None
    directory: str | None = None
    """The URL of another ACME directory."""
    directory_ca: str | None = None
    """The CA file by which that directory's own certificate is checked."""
    cert: str | None = None
    key: str | None = None


class ProxyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the controller's own proxy, which hold here too. Seconds and bytes."""

    hold: float = 300.0
    timeout: float = 300.0
    most_body: int = 1 << 30


class Browsers(msgspec.Struct, frozen=True, kw_only=True):
    """How browsers log in here. `dashboard`: the controller's, as browsers reach it; None: it is
    not known. `allows_plain_http`: they may without TLS."""

    dashboard: str | None = None
    allows_plain_http: bool = False


# -- from the controller --------------------------------------------------------------------


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    """All that a gateway serves. It replaces the one before, and is kept on disk."""

    version: int
    """It grows with each snapshot of one link."""
    controller: str = ""
    """The id of the controller's installation; an agent serves one of them."""
    gateway: str
    domain: str
    certificate: Certificate
    limits: ProxyLimits = ProxyLimits()
    browsers: Browsers = Browsers()
    nodes: tuple[GatewayNode, ...] = ()
    services: tuple[GatewayService, ...] = ()


class Claim(msgspec.Struct, frozen=True, kw_only=True, tag="claim"):
    """Reserve a host name for a run that is being submitted.

    It expires unless a snapshot has it.
    """

    id: int
    host: str
    seconds: float = 60.0


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """The answer to a `Question`."""

    id: int
    allowed: bool
    status: int = 200
    """401 or 403 when it is refused."""
    message: str = ""


class Revoked(msgspec.Struct, frozen=True, kw_only=True, tag="revoked"):
    """Forget what is known of this token or key; its open streams end."""

    digest: str


FromController = Snapshot | Claim | Answer | Revoked


# -- from the agent -------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """The first message of a link."""

    protocol: int = PROTOCOL
    version: str
    key: str
    """The public key by which the agent logs in at nodes."""
    serves: str | None = None
    """The name of the gateway whose snapshot it has from before."""
    controller: str = ""
    """The controller whose snapshot it has from before; empty: none."""
    tries_replicas: bool = False
    """It sends `Reached`."""


class Applied(msgspec.Struct, frozen=True, kw_only=True, tag="applied"):
    """From now on the snapshot with this version holds, and it is on disk.

    `error`: why the settings of domain or certificate could not be applied; the services are served
    by the settings of before.
    """

    version: int
    error: str | None = None
    field: str | None = None
    """The field of the gateway that `error` is about."""


class Claimed(msgspec.Struct, frozen=True, kw_only=True, tag="claimed"):
    """The answer to a `Claim`; `error`: why it was refused."""

    id: int
    error: str | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True, tag="question"):
    """May the bearer of this token or key use the service?"""

    id: int
    run_id: str
    digest: str
    """SHA-256 of the token, in hex."""
    is_key: bool = False
    """It has the form of a service's key, not of a user's token."""


class GroupCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one replica group within one second."""

    run_id: str
    group: str
    requests: int = 0
    errors: int = 0
    busy: float = 0.0
    """The sum of the times, in seconds, of all requests in flight, held ones included."""
    in_flight: int = 0
    """At the end of the second, held ones included."""
    latencies: tuple[tuple[int, int], ...] = ()
    """Pairs of a part of the histogram (`common.latencies`) and its count."""


class Counts(msgspec.Struct, frozen=True, kw_only=True, tag="counts"):
    """The requests of the last second. It is sent each second, also when there were none."""

    groups: tuple[GroupCounts, ...] = ()
    ejected: dict[str, float] = {}
    """For how many seconds each replica gets no requests because it only failed."""


class InFlight(msgspec.Struct, frozen=True, kw_only=True, tag="in_flight"):
    """The requests in flight at each replica that has any or is draining. It is sent with each
    `Counts`, after each `Applied`, and as soon as a draining replica has none left."""

    version: int
    """The snapshot that holds."""
    replicas: dict[str, int] = {}


class Reached(msgspec.Struct, frozen=True, kw_only=True, tag="reached"):
    """The replicas of the snapshot that the agent has tried. It is sent after each `Applied`, and
    when something changed."""

    replicas: dict[str, str] = {}
    """Why each cannot be reached; empty: it was reached, and gets requests."""


class HostCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """The certificate that a host name shows; `error`: why it shows none."""

    host: str
    issuer: str | None = None
    expires: float | None = None
    """Seconds since 1970."""
    error: str | None = None


class Certificates(msgspec.Struct, frozen=True, kw_only=True, tag="certificates"):
    """The certificates of all hosts that the agent has looked at. It is sent after each `Applied`,
    and when something changed."""

    hosts: tuple[HostCertificate, ...] = ()


class Wake(msgspec.Struct, frozen=True, kw_only=True, tag="wake"):
    """A request waits for a replica of this service. It is repeated while one waits."""

    run_id: str


FromAgent = Hello | Applied | Claimed | Question | Counts | InFlight | Reached | Certificates | Wake
