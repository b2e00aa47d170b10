"""Ports of tasks that gateways and followers reach by unix sockets, and the keys that may log in.

They log in at the node as a user of their own, who can enter one folder and open sockets there, and
nothing else. He can't list it, and the name of a socket can't be guessed: whoever opens one was
told of it by the controller. The shim makes two sockets when the controller exposes a port of a
running task. A connection to the first begins with one line, `ok` or why the port cannot be
reached; to the second, which is for programs that know nothing of that line, it is the port's own.
A task may also be exposed with all of its ports: then the caller's first line names the port. Bytes
are passed on through the task's runner; a runner that can takes the second kind of connection over
from the shim. What is exposed is on disk, so that gateways go on after a restart of the shim, also
while the controller is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from common.sockets import BACKLOG
from fairlead.wire.errors import Refused
from fairlead.wire.runner import SOCKETS
from fairlead.wire.shim import ANY_PORT, Event, ExposedPort, GatewayKeys, TaskInfo, TaskStatus
from shim.access.exposed_connections import (
    CONNECT_SECONDS,
    AskingCaller,
    Caller,
    Port,
    PortRefused,
    takes_one,
)
from shim.access.gateway_keys import removes, render, replace
from shim.errors import conflict, invalid
from shim.settings import GatewayAccess
from shim.state.events import EventLog
from shim.state.records import DiskRecords

if TYPE_CHECKING:
    from shim.access.direct_way import DirectWays

log = logging.getLogger(__name__)


class ExposureRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The exposed ports of one task, `ANY_PORT` among them. `names`: those of their sockets; a port
    that an earlier version exposed has none here."""

    ports: tuple[int, ...]
    names: dict[int, str] = {}

    def name(self, task_id: str, port: int) -> str:
        return self.names.get(port) or f"{task_id}-{port}"

    def way(self, task_id: str, port: int) -> str:
        """Return what the name of the port's direct way is made from."""
        return self.names.get(port) or f"{task_id} {port}"

    def with_port(self, port: int) -> ExposureRecord:
        names = {**self.names, port: secrets.token_urlsafe(16)}
        return ExposureRecord(ports=(*self.ports, port), names=names)


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
        self._ports: dict[str, ExposureRecord] = {}
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
            self._ports.update((await self._records.load()).records)
            if self._direct is not None:
                await self._direct.open(self._ways())
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
        """Expose a port of a running task, or `ANY_PORT`. It is on disk when this returns. Raises
        Refused."""
        access = self._possible()
        if not (port == ANY_PORT or 1 <= port <= 65535):
            raise invalid("a port is a number from 1 to 65535, or 0 for all of them", "port")
        if info.status is not TaskStatus.RUNNING:
            raise conflict(f"task {info.id} is {info.status}: only a running one is exposed")
        async with self._changing:
            record = self._ports.get(info.id, ExposureRecord(ports=()))
            if port not in record.ports:
                record = record.with_port(port)
                await self._records.save(info.id, record)
                self._ports[info.id] = record
            await self._listen(access, info.id, port)
        return ExposedPort(port=port, socket=str(access.socket(record.name(info.id, port))))

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
                    log.error("exposed ports: %s", error.strerror)

    def _lives(self, task_id: str) -> bool:
        info = self._find(task_id)
        return info is not None and info.status is not TaskStatus.TERMINATED

    async def _match(self) -> None:
        """Listen for each exposed port of a live task, and close those of others."""
        assert self._access is not None, "something is exposed"
        async with self._changing:
            over = [one for one in self._ports if not self._lives(one)]
            for task_id in over:
                for port in self._ports[task_id].ports:
                    for path in self._paths(self._access, task_id, port):
                        server = self._servers.pop(path, None)
                        if server is not None:
                            server.close()
                        path.unlink(missing_ok=True)
                del self._ports[task_id]
                await self._records.delete(task_id)
                self._takers.pop(task_id, None)
            if over and self._direct is not None:
                await self._direct.keep(self._ways())
            for task_id, record in self._ports.items():
                for port in record.ports:
                    await self._listen(self._access, task_id, port)

    async def _listen(self, access: GatewayAccess, task_id: str, port: int) -> None:
        for path in self._paths(access, task_id, port):
            if path not in self._servers:
                listening = _listening(access, path, task_id)
                self._servers[path] = await self._make_server(path, listening, task_id, port)

    async def _make_server(
        self, path: Path, listening: socket.socket, task_id: str, port: int
    ) -> asyncio.Server:
        direct, record = self._direct, self._ports[task_id]
        if direct is not None and path.suffix == ".direct":
            answer = partial(direct.serve, task_id, port, record.way(task_id, port))
            return await asyncio.start_unix_server(answer, sock=listening, backlog=BACKLOG)
        connect = partial(self._connect, task_id)
        caller: Callable[[], Caller] = partial(AskingCaller, connect)
        if port != ANY_PORT:
            caller = partial(Caller, partial(connect, port), tells=path.suffix == ".sock")
        loop = asyncio.get_running_loop()
        return await loop.create_unix_server(caller, sock=listening, backlog=BACKLOG)

    def _ways(self) -> frozenset[str]:
        """Return what the names of all direct ways are made from."""
        return frozenset(
            record.way(task_id, port)
            for task_id, record in self._ports.items()
            for port in record.ports
            if port != ANY_PORT
        )

    def _paths(self, access: GatewayAccess, task_id: str, port: int) -> tuple[Path, ...]:
        name = self._ports[task_id].name(task_id, port)
        if port == ANY_PORT:
            return (access.socket(name),)
        paths = access.socket(name), access.raw_socket(name)
        return paths if self._direct is None else (*paths, access.direct_socket(name))

    async def _connect(self, task_id: str, port: int, *, may_offer: bool) -> Port:
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
            async with asyncio.timeout(CONNECT_SECONDS):
                far = await self._reach(task_id, SOCKETS, True)
                try:
                    takes = far.wants_socket and await takes_one(far)
                finally:
                    far.abort()
        except PortRefused:
            takes = False  # an older runner
        except (OSError, TimeoutError):
            self._takers.pop(task_id, None)  # the next connection asks again
            return
        # It may have ended meanwhile.
        if task_id in self._ports:
            self._takers[task_id] = takes

    async def _reach(self, task_id: str, target: str, offers: bool) -> Port:
        info = self._find(task_id)
        if info is None:
            raise ConnectionError("the task is gone")
        loop = asyncio.get_running_loop()
        _, far = await loop.create_unix_connection(
            lambda: Port(target, offers=offers), info.runner_socket
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


def _listening(access: GatewayAccess, path: Path, task_id: str) -> socket.socket:
    """Return a socket of the gateways' group that listens at this path. Raises OSError, without the
    path: logs must not have it."""
    # /proc/net/unix shows the path that was bound to each process of the node's network, jobs too;
    # it knows nothing of a rename.
    bound = access.folder / f"{task_id}.new"
    made = socket.socket(socket.AF_UNIX)
    try:
        bound.unlink(missing_ok=True)
        made.setblocking(False)
        made.bind(str(bound))
        # bind(2) leaves the mode to the umask, and to connect takes write permission (unix(7)).
        bound.chmod(0o660)
        if access.gid is not None:
            os.chown(bound, -1, access.gid)
        bound.rename(path)
        # Not before: until then whoever knows the task could connect by the name that is bound.
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise OSError(error.errno, error.strerror) from None
    return made


def _make_folder(access: GatewayAccess) -> None:
    """Make the folder, which only the gateways' group may enter, and nobody but its owner list; and
    remove what a crash left."""
    access.folder.mkdir(parents=True, exist_ok=True)
    if access.gid is not None:
        os.chown(access.folder, -1, access.gid)
    # mkdir(2) takes the umask away, and a folder of before keeps its mode.
    access.folder.chmod(0o710)
    for pattern in ("*.sock", "*.raw", "*.direct", "*.new"):
        for path in access.folder.glob(pattern):
            path.unlink()
