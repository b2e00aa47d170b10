"""One gateway's session: it keeps the agent connected, and its snapshot up to date.

The agent tells each second what it counted, so a link that is silent for longer is gone. Each
connection begins with a whole snapshot; what was confirmed before is not known again until the
agent confirms it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from common.links.errors import LinkError
from controller.aio import Backoff
from controller.clock import Chance
from controller.gateways.link import GatewayConnection, GatewayLink
from controller.pipelines.performers.service_replicas import NotRegistered
from controller.store.base import Gateway
from controller.store.errors import StoreError
from fairlead.wire.gateway import (
    PROTOCOL,
    Answer,
    Applied,
    Certificates,
    Claim,
    Claimed,
    Counts,
    FromAgent,
    FromController,
    Hello,
    HostCertificate,
    InFlight,
    Question,
    Reached,
    Snapshot,
    Wake,
)

log = logging.getLogger(__name__)
FIRST_WAIT_SECONDS = 0.1
MAX_WAIT_SECONDS = 10.0
SILENCE_SECONDS = 15.0
LOOK_AGAIN_SECONDS = 5.0
"""Seconds after which the snapshot is compared again: addresses of nodes change without a turn."""
CLAIM_SECONDS = 10.0
AWAY_SECONDS = 10.0
"""An agent that restarts is back sooner; a service that ends waits no longer for its gateway."""


class GatewayAway(NotRegistered):
    """The gateway's agent is not connected, or did not answer; the message says why."""


class HostTaken(Exception):
    """The gateway serves this host name for another run."""


class Owner(Protocol):
    """What a session asks of the one that keeps it. `controller_id`: of its installation."""

    @property
    def controller_id(self) -> str: ...

    def snapshot(self, gateway: Gateway, version: int) -> Snapshot: ...

    def answer(self, question: Question) -> Answer: ...

    def wake(self, run_id: str) -> None: ...

    def count(self, gateway: str, counts: Counts) -> None: ...

    def is_other(self, served: str, gateway: str) -> bool:
        """Return whether `served` is another gateway of this controller."""

    async def key_seen(self, gateway: str, key: str) -> None:
        """The agent logs in at nodes by this public key."""


