"""Ports of tasks that gateways reach: one unix socket each, and the keys that may open them.

A gateway logs in at the node as a user of its own, who can open the sockets of one folder and
nothing else. The shim makes a socket there when the controller exposes a port of a running task. A
connection begins with one line, `ok` or why the port cannot be reached; then bytes are passed on
through the task's runner. What is exposed is on disk, so that gateways go on after a restart of the
shim, also while the controller is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import Executor
from pathlib import Path

import msgspec

from common.durable import sync_folder, write_beside
from common.errors import Refused
from common.ssh_keys import public_key
from shim.errors import conflict, invalid
from shim.schemas import EXPOSED_OK, Event, ExposedPort, GatewayKeys, TaskInfo, TaskStatus
from shim.settings import GatewayAccess
from shim.state.events import EventLog
from shim.state.records import DiskRecords

log = logging.getLogger(__name__)
_MOST_KEYS = 64
_PIECE = 1 << 16
_MOST_HEAD = 8192
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
    ) -> None:
        self._access = access
        self._records = records
        self._find = find
        self._executor = executor
        self._ports: dict[str, tuple[int, ...]] = {}
        self._servers: dict[tuple[str, int], asyncio.Server] = {}
        self._changing = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None

    @property
    def is_possible(self) -> bool:
        return self._access is not None

    async def open(self, events: EventLog) -> None:
        """Open the sockets of before again, and follow the tasks. Raises OSError."""
        stream = events.follow(None)
        await anext(stream)
        if self._access is not None:
            await self._in_thread(_make_folder, self._access)
            for task_id, record in (await self._records.load()).records.items():
                self._ports[task_id] = record.ports
            await self._match()
        self._following = asyncio.create_task(self._follow(stream), name="exposed ports")

    async def close(self) -> None:
        """Close the sockets. What is exposed stays so: the next shim opens them again."""
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._following
        for server in self._servers.values():
            server.close()
        self._servers.clear()

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
        if access.keys is not None:
            await self._in_thread(_replace, access.keys, text)

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
            for task_id in [one for one in self._ports if not self._lives(one)]:
                for port in self._ports.pop(task_id):
                    server = self._servers.pop((task_id, port), None)
                    if server is not None:
                        server.close()
                    with contextlib.suppress(FileNotFoundError):
                        self._access.socket(task_id, port).unlink()
                await self._records.delete(task_id)
            for task_id, ports in self._ports.items():
                for port in ports:
                    await self._listen(self._access, task_id, port)

    async def _listen(self, access: GatewayAccess, task_id: str, port: int) -> None:
        if (task_id, port) in self._servers:
            return
        path = access.socket(task_id, port)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(task_id, port, reader, writer)

        server = await asyncio.start_unix_server(serve, path, limit=_PIECE)
        path.chmod(0o660)
        if access.gid is not None:
            os.chown(path, -1, access.gid)
        self._servers[(task_id, port)] = server

    async def _serve(
        self, task_id: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        info = self._find(task_id)
        with contextlib.closing(writer):
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    far = await _connect(info, port)
            except (OSError, TimeoutError) as error:
                writer.write(f"{_sentence(error)}\n".encode())
                return
            with contextlib.closing(far[1]):
                writer.write(EXPOSED_OK)
                await _pass_on((reader, writer), far)

    async def _in_thread(self, act: Callable[..., None], *args: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, act, *args)


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def _sentence(error: OSError | TimeoutError) -> str:
    return " ".join(str(error).split()) or "its runner does not answer"


async def _connect(info: TaskInfo | None, port: int) -> Stream:
    """Open a stream to a port of the task, through its runner. Raises OSError."""
    if info is None:
        raise ConnectionError("the task is gone")
    reader, writer = await asyncio.open_unix_connection(info.runner_socket, limit=_PIECE)
    try:
        writer.write(f"CONNECT /v1/ports/{port} HTTP/1.1\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        writer.close()
        raise ConnectionError("the runner gave no answer") from error
    except BaseException:
        writer.close()
        raise
    if len(head) > _MOST_HEAD or b" 200 " not in head.partition(b"\r\n")[0]:
        writer.close()
        raise ConnectionRefusedError(f"nothing listens on port {port}")
    return reader, writer


async def _pass_on(near: Stream, far: Stream) -> None:
    """Pass bytes and ends of both directions on; return once both have ended or one broke."""
    copies = [
        asyncio.create_task(_copy(near[0], far[1])),
        asyncio.create_task(_copy(far[0], near[1])),
    ]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy no faster than the other end reads, so each direction holds at most a few pieces."""
    while piece := await reader.read(_PIECE):
        writer.write(piece)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


def render(keys: Iterable[str]) -> str:
    """Return the authorized_keys of the gateways' user. Raises Refused for what is no key."""
    lines = list(keys)
    if len(lines) > _MOST_KEYS:
        raise invalid(f"at most {_MOST_KEYS} public keys", "keys")
    found: set[str] = set()
    for number, line in enumerate(lines):
        key = public_key(line)
        if key is None:
            raise invalid("must be an OpenSSH public key on one line", f"keys[{number}]")
        found.add(key)
    return "".join(f"restrict,port-forwarding {key} gateway\n" for key in sorted(found))


def _replace(path: Path, text: str) -> None:
    """Replace the file. sshd reads it as the gateways' user, so all may read it; only its owner may
    write."""
    if path.is_file() and path.read_text() == text:
        return
    fresh = write_beside(path, text.encode(), 0o644)
    fresh.chmod(0o644)  # whatever the umask took away
    fresh.rename(path)
    sync_folder(path.parent)


def _make_folder(access: GatewayAccess) -> None:
    """Make the folder, which only the gateways' group may enter, and remove what a crash left."""
    access.folder.mkdir(parents=True, exist_ok=True)
    if access.gid is not None:
        os.chown(access.folder, -1, access.gid)
    access.folder.chmod(0o750)
    for path in access.folder.glob("*.sock"):
        path.unlink()
