"""Local TCP ports that lead to ports of a job; each connection has its own WebSocket.

`forward` runs in the caller's own loop, `Forwarding` in a thread next to callers without a loop;
`LocalPort` is what a Python program holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from fairlead.configuration.text.dstack import ports_of
from fairlead.configuration.values.container import port_mapping
from fairlead.connections.addresses import Address
from fairlead.connections.closing import Closing
from fairlead.connections.requests import CONNECT_SECONDS, why_lost
from fairlead.documents.nodes import NodeView
from fairlead.documents.runs import RunView
from fairlead.errors import ApiError, ConnectionLost, FairleadError, PortTaken
from fairlead.patience import FIRST_WAIT_SECONDS, Outages
from fairlead.rest import (
    ControllerClient,
    decode,
    node_path,
    run_path,
)

LOOPBACKS = ("127.0.0.1", "::1")
EOF = "eof"
PIECE_BYTES = 256 << 10
PATIENCE_SECONDS = 30.0
_TURNS_OF_AN_ACCEPT = 3


class Forward(msgspec.Struct, frozen=True):
    """One forwarded port. `local` 0: any free port; `or_another`: also when it is taken."""

    port: int
    local: int
    or_another: bool = False


async def forward(
    client: ControllerClient,
    run: str,
    job: str | None,
    forwards: Sequence[Forward],
    bind: str,
    tell: Callable[[str], None],
    opened: Callable[[list[int]], None] = lambda local: None,
) -> None:
    """Forward the ports until cancelled; `opened` gets the local ones once they are open.

    Raises PortTaken when a local port cannot be opened.
    """
    outages = Outages(tell)
    own = [one for one in forwards if one.local == one.port and bind in LOOPBACKS]
    if own and not await asyncio.to_thread(_is_on_this_machine, client, run):
        own.clear()
    ports: list[int] = []
    async with contextlib.AsyncExitStack() as stack:
        for one in forwards:
            if one in own:
                tell(f"port {one.port} of {run} is {bind}:{one.port} itself: its node is here")
                ports.append(one.port)
                continue
            carrier = _Carrier(client, run, job, one.port, tell, outages)
            server = await _listen(carrier, one, bind, tell)
            stack.push_async_callback(carrier.close, server)
            local = server.sockets[0].getsockname()[1]
            tell(f"{bind}:{local} leads to port {one.port} of {run}")
            ports.append(local)
        opened(ports)
        if len(own) < len(forwards):
            await asyncio.Event().wait()


def _is_on_this_machine(client: ControllerClient, run: str) -> bool:
    """Return whether the run's jobs have the network of this machine: then a port here is the job's
    own, and one that led to itself would open connections without end."""
    if urlsplit(client.url).hostname not in (*LOOPBACKS, "localhost"):
        return False
    asking = client.another()
    try:
        jobs = asking.run(run).jobs
        names = {job.attempts[0].node for job in jobs if job.attempts} - {None}
        nodes = [decode(asking.get(node_path(str(name))), NodeView) for name in names]
    # Users may lack the right to see nodes: then nothing is known of where the job runs.
    except FairleadError:
        return False
    finally:
        asking.close()
    return any(not node.isolation and node.address.startswith("/") for node in nodes)


async def _listen(
    carrier: _Carrier, wanted: Forward, bind: str, tell: Callable[[str], None]
) -> asyncio.Server:
    try:
        return await asyncio.start_server(carrier.accept, bind, wanted.local)
    # EADDRINUSE, or EACCES for a port below 1024.
    except OSError as error:
        why = why_lost(error)
    if not wanted.or_another:
        raise PortTaken(
            f"cannot listen on {bind}:{wanted.local} ({why}); give another port as "
            f"{wanted.port}:LOCAL"
        )
    tell(f"cannot listen on {bind}:{wanted.local} ({why}); using another port")
    return await asyncio.start_server(carrier.accept, bind, 0)


def declared(run: RunView) -> list[Forward]:
    """Return the `ports` of the run's configuration."""
    return [
        Forward(mapping.port, mapping.local, or_another=True)
        for mapping in map(port_mapping, ports_of(run.configuration))
    ]


