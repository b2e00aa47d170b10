"""A gateway's agent that a test commands, and the rules that it keeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from common.links.errors import LinkError
from controller.gateways.link import GatewayConnection
from controller.gateways.session import CLAIM_SECONDS
from controller.lifecycle.inventory import NodeAddress
from controller.store.base import Gateway
from fairlead.wire.gateway import (
    AGENT_SOCKET,
    PROTOCOL,
    Answer,
    Applied,
    Certificate,
    Claim,
    Claimed,
    Counts,
    FromAgent,
    FromController,
    Hello,
    InFlight,
    Reached,
    Revoked,
    Snapshot,
)

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJustForTests00000000000000000000000000000"
__all__ = ["CLAIM_SECONDS", "FakeGateway", "a_gateway"]


def a_gateway(name: str = "main", *, is_default: bool = False, kind: str = "internal") -> Gateway:
    return Gateway(
        name=name,
        domain=f"{name}.example.com",
        address=NodeAddress(shim_socket=AGENT_SOCKET, host="gate", host_key="ssh-ed25519 AAAA"),
        certificate=Certificate(kind=kind),
        is_default=is_default,
        created_at=1.0,
    )


class FakeGateway:
    """One agent (`GatewayLink`). It applies each snapshot at once, unless it `hesitates`.

    `is_away`: nothing answers. `taken`: host names of others. `in_flight` are the requests at each
    replica; `tell_in_flight` says them again after a change. `unreachable`: why it cannot reach
    some replicas, and `is_blind`: it reaches no further one; `tell_reached` says it again.
    `refusals`: why it cannot use some kinds of certificates.
    """

    def __init__(self) -> None:
        self.is_away = False
        self.hesitates = False
        self.protocol = PROTOCOL
        self.key = KEY
        self.controller = ""
        self.gateway: str | None = None
        self.snapshots: list[Snapshot] = []
        self.confirmed: tuple[str, ...] = ()
        """The replicas to which it sends requests."""
        self.claims: list[str] = []
        self.taken: set[str] = set()
        self.answers: list[Answer] = []
        self.revoked: list[str] = []
        self.in_flight: dict[str, int] = {}
        self.unreachable: dict[str, str] = {}
        self.is_blind = False
        self.reached: set[str] = set()
        """The replicas that it has reached at some time."""
        self.refusals: dict[str, str] = {}
        self.opened = 0
        self._says: asyncio.Queue[FromAgent | None] = asyncio.Queue()

    @property
    def serves(self) -> tuple[str, ...]:
        """The ids of the replicas in the newest snapshot."""
        services = self.snapshots[-1].services if self.snapshots else ()
        return tuple(one.id for service in services for one in service.replicas)

    def say(self, message: FromAgent) -> None:
        self._says.put_nowait(message)

    def tell_in_flight(self) -> None:
        version = self.snapshots[-1].version if self.snapshots else 0
        self.say(InFlight(version=version, replicas=dict(self.in_flight)))

    def tell_reached(self) -> None:
        if not self.is_blind:
            self.reached.update(id for id in self.serves if id not in self.unreachable)
        why = self.unreachable
        found = {
            id: "" if id in self.reached else why.get(id, "its node cannot be reached")
            for id in self.serves
        }
        self.say(Reached(replicas=found))

    def apply(self) -> None:
        """Confirm the newest snapshot."""
        self.confirmed = self.serves
        newest = self.snapshots[-1]
        why = self.refusals.get(newest.certificate.kind)
        field = None if why is None else "certificate"
        self.say(Applied(version=newest.version, error=why, field=field))
        self.tell_in_flight()
        self.tell_reached()

    def apply_newest(self) -> None:
        """Confirm the newest snapshot, if there is any."""
        if self.snapshots:
            self.apply()

    def hang_up(self) -> None:
        self._says.put_nowait(None)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[GatewayConnection]:
        if self.is_away:
            raise LinkError("nothing answers there")
        self.opened += 1
        self._says = asyncio.Queue()
        hello = Hello(
            protocol=self.protocol,
            version="1",
            key=self.key,
            controller=self.controller,
            serves=self.gateway,
            tries_replicas=True,
        )
        self.say(hello)
        self.say(Counts())
        yield self

    async def send(self, message: FromController) -> None:
        match message:
            case Snapshot():
                self.snapshots.append(message)
                if not self.hesitates:
                    self.apply()
            case Claim():
                self.claims.append(message.host)
                is_taken = message.host in self.taken
                error = f"{message.host} is served for another controller" if is_taken else None
                self.say(Claimed(id=message.id, error=error))
            case Answer():
                self.answers.append(message)
            case Revoked():
                self.revoked.append(message.digest)

    async def messages(self) -> AsyncGenerator[FromAgent, None]:
        while (message := await self._says.get()) is not None:
            yield message
