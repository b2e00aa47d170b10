"""The fast path: requests that HAProxy sends straight to replicas, past the agent.

A service has it while no request of its own needs a decision: no rate limit, no header to set, and
a replica to send to. Where it asks for a token, a token that was let in opens a door for some time,
and every other one goes to the agent. So does each request that HAProxy's configuration keeps back
(`gateway.haproxy`). A replica that fails once gets no requests until it has answered the agent
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from controller.links.base import LinkError
from controller.proxy.outliers import Outliers
from controller.proxy.view import Replica, Service
from gateway.haproxy import (
    NEW_REQUESTS,
    SERVERS,
    SLOTS,
    Haproxy,
    HaproxyAway,
    HaproxyRefused,
    Limits,
    ServerCounts,
)
from gateway.links import raw_socket
from gateway.schemas import GatewayNode, GatewayService, Snapshot
from gateway.served import GatewayTraffic
from gateway.ssh_forwards import ForwardFailed, SshForwards
from runner.client import PortStream, RunnerError, RunnerUnavailable

log = logging.getLogger(__name__)
LOOK_SECONDS = 1.0
SOON_LOOK_SECONDS = 0.1
AGAIN_SECONDS = 5.0
TRY_SECONDS = 10.0
LEFTOVER_SECONDS = 60.0
"""Requests that a killed agent left with HAProxy may take so long."""
_LINES = 500
"""Lines of HAProxy's log that are read before other work has its turn."""
_LINE_BYTES = 512


class Links(Protocol):
    """The ways to replicas (`gateway.links.NodeLinks`)."""

    def node(self, replica: Replica) -> GatewayNode: ...

    async def has_raw_socket(self, replica: Replica) -> bool: ...

    async def connect(self, replica: Replica) -> PortStream: ...


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
    for told in snapshot.services:
        service = serves(told.name)
        if service is None or not service.replicas or not _is_plain(told):
            continue
        schemes = ("https", "http") if told.https == "off" else ("https",)
        found[told.run_id] = FastService(
            run_id=told.run_id,
            ways=tuple(f"{one}|{told.host}" for one in (schemes if has_certificate else ("http",))),
            replicas=service.replicas,
            is_guarded=told.auth,
            eject_for=told.eject_for,
        )
    return found


def _is_plain(told: GatewayService) -> bool:
    return not (told.rate_limits or told.headers)


class _Server(msgspec.Struct, kw_only=True):
    """A replica as a server of HAProxy. `is_open`: it gets requests; `counted`: HAProxy told its
    counts since it was drained."""

    replica: Replica
    run_id: str
    slot: str
    name: str
    path: Path
    is_local: bool
    is_open: bool = True
    is_drained: bool = False
    is_ejected: bool = False
    counted: bool = False
    in_flight: int = 0
    requests: int = 0
    errors: int = 0
    limit: int = NEW_REQUESTS
    """It gets no more requests at once."""


