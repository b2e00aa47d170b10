"""The ways to exposed ports: one SSH connection to each node, opened when a request needs it.

It logs in as the node's user for gateways, who may open exposed sockets and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Protocol

import asyncssh
import msgspec

from common.links.errors import LinkError, why_unreachable
from common.links.ssh import Advice, SshLogin
from common.links.ssh_http import open_stream
from common.streams import PortStream, SocketUnreachable, StreamReader, StreamWriter
from fairlead.wire.errors import AgentError
from fairlead.wire.gateway import DirectAnswer, DirectQuestion, GatewayNode

LINGER_SECONDS = 300.0
"""A connection to a node without replicas is kept for this time, which is longer than a drain."""
OK = b"ok\n"
"""The first bytes of an exposed socket when its port answers (`fairlead.wire.shim.EXPOSED_OK`)."""
_ADVICE = Advice(
    own_key="refused the key by which exposed ports are reached: its sshd is not set up for "
    "gateways; `fairlead node install --upgrade` does that"
)
_MAX_LINE = 1000
_MAX_ANSWER = 16 << 10


class Exposed(Protocol):
    """A port that a node exposes: `socket` is its path there."""

    @property
    def node_id(self) -> str: ...
    @property
    def socket(self) -> str: ...


class NodeLinks:
    """Connections to nodes. `identity`: the key by which this gateway or controller logs in."""

    def __init__(self, identity: asyncssh.SSHKey) -> None:
        self._identity = identity
        self._nodes: dict[str, GatewayNode] = {}
        self._connections: dict[str, asyncio.Task[asyncssh.SSHClientConnection]] = {}
        self._lingering: set[asyncio.Task[asyncssh.SSHClientConnection]] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def update(self, nodes: Iterable[GatewayNode]) -> None:
        """Keep exactly these nodes. Connections to others linger, for requests that still use
        them."""
        known, self._nodes = self._nodes, {node.id: node for node in nodes}
        for node_id, node in known.items():
            connection = self._connections.get(node_id)
            if self._nodes.get(node_id) != node and connection is not None:
                del self._connections[node_id]
                self._lingering.add(connection)
                loop = asyncio.get_running_loop()
                loop.call_later(LINGER_SECONDS, self._end, connection)

    async def connect(self, replica: Exposed, first_line: bytes = b"") -> PortStream:
        """Open a byte stream to the replica. `first_line`: what its socket is told first. Raises
        LinkError, AgentError."""
        node = self.node(replica)
        try:
            reader, writer = await self._stream(node, replica.socket)
        except SocketUnreachable as error:
            # Its message has the path, which only those may know who open it.
            raise LinkError("its node's sshd does not open its socket") from error
        except OSError as error:
            raise LinkError(f"its socket cannot be opened: {why_unreachable(error)}") from error
        try:
            if first_line:
                writer.write(first_line)
            first = await _first_line(reader)
        except BaseException:
            # Also when its request is cancelled: the channel would stay open.
            writer.close()
            raise
        return PortStream(reader, writer, first)

    def node(self, replica: Exposed) -> GatewayNode:
        """Return the replica's node. Raises LinkError."""
        node = self._nodes.get(replica.node_id)
        if node is None:
            raise LinkError("its node is not known any more")
        return node

    async def has_raw_socket(self, replica: Exposed) -> bool:
        """Return whether the node's shim makes raw sockets. Raises LinkError."""
        try:
            _, writer = await self._stream(self.node(replica), raw_socket(replica.socket))
        # The shim is of an earlier version: sshd cannot open the channel to a socket that is not
        # there.
        except OSError:
            return False
        writer.close()
        return True

    async def ask_direct(self, replica: Exposed, question: DirectQuestion) -> DirectAnswer | None:
        """Ask the node for the direct way to the replica; None: its shim has none. Raises
        LinkError."""
        try:
            reader, writer = await self._stream(self.node(replica), direct_socket(replica.socket))
        # As above: an earlier shim has no such socket.
        except OSError:
            return None
        with contextlib.closing(writer):
            writer.write(msgspec.json.encode(question) + b"\n")
            answer = b""
            while not answer.endswith(b"\n") and len(answer) < _MAX_ANSWER:
                piece = await reader.read(_MAX_ANSWER)
                if not piece:
                    break
                answer += piece
        try:
            return msgspec.json.decode(answer, type=DirectAnswer)
        except msgspec.DecodeError as error:
            raise LinkError("its node's answer about the direct way is none") from error

    async def close(self) -> None:
        connections = [*self._connections.values(), *self._lingering]
        self._connections.clear()
        self._lingering.clear()
        await asyncio.gather(*map(_close, connections), *self._closing, return_exceptions=True)

    def _end(self, connection: asyncio.Task[asyncssh.SSHClientConnection]) -> None:
        """Close a connection that has lingered long enough."""
        if connection in self._lingering:
            self._lingering.discard(connection)
            closing = asyncio.create_task(_close(connection), name="close a node's connection")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _stream(self, node: GatewayNode, socket: str) -> tuple[StreamReader, StreamWriter]:
        if node.local:
            return await asyncio.open_unix_connection(socket)
        # Others wait for the same connection when this request's client hangs up.
        connection = await asyncio.shield(self._connection(node))
        return await open_stream(connection, socket)

    def _connection(self, node: GatewayNode) -> asyncio.Task[asyncssh.SSHClientConnection]:
        """Return the connection to the node, live or being made."""
        known = self._connections.get(node.id)
        if known is None or _is_over(known):
            known = asyncio.create_task(self._open(node), name=f"node {node.id}")
            self._connections[node.id] = known
        return known

    async def _open(self, node: GatewayNode) -> asyncssh.SSHClientConnection:
        return await SshLogin(node, self._identity, _ADVICE).connect()


def raw_socket(socket: str) -> str:
    """Return the path of a socket without the first line (`shim.settings.GatewayAccess`)."""
    return socket.removesuffix(".sock") + ".raw"


def direct_socket(socket: str) -> str:
    """Return the path at which the node answers about the direct way."""
    return socket.removesuffix(".sock") + ".direct"


async def _close(connecting: asyncio.Task[asyncssh.SSHClientConnection]) -> None:
    """Close a connection that is there or being made."""
    # It may be made already: then this does nothing, and what it has made is closed below.
    connecting.cancel()
    (made,) = await asyncio.gather(connecting, return_exceptions=True)
    if isinstance(made, asyncssh.SSHClientConnection):
        made.abort()
        await made.wait_closed()


def _is_over(connecting: asyncio.Task[asyncssh.SSHClientConnection]) -> bool:
    if not connecting.done():
        return False
    if connecting.cancelled() or connecting.exception() is not None:
        return True
    return connecting.result().is_closed()


async def _first_line(reader: StreamReader) -> bytes:
    """Read the socket's first line; return what came after it. Raises AgentError, LinkError."""
    data = b""
    while b"\n" not in data and len(data) < _MAX_LINE:
        try:
            piece = await reader.read(_MAX_LINE)
        except OSError as error:
            raise LinkError(f"its node's connection broke: {why_unreachable(error)}") from error
        if not piece:
            raise LinkError("its node closed the connection")
        data += piece
    line, newline, rest = data.partition(b"\n")
    if line + newline != OK:
        raise AgentError("port_refused", line.decode("utf-8", "replace"), 502)
    return rest
