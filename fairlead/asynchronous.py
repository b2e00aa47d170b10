"""`AsyncClient` and `AsyncRun`: the methods of `Client` and `Run` for programs with an event loop.

Each is made of the blocking method, with its arguments, its result and its docstring, so nothing is
defined twice: `_call` runs it in a thread, `_stream` reads what it yields in a thread of its own.
A call that is cancelled ends when its request does. A stream has its own connection: when it is
closed, its thread ends.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from fairlead.client import Client
from fairlead.documents.runs import RunView
from fairlead.run import KnownRun, Run, Tell

if TYPE_CHECKING:
    from fairlead.forward import LocalPort

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_AHEAD = 64
"""Items that a stream's thread reads before the program takes them."""


class _Blocking(Protocol):
    def another(self) -> Self:
        """Return the same with a connection of its own."""

    def close(self) -> None:
        """End its streams."""


B = TypeVar("B", bound=_Blocking)


class _Asynchronous(Generic[B]):
    def __init__(self, blocking: B) -> None:
        self._blocking = blocking


def _call(
    method: Callable[Concatenate[B, P], R],
) -> Callable[Concatenate[_Asynchronous[B], P], Coroutine[object, None, R]]:
    """Return the method as a coroutine, which runs it in a thread."""

    @wraps(method)
    async def call(self: _Asynchronous[B], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self._blocking, *args, **kwargs)

    return call


def _making(
    method: Callable[Concatenate[Client, P], Run],
) -> Callable[Concatenate[_Asynchronous[Client], P], Coroutine[object, None, AsyncRun]]:
    """Return the method that gives a run as a coroutine that gives an AsyncRun."""

    @wraps(method)
    async def call(self: _Asynchronous[Client], /, *args: P.args, **kwargs: P.kwargs) -> AsyncRun:
        return AsyncRun(await asyncio.to_thread(method, self._blocking, *args, **kwargs))

    return call


