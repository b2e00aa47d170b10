"""HAProxy, which has the gateway's ports: its configuration, which never changes, and its runtime
API.

It terminates TLS. A request that needs no decision of the agent's goes straight to a replica; every
other one goes to the agent, and all of them while the agent has told HAProxy nothing. A service
that has this way gets a slot: one of the backends, whose servers are its replicas. Each server has
a socket of its own, to which the agent gives its other end. Certificates are files, named in a list
that HAProxy reads when it starts, and are changed at run time. So no connection ends because
something changes. (HAProxy 2.6 can add servers, too, but such ones open a connection for each
request.)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from common import haproxy_admin
from common.haproxy_admin import HaproxyRefused
from common.proxy.headers import NEVER, OWN_COOKIES
from common.proxy.judgement import TOKEN
from common.tokens import TOKEN_PREFIX

SLOTS = tuple(f"s{number}" for number in range(64))
SERVERS = tuple(f"r{number}" for number in range(32))
DIRECT = tuple(f"d{number}" for number in range(8))
"""The servers of each slot that lead to nodes by TLS. One takes 20 KiB, so there are fewer."""
NEW_REQUESTS = 100
"""A replica gets so many more requests than it has, until the next look; others wait. OpenSSH's
socket on the way refuses more than 128 connections that it has not accepted yet."""
QUEUE_SECONDS = 60
"""A request waits so long for its turn at a replica."""
CLIENT_SECONDS = 300
"""A client whose turn it is may be silent for so long, in its TLS handshake too (HAProxy 2.6 has no
time of its own for that) and while it reads nothing of an answer. WebSockets are exempt, and so is
a client that waits for its answer."""
ADMISSION_SECONDS = 60
"""A token opens a service's way past the agent for so long; then the agent sees it again."""
ADMITTED = "X-Fairlead-Admitted"
"""The header of requests whose token HAProxy knows: the agent need not see it."""
_MAX_HEADERS = 128
"""Those of a request; aiohttp takes no more at the controller and the agent."""
_MAX_LINE = 8190
"""Bytes of a header or target; aiohttp takes no longer ones at the controller and the agent."""
_ODD = {
    "token": TOKEN,
    "begins_like_a_token": rf"(?:^|[\s,;:=\x22\x27]){TOKEN_PREFIX[:2]}[a-z]?_",
    "odd_basic": r"(?i)^basic(?! +(?:[a-z0-9+/]{4})*(?:[a-z0-9+/]{2}==|[a-z0-9+/]{3}=)?$)",
    "odd_target": rf"[^!-~]|^.{{{_MAX_LINE + 1}}}",
    "odd_headers": r"(?m)[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
    rf"|^(?![Aa]uthorization:).*{TOKEN}|^.{{{_MAX_LINE + 1}}}",
    "odd_connection": "^(?!(?:close|keep-alive)$)",
    "hop_by_hop": "keep-alive|proxy-.*|te|trailer",
    "never": "|".join(sorted(NEVER)),
    "for_a_domain": r";[ \t]*domain[ \t]*=",
    "cookie_for_a_domain": r"(?i)^(.*);[ \t]*domain[ \t]*=[^;]*(.*)$",
    "own_cookie": r"^[ \t]*=?[ \t]*(?:" + "|".join(OWN_COOKIES) + ")",
}
"""Regular expressions of what goes to the agent, so that `common.proxy.judgement` alone decides
about it, and of what is taken out of an answer (`common.proxy.headers.response_headers`)."""
_RETRIES = ("wretr", "wredis")
_ERRORS = ("hrsp_5xx", "econ", "eresp")
_FAILURES = {
    502: ("replica_failed", "a replica of the service broke the connection"),
    503: ("no_replica", "no replica of the service can be reached"),
    504: ("replica_timeout", "a replica of the service gave no answer in time"),
}
# 24d is as good as no limit: HAProxy counts milliseconds in 31 bits. Keepalives find clients that
# are gone. `http-no-delay` is for event streams, whose events are small. Only what may be repeated
# is tried again (RFC 9110, 9.2.2).
_CONFIGURATION = """\
global
    stats socket {admin} mode 600 level admin
    log {log} len 256 format raw local0
    fd-hard-limit 50000
    tune.bufsize 65536
    tune.http.maxhdr {max_headers}
    ssl-default-bind-options ssl-min-ver TLSv1.2

defaults
    mode http
    log global
    timeout connect 10s
    timeout queue {queue_seconds}s
    timeout client {client_seconds}s
    timeout tunnel 24d
    timeout server 24d
    timeout http-request 60s
    timeout http-keep-alive 60s
    option clitcpka
    clitcpka-idle 60s
    clitcpka-intvl 20s
    clitcpka-cnt 4
    retries 3
    option redispatch 1
{failures}
frontend traffic
{binds}    log-format "%b %s %Ta %ts %ST"
    http-request del-header {admitted}
    http-request set-header X-Forwarded-For %[src]
    http-request set-header X-Forwarded-Proto %[ssl_fc,iif(https,http)]
    http-request set-header X-Forwarded-Host %[req.hdr(host)]
    http-request set-var(txn.host) req.hdr(host),field(1,:),lower
    http-request set-var(txn.way) ssl_fc,iif(https,http),concat(|,txn.host)
    http-request set-var(txn.slot) var(txn.way),map_str({slots})
    http-request set-var(txn.guarded) var(txn.way),map_str({guarded})
    acl guarded var(txn.guarded) -m found
    acl one_token req.fhdr_cnt(authorization) eq 1
    acl one_token_is_bearer req.fhdr(authorization) -m reg -i '^bearer [a-z0-9_-]+$'
    http-request set-var(txn.proof) req.fhdr(authorization),word(2," "),sha2(256),hex,lower \
        if guarded one_token one_token_is_bearer
    http-request set-var(txn.admission) var(txn.guarded),concat(.,txn.proof) \
        if {{ var(txn.proof) -m found }}
    acl is_admitted var(txn.admission),table_gpc0(doors) gt 0
    http-request set-var(txn.admitted) int(1) if {{ var(txn.admission) -m found }} is_admitted
    acl admitted var(txn.admitted) -m found
    http-request deny deny_status 405 if METH_CONNECT
    http-request set-var(txn.is_absolute) int(1) if {{ fc_http_major 1 }} !{{ url_beg / }}
    http-request set-var(txn.most) str(most_body),map_str_int({limits},0)
    acl fast var(txn.slot) -m found
    acl token req.fhdr(authorization) -m reg '{begins_like_a_token}'
    acl token req.fhdr(authorization) -m reg '{odd_basic}'
    acl token req.fhdr(authorization),word(2," "),b64dec -m reg '{token}'
    acl asks req.hdr(cookie) -m sub -i {cookies}
    acl asks req.hdr(upgrade) -m found
    acl asks req.hdr(expect) -m found
    acl asks req.hdr(accept) -m sub -i text/event-stream
    acl asks req.hdr(transfer-encoding) -m found
    acl asks req.hdr_val(content-length),sub(txn.most) gt 0
    acl asks path_sub -i .. %2e
    acl asks url -m reg '{odd_target}'
    acl asks req.hdrs -m reg '{odd_headers}'
    acl asks req.fhdr_cnt(authorization) gt 1
    acl asks req.hdr(connection) -m reg -i '{odd_connection}'
    acl asks var(txn.is_absolute) -m found
    acl usual method GET HEAD POST PUT DELETE OPTIONS PATCH
    acl challenge path_beg /.well-known/acme-challenge/
    acl challenged str(challenges),map_str_int({limits},0) gt 0
    use_backend caddy if challenge challenged !{{ ssl_fc }}
    use_backend %[var(txn.slot)] if fast usual !asks !token
    use_backend %[var(txn.guarded)] if admitted usual !asks
    default_backend agent

backend doors
    stick-table type string len 96 size 100k expire {admission_seconds}s store gpc0

backend caddy
    server caddy 127.0.0.1:{challenges}

backend agent
    option http-no-delay
    retry-on conn-failure empty-response
    http-request disable-l7-retry unless {{ method GET HEAD OPTIONS PUT DELETE TRACE }}
    server agent unix@{agent}
"""
# `abortonclose`: a request whose client has left while it waited goes to no replica. `connection
# close` with HEAD: some apps send a body with its answer (`common.proxy.upstream`), which the next
# client on that connection would get.
_SLOT = """
backend {slot}
    balance leastconn
    http-reuse always
    retry-on conn-failure empty-response
    option abortonclose
    http-request set-timeout server str(timeout),map_str_int({limits},300000)
    http-request disable-l7-retry unless {{ method GET HEAD OPTIONS PUT DELETE TRACE }}
    http-request set-header {admitted} 1 if {{ var(txn.admitted) -m found }}
    http-request del-header authorization if {{ var(txn.admitted) -m found }}
    http-request del-header ^({hop_by_hop}|forwarded|x-forwarded-prefix)$ -m reg
    http-request set-header connection close if METH_HEAD
    http-response del-header ^({never}|{hop_by_hop})$ -m reg
    acl for_a_domain res.fhdr(set-cookie) -m reg -i '{for_a_domain}'
    http-response replace-header set-cookie '{cookie_for_a_domain}' '\\1\\2' if for_a_domain
    http-response replace-header set-cookie '{cookie_for_a_domain}' '\\1\\2' if for_a_domain
    http-response del-header set-cookie if for_a_domain
    http-response del-header set-cookie if {{ res.fhdr(set-cookie) -m reg -i '{own_cookie}' }}
    server agent unix@{agent} backup
{servers}"""
# `pool-purge-delay`: servers close unused connections after some seconds (uvicorn after 5), and a
# request may meet that.
_SERVER = "    server {server} unix@{socket} maxconn {most} pool-purge-delay 1s disabled\n"
# The agent tells where a direct server leads, and by which name: it names one port at one node, and
# only that node's certificate has it. `tcp-ut`: a node that is gone takes its connections with it.
# `on-error mark-down`: HAProxy tries a request again at once, at the same server unless that is
# down; so the first refused connection sends all to the agent. That works only beside a check: this
# one asks HAProxy's own port, which answers.
_DIRECT = (
    "    server {server} 127.0.0.1:1 ssl verify required ca-file {nodes} crt {own} "
    "ssl-min-ver TLSv1.3 sni str({slot}-{server}),map_str({names}) maxconn {most} "
    "tcp-ut 20s pool-purge-delay 1s check inter 1d no-check-ssl addr 127.0.0.1 port {check} "
    "observe layer4 error-limit 1 on-error mark-down disabled\n"
)


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """`http` and `https`: where HAProxy listens; `challenges`: where Caddy answers those of an
    authority, on the loopback."""

    http: int = 80
    https: int = 443
    challenges: int = 2080


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """`seconds`: a replica may be silent for so long; `most_body`: bytes of a request;
    `has_challenges`: an authority asks the hosts by plain HTTP."""

    seconds: float = 300.0
    most_body: int = 0
    has_challenges: bool = False


