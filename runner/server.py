"""The server joins the parts: one runner and its API on a unix socket, from start to end.

`fairlead-runner` uses it and, in the same process as pid 1's duties, `fairlead-entrypoint`. Peers
that may not connect are disconnected before their first byte is read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from common.processes.leaves import BEGIN
from common.sockets import BACKLOG
from fairlead.wire.runner import ExitRecord
from runner import metrics, relay
from runner.app import make_server
from runner.job.outcome import Scope, scope_of_this_process
from runner.logs.followers import FOLLOWER_PATIENCE
from runner.options import UMASK, Options
from runner.processes.signals import Signals
from runner.processes.spawn import Children
from runner.relay import Relay
from runner.runner import Runner
from runner.sockets import Peers, is_welcome, listen

_MakeProtocol = Callable[[], asyncio.Protocol]


class Listener:
    """The listening side. `http` makes protocols for requests; connections to a port of the job go
    to `relayed`, and those on which the shim brings cgroups to `leaves`."""

    def __init__(
        self, peers: Peers, http: _MakeProtocol, relayed: relay.Relay, leaves: _MakeProtocol
    ) -> None:
        self._peers = peers
        self._http = http
        self._relayed = relayed
        self._leaves = leaves
        self._waiting: set[asyncio.Transport] = set()

    def make_protocol(self) -> asyncio.Protocol:
        return _Visitor(self)

    def close(self) -> None:
        """Disconnect peers without a request, and end what is relayed."""
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

    def lead(self, transport: asyncio.Transport, data: bytes) -> None:
        self._waiting.discard(transport)
        make: _MakeProtocol = self._http
        if data.startswith(relay.BEGIN):
            make = self._relayed.make_protocol
        elif data.startswith(BEGIN):
            make = self._leaves
        protocol = make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(data)


class _Visitor(asyncio.Protocol):
    """A new connection; a peer that may not connect is cut off before it can send a byte."""

    def __init__(self, listening: Listener) -> None:
        self._listening = listening
        self._transport: asyncio.Transport | None = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if not self._listening.welcomes(transport):
            transport.abort()
            return
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        self._received += data
        # Even the first bytes of a request may come in pieces.
        begins = (some for some in (relay.BEGIN, BEGIN) if len(self._received) < len(some))
        if not any(some.startswith(self._received) for some in begins):
            self._listening.lead(self._transport, self._received)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._listening.gone(self._transport)


EXIT_NOT_STARTED = 125
"""Exit status of a runner whose job was never started."""
_LOG_SIZE = 1 << 20
_SHUTDOWN_TIME = 2.0


class _RunnerLog(logging.FileHandler):
    """Two files of bounded size, as of a RotatingFileHandler, whose module brings pickle and
    queues: 3 ms of a job's start."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self.stream is not None and self.stream.tell() >= _LOG_SIZE:
                self.close()  # the next record opens the file again
                os.replace(self.baseFilename, f"{self.baseFilename}.1")
        except OSError:
            self.handleError(record)
        super().emit(record)


def log_to(task: Path) -> None:
    """Log to `runner.log` in the task's folder, at most two files of 1 MiB, apart from the job's
    log. Raises OSError."""
    task.mkdir(parents=True, exist_ok=True)
    handler = _RunnerLog(task / "runner.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)


@asynccontextmanager
async def served(
    runner: Runner,
    path: Path,
    peers: Peers,
    *,
    patience: float = FOLLOWER_PATIENCE,
    listener: socket.socket | None = None,
) -> AsyncIterator[None]:
    """Answer on the socket at `path`, which is `listener` if given, for the length of the block.

    A follower that reads nothing for `patience` seconds is dropped. Raises SocketUnusable.
    """
    relay = Relay()
    in_container = peers is Peers.NODE
    measure = metrics.measure if in_container else metrics.measure_own_processes
    http = make_server(runner, relay, patience=patience, measure=measure)
    listening = Listener(peers, http.make_protocol, relay, runner.leaves.make_protocol)
    loop = asyncio.get_running_loop()
    listener = listener or await asyncio.to_thread(listen, path)
    server = await loop.create_unix_server(listening.make_protocol, sock=listener, backlog=BACKLOG)
    try:
        yield
    finally:
        server.close()
        listening.close()
        await http.close(_SHUTDOWN_TIME)
        await asyncio.to_thread(path.unlink, missing_ok=True)


async def serve(
    options: Options,
    children: Children | None = None,
    scope: Scope | None = None,
    listener: socket.socket | None = None,
    signals: Signals | None = None,
) -> int:
    """Run one job to its end; return the status to exit with. Raises SocketUnusable and OSError.

    SIGTERM and SIGINT stop the job first, also a signal that came while it was blocked.
    """
    os.umask(UMASK)
    children = children or Children()
    runner = Runner(
        options.task,
        scope=scope or scope_of_this_process(adopts_orphans=children.adopts_orphans),
        children=children,
        settings=options.settings,
    )
    signals = signals or Signals()
    for number in (signal.SIGTERM, signal.SIGINT):
        signals.on(number, runner.shut_down)
    # The entrypoint has blocked it: one that came meanwhile is delivered here.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    try:
        async with served(runner, options.socket, options.peers, listener=listener):
            record = await runner.until_over()
    finally:
        await runner.close()
    return exit_status(record)


def exit_status(record: ExitRecord) -> int:
    return EXIT_NOT_STARTED if record.exit_code is None else record.exit_code
