"""Who stands before the socket: lets the right peers in, and takes each to what it came for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runner import relay
from runner.sockets import Peers, is_welcome

_MakeProtocol = Callable[[], asyncio.BaseProtocol]


class Door:
    """`http` makes protocols for requests; those for a port of the job go to `relayed`."""

    def __init__(self, peers: Peers, http: _MakeProtocol, relayed: relay.Relay) -> None:
        self._peers = peers
        self._http = http
        self._relayed = relayed
        self._waiting: set[asyncio.Transport] = set()

    def make_protocol(self) -> asyncio.Protocol:
        return _Visitor(self)

    def close(self) -> None:
        """Sends away who has not said yet what it wants, and ends what is relayed."""
        for transport in tuple(self._waiting):
            transport.abort()
        self._relayed.close()

    def welcomes(self, transport: asyncio.Transport) -> bool:
        if not is_welcome(transport.get_extra_info("socket"), self._peers):
            return False
        self._waiting.add(transport)
        return True

    def gone(self, transport: asyncio.Transport) -> None:
        self._waiting.discard(transport)

    def lead(self, transport: asyncio.Transport, said: bytes) -> None:
        self._waiting.discard(transport)
        for_port = said.startswith(relay.BEGIN)
        protocol = self._relayed.make_protocol() if for_port else self._http()
        assert isinstance(protocol, asyncio.Protocol)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(said)


class _Visitor(asyncio.Protocol):
    """An unwelcome one is cut off before it can send a byte."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._transport: asyncio.Transport | None = None
        self._said = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if not self._door.welcomes(transport):
            transport.abort()
            return
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        self._said += data
        if len(self._said) >= len(relay.BEGIN) or not relay.BEGIN.startswith(self._said):
            self._door.lead(self._transport, self._said)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._door.gone(self._transport)
