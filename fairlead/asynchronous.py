"""`AsyncClient`: the same client for programs with an event loop.

There is one implementation, the blocking one: a request runs in a thread of the loop's pool, a
stream in a thread of its own. A cancelled stream closes its connection, and so its thread ends.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from controller.api.documents import (
    CallerView,
    DeployView,
    EventView,
    ExplainView,
    MetricsAnswer,
    MetricsHistoryAnswer,
    NewServiceKeyView,
    NodeView,
    OutputsView,
    PlanView,
    RunSummary,
    RunView,
    SecretView,
    ServiceKeyView,
    ServiceView,
)
from controller.lifecycle.statuses import RunStatus
from fairlead.client import Client, IfExists, Output, Run, Source, Tell
from fairlead.offers import Offer

if TYPE_CHECKING:
    from fairlead.forward import LocalPort

T = TypeVar("T")
_AHEAD = 64
"""Items that a stream's thread reads before the program takes them."""


class AsyncClient:
    """A controller for a program with an event loop; arguments and errors are those of `Client`."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        controller: str | None = None,
        tell: Tell | None = None,
    ) -> None:
        self._client = Client(url, token, controller=controller, tell=tell)

    @property
    def url(self) -> str:
        """The URL of the controller."""
        return self._client.url

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.close()

    async def whoami(self) -> CallerView:
        """Return the user of the token."""
        return await asyncio.to_thread(self._client.whoami)

    async def submit(
        self,
        task: Source,
        *,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        if_exists: IfExists = "error",
        parent: AsyncRun | Run | str | None = None,
    ) -> AsyncRun:
        """Submit a run and return it at once, as `Client.submit` does."""
        run = await asyncio.to_thread(
            self._client.submit,
            task,
            name=name,
            env=env,
            if_exists=if_exists,
            parent=parent.id if isinstance(parent, AsyncRun) else parent,
        )
        return AsyncRun(run)

    async def deploy(
        self, service: AsyncRun | Run | str, task: Source, *, env: Mapping[str, str] | None = None
    ) -> DeployView:
        """Roll a changed configuration out to a live service, as `Client.deploy` does."""
        key = service if isinstance(service, str) else service.id
        return await asyncio.to_thread(self._client.deploy, key, task, env=env)

    async def plan(self, task: Source, *, name: str | None = None) -> PlanView:
        """Return where the run's jobs would go now, as `Client.plan` does."""
        return await asyncio.to_thread(self._client.plan, task, name=name)

    async def run(self, key: str) -> AsyncRun:
        """Return the run with this id or name. Raises NotFound."""
        return AsyncRun(await asyncio.to_thread(self._client.run, key))

    async def runs(
        self,
        name: str | None = None,
        *,
        all: bool = False,
        status: Sequence[str] = (),
        user: str | None = None,
        limit: int = 100,
    ) -> list[RunSummary]:
        """Return the newest live runs, as `Client.runs` does."""
        return await asyncio.to_thread(
            self._client.runs, name, all=all, status=status, user=user, limit=limit
        )

    async def offers(self) -> list[Offer]:
        """Return what is free now, by the kind of GPU."""
        return await asyncio.to_thread(self._client.offers)

    async def nodes(self) -> list[NodeView]:
        """Return the nodes, with what they have and what of it is in use."""
        return await asyncio.to_thread(self._client.nodes)

    async def outputs(self, run: AsyncRun | str) -> tuple[OutputsView, ...]:
        """Return what the run's jobs left, as `Client.outputs` does."""
        key = run.id if isinstance(run, AsyncRun) else run
        return await asyncio.to_thread(self._client.outputs, key)

    async def events(
        self, run: AsyncRun | str | None = None, *, after: int = 0, follow: bool = False
    ) -> AsyncGenerator[EventView, None]:
        """Yield what happened, oldest first, as `Client.events` does."""
        key = run.id if isinstance(run, AsyncRun) else run
        read = _Reader(self._client, lambda own: own.events(key, after=after, follow=follow))
        async with aclosing(read.items()) as items:
            async for event in items:
                yield event

    async def secrets(self) -> list[SecretView]:
        """Return your stored secrets and the shared ones, without their values."""
        return await asyncio.to_thread(self._client.secrets)

    async def set_secret(self, name: str, value: str, *, shared: bool = False) -> SecretView:
        """Store a secret, or a new value of it, as `Client.set_secret` does."""
        return await asyncio.to_thread(self._client.set_secret, name, value, shared=shared)

    async def delete_secret(self, name: str, *, shared: bool = False) -> SecretView:
        """Delete a stored secret; jobs that have it keep it. Raises NotFound."""
        return await asyncio.to_thread(self._client.delete_secret, name, shared=shared)

    async def service_keys(self, service: str | None = None) -> list[ServiceKeyView]:
        """Return the keys of your services, or of this one, without their secrets."""
        return await asyncio.to_thread(self._client.service_keys, service)

    async def add_service_key(self, service: str, *, label: str = "") -> NewServiceKeyView:
        """Make a key that opens one service alone; its `secret` is in no other answer."""
        return await asyncio.to_thread(self._client.add_service_key, service, label=label)

    async def revoke_service_key(self, key: ServiceKeyView | str) -> ServiceKeyView:
        """Revoke a key (or the one with this id) at once; its open requests end."""
        return await asyncio.to_thread(self._client.revoke_service_key, key)


