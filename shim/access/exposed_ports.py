"""Ports of tasks that gateways reach: one unix socket each, and the keys that may open them.

A gateway logs in at the node as a user of its own, who can open the sockets of one folder and
nothing else. The shim makes two sockets there when the controller exposes a port of a running task.
A connection to the first begins with one line, `ok` or why the port cannot be reached; to the
second, which is for programs that know nothing of that line, it is the port's own. Bytes are passed
on through the task's runner; a runner that can takes the second kind of connection over from the
shim. What is exposed is on disk, so that gateways go on after a restart of the shim, also while the
controller is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from common.relay import BUFFER_BYTES, RelayEnd
from common.sockets import BACKLOG
from fairlead.wire.errors import Refused
from fairlead.wire.runner import (
    MAX_EARLY,
    SOCKET_OFFERED,
    SOCKET_TAKEN,
    SOCKET_WANTED,
    SOCKETS,
    socket_offer,
)
from fairlead.wire.shim import EXPOSED_OK, Event, ExposedPort, GatewayKeys, TaskInfo, TaskStatus
from shim.access.gateway_keys import removes, render, replace
from shim.errors import conflict, invalid
from shim.settings import GatewayAccess
from shim.state.events import EventLog
from shim.state.records import DiskRecords

if TYPE_CHECKING:
    from shim.access.direct_way import DirectWays

log = logging.getLogger(__name__)
_MAX_HEAD = 8192
_END_OF_HEAD = b"\r\n\r\n"
_CONNECT_SECONDS = 15.0


class ExposureRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The exposed ports of one task."""

    ports: tuple[int, ...]


