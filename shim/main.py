"""The shim's command: read the arguments, take the data folder, serve until stopped.

SIGTERM ends the shim, never a task. A second shim on the same data folder or socket is refused.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from aiohttp import web

from fairlead.wire.node import EngineKind, HostNetwork
from shim import adapters
from shim.api.app import make_runner
from shim.daemon import Daemon, Identity, disk_threads
from shim.engines.base import Engine
from shim.errors import EngineError, StartError
from shim.gpus.selection import Exclusion
from shim.monitoring.watchdog import READY, STOPPING, Systemd
from shim.node import ledger
from shim.options import capacity_of, command_parser, log_level, settings_of
from shim.settings import Settings

log = logging.getLogger("shim")
_SHUTDOWN_SECONDS = 2.0
_GC_THRESHOLDS = (10_000, 10, 10)
"""A container's description alone is a thousand objects, and nearly none of them is in a circle."""


def main(argv: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["doctor"]:
        from shim.monitoring import doctor

        raise SystemExit(doctor.main(words[1:]))
    arguments = command_parser().parse_args(words)
    try:
        asked = "debug" if arguments.verbose else arguments.log_level
        logging.basicConfig(
            level=log_level(asked, os.environ),
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        )
        asyncio.run(_run(arguments))
    except (StartError, EngineError) as error:
        raise SystemExit(f"fairlead-shim: {error}") from None
    except OSError as error:
        where = error.filename or f"with --data {arguments.data} and --socket {arguments.socket}"
        why = error.strerror or error
        raise SystemExit(f"fairlead-shim: cannot start: {where}: {why}") from None


async def _run(arguments: argparse.Namespace) -> None:
    settings = settings_of(arguments)
    threads = disk_threads()
    with _lock(settings.data):
        _refuse_taken(settings.socket)
        try:
            await _serve(arguments, settings, threads)
        finally:
            threads.shutdown(wait=True)


async def _serve(
    arguments: argparse.Namespace, settings: Settings, threads: ThreadPoolExecutor
) -> None:
    stop = asyncio.Event()
    # Before anything is made: without a handler SIGTERM ends the process amid a start.
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    capacity = capacity_of(arguments, settings)
    adapter = adapters.engine(EngineKind(arguments.engine))
    identity = await Identity.load(settings, threads, adapter.find_install)
    engine = adapter.make(settings, threads, identity.record.install_id)
    if not engine.isolation:
        log.warning("the %s engine is for development only: tasks are not isolated", engine.kind)
    check_host_network(settings.host_network, engine)
    gpus = adapters.gpus([Exclusion.parse(text) for text in arguments.exclude_gpu])
    split = None if arguments.blocks is None else ledger.parse(arguments.blocks)
    systemd = Systemd()
    daemon = await Daemon.open(
        settings, engine, gpus, capacity, identity, threads, blocks=split, systemd=systemd
    )
    runner = make_runner(daemon, shutdown_timeout=_SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        async with _listening(runner, settings):
            log.info("engine %s, listening on %s", engine.kind, settings.socket)
            _collect_less()
            systemd.tell(READY)
            await stop.wait()
            systemd.tell(STOPPING)
    finally:
        # First, because aiohttp waits for the streams of events that are still open.
        daemon.events.close()
        await runner.cleanup()
        await daemon.close()


def _collect_less() -> None:
    """Look for garbage less often than Python does, and not among what is loaded by now: that took
    each of 20 starts at once 3 of 20 ms."""
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def check_host_network(asked: HostNetwork, engine: Engine) -> None:
    """Raise StartError if the setting cannot be kept."""
    if asked is HostNetwork.NEVER and not engine.has_networks:
        raise StartError(
            f"--host-network never: the tasks of the {engine.kind} engine have no network but the "
            "node's; use --engine docker"
        )


@contextlib.contextmanager
def _lock(data: Path) -> Iterator[None]:
    fd = os.open(data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # The kernel drops this lock with the process, so a killed shim leaves none (flock(2)).
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise StartError(f"--data {data}: another shim works on this folder") from None
    finally:
        os.close(fd)


@contextlib.asynccontextmanager
async def _listening(runner: web.AppRunner, settings: Settings) -> AsyncIterator[None]:
    """Listen. The socket gets its name once it is open, so a client that sees it can connect, with
    the right permissions."""
    unfinished = settings.socket.with_name(f"{settings.socket.name}.new")
    await web.SockSite(runner, _bind(unfinished, settings.gid)).start()
    unfinished.rename(settings.socket)
    try:
        yield
    finally:
        settings.socket.unlink(missing_ok=True)


def _bind(path: Path, gid: int) -> socket.socket:
    # A killed shim leaves its socket, and bind(2) refuses a path that exists.
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # bind(2) makes the file: with the usual umask, others could connect before the chmod.
        umask = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(umask)
        # Without root, a file goes only to a group that its owner is in (chown(2)).
        with contextlib.suppress(PermissionError):
            os.chown(path, -1, gid)
        path.chmod(0o660)
    except BaseException:
        listener.close()
        raise
    return listener


def _refuse_taken(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_socket():
        raise StartError(f"--socket {path}: a file that is not a socket exists there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A shim that was killed leaves its socket's file, on which nothing listens.
        if probe.connect_ex(str(path)) == 0:
            raise StartError(f"--socket {path}: another process listens there")


if __name__ == "__main__":
    main()