class Paths(msgspec.Struct, frozen=True, kw_only=True):
    """The sockets and files of HAProxy. `admin`: its runtime API; `log`: the agent reads a line
    there for each request; `agent`: the agent's own traffic socket; `maps`: the folder of its maps,
    which begin as empty files; `servers`: the folder of the servers' sockets, which the agent
    makes; `certificates`: the folder of certificates with their keys."""

    admin: Path
    log: Path
    agent: Path
    maps: Path
    servers: Path
    certificates: Path

    @classmethod
    def of(cls, folder: Path, agent: Path, home: Path, data: Path) -> Paths:
        """Return those of a HAProxy in `folder`, beside an agent with this traffic socket, `home`
        for its own sockets and `data` for what outlasts the machine's restart."""
        return cls(
            admin=folder / "admin.sock",
            log=home / "log.sock",
            agent=agent,
            maps=folder,
            servers=home / "replicas",
            certificates=data / "certificates",
        )

    def server(self, slot: str, server: str) -> Path:
        return self.servers / f"{slot}-{server}"

    @property
    def slots(self) -> Path:
        return self.maps / "slots.map"

    @property
    def guarded(self) -> Path:
        return self.maps / "guarded.map"

    @property
    def limits(self) -> Path:
        return self.maps / "limits.map"

    @property
    def names(self) -> Path:
        """The map of direct servers to the names by which they ask nodes for a port."""
        return self.maps / "names.map"

    @property
    def identity(self) -> Path:
        """The gateway's certificate for nodes, with its key."""
        return self.certificates.with_name("direct.pem")

    @property
    def nodes(self) -> Path:
        """The certificates of nodes with a direct way, one after the other."""
        return self.certificates.with_name("nodes.pem")

    @property
    def shown(self) -> Path:
        """The list of the certificates that HAProxy shows (its `crt-list`)."""
        return self.certificates / "shown.list"