class AsyncRun:
    """A run; its methods are those of `Run`."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._run.id

    @property
    def name(self) -> str:
        """The name of the run."""
        return self._run.name

    @property
    def state(self) -> RunView:
        """What is known of the run; `refresh`, `wait` and `states` renew it."""
        return self._run.state

    @property
    def status(self) -> RunStatus:
        """The status of the run as of `state`."""
        return self._run.status

    @property
    def is_final(self) -> bool:
        """Whether the run has ended."""
        return self._run.is_final

    @property
    def exit_status(self) -> int | None:
        """The exit status of `fairlead apply`; None while the run is live."""
        return self._run.exit_status

    @property
    def why(self) -> str:
        """The sentence that says why the run is as it is."""
        return self._run.why

    def __repr__(self) -> str:
        return repr(self._run)

    async def refresh(self) -> AsyncRun:
        """Ask for the present state."""
        await asyncio.to_thread(self._run.refresh)
        return self

    async def states(self) -> AsyncGenerator[RunView, None]:
        """Yield the state now and after each change, until it is final."""
        read = _Reader(self._run.client, lambda own: self._run.of(own).states())
        async with aclosing(read.items()) as items:
            async for state in items:
                self._run.state = state
                yield state

    async def wait(self, *, check: bool = True) -> AsyncRun:
        """Wait until the run has ended, as `Run.wait` does; `asyncio.timeout` limits it."""
        async with aclosing(self.states()) as states:
            async for _ in states:
                pass
        if check:
            self._run.check()
        return self

    async def logs(
        self,
        job: str | int | None = None,
        *,
        follow: bool = False,
        attempt: str | None = None,
        offset: int = 0,
    ) -> AsyncGenerator[Output, None]:
        """Yield the output of a job, as `Run.logs` does."""
        read = _Reader(
            self._run.client,
            lambda own: self._run.of(own).logs(job, follow=follow, attempt=attempt, offset=offset),
        )
        async with aclosing(read.items()) as items:
            async for piece in items:
                yield piece

    async def events(
        self, *, after: int = 0, follow: bool = False
    ) -> AsyncGenerator[EventView, None]:
        """Yield what happened to the run, as `Client.events` does."""
        read = _Reader(
            self._run.client, lambda own: self._run.of(own).events(after=after, follow=follow)
        )
        async with aclosing(read.items()) as items:
            async for event in items:
                yield event

    async def metrics(self, job: str | int | None = None) -> MetricsAnswer:
        """Return what the running jobs use now."""
        return await asyncio.to_thread(self._run.metrics, job)

    async def metrics_history(
        self, job: str | int | None = None, *, seconds: float = 3600.0, points: int = 120
    ) -> MetricsHistoryAnswer:
        """Return what the jobs used in the last `seconds`, or before their end, for a plot."""
        return await asyncio.to_thread(
            self._run.metrics_history, job, seconds=seconds, points=points
        )

    async def outputs(
        self, job: str | int | None = None, *, attempt: str | int | None = None
    ) -> tuple[OutputsView, ...]:
        """Return what the jobs left, as `Run.outputs` does."""
        return await asyncio.to_thread(self._run.outputs, job, attempt=attempt)

    async def pull_outputs(
        self,
        folder: str | PathLike[str],
        job: str | int | None = None,
        *,
        attempt: str | int | None = None,
        progress: bool | Tell | None = None,
    ) -> list[Path]:
        """Download what the jobs left, as `Run.pull_outputs` does; `progress` is shown from another
        thread."""
        pull = self._run.pull_outputs
        return await asyncio.to_thread(pull, folder, job, attempt=attempt, progress=progress)

    async def explain(self) -> ExplainView:
        """Return why the run waits."""
        return await asyncio.to_thread(self._run.explain)

    @asynccontextmanager
    async def forward(
        self, port: int, *, local: int = 0, host: str = "127.0.0.1", job: str | int | None = None
    ) -> AsyncGenerator[LocalPort, None]:
        """Open a local port that leads to a port of a job, within `async with`, as `Run.forward`
        does."""
        opened = await asyncio.to_thread(self._run.forward, port, local=local, host=host, job=job)
        try:
            yield opened
        finally:
            await asyncio.to_thread(opened.close)

    async def service(self) -> ServiceView:
        """Return the service that this run is, as `Run.service` does."""
        return await asyncio.to_thread(self._run.service)

    async def rollback(self, to: int | None = None) -> ServiceView:
        """Bring an earlier deployment of the service back, as `Run.rollback` does."""
        return await asyncio.to_thread(self._run.rollback, to)

    async def abort_job(self, job: str | int) -> AsyncRun:
        """End a job's attempt at once; it comes back under the default retry."""
        await asyncio.to_thread(self._run.abort_job, job)
        return self

    async def abandon_job(self, job: str | int) -> AsyncRun:
        """Let the run go on without a job."""
        await asyncio.to_thread(self._run.abandon_job, job)
        return self

    async def interrupt_job(self, job: str | int) -> AsyncRun:
        """Ask a job to end by itself."""
        await asyncio.to_thread(self._run.interrupt_job, job)
        return self

    async def stop(self, *, abort: bool = False) -> AsyncRun:
        """Stop the run, as `Run.stop` does."""
        await asyncio.to_thread(self._run.stop, abort=abort)
        return self

    async def complete(self) -> AsyncRun:
        """End the run as done now."""
        await asyncio.to_thread(self._run.complete)
        return self

    async def suspend(self, *, abort_running: bool = False) -> AsyncRun:
        """Suspend the run: no placements, retries or triggers."""
        await asyncio.to_thread(self._run.suspend, abort_running=abort_running)
        return self

    async def resume(self) -> AsyncRun:
        """Resume a suspended run."""
        await asyncio.to_thread(self._run.resume)
        return self

    async def scale(self, nodes: int, *, group: str = "main") -> AsyncRun:
        """Change the number of jobs of a group that is no gang."""
        await asyncio.to_thread(self._run.scale, nodes, group=group)
        return self


class _Reader(Generic[T]):
    """Reads a blocking stream in a thread of its own, with a client of its own to close."""

    def __init__(self, client: Client, read: Callable[[Client], Iterator[T]]) -> None:
        self._client = client.another()
        self._read = read
        self._room = threading.Semaphore(_AHEAD)
        self._is_closed = False
        self._queue: asyncio.Queue[T | _End] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    async def items(self) -> AsyncGenerator[T, None]:
        """Yield the items; closing this ends the thread."""
        threading.Thread(target=self._pump, daemon=True).start()
        try:
            while not isinstance(item := await self._queue.get(), _End):
                self._room.release()
                yield item
            if item.error is not None:
                raise item.error
        finally:
            self._is_closed = True
            self._client.close()
            self._room.release()

    def _pump(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._read(self._client):
                self._room.acquire()
                if self._is_closed:
                    return
                self._put(item)
        except BaseException as raised:
            error = raised
        self._put(_End(error))

    def _put(self, item: T | _End) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)


class _End:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error
