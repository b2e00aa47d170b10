"""Decides what HAProxy is told so that services have the fast path; no I/O.

`fast_services` chooses the services. A `FastPlan` notes what HAProxy has and returns the commands
that change it; `gateway.fast_path` performs them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import msgspec

from common.proxy.view import Replica, Service
from fairlead.wire.gateway import GatewayService, Snapshot
from gateway.haproxy import DIRECT, NEW_REQUESTS, SERVERS, SLOTS

ServerKey = tuple[str, str]
"""Slot and name of a server of HAProxy."""


class FastService(msgspec.Struct, frozen=True, kw_only=True):
    """A service that may have the fast path. `ways`: scheme and host of its requests; `is_guarded`:
    they need a token."""

    run_id: str
    ways: tuple[str, ...]
    is_guarded: bool = False
    eject_for: float | None = None
    replicas: tuple[Replica, ...]


def fast_services(
    snapshot: Snapshot, serves: Callable[[str], Service | None]
) -> dict[str, FastService]:
    """Return the services that may have the fast path, by run. `serves` returns a service with the
    replicas that get requests."""
    has_certificate = snapshot.certificate.kind != "none"
    found = {}
    for offered in snapshot.services:
        service = serves(offered.name)
        if service is None or not service.replicas or not _is_plain(offered):
            continue
        schemes = ("https", "http") if offered.https == "off" else ("https",)
        found[offered.run_id] = FastService(
            run_id=offered.run_id,
            ways=tuple(
                f"{one}|{offered.host}" for one in (schemes if has_certificate else ("http",))
            ),
            replicas=service.replicas,
            is_guarded=offered.auth,
            eject_for=offered.eject_for,
        )
    return found


def _is_plain(service: GatewayService) -> bool:
    return not (service.rate_limits or service.headers)


class OpenServer(msgspec.Struct, frozen=True):
    key: ServerKey


class DrainServer(msgspec.Struct, frozen=True):
    key: ServerKey


class CloseServer(msgspec.Struct, frozen=True):
    key: ServerKey


class LimitServer(msgspec.Struct, frozen=True):
    key: ServerKey
    requests: int


class SetWay(msgspec.Struct, frozen=True):
    way: str
    slot: str
    is_guarded: bool


class UnsetWay(msgspec.Struct, frozen=True):
    way: str
    is_guarded: bool


Command = OpenServer | DrainServer | CloseServer | LimitServer | SetWay | UnsetWay


class Server(msgspec.Struct, kw_only=True):
    """A replica as a server of HAProxy. `is_open`: it gets requests; `counted`: HAProxy told its
    counts since it was drained; `is_direct`: it is reached without SSH; `retries`: connections to
    it that failed."""

    replica: Replica
    run_id: str
    key: ServerKey
    is_local: bool
    is_direct: bool = False
    is_open: bool = True
    is_drained: bool = False
    is_ejected: bool = False
    counted: bool = False
    in_flight: int = 0
    requests: int = 0
    errors: int = 0
    retries: int = 0
    limit: int = NEW_REQUESTS
    """It gets no more requests at once."""

    def note(self, *, requests: int, errors: int, in_flight: int) -> bool:
        """Note HAProxy's counts. Return whether the server is drained and its last request has
        ended."""
        was_busy = self.in_flight > 0 or not self.counted
        self.requests, self.errors, self.in_flight = requests, errors, in_flight
        self.counted = self.is_drained
        return self.is_drained and was_busy and not in_flight


class FastPlan:
    """What the services want, and what HAProxy has of it.

    A method notes its commands as done. That is right because all is forgotten (`forget`) when
    HAProxy does not take one.
    """

    def __init__(self) -> None:
        self.wanted: dict[str, FastService] = {}
        self.needs_more = False
        """A replica was let have more requests at the last look, and may need more still."""
        self._servers: dict[str, Server] = {}
        self._by_key: dict[ServerKey, Server] = {}
        self._slots: dict[str, str] = {}
        self._ways: dict[str, bool] = {}
        """Those that are open, and whether they are guarded."""
        self._without: set[str] = set()
        """Replicas whose node has no raw sockets."""
        self._free: set[ServerKey] = set()

    @property
    def servers(self) -> tuple[Server, ...]:
        """All of them, also those that were left (`leave`) and still have requests."""
        return tuple(self._by_key.values())

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(self._slots.values())

    def slot_of(self, run_id: str) -> str | None:
        return self._slots.get(run_id)

    def server_at(self, key: ServerKey) -> Server | None:
        return self._by_key.get(key)

    def has(self, server: Server) -> bool:
        """Return whether this is the server of its replica still."""
        return self._servers.get(server.replica.id) is server

    def wants(self, run_id: str, replica: Replica) -> bool:
        service = self.wanted.get(run_id)
        return service is not None and replica in service.replicas

    def in_flight(self) -> dict[str, int]:
        """Return the requests at each replica that has any, or may have while it is drained."""
        counts = dict[str, int]()
        for server in self._by_key.values():
            id, known = server.replica.id, server.in_flight
            # HAProxy may have sent it a request between the last count and the order to drain.
            if server.is_drained and not server.counted:
                known = max(known, 1)
            if known:
                counts[id] = counts.get(id, 0) + known
        return counts

    # -- what HAProxy is told ---------------------------------------------------------------

    def withdraw(self) -> list[Command]:
        """Take the ways and replicas that are not wanted out of traffic."""
        commands: list[Command] = []
        ways = {way: one.is_guarded for one in self.wanted.values() for way in one.ways}
        for way, is_guarded in tuple(self._ways.items()):
            if ways.get(way) is not is_guarded:
                del self._ways[way]
                commands.append(UnsetWay(way, is_guarded))
        wanted = {replica.id for one in self.wanted.values() for replica in one.replicas}
        for id, server in self._servers.items():
            if id not in wanted and not server.is_drained:
                server.is_drained = True
                commands.append(DrainServer(server.key))
            elif id in wanted and server.is_drained and server.is_open:
                server.is_drained = False
                commands.append(OpenServer(server.key))
        return commands

    def limit_requests(self) -> list[Command]:
        """Let each replica have the requests that it has, and some new ones. So a burst waits in
        HAProxy, and a replica gets as many slow requests as come."""
        self.needs_more, commands = False, list[Command]()
        for server in self._servers.values():
            limit = (server.in_flight // NEW_REQUESTS + 1) * NEW_REQUESTS
            if limit != server.limit:
                self.needs_more |= limit > server.limit
                server.limit = limit
                commands.append(LimitServer(server.key, limit))
        return commands

    def eject(self, out_of: Callable[[Sequence[Replica]], Collection[str]]) -> list[Command]:
        """Send ejected replicas no requests, whether HAProxy or the agent saw their failures."""
        commands: list[Command] = []
        for server in self._servers.values():
            service = self.wanted.get(server.run_id)
            ejected = () if service is None else out_of(service.replicas)
            is_ejected = server.replica.id in ejected
            if is_ejected and server.is_open and not server.is_drained:
                server.is_open, server.is_ejected = False, True
                commands += self.close(server)
            elif server.is_ejected and not is_ejected:
                server.is_ejected = False
                commands += self.open(server)
        return commands

    def open_ways(self) -> list[Command]:
        """Open and close the ways of all services, as far as there are slots."""
        return [
            command
            for service in self.wanted.values()
            for command in self._set_ways(service, self._slot(service.run_id))
        ]

    def close(self, server: Server) -> list[Command]:
        """Take a server out of traffic, which is not open any more; its service may lose its
        ways."""
        if not self.has(server):
            return []
        service = self.wanted.get(server.run_id)
        ways = () if service is None else self._set_ways(service, server.key[0])
        return [CloseServer(server.key), *ways]

    def open(self, server: Server) -> list[Command]:
        """Let a server have requests again."""
        if not self.has(server) or server.is_drained:
            return []
        server.is_open = True
        return [OpenServer(server.key)]

    def _slot(self, run_id: str) -> str | None:
        if run_id not in self._slots:
            taken = set(self._slots.values())
            free = next((slot for slot in SLOTS if slot not in taken), None)
            if free is None:
                return None
            self._slots[run_id] = free
        return self._slots[run_id]

    def _set_ways(self, service: FastService, slot: str | None) -> Iterator[Command]:
        """Open the service's ways while it has an open server, and no replica that can have
        none: that one would get no requests."""
        ids = [replica.id for replica in service.replicas]
        serving = any(id in self._servers and self._servers[id].is_open for id in ids)
        is_fast = serving and self._without.isdisjoint(ids)
        for way in service.ways:
            if slot is not None and is_fast and way not in self._ways:
                self._ways[way] = service.is_guarded
                yield SetWay(way, slot, service.is_guarded)
            elif not (slot is not None and is_fast) and way in self._ways:
                yield UnsetWay(way, self._ways.pop(way))

    # -- replicas ---------------------------------------------------------------------------

    def without_server(self) -> list[tuple[str, Replica]]:
        """Return the replicas that need a server, each with its run, which has a slot."""
        return [
            (service.run_id, replica)
            for service in self.wanted.values()
            if self._slot(service.run_id) is not None
            for replica in service.replicas
            if replica.id not in self._servers
        ]

    def has_raw_socket(self, replica: Replica, has_one: bool) -> None:
        (self._without.discard if has_one else self._without.add)(replica.id)

    def set_free(self, keys: Iterable[ServerKey]) -> None:
        """Note the servers that nothing uses."""
        self._free = set(keys)

    def take_free(self, run_id: str, *, direct: bool = False) -> ServerKey | None:
        """Return a server of the run's slot that nothing uses, and give it to nobody else."""
        slot = self._slots.get(run_id)
        for name in DIRECT if direct else SERVERS:
            if slot is not None and (slot, name) in self._free:
                self._free.discard((slot, name))
                return slot, name
        return None

    def add(self, server: Server) -> None:
        self._servers[server.replica.id] = self._by_key[server.key] = server

    def server_of(self, replica: Replica) -> Server | None:
        return self._servers.get(replica.id)

    def leave(self, server: Server) -> list[Command]:
        """Let the server's replica have another one; this one ends with its last request."""
        if not self.has(server):
            return []
        del self._servers[server.replica.id]
        was_open, server.is_drained, server.counted = server.is_open, True, False
        return [DrainServer(server.key)] if was_open else []

    def drop(self, server: Server) -> None:
        """Forget a server that HAProxy does not use any more."""
        if self.has(server):
            del self._servers[server.replica.id]
        del self._by_key[server.key]

    def forget(self) -> None:
        """Forget all ways and slots: HAProxy has none. The servers are dropped one by one."""
        self._ways.clear()
        self._slots.clear()

    def tidy(self, also: Iterable[Replica]) -> list[Replica]:
        """Free the slots of runs that are gone. Return the replicas that are still of interest:
        those that are wanted or have a server, and `also`."""
        used = {server.run_id for server in self._by_key.values()}
        self._slots = {
            id: slot for id, slot in self._slots.items() if id in self.wanted or id in used
        }
        replicas = [replica for one in self.wanted.values() for replica in one.replicas]
        replicas += [*also, *(server.replica for server in self._by_key.values())]
        self._without &= {replica.id for replica in replicas}
        return replicas
