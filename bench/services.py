"""What the controller's proxy costs a service: `./dev bench services`.

An app on a node, reached directly and through the proxy: real sshd, the relay of a runner, each in
its own process. One process asks; the CPU time of the proxy says how many requests a core carries.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import cast

import asyncssh
import msgspec
import psutil
import uvloop
from aiohttp import web

from bench import report
from bench.parts import unwind_on_sigterm
from common.proxy.entry import Proxy, Settings, tidy, to_services
from common.proxy.view import Replica, Service
from controller.clock import SystemClock
from controller.lifecycle.model import NodeAddress
from controller.links.base import NodeConnection
from controller.links.clients import SshLink
from controller.proxy.registered import GateAccess, through_runners
from controller.service.accounts.users import Gate
from tests.doubles.proxy import NotedTraffic, PlantedServices
from tests.support.ssh_daemon import SshDaemon, free_port
from tests.support.waiting import wait_until

PATH = "/services/api"
ANSWER = b"x" * 1024
MIB = 1 << 20
STALLED = 50
_PIECE = b"x" * (256 << 10)
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n"
_QUICK = _HEAD % len(ANSWER) + ANSWER


class Place(msgspec.Struct, frozen=True):
    """Where the proxy's process finds its node."""

    listen: int
    ssh_port: int
    user: str
    host_key: str
    key: str
    socket: str
    app: int


class Load(msgspec.Struct, frozen=True):
    """`seconds` of each request, in order."""

    per_second: float
    p50: float
    p99: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    connections: int
    app: Load
    proxy: Load
    per_core: float
    """Requests for each second of CPU time of the proxy's process."""


# -- the app ------------------------------------------------------------------------------------


class _App(asyncio.Protocol):
    """Answers 1 KiB, `/stream/N` N MiB, and `/open` a stream that never ends."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._received = b""
        self._left = 0
        self._is_paused = False

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            line, self._received = (
                self._received[:end].split(b"\r\n", 1)[0],
                self._received[end + 4 :],
            )
            path = line.split(b" ")[1]
            if path.startswith(b"/stream/"):
                self._left = int(path[len(b"/stream/") :]) * MIB
                self._transport.write(_HEAD % self._left)
                self._pour()
            elif path == b"/open":
                self._transport.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n"
                )
            else:
                self._transport.write(_QUICK)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._pour()

    def _pour(self) -> None:
        while self._left and not self._is_paused:
            self._left -= len(_PIECE)
            self._transport.write(_PIECE)


async def _serve_app(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_App, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


# -- the proxy ----------------------------------------------------------------------------------


async def _serve_proxy(place: Place) -> None:
    address = NodeAddress(
        shim_socket="/none",
        host="127.0.0.1",
        port=place.ssh_port,
        user=place.user,
        host_key=place.host_key,
    )
    connection = await SshLink(address, asyncssh.import_private_key(place.key)).connect()

    async def connect(node_id: str) -> NodeConnection:
        return connection

    services = PlantedServices()
    replica = Replica(id="r", group="g", node_id="n", socket=place.socket, port=place.app)
    services.put(Service(run_id="r", name="api", owner="o", auth=False, replicas=(replica,)))
    proxy = Proxy(
        services=services,
        traffic=NotedTraffic(),
        access=GateAccess(Gate((), (), SystemClock())),
        connect=through_runners(connect),
        settings=Settings(),
    )
    app = web.Application(middlewares=[to_services(proxy)])
    app.on_response_prepare.append(tidy)
    runner = web.AppRunner(app, access_log=None, auto_decompress=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", place.listen, backlog=2048).start()
    await asyncio.Event().wait()


# -- the load -----------------------------------------------------------------------------------


async def _ask_on_and_on(port: int, head: bytes, until: float, took: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (begin := time.perf_counter()) < until:
        writer.write(head)
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"bench: {answer!r}")
        await reader.readexactly(len(ANSWER))
        took.append(time.perf_counter() - begin)
    writer.close()


def _head(path: str, host: str = "bench") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\n\r\n".encode()


async def ask_load(
    port: int, path: str, connections: int, seconds: float, host: str = "bench"
) -> Load:
    """Ask on and on for `seconds`, with so many connections."""
    took: list[float] = []
    until = time.perf_counter() + seconds
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(_ask_on_and_on(port, _head(path, host), until, took))
    cuts = quantiles(took, n=100)
    return Load(len(took) / seconds, cuts[49], cuts[98])


async def _download(port: int, path: str, mebibytes: int) -> float:
    """Return MiB/s."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MIB)
    begin = time.perf_counter()
    writer.write(_head(f"{path}/stream/{mebibytes}"))
    await reader.readuntil(b"\r\n\r\n")
    left = mebibytes * MIB
    while left:
        left -= len(await reader.read(MIB))
    writer.close()
    return mebibytes / (time.perf_counter() - begin)


async def _open_streams(port: int, path: str, many: int) -> list[asyncio.StreamWriter]:
    writers = []
    for _ in range(many):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_head(f"{path}/open"))
        await reader.readuntil(b"data: 1\n\n")
        writers.append(writer)
    return writers