class ExposedPorts:
    """Exposes ports, and closes them with their tasks. `find` returns a task that is there."""

    def __init__(
        self,
        access: GatewayAccess | None,
        records: DiskRecords[ExposureRecord],
        find: Callable[[str], TaskInfo | None],
        executor: Executor,
        direct: DirectWays | None = None,
    ) -> None:
        self._access = access
        self._records = records
        self._find = find
        self._executor = executor
        self._direct = direct
        self._ports: dict[str, tuple[int, ...]] = {}
        self._servers: dict[Path, asyncio.Server] = {}
        self._changing = asyncio.Lock()
        self._putting = asyncio.Lock()
        self._takers: dict[str, bool] = {}
        """The tasks whose runner was asked whether it takes sockets, and whether it does."""
        self._asking: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None

    def gives_sockets(self, task_id: str) -> bool:
        """Return whether the task's runner has shown that it takes sockets."""
        return self._takers.get(task_id, False)

    @property
    def is_possible(self) -> bool:
        return self._access is not None

    async def open(self, events: EventLog) -> None:
        """Open the sockets of before again, and follow the tasks. Raises OSError."""
        stream = events.follow(None)
        # A generator begins at its first `anext`: from here on no change is missed.
        await anext(stream)
        if self._access is not None:
            await self._in_thread(_make_folder, self._access)
            for task_id, record in (await self._records.load()).records.items():
                self._ports[task_id] = record.ports
            if self._direct is not None:
                await self._direct.open(self._exposed())
            await self._match()
        self._following = asyncio.create_task(self._follow(stream), name="exposed ports")

    async def close(self) -> None:
        """Close the sockets. What is exposed stays so: the next shim opens them again."""
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                # Awaiting a cancelled task raises its CancelledError here; ours is not meant.
                await self._following
        for server in self._servers.values():
            server.close()
        self._servers.clear()
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        if self._direct is not None:
            await self._direct.close()

    async def expose(self, info: TaskInfo, port: int) -> ExposedPort:
        """Expose a port of a running task. It is on disk when this returns. Raises Refused."""
        access = self._possible()
        if not 1 <= port <= 65535:
            raise invalid("a port is a number from 1 to 65535", "port")
        if info.status is not TaskStatus.RUNNING:
            raise conflict(f"task {info.id} is {info.status}: only a running one is exposed")
        async with self._changing:
            known = self._ports.get(info.id, ())
            if port not in known:
                record = ExposureRecord(ports=(*known, port))
                await self._records.save(info.id, record)
                self._ports[info.id] = record.ports
            await self._listen(access, info.id, port)
        return ExposedPort(port=port, socket=str(access.socket(info.id, port)))

    async def put_keys(self, wanted: GatewayKeys) -> None:
        """Let exactly these keys in. Raises Refused."""
        access = self._possible()
        text = render(wanted.keys)
        if access.keys is None:
            return
        async with self._putting:
            loop = asyncio.get_running_loop()
            # Before the file: a shim that is killed in between goes on with the removal.
            if self._direct is not None and await loop.run_in_executor(
                self._executor, removes, access.keys, text
            ):
                await self._direct.begin_removal()
            await loop.run_in_executor(self._executor, replace, access.keys, text)
            # All of them, since nobody knows which gateway brought which certificate.
            if self._direct is not None and self._direct.removes:
                await self._direct.forget_gateways()

    def _possible(self) -> GatewayAccess:
        if self._access is None:
            raise Refused(
                409,
                "no_gateways",
                "this node lends no sockets to gateways: its shim was started without "
                "--gateway-folder; `fairlead node install --upgrade` sets it up",
            )
        return self._access

    async def _follow(self, changes: AsyncGenerator[Event, None]) -> None:
        async for _ in changes:
            if any(not self._lives(task_id) for task_id in self._ports):
                try:
                    await self._match()
                except OSError as error:
                    log.error("exposed ports: %s", error)

    def _lives(self, task_id: str) -> bool:
        info = self._find(task_id)
        return info is not None and info.status is not TaskStatus.TERMINATED

    async def _match(self) -> None:
        """Listen for each exposed port of a live task, and close those of others."""
        assert self._access is not None, "something is exposed"
        async with self._changing:
            over = [one for one in self._ports if not self._lives(one)]
            for task_id in over:
                for port in self._ports.pop(task_id):
                    for path in self._paths(self._access, task_id, port):
                        server = self._servers.pop(path, None)
                        if server is not None:
                            server.close()
                        path.unlink(missing_ok=True)
                await self._records.delete(task_id)
                self._takers.pop(task_id, None)
            if over and self._direct is not None:
                await self._direct.keep(self._exposed())
            for task_id, ports in self._ports.items():
                for port in ports:
                    await self._listen(self._access, task_id, port)

    async def _listen(self, access: GatewayAccess, task_id: str, port: int) -> None:
        for path in self._paths(access, task_id, port):
            if path in self._servers:
                continue
            path.unlink(missing_ok=True)
            self._servers[path] = await self._make_server(access, path, task_id, port)
            # bind(2) leaves the mode to the umask, and to connect takes write permission (unix(7)).
            path.chmod(0o660)
            if access.gid is not None:
                os.chown(path, -1, access.gid)

    async def _make_server(
        self, access: GatewayAccess, path: Path, task_id: str, port: int
    ) -> asyncio.Server:
        if self._direct is not None and path == access.direct_socket(task_id, port):
            answer = partial(self._direct.serve, task_id, port)
            return await asyncio.start_unix_server(answer, path, backlog=BACKLOG)
        connect = partial(self._connect, task_id, port)
        caller = partial(_Caller, connect, tells=path == access.socket(task_id, port))
        loop = asyncio.get_running_loop()
        return await loop.create_unix_server(caller, str(path), backlog=BACKLOG)

    def _exposed(self) -> frozenset[tuple[str, int]]:
        return frozenset(
            (task_id, port) for task_id, ports in self._ports.items() for port in ports
        )

    def _paths(self, access: GatewayAccess, task_id: str, port: int) -> tuple[Path, ...]:
        paths = access.socket(task_id, port), access.raw_socket(task_id, port)
        return paths if self._direct is None else (*paths, access.direct_socket(task_id, port))

    async def _connect(self, task_id: str, port: int, *, may_offer: bool) -> _Port:
        """Open a connection to a port of the task, through its runner, which is offered the
        caller's socket if it takes such. Raises OSError."""
        if may_offer and task_id not in self._takers:
            self._takers[task_id] = False
            asking = asyncio.create_task(self._ask(task_id), name="exposed port: asks")
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
        offers = may_offer and self._takers[task_id]
        return await self._reach(task_id, f"/v1/ports/{port}", offers)

    async def _ask(self, task_id: str) -> None:
        """Learn whether the runner takes sockets, with one that nobody needs. The job hears nothing
        of it: it may take one connection alone.

        A security module of the kernel may withhold what comes from outside of the container. A
        socket that was offered must not be used here any more: a job in its runner's place could
        say that it has not got it, make it block, and with it the shim.
        """
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                far = await self._reach(task_id, SOCKETS, True)
                try:
                    takes = far.wants_socket and await _takes_one(far)
                finally:
                    far.abort()
        except _PortRefused:
            takes = False  # an older runner
        except (OSError, TimeoutError):
            self._takers.pop(task_id, None)  # the next connection asks again
            return
        # It may have ended meanwhile.
        if task_id in self._ports:
            self._takers[task_id] = takes

    async def _reach(self, task_id: str, target: str, offers: bool) -> _Port:
        info = self._find(task_id)
        if info is None:
            raise ConnectionError("the task is gone")
        loop = asyncio.get_running_loop()
        _, far = await loop.create_unix_connection(
            lambda: _Port(target, offers=offers), info.runner_socket
        )
        try:
            await far.connected
        except BaseException:
            # Also when it is cancelled: nobody else has this connection.
            far.abort()
            raise
        return far

    async def _in_thread(self, act: Callable[..., None], *args: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, act, *args)