class Forwarding:
    """Forwards ports in a thread of its own, from the first `start` to `stop`."""

    def __init__(
        self,
        client: ControllerClient,
        run: RunView,
        job: str | None,
        forwards: Sequence[Forward],
        tell: Callable[[str], None],
        bind: str = "127.0.0.1",
    ) -> None:
        self._opened: Future[list[int]] = Future()
        self._forward = partial(
            forward, client, run.name, job, forwards, bind, tell, self._opened.set_result
        )
        self._tell = tell
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], object] = bool
        self._begun = threading.Event()

    def start(self) -> None:
        """Begin, once; a failure is told."""
        if self._thread is None:
            self._opened.add_done_callback(self._tell_failure)
            self._begin()

    def open(self) -> list[int]:
        """Begin, and return the local ports. Raises PortTaken."""
        self._begin()
        return self._opened.result()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _tell_failure(self, opened: Future[list[int]]) -> None:
        if (error := opened.exception()) is not None:
            self._tell(f"no ports are forwarded: {error}")

    def stop(self) -> None:
        """Close the ports and their connections."""
        if self._thread is not None:
            # A stop right after the start would find no task that it could cancel.
            self._begun.wait()
            self._stop()
            self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._until_stopped())
        except asyncio.CancelledError:
            # `stop` ends it in this way.
            pass
        except Exception as error:
            if self._opened.done():
                self._tell(f"no ports are forwarded: {error}")
            else:
                self._opened.set_exception(error)

    async def _until_stopped(self) -> None:
        loop, forwarding = asyncio.get_running_loop(), asyncio.create_task(self._forward())

        def stop() -> None:
            with contextlib.suppress(RuntimeError):  # it has failed and ended by itself
                loop.call_soon_threadsafe(forwarding.cancel)

        self._stop = stop
        self._begun.set()
        await forwarding


