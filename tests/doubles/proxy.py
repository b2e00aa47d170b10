"""Doubles of what the proxy stands between: the lifecycle of services, and nodes with replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from controller.proxy.view import Replica, Service
from runner.client import PortStream, RunnerError
from tests.doubles.node import FakeConnection, FakeRunner


class PlantedServices:
    """Has the services that a test puts there; `held` notes each count of waiting requests."""

    def __init__(self) -> None:
        self.held: list[tuple[str, int]] = []
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

    def hold(self, run_id: str, held: int) -> None:
        self.held.append((run_id, held))

    async def changed(self) -> None:
        await self._changed.wait()


class NotedTraffic:
    """Notes what it is told, and sets `news` each time."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.ended_ones: list[tuple[str, str, float | None, bool]] = []
        self.news = asyncio.Event()

    def began(self, service: Service, group: str) -> None:
        self.in_flight += 1
        self.news.set()

    def ended(self, service: Service, group: str, *, seconds: float | None, failed: bool) -> None:
        self.in_flight -= 1
        self.ended_ones.append((service.run_id, group, seconds, failed))
        self.news.set()


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
