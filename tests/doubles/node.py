"""A node that says what a test plants, and notes what it is asked for.

`FakeLink` connects to it; `FakeConnection` has a `FakeShim` and a `FakeRunner`.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    MutableMapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress

from common.streams import PortStream
from controller.links.base import LogPieces, NodeConnection, OutputPieces
from controller.links.listening import ListeningRunners
from fairlead.wire.frames import BadFrame, Decoder
from fairlead.wire.job import SubmitRequest
from fairlead.wire.node import AllocationInfo, Finding, HostKey, NodeInfo, NodeMetrics
from fairlead.wire.runner import (
    AgainAnswer,
    AgainRequest,
    BatchAnswer,
    BatchRequest,
    ExitRecord,
    JobMetrics,
    RunnerHealth,
    RunnerState,
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
    TaskStatus,
    TerminateRequest,
    WantedImages,
)
from fairlead.wire.sizes import OutputsAbout
from shim.client import ShimUnavailable
from tests.doubles.clock import NOW, ManualClock
from tests.doubles.runner import RunnerRules
from tests.doubles.shim import KeptTask, ShimState, node_info

HEALTH = Health(version="1", api_versions=("v1",), boot_id="boot", install_id="inst", epoch="e")
METRICS = NodeMetrics(
    at=NOW,
    cpu=8.0,
    cpu_allocated=0.0,
    cpu_seconds=1.0,
    load=0.0,
    memory=1 << 30,
    memory_allocated=0,
    memory_available=1 << 30,
    disk=1 << 30,
    disk_allocated=0,
    disk_total=1 << 30,
    disk_free=1 << 30,
    shim_memory=1 << 20,
    shim_cpu_seconds=0.1,
    draining=False,
)
USED = JobMetrics(
    at=NOW,
    cpu_seconds=12.5,
    memory=300 << 20,
    memory_working_set=200 << 20,
    memory_peak=400 << 20,
    memory_limit=1 << 30,
    oom_kills=0,
    connections=0,
)

KILLED = 137


class _Pieces:
    def __init__(self, data: Sequence[bytes]) -> None:
        self._data = data

    async def pieces(self) -> AsyncIterator[bytes]:
        for piece in self._data:
            yield piece


class _Outputs:
    def __init__(self, about: OutputsAbout, data: Sequence[bytes | Exception]) -> None:
        self.about = about
        self._data = data

    async def pieces(self) -> AsyncIterator[bytes]:
        for piece in self._data:
            if isinstance(piece, Exception):
                raise piece
            yield piece


class _Listing(MutableMapping[str, TaskInfo]):
    """The tasks of a shim. A task that a test puts in was accepted earlier."""

    def __init__(self, state: ShimState[KeptTask]) -> None:
        self._state = state

    def __getitem__(self, task_id: str) -> TaskInfo:
        return self._state.tasks[task_id].info

    def __setitem__(self, task_id: str, info: TaskInfo) -> None:
        self._state.plant_task(info)

    def __delitem__(self, task_id: str) -> None:
        del self._state.tasks[task_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.tasks)

    def __len__(self) -> int:
        return len(self._state.tasks)


class FakeShim:
    """Behaves by the rules of `ShimState`; a task ends at once when it is told.

    `asked` notes every change that was ordered, also one that is refused then; `refusal` is raised
    by all of them before.
    """

    def __init__(self) -> None:
        self._state = ShimState(node_info(), ManualClock(), KeptTask, epoch=HEALTH.epoch)
        self.asked: list[tuple[str, str]] = []
        self.requests: list[TaskRequest] = []
        self.orders: list[TerminateRequest] = []
        self.fences: list[tuple[Fence, int]] = []
        self.released_as: list[int] = []
        """The incarnations with which allocations were released."""
        self.claims: list[tuple[str, Fence, int]] = []
        self.refusal: Exception | None = None
        self.gives_up: asyncio.Event | None = None
        """The answers to removals are lost; who waits for one gives up after this."""
        self.on_order: Callable[[], None] = lambda: None
        """Called before each change that was ordered."""
        self.listing = _Listing(self._state)
        self.log: list[bytes] = []
        self.log_offsets: list[int] = []
        self.output_pieces: list[bytes | Exception] = []
        self.outputs_about = OutputsAbout(files=0, size=0, left_out=0, left_out_size=0, length=0)
        self.output_offsets: list[tuple[int, int]] = []
        self.says = HEALTH
        self.metrics = METRICS
        self.findings: tuple[Finding, ...] = ()
        self.stream: asyncio.Queue[Event | Exception | None] = asyncio.Queue()
        self.tells = False
        """Tells its own events, instead of those in `stream`."""
        self.silent = False
        self.deaf = False
        """Answers no probe any more."""
        self.probed = 0
        self.greetings: list[Fence] = []
        self.drained: list[DrainRequest] = []
        self.listed = asyncio.Event()
        self.may_list = asyncio.Event()
        self.may_list.set()

    @property
    def info(self) -> NodeInfo:
        return self._state.node()

    @info.setter
    def info(self, planted: NodeInfo) -> None:
        self._state.plant_machine(planted)

    def plant_allocations(self, *held: AllocationInfo) -> None:
        for allocation in held:
            self._state.plant_allocation(allocation)

    def _order(self, verb: str, name: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.on_order()
        self.asked.append((verb, name))

    async def health(self, *, fence: Fence | None = None) -> Health:
        self.probed += 1
        if fence is not None:
            self.greetings.append(fence)
        if self.deaf:
            await asyncio.Event().wait()
        return self.says

    async def allocations(self) -> Sequence[AllocationInfo]:
        return self._state.allocations()

    async def node(self) -> NodeInfo:
        return self.info

    async def put_task(
        self, task_id: str, request: TaskRequest, *, fence: Fence, incarnation: int
    ) -> TaskInfo:
        self._order("put", task_id)
        self.requests.append(request)
        self.fences.append((fence, incarnation))
        task, _ = self._state.put(task_id, request, fence=fence, incarnation=incarnation)
        return task.info

    async def tasks(self) -> Sequence[TaskInfo]:
        self.listed.set()
        await self.may_list.wait()
        return tuple(self.listing.values())

    async def task(self, task_id: str) -> TaskInfo:
        return self._state.known(task_id).info

    async def claim(self, task_id: str, *, run_id: str, fence: Fence, incarnation: int) -> TaskInfo:
        self.claims.append((task_id, fence, incarnation))
        claim = self._state.claim
        return claim(task_id, run_id=run_id, fence=fence, incarnation=incarnation).info

    async def terminate(
        self,
        task_id: str,
        order: TerminateRequest,
        *,
        run_id: str,
        fence: Fence,
        incarnation: int,
    ) -> TaskInfo:
        self._order("terminate", task_id)
        self.orders.append(order)
        task = self._state.claim(task_id, run_id=run_id, fence=fence, incarnation=incarnation)
        if task.order_stop(order):
            ended = TaskStatus.TERMINATED
            self._state.enter(task, ended, reason=order.reason, message=order.message)
        return task.info

    async def expose(
        self, task_id: str, port: int, *, run_id: str, fence: Fence, incarnation: int
    ) -> ExposedPort:
        self._order("expose", task_id)
        expose = self._state.expose
        return expose(task_id, port, run_id=run_id, fence=fence, incarnation=incarnation)

    async def put_gateways(self, keys: Iterable[str]) -> None:
        self._state.put_gateways(keys)

    async def prepare_host_key(self) -> HostKey:
        return self._state.prepare_host_key()

    async def use_host_key(self, key: str) -> None:
        self._state.use_host_key(key)

    async def put_images(self, wanted: WantedImages, *, fence: Fence) -> None:
        self._order("images", str(len(wanted.images)))
        self._state.put_images(wanted, fence=fence)

    @property
    def images_wanted(self) -> WantedImages:
        return self._state.images_wanted

    @property
    def gateway_keys(self) -> tuple[str, ...]:
        return self._state.gateway_keys

    async def remove_task(
        self, task_id: str, *, run_id: str, fence: Fence, incarnation: int
    ) -> None:
        self._order("remove", task_id)
        self._state.remove(task_id, run_id=run_id, fence=fence, incarnation=incarnation)
        if self.gives_up is not None:
            await self.gives_up.wait()
            raise ShimUnavailable("no answer within 30 s")

    async def release_allocation(
        self, allocation_id: str, *, run_id: str, fence: Fence, incarnation: int
    ) -> None:
        self._order("release", allocation_id)
        self.released_as.append(incarnation)
        self._state.release(allocation_id, run_id=run_id, fence=fence, incarnation=incarnation)

    async def drain(self, request: DrainRequest) -> NodeInfo:
        self.drained.append(request)
        self._state.drain(request.draining)
        return self.info

    async def node_metrics(self) -> NodeMetrics:
        if self.refusal is not None:
            raise self.refusal
        return self.metrics

    async def doctor(self) -> tuple[Finding, ...]:
        self._order("doctor", "node")
        return self.findings

    async def clear_gpu(self, uuid: str) -> NodeInfo:
        self._order("clear_gpu", uuid)
        return self.info

    def events(self, after: str | None = None) -> AsyncGenerator[Event, None]:
        return self._state.events.follow(after) if self.tells else self._planted_events()

    async def _planted_events(self) -> AsyncGenerator[Event, None]:
        if self.silent:
            return
        yield Event(cursor="e.0", type=EventType.HEARTBEAT)
        while (event := await self.stream.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield event

    @asynccontextmanager
    async def outputs(
        self, task_id: str, *, offset: int, limit: int
    ) -> AsyncIterator[OutputPieces]:
        self.output_offsets.append((offset, limit))
        self._state.with_outputs(task_id)
        yield _Outputs(self.outputs_about, self.output_pieces)

    @asynccontextmanager
    async def logs(self, task_id: str, offset: int = 0) -> AsyncIterator[LogPieces]:
        self.log_offsets.append(offset)
        self._state.known(task_id)
        yield _Pieces(self.log)


class FakeRunner:
    """Behaves by the rules of `RunnerRules`; a job ends at once when it is told.

    `asked` notes every change that was ordered. `failures` are raised first, one by each call;
    None: that call goes well.
    """

    def __init__(self) -> None:
        self._rules = RunnerRules(ManualClock())
        self._rules.listen()
        self.asked: list[str] = []
        self.submitted: list[SubmitRequest] = []
        self.code: dict[str, bytes] = {}
        self.failures: list[Exception | None] = []
        self.acked: list[int] = []
        self.acknowledged = asyncio.Event()
        self.notices: list[tuple[str, str]] = []
        self.notice_failures: list[Exception] = []
        self.noticed = asyncio.Event()
        self.ack_failure: Exception | None = None
        self.stops: list[tuple[str | None, float]] = []
        self.delays: list[float] = []
        """Of the stop signals."""
        self.statuses: list[StatusEvent | Exception] = []
        self.tells = False
        """Tells its own states, instead of those in `statuses`."""
        self.log: list[bytes | Exception | asyncio.Event] = []
        self._log_end = 0
        self.batches: list[BatchRequest] = []
        self.answers: list[BatchAnswer | Exception] = []
        """What the exchanges of a batch are answered, in order; then nothing is there."""
        self.agains: list[AgainRequest] = []
        self.again_answers: list[AgainAnswer] = []
        """Then each start has begun."""
        self._missing_again: set[str] = set()
        self.log_offsets: list[int] = []
        self.ports: dict[int, PortStream] = {}
        self.used = USED

    def _note(self, verb: str) -> None:
        self._fail()
        self.asked.append(verb)

    def _fail(self) -> None:
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure

    async def health(self) -> RunnerHealth:
        return self._rules.health(self._end_of_log())

    async def start(self, request: SubmitRequest) -> StatusEvent:
        self._note("start")
        self.submitted.append(request)
        self._rules.submit(request)
        if not self._rules.waits_for_code:
            self._rules.run()
        return self._rules.latest

    async def put_code(self, digest: str, content: bytes | AsyncIterable[bytes]) -> StatusEvent:
        assert not isinstance(content, bytes)
        self.code[digest] = b"".join([piece async for piece in content])
        self._note("put_code")
        if digest not in self._missing_again:
            self._rules.receive_code(digest)
        return self._rules.latest

    async def run(self) -> StatusEvent:
        self._note("run")
        self._rules.run()
        return self._rules.latest

    async def notice(self, id: str, text: str) -> None:
        if self.notice_failures:
            raise self.notice_failures.pop(0)
        if self._rules.notice(id):
            self.notices.append((id, text))
        self.noticed.set()

    async def again(self, request: AgainRequest) -> AgainAnswer:
        self._note("again")
        self.agains.append(request)
        answer = self.again_answers.pop(0) if self.again_answers else AgainAnswer(begun=True)
        self._missing_again.update(answer.missing)
        return answer

    async def batch(self, request: BatchRequest) -> BatchAnswer:
        self.batches.append(request)
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def ack(self, offset: int) -> int:
        if self.ack_failure is not None:
            raise self.ack_failure
        acknowledged = self._rules.ack(offset, self._end_of_log())
        self.acked.append(offset)
        self.acknowledged.set()
        return acknowledged

    def _end_of_log(self) -> int:
        decoder = Decoder()
        with suppress(BadFrame):
            for piece in self.log:
                for frame in decoder.feed(piece) if isinstance(piece, bytes) else ():
                    self._log_end = max(self._log_end, frame.end)
        return self._log_end

    async def stop(
        self,
        *,
        signal: str | None = None,
        grace: float = 10.0,
        interrupt: bool = False,
        delay: float = 0.0,
    ) -> StatusEvent:
        self._note("interrupt" if interrupt else "stop")
        self.stops.append((signal, grace))
        self.delays.append(delay)
        end = self._end_of_log()
        if self._rules.stop(interrupt=interrupt, log_end=end):
            self._rules.conclude(self._rules.reason_when_killed(), KILLED, log_end=end)
        return self._rules.latest

    async def signal(self, request: SignalRequest) -> StatusEvent:
        self._note("signal")
        self._rules.signal(request)
        return self._rules.latest

    @property
    def signals(self) -> dict[str, SignalRequest]:
        return self._rules.signals

    async def suspend(self, suspended: bool) -> None:
        self._note("suspend" if suspended else "go on")

    async def status_events(self, after: int = 0) -> AsyncGenerator[StatusEvent, None]:
        for event in self._rules.states_after(after) if self.tells else self.statuses:
            if isinstance(event, Exception):
                raise event
            yield event

    async def follow_logs(self, offset: int) -> AsyncGenerator[bytes, None]:
        self.log_offsets.append(offset)
        self._rules.check_offset(offset, self._end_of_log())
        for piece in self.log:
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, asyncio.Event):
                await piece.wait()
            else:
                yield piece

    async def metrics(self) -> JobMetrics:
        self._fail()
        return self.used

    async def connect_port(self, port: int) -> PortStream:
        self._fail()
        return self.ports[port]


class FakeConnection:
    def __init__(self, shim: FakeShim | None = None) -> None:
        self.shim = shim or FakeShim()
        self.runners = ListeningRunners()
        self.the_runner = FakeRunner()
        self.forgotten: list[str] = []
        self.last_byte_at = float("-inf")
        self.closed = asyncio.Event()

    def runner(self, socket_path: str) -> FakeRunner:
        return self.the_runner

    async def forget_runner(self, socket_path: str) -> None:
        self.forgotten.append(socket_path)

    def heard_at(self) -> float:
        return self.last_byte_at

    async def wait_closed(self) -> None:
        await self.closed.wait()

    async def close(self) -> None:
        self.closed.set()


def status(state: RunnerState, ended: ExitRecord | None = None) -> StatusEvent:
    return StatusEvent(seq=1, at=NOW, state=state, exit=ended)


class FakeLink:
    """Gives `connection` unless `refusal` is set, once it `answers`."""

    def __init__(self) -> None:
        self.shim = FakeShim()
        self.connections: list[FakeConnection] = []
        self.refusal: Exception | None = None
        self.tries = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def connect(self) -> NodeConnection:
        self.tries += 1
        await self.answers.wait()
        if self.refusal is not None:
            raise self.refusal
        self.connections.append(FakeConnection(self.shim))
        return self.connections[-1]