class FastPath:
    """Keeps HAProxy in step with the services. `emptied` is called when the last request of a
    draining replica has ended; `place` returns the socket of a slot's server."""

    def __init__(
        self,
        haproxy: Haproxy,
        forwards: Callable[[Callable[[str], None]], SshForwards],
        links: Links,
        traffic: GatewayTraffic,
        emptied: Callable[[str], None],
        place: Callable[[str, str], Path],
        outliers: Outliers,
    ) -> None:
        self._haproxy = haproxy
        self._forwards = forwards(self._lost)
        self._links = links
        self._traffic = traffic
        self._emptied = emptied
        self._place = place
        self._outliers = outliers
        self._wanted: dict[str, FastService] = {}
        self._limits = Limits()
        self._slots: dict[str, str] = {}
        self._ways: dict[str, bool] = {}
        """Those that are open, and whether they are guarded."""
        self._servers: dict[str, _Server] = {}
        self._by_name: dict[tuple[str, str], _Server] = {}
        self._without: set[str] = set()
        """Replicas whose node has no raw sockets."""
        self._tasks: dict[Replica, asyncio.Task[None]] = {}
        self._free: set[tuple[str, str]] = set()
        """Slots and servers that nothing uses."""
        self._reserved: set[tuple[str, str]] = set()
        """Those whose sockets are being made or taken away."""
        self._clearing: set[asyncio.Task[None]] = set()
        self._said: dict[str, str] = {}
        self._is_known = False
        """HAProxy holds what is noted here."""
        self._life = ""
        self._rises = False
        """A replica was let have more requests at the last look, and may need more still."""
        self._is_closing = False
        now = asyncio.get_running_loop().time()
        self._leftovers_until: float | None = now + LEFTOVER_SECONDS
        self._lock = asyncio.Lock()
        self._news = asyncio.Event()

    # -- what the agent says ----------------------------------------------------------------

    async def update(self, wanted: dict[str, FastService], limits: Limits) -> None:
        """Serve this. When it returns, a replica that is not wanted gets no new requests."""
        if self._is_closing:
            return
        self._wanted = wanted
        async with self._lock:
            before, self._limits = self._limits, limits
            if self._is_known and before != self._limits:
                await self._guarded(self._set_limits())
            await self._guarded(self._withdraw())
        self._news.set()

    def changed(self, wanted: dict[str, FastService]) -> None:
        """Serve this soon."""
        if not self._is_closing:
            self._wanted = wanted
            self._news.set()

    def admitted(self, run_id: str, proof: str) -> None:
        """Let the token with this SHA-256 into the service for some time."""
        if run_id in self._slots and not self._is_closing:
            self._clear_away(self._open_door(run_id, proof))

    def revoked(self, proof: str) -> None:
        """Let the token with this SHA-256 into no service."""
        self._clear_away(self._close_doors(proof))

    async def _open_door(self, run_id: str, proof: str) -> None:
        async with self._lock:
            slot = self._slots.get(run_id)
            if slot is not None and self._is_known:
                await self._guarded(self._haproxy.open_door(slot, proof))

    async def _close_doors(self, proof: str) -> None:
        async with self._lock:
            for slot in self._slots.values():
                if self._is_known:
                    await self._guarded(self._haproxy.close_door(slot, proof))

    def in_flight(self) -> dict[str, int]:
        """Return the requests at each replica that has any, or may have while it is drained."""
        counts = {}
        for id, server in self._servers.items():
            known = server.in_flight
            if server.is_drained and not server.counted:
                known = max(known, 1)
            if known:
                counts[id] = known
        return counts

    async def run(self) -> None:
        """Keep HAProxy in step until cancelled."""
        while True:
            drains = any(server.is_drained for server in self._servers.values())
            soon = drains or self._rises
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SOON_LOOK_SECONDS if soon else LOOK_SECONDS):
                    await self._news.wait()
            self._news.clear()
            async with self._lock:
                await self._guarded(self._match())

    async def close(self, seconds: float) -> None:
        """Send all requests to the agent, and wait up to `seconds` for those in flight."""
        self._wanted, self._is_closing = {}, True
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        async with self._lock:
            await self._guarded(self._withdraw())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while self._servers:
                        await self._guarded(self._match())
                        await asyncio.sleep(SOON_LOOK_SECONDS)
        await asyncio.gather(*self._clearing, return_exceptions=True)
        await self._forwards.close()

    # -- HAProxy ----------------------------------------------------------------------------

    async def _guarded(self, doing: Coroutine[None, None, None]) -> None:
        """Do it. Without HAProxy there is no fast path, and nothing of it is in flight."""
        try:
            await doing
        except HaproxyAway as away:
            if self._is_known:
                log.warning("HAProxy is away: %s", away)
            await self._forget()
        except HaproxyRefused as refused:
            log.error("HAProxy is set anew, because it refused: %s", refused)
            self._is_known = False

    async def _forget(self) -> None:
        self._is_known = False
        self._ways.clear()
        self._slots.clear()
        for server in tuple(self._servers.values()):
            self._drop(server)

    def _drop(self, server: _Server) -> None:
        """Forget a server that HAProxy does not use any more."""
        del self._servers[server.replica.id]
        del self._by_name[(server.slot, server.name)]
        self._count(server, server.requests, server.errors, 0)
        key = (server.slot, server.name)
        self._reserved.add(key)
        self._clear_away(self._unlink(key, server.replica, server.path, is_local=server.is_local))
        self._emptied(server.replica.id)

    async def _begin(self) -> None:
        """Take away all that HAProxy has from an earlier life of the agent."""
        self._life = await self._haproxy.life()
        await self._haproxy.forget_ways()
        await self._forget()
        for one in await self._haproxy.counts():
            if not one.is_closed:
                await self._haproxy.close_server(one.slot, one.server)
        await self._set_limits()
        self._is_known = True

    async def _set_limits(self) -> None:
        await self._haproxy.set_limits(self._limits)

    async def _withdraw(self) -> None:
        """Take the ways and replicas that are not wanted out of traffic."""
        if not self._is_known:
            await self._begin()
        ways = {way: one.is_guarded for one in self._wanted.values() for way in one.ways}
        for way, is_guarded in tuple(self._ways.items()):
            if ways.get(way) is not is_guarded:
                await self._haproxy.unset_way(way, is_guarded=is_guarded)
                del self._ways[way]
        wanted = {replica.id for one in self._wanted.values() for replica in one.replicas}
        for id, server in self._servers.items():
            if id not in wanted and not server.is_drained:
                await self._haproxy.drain_server(server.slot, server.name)
                server.is_drained = True
            elif id in wanted and server.is_drained and server.is_open:
                await self._haproxy.open_server(server.slot, server.name)
                server.is_drained = False

    async def _match(self) -> None:
        await self._withdraw()
        await self._look()
        await self._set_request_limits()
        await self._set_ejected()
        for service in self._wanted.values():
            slot = self._slot(service.run_id)
            for replica in service.replicas:
                if slot is not None and self._needs_server(replica):
                    self._start(replica, self._prepare(service.run_id, replica))
            await self._set_ways(service, slot)
        used = {server.run_id for server in self._servers.values()}
        self._slots = {
            id: slot for id, slot in self._slots.items() if id in self._wanted or id in used
        }
        replicas = [replica for one in self._wanted.values() for replica in one.replicas]
        replicas += [*self._tasks, *(server.replica for server in self._servers.values())]
        await self._forwards.keep_nodes({replica.node_id for replica in replicas})
        ids = {replica.id for replica in replicas}
        self._without &= ids
        self._said = {id: said for id, said in self._said.items() if id in ids}

    def _slot(self, run_id: str) -> str | None:
        if run_id not in self._slots:
            taken = set(self._slots.values())
            free = next((slot for slot in SLOTS if slot not in taken), None)
            if free is None:
                return None
            self._slots[run_id] = free
        return self._slots[run_id]

    async def _set_ways(self, service: FastService, slot: str | None) -> None:
        """Open the service's ways while it has an open server, and no replica that can have
        none: that one would get no requests."""
        ids = [replica.id for replica in service.replicas]
        serving = any(id in self._servers and self._servers[id].is_open for id in ids)
        is_fast = slot is not None and serving and self._without.isdisjoint(ids)
        for way in service.ways:
            if is_fast and way not in self._ways:
                assert slot is not None
                await self._haproxy.set_way(way, slot, is_guarded=service.is_guarded)
                self._ways[way] = service.is_guarded
            elif not is_fast and way in self._ways:
                await self._haproxy.unset_way(way, is_guarded=self._ways.pop(way))

    async def _look(self) -> None:
        """Read the counts; remove servers that are drained and have no requests left."""
        counts = {(one.slot, one.server): one for one in await self._haproxy.counts()}
        if await self._haproxy.life() != self._life:
            log.warning("HAProxy was started again; it is set anew")
            await self._begin()
            return
        for key, server in list(self._by_name.items()):
            self._note(server, counts[key])
            if server.is_drained and not server.in_flight:
                server.is_open = False
                await self._haproxy.close_server(server.slot, server.name)
                self._drop(server)
        others = {key: one for key, one in counts.items() if key not in self._by_name}
        self._free = {key for key, one in others.items() if one.is_unused} - self._reserved
        if self._leftovers_until is not None:
            in_use = any(one.in_flight for one in others.values())
            if not in_use or asyncio.get_running_loop().time() > self._leftovers_until:
                self._leftovers_until = None
                self._clear_away(self._forwards.end_leftovers())

    async def _set_request_limits(self) -> None:
        """Let each replica have the requests that it has, and some new ones. So a burst waits in
        HAProxy, and a replica gets as many slow requests as come."""
        self._rises = False
        for server in tuple(self._servers.values()):
            limit = (server.in_flight // NEW_REQUESTS + 1) * NEW_REQUESTS
            if limit != server.limit:
                self._rises |= limit > server.limit
                await self._haproxy.limit_server(server.slot, server.name, limit)
                server.limit = limit

    def _note(self, server: _Server, counts: ServerCounts) -> None:
        was_busy = server.in_flight > 0 or not server.counted
        self._count(server, counts.requests, counts.errors, counts.in_flight)
        server.counted = server.is_drained
        if server.is_drained and was_busy and not server.in_flight:
            self._emptied(server.replica.id)

    def _count(self, server: _Server, requests: int, errors: int, in_flight: int) -> None:
        self._traffic.count_elsewhere(
            server.run_id,
            server.replica.group,
            server.replica.id,
            requests=requests - server.requests,
            errors=errors - server.errors,
            in_flight=in_flight,
        )
        server.requests, server.errors, server.in_flight = requests, errors, in_flight

    # -- replicas ---------------------------------------------------------------------------

    def _needs_server(self, replica: Replica) -> bool:
        is_new = replica.id not in self._servers and replica not in self._tasks
        return is_new and not self._is_closing

    def _start(self, replica: Replica, doing: Coroutine[None, None, None]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            if self._tasks.get(replica) is task:
                del self._tasks[replica]

        self._tasks[replica] = asyncio.create_task(doing, name=f"fast path to {replica.id}")
        self._tasks[replica].add_done_callback(ended)

    def _is_wanted(self, run_id: str, replica: Replica) -> bool:
        service = self._wanted.get(run_id)
        return service is not None and replica in service.replicas

    async def _prepare(self, run_id: str, replica: Replica) -> None:
        """Make the replica a server."""
        try:
            node = self._links.node(replica)
            async with asyncio.timeout(TRY_SECONDS):
                has_one = await self._links.has_raw_socket(replica)
            (self._without.discard if has_one else self._without.add)(replica.id)
            if has_one:
                await self._add(run_id, replica, node)
                self._said.pop(replica.id, None)
                return
        except (LinkError, ForwardFailed, OSError) as error:
            if self._said.get(replica.id) != str(error):
                self._said[replica.id] = str(error)
                log.warning("no fast path to replica %s: %s", replica.id, error or "no answer")
        await asyncio.sleep(AGAIN_SECONDS)

    async def _add(self, run_id: str, replica: Replica, node: GatewayNode) -> None:
        """Raises ForwardFailed, OSError."""
        slot = self._slots.get(run_id)
        name = next((one for one in SERVERS if (slot, one) in self._free), None)
        if slot is None or name is None:
            return
        key, path = (slot, name), self._place(slot, name)
        self._free.discard(key)
        self._reserved.add(key)
        try:
            await self._link(replica, path, node)
        except BaseException:
            self._reserved.discard(key)
            raise
        async with self._lock:
            if not self._is_known or not self._is_wanted(run_id, replica):
                self._clear_away(self._unlink(key, replica, path, is_local=node.local))
                return
            self._reserved.discard(key)
            server = _Server(
                replica=replica,
                run_id=run_id,
                slot=slot,
                name=name,
                path=path,
                is_local=node.local,
            )
            self._servers[replica.id] = self._by_name[key] = server
            await self._guarded(self._begin_counts(server))
        self._news.set()

    async def _begin_counts(self, server: _Server) -> None:
        for one in await self._haproxy.counts():
            if (one.slot, one.server) == (server.slot, server.name):
                server.requests, server.errors = one.requests, one.errors
        await self._haproxy.limit_server(server.slot, server.name, server.limit)
        await self._haproxy.open_server(server.slot, server.name)

    async def _link(self, replica: Replica, path: Path, node: GatewayNode) -> None:
        """Let the socket lead to the replica. Raises ForwardFailed."""
        if node.local:
            await asyncio.to_thread(_lead, path, raw_socket(replica.socket))
        else:
            await self._forwards.open(node, raw_socket(replica.socket), path)

    async def _unlink(
        self, key: tuple[str, str], replica: Replica, path: Path, *, is_local: bool
    ) -> None:
        if is_local:
            await asyncio.to_thread(path.unlink, missing_ok=True)
        else:
            remote = raw_socket(replica.socket)
            await self._forwards.close_one(replica.node_id, remote, path)
        self._reserved.discard(key)

    def _clear_away(self, doing: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(doing, name="clear away")
        self._clearing.add(task)
        task.add_done_callback(self._clearing.discard)

    def _lost(self, node_id: str) -> None:
        """The connection to a node broke, and its sockets are gone."""
        for server in self._servers.values():
            if server.replica.node_id == node_id and not server.is_local:
                self._suspect(server, is_gone=True)

    def _suspect(self, server: _Server, *, is_gone: bool = False) -> None:
        """Send it no requests until it has answered."""
        if server.is_open and not server.is_drained:
            server.is_open = False
            self._start(server.replica, self._heal(server, is_gone=is_gone))

    async def _heal(self, server: _Server, *, is_gone: bool) -> None:
        async with self._lock:
            await self._guarded(self._close(server))
        while not is_gone and self._servers.get(server.replica.id) is server:
            if await self._answers(server.replica):
                is_gone = not await self._is_there(server.path)
                if not is_gone:
                    async with self._lock:
                        await self._guarded(self._open(server))
                    return
            await asyncio.sleep(LOOK_SECONDS)
        async with self._lock:
            if self._servers.get(server.replica.id) is server:
                server.is_drained = True
        self._news.set()

    async def _close(self, server: _Server) -> None:
        if self._servers.get(server.replica.id) is server:
            await self._haproxy.close_server(server.slot, server.name)
            service = self._wanted.get(server.run_id)
            if service is not None:
                await self._set_ways(service, server.slot)

    async def _open(self, server: _Server) -> None:
        if self._servers.get(server.replica.id) is server and not server.is_drained:
            await self._haproxy.open_server(server.slot, server.name)
            server.is_open = True
            self._news.set()

    async def _answers(self, replica: Replica) -> bool:
        try:
            async with asyncio.timeout(TRY_SECONDS):
                stream = await self._links.connect(replica)
        except (LinkError, RunnerError, RunnerUnavailable, TimeoutError):
            return False
        stream.writer.close()
        return True

    async def _is_there(self, path: Path) -> bool:
        try:
            _, writer = await asyncio.open_unix_connection(path)
        except OSError:
            return False
        writer.close()
        return True

    # -- the log of HAProxy -----------------------------------------------------------------

    def heard(self, lines: Iterable[bytes]) -> None:
        """Take lines of HAProxy's log: slot, server, milliseconds, how it ended, status. The
        configuration of an older release has no status."""
        for line in lines:
            cells = line.split()
            if len(cells) not in (4, 5):
                continue
            server = self._by_name.get((cells[0].decode(), cells[1].decode()))
            if server is None:
                continue
            if cells[2].isdigit():
                seconds = int(cells[2]) / 1000
                self._traffic.took_elsewhere(server.run_id, server.replica.group, seconds)
            if cells[3].startswith(b"S"):
                self._suspect(server)
            elif cells[-1].isdigit():
                self._judge(server, int(cells[-1]))

    def _judge(self, server: _Server, status: int) -> None:
        """Count an answer; eject a replica that only fails."""
        service = self._wanted.get(server.run_id)
        if service is not None and self._outliers.note(
            server.replica.id, service.replicas, service.eject_for, failed=status >= 500
        ):
            self._news.set()

    async def _set_ejected(self) -> None:
        """Send ejected replicas no requests, whether HAProxy or the agent saw their failures."""
        for server in tuple(self._servers.values()):
            service = self._wanted.get(server.run_id)
            ejected = () if service is None else self._outliers.out_of(service.replicas)
            is_ejected = server.replica.id in ejected
            if is_ejected and server.is_open and not server.is_drained:
                server.is_open, server.is_ejected = False, True
                await self._close(server)
            elif server.is_ejected and not is_ejected:
                server.is_ejected = False
                await self._open(server)


def _lead(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


class LogSocket:
    """The socket at which HAProxy says a line for each request. Raises OSError when it is made."""

    def __init__(self, path: Path, heard: Callable[[Iterable[bytes]], None]) -> None:
        path.unlink(missing_ok=True)
        self._heard = heard
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(path))
        path.chmod(0o600)
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def _read(self) -> None:
        lines = []
        with contextlib.suppress(BlockingIOError):
            for _ in range(_LINES):
                lines.append(self._socket.recv(_LINE_BYTES))
        self._heard(lines)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
