"""Doubles of what the proxy stands between: the lifecycle of services, and nodes with replicas."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import msgspec

from common.proxy.view import Replica, Service
from common.streams import PortStream
from runner.client import RunnerError
from tests.doubles.node import FakeConnection, FakeRunner


class PlantedServices:
    """Has the services that a test puts there; `woken` notes each time that one is woken."""

    def __init__(self) -> None:
        self.woken: list[str] = []
        self._services: dict[str, Service] = {}
        self._changed = asyncio.Event()

    def put(self, service: Service) -> None:
        self._services[service.name] = service
        self._tell()

    def put_replicas(self, name: str, *replicas: Replica) -> None:
        self.put(msgspec.structs.replace(self._services[name], replicas=replicas))

    def remove(self, name: str) -> None:
        del self._services[name]
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def find(self, name: str) -> Service | None:
        return self._services.get(name)

    def all(self) -> Iterable[Service]:
        return tuple(self._services.values())

    def wake(self, run_id: str) -> None:
        self.woken.append(run_id)

    async def changed(self, run_id: str) -> None:
        await self._changed.wait()


class _Noted:
    def __init__(self, traffic: NotedTraffic, at: str | None) -> None:
        self._traffic = traffic
        self._at = at
        traffic.in_flight[at] += 1

    def end(self, *, failed: bool = False, is_stream: bool = False) -> None:
        self._traffic.in_flight[self._at] -= 1
        self._traffic.ended.append((self._at, failed, is_stream))


class NotedTraffic:
    """Notes requests by the ids of their replicas; None: held ones. `ended` has (replica, failed,
    is a stream)."""

    def __init__(self) -> None:
        self.in_flight: Counter[str | None] = Counter()
        self.ended: list[tuple[str | None, bool, bool]] = []
        self.out: dict[str, float] = {}

    def begin(self, service: Service, replica: Replica | None) -> _Noted:
        return _Noted(self, None if replica is None else replica.id)

    def ejected(self, replica: Replica, seconds: float) -> None:
        self.out[replica.id] = seconds


class _PortsHere(FakeRunner):
    """The job's ports are those of this machine."""

    def __init__(self, opened: list[int]) -> None:
        super().__init__()
        self._opened = opened

    async def connect_port(self, port: int) -> PortStream:
        self._opened.append(port)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError as error:
            raise RunnerError("port_refused", f"nothing listens on port {port}", 502) from error
        return PortStream(reader, writer)


class NodeHere:
    """A node whose jobs listen on this machine; `opened` notes each port that was connected to."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self._connection = FakeConnection()
        self._connection.the_runner = _PortsHere(self.opened)

    async def connect(self, node_id: str) -> FakeConnection:
        return self._connection
