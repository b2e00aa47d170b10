"""The simulated way to a node, behind the same Protocols as the real one."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Sequence,
)
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from common.links.errors import HostKeyRefused, LinkError
from common.streams import PortStream
from controller.lifecycle.inventory import NodeAddress
from controller.links.listening import ListeningRunners
from fairlead.wire.job import SubmitRequest
from fairlead.wire.node import AllocationInfo, Finding, HostKey, NodeInfo, NodeMetrics
from fairlead.wire.runner import (
    AgainAnswer,
    AgainRequest,
    BatchAnswer,
    BatchRequest,
    JobMetrics,
    RunnerHealth,
    SignalRequest,
    StatusEvent,
)
from fairlead.wire.shim import (
    DrainRequest,
    Event,
    EventType,
    ExposedPort,
    Fence,
    Health,
    TaskInfo,
    TaskRequest,
    TerminateRequest,
    WantedImages,
)
from fairlead.wire.sizes import OutputsAbout
from runner.client import RunnerUnavailable
from shim.client import ShimUnavailable
from tests.simulation.container import Container
from tests.simulation.network import CONNECT_SECONDS, Weather, Wire
from tests.simulation.node import NobodyListens, SimulatedNode

T = TypeVar("T")

MAX_PIECE_BYTES = 5000


class SimulatedLink:
    """`address`: what a controller has pinned of the node; None: it asks for no host key."""

    def __init__(self, node: SimulatedNode, address: NodeAddress | None = None) -> None:
        self._node = node
        self._address = address

    async def connect(self) -> SimulatedConnection:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._node.weather.carry()
                await self._node.weather.carry()
        except TimeoutError:
            raise LinkError("no answer to the connection attempt") from None
        if self._node.weather.refusing:
            raise LinkError("connection refused")
        if not self._node.presents(self._address):
            raise HostKeyRefused("another host key is pinned")
        return SimulatedConnection(self._node)


class SimulatedConnection:
    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self._wire = node.wire()
        self.runners = ListeningRunners()
        self.shim = SimulatedShim(node, self._wire)

    def runner(self, socket_path: str) -> SimulatedRunner:
        if self._wire.closed.is_set():
            raise LinkError("the connection is closed")
        return SimulatedRunner(self._node, self._wire, socket_path)

    async def forget_runner(self, socket_path: str) -> None:
        await asyncio.sleep(0)

    def heard_at(self) -> float:
        return float("-inf")

    async def wait_closed(self) -> None:
        await self._wire.closed.wait()

    async def close(self) -> None:
        self.cut()

    def cut(self) -> None:
        self._wire.cut()


class SimulatedShim:
    def __init__(self, node: SimulatedNode, wire: Wire) -> None:
        self._node = node
        self._wire = wire

    async def health(self, *, fence: Fence | None = None) -> Health:
        return await self._ask(partial(self._node.health, fence=fence))

    async def allocations(self) -> Sequence[AllocationInfo]:
        return await self._ask(self._node.allocations)

    async def node(self) -> NodeInfo:
        return await self._ask(self._node.node)

    async def put_task(
        self, task_id: str, request: TaskRequest, *, fence: Fence, incarnation: int
    ) -> TaskInfo:
        put = self._node.put_task
        return await self._ask(partial(put, task_id, request, fence=fence, incarnation=incarnation))

    async def tasks(self) -> tuple[TaskInfo, ...]:
        return await self._ask(self._node.list_tasks)

    async def task(self, task_id: str) -> TaskInfo:
        return await self._ask(partial(self._node.task, task_id))

    async def claim(self, task_id: str, *, run_id: str, fence: Fence, incarnation: int) -> TaskInfo:
        claim = self._node.claim
        return await self._ask(
            partial(claim, task_id, run_id=run_id, fence=fence, incarnation=incarnation)
        )

    async def expose(
        self, task_id: str, port: int, *, run_id: str, fence: Fence, incarnation: int
    ) -> ExposedPort:
        expose = self._node.expose
        return await self._ask(
            partial(expose, task_id, port, run_id=run_id, fence=fence, incarnation=incarnation)
        )

    async def put_gateways(self, keys: Iterable[str]) -> None:
        await self._ask(partial(self._node.put_gateways, tuple(keys)))

    async def prepare_host_key(self) -> HostKey:
        return await self._ask(self._node.prepare_host_key)

    async def use_host_key(self, key: str) -> None:
        await self._ask(partial(self._node.use_host_key, key))

    async def put_images(self, wanted: WantedImages, *, fence: Fence) -> None:
        await self._ask(partial(self._node.put_images, wanted, fence=fence))

    async def terminate(
        self,
        task_id: str,
        order: TerminateRequest,
        *,
        run_id: str,
        fence: Fence,
        incarnation: int,
    ) -> TaskInfo:
        end = self._node.terminate
        return await self._ask(
            partial(end, task_id, order, run_id=run_id, fence=fence, incarnation=incarnation)
        )

    async def remove_task(
        self, task_id: str, *, run_id: str, fence: Fence, incarnation: int
    ) -> None:
        remove = self._node.remove_task
        await self._ask(
            partial(remove, task_id, run_id=run_id, fence=fence, incarnation=incarnation)
        )

    async def release_allocation(
        self, allocation_id: str, *, run_id: str, fence: Fence, incarnation: int
    ) -> None:
        release = self._node.release_allocation
        await self._ask(
            partial(release, allocation_id, run_id=run_id, fence=fence, incarnation=incarnation)
        )

    async def drain(self, request: DrainRequest) -> NodeInfo:
        return await self._ask(partial(self._node.drain, request))

    async def node_metrics(self) -> NodeMetrics:
        raise NotImplementedError("simulated nodes measure nothing")

    async def doctor(self) -> tuple[Finding, ...]:
        raise NotImplementedError("simulated nodes are never examined")

    async def clear_gpu(self, uuid: str) -> NodeInfo:
        raise NotImplementedError("simulated GPUs do not break")

    def events(self, after: str | None = None) -> AsyncGenerator[Event, None]:
        weather = self._node.weather
        return self._wire.stream(
            lambda: _shaken(self._node.events(after), weather), ShimUnavailable
        )

    @asynccontextmanager
    async def logs(self, task_id: str, offset: int = 0) -> AsyncIterator[SimulatedLog]:
        async def read() -> bytes:
            return self._node.log(task_id, offset)

        yield SimulatedLog(self._wire, await self._ask(read), self._node.weather)

    @asynccontextmanager
    async def outputs(
        self, task_id: str, *, offset: int, limit: int
    ) -> AsyncIterator[SimulatedOutputs]:
        async def read() -> tuple[OutputsAbout, bytes]:
            return self._node.outputs(task_id, offset)

        about, body = await self._ask(read)
        yield SimulatedOutputs(about, SimulatedLog(self._wire, body, self._node.weather))

    async def _ask(self, serve: Callable[[], Awaitable[T]]) -> T:
        return await self._wire.ask(serve, ShimUnavailable)


class SimulatedOutputs:
    def __init__(self, about: OutputsAbout, body: SimulatedLog) -> None:
        self.about = about
        self._body = body

    async def pieces(self) -> AsyncIterator[bytes]:
        async for piece in self._body.pieces():
            yield piece


class SimulatedLog:
    """Bytes of the answer's body, cut anywhere."""

    def __init__(self, wire: Wire, body: bytes, weather: Weather) -> None:
        self._wire = wire
        self._body = body
        self._weather = weather

    async def pieces(self) -> AsyncIterator[bytes]:
        async for piece in self._wire.stream(self._cut, ShimUnavailable):
            yield piece

    async def _cut(self) -> AsyncIterator[bytes]:
        at = 0
        while at < len(self._body):
            size = self._weather.chance.randint(1, MAX_PIECE_BYTES)
            yield self._body[at : at + size]
            at += size


