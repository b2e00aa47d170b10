"""The seam between the controller and a node's two daemons.

A `NodeLink` knows how to connect. A `NodeConnection` is one life of that connection; it gives
clients of the shim and of each task's runner. The real versions are `SshLink` and
`LocalLink` (`clients`); the simulation has its own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from common.streams import PortStream
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
    ExposedPort,
    Fence,
    Health,
    TaskInfo,
    TaskRequest,
    TerminateRequest,
    WantedImages,
)
from fairlead.wire.sizes import OutputsAbout


class LogPieces(Protocol):
    def pieces(self) -> AsyncIterator[bytes]:
        """Yield raw frames, cut anywhere."""


class OutputPieces(Protocol):
    """A tar of outputs. `about`: what the whole tar holds."""

    about: OutputsAbout

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield bytes of the tar, cut anywhere."""


class ShimApi(Protocol):
    """The requests of the controller to a shim (see `shim.client.ShimClient`)."""

    async def health(self, *, fence: Fence | None = None) -> Health:
        """Return the shim's health. With a fence, tasks with `on_disconnect: stop` hear from their
        controller."""

    async def node(self) -> NodeInfo: ...
    async def node_metrics(self) -> NodeMetrics: ...
    async def doctor(self) -> Sequence[Finding]: ...
    async def put_task(
        self, task_id: str, request: TaskRequest, *, fence: Fence, incarnation: int
    ) -> TaskInfo: ...
    async def tasks(self) -> Sequence[TaskInfo]: ...
    async def task(self, task_id: str) -> TaskInfo: ...
    async def claim(self, task_id: str, *, run_id: str, fence: Fence, incarnation: int) -> TaskInfo:
        """Claim the task: any controller that commanded its run before is refused from now on."""

    async def terminate(
        self,
        task_id: str,
        order: TerminateRequest,
        *,
        run_id: str,
        fence: Fence,
        incarnation: int,
    ) -> TaskInfo: ...
    async def expose(
        self, task_id: str, port: int, *, run_id: str, fence: Fence, incarnation: int
    ) -> ExposedPort: ...
    async def put_gateways(self, keys: Iterable[str]) -> None: ...
    async def put_images(self, wanted: WantedImages, *, fence: Fence) -> None: ...
    async def prepare_host_key(self) -> HostKey: ...
    async def use_host_key(self, key: str) -> None: ...
    async def remove_task(
        self, task_id: str, *, run_id: str, fence: Fence, incarnation: int
    ) -> None: ...
    async def release_allocation(
        self, allocation_id: str, *, run_id: str, fence: Fence, incarnation: int
    ) -> None: ...
    async def allocations(self) -> Sequence[AllocationInfo]: ...
    async def drain(self, request: DrainRequest) -> NodeInfo: ...
    async def clear_gpu(self, uuid: str) -> NodeInfo: ...
    def events(self, after: str | None = None) -> AsyncGenerator[Event, None]: ...
    def logs(self, task_id: str, offset: int = 0) -> AbstractAsyncContextManager[LogPieces]: ...
    def outputs(
        self, task_id: str, *, offset: int, limit: int
    ) -> AbstractAsyncContextManager[OutputPieces]: ...


class RunnerApi(Protocol):
    """The requests of the controller to a runner (see `runner.client.RunnerClient`)."""

    async def health(self) -> RunnerHealth: ...
    async def start(self, request: SubmitRequest) -> StatusEvent: ...
    async def put_code(self, digest: str, content: bytes | AsyncIterable[bytes]) -> StatusEvent: ...
    async def run(self) -> StatusEvent: ...
    async def again(self, request: AgainRequest) -> AgainAnswer: ...
    async def ack(self, offset: int) -> int: ...
    async def batch(self, request: BatchRequest) -> BatchAnswer: ...
    async def notice(self, id: str, text: str) -> None: ...
    async def stop(
        self,
        *,
        signal: str | None = None,
        grace: float = 10.0,
        interrupt: bool = False,
        delay: float = 0.0,
    ) -> StatusEvent: ...
    async def signal(self, request: SignalRequest) -> StatusEvent: ...
    async def suspend(self, suspended: bool) -> None: ...
    async def metrics(self) -> JobMetrics: ...
    def status_events(self, after: int = 0) -> AsyncGenerator[StatusEvent, None]: ...
    def follow_logs(self, offset: int) -> AsyncGenerator[bytes, None]: ...
    async def connect_port(self, port: int) -> PortStream: ...


class NodeConnection(Protocol):
    """One life of the connection to a node."""

    runners: ListeningRunners
    """Which of the node's runners listen; the node's session keeps it."""

    @property
    def shim(self) -> ShimApi: ...

    def runner(self, socket_path: str) -> RunnerApi:
        """Return the client of the runner at this socket of the node. Raises LinkError once
        closed."""

    async def forget_runner(self, socket_path: str) -> None:
        """Close what is kept open to that runner."""

    def heard_at(self) -> float:
        """Return when the last byte came from one of the node's daemons, in seconds of the event
        loop's clock; -inf: never.

        The connection reports at least the bytes that it kept to itself.
        """

    async def wait_closed(self) -> None:
        """Return when the connection is gone, for any reason."""

    async def close(self) -> None: ...


class NodeLink(Protocol):
    """Makes connections to one node."""

    async def connect(self) -> NodeConnection:
        """Connect. Raises LinkError; HostKeyRefused when the host key is not the pinned one."""
