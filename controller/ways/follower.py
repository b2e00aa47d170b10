"""The follower's end of its session with the leader: what it hears, and what it counts.

It begins again at the next leader. Until then the follower goes on with what it heard last.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec
from msgspec.structs import replace

from common.proxy.headers import CLIENT, head_of
from common.proxy.upstream import ReplicaConnection, UpstreamError
from common.proxy.view import Replica, Service
from controller.forwarding.follower_links import BY_ITSELF, WAYS_PATH
from controller.forwarding.leader_links import LeaderLinks, Link, NobodyLeads, NoLink
from controller.relay import while_it_leads
from controller.ways.messages import (
    COUNT_SECONDS,
    FOLLOWER,
    FROM_LEADER,
    MAX_GROUPS,
    SILENCE_SECONDS,
    Beat,
    Counted,
    FromLeader,
    Lines,
    ServicesChanged,
    encoded,
)
from fairlead.wire.gateway import GatewayNode, GroupCounts

log = logging.getLogger(__name__)

KEPT_SECONDS = 60.0
"""So long a follower goes on with what it heard, after the end of its session."""
RETRY_SECONDS = 0.2
LINK_SECONDS = 30.0
REFUSED_SECONDS = 30.0
"""A leader that gives no session, one of an earlier version, is asked again after this time."""
WAIT_SECONDS = 5.0
MAX_LINE = 64 << 20


class KnownServices:
    """The services that this follower can reach wholly (`common.proxy.view.Services`). `now`:
    seconds that only grow."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._by_run: dict[str, Service] = {}
        self._by_name: dict[str, Service] = {}
        self._kept_until = float("-inf")
        self._changed = asyncio.Event()

    def hear(self, message: ServicesChanged) -> None:
        """Keep this. Sockets that the leader does not name stay: it learns them again after its
        start, and they hold for as long as their attempts live."""
        known = self._by_run
        replaced = {
            one.run_id: _with_sockets(one, known.get(one.run_id)) for one in message.services
        }
        before = {} if message.begins else known
        kept = {id: one for id, one in before.items() if id not in message.gone}
        self._by_run = {**kept, **replaced}
        self._by_name = {one.name: one for one in self._by_run.values() if _is_reached(one)}
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def keep(self) -> None:
        """The session lives: what was heard holds from now on for `KEPT_SECONDS`."""
        self._kept_until = self._now() + KEPT_SECONDS

    def forget(self) -> None:
        self._by_run, self._by_name = {}, {}

    def find(self, name: str) -> Service | None:
        return self._by_name.get(name) if self._now() < self._kept_until else None

    def all(self) -> Iterable[Service]:
        # In the order of their submission, as at the leader: ids grow with time.
        found = sorted(self._by_name.values(), key=lambda one: one.run_id)
        return found if self._now() < self._kept_until else []

    def wake(self, run_id: str) -> None:
        """A service that sleeps is the leader's."""

    async def changed(self, run_id: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS):
                await self._changed.wait()


def _is_reached(service: Service) -> bool:
    """Return whether all replicas are reached. Only the leader counts requests of all clients, so
    it keeps services with rate limits."""
    return (
        bool(service.replicas)
        and all(replica.socket for replica in service.replicas)
        and not service.rate_limits
    )


def _with_sockets(service: Service, known: Service | None) -> Service:
    sockets = {one.id: one.socket for one in (() if known is None else known.replicas)}

    def with_socket(replica: Replica) -> Replica:
        return replace(replica, socket=replica.socket or sockets.get(replica.id, ""))

    return replace(service, replicas=tuple(map(with_socket, service.replicas)))


class Carried(Protocol):
    """What this follower carries."""

    def in_flight(self) -> dict[str, int]:
        """Return how many requests each replica has."""

    def take(self) -> tuple[GroupCounts, ...]:
        """Return the counts since the last call."""

    def ejected(self) -> dict[str, float]: ...


class _Refused(Exception):
    """The leader gives no session: it is of an earlier version."""


class WaysSession:
    """Keeps a session with the controller that leads. `nodes` is called with those that
    replicas are on."""

    def __init__(
        self,
        links: LeaderLinks,
        services: KnownServices,
        nodes: Callable[[Iterable[GatewayNode]], None],
        carried: Carried,
    ) -> None:
        self._links = links
        self._services = services
        self._nodes = nodes
        self._carried = carried
        self._name = secrets.token_hex(8)
        self._version = 0
        self._must_send = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._live(await self._links.get(LINK_SECONDS))
            except (NobodyLeads, NoLink):
                pass
            except (UpstreamError, ConnectionError, TimeoutError, ValueError) as error:
                log.debug("the session with the leader ended: %s", error)
            except _Refused:
                self._services.forget()
                await asyncio.sleep(REFUSED_SECONDS)
            await asyncio.sleep(RETRY_SECONDS)

    def emptied(self, replica_id: str) -> None:
        """The last request of this replica has ended: the leader may wait for that."""
        self._must_send.set()

    async def _live(self, link: Link) -> None:
        """Raises what ends it."""
        connection = link.connection
        sender: asyncio.Task[None] | None = None
        try:
            await connection.send(self._request(link))
            head = await while_it_leads(connection.answer("GET"), link.over)
            if head.status != 200:
                # Else aiohttp waits for the rest of the body, for seconds after the connection's
                # end.
                await connection.send(b"0\r\n\r\n")
                if head.status == 404:
                    raise _Refused
                return
            self._version = 0
            # What was counted while nobody led would look like the work of one second.
            self._carried.take()
            sender = asyncio.create_task(self._send_on(connection), name="ways: sends")
            lines = Lines(MAX_LINE)
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    piece = await while_it_leads(connection.read(), link.over)
                if not piece:
                    return
                for line in lines.whole(piece):
                    self._hear(line)
        except msgspec.MsgspecError as error:
            # One of another version, whose words this one does not know.
            raise _Refused from error
        finally:
            connection.close()
            if sender is not None:
                sender.cancel()
                await asyncio.gather(sender, return_exceptions=True)

    def _request(self, link: Link) -> bytes:
        asked = [
            ("Host", link.host),
            (CLIENT, BY_ITSELF),
            (FOLLOWER, self._name),
            ("Transfer-Encoding", "chunked"),
        ]
        return head_of("GET", WAYS_PATH, asked)

    def _hear(self, line: bytes) -> None:
        message: FromLeader = FROM_LEADER.decode(line)
        if self._version == 0 and not isinstance(message, ServicesChanged):
            return
        self._services.keep()
        match message:
            case ServicesChanged():
                self._services.hear(message)
                if message.nodes is not None:
                    self._nodes(message.nodes)
                self._version = message.version
                self._must_send.set()
            case Beat():
                pass

    async def _send_on(self, connection: ReplicaConnection) -> None:
        # A broken connection ends the reading side too, which begins the session again.
        with contextlib.suppress(UpstreamError):
            while True:
                for counted in self._counted():
                    line = encoded(counted)
                    await connection.send(b"%x\r\n%s\r\n" % (len(line), line))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(COUNT_SECONDS):
                        await self._must_send.wait()
                self._must_send.clear()

    def _counted(self) -> Iterable[Counted]:
        version, in_flight = self._version, self._carried.in_flight()
        groups, ejected = self._carried.take(), self._carried.ejected()
        # One at least: it is a sign of life, too.
        for start in range(0, len(groups) or 1, MAX_GROUPS):
            yield Counted(
                version=version,
                in_flight=in_flight,
                groups=groups[start : start + MAX_GROUPS],
                ejected=ejected,
            )