async def _takes_one(far: _Port) -> bool:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        ours.send(b"?")
        if not far.offer(b"", theirs.fileno()) or not await far.has_taken():
            return False
        with contextlib.suppress(OSError):
            # EAGAIN: a runner that says so without the socket has sent nothing back.
            return ours.recv(1) == b"?"
    return False


class _Caller(RelayEnd):
    """The gateway's side. `connect` opens the other one. `tells`: the connection begins with a line
    that says whether that worked."""

    def __init__(self, connect: Callable[..., Awaitable[_Port]], *, tells: bool) -> None:
        super().__init__()
        self._connect = connect
        self._tells = tells
        self._early = bytearray()
        self._dialing: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._dialing = asyncio.create_task(self._dial(), name="exposed port")

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.write(data)
            return
        # The other end is not there yet: what a client sends ahead is kept up to a bound, and TCP
        # holds back the rest.
        self._early += data
        if len(self._early) > BUFFER_BYTES and self.transport is not None:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        if self.other is None:
            self.has_ended = True
            # asyncio closes the transport unless this is true: the answer is still to come.
            return True
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._dialing is not None:
            self._dialing.cancel()
        super().connection_lost(exc)

    async def _dial(self) -> None:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                far = await self._connect(may_offer=not self._tells)
                if far.wants_socket and await self._is_given_away(far):
                    return
        except (OSError, TimeoutError) as error:
            if self._tells:
                self.write(f"{_sentence(error)}\n".encode())
            self.close()
            return
        self.other, far.other = far, self
        if self._tells:
            self.write(EXPOSED_OK)
        far.write(bytes(self._early))
        self._early.clear()
        if self.has_ended:
            far.write_eof()
        far.begin()
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    async def _is_given_away(self, far: _Port) -> bool:
        """Give the runner this socket; return False if it can't be given. Raises OSError."""
        if self.transport is None or self.transport.is_closing():
            far.abort()
            raise ConnectionError("the caller is gone")
        # From here on its bytes are the runner's.
        self.transport.pause_reading()
        own = self.transport.get_extra_info("socket")
        early, number = b"", None
        if not self.has_ended and len(self._early) <= MAX_EARLY:
            early, number = bytes(self._early), own.fileno()
            self._early.clear()
        is_given = False
        try:
            is_given = far.offer(early, number)
            taken = await far.has_taken()
            if is_given and not taken:
                raise ConnectionError("the runner did not take the socket")
        except BaseException:
            far.abort()
            if is_given:
                # Whoever holds it would else keep the gateway's connection open.
                with contextlib.suppress(OSError):
                    own.shutdown(socket.SHUT_RDWR)
            raise
        if is_given:
            # Without a shutdown: the runner's descriptor keeps the connection.
            self._dialing = None
            self.close()
            far.close()
        return is_given


