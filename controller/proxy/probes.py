"""Probes: the controller asks replicas whether they are ready, through the relay.

Only what a probe saw is reported; what follows from it is for the lifecycle to decide.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

import msgspec

from controller.clock import Clock
from controller.proxy import headers
from controller.proxy.replicas import Replicas, Unreachable
from controller.proxy.upstream import ReplicaConnection, ResponseHead, UpstreamError
from controller.proxy.view import Replica

log = logging.getLogger(__name__)
MOST_BODY = 1 << 20
"""Of an answer; a probe reads it to its end, because an answer that breaks off is a failure."""
DEFAULT_SECONDS = 10.0


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """`url` is a path at the replica's port; None: the port must accept a connection."""

    url: str | None = None
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body: str | None = None
    timeout: float = DEFAULT_SECONDS
    interval: float = DEFAULT_SECONDS


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """`at`: Unix seconds of the answer. `status`: of HTTP, if there was one."""

    ok: bool
    at: float
    seconds: float
    status: int | None = None
    message: str | None = None
    """Why it failed."""


class Listener(Protocol):
    def probed(self, replica_id: str, probe: int, result: ProbeResult) -> None:
        """The probe with this index has run."""


class Prober:
    """Runs the probes of all replicas, each every `interval` seconds after its last end."""

    def __init__(self, replicas: Replicas, clock: Clock, listener: Listener) -> None:
        self._replicas = replicas
        self._clock = clock
        self._listener = listener
        self._running: dict[tuple[str, int], tuple[Replica, Probe, asyncio.Task[None]]] = {}

    def probe(self, wanted: Iterable[tuple[Replica, tuple[Probe | None, ...]]]) -> None:
        """Run exactly these probes from now on. None in the place of a probe: it is not run any
        more, and the others keep their index."""
        specs = {
            (replica.id, index): (replica, probe)
            for replica, probes in wanted
            for index, probe in enumerate(probes)
            if probe is not None
        }
        for key, (replica, probe, task) in list(self._running.items()):
            if specs.get(key) != (replica, probe):
                task.cancel()
                del self._running[key]
        for key in specs.keys() - self._running.keys():
            replica, probe = specs[key]
            task = asyncio.create_task(self._run(replica, key[1], probe), name=f"probe-{key[0]}")
            self._running[key] = (replica, probe, task)

    async def close(self) -> None:
        tasks = [task for _, _, task in self._running.values()]
        self._running.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, replica: Replica, index: int, probe: Probe) -> None:
        while True:
            result = await run(self._replicas, self._clock, replica, probe)
            self._listener.probed(replica.id, index, result)
            await asyncio.sleep(probe.interval)


async def run(replicas: Replicas, clock: Clock, replica: Replica, probe: Probe) -> ProbeResult:
    """Run a probe once."""
    now = asyncio.get_running_loop().time
    began = now()
    status, message = None, None
    try:
        async with asyncio.timeout(probe.timeout):
            connection = await replicas.open(replica)
            try:
                if probe.url is not None:
                    status = await _ask(connection, probe)
            finally:
                connection.close()
        if status is not None and not 200 <= status < 300:
            message = f"{probe.method} {probe.url} was answered with status {status}"
    except TimeoutError:
        message = f"no answer within {probe.timeout:g} s"
    except Unreachable as error:
        message = str(error)
    except UpstreamError as error:
        message = f"the replica {error}"
    return ProbeResult(
        ok=message is None,
        at=clock.now(),
        seconds=now() - began,
        status=status,
        message=message,
    )


async def _ask(connection: ReplicaConnection, probe: Probe) -> int:
    """Return the status, once the whole answer is here. Raises UpstreamError."""
    body = (probe.body or "").encode()
    own = {name.lower() for name, _ in probe.headers}
    sent = list(probe.headers)
    sent += [("Host", "localhost")] * ("host" not in own)
    sent += [("User-Agent", "fairlead-probe")] * ("user-agent" not in own)
    sent += [("Connection", "close")]
    if body or probe.method in ("POST", "PUT", "PATCH"):
        sent.append(("Content-Length", str(len(body))))
    await connection.send(headers.head_of(probe.method, probe.url or "/", sent) + body)
    answer: ResponseHead = await connection.answer(probe.method)
    size = 0
    while (data := await connection.read()) and size < MOST_BODY:
        size += len(data)
    return answer.status