class LocalPort(Closing):
    """A local port that leads to a port of a job until it is closed; a context manager closes it.

    It stays open while the controller is away: a connection waits up to 30 s for it.
    """

    def __init__(self, forwarding: Forwarding, host: str) -> None:
        """Open the port. Raises PortTaken."""
        self._forwarding = forwarding
        self.host = host
        try:
            (self.port,) = forwarding.open()
        except BaseException:
            # After Ctrl-C, too, its thread and ports would stay for as long as the program.
            forwarding.stop()
            raise

    @property
    def address(self) -> str:
        """HOST:PORT on this machine."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def close(self) -> None:
        """Close the port and its connections."""
        self._forwarding.stop()

    def __repr__(self) -> str:
        return f"<LocalPort {self.address}>"


class _Carrier:
    def __init__(
        self,
        client: ControllerClient,
        run: str,
        job: str | None,
        port: int,
        tell: Callable[[str], None],
        outages: Outages,
    ) -> None:
        self._client = client
        self._outages = outages
        self._path = run_path(run, f"ports/{port}")
        self._job = job
        self._port = port
        self._tell = tell
        self._open_ones: set[asyncio.Task[None]] = set()

    async def close(self, server: asyncio.Server) -> None:
        """Close the local port and its connections."""
        # asyncio needs up to three turns of the loop to make a stream of a socket that it accepted,
        # and never closes one whose server was closed meanwhile (`Server._attach` fails silently).
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError):  # Windows
            for listening in server.sockets:
                loop.remove_reader(listening.fileno())
        for _ in range(_TURNS_OF_AN_ACCEPT):
            await asyncio.sleep(0)
        server.close()
        for one in self._open_ones:
            one.cancel()
        # Before `wait_closed`: from Python 3.12 on, that waits until all connections are closed.
        await asyncio.gather(*self._open_ones, return_exceptions=True)
        await server.wait_closed()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry a new connection in a task of its own."""
        task = asyncio.create_task(self._accepted(reader, writer))
        self._open_ones.add(task)
        task.add_done_callback(partial(self._ended, writer))

    def _ended(self, writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        """Let go of a connection. A cancelled task may not even have begun."""
        self._open_ones.discard(task)
        if task.cancelled():
            _reset_on_close(writer)
            writer.transport.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection. If it breaks, reset it, so that its program learns of it."""
        try:
            whole = await self._carry(reader, writer)
        except ConnectionLost:
            whole = False  # it is told for all connections together
        except FairleadError as error:
            self._tell(f"port {self._port}: {error}")
            whole = False
        except (OSError, WebSocketException):
            whole = False
        if not whole:
            _reset_on_close(writer)
        writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        async with await self._open() as stream:
            return await _between(reader, writer, stream)

    async def _open(self) -> ClientConnection:
        """Open the WebSocket. Programs wait some time for a connection; the controller may be away
        for as long."""
        give_up_at = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        wait = FIRST_WAIT_SECONDS
        while True:
            try:
                stream = await self._connect()
            except FairleadError as error:
                if not _may_pass(error) or asyncio.get_running_loop().time() + wait > give_up_at:
                    raise
                self._outages.lost(error)
            else:
                self._outages.found()
                return stream
            # Spread: a browser opens several connections at once, which all wait here.
            await asyncio.sleep(wait * random.uniform(0.8, 1.2))
            wait *= 2

    async def _connect(self) -> ClientConnection:
        """Connect to the first address that answers. The local program has sent nothing yet."""
        tries = self._client.addresses.tries(repeatable=True, waits=False)
        for address in tries:
            try:
                stream = await self._connect_there(address)
            except FairleadError as error:
                tries.failed(address, error)
            else:
                tries.answered(address)
                return stream
        raise tries.lost()

    async def _connect_there(self, address: Address) -> ClientConnection:
        url, headers = self._client.socket(self._path, at=address, job=self._job)
        try:
            return await connect(
                url,
                additional_headers=headers,
                # The controller opens the job's port first, through the connection to its node.
                open_timeout=CONNECT_SECONDS,
                close_timeout=2.0,
                compression=None,
                max_size=None,
                **_without_proxy(),
            )
        # websockets keeps the body of a refused upgrade: the controller's reason is in it.
        except InvalidStatus as refused:
            response = refused.response
            body = bytes(response.body or b"")
            raise self._client.refusal(response.status_code, body, address) from None
        except (OSError, WebSocketException) as error:
            raise self._client.lost(error, address) from None


def _without_proxy() -> dict[str, Any]:
    """Return the option with which websockets leaves the environment's proxy alone, as http.client
    does. Before 15 it knew no proxies, and no such option."""
    from websockets.version import version

    return {"proxy": None} if int(version.partition(".")[0]) >= 15 else {}


def _may_pass(error: FairleadError) -> bool:
    """Return whether the error can pass: the controller is away, or has not reached the job's node
    again."""
    if isinstance(error, ApiError):
        return error.status == HTTPStatus.SERVICE_UNAVAILABLE
    return isinstance(error, ConnectionLost)


def _reset_on_close(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    # A linger of 0 s makes close(2) send a reset instead of an end (socket(7)): a program must not
    # take what it got for all.
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _between(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: ClientConnection
) -> bool:
    """Carry the bytes; return whether the job's side came to its end."""
    sending = asyncio.create_task(_send(reader, stream))
    try:
        return await _receive(writer, stream)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _send(reader: asyncio.StreamReader, stream: ClientConnection) -> None:
    """Send the local program's bytes. If the program breaks its connection, the whole connection
    ends."""
    try:
        while data := await reader.read(PIECE_BYTES):
            await stream.send(data)
    except OSError:
        # The local program closed its connection with data unread: ECONNRESET (tcp(7)).
        await stream.close()
        return
    await stream.send(EOF)


async def _receive(writer: asyncio.StreamWriter, stream: ClientConnection) -> bool:
    """Receive until both directions have ended; the other side then closes."""
    whole = False
    try:
        while True:
            data = await stream.recv()
            if isinstance(data, bytes):
                writer.write(data)
                await writer.drain()
            elif data == EOF:
                writer.write_eof()
                whole = True
    # 1000 alone is an end that the other side meant (RFC 6455, 7.4.1).
    except ConnectionClosed as closed:
        return whole and closed.rcvd is not None and closed.rcvd.code == 1000