async def _stalled_streams(port: int, path: str, many: int) -> list[asyncio.StreamWriter]:
    """Open streams that send as much as they can, and read none of them."""
    writers = []
    for _ in range(many):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MIB)
        cast(asyncio.Transport, writer.transport).pause_reading()
        writer.write(_head(f"{path}/stream/256"))
        writers.append(writer)
        del reader
    # Until all that lies between is full: the kernel's buffers, SSH's windows, the proxy.
    await asyncio.sleep(3)
    return writers


# -- the bed ------------------------------------------------------------------------------------


@contextlib.contextmanager
def program(*arguments: str) -> Iterator[psutil.Process]:
    process = subprocess.Popen([sys.executable, "-m", *arguments])
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def bed() -> Iterator[tuple[Place, psutil.Process]]:
    """Give where the proxy and its app listen, and the proxy's process."""
    folder = Path(tempfile.mkdtemp(prefix="fl-bench-", dir="/tmp"))
    folder.chmod(0o755)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        key = asyncssh.generate_private_key("ssh-ed25519")
        (folder / "ssh").mkdir()
        sshd = SshDaemon(folder / "ssh")
        sshd.authorize(key.export_public_key().decode())
        sshd.start()
        stack.callback(sshd.stop)
        place = Place(
            listen=free_port(),
            ssh_port=sshd.port,
            user=sshd.user,
            host_key=sshd.host_key,
            key=key.export_private_key().decode(),
            socket=str(folder / "runner.sock"),
            app=free_port(),
        )
        described = folder / "place.json"
        described.write_bytes(msgspec.json.encode(place))
        task = ("--task", str(folder / "task"), "--socket", place.socket, "--peers", "any")
        stack.enter_context(program("entrypoint.main", *task))
        wait_until(Path(place.socket).exists)
        # sshd opens it as the user who logs in.
        Path(place.socket).chmod(0o666)
        stack.enter_context(program("bench.services", "--app", str(place.app)))
        proxy = stack.enter_context(program("bench.services", "--proxy", str(described)))
        for port in (place.app, place.listen):
            wait_until(partial(answers, port))
        yield place, proxy


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


async def _rows(place: Place, proxy: psutil.Process, seconds: float) -> AsyncIterator[Row]:
    for connections in (1, 32):
        # The first requests open the SSH channels, which later ones find.
        await ask_load(place.listen, PATH + "/", connections, 0.5)
        app = await ask_load(place.app, "/", connections, seconds)
        before = sum(proxy.cpu_times()[:2])
        through = await ask_load(place.listen, PATH + "/", connections, seconds)
        cpu = sum(proxy.cpu_times()[:2]) - before
        yield Row(
            connections=connections,
            app=app,
            proxy=through,
            per_core=through.per_second * seconds / cpu,
        )


async def _measure(place: Place, proxy: psutil.Process, given: argparse.Namespace) -> None:
    print("| | app alone | through the proxy | |\n|---|---:|---:|---:|")
    async for row in _rows(place, proxy, given.seconds):
        print(
            f"| 1 KiB, {row.connections} connections: requests/s | {row.app.per_second:.0f} "
            f"| {row.proxy.per_second:.0f} | {row.per_core:.0f} for each second of CPU |"
        )
        print(
            f"| … p50 (p99) | {row.app.p50 * 1e3:.2f} ({row.app.p99 * 1e3:.2f}) ms "
            f"| {row.proxy.p50 * 1e3:.2f} ({row.proxy.p99 * 1e3:.2f}) ms "
            f"| + {(row.proxy.p50 - row.app.p50) * 1e3:.2f} ms |"
        )
    app = median([await _download(place.app, "", given.mebibytes) for _ in range(3)])
    before = sum(proxy.cpu_times()[:2])
    rates = [await _download(place.listen, PATH, given.mebibytes) for _ in range(3)]
    per_core = 3 * given.mebibytes / (sum(proxy.cpu_times()[:2]) - before)
    print(
        f"| one stream | {app:.0f} MiB/s | {median(rates):.0f} MiB/s "
        f"| {per_core:.0f} MiB for each second of CPU |"
    )
    before = proxy.memory_info().rss
    writers = await _open_streams(place.listen, PATH, given.streams)
    more = (proxy.memory_info().rss - before) / MIB
    print(f"| {given.streams} open streams | | + {more:.0f} MiB | |")
    before = proxy.memory_info().rss
    writers += await _stalled_streams(place.listen, PATH, STALLED)
    more = (proxy.memory_info().rss - before) / MIB
    print(f"| {STALLED} streams that their clients do not read | | + {more:.0f} MiB | |")
    for writer in writers:
        writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench services", description=__doc__)
    add = parser.add_argument
    add("--seconds", type=float, default=5.0, metavar="N", help="of load (default: %(default)s)")
    add("--mebibytes", type=int, default=512, metavar="N", help="of stream (default: %(default)s)")
    add("--streams", type=int, default=1000, metavar="N", help="open at once")
    add("--app", type=int, help=argparse.SUPPRESS)
    add("--proxy", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.app:
        uvloop.run(_serve_app(given.app))
    elif given.proxy:
        uvloop.run(_serve_proxy(msgspec.json.decode(given.proxy.read_bytes(), type=Place)))
    elif os.geteuid() != 0:
        raise SystemExit("bench: it starts its own sshd: run it as root")
    else:
        unwind_on_sigterm()
        print(f"`./dev bench services` ({report.machine()}):\n")
        with bed() as (place, proxy):
            uvloop.run(_measure(place, proxy, given))


if __name__ == "__main__":
    main()