def configuration(
    paths: Paths, *, ports: Ports | None = None, addresses: Sequence[str] = ("*",)
) -> str:
    """Return HAProxy's configuration file. It listens at these addresses; IPv6 is in brackets."""
    ports = ports or Ports()
    failures = "".join(
        f"    http-error status {status} content-type application/json string "
        f'\'{{"error":{{"code":"{code}","message":"{message}"}}}}\'\n'
        for status, (code, message) in _FAILURES.items()
    )
    values = {
        "admin": paths.admin,
        "log": paths.log,
        "agent": paths.agent,
        "slots": paths.slots,
        "guarded": paths.guarded,
        "admitted": ADMITTED,
        "queue_seconds": QUEUE_SECONDS,
        "client_seconds": CLIENT_SECONDS,
        "admission_seconds": ADMISSION_SECONDS,
        "limits": paths.limits,
        "challenges": ports.challenges,
        "binds": "".join(_binds(one, ports, paths.shown) for one in addresses),
        "failures": failures,
        "cookies": OWN_COOKIES[0],
        "max_headers": _MAX_HEADERS,
        **_ODD,
    }
    slots = []
    for slot in SLOTS:
        servers = "".join(
            _SERVER.format(server=server, socket=paths.server(slot, server), most=NEW_REQUESTS)
            for server in SERVERS
        )
        servers += "".join(
            _DIRECT.format(
                slot=slot,
                server=server,
                nodes=paths.nodes,
                own=paths.identity,
                names=paths.names,
                check=ports.http,
                most=NEW_REQUESTS,
            )
            for server in DIRECT
        )
        slots.append(_SLOT.format(slot=slot, servers=servers, **values))
    return _CONFIGURATION.format(**values) + "".join(slots)