class GatewaySession:
    """`is_up`: the agent is connected. `message`: why it is not, or what it could not apply."""

    def __init__(self, gateway: Gateway, link: GatewayLink, owner: Owner, chance: Chance) -> None:
        self.gateway = gateway
        self.is_up = False
        self.message: str | None = None
        self.version: str | None = None
        self.refused: Applied | None = None
        """What the agent could not apply, and why."""
        self.certificates: tuple[HostCertificate, ...] = ()
        self.holds: Snapshot | None = None
        """The snapshot that the agent has confirmed in this connection."""
        self._link = link
        self._owner = owner
        self._backoff = Backoff(FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS, chance.jitter)
        self._connection: GatewayConnection | None = None
        self._sent: dict[int, Snapshot] = {}
        self._in_flight = InFlight(version=0)
        self._reached: dict[str, str] | None = None
        """Why the agent cannot reach each replica; empty: it can. None: it does not try them."""
        self._claims: dict[int, asyncio.Future[str | None]] = {}
        self._last_claim = 0
        self._look = asyncio.Event()
        self._changed = asyncio.Event()
        self._down_at = asyncio.get_running_loop().time()

    @property
    def has_settings(self) -> bool:
        """Whether the agent has answered to the gateway's present domain and certificate."""
        held = self.holds
        if held is None:
            return False
        own = self.gateway
        return (held.domain, held.certificate) == (own.domain, own.certificate)

    # -- what others ask for ----------------------------------------------------------------

    def look(self) -> None:
        """Compare the snapshot with what the gateway has; something may have changed."""
        self._look.set()

    async def until(self, holds: Callable[[GatewaySession], bool]) -> None:
        """Wait until this is true of the session."""
        while not holds(self):
            await self._changed.wait()

    def serves(self, attempt_id: str) -> bool:
        """Return whether the agent has confirmed that it sends requests to this replica, and has
        reached it."""
        return self._knows(attempt_id) and self.why_unreached(attempt_id) == ""

    def why_unreached(self, attempt_id: str) -> str | None:
        """Return why the agent cannot reach this replica; empty: it can; None: it is trying."""
        return "" if self._reached is None else self._reached.get(attempt_id)

    def _knows(self, attempt_id: str) -> bool:
        services = () if self.holds is None else self.holds.services
        return any(one.id == attempt_id for service in services for one in service.replicas)

    def has_left(self, attempt_id: str) -> bool:
        """Return whether the agent sends no more requests there, and none is in flight."""
        if self.holds is None or self._in_flight.version < self.holds.version:
            return False
        return not self._knows(attempt_id) and not self._in_flight.replicas.get(attempt_id)

    async def left(self, attempt_id: str, gives_up: Callable[[], bool]) -> None:
        """Return once the agent `has_left` this replica, or has been away for AWAY_SECONDS and the
        caller gives up."""
        while not self.has_left(attempt_id):
            was_up, patience = self.is_up, self._patience()
            if not was_up and patience <= 0 and gives_up():
                return
            wait = None if was_up else patience if patience > 0 else LOOK_AGAIN_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed_of(attempt_id, was_up=was_up)

    async def _changed_of(self, attempt_id: str, *, was_up: bool) -> None:
        """Wait until the agent has left this replica, or came or went."""
        await self.until(lambda one: one.is_up is not was_up or one.has_left(attempt_id))

    def _patience(self) -> float:
        """Return how many seconds are left until an agent that is away counts as gone."""
        return self._down_at + AWAY_SECONDS - asyncio.get_running_loop().time()

    async def claim(self, host: str) -> None:
        """Reserve a host name for a submission. Raises GatewayAway, HostTaken."""
        if self._connection is None:
            raise GatewayAway(self.message or "its agent is not connected")
        self._last_claim += 1
        number = self._last_claim
        answer = self._claims[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(CLAIM_SECONDS):
                await self._connection.send(Claim(id=number, host=host))
                error = await answer
        except TimeoutError:
            raise GatewayAway(f"its agent did not answer within {CLAIM_SECONDS:g} s") from None
        except LinkError as lost:
            raise GatewayAway(str(lost)) from None
        finally:
            # An answer that comes later finds no claim of its number, and is dropped.
            del self._claims[number]
        if error is not None:
            raise HostTaken(error)

    async def send(self, message: FromController) -> None:
        """Send if the agent is connected; it hears the rest in its next snapshot."""
        if self._connection is not None:
            with contextlib.suppress(LinkError):
                await self._connection.send(message)

    # -- the connection ---------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the agent connected, until cancelled."""
        while True:
            try:
                async with self._link.open() as connection:
                    await self._live(connection)
                self.message = "its agent closed the connection"
            except LinkError as error:
                self.message = str(error)
            except Exception as error:
                log.exception("the session of gateway %s failed", self.gateway.name)
                self.message = f"the session failed: {error}"
            self._tell()
            await self._backoff.wait()

    async def _live(self, connection: GatewayConnection) -> None:
        pushing = asyncio.create_task(self._push(connection), name=f"gateway {self.gateway.name}")
        try:
            async with contextlib.aclosing(connection.messages()) as messages:
                while True:
                    try:
                        async with asyncio.timeout(SILENCE_SECONDS):
                            message = await anext(messages, None)
                    except TimeoutError:
                        raise LinkError(f"its agent was silent for {SILENCE_SECONDS:g} s") from None
                    if message is None:
                        return
                    await self._heard(connection, message)
        finally:
            self._down()
            pushing.cancel()
            await asyncio.gather(pushing, return_exceptions=True)

    def _down(self) -> None:
        self.is_up = False
        self._down_at = asyncio.get_running_loop().time()
        self.holds = None
        self._connection = None
        self._sent.clear()
        # Else a drain would take the last word of an agent that is lost for the present.
        self._in_flight = InFlight(version=0)
        self._reached = self.refused = None
        for claim in self._claims.values():
            if not claim.done():
                claim.set_exception(LinkError("the connection to its agent was lost"))

    async def _push(self, connection: GatewayConnection) -> None:
        """Send each snapshot that differs from the one before."""
        version, last = 0, None
        await self.until(lambda session: session.is_up)
        while True:
            # Before the snapshot is made: what changes while it is being sent is looked at again.
            self._look.clear()
            snapshot = self._owner.snapshot(self.gateway, version + 1)
            if last is None or msgspec.structs.replace(snapshot, version=version) != last:
                version, last = version + 1, snapshot
                self._sent[version] = snapshot
                try:
                    await connection.send(snapshot)
                # The reader of this connection ends the session, and says why.
                except LinkError:
                    return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_SECONDS):
                    await self._look.wait()

    async def _heard(self, connection: GatewayConnection, message: FromAgent) -> None:
        match message:
            case Hello():
                await self._greeted(connection, message)
            case Applied():
                self._applied(message)
            case Claimed():
                claim = self._claims.get(message.id)
                # A caller that has waited long enough has cancelled it.
                if claim is not None and not claim.done():
                    claim.set_result(message.error)
            case Question():
                await connection.send(self._owner.answer(message))
            case Counts():
                self._owner.count(self.gateway.name, message)
            case InFlight():
                self._in_flight = message
            case Reached():
                self._reached = message.replicas
            case Certificates():
                self.certificates = message.hosts
            case Wake():
                self._owner.wake(message.run_id)
        self._tell()

    async def _greeted(self, connection: GatewayConnection, hello: Hello) -> None:
        if hello.protocol != PROTOCOL:
            raise LinkError(
                f"its agent {hello.version} speaks another protocol ({hello.protocol}, not "
                f"{PROTOCOL}): upgrade the older of the two"
            )
        if hello.controller not in ("", self._owner.controller_id):
            raise LinkError(
                f"its agent serves the gateway {hello.serves} of another controller; remove the "
                "agent's folder there, and start it again, if that one is gone"
            )
        if hello.serves is not None and self._owner.is_other(hello.serves, self.gateway.name):
            raise LinkError(
                f"its agent serves the gateway {hello.serves}; a gateway needs a machine of its own"
            )
        try:
            await self._owner.key_seen(self.gateway.name, hello.key)
        except StoreError as error:
            raise LinkError(f"its key cannot be stored: {error}") from error
        self._connection, self.version = connection, hello.version
        self.is_up, self.message = True, None
        self._reached = {} if hello.tries_replicas else None
        self._backoff.reset()

    def _applied(self, applied: Applied) -> None:
        self.holds = self._sent.get(applied.version, self.holds)
        self.message = applied.error
        self.refused = None if applied.error is None else applied
        for version in [one for one in self._sent if one < applied.version]:
            del self._sent[version]

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