class _PortRefused(ConnectionRefusedError):
    """The runner answered that it does not connect."""


class _Port(RelayEnd):
    """The runner's side: asks for the port, and waits until it is connected. `connected` raises
    ConnectionError. `offers`: the runner may have the caller's socket; then `wants_socket` says
    whether it waits for that."""

    def __init__(self, target: str, *, offers: bool) -> None:
        super().__init__()
        self._target = target
        self._offers = offers
        self._answer: asyncio.Future[bytes] | None = None
        self.wants_socket = False
        self._head = bytearray()
        self.connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        offered = SOCKET_OFFERED + b"\r\n" if self._offers else b""
        self.write(b"CONNECT %b HTTP/1.1\r\n%b\r\n" % (self._target.encode(), offered))

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.write(data)
            return
        self._head += data
        if self._answer is not None:
            if self.transport is not None:
                self.transport.pause_reading()
            if not self._answer.done():
                self._answer.set_result(bytes(self._head[:1]))
                del self._head[:1]
            return
        end = self._head.find(_END_OF_HEAD)
        # A job may impersonate its runner and never end its head.
        if end < 0 and len(self._head) <= _MAX_HEAD:
            return
        if self.transport is not None:
            self.transport.pause_reading()
        if end < 0 or b" 200 " not in self._head.partition(b"\r\n")[0]:
            port = self._target.rpartition("/")[2]
            self._fail(_PortRefused(f"nothing listens on port {port}"))
            return
        self.wants_socket = self._offers and SOCKET_WANTED in self._head[:end].split(b"\r\n")
        del self._head[: end + len(_END_OF_HEAD)]
        if not self.connected.done():
            self.connected.set_result(None)

    def offer(self, early: bytes, number: int | None) -> bool:
        """Send these first bytes of the caller with its descriptor, if there is one; return whether
        it could be sent. Raises OSError."""
        if self.transport is None or self.transport.is_closing():
            raise ConnectionError("the runner gave no answer")
        self._answer = asyncio.get_running_loop().create_future()
        # asyncio's TransportSocket cannot send descriptors; the copy is the same connection.
        with socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno())) as way:
            is_sent = _is_sent(way, socket_offer(early), number)
        self.transport.resume_reading()
        return is_sent

    async def has_taken(self) -> bool:
        """Return whether the runner answers the offer so. Raises OSError."""
        assert self._answer is not None, "after an offer"
        return await self._answer == SOCKET_TAKEN

    def eof_received(self) -> bool:
        if self.other is None:
            self._fail(ConnectionError("the runner gave no answer"))
            return False
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionError("the runner gave no answer"))
        super().connection_lost(exc)

    def begin(self) -> None:
        """Pass on what came, and what comes."""
        if self.other is not None and self._head:
            self.other.write(bytes(self._head))
            self._head.clear()
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def _fail(self, error: ConnectionError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
            self._answer.exception()
        if not self.connected.done():
            self.connected.set_exception(error)
            self.connected.exception()  # the caller may be gone


def _is_sent(way: socket.socket, message: bytes, number: int | None) -> bool:
    """Send the message, with the descriptor if the kernel lets it. Raises OSError."""
    if number is not None:
        try:
            socket.send_fds(way, [message], [number])
            return True
        except OSError as error:
            # As many as this user may open wait in sockets that nobody reads (unix(7)). A job that
            # impersonates its runner brings that about, and must harm no other one by it.
            if error.errno != errno.ETOOMANYREFS:
                raise
    way.send(message)
    return False


def _sentence(error: OSError | TimeoutError) -> str:
    return " ".join(str(error).split()) or "its runner does not answer"


def _make_folder(access: GatewayAccess) -> None:
    """Make the folder, which only the gateways' group may enter, and remove what a crash left."""
    access.folder.mkdir(parents=True, exist_ok=True)
    if access.gid is not None:
        os.chown(access.folder, -1, access.gid)
    # mkdir(2) takes the umask away, and a folder of before keeps its mode.
    access.folder.chmod(0o750)
    for pattern in ("*.sock", "*.direct"):
        for path in access.folder.glob(pattern):
            path.unlink()