def _binds(address: str, ports: Ports, shown: Path) -> str:
    only = " v6only" if address.startswith("[") else ""
    tls = f"ssl strict-sni alpn h2,http/1.1 crt-list {shown}"
    return f"    bind {address}:{ports.http}{only}\n    bind {address}:{ports.https}{only} {tls}\n"


class DirectPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a direct server leads: an IP address with the port of a node's HAProxy, and the name
    that it is asked for."""

    address: str
    port: int
    name: str


class ServerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one server, and its counts since HAProxy's start. `in_flight`: requests that it
    has now; `idle`: connections that are kept for later ones; `retries`: those tried again,
    here or at another server."""

    slot: str
    server: str
    is_closed: bool
    in_flight: int
    idle: int
    requests: int
    errors: int
    retries: int = 0

    @property
    def is_unused(self) -> bool:
        return self.is_closed and not self.in_flight and not self.idle


class Haproxy:
    """The runtime API of a HAProxy. Each method raises HaproxyAway and HaproxyRefused."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths

    async def open_server(self, slot: str, server: str) -> None:
        """Send it requests."""
        await self._do(f"set server {slot}/{server} state ready")

    async def lead_server(self, slot: str, server: str, to: DirectPlace) -> None:
        """Let a direct server that nothing uses lead there."""
        names, key = self._paths.names, f"{slot}-{server}"
        await self._do(f"del map {names} {key}", "not found")
        await self._do(f"add map {names} {key} {to.name}")
        await self._do(
            f"set server {slot}/{server} addr {to.address} port {to.port}", "changed", "no need"
        )

    async def trust_nodes(self, certificates: str) -> None:
        """Let direct servers lead to the nodes with these certificates (PEM) alone."""
        await haproxy_admin.trust(self._paths.admin, self._paths.nodes, certificates)

    async def limit_server(self, slot: str, server: str, requests: int) -> None:
        """Send it no more requests than these at once; others wait."""
        await self._do(f"set maxconn server {slot}/{server} {requests}")

    async def drain_server(self, slot: str, server: str) -> None:
        """Send it no new requests."""
        await self._do(f"set server {slot}/{server} state drain")

    async def close_server(self, slot: str, server: str) -> None:
        """Send it no new requests, and let no retry wait for it."""
        await self._do(f"set server {slot}/{server} state maint")

    async def set_way(self, way: str, slot: str, *, is_guarded: bool) -> None:
        """Send the requests of this way (scheme|host) to a slot; if it is guarded, those whose
        token is admitted."""
        if is_guarded:
            await self._do("clear table doors")  # the slot may have been another service's
        await self._do(f"add map {self._ways(is_guarded=is_guarded)} {way} {slot}")

    async def unset_way(self, way: str, *, is_guarded: bool) -> None:
        """Send the requests of this way to the agent."""
        await self._do(f"del map {self._ways(is_guarded=is_guarded)} {way}")

    async def admit(self, slot: str, proof: str) -> None:
        """Let the token with this SHA-256 into the slot, for `ADMISSION_SECONDS`."""
        await self._do(f"set table doors key {slot}.{proof} data.gpc0 1")

    async def revoke(self, slot: str, proof: str) -> None:
        """Let the agent decide about this token."""
        await self._do(f"clear table doors key {slot}.{proof}", "Key not found")

    def _ways(self, *, is_guarded: bool) -> Path:
        return self._paths.guarded if is_guarded else self._paths.slots

    async def set_limits(self, limits: Limits) -> None:
        values = {
            "timeout": round(limits.seconds * 1000),
            "most_body": limits.most_body,
            "challenges": int(limits.has_challenges),
        }
        for name, value in values.items():
            # `add map` does not look whether the key is there, and the old value could win.
            await self._do(f"del map {self._paths.limits} {name}", "not found")
            await self._do(f"add map {self._paths.limits} {name} {value}")

    async def show_certificate(self, file: Path, content: str) -> None:
        """Show the certificate of this file to clients of its host names. `content`: the chain and
        the key (PEM), which the file has, too."""
        listed = await self._ask(f"show ssl crt-list {self._paths.shown}")
        is_listed = str(file) in listed.split()
        if not is_listed:
            await self._do(f"new ssl cert {file}", "New empty", "already exists")
        # An empty line ends the payload of a command of the runtime API.
        lines = "\n".join(line for line in content.splitlines() if line.strip())
        await self._do(f"set ssl cert {file} <<\n{lines}\n", "Transaction ")
        await self._do(f"commit ssl cert {file}", "Success")
        if not is_listed:
            await self._do(f"add ssl crt-list {self._paths.shown} {file}", "Success")

    async def hide_certificate(self, file: Path) -> None:
        """Show the certificate of this file no more."""
        gone = "can't be found", "doesn't exist", "deleted"
        await self._do(f"del ssl crt-list {self._paths.shown} {file}", *gone)
        await self._do(f"del ssl cert {file}", *gone)

    async def life(self) -> str:
        """Return a name for this life of HAProxy, which begins with nothing that was set."""
        for line in (await self._ask("show info")).splitlines():
            name, _, value = line.partition(": ")
            if name == "Pid":
                return value
        raise HaproxyRefused("show info: it tells no Pid")

    async def forget_ways(self) -> None:
        """Send all requests to the agent."""
        await self._do(f"clear map {self._paths.slots}")
        await self._do(f"clear map {self._paths.guarded}")
        await self._do("clear table doors")

    async def counts(self) -> list[ServerCounts]:
        """Return the counts of all servers of all slots."""
        answer = await self._ask("show stat -1 4 -1")
        head, *lines = answer.strip().splitlines() or [""]
        names = head.removeprefix("# ").split(",")
        wanted = ("pxname", "svname", "status", "scur", "srv_icur", "stot", *_RETRIES, *_ERRORS)
        if not set(wanted) <= set(names):
            raise HaproxyRefused(f"show stat: {head[:200]}")
        columns = [names.index(name) for name in wanted]
        counts = []
        for line in lines:
            cells = line.split(",")
            slot, server, status, *numbers = (cells[column] for column in columns)
            if slot not in SLOTS or server == "agent":
                continue
            in_flight, idle, requests, retries, redispatched, *errors = (
                int(number or 0) for number in numbers
            )
            counts.append(
                ServerCounts(
                    slot=slot,
                    server=server,
                    is_closed=status == "MAINT",
                    in_flight=in_flight,
                    idle=idle,
                    requests=requests,
                    errors=sum(errors),
                    # A server that was marked down gets no second try: its request goes elsewhere.
                    retries=retries + redispatched,
                )
            )
        return counts

    async def _do(self, command: str, *accepted: str) -> None:
        await haproxy_admin.do(self._paths.admin, command, *accepted)

    async def _ask(self, command: str) -> str:
        return await haproxy_admin.ask(self._paths.admin, command)