class SimulatedRunner:
    def __init__(self, node: SimulatedNode, wire: Wire, socket: str) -> None:
        self._node = node
        self._wire = wire
        self._socket = socket

    async def health(self) -> RunnerHealth:
        return await self._ask(lambda container: container.health())

    async def start(self, request: SubmitRequest) -> StatusEvent:
        return await self._ask(lambda container: container.start(request))

    async def put_code(self, digest: str, content: bytes | AsyncIterable[bytes]) -> StatusEvent:
        return await self._ask(lambda container: container.put_code(digest))

    async def run(self) -> StatusEvent:
        return await self._ask(lambda container: container.run())

    async def notice(self, id: str, text: str) -> None:
        await self._ask(lambda container: container.notice(id, text))

    async def ack(self, offset: int) -> int:
        return await self._ask(lambda container: container.ack(offset))

    async def again(self, request: AgainRequest) -> AgainAnswer:
        return await self._ask(lambda container: container.again(request))

    async def batch(self, request: BatchRequest) -> BatchAnswer:
        return await self._ask(lambda container: container.batch(request))

    async def stop(
        self,
        *,
        signal: str | None = None,
        grace: float = 10.0,
        interrupt: bool = False,
        delay: float = 0.0,
    ) -> StatusEvent:
        return await self._ask(
            lambda container: container.stop(
                signal=signal, grace=grace, interrupt=interrupt, delay=delay
            )
        )

    async def signal(self, request: SignalRequest) -> StatusEvent:
        return await self._ask(lambda container: container.signal(request))

    async def suspend(self, suspended: bool) -> None:
        await self._ask(lambda container: container.suspend())

    def status_events(self, after: int = 0) -> AsyncGenerator[StatusEvent, None]:
        return self._wire.stream(lambda: self._container().status_events(after), RunnerUnavailable)

    def follow_logs(self, offset: int) -> AsyncGenerator[bytes, None]:
        return self._wire.stream(lambda: self._container().follow_logs(offset), RunnerUnavailable)

    async def metrics(self) -> JobMetrics:
        return await self._ask(lambda container: container.metrics())

    async def connect_port(self, port: int) -> PortStream:
        return await self._ask(lambda container: container.connect_port(port))

    async def _ask(self, serve: Callable[[Container], Awaitable[T]]) -> T:
        async def on_node() -> T:
            return await serve(self._container())

        return await self._wire.ask(on_node, RunnerUnavailable)

    def _container(self) -> Container:
        try:
            return self._node.container_at(self._socket)
        except NobodyListens:
            raise RunnerUnavailable("there is no such socket") from None


async def _shaken(events: AsyncIterator[Event], weather: Weather) -> AsyncIterator[Event]:
    """Some twice, some after their successor: a shim may say more than it must."""
    held: Event | None = None
    async for event in events:
        if event.type is EventType.TASK and held is None and weather.happens(weather.reordering):
            held = event
            continue
        yield event
        if event.type is EventType.TASK and weather.happens(weather.duplicates):
            yield event
        if held is not None:
            yield held
            held = None