def _making_several(
    method: Callable[Concatenate[Client, P], list[Run]],
) -> Callable[Concatenate[_Asynchronous[Client], P], Coroutine[object, None, list[AsyncRun]]]:
    """Return the method that gives several runs as such a coroutine."""

    @wraps(method)
    async def call(
        self: _Asynchronous[Client], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[AsyncRun]:
        made = await asyncio.to_thread(method, self._blocking, *args, **kwargs)
        return [AsyncRun(run) for run in made]

    return call


def _acting(
    method: Callable[Concatenate[Run, P], Run],
) -> Callable[Concatenate[AsyncRun, P], Coroutine[object, None, AsyncRun]]:
    """Return the method that changes its run and returns it as such a coroutine."""

    @wraps(method)
    async def call(self: AsyncRun, /, *args: P.args, **kwargs: P.kwargs) -> AsyncRun:
        await asyncio.to_thread(method, self._blocking, *args, **kwargs)
        return self

    return call


def _stream(
    method: Callable[Concatenate[B, P], Iterator[T]],
) -> Callable[Concatenate[_Asynchronous[B], P], AsyncGenerator[T, None]]:
    """Return the method that yields as an asynchronous generator."""

    @wraps(method)
    async def stream(
        self: _Asynchronous[B], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[T, None]:
        blocking = self._blocking
        read = _Reader(blocking, lambda own: method(own, *args, **kwargs))
        async with aclosing(read.items()) as items:
            async for item in items:
                yield item

    return stream


class AsyncClient(_Asynchronous[Client]):
    """A controller for a program with an event loop; arguments and errors are those of `Client`."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        controller: str | None = None,
        tell: Tell | None = None,
    ) -> None:
        super().__init__(Client(url, token, controller=controller, tell=tell))

    @property
    def url(self) -> str:
        """The URL of the controller; of several, the one that answered last."""
        return self._blocking.url

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._blocking.close()

    whoami = _call(Client.whoami)
    submit = _making(Client.submit)
    submit_many = _call(Client.submit_many)
    submit_together = _making_several(Client.submit_together)
    sweep = _making(Client.sweep)
    deploy = _call(Client.deploy)
    plan = _call(Client.plan)
    offers_for = _call(Client.offers_for)
    costs = _call(Client.costs)
    run = _making(Client.run)
    runs = _call(Client.runs)
    offers = _call(Client.offers)
    nodes = _call(Client.nodes)
    outputs = _call(Client.outputs)
    events = _stream(Client.events)
    secrets = _call(Client.secrets)
    set_secret = _call(Client.set_secret)
    delete_secret = _call(Client.delete_secret)
    service_keys = _call(Client.service_keys)
    add_service_key = _call(Client.add_service_key)
    revoke_service_key = _call(Client.revoke_service_key)


class AsyncRun(_Asynchronous[Run], KnownRun):
    """A run; its methods are those of `Run`."""

    @property
    def state(self) -> RunView:
        """What is known of the run; `refresh`, `wait` and `states` renew it."""
        return self._blocking.state

    async def states(self) -> AsyncGenerator[RunView, None]:
        """Yield the state now and after each change, until it is final; `asyncio.timeout` limits
        it."""
        read = _Reader(self._blocking, Run.states)
        async with aclosing(read.items()) as items:
            async for state in items:
                self._blocking.learn(state)
                yield state

    async def wait(self, *, check: bool = True) -> AsyncRun:
        """Wait until the run has ended, as `Run.wait` does; `asyncio.timeout` limits it."""
        async with aclosing(self.states()) as states:
            async for _ in states:
                pass
        if check:
            self._blocking.check()
        return self

    @asynccontextmanager
    async def forward(
        self, port: int, *, local: int = 0, host: str = "127.0.0.1", job: str | int | None = None
    ) -> AsyncGenerator[LocalPort, None]:
        """Open a local port that leads to a port of a job, within `async with`, as `Run.forward`
        does."""
        forward = self._blocking.forward
        opened = await asyncio.to_thread(forward, port, local=local, host=host, job=job)
        try:
            yield opened
        finally:
            await asyncio.to_thread(opened.close)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Why chosen sets stay as they are although `retry` was asked for."""
        return self._blocking.left_out

    async def retry(self, sets: str | None = None) -> AsyncRun:
        """Run parameter sets of this sweep again, as `Run.retry` does."""
        found = await asyncio.to_thread(self._blocking.retry, sets)
        return self if found is self._blocking else AsyncRun(found)

    refresh = _acting(Run.refresh)
    logs = _stream(Run.logs)
    results = _stream(Run.results)
    events = _stream(Run.events)
    metrics = _call(Run.metrics)
    metrics_history = _call(Run.metrics_history)
    outputs = _call(Run.outputs)
    pull_outputs = _call(Run.pull_outputs)
    explain = _call(Run.explain)
    service = _call(Run.service)
    rollback = _call(Run.rollback)
    abort_job = _acting(Run.abort_job)
    abandon_job = _acting(Run.abandon_job)
    interrupt_job = _acting(Run.interrupt_job)
    stop = _acting(Run.stop)
    complete = _acting(Run.complete)
    suspend = _acting(Run.suspend)
    resume = _acting(Run.resume)
    scale = _acting(Run.scale)
    stop_sets = _acting(Run.stop_sets)
    scale_sweep = _acting(Run.scale_sweep)


class _Reader(Generic[B, T]):
    """Reads a blocking stream in a thread of its own, with a client of its own to close."""

    def __init__(self, blocking: B, read: Callable[[B], Iterator[T]]) -> None:
        self._own = blocking.another()
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
            # In this order: a thread that waits for room wakes last, and sees that it is to end.
            self._is_closed = True
            self._own.close()
            self._room.release()

    def _pump(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._read(self._own):
                self._room.acquire()
                if self._is_closed:
                    return
                self._put(item)
        except BaseException as raised:
            # The reader raises it: here it would end this thread alone.
            error = raised
        self._put(_End(error))

    def _put(self, item: T | _End) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)


class _End:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error
