"""HAProxy between Caddy and the agent: its configuration, which never changes, and its runtime API.

Caddy passes requests to HAProxy. A request that needs no decision of the agent's goes from there
straight to a replica; every other one goes to the agent, and all of them while the agent has told
HAProxy nothing. A service that has this way gets a slot: one of the backends, whose servers are its
replicas. Each server has a socket of its own, to which the agent gives its other end. So all is set
at run time, and no connection ends because something changes. (HAProxy 2.6 can add servers, too,
but such ones open a connection for each request.)
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from controller.proxy.browsers import COOKIE
from controller.store.base import TOKEN_PREFIX

SLOTS = tuple(f"s{number}" for number in range(64))
SERVERS = tuple(f"r{number}" for number in range(32))
ANSWER_SECONDS = 5.0
_TOKENS = TOKEN_PREFIX[:2]
"""Tokens and keys of services begin with it."""
_ERRORS = ("hrsp_5xx", "econ", "eresp")
_FAILURES = {
    502: ("replica_failed", "a replica of the service broke the connection"),
    503: ("no_replica", "no replica of the service can be reached"),
    504: ("replica_timeout", "a replica of the service gave no answer in time"),
}
_CONFIGURATION = """\
global
    stats socket {admin} mode 600 level admin
    log {log} len 256 format raw local0
    maxconn 8000
    tune.bufsize 65536

defaults
    mode http
    log global
    timeout connect 10s
    timeout client 24d
    timeout server 24d
    timeout http-keep-alive 60s
    retries 3
    option redispatch 1
{failures}
frontend traffic
    bind unix@{front} mode 660{group}
    log-format "%b %s %Ta %ts"
    http-request set-var(txn.host) req.hdr(host),field(1,:),lower
    http-request set-var(txn.way) req.hdr(x-forwarded-proto),lower,concat(|,txn.host)
    http-request set-var(txn.slot) var(txn.way),map_str({slots})
    http-request set-var(txn.most) str(most_body),map_str_int({limits},0)
    acl fast var(txn.slot) -m found
    acl asks req.hdr(authorization) -m beg -i "bearer {tokens}"
    acl asks req.cook({cookie}) -m found
    acl asks req.hdr(upgrade) -m found
    acl asks req.hdr(expect) -m found
    acl asks req.hdr(accept) -m sub -i text/event-stream
    acl asks req.hdr(transfer-encoding) -m found
    acl asks req.hdr_val(content-length),sub(txn.most) gt 0
    acl asks path_sub -i .. %2e
    use_backend %[var(txn.slot)] if fast !asks
    default_backend agent

backend agent
    option http-no-delay
    server agent unix@{agent}
"""
_SLOT = """
backend {slot}
    balance leastconn
    http-reuse always
    retry-on conn-failure empty-response
    option abortonclose
    http-request set-timeout server str(timeout),map_str_int({limits},300000)
    http-request disable-l7-retry unless {{ method GET HEAD OPTIONS PUT DELETE TRACE }}
    http-request del-header forwarded
    http-request del-header x-forwarded-prefix
    server agent unix@{agent} backup
{servers}"""
_SERVER = "    server {server} unix@{socket} pool-purge-delay 1s disabled\n"


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """The sockets and files of HAProxy. `front`: Caddy passes requests on to it; `admin`: its
    runtime API; `log`: the agent reads a line there for each request; `agent`: the agent's own
    traffic socket; `maps`: the folder of its maps, which begin as empty files; `servers`: the
    folder of the servers' sockets, which the agent makes."""

    front: Path
    admin: Path
    log: Path
    agent: Path
    maps: Path
    servers: Path

    @classmethod
    def of(cls, folder: Path, agent: Path, home: Path) -> Places:
        """Return those of a HAProxy in `folder`, beside an agent with this traffic socket and
        `home` for its own sockets."""
        return cls(
            front=folder / "front.sock",
            admin=folder / "admin.sock",
            log=home / "log.sock",
            agent=agent,
            maps=folder,
            servers=home / "replicas",
        )

    def server(self, slot: str, server: str) -> Path:
        return self.servers / f"{slot}-{server}"

    @property
    def slots(self) -> Path:
        return self.maps / "slots.map"

    @property
    def limits(self) -> Path:
        return self.maps / "limits.map"


def configuration(places: Places, *, group: str | None = None) -> str:
    """Return HAProxy's configuration file. `group` may open the front socket."""
    failures = "".join(
        f"    http-error status {status} content-type application/json string "
        f'\'{{"error":{{"code":"{code}","message":"{message}"}}}}\'\n'
        for status, (code, message) in _FAILURES.items()
    )
    words = {
        "admin": places.admin,
        "log": places.log,
        "front": places.front,
        "agent": places.agent,
        "slots": places.slots,
        "limits": places.limits,
        "group": "" if group is None else f" group {group}",
        "failures": failures,
        "cookie": COOKIE,
        "tokens": _TOKENS,
    }
    slots = []
    for slot in SLOTS:
        servers = "".join(
            _SERVER.format(server=server, socket=places.server(slot, server)) for server in SERVERS
        )
        slots.append(_SLOT.format(slot=slot, servers=servers, **words))
    return _CONFIGURATION.format(**words) + "".join(slots)


class HaproxyAway(Exception):
    """No HAProxy listens at its admin socket: it carries no request. The message says why."""


class HaproxyRefused(Exception):
    """HAProxy did not do what it was told; the message is its answer."""


class ServerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one server, and its counts since HAProxy's start. `in_flight`: requests that it
    has now; `idle`: connections that are kept for later ones."""

    slot: str
    server: str
    is_closed: bool
    in_flight: int
    idle: int
    requests: int
    errors: int

    @property
    def is_unused(self) -> bool:
        return self.is_closed and not self.in_flight and not self.idle


class Haproxy:
    """The runtime API of a HAProxy. Each method raises HaproxyAway and HaproxyRefused."""

    def __init__(self, places: Places) -> None:
        self._places = places

    async def open_server(self, slot: str, server: str) -> None:
        """Send it requests."""
        await self._do(f"set server {slot}/{server} state ready")

    async def drain_server(self, slot: str, server: str) -> None:
        """Send it no new requests."""
        await self._do(f"set server {slot}/{server} state drain")

    async def close_server(self, slot: str, server: str) -> None:
        """Send it no new requests, and let no retry wait for it."""
        await self._do(f"set server {slot}/{server} state maint")

    async def set_way(self, way: str, slot: str) -> None:
        """Send the requests of this way (scheme|host) to a slot."""
        await self._do(f"add map {self._places.slots} {way} {slot}")

    async def unset_way(self, way: str) -> None:
        """Send the requests of this way to the agent."""
        await self._do(f"del map {self._places.slots} {way}")

    async def set_limits(self, *, seconds: float, most_body: int) -> None:
        values = {"timeout": round(seconds * 1000), "most_body": most_body}
        for name, value in values.items():
            await self._do(f"del map {self._places.limits} {name}", "not found")
            await self._do(f"add map {self._places.limits} {name} {value}")

    async def forget_ways(self) -> None:
        """Send all requests to the agent."""
        await self._do(f"clear map {self._places.slots}")

    async def counts(self) -> list[ServerCounts]:
        """Return the counts of all servers of all slots."""
        said = await self._ask("show stat -1 4 -1")
        head, *lines = said.strip().splitlines() or [""]
        names = head.removeprefix("# ").split(",")
        wanted = ("pxname", "svname", "status", "scur", "srv_icur", "stot", *_ERRORS)
        if not set(wanted) <= set(names):
            raise HaproxyRefused(f"show stat: {head[:200]}")
        places = [names.index(name) for name in wanted]
        counts = []
        for line in lines:
            cells = line.split(",")
            slot, server, status, *numbers = (cells[place] for place in places)
            if server == "agent":
                continue
            in_flight, idle, requests, *errors = (int(number or 0) for number in numbers)
            counts.append(
                ServerCounts(
                    slot=slot,
                    server=server,
                    is_closed=status == "MAINT",
                    in_flight=in_flight,
                    idle=idle,
                    requests=requests,
                    errors=sum(errors),
                )
            )
        return counts

    async def _do(self, command: str, *accepted: str) -> None:
        said = (await self._ask(command)).strip()
        if said and not any(word in said for word in accepted):
            raise HaproxyRefused(f"{command}: {said}")

    async def _ask(self, command: str) -> str:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reader, writer = await asyncio.open_unix_connection(self._places.admin)
                try:
                    writer.write(f"{command}\n".encode())
                    return (await reader.read(-1)).decode()
                finally:
                    writer.close()
        except (OSError, TimeoutError) as error:
            raise HaproxyAway(f"{self._places.admin}: {error or 'no answer'}") from error
